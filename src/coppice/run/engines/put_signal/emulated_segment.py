"""Shared memory of the emulated device: windows, signal counters, and liveness of ranks.

Files without a name are not for all systems, so a file in a directory of memory has one until all ranks have opened it.
Every rank holds a lock on its byte of the control file, which the system releases however the rank ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coppice.run.errors import RunError

Exchange = Callable[[bytes], list[bytes]]

MOST_COMMUNICATORS, SIGNALS = 16, 4
"""What an emulated device has counters for."""

_RUNNING, CLOSED, ABORTED = 0, 1, 2


class EmulatedSegment:
    """One rank's mapping of the shared memory; every rank makes one.

    Args:
        rank: This rank.
        ranks: Number of ranks.
        exchange: Gives every rank the bytes of all.

    Raises:
        RunError: On every rank, if there is no memory for it.
    """

    def __init__(self, rank: int, ranks: int, exchange: Exchange) -> None:
        self.rank, self.ranks, self._exchange = rank, ranks, exchange
        numbers = ranks + 3 * MOST_COMMUNICATORS * ranks * ranks * SIGNALS
        self._control, self._file = self._share(8 * numbers)
        words = np.frombuffer(self._control, dtype=np.int64)
        self._state = words[:ranks]
        shape = (3, MOST_COMMUNICATORS, ranks, ranks, SIGNALS)
        self._counted, self._raised, self._taken = words[ranks:numbers].reshape(shape)
        # Bytes of the window of each rank, one array a rank
        self.windows: list[NDArray[np.uint8]] = [np.zeros(0, dtype=np.uint8)] * ranks
        if sys.platform == "linux":
            lock = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, rank, 1, 0)
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, lock)
        exchange(b"")  # nobody asks whether a rank is there before it is

    def grow(self, num_bytes: int) -> None:
        """Reallocate the windows; collective over the ranks, with no message in flight."""
        memory, file = self._share(max(num_bytes, 1) * self.ranks)
        os.close(file)
        whole = np.frombuffer(memory, dtype=np.uint8)
        self.windows = [whole[rank * num_bytes : (rank + 1) * num_bytes] for rank in range(self.ranks)]

    def counted(self, communicator: int, source: int, signal: int) -> int:
        """Number of signals received from a source."""
        return int(self._counted[communicator, self.rank, source, signal])

    def count(self, communicator: int, target: int, signal: int) -> None:
        """Add one signal of this rank at a target."""
        self._counted[communicator, target, self.rank, signal] += 1

    def offer(self, communicator: int, target: int, signal: int) -> bool:
        """Raise this rank's captured signal at a target, if the previous one was consumed."""
        place = communicator, target, self.rank, signal
        if self._raised[place] != self._taken[place]:
            return False
        self._raised[place] += 1
        return True

    def take(self, communicator: int, source: int, signal: int) -> bool:
        """Consume a captured signal of a source, if raised."""
        place = communicator, self.rank, source, signal
        if self._raised[place] == self._taken[place]:
            return False
        self._taken[place] += 1
        return True

    def publish(self, state: int) -> None:
        """Publish how this rank ends; the first report counts."""
        if self._state[self.rank] == _RUNNING:
            self._state[self.rank] = state

    def fate(self, peer: int) -> str:
        """Reason why a peer is gone; empty while it is alive."""
        state = int(self._state[peer])
        if state != _RUNNING:
            return "has closed its engine" if state == CLOSED else "has given up"
        if sys.platform == "linux" and peer != self.rank:
            asked = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, peer, 1, 0)
            found = fcntl.fcntl(self._file, fcntl.F_OFD_GETLK, asked)
            if struct.unpack("hhqqi0q", found)[0] == fcntl.F_UNLCK:
                return "has ended"
        return ""

    def close(self) -> None:
        """Release the lock; memory is freed with its arrays."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _share(self, num_bytes: int) -> tuple[mmap.mmap, int]:
        """Zeroed memory that all ranks map, and its file."""
        path, error, file = "", "", -1
        if self.rank == 0:
            folder = "/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()
            folder = os.environ.get("COPPICE_SHM_DIR", folder)
            path = str(Path(folder) / f"coppice-emulated-{secrets.token_hex(8)}")
            try:
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                os.posix_fallocate(file, 0, num_bytes)
            except OSError as failed:
                error = f"{path}: {failed.strerror}"
        told = self._exchange(f"{error}\n{path}".encode())[0].decode()
        error, path = told.split("\n", 1)
        if self.rank and not error:
            try:
                file = os.open(path, os.O_RDWR)
            except OSError as failed:
                error = f"{path} at rank {self.rank}: {failed.strerror}"
        errors = [each.decode() for each in self._exchange(error.encode()) if each]
        if self.rank == 0:
            with contextlib.suppress(OSError):
                Path(path).unlink()
        if errors:
            if file >= 0:
                os.close(file)
            raise RunError(
                f"expected {num_bytes} bytes of memory that the ranks of an emulated device share, found none "
                f"({errors[0]}): make room there, or name another directory in memory with COPPICE_SHM_DIR."
            )
        return mmap.mmap(file, num_bytes), file
