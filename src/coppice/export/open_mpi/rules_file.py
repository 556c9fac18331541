"""A rules file of Open MPI as data: collectives, lists for numbers of ranks, rules, and where the library gives up."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["FOR_EVER", "Broken", "GivesUpError", "Number", "RankList", "RuleLine", "RulesFile", "Section"]

FOR_EVER = 2**63 - 1
"""End of the last size or number of ranks of a list."""


@dataclass(frozen=True)
class Number:
    """A number of a file.

    Attributes:
        value: As Open MPI reads it.
        line: Its line.
        text: As it is written.
        odd: How it is written as if it meant another number; empty where it is plain.
    """

    value: int
    line: int
    text: str
    odd: str = ""


@dataclass(frozen=True, kw_only=True)
class RuleLine:
    """A rule.

    Attributes:
        line: Its line, 0 in the form of JSON.
        place: Where it is, in words.
        first_bytes: Least size.
        last_bytes: Largest size that it names itself, :data:`FOR_EVER` in the classic form.
        algorithm: Number or (JSON) name of the algorithm, 0 leaves the choice to Open MPI.
        fanout: Number of chains.
        segment_bytes: Size of a segment, 0 for whole messages.
        numbers: Numbers that it consists of, in the classic form.
    """

    line: int
    place: str
    first_bytes: int
    last_bytes: int
    algorithm: int | str
    fanout: int
    segment_bytes: int
    numbers: tuple[Number, ...] = ()

    @property
    def own(self) -> bool:
        """It takes the choice from Open MPI."""
        return self.algorithm not in (0, "ignore")


@dataclass(frozen=True, kw_only=True)
class RankList:
    """Rules for numbers of ranks.

    Attributes:
        line: Line of the number of ranks, 0 in the form of JSON.
        place: Where it is, in words.
        ranks: Least number of ranks, as the file has it.
        last_ranks: Largest one that it names itself, :data:`FOR_EVER` in the classic form.
        rules: Its rules.
        narrowed: It names a distribution of ranks (JSON), so that one after it may hold for the same numbers of ranks.
    """

    line: int
    place: str
    ranks: int
    last_ranks: int
    rules: tuple[RuleLine, ...]
    narrowed: bool = False

    @property
    def own(self) -> bool:
        """A rule of it takes the choice from Open MPI."""
        return any(rule.own for rule in self.rules)


@dataclass(frozen=True, kw_only=True)
class Section:
    """Rules for a collective.

    Attributes:
        line: Line of its number, 0 in the form of JSON.
        name: Open MPI's name of it.
        lists: Its lists.
    """

    line: int
    name: str
    lists: tuple[RankList, ...]


@dataclass(frozen=True)
class Broken:
    """Why Open MPI ignores a file.

    Attributes:
        line: Where, 0 if that cannot be said.
        text: What is wrong.
        fix: What to do.
        first_size: It is the first size of a list, which must be 0.
    """

    line: int
    text: str
    fix: str
    first_size: bool = False


@dataclass(kw_only=True)
class RulesFile:
    """What was read.

    Attributes:
        form: ``classic`` or ``json``.
        version: Of the classic form: 2 has five numbers in a rule that needs them.
        sections: What was read up to the place where Open MPI gives up, if it does.
        broken: Why it gives up.
        left: Line of the first number that is not read any more.
        numbers: All numbers of the classic form.
    """

    form: str
    version: int = 1
    sections: list[Section] = field(default_factory=list)
    broken: Broken | None = None
    left: int | None = None
    numbers: list[Number] = field(default_factory=list)


class GivesUpError(Exception):
    """Open MPI gives up."""

    def __init__(self, broken: Broken) -> None:
        self.broken = broken
