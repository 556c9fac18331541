"""Schedules become programs: right for every algorithm, count and cut, and bounded in memory."""

from __future__ import annotations

import gc
import time
import weakref
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import AlgorithmCase as AlgorithmCase
from coppice.planners.algorithms.catalogue import case_of, find, make
from coppice.planners.algorithms.parts.moves import Moves, blocks, whole
from coppice.planners.planning import plan
from coppice.program.dialects.rank.lower import lower_for_run, lower_rank, schedule_of
from coppice.program.dialects.rank.program import RankBuffer, RankProgram, RowKind
from coppice.program.dialects.rank.steps import transfer_steps
from coppice.program.dialects.rank.verify import check_programs
from coppice.run.engines.datatype import DataType
from coppice.run.engines.interpreter import interpret
from coppice.schedule.schedule import Op, Schedule
from coppice.topology.model import Link, Node, Topology
from coppice.topology.presets import preset
from support.run_cases import case, catalogue_bodies, star

COLUMNS = (
    *("step", "kind", "peer", "tag", "buffer", "offset", "length", "source", "source_offset"),
    *("predecessors", "predecessors_start"),
)


def run_and_check(body: object, count: int, *, in_place: bool, piece: int | None, seed: int | None) -> None:
    programs = lower_for_run(body, count, in_place=in_place, piece_elements=piece)  # type: ignore[arg-type]
    data = case(programs, seed=count)
    interpret(programs, data.inputs, data.outputs, dtype=DataType.INT64, seed=seed)
    data.check(programs)


@pytest.mark.parametrize("ranks", [2, 3, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (5, 8))])
def test_every_algorithm_computes(ranks: int) -> None:
    """Step by step, and in random orders that keep to the needs alone."""
    for name, collective, body in catalogue_bodies(ranks):
        barrier = collective is Collective.BARRIER
        for count in (
            (0,) if barrier else (1, 5 * ranks + 3) if ranks > 5 else (0, 1, ranks - 1, 5 * ranks + 3)
        ):
            for in_place in (True, False):
                for piece, seed in ((None, None), (3, 1)):
                    try:
                        run_and_check(body, count, in_place=in_place, piece=piece, seed=seed)
                    except Exception as error:  # noqa: BLE001
                        pytest.fail(f"{name} {collective} {count} {in_place} {piece} {seed}: {error}")


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """A ring of 1 to 6 ranks with random further links and rates."""
    ranks = draw(st.integers(1, 6))
    names = [f"g{rank}" for rank in range(ranks)]
    pairs = {(rank, (rank + 1) % ranks) for rank in range(ranks) if ranks > 1}
    if ranks > 2:
        extra = st.tuples(st.integers(0, ranks - 1), st.integers(0, ranks - 1))
        pairs |= {(a, b) for a, b in draw(st.lists(extra, max_size=5)) if a != b}
    links = [
        Link(src=names[a], dst=names[b], gb_per_s=Fraction(draw(st.integers(1, 5)))) for a, b in sorted(pairs)
    ]
    return Topology.of("random", [Node(id=name) for name in names], links)


@settings(max_examples=40, deadline=None)
@given(
    topologies(),
    st.sampled_from(list(Collective)),
    st.integers(0, 40),
    st.booleans(),
    st.sampled_from([None, 1, 4]),
    st.integers(0, 10),
    st.integers(0, 5),
)
def test_plans_of_random_topologies_compute(
    topology: Topology,
    collective: Collective,
    count: int,
    in_place: bool,
    piece: int | None,
    seed: int,
    root: int,
) -> None:
    problem = Problem(
        topology=topology,
        collective=collective,
        root=root % topology.num_ranks if collective.rooted else None,
    )
    body = plan(problem, ring=False, relay_gpus=collective is Collective.BARRIER).plan.body
    count *= collective is not Collective.BARRIER
    programs = lower_for_run(body, count, in_place=in_place, piece_elements=piece)
    check_programs(programs)
    run_and_check(body, count, in_place=in_place, piece=piece, seed=seed)
    for rank, program in enumerate(programs):
        alone = lower_rank(body, rank, count, in_place=in_place, piece_elements=piece)
        for column in COLUMNS:
            np.testing.assert_array_equal(getattr(alone, column), getattr(program, column))
        assert alone.scratch_elements == program.scratch_elements
        if piece is not None and collective is not Collective.BARRIER:
            messages = program.kind != RowKind.COPY
            assert int(program.length[messages].max(initial=0)) <= piece


def chain(ranks: int, parts: int = 1) -> Schedule:
    case = AlgorithmCase(topology=preset("ring", gpus=ranks), collective=Collective.BROADCAST, root=0)
    moves = Moves(case, whole(case, parts))
    for rank in range(ranks - 1):
        for part in range(parts):
            moves.add(rank, rank, rank + 1, part)
    return moves.schedule()


