"""Every collective on generated topologies over the MPI engine, under both libraries, computes what NumPy does."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from run.engines.mpi.launching import QUICK_LIBRARIES, reason_to_skip, run_mpi
from support.generated_calls import EVERY_PAIR, calls_of
from support.paths import TESTS
from support.rank_groups import GENERATED_WORKER


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
