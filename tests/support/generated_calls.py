"""Collectives planned on generated topologies, with what must become of the buffers by NumPy's own functions.

Nothing here uses the project's arithmetic or its tables of memory: blocks, layouts and results are written down a
second time, as the top of :mod:`coppice.program.dialects.rank.program` describes them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.catalogue import algorithms, case_of, make
from coppice.planners.planning import plan
from coppice.program.dialects.rank.lower import lower_for_run
from coppice.program.dialects.rank.program import RankProgram
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.topology.model import Link, Node, NodeKind, Topology
from reference.strategies import CONNECTED_FAMILIES

Array = NDArray[Any]
Choose = Callable[[int, int], int]

EVERY_PAIR = len(Collective) * len(DataType)
"""So many successive calls have every collective with every type."""

GUARDS = 5
"""Elements behind each output that nothing may touch."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One collective of all ranks: programs, type, operation, and data by a seed.

    Attributes:
        words: What it is, for messages.
        programs: The program of every rank.
        edges: First element of each rank's block of M, and M; in an all-to-all unused.
        sent: In an all-to-all, elements from each rank to each; otherwise None.
        equal_demands: It is no all-to-all with demands, which symbolic checks do not know.
        direct: Engines with collectives of their own can carry it out by those as well.
        body: The plan that the programs are made of.
    """

    words: str
    programs: list[RankProgram]
    dtype: DataType
    op: ReduceOp
    edges: list[int]
    sent: Array | None
    equal_demands: bool
    direct: bool
    body: Schedule | Forest
    seed: int

    def buffers(self, rank: int) -> tuple[Array | None, Array]:
        """Input (None in place) and output of a rank."""
        program = self.programs[rank]
        given, output_elements = self._given(rank), self._output_elements(rank)
        longest = max(len(given), output_elements) if program.in_place else output_elements
        output = _stored(self._random(rank, longest + GUARDS, "before"), self.dtype)
        if not program.in_place:
            return _stored(given, self.dtype), output
        gathers = program.collective in (Collective.ALL_GATHER, Collective.GATHER)
        first = self.edges[rank] if gathers and self._has_all(rank) else 0
        output[first : first + len(given)] = _stored(given, self.dtype)
        return None, output

    def fault(self, rank: int, given: Array | None, output: Array) -> str:
        """What is wrong with the buffers of a rank after the collective, or nothing."""
        program = self.programs[rank]
        before, untouched = self.buffers(rank)
        wanted = self._wanted(rank)
        apart = program.collective in (Collective.REDUCE_SCATTER, Collective.SCATTER)
        first = self.edges[rank] if program.in_place and apart and self._has_all(rank) else 0
        found = _numbers(output, self.dtype)[first : first + len(wanted)]
        if not np.array_equal(found, wanted):
            at = int(np.flatnonzero(found != wanted)[0]) if len(found) == len(wanted) else -1
            return f"{self.words}: rank {rank} element {at} is {found[at]}, not {wanted[at]}"
        if given is not None and before is not None and given.tobytes() != before.tobytes():
            return f"{self.words}: rank {rank}: the input was written"
        if output[-GUARDS:].tobytes() != untouched[-GUARDS:].tobytes():
            return f"{self.words}: rank {rank}: memory behind the output was written"
        idle = program.collective is Collective.REDUCE and rank != program.root
        if idle and output.tobytes() != untouched.tobytes():
            return f"{self.words}: rank {rank}: the output of a rank without a result was written"
        return ""

    def run(self, engine: Any, *, timeout_s: float = 60.0) -> str:
        """Carry out this engine's part. Returns: what is wrong with the result, or nothing."""
        given, output = self.buffers(engine.rank)
        engine.run(
            self.programs[engine.rank], given, output, dtype=self.dtype, op=self.op, timeout_s=timeout_s
        )
        return self.fault(engine.rank, given, output)

    def run_direct(self, engine: Any, *, timeout_s: float = 60.0) -> str:
        """The same by the engine's own collective."""
        program = self.programs[engine.rank]
        given, output = self.buffers(engine.rank)
        engine.run_direct(
            program.collective,
            given,
            output,
            count=program.count,
            dtype=self.dtype,
            op=self.op,
            root=program.root,
            bounds=self.edges,
            in_place=program.in_place,
            timeout_s=timeout_s,
        )
        fault = self.fault(engine.rank, given, output)
        return f"directly: {fault}" if fault else ""

    def _random(self, rank: int, elements: int, what: str = "") -> Array:
        """Small whole numbers: sums and products over 8 ranks are exact in every type that does not wrap."""
        lowest = -2 if self.dtype.is_float or self.dtype.value.startswith("int") else 0
        generator = np.random.default_rng([self.seed, rank, len(what)])
        return generator.integers(lowest, 3, elements)

    def _block(self, rank: int) -> slice:
        return slice(self.edges[rank], self.edges[rank + 1])

    def _has_all(self, rank: int) -> bool:
        program = self.programs[rank]
        return rank == program.root or not program.collective.rooted

    def _full(self, rank: int) -> Array:
        """What the rank puts into a buffer of M elements."""
        return self._random(rank, self.programs[rank].count)

    def _given(self, rank: int) -> Array:
        program = self.programs[rank]
        match program.collective:
            case Collective.BARRIER:
                return np.zeros(0, dtype=np.int64)
            case Collective.ALL_TO_ALL if self.sent is not None:
                return self._random(rank, int(self.sent[rank].sum()))
            case Collective.ALL_GATHER | Collective.GATHER:
                return self._full(rank)[self._block(rank)]
            case Collective.BROADCAST | Collective.SCATTER if not self._has_all(rank):
                return np.zeros(0, dtype=np.int64)
        return self._full(rank)

    def _output_elements(self, rank: int) -> int:
        program = self.programs[rank]
        match program.collective:
            case Collective.ALL_GATHER | Collective.ALL_REDUCE | Collective.BROADCAST:
                return program.count
            case Collective.REDUCE if program.in_place:
                return program.count
        return len(self._wanted(rank))

    def _wanted(self, rank: int) -> Array:
        program, ranks = self.programs[rank], range(len(self.programs))
        nothing = np.zeros(0, dtype=np.int64)
        match program.collective:
            case Collective.BARRIER:
                wanted = nothing
            case Collective.BROADCAST:
                wanted = self._full(program.root)
            case Collective.SCATTER:
                wanted = self._full(program.root)[self._block(rank)]
            case Collective.ALL_TO_ALL if self.sent is not None:
                first = np.cumsum(self.sent, axis=1) - self.sent
                wanted = np.concatenate(
                    [
                        self._given(peer)[first[peer, rank] : first[peer, rank] + self.sent[peer, rank]]
                        for peer in ranks
                    ]
                )
            case Collective.ALL_GATHER | Collective.GATHER:
                wanted = np.concatenate([self._given(peer) for peer in ranks])
                wanted = wanted if self._has_all(rank) else nothing
            case _:
                total = _reduced(self.op, self.dtype, np.array([self._full(peer) for peer in ranks]))
                if not self._has_all(rank):
                    return nothing
                return total[self._block(rank)] if program.collective is Collective.REDUCE_SCATTER else total
        return _numbers(_stored(wanted, self.dtype), self.dtype)


