"""Doctor rules about rules files of Open MPI's component tuned: what the library ignores, misreads, or never reaches.

Open MPI says nothing about a file that it cannot read: it goes on as if there were none. Effects are those seen with
5.0.11; what 6.0 does is taken from the sources of its branch (6.0.0a1).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from coppice.export.doctor import Severity
from coppice.export.doctor_tuning import Case, Complaint, Given, TuningRule
from coppice.export.ompi_names import SEGMENTED, algorithms_of
from coppice.export.ompi_rules_file import FOR_EVER, RankList, RuleLine, RulesFile, Section
from coppice.export.ompi_rules_reader import read_ompi_rules
from coppice.planners.selection import Request, tables_of
from coppice.planners.selection.rules import decide, parse_rules

__all__ = ["RULES"]

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

_MOST_FANOUT = 32
_MOST_INT = 2**31 - 1
_LARGE = 1 << 40
_HAN = ("allgather", "allreduce", "barrier", "bcast", "gather", "reduce", "scatter")
_HAN_6 = (*_HAN, "alltoall", "alltoallv", "gatherv", "scatterv")
_WITHOUT_SIZE = ("alltoallv", "barrier")
_SIZE_OF_ELEMENT = ("exscan", "scan")
_WITH_RADIX = (("allgather", "bruck-k-fanout"), ("reduce", "knomial"))
_OWN_CHOICE = "0 0 0 0"


@lru_cache(maxsize=4)
def _read(text: str, file: str, version: tuple[int, ...] | None) -> RulesFile:
    return read_ompi_rules(text, file=file, version=version)


def _file(case: Case) -> RulesFile:
    return _read(case.text, case.file, case.given.version)


def _version(case: Case) -> tuple[int, ...]:
    """Version of Open MPI, as given, or else the first one that reads JSON, 5.0 for the classic form."""
    if case.given.version is not None:
        return case.given.version
    return (6, 0) if _file(case).form == "json" else (5, 0)


def _name(rule: RuleLine, section: Section, case: Case) -> str | None:
    """Name of the algorithm of a rule, None where there is none of that number or name."""
    known = algorithms_of(section.name, _version(case))
    if isinstance(rule.algorithm, str):
        return rule.algorithm if rule.algorithm in known else None
    return known[rule.algorithm - 1] if 1 <= rule.algorithm <= len(known) else None


def _rules(case: Case) -> Iterator[tuple[Section, RankList, RuleLine]]:
    for section in _file(case).sections:
        for each in section.lists:
            for rule in each.rules:
                yield section, each, rule


def _range(section: Section, at: int, form: str) -> tuple[int, int]:
    """Numbers of ranks for which a list holds, as Open MPI 5 looks it up; the end before the beginning for none."""
    own = section.lists[at]
    if form == "json":
        return own.ranks, own.last_ranks
    # the search stops at the first list for more ranks than there are, and never before the first list
    first = max(each.ranks for each in section.lists[: at + 1]) if at else 0
    more = at + 1 < len(section.lists)
    return first, max(each.ranks for each in section.lists[: at + 2]) - 1 if more else FOR_EVER


def _loads(case: Case) -> Iterator[Complaint]:
    found = _file(case)
    if found.broken is not None and not found.broken.first_size:
        yield ERROR, found.broken.line, found.broken.text, found.broken.fix
    if found.left is not None:
        text = "the counts end before this line: nothing from here on is read"
        yield ERROR, found.left, text, "raise the number of collectives at the top, or remove the rest"


def _first_size(case: Case) -> Iterator[Complaint]:
    broken = _file(case).broken
    if broken is not None and broken.first_size:
        yield ERROR, broken.line, broken.text, broken.fix


def _exists(case: Case) -> Iterator[Complaint]:
    form, version = _file(case).form, _version(case)
    for section, _, rule in _rules(case):
        known = algorithms_of(section.name, version)
        if not known or not rule.own or _name(rule, section, case) is not None:
            continue
        if isinstance(rule.algorithm, int) and rule.algorithm > _MOST_INT:
            continue
        effect = "Open MPI leaves the rule out" if form == "json" else "calls fail with MPI_ERR_ARG"
        text = f"{section.name} has no algorithm {rule.algorithm} in Open MPI {'.'.join(map(str, version))}: {effect}"
        names = ", ".join(f"{number} {name}" for number, name in enumerate(known, start=1))
        where = f" ({rule.place})" if not rule.line else ""
        yield ERROR, rule.line, text + where, f"write one of {names}, or 0 for Open MPI's own choice"


def _sizes(case: Case) -> Iterator[Complaint]:
    form = _file(case).form
    for section in _file(case).sections:
        for each in section.lists:
            yield from _sizes_of(each, form)


def _sizes_of(each: RankList, form: str) -> Iterator[Complaint]:
    last: RuleLine | None = None
    used: list[RuleLine] = []
    for rule in each.rules:
        if rule.last_bytes < rule.first_bytes:
            text = f"{rule.place} ends at {rule.last_bytes} bytes, before it begins at {rule.first_bytes}"
            yield ERROR, rule.line, text, "swap msg_size_min and msg_size_max"
            continue
        if form == "json":
            instead = next(
                (r for r in used if r.first_bytes <= rule.first_bytes and rule.last_bytes <= r.last_bytes),
                None,
            )
            if instead is None:
                used.append(rule)
            else:
                text = f"{rule.place} is never used: {instead.place} comes first"
                yield WARNING, 0, text, "remove one of them"
            continue
        if last is not None and rule.first_bytes == last.first_bytes:
            text = f"two rules of {each.place} begin at {rule.first_bytes} bytes: the later one holds"
            yield WARNING, rule.line, text, "remove one of them"
        elif last is not None and rule.first_bytes < last.first_bytes:
            text = f"the rule from {rule.first_bytes} bytes follows one from {last.first_bytes}: it holds from there"
            yield ERROR, rule.line, text, f"sort the rules of {each.place} by size"
        last = rule if last is None or rule.first_bytes >= last.first_bytes else last


def _ranks(case: Case) -> Iterator[Complaint]:
    found = _file(case)
    seen: dict[str, int] = {}
    for section in found.sections:
        if section.name in seen:
            text = f"{section.name} stands here for the second time: lists at line {seen[section.name]} are dropped"
            yield ERROR, section.line, text, "put all lists of a collective into one place"
        seen[section.name] = section.line
        most: RankList | None = None
        used: list[RankList] = []
        for each in section.lists:
            if each.last_ranks < each.ranks:
                text = f"{each.place} ends at {each.last_ranks} ranks, before it begins at {each.ranks}"
                yield ERROR, each.line, text, "swap comm_size_min and comm_size_max"
                continue
            if found.form == "json":
                instead = next(
                    (o for o in used if o.ranks <= each.ranks and each.last_ranks <= o.last_ranks), None
                )
                if instead is not None:
                    text = f"{each.place} is never used: {instead.place} comes first"
                    yield WARNING, 0, text, "remove one of them"
                elif not each.narrowed:
                    used.append(each)
                continue
            if most is not None and each.ranks == most.ranks:
                text = f"two lists of {section.name} are for {each.ranks} ranks: the later one holds"
                yield WARNING, each.line, text, "remove one of them"
            elif most is not None and each.ranks < most.ranks:
                text = f"{each.place} comes after one for {most.ranks} ranks, and holds from there on"
                yield ERROR, each.line, text, f"sort the lists of {section.name} by ranks"
            most = each if most is None or each.ranks >= most.ranks else most


def _others(case: Case) -> Iterator[Complaint]:
    found = _file(case)
    of_job = sorted({ranks for _, ranks in case.given.known_shapes})
    for section in found.sections:
        for at, each in enumerate(section.lists):
            first, last = _range(section, at, found.form)
            if not each.own or last < first or not first <= each.ranks <= _MOST_INT:
                continue
            below, above = (max(2, first), each.ranks - 1), (max(2, each.ranks) + 1, last)
            for severity, (low, high), fix in (
                (WARNING, below, f"begin with a list for 0 ranks with the rule {_OWN_CHOICE}"),
                (NOTE, above, f"add a list for {max(2, each.ranks) + 1} ranks with the rule {_OWN_CHOICE}"),
            ):
                if found.form == "json" and high < _MOST_INT:
                    continue
                hit = [ranks for ranks in of_job if low <= ranks <= high]
                if low > high or (of_job and not hit):
                    continue
                which = f"{low} ranks and more" if high >= _MOST_INT else f"{low} to {high} ranks"
                which = f"{low} ranks" if low == high else which
                text = f"{each.place} holds for {which}, too"
                text += f", as the job has them ({', '.join(map(str, hit[:4]))})" if hit else ""
                yield (
                    WARNING if hit else severity,
                    each.line,
                    text,
                    fix if found.form == "classic" else "set comm_size_max",
                )


def _of_job(case: Case) -> Iterator[Complaint]:
    found = _file(case)
    of_job = sorted({ranks for _, ranks in case.given.known_shapes})
    for section in found.sections:
        for at, each in enumerate(section.lists):
            first, last = _range(section, at, found.form)
            if each.own and not any(first <= ranks <= last for ranks in of_job):
                known = ", ".join(map(str, of_job[:6]))
                text = f"{each.place} holds for no communicator of the job: they have {known} ranks"
                yield WARNING, each.line, text, "write the number of ranks of a communicator, not of a node"


def _han(case: Case) -> Iterator[Complaint]:
    version = _version(case)
    wide = sorted((n, ranks) for n, ranks in case.given.known_shapes if 1 < n < ranks)
    if not wide or version < (5,):
        return
    known = _HAN if version < (6,) else _HAN_6
    names = [s.name for s in _file(case).sections if s.name in known and any(each.own for each in s.lists)]
    if names:
        nodes, ranks = wide[0]
        text = (
            f"on {nodes} nodes with {ranks} ranks the component han comes before tuned for {', '.join(names)}"
        )
        yield WARNING, 0, text, "set OMPI_MCA_coll=^han along with the rules, and measure the whole of it"


def _able(case: Case) -> Iterator[Complaint]:
    found = _file(case)
    of_job = {ranks for _, ranks in case.given.known_shapes}
    for section in found.sections:
        for at, each in enumerate(section.lists):
            first, last = _range(section, at, found.form)
            ranks = sorted(r for r in of_job or {each.ranks} if first <= r <= last and 1 < r <= _MOST_INT)
            for rule in each.rules:
                name = _name(rule, section, case)
                if name is None:
                    continue
                unable = [r for r in ranks if r != 2] if name == "two_proc" else []
                if unable:
                    text = f"two_proc is for 2 ranks: calls on {unable[0]} fail with MPI_ERR_UNSUPPORTED_OPERATION"
                    yield ERROR, rule.line, text, "name another algorithm"
                    continue
                if section.name == "allreduce" and rule.segment_bytes:
                    continue
                known = algorithms_of(section.name, _version(case))
                for count in ranks:
                    instead = _instead(section.name, known, name, count)
                    if instead is not None:
                        text = f"{name} cannot serve {count} ranks: Open MPI runs {instead}"
                        if name == "segmented_ring":
                            text = "segmented_ring without a segment size runs as ring"
                        yield NOTE, rule.line, text, f"name {instead}, or what {name} needs"
                        break


def _instead(function: str, known: tuple[str, ...], name: str, ranks: int) -> str | None:
    """Which of the ``known`` algorithms Open MPI runs in place of one that is not for a number of ranks."""
    table = tables_of("open-mpi").functions.get(function)
    number = known.index(name) + 1
    entry = next((each for each in table.algorithms.values() if each.id == number), None) if table else None
    if table is None or entry is None or not entry.becomes:
        return None
    request = Request(collective=table.performs, ranks=ranks, size_bytes=_LARGE)
    outcome = decide(parse_rules(entry.becomes, name), request.facts(table.m), table=name)[0]
    other = None if outcome in ("this", "unsupported") else table.algorithms[outcome].id
    return None if other is None else known[other - 1]


def _numbers(case: Case) -> Iterator[Complaint]:
    found = _file(case)
    for each in (each for section in found.sections for each in section.lists):
        if found.form == "classic" and each.ranks > _MOST_INT:
            yield ERROR, each.line, f"{each.ranks} ranks are cut to 32 bits", "write a number that fits"
    for section, _, rule in _rules(case):
        name = _name(rule, section, case)
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
                yield (
                    NOTE,
                    rule.line,
                    "0 chains are taken as one, which is a pipeline",
                    "write 4, its usual number",
                )
        elif rule.fanout and (section.name, name) not in _WITH_RADIX:
            yield NOTE, rule.line, f"{name} looks at no fan-out", "write 0"
        if name is not None and rule.segment_bytes and name not in SEGMENTED.get(section.name, ()):
            yield NOTE, rule.line, f"{name} looks at no segment size", "write 0"


def _form(case: Case) -> Iterator[Complaint]:
    found, version = _file(case), case.given.version
    if found.form == "json" and (version is None or version < (6,)):
        severity = WARNING if version is None else ERROR
        yield (
            severity,
            0,
            "versions before 6.0 do not read JSON",
            "write the classic form (--option form=classic)",
        )
    if found.form == "classic" and version is not None and version >= (6,):
        text = "6.0 lets a list hold from the number of the list before it to one rank less than its own"
        yield WARNING, 0, text, "write JSON (--option form=json)"


def _as_written(case: Case) -> Iterator[Complaint]:
    found = _file(case)
    on_line: dict[int, list[int]] = {}
    for at, number in enumerate(found.numbers):
        on_line.setdefault(number.line, []).append(at)
        if number.odd:
            severity = WARNING if "octal" in number.odd else ERROR
            yield severity, number.line, number.odd, "write plain decimal numbers, and words behind #"
    for _, _, rule in _rules(case):
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


def _counts(case: Case) -> Iterator[Complaint]:
    for section in _file(case).sections:
        own = [each for each in section.lists if each.own]
        if own and not algorithms_of(section.name, _version(case)):
            text = f"the component tuned has no algorithms for {section.name}: rules change nothing"
            yield WARNING, section.line, text, "remove the collective"
        for each in own:
            if len(each.rules) < 2:
                continue
            if section.name in _WITHOUT_SIZE:
                text = f"sizes do not count for {section.name}: only the rule for 0 bytes holds"
                yield WARNING, each.rules[1].line, text, "keep the first rule"
            elif section.name in _SIZE_OF_ELEMENT:
                text = (
                    f"the size of {section.name} is that of one element times the ranks, whatever the message"
                )
                yield WARNING, each.rules[1].line, text, "keep the first rule"


def _has_shapes(given: Given) -> bool:
    return bool(given.known_shapes)


_SHAPES = "shapes or a topology"
_IGNORED = "Open MPI then ignores the whole file without a word"

RULES = (
    TuningRule("O01", "a file that is read to its end", _IGNORED, _loads),
    TuningRule("O02", "lists begin at 0 bytes", _IGNORED, _first_size),
    TuningRule("O03", "algorithms that exist", "numbers are not checked when the file is read", _exists),
    TuningRule(
        "O04", "ascending sizes", "the search ends at the first size that is larger than the message", _sizes
    ),
    TuningRule(
        "O05", "ascending numbers of ranks", "the search ends at the first list for more ranks", _ranks
    ),
    TuningRule(
        "O06",
        "no other communicators",
        "a list holds up to the next one, the first one for all smaller communicators",
        _others,
    ),
    TuningRule("O07", "communicators of the job", "the list is never used", _of_job, _has_shapes, _SHAPES),
    TuningRule("O08", "han", "han does not look at these rules", _han, _has_shapes, _SHAPES),
    TuningRule("O09", "algorithms for these ranks", "Open MPI finds that out when it is called", _able),
    TuningRule("O10", "fan-outs and segments", "they are cut, or not looked at", _numbers),
    TuningRule("O11", "the form for the version", "forms differ between versions", _form),
    TuningRule("O12", "numbers as they are meant", "lines and words mean nothing to Open MPI", _as_written),
    TuningRule("O13", "collectives and sizes that count", "rules without effect", _counts),
)
