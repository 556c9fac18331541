"""The results file: a comparison goes on where it was interrupted, and a file of something else is left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from comparison.cases import measured, star
from coppice import Collective, InputError, Problem
from coppice.comparison import compare
from coppice.comparison.gain import FAMILIES, Gain, GainRow, gain, gain_lines, gain_words
from coppice.comparison.measurement import AlgorithmVariant, measure
from coppice.comparison.results import MeasurementsFile, key_of, problem_sha256
from coppice.planners.algorithms.catalogue import algorithms
from coppice.simulation import Model
from coppice.topology.presets import preset

SIZES = (2**10, 2**20)
HEADER = {
    "format": "coppice-comparison",
    "version": 1,
    "collective": "x",
    "root": None,
    "topology": "t",
    "problem_sha256": "0",
}
FEW = ("forest", "ring", "double-binary-tree")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(algorithm, size) of everything that is simulated in this process."""
    seen: list[tuple[str, int]] = []

    def counting(job: Any) -> Any:
        seen.extend((job.candidate.algorithm, size) for size in job.keys)
        return measure(job)

    monkeypatch.setattr("coppice.comparison.sweep.measure", counting)
    return seen


def record(**options: Any) -> str:
    return json.dumps(compare(star(), sizes=SIZES, algorithms=FEW, jobs=1, **options).record())


def test_interrupted_comparison_goes_on(tmp_path: Path, counted: list[tuple[str, int]]) -> None:
    path = tmp_path / "results.jsonl"
    whole = record()
    everything = list(counted)
    counted.clear()

    def interrupt(done: int, *_: Any) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(results=path, on_progress=interrupt)
    assert counted == everything[:2]
    assert len(path.read_text().splitlines()) == 3
    assert record(results=path) == whole
    assert counted == everything
    assert record(results=path) == whole
    assert counted == everything


def test_torn_last_line_is_measured_again(tmp_path: Path, counted: list[tuple[str, int]]) -> None:
    path = tmp_path / "results.jsonl"
    whole = record(results=path)
    lines = path.read_bytes().splitlines(keepends=True)
    for keep in range(len(lines)):
        for torn in (b"", lines[keep][:1], lines[keep][:-1]):
            path.write_bytes(b"".join(lines[:keep]) + torn)
            counted.clear()
            assert record(results=path) == whole
            assert len(counted) == len(lines) - max(keep, 1)
            assert sorted(path.read_bytes().splitlines()) == sorted(b"".join(lines).splitlines())


def test_further_sizes_and_models_share_a_file(tmp_path: Path, counted: list[tuple[str, int]]) -> None:
    path = tmp_path / "results.jsonl"
    record(results=path)
    counted.clear()
    found = compare(star(), sizes=[2**10, 2**15], algorithms=["ring"], jobs=1, results=path)
    assert counted == [("ring", 2**15)]
    assert set(found.times["ring"]) == {2**10, 2**15}
    slower = compare(
        star(), sizes=[2**10], algorithms=["ring"], jobs=1, results=path, model=Model(overhead_us=9.0)
    )
    assert counted[1:] == [("ring", 2**10)]
    assert slower.times["ring"][2**10].time_us > 50


def test_file_of_another_problem_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    record(results=path)
    before = path.read_bytes()
    for other in (star(5), star(4, Collective.ALL_GATHER)):
        with pytest.raises(InputError, match="holds results of all_reduce on star"):
            compare(other, sizes=SIZES, algorithms=["ring"], jobs=1, results=path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"# My notes\n", "to be a results file"),
        (b"no newline at all", "to be a results file"),
        (b'{"format": "coppice-plan"}\n', "to be a results file"),
        (json.dumps({**HEADER, "version": 9}).encode() + b"\n", "version 9"),
    ],
)
def test_other_files_are_left_alone(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        record(results=path)
    assert path.read_bytes() == content


def test_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    record(results=path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b'{"key": 3}\n'
    path.write_bytes(b"".join(lines))
    with pytest.raises(InputError, match=r"results.jsonl:3: expected a measurement"):
        record(results=path)


def test_a_directory_is_no_results_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="choose another place"):
        record(results=tmp_path)


def test_rows_survive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    rows = [
        measured("ring", 10, 1.25, parameters={"segments": 4, "mapping": "x"}, chain=3, relays=True),
        measured("bruck", 10, 0.0, refusal="needs more", unreachable=True),
    ]
    MeasurementsFile(path, star()).add(rows)
    assert list(MeasurementsFile(path, star()).known.values()) == rows


def test_key_depends_on_everything_that_decides() -> None:
    ring = AlgorithmVariant(algorithm="ring")
    cases = [
        (star(), ring, 10, Model()),
        (star(5), ring, 10, Model()),
        (star(4, Collective.ALL_GATHER), ring, 10, Model()),
        (star(4, Collective.BROADCAST, root=0), ring, 10, Model()),
        (star(4, Collective.BROADCAST, root=1), ring, 10, Model()),
        (star(), AlgorithmVariant(algorithm="ring", order="topology"), 10, Model()),
        (star(), AlgorithmVariant(algorithm="ring", relay_gpus=True), 10, Model()),
        (star(), AlgorithmVariant(algorithm="ring", parameters={"radix": 4}), 10, Model()),
        (star(), AlgorithmVariant(algorithm="ring", doubled="segments"), 10, Model()),
        (star(), ring, 11, Model()),
        (star(), ring, 10, Model(send_engines=1)),
    ]
    keys = [key_of(problem_sha256(problem), *rest) for problem, *rest in cases]
    assert len(set(keys)) == len(cases)
    assert keys[0] == key_of(problem_sha256(star()), ring, 10, Model())


SCRIPT = """
import sys
from coppice import Collective, Problem, load
from coppice.comparison import compare

if __name__ == "__main__":
    problem = Problem(topology=load("dgx-a100", boxes=4), collective=Collective.ALL_REDUCE)
    compare(problem, sizes=[2**k for k in range(10, 24)], relay_gpus=True, jobs=2, results=sys.argv[1])
"""


def test_interrupt_of_a_running_sweep_leaves_a_valid_file(tmp_path: Path) -> None:
    """Ctrl-C in the middle: nothing is left running, and every line of the file can be read."""
    path, script = tmp_path / "results.jsonl", tmp_path / "sweep_script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(path)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        if path.exists() and len(path.read_bytes().splitlines()) > 2:
            break
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)  # returns when every process that inherited standard error is gone
    lines = path.read_text().splitlines()
    assert len(lines) > 2
    assert all(json.loads(line) for line in lines)