def _stored(values: Array, dtype: DataType) -> Array:
    """Numbers as they lie in a buffer."""
    if dtype is DataType.BFLOAT16:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype.numpy_name)


def _numbers(stored: Array, dtype: DataType) -> Array:
    """What a buffer's elements stand for."""
    return (stored.astype(np.uint32) << 16).view(np.float32) if dtype is DataType.BFLOAT16 else stored


def _reduced(op: ReduceOp, dtype: DataType, rows: Array) -> Array:
    """The reduction of whole numbers, one row for each rank, rounded or cut as the type asks."""
    if dtype is DataType.BOOL:
        truths = rows != 0
        match op:
            case ReduceOp.SUM | ReduceOp.MAX | ReduceOp.BOR:
                return np.asarray(truths.any(axis=0))
            case ReduceOp.BXOR:
                return np.asarray(truths.sum(axis=0) % 2 == 1)
        return np.asarray(truths.all(axis=0))
    function = {
        ReduceOp.SUM: np.sum,
        ReduceOp.AVG: np.sum,
        ReduceOp.MIN: np.min,
        ReduceOp.MAX: np.max,
        ReduceOp.PRODUCT: np.prod,
        ReduceOp.BAND: np.bitwise_and.reduce,
        ReduceOp.BOR: np.bitwise_or.reduce,
        ReduceOp.BXOR: np.bitwise_xor.reduce,
    }[op]
    total = np.asarray(function(rows, axis=0))
    if op is ReduceOp.AVG and not dtype.is_float:
        total = np.fix(total / len(rows)).astype(np.int64)
    elif op is ReduceOp.AVG:
        total = total / len(rows)
        if dtype is DataType.BFLOAT16:  # 8 bits, ties to even
            mantissa, exponent = np.frexp(total)
            total = np.ldexp(np.rint(np.ldexp(mantissa, 8)), exponent - 8)
    return total.astype(np.float32 if dtype is DataType.BFLOAT16 else dtype.numpy_name)


