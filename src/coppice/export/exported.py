"""Result of an export: a file or a folder with notes, or the limits that a program exceeds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coppice.display import Brief
from coppice.errors import CheckError, InputError
from coppice.files import write_atomically


@dataclass(frozen=True, kw_only=True, repr=False)
class Exported(Brief):
    """A file for another tool, or a folder of files."""

    text: str = ""  # The whole file; lines end with LF. Empty where there is a folder.
    # The files of a folder by name, each made in pieces when it is called for; empty where there is one file
    files: Mapping[str, Callable[[], Iterable[bytes]]] = field(default_factory=dict)
    # Sentences for the user: what was gained or lost, how to use the file, what it cannot say
    notes: tuple[str, ...] = ()
    suffix: str = ".txt"  # Usual end of its name, such as `.xml`
    summary: str = ""  # What a folder holds, in a few words
    # What kind of file it is to :mod:`coppice.doctor`, empty where that judges no such files
    read_as: str = ""
    known: Mapping[str, str] = field(default_factory=dict)  # What is known of its readers, as that takes it

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
            raise InputError(
                f"cannot make the directory {target} ({error.strerror or error}): choose another place."
            ) from None
        for name, pieces in self.files.items():
            write_atomically(target / name, pieces())
        return [target / name for name in self.files]


@dataclass(frozen=True, kw_only=True)
class Excess:
    """A limit of a runtime that a program exceeds."""

    limit: str  # What is limited, in words
    found: int  # How much the program needs
    allowed: int  # How much there is
    where: str  # Where most of it is
    advice: str = ""  # What to do; empty where the caller knows better

    @property
    def sentence(self) -> str:
        """The limit, by how much and where it is exceeded, and the next step if there is one."""
        if self.allowed:
            over = f"{self.allowed:,} are allowed, {self.found - self.allowed:,} too many"
        else:
            over = "none are allowed"
        words = f"{self.found:,} {self.limit} where {over} ({self.where})"
        return f"{words}: {self.advice}" if self.advice else words


def require_none(found: Sequence[Excess], reader: str, *, advice: str = "") -> None:
    """Refuse a program that exceeds limits.

    Args:
        found: The limits, the most telling first.
        advice: What to do, where the first of them does not say it.
    """
    if found:
        more = f" ({len(found) - 1} further limits are passed as well)" if len(found) > 1 else ""
        raise CheckError(f"the program does not fit {reader}: {found[0].sentence}{more}{advice}")
