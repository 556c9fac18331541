"""Sets of plans for message sizes, and their folders: plan files, and a ``set.json`` with the sizes of each.

Ranges of sizes follow each other without a gap, from 0 bytes to any number, so that every size has one plan. The last
member of ``set.json`` is the hash of all bytes before it, as in plan files, and it names the hash of each plan file:
what was edited, or belongs to another set, is refused.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from coppice.arguments import checked
from coppice.bounds.problem import Problem
from coppice.errors import InputError
from coppice.files import read_bytes, replacing
from coppice.interrupts import later
from coppice.schedule.files.columns import Count, decode_json
from coppice.schedule.files.plan_file import check_seal, decode_plan, encode_plan, plan_of, sealed
from coppice.schedule.plan import Plan
from coppice.text import plural, short_size, size_of
from coppice.topology.model import Topology
from coppice.topology.readers.document import topology_document, topology_from_document
from coppice.version import __version__

FORMAT = "coppice-plan-set"
VERSION = 1

SET_NAME = "set.json"
"""Name of the file that makes a folder a set of plans."""


class TimedSize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the plan of a range does at one size at which it was simulated."""

    size_bytes: Count  # M
    simulated_seconds: float  # Time of the plan
    fastest_seconds: float  # Time of the fastest plan that was found for this size
    fastest_name: str  # Its name
    least_seconds: float  # No schedule is faster under the model
    gap: float  # Share by which the plan takes longer than that
    protocol: str | None = None  # Protocol on the wire that was the fastest; None where the model has none


class _RangeRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    first_bytes: Count
    last_bytes: Count | None
    file: str
    sha256: str
    sizes: tuple[TimedSize, ...]


class _SetDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str
    version: int
    coppice: str
    collective: str
    root: int | None
    topology: str
    topology_sha256: str
    least_gain: float
    model: dict[str, Any]
    ranges: tuple[_RangeRow, ...]
    sha256: str


@dataclass(frozen=True, eq=False, kw_only=True)
class PlanRange:
    """Neighbouring sizes with one plan."""

    first_bytes: int  # Smallest M
    last_bytes: int | None  # Largest M; None: any size from there on
    plan: Plan  # What carries them out
    sizes: tuple[TimedSize, ...]  # What is known of it, by rising size
    file: str = ""  # Its file in the folder of the set; empty where it was not written

    def holds(self, size_bytes: int) -> bool:
        """Whether a size is in the range."""
        return self.first_bytes <= size_bytes and (self.last_bytes is None or size_bytes <= self.last_bytes)

    @property
    def text(self) -> str:
        """The range in words.

        >>> from coppice.planners.planning import plan
        >>> made = plan("ring", "all_gather", ring=False).plan
        >>> PlanRange(first_bytes=0, last_bytes=99, plan=made, sizes=()).text
        'below 100 bytes'
        """
        return range_words(self.first_bytes, self.last_bytes)


@dataclass(frozen=True, eq=False, kw_only=True)
class PlanSet:
    """A few plans of one problem, each for a range of sizes; every size has one.

    Raises:
        InputError: If the ranges do not follow each other from 0 bytes on, or the plans are of several problems.
    """

    ranges: tuple[PlanRange, ...]  # By rising size
    least_gain: float  # At every size that was simulated the plan is within this share of the fastest found
    model: Mapping[str, Any]  # What messages cost: the members of a model file

    def __post_init__(self) -> None:
        """Refuse what is no set."""
        _check_ranges(self.ranges)
        first = self.ranges[0]
        for each in self.ranges[1:]:
            _check_same(first.plan, each.plan, _label(first), _label(each))

    def __repr__(self) -> str:
        changes = ", ".join(f"{each.plan.planner or 'a plan'} {each.text}" for each in self.ranges)
        return f"<{plural(len(self.plans), 'plan')} of {self.problem.collective} on {self.topology.name}: {changes}>"

    @property
    def problem(self) -> Problem:
        """What all plans solve."""
        return self.ranges[0].plan.problem

    @property
    def topology(self) -> Topology:
        """The topology of all plans."""
        return self.problem.topology

    @property
    def model_name(self) -> str:
        """Name of the model of time behind the figures."""
        return str(self.model.get("name", ""))

    @property
    def sizes(self) -> tuple[TimedSize, ...]:
        """What is known of the set at each size that was simulated, by rising size."""
        return tuple(row for each in self.ranges for row in each.sizes)

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        """The different plans, in the order in which they are first used."""
        return tuple({id(each.plan): each.plan for each in self.ranges}.values())

    def range_at(self, size_bytes: int | str) -> PlanRange:
        """The range of a size.

        Args:
            size_bytes: M in bytes, or as text such as ``"64K"``.
        """
        size = size_of(size_bytes)
        return next(each for each in self.ranges if each.holds(size))

    def at(self, size_bytes: int | str) -> Plan:
        """The plan for a size.

        Args:
            size_bytes: M in bytes, or as text such as ``"64K"``.
        """
        return self.range_at(size_bytes).plan

    def save(self, folder: str | os.PathLike[str]) -> PlanSet:
        """Write the set into a folder, as :func:`write_plan_set`, and return it with the names of its files."""
        return write_plan_set(self, folder)


