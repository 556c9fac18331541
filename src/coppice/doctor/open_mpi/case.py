"""What the doctor rules about rules files of Open MPI look at: lists and the ranks they hold for, rules, names."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from coppice.doctor.tuning import Case
from coppice.export.open_mpi.reader import read_ompi_rules
from coppice.export.open_mpi.rules_file import FOR_EVER, RankList, RuleLine, RulesFile, Section
from coppice.selection.open_mpi_names import algorithms_of

__all__ = ["Held", "file_of", "known_of", "lists_of", "name_of", "ranks_of_job", "rules_of", "version_of"]


@lru_cache(maxsize=4)
def file_of(case: Case) -> RulesFile:
    """The file, read once for all rules.

    Raises:
        InputError: If it is no rules file at all.
    """
    return read_ompi_rules(case.text, file=case.file, version=case.given.version)


def version_of(case: Case) -> tuple[int, ...]:
    """Version of Open MPI, as given, or else the first one that reads JSON, 5.0 for the classic form."""
    if case.given.version is not None:
        return case.given.version
    return (6, 0) if file_of(case).form == "json" else (5, 0)


def known_of(case: Case, section: Section) -> tuple[str, ...]:
    """Names of the algorithms 1, 2, ... of a collective in that version."""
    return algorithms_of(section.name, version_of(case))


def name_of(case: Case, section: Section, rule: RuleLine) -> str | None:
    """Name of the algorithm of a rule, None where there is none of that number or name."""
    known = known_of(case, section)
    if isinstance(rule.algorithm, str):
        return rule.algorithm if rule.algorithm in known else None
    return known[rule.algorithm - 1] if 1 <= rule.algorithm <= len(known) else None


class Held(NamedTuple):
    """A list, and the numbers of ranks for which it holds as Open MPI 5 looks it up.

    Attributes:
        section: Its collective.
        listed: The list.
        first: Least number of ranks.
        last: Largest one, below the first where it holds for none.
    """

    section: Section
    listed: RankList
    first: int
    last: int


def lists_of(case: Case) -> Iterator[Held]:
    """All lists of a file."""
    found = file_of(case)
    for section in found.sections:
        if found.form == "json":
            for each in section.lists:
                yield Held(section, each, each.ranks, each.last_ranks)
            continue
        # the search stops at the first list for more ranks than there are, and never before the first list
        most = list(accumulate((each.ranks for each in section.lists), max))
        firsts = [0, *most[1:]]
        lasts = [*(ranks - 1 for ranks in most[1:]), FOR_EVER]
        for each, first, last in zip(
            section.lists, firsts, lasts, strict=False
        ):  # of no list, there are ends
            yield Held(section, each, first, last)


def rules_of(case: Case) -> Iterator[tuple[Section, RuleLine]]:
    """All rules of a file, with their collectives."""
    return ((held.section, rule) for held in lists_of(case) for rule in held.listed.rules)


def ranks_of_job(case: Case) -> list[int]:
    """Numbers of ranks of the job's communicators, ascending; empty where nothing tells."""
    return sorted({ranks for _, ranks in case.given.known_shapes})
