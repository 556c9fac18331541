"""Collectives with known answers, for anything that carries out programs of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.algorithms.catalogue import algorithms, case_of, make
from coppice.program.dialects.rank.program import RankProgram
from coppice.run.engines.datatype import DataType, ReduceOp, combine, divide, to_bfloat16
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.topology.model import Link, Node, NodeKind, Topology

Array = NDArray[Any]


def star(ranks: int) -> Topology:
    """Ranks around one switch."""
    nodes = [Node(id=f"gpu{rank}") for rank in range(ranks)]
    links = [Link(src=node.id, dst="switch", gb_per_s=Fraction(1)) for node in nodes]
    return Topology.of("star", [*nodes, Node(id="switch", kind=NodeKind.SWITCH)], links)


def catalogue_bodies(ranks: int, root: int = 1) -> list[tuple[str, Collective, Schedule | Forest]]:
    """Everything of the catalogue that serves a star of ``ranks`` and needs no help of its switch."""
    from coppice.errors import InputError

    found = []
    topology = star(ranks)
    for (name, collective), entry in algorithms().items():
        problem = Problem(topology=topology, collective=collective, root=root if collective.rooted else None)
        try:
            body = make(entry, case_of(entry, problem))
        except InputError:
            continue
        if not (isinstance(body, Forest) and body.branches_at_switches):
            found.append((name, collective, body))
    return found


def random_elements(rng: np.random.Generator, dtype: DataType, count: int) -> Array:
    """Small whole numbers, whose sums and products of a few are exact in every type."""
    numbers = rng.integers(0, 3, count)
    if dtype is DataType.BFLOAT16:
        return to_bfloat16(numbers.astype(np.float32))
    return numbers.astype(dtype.numpy_name)


@dataclass
class Case:
    """Buffers of all ranks and what must become of them."""

    inputs: list[Array | None]
    outputs: list[Array]
    expected: list[Array]
    untouched: list[Array | None]

    def check(self, programs: list[RankProgram]) -> None:
        """Results are right to the last bit, and inputs as they were."""
        for program, given, output, wanted, before in zip(
            programs, self.inputs, self.outputs, self.expected, self.untouched, strict=True
        ):
            first = program.result_offset
            found = output[first : first + program.result_elements]
            np.testing.assert_array_equal(found, wanted, err_msg=f"rank {program.rank}")
            if given is not None:
                np.testing.assert_array_equal(given, before)


def case(
    programs: list[RankProgram],
    *,
    dtype: DataType = DataType.INT64,
    op: ReduceOp = ReduceOp.SUM,
    seed: int = 0,
) -> Case:
    """Random buffers for programs, and what the collective makes of them."""
    first = programs[0]
    ranks, count, root, collective = first.ranks, first.count, first.root, first.collective
    in_place = first.in_place
    rng = np.random.default_rng(seed)
    cut = [count * rank // ranks for rank in range(ranks + 1)]
    full = [random_elements(rng, dtype, count) for _ in range(ranks)]
    total = full[0].copy() if ranks else np.zeros(0)
    for other in full[1:]:
        combine(op, dtype, total, other, total)
    if op is ReduceOp.AVG and collective.reduces:
        divide(dtype, total, ranks)
    nothing = full[0][:0]
    gathered = np.concatenate([full[rank][cut[rank] : cut[rank + 1]] for rank in range(ranks)])
    found = Case([], [], [], [])
    for rank, program in enumerate(programs):
        own = slice(cut[rank], cut[rank + 1])
        at_root = rank == root
        at = 0
        match collective:
            case Collective.ALL_GATHER:
                given, wanted, at = full[rank][own], gathered, cut[rank]
            case Collective.REDUCE_SCATTER:
                given, wanted = full[rank], total[own]
            case Collective.ALL_REDUCE:
                given, wanted = full[rank], total
            case Collective.BROADCAST:
                given, wanted = (full[rank] if at_root else nothing), full[root]
            case Collective.REDUCE:
                given, wanted = full[rank], (total if at_root else nothing)
            case Collective.ALL_TO_ALL:
                given, wanted = full[rank], np.concatenate([each[own] for each in full])
            case Collective.GATHER:
                given, wanted, at = full[rank][own], (gathered if at_root else nothing), cut[rank] * at_root
            case Collective.SCATTER:
                given, wanted = (full[rank] if at_root else nothing), full[root][own]
            case _:
                given, wanted = nothing, nothing
        output = random_elements(rng, dtype, program.output_elements)
        if in_place:
            output[at : at + len(given)] = given
        else:
            assert len(given) == program.input_elements
        found.inputs.append(None if in_place else given.copy())
        found.outputs.append(output)
        found.expected.append(wanted.copy())
        found.untouched.append(None if in_place else given.copy())
    return found
