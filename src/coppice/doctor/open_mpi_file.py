"""A rules file of Open MPI as rules of the doctor see it, and which of its rules holds for a call.

How lists are looked up was asked of Open MPI 5.0.11 with lists for 4 and 8 ranks on 2, 3, 4, 6 and 8: the first list
holds for all smaller communicators, each for those up to the next, the last for all larger ones; and sizes of a scatter
are the bytes of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from coppice.doctor.framework import Coverage
from coppice.doctor.given import TuningFile
from coppice.export.open_mpi.rules_file import (
    FOR_EVER,
    RankList,
    RuleLine,
    RulesFile,
    Section,
    read_ompi_rules,
)
from coppice.selection.open_mpi_names import algorithms_of
from coppice.text import plural

WITHOUT_SIZE = ("alltoallv", "barrier")
SIZE_OF_ELEMENT = ("exscan", "scan")
ONCE_OF_ELEMENT = ("gather", "scatter")
"""Before 4.1, in whose sources the number of elements is left out."""


class RankListInUse(NamedTuple):
    """A list, and the numbers of ranks for which it holds as Open MPI 5 looks it up."""

    section: Section  # Its collective
    listed: RankList  # The list
    first: int  # Least number of ranks
    last: int  # Largest one, below the first where it holds for none


class OmpiRulesFile(TuningFile):
    """A rules file, with the ranks of the job and the version of Open MPI that are to read it."""

    @cached_property
    def content(self) -> RulesFile:
        """The file, read once for all rules."""
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

    def of_element(self, section: Section) -> bool:
        """The size of a call is that of one element times the ranks."""
        old = self.version < (4, 1) and section.name in ONCE_OF_ELEMENT
        return old or section.name in SIZE_OF_ELEMENT

    def coverage(self, sizes: tuple[int, ...]) -> tuple[Coverage, ...]:
        """The rule that holds, for each collective of the file and each number of ranks of the job.

        Sizes are those by which Open MPI chooses: the bytes of the buffer of an all-reduce, a broadcast or a reduce,
        and of all ranks together otherwise.
        """
        if self.content.broken is not None:
            return ()
        own = "the choice of Open MPI"
        found = []
        for section in self.content.sections:
            held = [each for each in self.lists if each.section is section]
            for ranks in self.ranks_of_job:
                inside = [each for each in held if each.first <= ranks <= each.last]
                rules = inside[-1 if self.content.form == "classic" else 0].listed.rules if inside else ()
                choices = []
                for size in sizes:
                    counted = 0 if section.name in WITHOUT_SIZE else size
                    if self.of_element(section):
                        counted = ranks  # elements of one byte; others are larger by little
                    rule = self._rule_of(rules, counted)
                    if rule is None or not rule.own:
                        choices.append((size, own, 0 if rule is None else rule.line))
                    else:
                        name = self.name(section, rule) or f"algorithm {rule.algorithm}, which does not exist"
                        choices.append((size, name, rule.line))
                listed = inside[0].listed.place if inside else "no list"
                call = f"{section.name} on {plural(ranks, 'rank')} ({listed})"
                found.append(Coverage(call, tuple(choices)))
        return tuple(found)

    def _rule_of(self, rules: Sequence[RuleLine], size: int) -> RuleLine | None:
        """The rule for a size: the last before the first that begins beyond it; of JSON the first that fits."""
        if self.content.form == "json":
            return next((rule for rule in rules if rule.first_bytes <= size <= rule.last_bytes), None)
        chosen = None
        for rule in rules:
            if rule.first_bytes > size:
                break
            chosen = rule
        return chosen

    @property
    def rules(self) -> Iterator[tuple[Section, RuleLine]]:
        """All rules of a file, with their collectives."""
        return ((held.section, rule) for held in self.lists for rule in held.listed.rules)

    @property
    def ranks_of_job(self) -> list[int]:
        """Numbers of ranks of the job's communicators, ascending; empty where nothing tells."""
        return sorted({ranks for _, ranks in self.given.known_shapes})
