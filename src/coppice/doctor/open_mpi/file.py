"""A rules file of Open MPI as the doctor's rules see it: lists and the ranks they hold for, rules, names."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from coppice.doctor.framework import Rulebook
from coppice.doctor.given import TuningFile
from coppice.export.open_mpi.reader import read_ompi_rules
from coppice.export.open_mpi.rules_file import FOR_EVER, RankList, RuleLine, RulesFile, Section
from coppice.selection.open_mpi_names import algorithms_of

__all__ = ["RULES", "OmpiRulesFile", "RankListInUse"]


class RankListInUse(NamedTuple):
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


class OmpiRulesFile(TuningFile):
    """A rules file, with the ranks of the job and the version of Open MPI that are to read it."""

    @cached_property
    def content(self) -> RulesFile:
        """The file, read once for all rules.

        Raises:
            InputError: If it is no rules file at all.
        """
        return read_ompi_rules(self.text, file=self.file, version=self.given.version)

    @property
    def version(self) -> tuple[int, ...]:
        """Version of Open MPI, as given, or else the first one that reads JSON, 5.0 for the classic form."""
        if self.given.version is not None:
            return self.given.version
        return (6, 0) if self.content.form == "json" else (5, 0)

    def known(self, section: Section) -> tuple[str, ...]:
        """Names of the algorithms 1, 2, ... of a collective in that version."""
        return algorithms_of(section.name, self.version)

    def name(self, section: Section, rule: RuleLine) -> str | None:
        """Name of the algorithm of a rule, None where there is none of that number or name."""
        known = self.known(section)
        if isinstance(rule.algorithm, str):
            return rule.algorithm if rule.algorithm in known else None
        return known[rule.algorithm - 1] if 1 <= rule.algorithm <= len(known) else None

    @property
    def lists(self) -> Iterator[RankListInUse]:
        """All lists of a file."""
        found = self.content
        for section in found.sections:
            if found.form == "json":
                for each in section.lists:
                    yield RankListInUse(section, each, each.ranks, each.last_ranks)
                continue
            # the search stops at the first list for more ranks than there are, and never before the first list
            most = list(accumulate((each.ranks for each in section.lists), max))
            firsts = [0, *most[1:]]
            lasts = [*(ranks - 1 for ranks in most[1:]), FOR_EVER]
            for each, first, last in zip(
                section.lists, firsts, lasts, strict=False
            ):  # of no list, there are ends
                yield RankListInUse(section, each, first, last)

    @property
    def rules(self) -> Iterator[tuple[Section, RuleLine]]:
        """All rules of a file, with their collectives."""
        return ((held.section, rule) for held in self.lists for rule in held.listed.rules)

    @property
    def ranks_of_job(self) -> list[int]:
        """Numbers of ranks of the job's communicators, ascending; empty where nothing tells."""
        return sorted({ranks for _, ranks in self.given.known_shapes})


RULES = Rulebook[OmpiRulesFile]()
"""Rules about rules files of Open MPI."""