def test_pieces_follow_each_other() -> None:
    """Step = piece + depth: a rank sends on piece j while it receives piece j + 1."""
    for rank, program in enumerate(lower_for_run(chain(4), 12, in_place=True, piece_elements=3)):
        sends = program.step[program.kind == RowKind.SEND].tolist()
        receives = program.step[program.kind == RowKind.RECV].tolist()
        assert sends == ([] if rank == 3 else list(range(rank, rank + 4)))
        assert receives == ([] if rank == 0 else list(range(rank - 1, rank + 3)))


def test_neighbouring_chunks_travel_together() -> None:
    for program in lower_for_run(chain(3, parts=4), 10, in_place=True):
        assert set(program.length.tolist()) <= {10}
    cut = lower_for_run(chain(3, parts=4), 10, in_place=True, piece_elements=4)[0]
    assert cut.length.tolist() == [4, 4, 2]  # chunks are short enough, the message is not
    ring = case_of(
        find("ring", Collective.ALL_GATHER), Problem(topology=star(4), collective=Collective.ALL_GATHER)
    )
    body = make(find("ring", Collective.ALL_GATHER), ring)
    assert [program.num_rows for program in lower_for_run(body, 16, in_place=True)] == [6] * 4


def test_what_is_not_contiguous_travels_apart() -> None:
    """A rank passes on chunks 0 and 2 of three: two messages."""
    case = AlgorithmCase(topology=star(2), collective=Collective.BROADCAST, root=0)
    moves = Moves(case, whole(case, 3))
    moves.add(0, 0, 1, [0, 2])
    moves.add(1, 0, 1, 1)
    sender = lower_for_run(moves.schedule(), 9, in_place=True)[0]
    assert list(zip(sender.step.tolist(), sender.offset.tolist(), strict=True)) == [(0, 0), (0, 6), (1, 3)]


def test_relays_take_scratch_for_what_is_under_way_only() -> None:
    """A reduce-scatter along a ring holds two partial sums at a time, however many ranks and pieces there are."""
    entry = find("ring", Collective.REDUCE_SCATTER)
    problem = Problem(topology=star(8), collective=Collective.REDUCE_SCATTER)
    body = make(entry, case_of(entry, problem))
    whole_chunks = lower_for_run(body, 8 * 64, in_place=False)
    assert {program.scratch_elements for program in whole_chunks} == {2 * 64}
    pieces = lower_for_run(body, 8 * 64, in_place=False, piece_elements=4)
    assert {program.scratch_elements for program in pieces} == {
        6 * 2 * 4
    }  # two pieces of each that it passes on
    check_programs(pieces)
    assert all(program.scratch_elements == 0 for program in lower_for_run(body, 8 * 64, in_place=True))


def test_input_is_the_first_operand_and_is_not_copied() -> None:
    problem = Problem(topology=star(4), collective=Collective.ALL_REDUCE)
    for program in lower_for_run(plan(problem, ring=False).plan.body, 40, in_place=False):
        assert RowKind.COPY not in program.kind
        adds = program.kind == RowKind.RECV_REDUCE
        assert RankBuffer.INPUT in program.source[adds]
        assert set(program.buffer[adds].tolist()) == {RankBuffer.OUTPUT}
    gather = Problem(topology=star(4), collective=Collective.ALL_GATHER)
    for program in lower_for_run(plan(gather, ring=False).plan.body, 40, in_place=False):
        copied = program.length[program.kind == RowKind.COPY]
        assert copied.tolist() == [10]
        assert program.scratch_elements == 0


def stepped(
    rows: list[tuple[int, int, int, int, int]], collective: Collective, ranks: int, root: int = -1
) -> Schedule:
    """A schedule of (step, src, dst, chunk, op) rows with one chunk per slot."""
    case = AlgorithmCase(topology=star(ranks), collective=collective, root=root)
    moves = Moves(case, whole(case) if collective is not Collective.ALL_GATHER else blocks(case))
    moves.add(0, 0, 1, 0)
    column = np.array(rows, dtype=np.int64).T
    return replace(
        moves.schedule(),
        step=column[0].astype(np.int32),
        src=column[1].astype(np.int32),
        dst=column[2].astype(np.int32),
        chunk=column[3].astype(np.int32),
        op=column[4].astype(np.int8),
        path=np.full(len(rows), -1, dtype=np.int32),
        after_start=np.zeros(len(rows) + 1, dtype=np.int64),
        after=np.zeros(0, dtype=np.int32),
    )


def test_a_copy_over_what_is_being_sent_takes_a_detour() -> None:
    """Rank 0 passes its partial sum on in the very step in which the total replaces it."""
    rows = [
        (0, 1, 2, 0, Op.REDUCE),
        (1, 0, 2, 0, Op.REDUCE),
        (2, 2, 0, 0, Op.COPY),
        (2, 0, 1, 0, Op.COPY),
        (3, 2, 1, 0, Op.COPY),
    ]
    schedule = stepped(rows, Collective.ALL_REDUCE, 3)
    first = lower_for_run(schedule, 6, in_place=True)[0]
    assert RowKind.COPY in first.kind
    for in_place in (True, False):
        for seed in (None, 1, 2, 3):
            run_and_check(schedule, 6, in_place=in_place, piece=None, seed=seed)
            run_and_check(schedule, 6, in_place=in_place, piece=2, seed=seed)
        check_programs(lower_for_run(schedule, 6, in_place=in_place))


