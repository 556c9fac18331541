"""Entries of the table: a recipe with its figures, and the front of those that nothing beats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from coppice.design.families.family import optimum
from coppice.design.recipes.recipe import Facts, Recipe
from coppice.design.schedules.breadth_first import moore_steps

__all__ = ["Entry", "front_of"]


@dataclass(frozen=True)
class Entry:
    """A graph that may be built.

    Attributes:
        recipe: How.
        facts: What a schedule of it takes; exact where breadth-first broadcast was computed or has a formula, otherwise
            what the expanded schedule takes.
    """

    recipe: Recipe
    facts: Facts

    @property
    def steps(self) -> int:
        """Steps of an all-gather."""
        return self.facts.steps

    @property
    def time(self) -> Fraction:
        """Bandwidth time of an all-gather in units of M over the bandwidth of a node."""
        return self.facts.bandwidth_time

    @property
    def simple(self) -> bool:
        """Known to have neither self-loops nor parallel links, so that every expansion applies."""
        return self.recipe.size.simple

    def record(self) -> dict[str, Any]:
        """The figures as JSON values."""
        facts = self.facts
        return {
            "recipe": str(self.recipe),
            "ranks": facts.ranks,
            "degree": facts.degree,
            "steps": facts.steps,
            "moore_steps": moore_steps(facts.ranks, facts.degree),
            "t_b": str(facts.bandwidth_time),
            "t_b_least": str(optimum(facts.ranks)),
            "exact": facts.exact,
            "bidirectional": facts.bidirectional,
        }


def front_of(entries: Iterable[Entry], *, expandable: bool = False) -> list[Entry]:
    """The entries that no other beats in steps and bandwidth time: steps rise, bandwidth time falls.

    Among equals the exact one counts, then the shorter recipe.

    Args:
        entries: In any order.
        expandable: Keep the best simple graphs as well, where graphs with self-loops beat them: more follows from them.

    Examples:
        >>> from coppice.design.recipes.parser import parse
        >>> made = [Entry(parse(text), parse(text).facts()) for text in ("torus(4, 4)", "two_jump(16)", "biring(16)")]
        >>> [str(entry.recipe) for entry in front_of(made)]
        ['two_jump(16)']
    """
    front: list[Entry] = []
    for entry in sorted(entries, key=_rank):
        beaten = any(
            kept.time <= entry.time and (kept.simple or not expandable or not entry.simple) for kept in front
        )
        if not beaten:
            front.append(entry)
    return front


def _rank(entry: Entry) -> tuple[int, Fraction, bool, bool, int, str]:
    text = str(entry.recipe)
    return entry.steps, entry.time, not entry.simple, not entry.facts.exact, len(text), text
