"""Rows that lines of other processes tore apart, put together where that can be done in one way only.

Programs print a row in pieces (its keys, then each half), and what other threads and processes print meanwhile stands
between. Pieces are joined as they were printed, blank space included. A joined row counts only if it has exactly the
columns of its table and its figures do not contradict each other (size / time is algbw); where a piece of an earlier
row was lost, or rows of several runs are mixed, the figures have to confirm the joint, for then a piece may belong to
another row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

_MOST_VARIANTS = 8

R = TypeVar("R")


class TornRow(Generic[R]):
    """A row of which the beginning was read."""

    def __init__(
        self, number: int, text: str, parse: Callable[[str], tuple[R | None, bool | None]], *, cut: bool
    ) -> None:
        """Begin a row.

        Args:
            parse: Gives the row of a text (None: it is none), and whether its figures agree (None: too few digits).
            cut: Another line began right after the text.
        """
        self.number = number  # Line where it begins
        self.text = text  # Its beginning
        self.cut = cut  # Another line began right after that
        self._parse = parse
        self._variants = [text]

    def add(self, text: str, *, sure: bool, keep: bool) -> R | None:
        """Append a piece; the row, where it is complete with it.

        Args:
            sure: The figures have to confirm the joint.
            keep: The piece stays also where the row is not complete with it.
        """
        joined = [variant + text for variant in self._variants]
        if not text[:1].isspace():  # blank space may be lost, or a number may be torn
            joined += [f"{variant} {text}" for variant in self._variants if not variant[-1:].isspace()]
        variants = list(dict.fromkeys(joined))[:_MOST_VARIANTS]
        found: dict[str, R] = {}
        for variant in variants:
            row, agrees = self._parse(variant)
            ambiguous = sure or len(variants) > 1
            if row is not None and agrees is not False and (agrees or not ambiguous):
                found[" ".join(variant.split())] = row
        if keep:
            self._variants = variants
        return next(iter(found.values())) if len(found) == 1 else None
