"""The MPI engine under real libraries: right results, and clear errors when a rank does not do its part."""

from __future__ import annotations

import os
import pickle
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from coppice.run.lab.blueprint import draw
from coppice.run.lab.launch import launch_mpi
from coppice.run.lab.namespaces import build, remove
from run.engines.mpi.launching import HOME, QUICK_LIBRARIES, environment, reason_to_skip, run_mpi
from run.engines.mpi.networks import NAME, mesh, reason_to_skip_network
from support.generated_calls import EVERY_PAIR, calls_of
from support.paths import TESTS
from support.plan_sets import made_set
from support.rank_groups import GENERATED_WORKER

HERE = Path(__file__).parent


def needs(library: str) -> None:
    pytest.importorskip("mpi4py")
    if (reason := reason_to_skip(library)) is not None:
        pytest.skip(reason)


@pytest.mark.parametrize("library", QUICK_LIBRARIES)
@pytest.mark.parametrize(
    "ranks", [1, 3, pytest.param(2, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)]
)
def test_every_collective_equals_the_library(library: str, ranks: int) -> None:
    needs(library)
    done = run_mpi(library, ranks, [str(HERE / "collectives_worker.py")])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"140 collectives equal on {ranks} ranks" in done.stdout


@pytest.mark.parametrize("library", QUICK_LIBRARIES)
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("close", "PeerLost: rank 1 closed its engine"),
        ("hang", "TimedOut: rank"),
        pytest.param("size", "Mismatch: ", marks=pytest.mark.slow),
        ("type", "Mismatch: "),
    ],
)
def test_the_others_learn_of_a_fault(library: str, fault: str, words: str) -> None:
    needs(library)
    done = run_mpi(library, 3, [str(HERE / "faults_worker.py"), fault], timeout_s=60)
    lines = [line for line in done.stdout.splitlines() if line.startswith("rank ")]
    survivors = {line.split(":")[0] for line in lines}
    assert {"rank 0", "rank 2"} <= survivors, done.stdout + done.stderr
    assert not any(line.endswith(": done") for line in lines)
    assert any(words in line for line in lines), lines
    if fault in ("size", "type"):
        assert all("Mismatch" in line for line in lines)
        assert len(lines) == 3


@pytest.mark.parametrize("library", QUICK_LIBRARIES)
def test_a_slow_rank_is_waited_for(library: str) -> None:
    needs(library)
    done = run_mpi(library, 3, [str(HERE / "faults_worker.py"), "slow"], timeout_s=60)
    assert sorted(done.stdout.splitlines()) == [f"rank {rank}: done" for rank in range(3)], done.stderr


WORKER = str(Path(__file__).with_name("faults_worker.py"))


@pytest.mark.parametrize("library", ["mpich", pytest.param("open-mpi", marks=pytest.mark.slow)])
def test_a_rank_that_closes_late_is_waited_for(library: str) -> None:
    """MPICH's ranks do not wait for each other when they end, and one connects for ever to another that has ended."""
    if (reason := reason_to_skip_network(library)) is not None:
        pytest.skip(reason)
    lab = build(NAME, draw(mesh(4), Fraction(1)))
    try:
        launch_mpi(
            lab,
            library,
            [sys.executable, WORKER, "late"],
            launcher=str(HOME / library / "bin" / "mpiexec"),
            environment=environment(library),
            timeout_s=60,
        )
    finally:
        remove(NAME)


def programs_are_right(library: str, ranks: int, number: int, file: Path, *, first: int) -> None:
    pytest.importorskip("mpi4py")
    if (reason := reason_to_skip(library)) is not None:
        pytest.skip(reason)
    file.write_bytes(pickle.dumps(calls_of(ranks, number, first=first)))
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = run_mpi(
        library,
        ranks,
        [str(GENERATED_WORKER), "mpi", str(file)],
        timeout_s=500,
        variables={"PYTHONPATH": path},
    )
    assert done.stdout.splitlines() == [f"{number} calls right"] * ranks, done.stdout + done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("library", QUICK_LIBRARIES)
def test_every_collective_with_every_type(library: str, tmp_path: Path) -> None:
    programs_are_right(library, 3, EVERY_PAIR, tmp_path / "calls", first=3000)


@pytest.mark.slow
@pytest.mark.parametrize("library", QUICK_LIBRARIES)
@pytest.mark.parametrize("ranks", [1, 2, 4, 5, 6, 7, 8])
def test_many_calls(library: str, ranks: int, tmp_path: Path) -> None:
    programs_are_right(library, ranks, 3 * EVERY_PAIR, tmp_path / "calls", first=4000)


@pytest.mark.parametrize("library", QUICK_LIBRARIES)
@pytest.mark.slow
def test_a_set_of_plans_runs_each_size_by_its_plan(library: str, tmp_path: Path) -> None:
    needs(library)
    made_set("ring", "recursive-doubling", "ring").save(tmp_path / "plans")
    done = run_mpi(
        library, 4, [str(HERE / "set_worker.py"), str(tmp_path / "plans"), str(tmp_path / "cache")]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 of 7 sums are right on 4 ranks" in done.stdout
    words = ["bench", "all_reduce", "--engine", "mpi", "-b", "256", "-e", "4K", "-n", "2", "-w", "0"]
    done = run_mpi(library, 4, ["-m", "coppice", *words, "-a", str(tmp_path / "plans")])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"topology that of {tmp_path / 'plans'}" in done.stdout
    assert not (tmp_path / "cache").exists()  # nothing was planned
