"""Doctor rules for Open MPI rules files: what coll_tuned parses, and which rules apply to which calls.

Open MPI says nothing about a file that it cannot read: it goes on as if there were none. Effects are those seen with
5.0.11; what 6.0 does is taken from the sources of its branch (6.0.0a1).

A rules file of Open MPI as rules of the doctor see it, and which of its rules holds for a call.

How lists are looked up was asked of Open MPI 5.0.11 with lists for 4 and 8 ranks on 2, 3, 4, 6 and 8: the first list
holds for all smaller communicators, each for those up to the next, the last for all larger ones; and sizes of a scatter
are the bytes of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, islice
from typing import NamedTuple, TypeVar

from coppice.doctor.framework import ERROR, NOTE, WARNING, Complaint, Coverage, Rulebook
from coppice.doctor.job_facts import MPI_SHAPES, TuningFile
from coppice.export.open_mpi.rules_file import (
    FOR_EVER,
    RankList,
    RuleLine,
    RulesFile,
    Section,
    read_ompi_rules,
)
from coppice.selection import SelectionRequest, tables_of
from coppice.selection.selection import decide, parse_rules
from coppice.selection.tables import SEGMENTED, algorithms_of
from coppice.text import plural

WITHOUT_SIZE = ("alltoallv", "barrier")
SIZE_OF_ELEMENT = ("exscan", "scan")
ONCE_OF_ELEMENT = ("gather", "scatter")
"""Before 4.1, in whose sources the number of elements is left out."""


class RankListInUse(NamedTuple):
    """A rank list, and the numbers of ranks for which Open MPI 5 selects it."""

    section: Section  # Its collective
    listed: RankList  # The list
    first: int  # Least number of ranks
    last: int  # Largest one, below the first where it holds for none


class OmpiRulesFile(TuningFile):
    """A rules file under examination, with the job's ranks and its version of Open MPI."""

    @cached_property
    def content(self) -> RulesFile:
        """Parsed file, cached."""
        return read_ompi_rules(self.text, file=self.file, version=self.facts.version)

    @property
    def version(self) -> tuple[int, ...]:
        """Version of Open MPI: the option, else the first that reads JSON, 5.0 for the classic format."""
        if self.facts.version is not None:
            return self.facts.version
        return (6, 0) if self.content.form == "json" else (5, 0)

    def known(self, section: Section) -> tuple[str, ...]:
        """Algorithm names 1, 2, ... of a collective in that version."""
        return algorithms_of(section.name, self.version)

    def name(self, section: Section, rule: RuleLine) -> str | None:
        """Algorithm name of a rule, None where there is none of that number or name."""
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
        """Whether a call's size is that of one element times the ranks."""
        old = self.version < (4, 1) and section.name in ONCE_OF_ELEMENT
        return old or section.name in SIZE_OF_ELEMENT

    def coverage(self, sizes: tuple[int, ...]) -> tuple[Coverage, ...]:
        """Matching rule for each collective of the file and each number of ranks of the job.

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
        """Numbers of ranks of the job's communicators, ascending; empty where unknown."""
        return sorted({ranks for _, ranks in self.facts.known_shapes})


RULES = Rulebook[OmpiRulesFile]()
"""Rules about rules files of Open MPI."""

_T = TypeVar("_T")

_IGNORED = "Open MPI then ignores the whole file without a word"
_MOST_FANOUT = 32
_MOST_INT = 2**31 - 1
_LARGE = 1 << 40
_HAN = ("allgather", "allreduce", "barrier", "bcast", "gather", "reduce", "scatter")

_HAN_6 = (*_HAN, "alltoall", "alltoallv", "gatherv", "scatterv")

_WITH_RADIX = (("allgather", "bruck-k-fanout"), ("reduce", "knomial"))


@RULES.rule("O01", ERROR, "a file that is read to its end", _IGNORED)
def _loads(file: OmpiRulesFile) -> Iterator[Complaint]:
    found = file.content
    if found.broken is not None and not found.broken.first_size:
        yield found.broken.line, found.broken.text, found.broken.fix
    if found.left is not None:
        text = "the counts end before this line: nothing from here on is read"
        yield found.left, text, "raise the number of collectives at the top, or remove the rest"


@RULES.rule("O02", ERROR, "lists begin at 0 bytes", _IGNORED)
def _first_size(file: OmpiRulesFile) -> Iterator[Complaint]:
    broken = file.content.broken
    if broken is not None and broken.first_size:
        yield broken.line, broken.text, broken.fix


