"""MSCCL XML file under examination, for one runtime."""

from __future__ import annotations

from dataclasses import dataclass

from coppice.doctor.framework import Rulebook, Subject
from coppice.export.msccl.document import Document
from coppice.export.msccl.targets import MscclTarget


@dataclass(frozen=True, eq=False, kw_only=True)
class MscclFile(Subject):
    """An MSCCL XML file under examination."""

    data: bytes  # Bytes of the file
    document: Document  # Its rows
    target: MscclTarget  # The runtime
    ranks: int | None  # Ranks of the communicator, or None if not known
    sizes: tuple[int, ...]  # Message sizes M in bytes at which it is to be used

    def integer(self, key: str) -> int | None:
        """Integer attribute of ``<algo>``, None where it is missing or invalid."""
        text = self.document.algo.get(key, "")
        return int(text) if text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 20 else None


RULES = Rulebook[MscclFile]()
"""Rules about MSCCL XML, for all runtimes that read it."""
