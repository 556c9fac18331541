"""Shared memory when something goes wrong: every surviving rank says so, soon, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.paths import TESTS

SCRIPT = Path(__file__).with_name("shm_rank.py")
linux = pytest.mark.skipif(sys.platform != "linux", reason="uses what only Linux offers")
DEV_SHM = Path("/dev/shm")


class Group:
    """Processes that run `shm_rank.py`."""

    def __init__(self, tmp_path: Path, ranks: int, deed: str, *, directory: str | None = None) -> None:
        self.ranks = [
            subprocess.Popen(
                [sys.executable, str(SCRIPT), str(tmp_path / "meeting"), str(rank), str(ranks), deed]
                + ([directory] if directory else []),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {"PYTHONPATH": str(TESTS)},
            )
            for rank in range(ranks)
        ]

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.communicate()

    def last_lines(self, timeout_s: float = 300) -> list[str]:
        """The last line of every rank's output, in rank order."""
        out = [rank.communicate(timeout=timeout_s) for rank in self.ranks]
        return [
            (text.splitlines() or [errors.strip().splitlines()[-1] if errors else ""])[-1]
            for text, errors in out
        ]


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A directory of its own in memory: other tests that run meanwhile share memory too."""
    if not DEV_SHM.is_dir():
        pytest.skip("no /dev/shm")
    with tempfile.TemporaryDirectory(prefix="coppice-faults-", dir=DEV_SHM) as made:
        yield Path(made)


def test_processes_agree(tmp_path: Path) -> None:
    with Group(tmp_path, 4, "random:60") as group:
        assert group.last_lines() == ["ok"] * 4


def test_processes_agree_and_leave_nothing(tmp_path: Path, in_memory: Path) -> None:
    with Group(tmp_path, 4, "random:60", directory=str(in_memory)) as group:
        assert group.last_lines() == ["ok"] * 4
    assert not list(in_memory.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_many_random_collectives_of_processes(tmp_path: Path, ranks: int) -> None:
    with Group(tmp_path, ranks, "random:10000") as group:
        assert group.last_lines(500) == ["ok"] * ranks


@linux
@pytest.mark.parametrize("after_s", ["0.001", "0.01", "0.05"])
def test_a_killed_rank_is_lost_to_all_others(tmp_path: Path, in_memory: Path, after_s: str) -> None:
    with Group(tmp_path, 3, f"die:{after_s}", directory=str(in_memory)) as group:
        lines = group.last_lines()  # their own timeout is longer
        assert group.ranks[2].returncode == -signal.SIGKILL
        for line in lines[:2]:
            assert line.startswith("PeerLost rank 2 has ended while rank")
        assert not list(in_memory.iterdir())


def test_a_rank_that_raises_is_lost_to_all_others(tmp_path: Path) -> None:
    with Group(tmp_path, 3, "raise") as group:
        lines = group.last_lines()
        for line in lines[:2]:
            assert line.startswith("PeerLost rank 2 has ")


def test_a_stopped_rank_is_named_after_the_timeout(tmp_path: Path) -> None:
    with Group(tmp_path, 3, "stop:5.0") as group:
        lines = [rank.stdout.read().splitlines()[-1] for rank in group.ranks[:2] if rank.stdout]
        for line in lines:
            assert line.startswith("TimedOut rank 2 did not do its part of all_reduce within 5 s")
        # When it goes on, it learns that the others have gone on without it.
        os.kill(group.ranks[2].pid, signal.SIGCONT)
        out, _ = group.ranks[2].communicate(timeout=300)
        assert out.splitlines()[-1].startswith("TimedOut rank 2 came too late to all_reduce")


def test_a_slow_rank_is_waited_for(tmp_path: Path) -> None:
    with Group(tmp_path, 3, "slow:300") as group:
        assert group.last_lines() == ["ok"] * 3


def test_different_calls_are_a_mismatch_on_every_rank(tmp_path: Path) -> None:
    with Group(tmp_path, 3, "other") as group:
        for line in group.last_lines():
            assert line.startswith("Mismatch expected the same all_reduce on all ranks, found that rank")


@linux
def test_an_interrupted_rank_is_lost_to_all_others(tmp_path: Path) -> None:
    with Group(tmp_path, 2, "interrupt") as group:
        lines = group.last_lines()
        assert group.ranks[1].returncode not in (0, None)  # KeyboardInterrupt, while it waited
        assert lines[0].startswith("PeerLost rank 1 has given up while rank 0 needed it for all_reduce")


@pytest.fixture
def small_memory(tmp_path: Path) -> Iterator[Path]:
    """A file system of memory that holds no more than 1.3 MB; needs root."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1300k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("cannot mount a file system here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write until there is no room."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@linux
def test_full_memory_is_an_error_on_every_rank(tmp_path: Path, small_memory: Path) -> None:
    """There is room for one staging area of 1 MiB only."""
    with Group(tmp_path, 3, "slow:300", directory=str(small_memory)) as group:
        for line in group.last_lines():
            assert line.startswith(
                "RunError expected memory for the data of all_reduce, found none left for rank"
            )
        assert list(small_memory.iterdir()) == []


@linux
def test_memory_that_is_full_from_the_start(tmp_path: Path, small_memory: Path) -> None:
    fill(small_memory / "filling")
    with Group(tmp_path, 2, "slow:300", directory=str(small_memory)) as group:
        for line in group.last_lines():
            assert line.startswith("RunError expected shared memory for 2 ranks of this host, found none: ")
            assert "No space left on device" in line
        assert [path.name for path in small_memory.iterdir()] == ["filling"]