@RULES.rule("O03", ERROR, "algorithms that exist", "numbers are not checked when the file is read")
def _exists(file: OmpiRulesFile) -> Iterator[Complaint]:
    form, version = file.content.form, file.version
    for section, rule in file.rules:
        known = file.known(section)
        if not known or not rule.own or file.name(section, rule) is not None:
            continue
        if isinstance(rule.algorithm, int) and rule.algorithm > _MOST_INT:
            continue
        effect = "Open MPI leaves the rule out" if form == "json" else "calls fail with MPI_ERR_ARG"
        text = f"{section.name} has no algorithm {rule.algorithm} in Open MPI {'.'.join(map(str, version))}: {effect}"
        names = ", ".join(f"{number} {name}" for number, name in enumerate(known, start=1))
        where = f" ({rule.place})" if not rule.line else ""
        yield rule.line, text + where, f"write one of {names}, or 0 for Open MPI's own choice"


@RULES.rule(
    "O04", ERROR, "ascending sizes", "the search ends at the first size that is larger than the message"
)
def _sizes(file: OmpiRulesFile) -> Iterator[Complaint]:
    for _, each, _, _ in file.lists:
        if file.content.form == "json":
            spans = (_Span(rule.first_bytes, rule.last_bytes, rule.place) for rule in each.rules)
            yield from _unused(spans, "bytes", "msg_size")
            continue
        for rule, most in _not_ascending(each.rules, lambda rule: rule.first_bytes):
            first = rule.first_bytes
            if first == most:
                text = f"two rules of {each.place} begin at {first} bytes: the later one holds"
                yield WARNING, rule.line, text, "remove one of them"
            else:
                text = f"the rule from {first} bytes follows one from {most}: it holds from there"
                yield ERROR, rule.line, text, f"sort the rules of {each.place} by size"


@RULES.rule("O05", ERROR, "ascending numbers of ranks", "the search ends at the first list for more ranks")
def _ranks(file: OmpiRulesFile) -> Iterator[Complaint]:
    seen: dict[str, int] = {}
    for section in file.content.sections:
        if section.name in seen:
            text = f"{section.name} stands here for the second time: lists at line {seen[section.name]} are dropped"
            yield ERROR, section.line, text, "put all lists of a collective into one place"
        seen[section.name] = section.line
        if file.content.form == "json":
            spans = (_Span(each.ranks, each.last_ranks, each.place, each.narrowed) for each in section.lists)
            yield from _unused(spans, "ranks", "comm_size")
            continue
        for each, most in _not_ascending(section.lists, lambda each: each.ranks):
            if each.ranks == most:
                text = f"two lists of {section.name} are for {most} ranks: the later one holds"
                yield WARNING, each.line, text, "remove one of them"
            else:
                text = f"{each.place} comes after one for {most} ranks, and holds from there on"
                yield ERROR, each.line, text, f"sort the lists of {section.name} by ranks"


class _Span(NamedTuple):
    """What a rule or a list of JSON names, in bytes or ranks; a narrowed one does not hold for all of it."""

    first: int
    last: int
    place: str
    narrowed: bool = False


def _unused(spans: Iterable[_Span], unit: str, member: str) -> Iterator[Complaint]:
    """Of JSON, where the first one that fits is used: what holds for nothing."""
    used: list[_Span] = []
    for span in spans:
        if span.last < span.first:
            text = f"{span.place} ends at {span.last} {unit}, before it begins at {span.first}"
            yield ERROR, 0, text, f"swap {member}_min and {member}_max"
            continue
        wider = next((each for each in used if each.first <= span.first and span.last <= each.last), None)
        if wider is not None:
            text = f"{span.place} is never used: {wider.place} comes first"
            yield WARNING, 0, text, "remove one of them"
        elif not span.narrowed:
            used.append(span)


def _not_ascending(items: Iterable[_T], begin: Callable[[_T], int]) -> Iterator[tuple[_T, int]]:
    """Of the classic form: what begins no later than something before it, with the largest beginning there."""
    most = -1
    for item in items:
        if begin(item) <= most:
            yield item, most
        most = max(most, begin(item))


