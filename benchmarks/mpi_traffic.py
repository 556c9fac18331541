"""Open MPI's collective algorithms that can be forced, our schedules of the same ones, and what each sends to whom.

Open MPI names an algorithm by a function and a number. :func:`schedule_of` makes the schedule of the catalogue that
stands for it; :func:`mpi_counters.measure` forces the algorithm and reads the library's counters before and after one
call. The matrices of the two are equal, but for what :attr:`Forced.note` says.

Where a buffer does not divide evenly, the library's blocks may differ from ours by a few elements: it makes the first
ones longer (rings), or the last one shorter (scattering broadcasts).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.catalogue import case_of, find, make
from coppice.schedule.lower import chunk_bounds
from coppice.schedule.schedule import Schedule
from coppice.topology.presets import preset

__all__ = [
    "ELEMENT_BYTES",
    "FUNCTIONS",
    "MONITORED",
    "Call",
    "Forced",
    "Traffic",
    "find_forced",
    "schedule_of",
    "traffic_of",
]

ELEMENT_BYTES = 4
"""Calls move 32-bit integers, which every operator takes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Traffic:
    """Bytes and messages from every rank (row) to every rank (column).

    Attributes:
        size_bytes: Bytes (P x P).
        messages: Number of messages (P x P).
    """

    size_bytes: NDArray[np.int64]
    messages: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Forced:
    """What one number of a function stands for, as Open MPI 5.0 runs it when it is forced.

    Attributes:
        name: Name in the catalogue.
        parameters: Parameters there.
        segmented: Part of the buffer that :attr:`Call.segment_bytes` cuts: ``whole``, ``half`` or ``block``.
        inner: Numbers to force of functions that it calls itself.
        odd: Name of what it runs among an odd number of ranks, if that is another algorithm.
        uneven: The same for a number of ranks that is no power of two.
        note: How the library's messages differ although the bytes between ranks are the same.
    """

    name: str
    parameters: Mapping[str, int | str] = field(default_factory=dict)
    segmented: str | None = None
    inner: Mapping[str, int] = field(default_factory=dict)
    odd: str | None = None
    uneven: str | None = None
    note: str | None = None

    def runs_as(self, ranks: int) -> str:
        """Name of what it runs among so many ranks."""
        if self.odd is not None and ranks % 2:
            return self.odd
        if self.uneven is not None and ranks & (ranks - 1):
            return self.uneven
        return self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of a collective with a forced algorithm.

    Attributes:
        function: Function of MPI in lower case, as Open MPI's parameters name it: ``allreduce``.
        number: Number of the algorithm there, from 1.
        elements: M in elements of :data:`ELEMENT_BYTES` bytes (see :mod:`coppice.collectives`).
        root: Root of a rooted collective.
        segment_bytes: Bytes of a segment where the algorithm has segments; 0 leaves the buffer whole.
    """

    function: str
    number: int
    elements: int = 0
    root: int = 0
    segment_bytes: int = 0


def _numbered(*algorithms: Forced | str) -> dict[int, Forced]:
    return {
        number: each if isinstance(each, Forced) else Forced(name=each)
        for number, each in enumerate(algorithms, start=1)
    }


_SPARBIT = Forced(name="sparbit", note="every block is a message of its own")

FUNCTIONS: dict[str, tuple[Collective, dict[int, Forced]]] = {
    "allgather": (
        Collective.ALL_GATHER,
        _numbered(
            Forced(name="linear", inner={"gather": 1, "bcast": 1}),
            "bruck",
            Forced(name="recursive-doubling", uneven="bruck"),
            "ring",
            Forced(name="neighbor-exchange", odd="ring"),
            "two-proc",
            _SPARBIT,
        ),
    ),
    "allgatherv": (
        Collective.ALL_GATHER,
        _numbered(
            Forced(name="linear", inner={"bcast": 1}),
            "bruck",
            "ring",
            Forced(name="neighbor-exchange", odd="ring"),
            "two-proc",
            _SPARBIT,
        ),
    ),
    "allreduce": (
        Collective.ALL_REDUCE,
        _numbered(
            "linear",
            Forced(
                name="nonoverlapping",
                parameters={"reduce": "binomial", "broadcast": "linear"},
                inner={"reduce": 5, "bcast": 1},
            ),
            "recursive-doubling",
            "ring",
            Forced(name="segmented-ring", segmented="block"),
            Forced(name="rabenseifner", parameters={"folding": "open-mpi"}),
        ),
    ),
    "alltoall": (
        Collective.ALL_TO_ALL,
        _numbered("linear", "pairwise", "bruck", "linear-sync", "two-proc"),
    ),
    "alltoallv": (
        Collective.ALL_TO_ALL,
        _numbered("linear", Forced(name="pairwise", note="every rank sends its own block to itself")),
    ),
    "barrier": (
        Collective.BARRIER,
        _numbered("linear", "double-ring", "recursive-doubling", "bruck", "two-proc", "tree"),
    ),
    "bcast": (
        Collective.BROADCAST,
        _numbered(
            "linear",
            Forced(name="chain", parameters={"fanout": 4}, segmented="whole"),
            Forced(name="pipeline", segmented="whole"),
            Forced(name="split-binary", segmented="half"),
            Forced(name="binary", segmented="whole"),
            Forced(name="binomial", parameters={"distance": "growing"}),
            Forced(name="k-nomial", parameters={"radix": 4}),
            "scatter-allgather",
            "scatter-ring-allgather",
        ),
    ),
    "gather": (
        Collective.GATHER,
        _numbered(
            "linear",
            "binomial",
            Forced(
                name="linear-sync",
                note="the root calls each rank, which sends the first part of its block alone",
            ),
        ),
    ),
    "reduce": (
        Collective.REDUCE,
        _numbered(
            "linear",
            Forced(name="chain", parameters={"fanout": 4}, segmented="whole"),
            Forced(name="pipeline", segmented="whole"),
            Forced(name="binary", segmented="whole"),
            "binomial",
            Forced(name="in-order-binary", segmented="whole"),
            Forced(name="rabenseifner", parameters={"folding": "open-mpi"}),
        ),
    ),
    "reduce_scatter": (
        Collective.REDUCE_SCATTER,
        _numbered(
            Forced(name="nonoverlapping", inner={"reduce": 5}),
            "recursive-halving",
            "ring",
            Forced(name="butterfly", parameters={"mirror": "exchange"}),
        ),
    ),
    "reduce_scatter_block": (
        Collective.REDUCE_SCATTER,
        _numbered(
            Forced(name="nonoverlapping", inner={"reduce": 5, "scatter": 1}),
            "recursive-doubling",
            "recursive-halving",
            "butterfly",
        ),
    ),
    "scatter": (Collective.SCATTER, _numbered("linear", "binomial", "linear-nb")),
}
"""What each function performs, and its algorithms by number, as Open MPI 5.0 has them."""

MONITORED = (
    *("--mca", "pml_monitoring_enable", "1"),
    *("--mca", "coll_tuned_use_dynamic_rules", "1"),
    *("--mca", "coll_tuned_priority", "100"),
)
"""Words for Open MPI's launcher: count messages, let algorithms be forced, and let nothing but ``tuned`` decide."""