def test_sweep_keeps_nothing_where_no_file_is_asked_for(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    compare(star(), sizes=SIZES, algorithms=["ring"], jobs=1)
    assert not list(tmp_path.iterdir())


NAMES = ["forest", "ring", "recursive-doubling"]


@pytest.mark.filterwarnings("default")  # Dask's own
def test_same_outcome_on_a_dask_cluster(tmp_path: Path) -> None:
    distributed = pytest.importorskip(
        "distributed", reason="dask is not installed: pip install 'coppice[dask]'"
    )
    alone = compare(star(), sizes=SIZES, algorithms=NAMES, jobs=1)
    path = tmp_path / "results.jsonl"
    seen: list[int] = []
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=str(tmp_path / "dask")
        ) as cluster,
        distributed.Client(cluster) as client,
        client.get_executor() as executor,
    ):
        found = compare(
            star(),
            sizes=SIZES,
            algorithms=NAMES,
            executor=executor,
            results=path,
            on_progress=lambda done, *_: seen.append(done),
        )
        used = client.run(lambda: "coppice" in __import__("sys").modules)
    assert found.record() == alone.record()
    assert len(used) == 2
    assert any(used.values())
    assert seen == list(range(1, len(seen) + 1))
    # What the cluster measured, this process need not.
    again = compare(
        star(),
        sizes=SIZES,
        algorithms=NAMES,
        jobs=1,
        results=path,
        on_progress=lambda *_: pytest.fail("it measured again"),
    )
    assert again.record() == alone.record()


SIZE = 2**28


def boxes(*counts: int, collective: Collective = Collective.ALL_GATHER) -> dict[int, Problem]:
    return {
        count: Problem(topology=preset("dgx-a100", boxes=count), collective=collective) for count in counts
    }


def row(count: int, ring_us: float, other_us: float | None = None) -> GainRow:
    other = None if other_us is None else measured("2d-torus", SIZE, other_us)
    return GainRow(
        boxes=count,
        ranks=8 * count,
        optimal=measured("forest", SIZE, 100.0),
        rivals={"ring": measured("ring", SIZE, ring_us), "hierarchical": other},
        limit_us=99.0,
    )


@pytest.mark.slow
def test_gain_shrinks_on_large_symmetric_clusters() -> None:
    found = gain(boxes(1, 2, 4), SIZE, jobs=1)
    over = [each.over("ring") for each in found.rows]
    assert over == [pytest.approx(1, abs=0.01), pytest.approx(1.6, abs=0.1), pytest.approx(1.3, abs=0.1)]
    for each in found.rows:
        assert each.limit_us <= each.optimal.time_us * (1 + 1e-6)
    assert found.rows[0].ranks == 8
    lines = gain_lines(found)
    assert len(lines) == 2 + 3
    assert lines[3].split()[:2] == ["2", "16"]


def test_words() -> None:
    shrinking = Gain(size_bytes=SIZE, rows=(row(1, 101.0), row(2, 160.0, 200.0), row(4, 110.0, 190.0)))
    ring, hierarchical = gain_words(shrinking)
    assert ring.startswith(
        "gain of forest over ring at 256M: 1.60x on 2 boxes, 1.10x on 4: it shrinks towards 1"
    )
    assert hierarchical == (
        "gain of forest over hierarchical at 256M: 2.00x on 2 boxes, 1.90x on 4: it shrinks as the cluster grows."
    )
    growing = Gain(size_bytes=SIZE, rows=(row(1, 101.0), row(4, 180.0)))
    (only,) = gain_words(growing)
    assert only == "gain of forest over ring at 256M: largest on the largest cluster, 1.80x on 4 boxes."
    assert "-" in gain_lines(growing)[2].split()


def test_record() -> None:
    record = Gain(size_bytes=SIZE, rows=(row(2, 160.0),)).record()
    (only,) = record["rows"]
    assert only["ring"]["gain"] == 1.6
    assert only["hierarchical"] is None
    assert only["limit_algbw_gb_per_s"] > only["algbw_gb_per_s"]


def test_families_are_in_the_catalogue() -> None:
    known = {name for name, _ in algorithms()}
    for members in FAMILIES.values():
        assert set(members) <= known


def test_a_barrier_has_no_gain() -> None:
    with pytest.raises(InputError, match="moves no bytes"):
        gain({1: star(4, Collective.BARRIER)}, SIZE, jobs=1)
