"""What an export returns: the text of a file, or a folder of files, and what its user must know."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coppice.display import Brief
from coppice.errors import InputError
from coppice.files import write_atomically

__all__ = ["Exported"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Exported(Brief):
    """A file for another tool, or a folder of files.

    Attributes:
        text: The whole file; lines end with LF. Empty where there is a folder.
        files: The files of a folder by name, each made in pieces when it is called for; empty where there is one file.
        notes: Sentences for the user: what was gained or lost, how to use the file, what it cannot say.
        suffix: Usual end of its name, such as ``.xml``.
        summary: What a folder holds, in a few words.
    """

    text: str = ""
    files: Mapping[str, Callable[[], Iterable[bytes]]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    suffix: str = ".txt"
    summary: str = ""

    def write(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the file, or the files into a folder that is made if it is not there; each is whole or as it was.

        Args:
            path: The file, or the folder.

        Returns:
            What was written.

        Raises:
            InputError: If it cannot be written.
        """
        target = Path(path)
        if not self.files:
            write_atomically(target, self.text.encode())
            return [target]
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            msg = f"cannot make the directory {target} ({error.strerror or error}): choose another place."
            raise InputError(msg) from None
        for name, pieces in self.files.items():
            write_atomically(target / name, pieces())
        return [target / name for name in self.files]
