"""What an exporter hands back: the text of a file, and what its user must know."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Exported"]


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A file for another tool.

    Attributes:
        text: The whole file; lines end with LF.
        notes: Sentences for the user: what was gained or lost, how to use the file, what it cannot say.
        suffix: Usual end of its name, such as ``.xml``.
    """

    text: str
    notes: tuple[str, ...] = ()
    suffix: str = ".txt"