@RULES.rule(
    "O06",
    WARNING,
    "no other communicators",
    "a list holds up to the next one, the first one for all smaller communicators",
)
def _others(file: OmpiRulesFile) -> Iterator[Complaint]:
    json, of_job = file.content.form == "json", file.ranks_of_job
    for _, each, first, last in file.lists:
        if not each.own or last < first or not first <= each.ranks <= _MOST_INT:
            continue
        more = max(2, each.ranks) + 1
        for severity, low, high, fix in (
            (WARNING, max(2, first), each.ranks - 1, "begin with a list for 0 ranks with the rule 0 0 0 0"),
            (NOTE, more, last, f"add a list for {more} ranks with the rule 0 0 0 0"),
        ):
            if each.ranks == 0 and not json:
                continue  # a list for 0 ranks is meant for all that follow
            hit = [ranks for ranks in of_job if low <= ranks <= high]
            if low > high or (of_job and not hit) or (json and high < _MOST_INT):
                continue
            which = f"{low} ranks and more" if high >= _MOST_INT else f"{low} to {high} ranks"
            which = f"{low} ranks" if low == high else which
            text = f"{each.place} holds for {which}, too"
            text += f", as the job has them ({', '.join(map(str, hit[:4]))})" if hit else ""
            yield WARNING if hit else severity, each.line, text, "set comm_size_max" if json else fix


@RULES.rule("O07", WARNING, "communicators of the job", "the list is never used", needs=MPI_SHAPES)
def _not_of_job(file: OmpiRulesFile) -> Iterator[Complaint]:
    of_job = file.ranks_of_job
    for _, each, first, last in file.lists:
        if each.own and not any(first <= ranks <= last for ranks in of_job):
            known = ", ".join(map(str, of_job[:6]))
            text = f"{each.place} holds for no communicator of the job: they have {known} ranks"
            yield each.line, text, "write the number of ranks of a communicator, not of a node"


@RULES.rule("O08", WARNING, "han", "han does not look at these rules", needs=MPI_SHAPES)
def _han(file: OmpiRulesFile) -> Iterator[Complaint]:
    version = file.version
    wide = sorted((n, ranks) for n, ranks in file.facts.known_shapes if 1 < n < ranks)
    if not wide or version < (5,):
        return
    known = _HAN if version < (6,) else _HAN_6
    names = [s.name for s in file.content.sections if s.name in known and any(each.own for each in s.lists)]
    if names:
        nodes, ranks = wide[0]
        text = (
            f"on {nodes} nodes with {ranks} ranks the component han comes before tuned for {', '.join(names)}"
        )
        yield 0, text, "set OMPI_MCA_coll=^han along with the rules, and measure the whole of it"


@RULES.rule("O09", ERROR, "algorithms for these ranks", "Open MPI finds that out when it is called")
def _able(file: OmpiRulesFile) -> Iterator[Complaint]:
    of_job = file.ranks_of_job
    for section, each, first, last in file.lists:
        known = file.known(section)
        ranks = [
            count for count in of_job or [each.ranks] if first <= count <= last and 1 < count <= _MOST_INT
        ]
        for rule in each.rules:
            name = file.name(section, rule)
            unable = [count for count in ranks if count != 2] if name == "two_proc" else []
            if unable:
                text = (
                    f"two_proc is for 2 ranks: calls on {unable[0]} fail with MPI_ERR_UNSUPPORTED_OPERATION"
                )
                yield ERROR, rule.line, text, "name another algorithm"
            elif name is not None and not (section.name == "allreduce" and rule.segment_bytes):
                for count, instead in islice(_instead(section.name, known, name, ranks), 1):
                    text = f"{name} cannot serve {count} ranks: Open MPI runs {instead}"
                    if name == "segmented_ring":
                        text = "segmented_ring without a segment size runs as ring"
                    yield NOTE, rule.line, text, f"name {instead}, or what {name} needs"


def _instead(
    function: str, known: Sequence[str], name: str, counts: Iterable[int]
) -> Iterator[tuple[int, str]]:
    """Numbers of ranks that an algorithm is not for, with the one of the ``known`` that Open MPI runs in its place."""
    number = known.index(name) + 1
    table = tables_of("open-mpi").functions.get(function)
    entry = next((each for each in table.algorithms.values() if each.id == number), None) if table else None
    if table is None or entry is None or not entry.becomes:
        return
    rules = parse_rules(entry.becomes, name)
    for count in counts:
        request = SelectionRequest(collective=table.performs, ranks=count, size_bytes=_LARGE)
        outcome = decide(rules, request.facts(table.m), table=name)[0]
        other = None if outcome in ("this", "unsupported") else table.algorithms[outcome].id
        if other is not None:
            yield count, known[other - 1]


