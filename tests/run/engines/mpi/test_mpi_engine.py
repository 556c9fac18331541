"""The MPI engine under real libraries: right results, and clear errors when a rank does not do its part."""

from __future__ import annotations

from pathlib import Path

import pytest

from run.engines.mpi.launching import QUICK_LIBRARIES, reason_to_skip, run_mpi

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