def size_words(size_bytes: int) -> str:
    """A size as commands take it, exact.

    >>> size_words(65536), size_words(65535), size_words(1)
    ('64K', '65,535 bytes', '1 byte')
    """
    if size_bytes >= 1024 and not size_bytes % 1024:
        return short_size(size_bytes)
    return f"{size_bytes:,} byte{'' if size_bytes == 1 else 's'}"


def range_words(first_bytes: int, last_bytes: int | None) -> str:
    """A range of sizes in words, its end being the first size that is not in it.

    >>> range_words(1024, 4095), range_words(0, 1023), range_words(0, None)
    ('1K to below 4K', 'below 1K', 'all sizes')
    """
    if last_bytes is None:
        return f"from {size_words(first_bytes)} on" if first_bytes else "all sizes"
    end = size_words(last_bytes + 1)
    return f"{size_words(first_bytes)} to below {end}" if first_bytes else f"below {end}"


def _label(each: PlanRange) -> str:
    return each.file or f"the plan for {each.text}"


def _check_ranges(ranges: Sequence[PlanRange | _RangeRow], *, where: str = "the ranges") -> None:
    """Refuse ranges that do not cover every size once, or sizes that are not in their range."""
    if not ranges or ranges[0].first_bytes:
        found = f"one from {ranges[0].first_bytes:,} bytes on" if ranges else "none"
        raise InputError(
            f"expected ranges of sizes from 0 bytes on in {where}, found {found}: plan the set again."
        )
    for one, other in pairwise(ranges):
        if (
            one.last_bytes is None
            or other.first_bytes != one.last_bytes + 1
            or one.last_bytes < one.first_bytes
        ):
            high = "any size" if one.last_bytes is None else f"{one.last_bytes:,} bytes"
            raise InputError(
                f"expected ranges of sizes that follow each other in {where}, found one from {one.first_bytes:,} to "
                f"{high} before one from {other.first_bytes:,} bytes on: plan the set again."
            )
    if ranges[-1].last_bytes is not None:
        raise InputError(
            f"expected a last range without an end in {where}, found one up to {ranges[-1].last_bytes:,} bytes: plan "
            "the set again."
        )
    last = -1
    for each in ranges:
        for row in each.sizes:
            if not (last < row.size_bytes and each.first_bytes <= row.size_bytes) or (
                each.last_bytes is not None and row.size_bytes > each.last_bytes
            ):
                raise InputError(
                    f"expected rising sizes within their range in {where}, found {row.size_bytes:,} bytes in the range "
                    f"from {each.first_bytes:,} bytes on: plan the set again."
                )
            last = row.size_bytes


def _check_same(one: Plan, other: Plan, name: str, other_name: str) -> None:
    """Refuse plans of different problems."""
    first, second = one.problem, other.problem
    if first.topology.sha256 != second.topology.sha256:
        raise InputError(
            f"expected plans on one topology in a set, found {name} on {first.topology.name} and {other_name} on "
            f"{second.topology.name} or with other links: plan the set again."
        )
    if _posed(first) != _posed(second):
        raise InputError(
            f"expected plans of one problem in a set, found {name} of {_problem_words(first)} and {other_name} of "
            f"{_problem_words(second)}: plan the set again."
        )


def _posed(problem: Problem) -> tuple[object, ...]:
    return problem.collective, problem.root, problem.weights, problem.demands


def _problem_words(problem: Problem) -> str:
    at_root = "" if problem.root is None else f" from root {problem.root}"
    shares = " with other shares" if problem.weights is not None or problem.demands is not None else ""
    return f"{problem.collective}{at_root}{shares}"


