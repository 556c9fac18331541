"""Parse rules files of Open MPI's component tuned with its semantics: the classic format, and JSON (6.0).

The classic form is a stream of numbers. Open MPI skips whatever is no number, to the end of the line after a ``#``; it
knows nothing of lines otherwise, so that a wrong count moves everything after it. Numbers are read as C writes them:
``010`` is 8, ``0x10`` is 16, and ``1K`` is 1. What is read is the behaviour of versions 4.1 to 5.0.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coppice.arguments import expect_one_of
from coppice.errors import InputError
from coppice.export.formats import OMPI_FORMS
from coppice.selection.tables import ALGORITHMS, COLLECTIVES

_FIRST_JSON = (6, 0)
_USUAL = {"classic": (5, 0), "json": _FIRST_JSON}
"""Version for which a form is written where nothing tells."""
_VERSION = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3}){1,2})(?:(?:a|b|rc|amzn)[0-9]{1,3})?")
_INSTALLED = re.compile(r"\(Open MPI\)\s+([0-9]{1,3}(?:\.[0-9]{1,3}){1,2})")
_TIMEOUT_S = 10


def form_of(version: tuple[int, ...]) -> str:
    """Format of rules files that a version supports.

    Before 6.0 none reads JSON; from then on lists of the classic form hold for other ranks than before.

    Examples:
        >>> form_of((5, 0, 11)), form_of((6, 0))
        ('classic', 'json')
    """
    return "json" if version >= _FIRST_JSON else "classic"


def version_of(text: str | None, form: str | None = None, *, launcher: str = "mpirun") -> tuple[int, ...]:
    """Target version of rules: the option, the installed one if it supports the format, or the default.

    Args:
        text: What the user says, None to ask the launcher.
        form: One of :data:`~coppice.export.formats.OMPI_FORMS`, None for that of the version.

    Examples:
        >>> version_of("5.0.11"), version_of(None, "json", launcher="no-such-launcher")
        ((5, 0, 11), (6, 0))
    """
    if form is not None:
        expect_one_of("form", form, OMPI_FORMS)
    if text is None:
        found = installed_version(launcher)
        fits = found is not None and form in (None, form_of(found))
        return found if found is not None and fits else _USUAL[form or "classic"]
    told = _VERSION.fullmatch(text)
    if told is None:
        raise InputError(f"expected a version of Open MPI such as 5.0.11, found {text[:40]!r}.")
    version = tuple(map(int, told[1].split(".")))
    if form not in (None, form_of(version)):
        raise InputError(
            f"Open MPI {text} reads rules as {form_of(version)}, found `form={form}`: leave one of the options out."
        )
    return version


def installed_version(launcher: str = "mpirun") -> tuple[int, ...] | None:
    """Version of Open MPI whose launcher is on PATH, None where there is none, or another library's."""
    try:
        words = subprocess.run(
            [launcher, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _INSTALLED.search(words.stdout.decode(errors="replace"))
    return None if found is None else tuple(map(int, found[1].split(".")))


FOR_EVER = 2**63 - 1
"""End of the last size or number of ranks of a list."""


@dataclass(frozen=True)
class Number:
    """A number in the file with its line."""

    value: int  # As Open MPI reads it
    line: int  # Its line
    text: str  # As it is written
    odd: str = ""  # How it is written as if it meant another number; empty where it is plain


@dataclass(frozen=True, kw_only=True)
class RuleLine:
    """A rule of the file."""

    line: int  # Its line, 0 in the form of JSON
    place: str  # Where it is, in words
    first_bytes: int  # Least size
    last_bytes: int  # Largest size that it names itself, :data:`FOR_EVER` in the classic form
    algorithm: int | str  # Number or (JSON) name of the algorithm, 0 leaves the choice to Open MPI
    fanout: int  # Number of chains
    segment_bytes: int  # Size of a segment, 0 for whole messages
    numbers: tuple[Number, ...] = ()  # Numbers that it consists of, in the classic form

    @property
    def own(self) -> bool:
        """Whether it overrides Open MPI's decision."""
        return self.algorithm not in (0, "ignore")


@dataclass(frozen=True, kw_only=True)
class RankList:
    """Rules for a number of ranks."""

    line: int  # Line of the number of ranks, 0 in the form of JSON
    place: str  # Where it is, in words
    ranks: int  # Least number of ranks, as the file has it
    last_ranks: int  # Largest one that it names itself, :data:`FOR_EVER` in the classic form
    rules: tuple[RuleLine, ...]  # Its rules
    # It names a distribution of ranks (JSON), so that one after it may hold for the same numbers of ranks
    narrowed: bool = False

    @property
    def own(self) -> bool:
        """Whether one of its rules overrides Open MPI's decision."""
        return any(rule.own for rule in self.rules)


@dataclass(frozen=True, kw_only=True)
class Section:
    """Rules for a collective."""

    line: int  # Line of its number, 0 in the form of JSON
    name: str  # Open MPI's name of it
    lists: tuple[RankList, ...]  # Its lists


@dataclass(frozen=True)
class Broken:
    """Why Open MPI rejects a file."""

    line: int  # Where, 0 if that cannot be said
    text: str  # What is wrong
    fix: str  # What to do
    first_size: bool = False  # It is the first size of a list, which must be 0


@dataclass(kw_only=True)
class RulesFile:
    """A parsed rules file."""

    form: str  # `classic` or `json`
    version: int = 1  # Of the classic form: 2 has five numbers in a rule that needs them
    # What was read up to the place where Open MPI gives up, if it does
    sections: list[Section] = field(default_factory=list)
    broken: Broken | None = None  # Why it gives up
    left: int | None = None  # Line of the first number that is not read any more
    numbers: list[Number] = field(default_factory=list)  # All numbers of the classic form


class GivesUpError(Exception):
    """Parse error at which Open MPI stops."""

    def __init__(self, broken: Broken) -> None:
        self.broken = broken


_BLANK = re.compile(r"[ \t\n\v\f\r]*")

_NUMBER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")

_HAN = re.compile(
    r"(?mi)^[ \t]*(?:[0-9]+[ \t]+)?@?"
    r"(?:tuned|han|libnbc|adapt|basic|self|sm|inter_node|intra_node|global_communicator)\b"
)
"""Words that files of the component han consist of: levels of the topology, and components for sizes."""

_HEAD = re.compile(r"rule-file-version-[ \t\n\v\f\r]*([0-9]{1,9})")


def read_ompi_rules(text: str, *, file: str, version: Sequence[int] | None = None) -> RulesFile:
    r"""Read a rules file.

    Args:
        version: Version of Open MPI, None is 5.0.7 or later.

    Examples:
        >>> found = read_ompi_rules("1\n2\n1\n8\n1\n0 4 0 0\n", file="rules.conf")
        >>> found.broken, found.sections[0].name, found.sections[0].lists[0].rules[0].algorithm
        (None, 'allreduce', 4)
    """
    if text.lstrip().startswith("{"):
        return read_ompi_json(text, file=file)
    if _is_han(text):
        raise InputError(
            f"{file} is a file of the component han (words for levels and components), which tuned does not read: give "
            "it to Open MPI as coll_han_dynamic_rules_filename, with coll_han_use_dynamic_file_rules=1."
        )
    head = _HEAD.match(text) if version is None or tuple(version) >= (5, 0, 7) else None
    found = RulesFile(form="classic", version=int(head[1]) if head else 1)
    stream = _NumberStream(text, head.end() if head else 0, found.numbers)
    try:
        _classic(stream, found)
    except GivesUpError as stop:
        found.broken = stop.broken
    if not found.numbers:
        raise InputError(f"{file} holds no number: give a rules file of Open MPI, or name another `target`.")
    if found.broken is None:
        after = stream.next()
        found.left = None if after is None else after.line
    return found


def _is_han(text: str) -> bool:
    """It has words of han where files of tuned have numbers; comments aside."""
    plain = re.sub(r"#.*", "", text)
    return _HAN.search(plain) is not None


class _NumberStream:
    """Numbers of a text, as ``fscanf`` finds them."""

    def __init__(self, text: str, at: int, numbers: list[Number]) -> None:
        self._text = text
        self._at = at
        self._line = text.count("\n", 0, at) + 1
        self._numbers = numbers

    def _move(self, to: int) -> None:
        self._line += self._text.count("\n", self._at, to)
        self._at = to

    def next(self) -> Number | None:
        """The next number, None at the end."""
        text = self._text
        while True:
            blank = _BLANK.match(text, self._at)
            self._move(blank.end() if blank else self._at)
            if self._at >= len(text):
                return None
            match = _NUMBER.match(text, self._at)
            if match:
                return self._take(match)
            # a sign without digits is swallowed along with the character after it
            self._move(min(len(text), self._at + (1 if text[self._at] in "+-" else 0)))
            comment = text[self._at : self._at + 1] == "#"
            end = text.find("\n", self._at) if comment else self._at
            self._move(len(text) if end < 0 else min(len(text), end + 1))

    def _take(self, match: re.Match[str]) -> Number:
        text, word = self._text, match[0]
        digits = word.lstrip("+-")
        value = (
            int(digits, 16)
            if digits[:2] in ("0x", "0X")
            else int(digits, 8)
            if digits[0] == "0"
            else int(digits)
        )
        value = max(-(2**63), min(FOR_EVER, -value if word[0] == "-" else value))
        before = text[match.start() - 1 : match.start()]
        after = re.compile(r"[A-Za-z_.0-9]+").match(text, match.end())
        odd = ""
        if after:
            odd = f"{word + after[0]!r} is read as {value}, and the rest is skipped"
        elif text.endswith("rule-file-version", 0, match.start()):
            pass
        elif before and (before.isalpha() or before in "_."):
            odd = f"{word} is read out of the middle of a word"
        elif len(digits) > 1 and digits[0] == "0":
            odd = f"{word} is read as {value}: numbers that begin with 0 are octal, with 0x hexadecimal"
        found = Number(value, self._line, word, odd)
        self._numbers.append(found)
        self._move(match.end())
        return found

    def digit_follows(self) -> bool:
        """A digit is next on this line, blanks aside."""
        rest = self._text[self._at : self._at + 256].lstrip(" \t")
        return rest[:1].isdigit()

    def need(self, what: str) -> Number:
        """The next number, which must be there and not be negative."""
        found = self.next()
        if found is None:
            broken = Broken(
                self._line,
                f"the file ends where {what} is expected",
                "make the counts match what follows them",
            )
            raise GivesUpError(broken)
        if found.value < 0:
            fix = "write numbers of 0 and more"
            if found.value == -2 and "rule-file-version-2" in self._text:
                fix = (
                    "give rule-file-version-2 as the very first text of the file, to Open MPI 5.0.7 and later"
                )
            raise GivesUpError(Broken(found.line, f"{what} is {found.value}", fix))
        return found


def _classic(stream: _NumberStream, found: RulesFile) -> None:
    count = stream.need("the number of collectives")
    if count.value > len(COLLECTIVES):
        raise GivesUpError(
            Broken(
                count.line, f"{count.value} collectives, Open MPI has {len(COLLECTIVES)}", "mend the count"
            )
        )
    for _ in range(count.value):
        number = stream.need("the number of a collective")
        if number.value >= len(COLLECTIVES):
            text = f"there is no collective {number.value}, they end with {len(COLLECTIVES) - 1}"
            known = ", ".join(f"{COLLECTIVES.index(name)} {name}" for name in ALGORITHMS)
            raise GivesUpError(
                Broken(number.line, text, f"write one of {known}, or mend the counts before it")
            )
        lists: list[RankList] = []
        section = Section(line=number.line, name=COLLECTIVES[number.value], lists=())
        try:
            count_of_lists = stream.need(f"how many numbers of ranks {section.name} has")
            for _ in range(count_of_lists.value):
                _list(stream, section.name, lists, found.version)
        finally:
            found.sections.append(Section(line=section.line, name=section.name, lists=tuple(lists)))


def _list(stream: _NumberStream, name: str, lists: list[RankList], version: int) -> None:
    ranks = stream.need(f"a number of ranks of {name}")
    place = f"the list of {name} for {ranks.value} ranks"
    count = stream.need(f"how many rules {place} has")
    rules: list[RuleLine] = []
    try:
        for index in range(count.value):
            words = ("size", "algorithm", "fan-out", "segment size")
            numbers = [stream.need(f"the {word} of a rule of {place}") for word in words]
            if version > 1 and stream.digit_follows():
                numbers.append(stream.need(f"the number of requests of a rule of {place}"))
            if index == 0 and numbers[0].value:
                text = f"{place} begins at {numbers[0].value} bytes"
                fix = "begin it with the rule 0 0 0 0, which leaves small sizes to Open MPI"
                raise GivesUpError(Broken(numbers[0].line, text, fix, first_size=True))
            rules.append(
                RuleLine(
                    line=numbers[0].line,
                    place=place,
                    first_bytes=numbers[0].value,
                    last_bytes=FOR_EVER,
                    algorithm=numbers[1].value,
                    fanout=numbers[2].value,
                    segment_bytes=numbers[3].value,
                    numbers=tuple(numbers),
                )
            )
    finally:
        lists.append(
            RankList(line=ranks.line, place=place, ranks=ranks.value, last_ranks=FOR_EVER, rules=tuple(rules))
        )


def read_ompi_json(text: str, *, file: str) -> RulesFile:
    """Read a rules file that is JSON."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{file} begins as JSON and cannot be read as such ({error}): mend it, or write the classic form."
        ) from None
    found = RulesFile(form="json")
    try:
        collectives = document.get("collectives")
        if not isinstance(collectives, dict):
            raise GivesUpError(Broken(0, "there is no object 'collectives'", "add it"))
        for name, lists in collectives.items():
            if name not in COLLECTIVES:
                fix = f"write one of {', '.join(ALGORITHMS)}"
                raise GivesUpError(Broken(0, f"there is no collective {name!r}", fix))
            if not isinstance(lists, list):
                raise GivesUpError(
                    Broken(0, f"{name} is no list", "write a list of rules for numbers of ranks")
                )
            read = tuple(_json_list(name, at, each) for at, each in enumerate(lists, start=1))
            found.sections.append(Section(line=0, name=name, lists=read))
    except GivesUpError as stop:
        found.broken = stop.broken
    return found


def _json_list(name: str, at: int, each: Any) -> RankList:
    place = f"list {at} of {name}"
    if not isinstance(each, dict) or not isinstance(each.get("rules"), list):
        raise GivesUpError(Broken(0, f"{place} has no rules", "give each list the member 'rules'"))
    return RankList(
        line=0,
        place=place,
        ranks=_whole(each, "comm_size_min", 0, place),
        last_ranks=_whole(each, "comm_size_max", 2**31 - 1, place),
        rules=tuple(
            _json_rule(f"rule {index} of {place}", rule) for index, rule in enumerate(each["rules"], start=1)
        ),
        narrowed="comm_rank_distribution" in each,
    )


def _json_rule(place: str, rule: Any) -> RuleLine:
    if not isinstance(rule, dict):
        raise GivesUpError(Broken(0, f"{place} is no object", "write an object with the member 'alg'"))
    algorithm = rule.get("alg")
    return RuleLine(
        line=0,
        place=place,
        first_bytes=_whole(rule, "msg_size_min", 0, place),
        last_bytes=_whole(rule, "msg_size_max", FOR_EVER, place),
        algorithm=algorithm if isinstance(algorithm, int) else str(algorithm),
        fanout=_whole(rule, "faninout", 0, place),
        segment_bytes=_whole(rule, "seg_size", 0, place),
    )


def _whole(record: Mapping[str, Any], key: str, default: int, place: str) -> int:
    value = record.get(key, default)
    if isinstance(value, str) and value[:3] in ("inf", "Inf", "INF"):
        return FOR_EVER
    if isinstance(value, bool) or not isinstance(value, int):
        text = f"the {key!r} of {place} is neither a whole number nor 'inf'"
        raise GivesUpError(Broken(0, text, "write a whole number"))
    return value
