"""An MSCCL XML file as rules see it: its text and its rows, with the eyes of one runtime."""

from __future__ import annotations

from dataclasses import dataclass

from coppice.doctor.framework import Rulebook, Subject
from coppice.export.msccl.document import Document
from coppice.export.msccl.targets import MscclTarget

__all__ = ["RULES", "MscclFile"]


@dataclass(frozen=True, eq=False, kw_only=True)
class MscclFile(Subject):
    """What rules about MSCCL XML look at.

    Attributes:
        data: Bytes of the file.
        document: Its rows.
        target: The runtime.
        ranks: Ranks of the communicator, or None if not known.
        sizes: Message sizes M in bytes at which it is to be used.
    """

    data: bytes
    document: Document
    target: MscclTarget
    ranks: int | None
    sizes: tuple[int, ...]

    def integer(self, key: str) -> int | None:
        """A number of ``<algo>``, None where it is missing or no number."""
        text = self.document.algo.get(key, "")
        return int(text) if text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 20 else None


RULES = Rulebook[MscclFile]()
"""Rules about MSCCL XML, for all runtimes that read it."""