def any_call(
    choose: Choose,
    *,
    ranks: int | None = None,
    dtype: DataType | None = None,
    collective: Collective | None = None,
    even: bool = False,
) -> Call:
    """A call made of integers that ``choose(low, high)`` gives, by hypothesis or by a seeded generator.

    Args:
        choose: Gives an integer from low to high.
        ranks: Number of ranks, 1 to 8; the default leaves it open.
        dtype: Type of the elements, likewise.
        collective: The collective, likewise.
        even: Out of place, with data, in blocks of one length.
    """
    topology = _topology(choose, ranks)
    ranks = topology.num_ranks
    collective = list(Collective)[choose(0, 8)] if collective is None else collective
    dtype = list(DataType)[choose(0, 12)] if dtype is None else dtype
    ops = [op for op in ReduceOp if op.serves(dtype)]
    op = ops[choose(0, len(ops) - 1)] if collective.reduces else ReduceOp.SUM
    in_place = not even and choose(0, 1) == 1
    if collective is Collective.BARRIER:
        count = 0
    elif even:
        count = ranks * choose(1, 300)
    else:
        counts = (
            0,
            1,
            ranks - 1,
            ranks,
            ranks + 1,
            choose(0, 60),
            2 * choose(0, 2000) + 1,
            2 * choose(0, 500) + 1,
        )
        count = counts[choose(0, len(counts) - 1)]
        if choose(0, 30) == 30:  # longer than what is in memory at once
            count = 2 * choose(40_000, 150_000) + 1
    # So many pieces make programs of more steps than engines look ahead.
    piece = (None, max(1, count // (60 * ranks)), max(3, count // 7))[choose(0, 2)]
    problem = _problem(choose, topology, collective, even=even)
    name, body = _body(choose, problem)
    programs = lower_for_run(body, count, in_place=in_place, piece_elements=piece)
    weights = problem.weights or (1,) * ranks
    sent = None
    if collective is Collective.ALL_TO_ALL:
        relative = np.array(problem.demands or np.ones((ranks, ranks), dtype=np.int64)).reshape(-1)
        # M is what a rank sends to all, itself too, on average.
        sent = np.diff(_cut(count * ranks, relative.tolist())).reshape(ranks, ranks)
    seed = choose(0, 10**6)
    words = (
        f"{collective} of {count} {dtype} {op} by {name} on {topology.name} of {ranks} ranks, root {problem.root}, "
        f"weights {problem.weights}, demands {problem.demands}, in_place {in_place}, piece {piece}, seed {seed}"
    )
    return Call(
        words=words,
        programs=programs,
        dtype=dtype,
        op=op,
        edges=_cut(count, weights),
        sent=sent,
        equal_demands=problem.demands is None,
        # Blocks of a direct all-to-all are the same for all senders; those of a plan differ where M does not divide.
        direct=sent is None or bool((sent == sent[0]).all()),
        body=body,
        seed=seed,
    )


def seeded_call(seed: int, *, ranks: int) -> Call:
    """The call with this number."""
    return any_call(
        random.Random(f"call {ranks} {seed}").randint,
        ranks=ranks,
        dtype=list(DataType)[seed % 13],
        collective=list(Collective)[seed % 9],
    )


def calls_of(ranks: int, number: int, *, first: int = 0) -> list[Call]:
    """So many successive calls."""
    return [seeded_call(seed, ranks=ranks) for seed in range(first, first + number)]


def _topology(choose: Choose, ranks: int | None) -> Topology:
    """A generated topology, with any number of ranks from 1 to 8 or the given one."""
    if ranks == 1 or (ranks is None and choose(0, 9) == 0):
        nodes = [Node(id="alone"), Node(id="switch", kind=NodeKind.SWITCH)]
        return Topology.of("one rank", nodes, [Link(src="alone", dst="switch", gb_per_s=Fraction(1))])
    while True:
        family = CONNECTED_FAMILIES[choose(0, len(CONNECTED_FAMILIES) - 1)]
        topology = family(choose, 8 if ranks is None else min(12, ranks + choose(0, 4) + 1))
        if ranks is None or topology.num_ranks == ranks:
            return topology


def _problem(choose: Choose, topology: Topology, collective: Collective, *, even: bool) -> Problem:
    ranks = topology.num_ranks
    root = choose(0, ranks - 1) if collective.rooted else None
    weights: tuple[int, ...] | None = None
    demands: tuple[tuple[int, ...], ...] | None = None
    unequal = not even and choose(0, 2) == 0 and ranks > 1
    if collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER) and unequal:
        weights = tuple(choose(0, 4) for _ in range(ranks))
        weights = weights if any(weights) else None
    if collective is Collective.ALL_TO_ALL and unequal:
        demands = tuple(
            tuple(0 if sender == receiver else choose(0, 3) for receiver in range(ranks))
            for sender in range(ranks)
        )
        demands = demands if any(map(any, demands)) else None
    return Problem(topology=topology, collective=collective, root=root, weights=weights, demands=demands)


def _body(choose: Choose, problem: Problem) -> tuple[str, Schedule | Forest]:
    """The planner's own, or now and then an algorithm of the catalogue that serves the problem."""
    if choose(0, 3) == 0:
        entries = [
            entry for (_, served), entry in sorted(algorithms().items()) if served is problem.collective
        ]
        entry = entries[choose(0, len(entries) - 1)]
        try:
            body = make(entry, case_of(entry, problem), relay_gpus=True)
        except InputError:
            pass
        else:
            if not (isinstance(body, Forest) and body.branches_at_switches):
                return entry.name, body
    relays = problem.collective is Collective.BARRIER  # which is planned by an algorithm of the catalogue
    return "the planner", plan(problem, ring=False, relay_gpus=relays).plan.body


def _cut(total: int, weights: Sequence[int]) -> list[int]:
    """Where parts of these relative sizes begin, and where the last one ends."""
    return [total * before // sum(weights) for before in accumulate(weights, initial=0)]
