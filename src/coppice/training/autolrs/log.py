"""Writes the log line by line, each on the disk before training goes on; a resumed training takes lines back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from coppice.errors import InputError
from coppice.files import write_atomically
from coppice.training.autolrs.records import Event, Start
from coppice.training.autolrs.settings import Settings

__all__ = ["EventLog"]


class EventLog:
    """A log file of events.

    The file is touched when the first event is written: what a former run left is replaced then, but for the lines
    that the checkpoint knows, from which this training goes on.

    Args:
        path: The file.
        settings: What its first line tells.

    Attributes:
        lines: Lines that belong to this training.
    """

    def __init__(self, path: str | os.PathLike[str], settings: Settings) -> None:
        self.lines = 0
        self._path = Path(path)
        self._settings = settings
        self._opened = False

    def resume(self, lines: int) -> None:
        """Go on after so many lines."""
        self.lines = lines
        self._opened = False

    def write(self, events: Sequence[Event]) -> None:
        """Append events.

        Raises:
            InputError: If the file cannot be written.
        """
        if not events:
            return
        written = events if self.lines else [Start(settings=self._settings), *events]
        text = b"".join(msgspec.json.encode(event) + b"\n" for event in written)
        try:
            if not self._opened:
                write_atomically(self._path, self._known() + text)
                self._opened = True
            else:
                with self._path.open("ab") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            msg = f"cannot write the log {self._path} ({error.strerror or error}): choose another place."
            raise InputError(msg) from None
        self.lines += len(written)

    def _known(self) -> bytes:
        """The lines of the file that belong to this training."""
        if not self.lines:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return b""
        lines = self._path.read_bytes().split(b"\n")[:-1]
        if len(lines) < self.lines:
            msg = (
                f"expected {self.lines} lines of this training in the log {self._path}, found {len(lines)}: put the "
                "log back, or give another name."
            )
            raise InputError(msg)
        return b"".join(line + b"\n" for line in lines[: self.lines])
