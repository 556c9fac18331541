"""An MSCCL XML file as rules see it: its text and its rows, with the eyes of one runtime."""

from __future__ import annotations

from dataclasses import dataclass

from coppice.doctor.framework import Rulebook, Subject
from coppice.export.msccl.document import Document
from coppice.export.msccl.targets import MscclTarget


@dataclass(frozen=True, eq=False, kw_only=True)
class MscclFile(Subject):
    """What rules about MSCCL XML look at."""

    data: bytes  # Bytes of the file
    document: Document  # Its rows
    target: MscclTarget  # The runtime
    ranks: int | None  # Ranks of the communicator, or None if not known
    sizes: tuple[int, ...]  # Message sizes M in bytes at which it is to be used

    def integer(self, key: str) -> int | None:
        """A number of ``<algo>``, None where it is missing or no number."""
        text = self.document.algo.get(key, "")
        return int(text) if text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 20 else None


RULES = Rulebook[MscclFile]()
"""Rules about MSCCL XML, for all runtimes that read it."""
