"""Decision tables of MPI libraries, as data files, and their evaluation."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from coppice.collectives import Collective
from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.selection.selection import (
    Facts,
    RuleTest,
    Selection,
    SelectionPart,
    SelectionRequest,
    TableRule,
    decide,
    parse_rules,
)

_TABLE = "table "


class PartOf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Part of a composition: ``function`` among ``ranks`` (``P``, ``boxes`` or ``per_box``), by ``table``."""

    role: str
    function: str
    ranks: str
    table: str


class FunctionEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An algorithm of a library."""

    id: int | None = None  # Number that the library gives it
    ours: str | None = None  # Name in the catalogue
    parameters: dict[str, int | str] = {}  # Parameters there
    reason: str | None = None  # Why there is none
    # Rules by which the library itself falls back on another of its algorithms; `otherwise: this`
    becomes: list[Any] = []
    parts: list[PartOf] = []  # Levels of a composition
    segment_bytes: int | None = None  # A composition works on segments of this size
    note: str | None = None  # What differs from the schedule of the catalogue


class Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A collective of a library with its algorithms and table."""

    performs: Collective  # The collective
    m: str  # What the tables call m: `total` or `block`
    algorithms: dict[str, FunctionEntry]  # Algorithms by the library's name
    tables: dict[str, list[Any]]  # Tables by name
    start: str  # Table that a call starts with
    note: str | None = None  # A trap that concerns all of it


class Library(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Decision tables of a library."""

    name: str  # As the library writes it
    version: str  # Whose rules these are
    source: str  # Where they stand there
    # Where nothing is known about boxes: all ranks share one (`together`) or each has its own (`apart`)
    assume: str
    components: dict[str, str]  # Part of the library that each table belongs to
    notes: list[str]  # What is approximate or missing
    functions: dict[str, Function]  # Functions by the library's name


@cache
def library(name: str) -> Library:
    """Load the tables of ``open-mpi``, ``mpich`` or ``mvapich2``."""
    data = resources.files("coppice.selection").joinpath("data", f"{name.replace('-', '_')}.json")
    return msgspec.json.decode(data.read_bytes(), type=decodable(Library))


@cache
def _rules(name: str, function: str, table: str) -> tuple[TableRule, ...]:
    return parse_rules(library(name).functions[function].tables[table], f"{name}, {function}, table {table}")


@cache
def _fallbacks(name: str, function: str, algorithm: str) -> tuple[TableRule, ...]:
    data = library(name).functions[function].algorithms[algorithm].becomes
    return parse_rules(data, f"{name}, {function}, {algorithm}")


def select_by_table(
    name: str, request: SelectionRequest, *, function: str | None = None, variant: str | None = None
) -> Selection:
    """Predict the pick of a library with decision tables.

    Args:
        name: ``open-mpi``, ``mpich`` or ``mvapich2``.
        function: The library's function, where several perform the collective; None takes the first.
        variant: Table to start with; None lets the library choose.
    """
    tables = library(name)
    called = _function(tables, request.collective, function)
    entry = tables.functions[called]
    start = variant or entry.start
    if start not in entry.tables:
        known = ", ".join(entry.tables)
        raise InputError(f"{tables.name} has no table {start!r} for {called}, only: {known}.")
    unknown = request.ranks_per_box is None and request.ranks > 1
    if unknown and tables.assume == "apart":
        request = replace(request, ranks_per_box=1, boxes=request.ranks)
    facts = request.facts(entry.m)
    trail: list[RuleTest] = []
    outcome = _TABLE + start
    while outcome.startswith(_TABLE):
        start = outcome.removeprefix(_TABLE)
        outcome, steps = decide(_rules(name, called, start), facts, table=f"{called}, {start}")
        trail.extend(steps)
    decided = picked = outcome
    while entry.algorithms[picked].becomes:
        outcome, steps = decide(_fallbacks(name, called, picked), facts, table=f"{called}, {picked} itself")
        trail.extend(steps)
        if outcome == "this":
            break
        picked = outcome
    algorithm = entry.algorithms[picked]
    notes = (entry.algorithms[decided].note, algorithm.note, entry.note, *tables.notes)
    return Selection(
        library=tables.name,
        version=tables.version,
        source=tables.source,
        function=called,
        collective=request.collective,
        ranks=request.ranks,
        size_bytes=request.size_bytes,
        component=tables.components.get(start, tables.components["*"]),
        algorithm=decided,
        id=entry.algorithms[decided].id,
        runs_as=picked,
        ours=algorithm.ours,
        parameters={key: _value(value, facts) for key, value in algorithm.parameters.items()},
        reason=algorithm.reason,
        why=tuple(trail),
        parts=tuple(_parts(name, request, algorithm)),
        assumptions=tuple(_assumptions(request, trail, tables.assume if unknown else None)),
        notes=tuple(dict.fromkeys(note for note in notes if note)),
    )


def _function(tables: Library, collective: Collective, function: str | None) -> str:
    known = [name for name, entry in tables.functions.items() if entry.performs is collective]
    if not known:
        raise InputError(
            f"{tables.name} has no rules for {collective} here: choose another collective or library."
        )
    if function is not None and function not in known:
        raise InputError(f"{tables.name} performs {collective} by {' or '.join(known)}, found {function!r}.")
    return function or known[0]


def _parts(name: str, request: SelectionRequest, algorithm: FunctionEntry) -> list[SelectionPart]:
    found = []
    size = min(request.size_bytes, algorithm.segment_bytes or request.size_bytes)
    for part in algorithm.parts:
        collective = library(name).functions[part.function].performs
        if part.ranks == "P":
            inner = replace(request, collective=collective)
        else:
            ranks = request.boxes if part.ranks == "boxes" else request.per_box
            inner = request.within(ranks, collective, size)
        picked = select_by_table(name, inner, function=part.function, variant=part.table)
        found.append(SelectionPart(role=part.role, selection=picked))
    return found


def _value(value: int | str, facts: Facts) -> int | str:
    """A parameter; ``=NAME`` is a number that is known about the call, 1 at least."""
    if isinstance(value, str) and value.startswith("="):
        return max(1, int(facts[value.removeprefix("=")]))
    return value


def _assumptions(request: SelectionRequest, trail: list[RuleTest], boxes: str | None) -> list[str]:
    """What the tested rules asked for and the call did not say."""
    asked = " ".join(step.rule for step in trail)
    found = []
    if boxes is not None and "box" in asked:
        where = "each rank has a box of its own" if boxes == "apart" else "all ranks share one box"
        found.append(f"{where} (a topology or the ranks of a box would say)")
    if "elements" in asked:
        found.append(f"elements of {request.element_bytes} bytes")
    shards = request.collective.shards(request.ranks)
    if request.size_bytes % shards:
        found.append(f"a block of {request.block_bytes} bytes: M / P rounded down")
    return found