def traffic_of(schedule: Schedule, elements: int, element_bytes: int = 1) -> Traffic:
    """What a schedule sends from rank to rank.

    Args:
        schedule: The schedule; rows of a step between the same two ranks are one message.
        elements: M in elements, which are never cut.
        element_bytes: Bytes of an element.
    """
    _, length = chunk_bounds(schedule, elements)
    ranks = schedule.topology.num_ranks
    size_bytes = np.zeros((ranks, ranks), dtype=np.int64)
    np.add.at(size_bytes, (schedule.src, schedule.dst), length[schedule.chunk] * element_bytes)
    step = schedule.step.astype(np.int64)
    alone = step < 0
    step[alone] = -1 - np.arange(int(alone.sum()))
    _, first = np.unique(
        np.stack([step, schedule.src, schedule.dst, schedule.path]), axis=1, return_index=True
    )
    messages = np.zeros((ranks, ranks), dtype=np.int64)
    np.add.at(messages, (schedule.src[first], schedule.dst[first]), 1)
    return Traffic(size_bytes=size_bytes, messages=messages)


def schedule_of(call: Call, ranks: int) -> Schedule:
    """Our schedule of what Open MPI runs in a call.

    Raises:
        InputError: If there is no such algorithm, or it does not serve this number of ranks.

    Examples:
        >>> ring = schedule_of(Call(function="allreduce", number=4, elements=8), ranks=4)
        >>> traffic_of(ring, 8).size_bytes.tolist()
        [[0, 12, 0, 0], [0, 0, 12, 0], [0, 0, 0, 12], [12, 0, 0, 0]]
    """
    collective, forced = find_forced(call)
    name = forced.runs_as(ranks)
    parameters = dict(forced.parameters) if name == forced.name else {}
    if forced.segmented is not None:
        parts = {"whole": 1, "half": 2, "block": ranks}[forced.segmented]
        cut_bytes = call.elements * ELEMENT_BYTES // parts
        parameters["segments"] = max(1, -(-cut_bytes // call.segment_bytes)) if call.segment_bytes else 1
    problem = Problem(
        topology=preset("star", gpus=ranks),
        collective=collective,
        root=call.root if collective.rooted else None,
    )
    entry = find(name, collective)
    made = make(entry, case_of(entry, problem, parameters))
    if not isinstance(made, Schedule):
        raise InputError(
            f"expected an algorithm with steps, found {name}, which is a forest: it sends no messages by itself."
        )
    return made


def find_forced(call: Call) -> tuple[Collective, Forced]:
    """What a call performs, and what its number stands for.

    Raises:
        InputError: If there is no such algorithm.
    """
    if call.function not in FUNCTIONS:
        raise InputError(
            f"expected a function of Open MPI, found {call.function!r}: choose one of {', '.join(FUNCTIONS)}."
        )
    collective, algorithms = FUNCTIONS[call.function]
    if call.number not in algorithms:
        raise InputError(
            f"expected an algorithm 1 .. {len(algorithms)} of {call.function}, found {call.number}."
        )
    return collective, algorithms[call.number]
