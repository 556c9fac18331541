"""Advice: picks are those of the library, changes bring what they are named for, and healthy clusters need none."""

from __future__ import annotations

from pathlib import Path

import pytest

import coppice
from coppice.advice.advise import USUAL_SIZES, advised, usual_library
from coppice.advice.environment import unset_changes
from coppice.advice.nccl import NcclState, nccl_rows
from coppice.advice.page import page_lines
from coppice.advice.rows import AdviceRow, by_ranges, settled
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.logs.reading import read_logs
from coppice.selection import select
from coppice.topology.presets import preset
from coppice.tuning.records import LibraryChoice, TimedRun
from support.paths import ROOT

ALL_REDUCE = Collective.ALL_REDUCE


@pytest.mark.parametrize(
    ("name", "boxes"), [("dgx-a100", 2), ("dgx-h100", 4), ("dgx-b200", 1), ("dgx-1v", 1)]
)
def test_healthy_boxes_need_nothing(name: str, boxes: int) -> None:
    found = advised(preset(name, boxes=boxes))
    assert found.library == "nccl"
    assert len(found.rows) == 5 * len(USUAL_SIZES)
    assert not found.gaining
    assert not found.changes
    assert any("nothing to change" in line for line in page_lines(found))


def test_rows_are_what_the_library_picks() -> None:
    cluster = preset("dgx-a100", boxes=2)
    for row in advised(cluster, sizes=[2**10, 2**20, 2**28]).rows:
        pick = coppice.select("nccl", row.collective, row.size_bytes, topology=cluster)
        assert (row.picked, row.picked_us) == (pick.algorithm, pick.cell.time_us)


def test_forced_choices_are_found_and_undone() -> None:
    cluster = preset("dgx-h100", boxes=4)
    forced = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_DEBUG": "INFO"}
    sizes = [2**10, 2**24, 2**30]
    found = advised(cluster, sizes=sizes, collectives=[ALL_REDUCE], environment=forced)
    assert [change.name for change in found.changes] == ["unset NCCL_ALGO", "unset NCCL_PROTO"]
    free = {row.size_bytes: row for row in advised(cluster, sizes=sizes, collectives=[ALL_REDUCE]).rows}
    for row in found.rows:
        assert row.picked == "Ring/Simple"
        assert row.best_us == pytest.approx(free[row.size_bytes].picked_us, rel=0.03)
        assert row.picked_us is not None
        assert row.best_us is not None
        assert row.best_us <= row.picked_us
    assert found.rows[0].change == "all changes"
    page = "\n".join(page_lines(found))
    assert "undo: export NCCL_ALGO=Ring" in page
    assert "env -u NCCL_ALGO -u NCCL_PROTO" in page


def test_one_change_is_enough_where_one_is() -> None:
    state = NcclState(topology=preset("dgx-h100"), environment={"NCCL_NVLS_ENABLE": "0", "NCCL_ALGO": "^PAT"})
    changes = list(unset_changes(state.environment))
    assert len(changes) == 2
    (row,) = nccl_rows(state, [ALL_REDUCE], [2**30], changes)
    assert (row.picked, row.change) == ("Ring/Simple", "unset NCCL_NVLS_ENABLE")
    assert row.gain > 1.2


@pytest.mark.parametrize("library", ["open-mpi", "mpich"])
def test_mpi_is_simulated(library: str) -> None:
    star = preset("star", gpus=6)
    found = advised(star, library=library, collectives=[ALL_REDUCE], sizes=[2**10, 2**22], jobs=1)
    for row in found.rows:
        own = coppice.select(library, row.collective, row.size_bytes, topology=star)
        assert row.picked == own.runs_as
        assert row.model == "simulated under mpi-tcp"
        made = coppice.plan(
            star, "all_reduce", algorithm=own.ours, parameters=dict(own.parameters), order="rank"
        )
        timed = coppice.simulate(made, row.size_bytes, model="mpi-tcp", pieces=1)
        assert row.picked_us == pytest.approx(timed.time_us)
        assert row.best_us is not None
        assert row.best_us <= timed.time_us


def test_mpich_is_not_told_what_loses_elsewhere() -> None:
    """Recursive doubling is faster for small messages, but the variable holds for large ones, too."""
    star = preset("star", gpus=6)
    both = advised(star, library="mpich", collectives=[ALL_REDUCE], sizes=[2**10, 2**22]).rows
    small = advised(star, library="mpich", collectives=[ALL_REDUCE], sizes=[2**10], model="mpi-tcp").rows
    assert both[0].best == both[0].picked
    assert "holds for all sizes" in both[0].why
    assert small[0].best == "recursive_doubling"


