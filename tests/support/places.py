"""Places that are no regular files: devices, FIFOs and links, made in a folder of a test."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest


def null_device(path: Path) -> Path:
    """A device like /dev/null; skips where this user, or this file system, has none."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        path.write_bytes(b"")
    except OSError as error:
        pytest.skip(f"devices cannot be made here: {error.strerror}")
    return path


def is_null_device(path: Path) -> bool:
    """Whether the device is still there."""
    found = path.lstat()
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(1, 3)


class Reader:
    """Reads a FIFO to its end, in a thread.

    Args:
        path: The FIFO; it is made.
    """

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._found = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self._found = self.path.read_bytes()

    def content(self) -> bytes:
        """All that was written, once the last writer has closed it."""
        self._thread.join(60)
        assert not self._thread.is_alive(), "nobody wrote to the FIFO, or it was not closed"
        assert stat.S_ISFIFO(self.path.lstat().st_mode)
        return self._found