@checked
def write_plan_set(plans: PlanSet, folder: str | os.PathLike[str]) -> PlanSet:
    """Write a set of plans into a folder, which is made if it is not there; a set that is there is replaced.

    All files are written under other names first, and ``set.json`` gets its name last: an interrupted write leaves the
    set as it was, or none.

    Args:
        plans: The set.
        folder: Its folder; of other files only those stay that are no part of the set before.

    Returns:
        The set with the names of its files.

    Raises:
        InputError: If the folder holds other things and no set, or cannot be written.
    """
    target = Path(folder)
    old = _files_before(target)
    names: dict[int, str] = {}
    contents: dict[str, bytes] = {}
    for number, plan in enumerate(plans.plans, 1):
        name = f"{number}-{file_stem(plan)}.json"
        names[id(plan)], contents[name] = name, encode_plan(plan)
    named = replace(plans, ranges=tuple(replace(each, file=names[id(each.plan)]) for each in plans.ranges))
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    made = not target.exists()
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the folder {target} ({error.strerror or error}): choose another place."
        ) from None
    try:
        with later(), ExitStack() as stack:  # what is entered first gets its name last
            for name, data in ((SET_NAME, encode_set(named, hashes)), *contents.items()):
                stack.enter_context(replacing(target / name)).write_bytes(data)
    except BaseException:
        if made:
            with suppress(OSError):
                target.rmdir()
        raise
    for name in old - set(contents):
        (target / name).unlink(missing_ok=True)
    return named


def file_stem(plan: Plan) -> str:
    """What files of a plan are called, by its planner."""
    return re.sub(r"[^a-z0-9]+", "-", plan.planner.lower()).strip("-") or "plan"


def _files_before(folder: Path) -> set[str]:
    """Plan files of the set that a folder holds."""
    try:
        held = {each.name for each in folder.iterdir()}
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise InputError(
            f"cannot write a set of plans to {folder} ({error.strerror or error}): name a folder."
        ) from None
    if held and SET_NAME not in held:
        raise InputError(
            f"expected a new or empty folder for a set of plans, or one that holds a set, found other files in "
            f"{folder}: choose another place."
        )
    if not held:
        return set()
    document = _document(read_bytes(folder / SET_NAME), name=str(folder / SET_NAME))
    return {row.file for row in document.ranges}


def encode_set(plans: PlanSet, hashes: Mapping[str, str]) -> bytes:
    """Encode the ``set.json`` of a set whose ranges name their files.

    Args:
        hashes: SHA-256 of each plan file, by name.
    """
    problem = plans.problem
    members: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "coppice": __version__,
        "collective": problem.collective.value,
        "root": problem.root,
        "topology": problem.topology.name,
        "topology_sha256": topology_from_document(topology_document(problem.topology)).sha256,
        "least_gain": plans.least_gain,
        "model": dict(plans.model),
    }
    encode = msgspec.json.Encoder().encode
    rows = [
        _RangeRow(
            first_bytes=each.first_bytes,
            last_bytes=each.last_bytes,
            file=each.file,
            sha256=hashes[each.file],
            sizes=each.sizes,
        )
        for each in plans.ranges
    ]
    lines = [b'"' + key.encode() + b'": ' + encode(value) for key, value in members.items()]
    lines.append(b'"ranges": [\n ' + b",\n ".join(encode(row) for row in rows) + b"]")
    return sealed(b"{" + b",\n".join(lines))


def is_plan_set(path: object) -> bool:
    """Whether something is the name of a set of plans: its folder, or the ``set.json`` in it.

    Examples:
        >>> is_plan_set("plan.json"), is_plan_set("-"), is_plan_set(None)
        (False, False, False)
    """
    return isinstance(path, (str, os.PathLike)) and _set_file(path) is not None


def _set_file(path: str | os.PathLike[str]) -> Path | None:
    found = Path(path)
    try:
        if found.is_dir():
            return found / SET_NAME
        return found if found.name == SET_NAME and found.is_file() else None
    except (OSError, ValueError):  # text may be no path at all
        return None


def plan_set_of(source: object) -> PlanSet | None:
    """A set of plans, or that of a name; None where something else stands there."""
    if isinstance(source, PlanSet):
        return source
    return read_plan_set(source) if isinstance(source, (str, os.PathLike)) and is_plan_set(source) else None