LOG = """\
n1:7:7 [0] NCCL INFO NCCL version 2.27.7+cuda12.4
n1:7:7 [0] NCCL INFO NCCL_ALGO set by environment to Ring
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
    67108864      16777216     float     sum      -1    912.4   73.55  137.91      0    910.0   73.75  138.28      0
"""


def test_logs_tell_versions_and_variables(tmp_path: Path) -> None:
    file = tmp_path / "nccl.log"
    file.write_text(LOG)
    logs = read_logs([file], collective=ALL_REDUCE)
    found = advised(preset("dgx-a100", boxes=2), logs=logs, sizes=[2**10])
    assert (found.version, found.version_from) == ("2.27.7", str(file))
    assert [change.name for change in found.changes] == ["unset NCCL_ALGO"]


def test_usual_libraries() -> None:
    assert [usual_library(preset(name)) for name in ("dgx-h100", "mi300x", "star")] == [
        "nccl",
        "rccl",
        "open-mpi",
    ]
    with pytest.raises(InputError, match="did you mean 'mpich'"):
        advised(preset("star"), library="mpihc")


def test_ranges_and_the_least_gain() -> None:
    row = AdviceRow(
        group="all", collective=ALL_REDUCE, nodes=1, ranks=8, size_bytes=1024, picked="a", best="b", picked_us=100.0,
        best_us=98.0, model="m", why="w", change="c",
    )  # fmt: skip
    assert not row.saves
    assert (settled(row).best, settled(row).change) == ("a", "")
    assert [span for span, _ in by_ranges([row, row])] == ["1K"]


BOX = """\
        GPU0    GPU1    GPU2    GPU3    NIC0    CPU Affinity    NUMA Affinity
GPU0     X      NV18    X2      NV18    PIX     0-15            0
GPU1    NV18     X      X2      NV18    PXB     0-15            0
GPU2    X2      X2       X      X2      PXB     0-15            0
GPU3    NV18    NV18    X2       X      PXB     0-15            0
NIC0    PIX     PXB     PXB     PXB      X
"""


def test_mending_a_host_brings_what_a_sound_one_has() -> None:
    """A GPU that lost its NVLinks: what is promised is what NCCL reckons with on the same box with all of them."""
    with pytest.warns(UserWarning, match="GPU2 has no NVLink"):
        lost, sound = (coppice.load(BOX.replace("X2", word), gpu="h100") for word in ("PXB", "NV18"))
    found = advised(lost, collectives=[ALL_REDUCE], sizes=[2**26])
    (row,), (free,) = found.rows, advised(sound, collectives=[ALL_REDUCE], sizes=[2**26]).rows
    assert [finding.rule for finding in found.hosts[0].findings if finding.rule == "H08"] == ["H08"]
    assert [change.name for change in found.changes] == ["mend H08"]
    assert row.change == "mend H08"
    assert (row.best, row.best_us) == (free.picked, pytest.approx(free.picked_us))
    assert row.gain > 2


def test_reports_of_hosts_are_judged(tmp_path: Path) -> None:
    file = tmp_path / "lspci.txt"
    file.write_text(
        "0000:17:00.0 3D controller: NVIDIA\n\tLnkCap:\tPort #0, Speed 32GT/s, Width x16\n"
        "\tLnkSta:\tSpeed 32GT/s, Width x8 (downgraded)\n"
    )
    found = coppice.advise("dgx-h100", sizes="1M", logs=[file])
    assert [finding.rule for one in found.hosts for finding in one.findings] == ["H15"]
    assert any("24 GB/s less" in line for line in page_lines(found))


def test_measured_choices_are_advised_and_written(tmp_path: Path) -> None:
    lab, runs = ROOT / "examples" / "tuning-lab.json", ROOT / "examples" / "tuning-runs.jsonl"
    found = coppice.advise(str(lab), library="open-mpi", logs=[runs], write=str(tmp_path / "advice"))
    assert {row.model for row in found.rows} == {"measured by coppice tune sweep"}
    fit = coppice.tune.fit(str(runs))
    for row in found.rows:
        (size,) = [s for shape, sizes in fit.sizes.items() for s in sizes
                   if (shape.collective, s.size_bytes) == (row.collective, row.size_bytes)]  # fmt: skip
        gain = 1.0 if size.taken is None else size.taken.verdict.gain
        assert row.gain == pytest.approx(gain)
    assert len(found.gaining) == 3
    (file,) = found.files
    written = tmp_path / "advice" / file.name
    assert written.read_text() == file.text
    shapes = {"shapes": "6x6", "version": "5.0.11"}
    assert coppice.doctor(written, target="ompi-rules", options=shapes).ok
    assert file.undo.startswith("unset OMPI_MCA_coll_tuned_use_dynamic_rules")
    assert found.record()["files"][0]["output"] == str(written)