def test_the_same_value_twice_in_a_step_is_received_aside() -> None:
    rows = [(0, 0, 1, 0, 0), (0, 0, 2, 0, 0), (1, 1, 3, 0, 0), (1, 2, 3, 0, 0)]
    schedule = stepped(rows, Collective.BROADCAST, 4, root=0)
    last = lower_for_run(schedule, 5, in_place=True)[3]
    assert sorted(last.buffer.tolist()) == [RankBuffer.OUTPUT, RankBuffer.SCRATCH]
    check_programs(lower_for_run(schedule, 5, in_place=True))
    for seed in (None, 1, 2):
        run_and_check(schedule, 5, in_place=False, piece=None, seed=seed)


def test_an_own_block_that_comes_back_is_not_copied_as_well() -> None:
    rows = [(0, 0, 1, 0, 0), (0, 1, 0, 1, 0), (1, 1, 0, 0, 0)]
    schedule = stepped(rows, Collective.ALL_GATHER, 2)
    programs = lower_for_run(schedule, 8, in_place=False)
    assert RowKind.COPY not in programs[0].kind
    check_programs(programs)


def test_dependencies_make_later_steps() -> None:
    """Without steps a transfer comes after those that it names."""
    case = AlgorithmCase(topology=star(3), collective=Collective.BROADCAST, root=0)
    moves = Moves(case, whole(case))
    moves.add(0, 0, 1, 0)
    moves.add(1, 0, 2, 0)
    free = replace(moves.schedule(), step=np.full(2, -1, dtype=np.int32))
    assert transfer_steps(free).step.tolist() == [0, 0]
    tied = replace(free, after_start=np.array([0, 0, 1]), after=np.array([0], dtype=np.int32))
    assert transfer_steps(tied).step.tolist() == [0, 1]


def test_bad_input_is_refused() -> None:
    good = stepped([(0, 0, 1, 0, 0), (1, 1, 2, 0, 0)], Collective.BROADCAST, 3, root=0)
    for broken, words in (
        (replace(good, step=np.array([1, 0], dtype=np.int32)), "do not decrease"),
        (replace(good, step=np.array([0, -1], dtype=np.int32)), "of all transfers or of none"),
        (replace(good, step=np.array([-1, 0], dtype=np.int32)), "of all transfers or of none"),
        (replace(good, dst=np.array([0, 2], dtype=np.int32)), "to itself"),
        (replace(good, src=np.array([2, 1], dtype=np.int32)), "does not hold it by then"),
        (replace(good, op=np.array([0, 1], dtype=np.int8)), "adds to"),
        (replace(good, chunk=np.array([0, 9], dtype=np.int32)), "well-formed"),
        (
            replace(
                good,
                step=np.zeros(2, dtype=np.int32),
                after_start=np.array([0, 0, 1]),
                after=np.array([0], dtype=np.int32),
            ),
            "of the same",
        ),
    ):
        with pytest.raises(InputError, match=words):
            lower_for_run(broken, 4, in_place=True)
    for arguments, words in (
        ({"count": -1}, "0 elements or more"),
        ({"count": 4, "piece_elements": 0}, "1 element or more"),
        ({"count": 2**40, "piece_elements": 1}, "fewer than 2\\^31 steps"),
    ):
        with pytest.raises(InputError, match=words):
            lower_for_run(good, in_place=True, **arguments)
    with pytest.raises(InputError, match=r"0 \.\. 2, found 3"):
        lower_rank(good, 3, 4, in_place=True)


def test_nothing_is_kept_longer_than_its_schedule() -> None:
    body = plan(Problem(topology=star(3), collective=Collective.ALL_GATHER), ring=False).plan.body
    lower_rank(body, 0, 9, in_place=True)
    schedule = weakref.ref(schedule_of(body))
    assert schedule_of(body) is schedule()
    del body
    gc.collect()
    assert schedule() is None


def test_a_thousand_ranks() -> None:
    """A million transfers: the programs of two neighbours agree with each other; no table grows as ranks squared."""
    ranks = 1024
    entry = find("ring", Collective.REDUCE_SCATTER)
    problem = Problem(topology=star(ranks), collective=Collective.REDUCE_SCATTER)
    body = make(entry, case_of(entry, problem))
    begin = time.process_time()
    first = lower_rank(body, 0, ranks * 16, in_place=False, piece_elements=8)
    second = lower_rank(body, 1, ranks * 16, in_place=False, piece_elements=8)
    assert time.process_time() - begin < 30  # a second or so; not minutes
    assert pair(first, RowKind.SEND, 1) == pair(second, RowKind.RECV, 0) + pair(
        second, RowKind.RECV_REDUCE, 0
    )
    assert first.scratch_elements <= 5 * 8


def pair(program: RankProgram, kind: RowKind, peer: int) -> list[tuple[int, int, int]]:
    rows = (program.kind == kind) & (program.peer == peer)
    return list(
        zip(
            program.tag[rows].tolist(),
            program.step[rows].tolist(),
            program.length[rows].tolist(),
            strict=True,
        )
    )
