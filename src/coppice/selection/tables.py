"""Decision tables of MPI libraries, as data files, and their evaluation; numbers and names in Open MPI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

COLLECTIVES = (
    *("allgather", "allgatherv", "allreduce", "alltoall", "alltoallv", "alltoallw", "barrier", "bcast"),
    *("exscan", "gather", "gatherv", "reduce", "reduce_scatter", "reduce_scatter_block", "scan", "scatter"),
    *("scatterv", "neighbor_allgather", "neighbor_allgatherv", "neighbor_alltoall", "neighbor_alltoallv"),
    "neighbor_alltoallw",
)
"""Collectives by their numbers in rules files."""

FUNCTIONS: Mapping[Collective, str] = {
    Collective.ALL_GATHER: "allgather",
    Collective.ALL_REDUCE: "allreduce",
    Collective.ALL_TO_ALL: "alltoall",
    Collective.BROADCAST: "bcast",
    Collective.REDUCE: "reduce",
    Collective.REDUCE_SCATTER: "reduce_scatter_block",
}
"""Of :data:`COLLECTIVES`, the one that performs a collective whose algorithm can be chosen."""

ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "allgather": ("linear", "bruck", "recursive_doubling", "ring", "neighbor", "two_proc", "sparbit"),
    "allgatherv": ("default", "bruck", "ring", "neighbor", "two_proc", "sparbit"),
    "allreduce": (
        "basic_linear",
        "nonoverlapping",
        "recursive_doubling",
        "ring",
        "segmented_ring",
        "rabenseifner",
    ),
    "alltoall": ("linear", "pairwise", "modified_bruck", "linear_sync", "two_proc"),
    "alltoallv": ("basic_linear", "pairwise"),
    "barrier": ("linear", "double_ring", "recursive_doubling", "bruck", "two_proc", "tree"),
    "bcast": (
        *("basic_linear", "chain", "pipeline", "split_binary_tree", "binary_tree", "binomial", "knomial"),
        *("scatter_allgather", "scatter_allgather_ring"),
    ),
    "exscan": ("linear", "recursive_doubling"),
    "gather": ("basic_linear", "binomial", "linear_sync"),
    "reduce": ("linear", "chain", "pipeline", "binary", "binomial", "in-order_binary", "rabenseifner"),
    "reduce_scatter": ("non-overlapping", "recursive_halving", "ring", "butterfly"),
    "reduce_scatter_block": ("basic_linear", "recursive_doubling", "recursive_halving", "butterfly"),
    "scan": ("linear", "recursive_doubling"),
    "scatter": ("basic_linear", "binomial", "linear_nb"),
}
"""Algorithms 1, 2, ... of the collectives for which the component tuned has any, in Open MPI 5.0.

The tables of :mod:`coppice.selection` number and name algorithms, too, but those of one snapshot of the
development branch, and of the collectives that the catalogue performs. A rules file is read by a release: what its
numbers and names mean must not move when the tables do. Both agree on version 6.0.
"""

SEGMENTED: Mapping[str, tuple[str, ...]] = {
    "allreduce": ("segmented_ring",),
    "bcast": ("chain", "pipeline", "split_binary_tree", "binary_tree", "binomial", "knomial"),
    "gather": ("linear_sync",),
    "reduce": ("chain", "pipeline", "binary", "binomial", "in-order_binary"),
}
"""Algorithms that look at the size of a segment; others are given one, too, and do without."""

_IN_6: Mapping[str, Mapping[int, str]] = {
    "allgather": {2: "bruck-k-fanout", 8: "direct-messaging"},
    "allreduce": {7: "allgather_reduce"},
    "reduce": {8: "knomial"},
}
_NOT_IN_4 = {"allgather": "sparbit", "allgatherv": "sparbit"}


def algorithms_of(collective: str, version: Sequence[int] | None = None) -> tuple[str, ...]:
    """Names of the algorithms 1, 2, ... of a collective; empty where the component tuned lacks it.

    Args:
        collective: One of :data:`COLLECTIVES`.
        version: Version of Open MPI, None is 5.0.

    Examples:
        >>> algorithms_of("alltoallv"), algorithms_of("allgather", (4, 1, 8))[-1]
        (('basic_linear', 'pairwise'), 'two_proc')
        >>> algorithms_of("allgather")[1], algorithms_of("allgather", (6,))[1]
        ('bruck', 'bruck-k-fanout')
    """
    found = ALGORITHMS.get(collective, ())
    major = 5 if version is None else version[0]
    if major < 5:
        return tuple(name for name in found if name != _NOT_IN_4.get(collective))
    if major < 6:
        return found
    return tuple((dict(enumerate(found, start=1)) | dict(_IN_6.get(collective, {}))).values())


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