def test_noisy_gains_are_not_promised() -> None:
    runs = [
        TimedRun(
            library="open-mpi", version="5.0.11", collective=ALL_REDUCE, nodes=1, ranks=4, size_bytes=2**16,
            choice=LibraryChoice("ring", number=4), default_us=(900.0, 400.0, 800.0, 390.0, 870.0, 410.0, 850.0) * 3,
            time_us=(100.0, 300.0, 120.0, 310.0, 105.0, 290.0, 110.0) * 3,
        )
    ]  # fmt: skip
    found = advised(preset("star", gpus=4), library="open-mpi", runs=runs)
    (row,) = found.rows
    assert "too noisy" in row.why
    assert not found.gaining
    assert not found.files


def test_simulation_alone_promises_little() -> None:
    """Small blocks are left to measurements; a rules file of simulated choices is judged like any other."""
    star = preset("star", gpus=6)
    found = advised(star, library="open-mpi", collectives=[ALL_REDUCE], sizes=[2**16, 2**22], jobs=1)
    small, large = found.rows
    assert small.best == small.picked
    assert "measure" in small.why
    assert small.rival_us < small.picked_us
    assert large.gain > 1.25
    (file,) = found.files
    assert coppice.doctor(file.text, target="ompi-rules", options={"shapes": "1x6"}).ok
    fitted = advised(
        star, library="open-mpi", collectives=[ALL_REDUCE], sizes=[2**16], jobs=1, model="alpha-beta"
    )
    assert fitted.rows[0].saves


def test_variables_are_written_with_their_undo(tmp_path: Path) -> None:
    found = advised(preset("dgx-h100"), sizes=[2**30], environment={"NCCL_ALGO": "Ring"}).written(tmp_path)
    assert (tmp_path / "environment.sh").read_text() == "# undo: export NCCL_ALGO=Ring\nunset NCCL_ALGO\n"
    assert [file.undo for file in found.files] == ["export NCCL_ALGO=Ring"]


def test_changes_bring_something_to_the_step_of_a_job(tmp_path: Path) -> None:
    """The step takes what it takes by those times of NCCL, and as much after the change as without the variable."""
    cluster = preset("dgx-h100", boxes=2)
    log = tmp_path / "nccl.log"
    log.write_text("n1:7:7 [0] NCCL INFO NCCL_PROTO set by environment to LL\n")
    words = {"job": "gpt-7.5b", "parallel": "tp=8,dp=2", "global_batch": 32, "sizes": "1M"}
    forced = coppice.advise(cluster, logs=[log], **words).step
    free = coppice.advise(cluster, **words).step
    assert forced is not None
    assert free is not None
    assert free.best_seconds == free.picked_seconds
    assert forced.best_seconds == pytest.approx(free.picked_seconds)
    assert forced.picked_seconds > 1.1 * forced.best_seconds
    for row in forced.rows:
        ranks = range(8) if row.ranks == 8 else (0, 8)
        part = coppice.load(cluster, ranks=list(ranks))
        pick = coppice.select("nccl", row.collective, row.size_bytes, topology=part)
        assert row.best_us == pytest.approx(pick.cell.time_us, rel=0.03)
    with pytest.raises(InputError, match="expected `parallel` with `job`"):
        coppice.advise(cluster, parallel="tp=8,dp=2")
    with pytest.raises(InputError, match="expected a job with NCCL"):
        coppice.advise(cluster, library="mpich", **words)


def test_what_nvidia_smi_printed_is_advised_for_nccl() -> None:
    """The number of links fits no generation here, and NCCL runs there all the same."""
    text = "        GPU0    GPU1\nGPU0     X      NV8\nGPU1    NV8      X\n"
    with pytest.warns(UserWarning, match="GPU model is not in the text"):
        assert usual_library(coppice.load(text)) == "nccl"


def test_rccl_without_a_log_tells_its_picks_and_promises_nothing() -> None:
    topology = preset("mi300x", boxes=2)
    found = advised(topology, sizes=[2**12, 2**26], collectives=[Collective.ALL_REDUCE])
    for row in found.rows:
        pick = select("rccl", row.collective, row.size_bytes, topology=topology)
        assert pick.cell is not None
        assert (row.picked, row.picked_us, row.nodes) == (pick.algorithm, pick.cell.time_us, 2)
        assert not row.saves
    assert any("takes a log" in words for words in found.notes)
    unknown = advised(preset("mi100"), library="rccl", sizes=[2**12])
    assert any("expected AMD GPUs of" in words for words in unknown.notes)
