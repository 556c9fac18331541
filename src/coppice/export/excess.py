"""A limit of a runtime that a program passes, and how an export is refused for it: by how much, where, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coppice.errors import CheckError

__all__ = ["Excess", "require_none"]


@dataclass(frozen=True, kw_only=True)
class Excess:
    """A limit that a program passes.

    Attributes:
        limit: What is limited, in words.
        found: How much the program needs.
        allowed: How much there is.
        where: Where most of it is.
        advice: What to do; empty where the caller knows better.
    """

    limit: str
    found: int
    allowed: int
    where: str
    advice: str = ""

    @property
    def sentence(self) -> str:
        """The limit, by how much, where, and the next step if there is one."""
        if self.allowed:
            over = f"{self.allowed:,} are allowed, {self.found - self.allowed:,} too many"
        else:
            over = "none are allowed"
        words = f"{self.found:,} {self.limit} where {over} ({self.where})"
        return f"{words}: {self.advice}" if self.advice else words


def require_none(found: Sequence[Excess], reader: str, *, advice: str = "") -> None:
    """Refuse a program that passes limits.

    Args:
        found: The limits, the most telling first.
        reader: The runtime that has them.
        advice: What to do, where the first of them does not say it.

    Raises:
        CheckError: If there is one.
    """
    if found:
        more = f" ({len(found) - 1} further limits are passed as well)" if len(found) > 1 else ""
        msg = f"the program does not fit {reader}: {found[0].sentence}{more}{advice}"
        raise CheckError(msg)