def plan_at(source: object, size_bytes: int | str | None) -> Plan:
    """A plan, or that of a set for a size; read where it is named.

    Args:
        source: What :func:`~coppice.schedule.files.plan_file.plan_of` takes, or a set of plans.
        size_bytes: M in bytes or as text; a set needs it, and a plan is for any.

    Raises:
        InputError: If there is no plan, or a set without a size.
    """
    plans = plan_set_of(source)
    if plans is None:
        return plan_of(source)
    if size_bytes is None and len(plans.plans) > 1:
        raise InputError(
            f"expected a size to take one of {len(plans.plans)} plans of a set by, found none: give `size`, such as 1M."
        )
    return plans.at(size_bytes or 0)


@checked
def read_plan_set(path: str | os.PathLike[str]) -> PlanSet:
    """Read a set of plans; what it claims is not checked here, but by ``verify``.

    Args:
        path: Its folder, or the ``set.json`` in it.

    Raises:
        InputError: If it cannot be read, is of a newer version, was edited, or its files do not belong together.
    """
    file = _set_file(path)
    if file is None:
        raise InputError(
            f"expected the folder of a set of plans, found {os.fspath(path)}: make one with "
            "`coppice plan ... --size 1K:4G -o plans/`."
        )
    name = str(file)
    if not file.is_file():
        raise InputError(
            f"expected a set of plans in {file.parent}, found no {SET_NAME} there: make one with "
            f"`coppice plan ... --size 1K:4G -o {file.parent}/`."
        )
    document = _document(read_bytes(file, what="the set of plans"), name=name)
    plans: dict[str, Plan] = {}
    hashes: dict[str, str] = {}
    for number, row in enumerate(document.ranges):
        where = f"{name} $.ranges[{number}]"
        if row.file not in plans:
            plans[row.file], hashes[row.file] = _plan_of_row(row, file.parent, where)
        if hashes[row.file] != row.sha256:
            _refuse(
                where,
                f"{file.parent / row.file} as it was written with the set (its sha256)",
                "another file of that name",
            )
        _check_row(document, plans[row.file], row.file, name)
    return PlanSet(
        ranges=tuple(
            PlanRange(
                first_bytes=row.first_bytes,
                last_bytes=row.last_bytes,
                plan=plans[row.file],
                sizes=row.sizes,
                file=row.file,
            )
            for row in document.ranges
        ),
        least_gain=document.least_gain,
        model=document.model,
    )


def _document(data: bytes, *, name: str) -> _SetDocument:
    """The content of a ``set.json``, with ranges that follow each other."""
    if FORMAT.encode() not in data[:100]:
        raise InputError(
            f"expected a set of plans in {name}, found another file: make one with "
            "`coppice plan ... --size 1K:4G -o plans/`."
        )
    document: _SetDocument = decode_json(data, _SetDocument, f"{name} $")
    if document.format != FORMAT or document.version != VERSION:
        raise InputError(
            f"expected {FORMAT} of version {VERSION} in {name}, found {document.format[:40]} of version "
            f"{document.version}: plan the set again."
        )
    check_seal(data, name=name)
    _check_ranges(document.ranges, where=name)
    if not 0 <= document.least_gain < 10:
        _refuse(name, "a share of 0 or more as $.least_gain", str(document.least_gain))
    return document


def _plan_of_row(row: _RangeRow, folder: Path, where: str) -> tuple[Plan, str]:
    """The plan in the file of a row, and the hash of that file."""
    if not re.fullmatch(r"[\w.-]+", row.file) or row.file in (".", "..", SET_NAME):
        _refuse(where, "the name of a plan file beside it", repr(row.file[:60]))
    file = folder / row.file
    data = read_bytes(file, what="the plan", hint="a set of plans needs all its files")
    return decode_plan(data, name=str(file)), hashlib.sha256(data).hexdigest()


def _check_row(document: _SetDocument, plan: Plan, file: str, name: str) -> None:
    """A plan file must be of the problem that the set names."""
    problem = plan.problem
    if problem.topology.sha256 != document.topology_sha256:
        _refuse(
            name,
            f"plans on {document.topology} (its topology_sha256)",
            f"{file} on another: {problem.topology.name}",
        )
    if (problem.collective.value, problem.root) != (document.collective, document.root):
        _refuse(name, f"plans of {document.collective}", f"{file} of {_problem_words(problem)}")


def _refuse(where: str, expected: str, found: str) -> NoReturn:
    raise InputError(f"expected {expected} in {where}, found {found}: plan the set again.")