@RULES.rule("O10", ERROR, "fan-outs and segments", "they are cut, or not looked at")
def _numbers(file: OmpiRulesFile) -> Iterator[Complaint]:
    for _, each, _, _ in file.lists:
        if file.content.form == "classic" and each.ranks > _MOST_INT:
            yield ERROR, each.line, f"{each.ranks} ranks are cut to 32 bits", "write a number that fits"
    for section, rule in file.rules:
        name = file.name(section, rule)
        values = (rule.algorithm, rule.fanout, rule.segment_bytes)
        if any(isinstance(value, int) and value > _MOST_INT for value in values):
            text = "Open MPI cuts algorithm, fan-out and segment size to 32 bits"
            yield ERROR, rule.line, text, "write numbers below 2147483648"
        elif name is None:
            continue
        elif (section.name, name) in (("bcast", "chain"), ("reduce", "chain")):
            if rule.fanout > _MOST_FANOUT:
                text = f"{rule.fanout} chains are taken as {_MOST_FANOUT}"
                yield WARNING, rule.line, text, f"write {_MOST_FANOUT} at most"
            elif not rule.fanout:
                text = "0 chains are taken as one, which is a pipeline"
                yield NOTE, rule.line, text, "write 4, its usual number"
        elif rule.fanout and (section.name, name) not in _WITH_RADIX:
            yield NOTE, rule.line, f"{name} looks at no fan-out", "write 0"
        if name is not None and rule.segment_bytes and name not in SEGMENTED.get(section.name, ()):
            yield NOTE, rule.line, f"{name} looks at no segment size", "write 0"


@RULES.rule("O11", WARNING, "the form for the version", "forms differ between versions")
def _form(file: OmpiRulesFile) -> Iterator[Complaint]:
    found, version = file.content, file.facts.version
    if found.form == "json" and (version is None or version < (6,)):
        severity = WARNING if version is None else ERROR
        text = "versions before 6.0 do not read JSON"
        yield severity, 0, text, "export it for the version that reads it (`version=5.0`)"
    if found.form == "classic" and version is not None and version >= (6,):
        text = "6.0 lets a list hold from the number of the list before it to one rank less than its own"
        yield WARNING, 0, text, "export it for the version that reads it (`version=6.0`)"


@RULES.rule("O12", ERROR, "numbers as they are meant", "lines and words mean nothing to Open MPI")
def _as_written(file: OmpiRulesFile) -> Iterator[Complaint]:
    found = file.content
    on_line: dict[int, list[int]] = {}
    for at, number in enumerate(found.numbers):
        on_line.setdefault(number.line, []).append(at)
        if number.odd:
            severity = WARNING if "octal" in number.odd else ERROR
            yield severity, number.line, number.odd, "write plain decimal numbers, and words behind #"
    for _, rule in file.rules:
        if not rule.numbers or found.numbers[on_line[rule.line][0]] is not rule.numbers[0]:
            continue
        count = len(on_line[rule.line])
        if rule.numbers[-1].line != rule.line:
            text = f"a rule of four numbers begins here and ends at line {rule.numbers[-1].line}"
            yield ERROR, rule.line, text, "give every rule four numbers, and make the counts before it right"
        elif count % len(rule.numbers):
            text = f"the line has {count} numbers, {len(rule.numbers)} of them are this rule, the rest is the next one"
            fix = "keep bytes, algorithm, fan-out and segment size; a fifth needs rule-file-version-2 as the first text"
            yield ERROR, rule.line, text, fix


@RULES.rule("O13", WARNING, "collectives and sizes that count", "rules without effect")
def _counts(file: OmpiRulesFile) -> Iterator[Complaint]:
    for section in file.content.sections:
        own = [each for each in section.lists if each.own]
        if own and not file.known(section):
            text = f"the component tuned has no algorithms for {section.name}: rules change nothing"
            yield section.line, text, "remove the collective"
        for each in own:
            if len(each.rules) < 2:
                continue
            if section.name in WITHOUT_SIZE:
                text = f"sizes do not count for {section.name}: only the rule for 0 bytes holds"
                yield each.rules[1].line, text, "keep the first rule"
            elif file.of_element(section):
                text = (
                    f"the size of {section.name} is that of one element times the ranks, whatever the message"
                )
                fix = "keep the first rule"
                if section.name in ONCE_OF_ELEMENT:
                    text += ", in versions before 4.1"
                    fix = "keep the first rule, or use 4.1, which counts the bytes of all ranks"
                yield each.rules[1].line, text, fix
