"""Plans of several groups run at once: right results, at the GPUs that have the names of the plans' nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import coppice
from coppice.errors import InputError
from coppice.run.bench.together import bench_together, read_group_jobs
from coppice.run.engines.numpy import NumpyEngine, run_ranks
from coppice.topology import preset, subset

BOXES = preset("dgx-a100", boxes=2)


@pytest.fixture(scope="module", name="jobs")
def fixture_jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tensor groups, data groups and stages on 16 GPUs, of a few KiB each."""
    folder = tmp_path_factory.mktemp("plans")
    file = coppice.plan_groups(BOXES, groups="tp=4,dp=2,pp=2").save(folder)[0]
    return written(file, file, size=4000, pieces=2)


def written(source: Path, target: Path, **changes: Any) -> Path:
    """A jobs file with changes to each of its rows."""
    document = json.loads(source.read_text())
    for row in document["jobs"]:
        row.update(changes)
    target.write_text(json.dumps(document))
    return target


def run(path: Path, ranks: int = 16, topology: Any = BOXES) -> Any:
    def work(engine: NumpyEngine) -> Any:
        return bench_together(engine, topology, path, rounds=2, warmup=1, timeout_s=60)

    found = run_ranks(ranks, work)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found[0]


def test_all_groups_have_right_results(jobs: Path) -> None:
    """Each rank is in three groups at once, and the members of groups are found by the names of GPUs."""
    rows = run(jobs)
    assert [row.algorithm for row in rows] == [row["name"] for row in json.loads(jobs.read_text())["jobs"]]
    assert {(row.collective, row.ranks) for row in rows} == {
        ("all_reduce", 4),
        ("all_reduce", 2),
        ("broadcast", 2),
    }
    assert all(row.wrong == 0 and row.time_us > 0 and row.pieces == 2 for row in rows)
    assert all(row.size_bytes == 4000 and len(row.rounds_us) == 2 for row in rows)
    assert [job.ranks for job in read_group_jobs(jobs, BOXES)][:2] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_wrong_elements_of_all_members_are_counted(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first and the last round."""
    monkeypatch.setattr("coppice.run.bench.measuring.wrong_elements", lambda *_: 3)
    assert {row.wrong for row in run(jobs) if row.ranks == 4} == {3 * 4 * 2}


def test_jobs_start_when_the_file_says(jobs: Path) -> None:
    """Nobody waits for a job that starts later, and its time counts from its own start."""
    late = written(jobs, jobs.with_name("late.json"), start_us=1000.0)
    assert {job.start_s for job in read_group_jobs(late, BOXES)} == {1e-3}
    assert all(row.wrong == 0 and row.time_us > 0 for row in run(late))


def test_what_does_not_fit_is_refused(jobs: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a process for each of the 16 GPUs"):
        run(jobs, ranks=4)
    with pytest.raises(InputError, match=r"expected GPUs of .* in the plan of tp-2, found box1/gpu0"):
        run(jobs, ranks=8, topology=subset(BOXES, range(8)))
    with pytest.raises(InputError, match=r"missing\.json"):
        run(tmp_path / "missing.json")
    with pytest.raises(InputError, match="found both"):
        coppice.bench("all_reduce", together=str(jobs))
    with pytest.raises(InputError, match="found neither"):
        coppice.bench()
