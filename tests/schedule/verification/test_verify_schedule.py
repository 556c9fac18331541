"""The schedule verifier: symbolic execution, steps, order, exact loads."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.choice import from_catalogue
from coppice.schedule.loads import schedule_loads
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.report import Report
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset
from schedule.builders import make_schedule, ring_topology, star_topology

Row = tuple[int, int, int, int, tuple[int, ...] | None, int]
COPY, ADD = 0, 1


def complete(n: int) -> Topology:
    links = [Link(src=f"g{i}", dst=f"g{j}", gb_per_s=Fraction(1)) for i in range(n) for j in range(i)]
    return Topology.of(f"complete{n}", [Node(id=f"g{i}") for i in range(n)], links)


def ring_steps(n: int, op: int, first_step: int, ahead: int) -> list[Row]:
    """n - 1 steps round a ring; in step s rank r passes on block r - s + ahead."""
    return [
        ((r - s + ahead) % n, r, (r + 1) % n, op, None, first_step + s)
        for s in range(n - 1)
        for r in range(n)
    ]


def ring_all_gather(n: int) -> Schedule:
    return make_schedule(
        ring_topology(n), Collective.ALL_GATHER, ring_steps(n, COPY, 0, 0), chunk_slot=range(n)
    )


def ring_reduce_scatter(n: int) -> Schedule:
    return make_schedule(
        ring_topology(n), Collective.REDUCE_SCATTER, ring_steps(n, ADD, 0, -1), chunk_slot=range(n)
    )


def ring_all_reduce(n: int) -> Schedule:
    rows = ring_steps(n, ADD, 0, -1) + ring_steps(n, COPY, n - 1, 0)
    return make_schedule(ring_topology(n), Collective.ALL_REDUCE, rows, chunk_slot=range(n))


def failing(report: Report, text: str) -> bool:
    return not report.ok and any(text in failure for failure in report.failures)


def test_ring_algorithms_have_their_known_times() -> None:
    assert verify_schedule(ring_all_gather(5)).inv_rate == 4
    assert verify_schedule(ring_reduce_scatter(5)).inv_rate == 4
    report = verify_schedule(ring_all_reduce(5))
    assert report.ok, report.failures
    assert report.inv_rate == Fraction(8, 5)
    assert report.redundant == 0
    assert report.max_link_load == 1


def recursive_doubling(n: int, *, stepped: bool) -> Schedule:
    """All-reduce in which partners exchange what they have: it needs the same-step rule."""
    rows: list[Row] = []
    for step in range(n.bit_length() - 1):
        rows += [(c, r, r ^ (1 << step), ADD, None, step) for r in range(n) for c in range(n)]
    schedule = make_schedule(complete(n), Collective.ALL_REDUCE, rows, chunk_slot=range(n))
    return schedule if stepped else replace(schedule, step=np.full_like(schedule.step, -1))


def test_rows_of_one_step_read_what_was_there_before() -> None:
    report = verify_schedule(recursive_doubling(8, stepped=True))
    assert report.ok, report.failures
    assert report.inv_rate == 1
    assert failing(verify_schedule(recursive_doubling(8, stepped=False)), "a second time")


def test_double_adds_are_found() -> None:
    schedule = make_schedule(
        complete(3),
        Collective.REDUCE,
        [(0, 1, 2, ADD, None, -1), (0, 2, 0, ADD, None, -1), (0, 1, 0, ADD, None, -1)],
        chunk_slot=[0],
        root=0,
    )
    assert failing(
        verify_schedule(schedule), "adds the contribution of rank 1 to chunk 0 at rank 0 a second time"
    )


def test_missing_contributions_are_found() -> None:
    rows: list[Row] = [(0, 1, 0, ADD, None, -1)]
    schedule = make_schedule(complete(3), Collective.REDUCE, rows, chunk_slot=[0], root=0)
    assert failing(verify_schedule(schedule), "without the contribution of rank 2 (1 missing)")


def test_an_overwritten_sum_is_missed() -> None:
    rows: list[Row] = [(0, 1, 0, ADD, None, -1), (0, 2, 0, COPY, None, -1)]
    schedule = make_schedule(complete(3), Collective.REDUCE, rows, chunk_slot=[0], root=0)
    assert failing(verify_schedule(schedule), "without the contribution of rank 0 (2 missing)")


def test_sending_before_receiving_is_found() -> None:
    rows: list[Row] = [(0, 1, 2, COPY, None, -1), (0, 0, 1, COPY, None, -1)]
    schedule = make_schedule(complete(3), Collective.BROADCAST, rows, chunk_slot=[0], root=0)
    report = verify_schedule(schedule)
    assert failing(report, "which rank 1 does not have by then")
    assert failing(report, "rank 2 never receives chunk 0")
    turned = make_schedule(complete(3), Collective.BROADCAST, rows[::-1], chunk_slot=[0], root=0)
    assert verify_schedule(turned).ok
    assert failing(
        verify_schedule(replace(turned, step=np.zeros(2, np.int32))), "which rank 1 does not have by then"
    )


def test_redundant_bytes_are_counted_but_allowed() -> None:
    rows: list[Row] = [(0, 0, 1, COPY, None, -1), (0, 1, 2, COPY, None, -1), (0, 0, 2, COPY, None, -1)]
    report = verify_schedule(make_schedule(complete(3), Collective.BROADCAST, rows, chunk_slot=[0], root=0))
    assert report.ok, report.failures
    assert report.redundant == Fraction(1, 3)


def test_writes_in_no_certain_order_are_found() -> None:
    rows: list[Row] = [(0, 1, 0, ADD, None, 0), (0, 2, 0, COPY, None, 0)]
    assert failing(
        verify_schedule(make_schedule(complete(3), Collective.REDUCE, rows, chunk_slot=[0], root=0)),
        "in no certain order",
    )
    rows = [(0, 2, 0, COPY, None, 0), (0, 1, 0, ADD, None, 0)]
    assert failing(
        verify_schedule(make_schedule(complete(3), Collective.REDUCE, rows, chunk_slot=[0], root=0)),
        "in no certain order",
    )


def test_adding_to_nothing_and_to_itself_are_found() -> None:
    rows: list[Row] = [(0, 0, 1, ADD, None, -1)]
    assert failing(
        verify_schedule(make_schedule(complete(2), Collective.BROADCAST, rows, chunk_slot=[0], root=0)),
        "to nothing at rank 1",
    )
    rows = [(0, 0, 1, COPY, None, -1), (0, 1, 1, COPY, (1, 0, 1), -1)]
    assert failing(
        verify_schedule(make_schedule(complete(2), Collective.BROADCAST, rows, chunk_slot=[0], root=0)),
        "to itself",
    )


def pairwise(n: int, *, parts: int = 1) -> Schedule:
    """All-to-all through a star, every block cut in ``parts`` of growing size."""
    blocks = [(i, j) for i in range(n) for j in range(n) if i != j]
    rows: list[Row] = []
    slots: list[int] = []
    for i, j in blocks:
        for _ in range(parts):
            rows.append((len(slots), i, j, COPY, (i, n, j), -1))
            slots.append(i * n + j)
    share = [part + 1 for _ in blocks for part in range(parts)]
    return make_schedule(star_topology(n), Collective.ALL_TO_ALL, rows, chunk_slot=slots, chunk_share=share)


def test_all_to_all_through_a_star() -> None:
    report = verify_schedule(pairwise(5, parts=3))
    assert report.ok, report.failures
    assert report.inv_rate == 4


def test_all_to_all_of_64_ranks() -> None:
    report = verify_schedule(pairwise(64, parts=3))
    assert report.ok, report.failures
    assert report.inv_rate == 63


def test_all_to_all_with_demands() -> None:
    demands = ((9, 2, 1), (1, 0, 0), (4, 4, 7))
    rows: list[Row] = [
        (c, i, j, COPY, (i, 3, j), -1) for c, (i, j) in enumerate([(0, 1), (0, 2), (1, 0), (2, 0), (2, 1)])
    ]
    schedule = make_schedule(
        star_topology(3),
        Collective.ALL_TO_ALL,
        rows,
        chunk_slot=[1, 2, 3, 6, 7],
        slot_weight=[18, 4, 2, 2, 0, 0, 8, 8, 14],
    )
    report = verify_schedule(schedule, demands=demands)
    assert report.ok, report.failures
    assert report.inv_rate == 8
    assert failing(verify_schedule(schedule), "slot 2 has weight 2")
    assert failing(verify_schedule(schedule, demands=demands[:2]), "3 x 3")
    # What stays where it is counts in M.
    other = replace(schedule, slot_weight=np.array([0, 4, 2, 2, 0, 0, 8, 8, 14]))
    assert failing(
        verify_schedule(other, demands=demands), "slot 0 has weight 0 of 38, expected the share 9/28"
    )


@pytest.mark.parametrize("weightless", [0, 3])
def test_an_empty_slot_is_left_alone_or_complete(weightless: int) -> None:
    """A slot of weight 0 with one transfer less leaves a rank without the sum, whoever looks at weights or not."""
    problem = Problem(topology=preset("star", gpus=4), collective=Collective.ALL_REDUCE)
    whole = from_catalogue(problem, "blueconnect").body
    assert isinstance(whole, Schedule)
    weight = whole.slot_weight.copy()
    weight[weightless] = 0
    empty = replace(whole, slot_weight=weight)
    assert verify_schedule(empty).ok
    rows = np.flatnonzero(empty.chunk_slot[empty.chunk] == weightless)
    refused = 0
    for row in rows.tolist():
        lacking = without(empty, [row])
        refused += not verify_schedule(lacking).ok
    assert refused == len(rows)
    assert verify_schedule(without(empty, rows.tolist())).ok


def without(schedule: Schedule, rows: list[int]) -> Schedule:
    """The schedule without some transfers; nothing waits for them by name."""
    assert not len(schedule.after)
    kept = np.delete(np.arange(schedule.num_transfers), rows)
    columns = {name: getattr(schedule, name)[kept] for name in ("src", "dst", "chunk", "op", "path", "step")}
    return replace(schedule, **columns, after_start=np.zeros(len(kept) + 1, dtype=np.int64))


def test_sizes_count_exactly() -> None:
    rows: list[Row] = [
        (0, 0, 1, COPY, (0, 2, 1), -1),
        (1, 0, 1, COPY, (0, 2, 1), -1),
        (2, 1, 0, COPY, (1, 2, 0), -1),
    ]
    schedule = make_schedule(
        star_topology(2),
        Collective.ALL_GATHER,
        rows,
        chunk_slot=[0, 0, 1],
        chunk_share=[2**61, 2**61 + 1, 3],
        slot_weight=[5, 7],
    )
    report = verify_schedule(schedule, weights=(5, 7), claimed=Fraction(7))
    assert report.ok, report.failures
    assert report.inv_rate == 7
    assert failing(
        verify_schedule(schedule, weights=(5, 7), claimed=Fraction(69, 10)), "more than the claimed"
    )
    assert failing(verify_schedule(schedule), "expected the share 1/2")
    assert failing(verify_schedule(schedule, weights=(5, 7, 1)), "one weight for each")


def test_gather_brings_every_block_but_the_root_s_own() -> None:
    rows: list[Row] = [(1, 2, 0, COPY, None, 0), (1, 0, 1, COPY, None, 1), (0, 0, 1, COPY, None, 1)]
    schedule = make_schedule(complete(3), Collective.GATHER, rows, chunk_slot=[0, 2], root=1)
    report = verify_schedule(schedule)
    assert report.ok, report.failures
    assert report.inv_rate == 2
    lost = make_schedule(complete(3), Collective.GATHER, rows[:2], chunk_slot=[0, 2], root=1)
    assert failing(verify_schedule(lost), "rank 1 never receives chunk 0 of slot 0")
    unequal = replace(schedule, slot_weight=np.array([1, 1, 2]))
    assert failing(verify_schedule(unequal), "slot 2 has weight 2")
    assert verify_schedule(replace(schedule, slot_weight=np.array([1, 7, 1]))).inv_rate == 2


def test_scatter_starts_at_the_root() -> None:
    rows: list[Row] = [(1, 1, 0, COPY, None, 0), (0, 1, 0, COPY, None, 0), (1, 0, 2, COPY, None, 1)]
    schedule = make_schedule(complete(3), Collective.SCATTER, rows, chunk_slot=[0, 2], root=1)
    report = verify_schedule(schedule)
    assert report.ok, report.failures
    assert report.inv_rate == 2
    backwards = replace(schedule, src=schedule.dst, dst=schedule.src)
    assert failing(verify_schedule(backwards), "which rank 0 does not have by then")
    bare = make_schedule(complete(3), Collective.SCATTER, rows[1:2], chunk_slot=[0], root=1)
    assert failing(verify_schedule(bare), "slot 2 has weight 1 but no chunks")


def dissemination(n: int, steps: int) -> Schedule:
    """Barrier in which every rank tells the one 2^s ahead whom it has heard of."""
    rows: list[Row] = [(0, r, (r + 2**s) % n, ADD, None, s) for s in range(steps) for r in range(n)]
    return make_schedule(complete(n), Collective.BARRIER, rows, chunk_slot=[0], slot_weight=[0])


def test_news_of_a_barrier_may_overlap() -> None:
    report = verify_schedule(dissemination(5, 3))
    assert report.ok, report.failures
    assert report.inv_rate == 0
    assert failing(verify_schedule(dissemination(5, 2)), "without the contribution of rank 1 (1 missing)")
    heavy = replace(dissemination(5, 3), slot_weight=np.array([1]))
    assert failing(verify_schedule(heavy), "expected 0: a barrier moves no data")
    empty = make_schedule(complete(2), Collective.BARRIER, [], chunk_slot=[], slot_weight=[0])
    assert failing(verify_schedule(empty), "no chunks")


def test_slots_without_chunks_are_found() -> None:
    schedule = ring_all_gather(3)
    empty = make_schedule(schedule.topology, Collective.ALL_GATHER, [], chunk_slot=[])
    assert failing(verify_schedule(empty), "slot 0 has weight 1 but no chunks")
    weightless = replace(empty, collective=Collective.ALL_REDUCE, slot_weight=np.zeros(3, np.int64))
    assert failing(verify_schedule(weightless), "every slot has weight 0")


def test_one_rank_has_nothing_to_do() -> None:
    alone = Topology.of("one", [Node(id="g0")], [])
    for collective in Collective:
        root = 0 if collective.rooted else -1
        weight = [0] if collective is Collective.BARRIER else None
        report = verify_schedule(
            make_schedule(alone, collective, [], chunk_slot=[], root=root, slot_weight=weight)
        )
        assert report.ok, report.failures
        assert report.inv_rate == 0


def test_order_is_checked() -> None:
    rows: list[Row] = [(0, 0, 1, COPY, None, -1), (0, 1, 2, COPY, None, -1)]
    good = make_schedule(complete(3), Collective.BROADCAST, rows, chunk_slot=[0], root=0, after=[(), (0,)])
    assert verify_schedule(good).ok
    circular = make_schedule(
        complete(3), Collective.BROADCAST, rows, chunk_slot=[0], root=0, after=[(1,), ()]
    )
    assert failing(verify_schedule(circular), "transfer 0 waits for transfer 1")
    assert failing(verify_schedule(replace(good, step=np.array([3, 2]))), "steps must not decrease")
    assert failing(verify_schedule(replace(good, step=np.array([-1, 2]))), "give steps to all")


def test_routes_are_checked() -> None:
    good = ring_all_gather(4)
    assert failing(
        verify_schedule(replace(good, path=np.zeros_like(good.path))), "but its path 0 runs g0 -> g1"
    )
    jump = make_schedule(
        ring_topology(4), Collective.BROADCAST, [(0, 0, 2, COPY, None, -1)], chunk_slot=[0], root=0
    )
    assert failing(verify_schedule(jump), "g0 -> g2")


def test_transfers_without_a_path_take_the_default_route() -> None:
    named = pairwise(4, parts=2)
    open_ = replace(named, path=np.where(np.arange(named.num_transfers) % 3, named.path, -1))
    report = verify_schedule(open_)
    assert report.ok, report.failures
    assert report.inv_rate == verify_schedule(named).inv_rate == 3
    assert report.checked["default_routes"] == 8
    assert schedule_loads(open_).load == schedule_loads(named).load
    none = replace(named, path=np.full_like(named.path, -1), path_start=np.zeros(1, np.int64))
    assert verify_schedule(replace(none, path_nodes=np.zeros(0, np.int32))).inv_rate == 3


def test_default_routes_spread_chunks_over_equal_paths() -> None:
    nodes = [Node(id="a"), Node(id="b"), *(Node(id=f"s{i}", kind=NodeKind.SWITCH) for i in range(2))]
    links = [Link(src=g, dst=f"s{i}", gb_per_s=Fraction(1)) for g in "ab" for i in range(2)]
    rows: list[Row] = [(c, c // 8, 1 - c // 8, COPY, (c // 8, 2, 1 - c // 8), -1) for c in range(16)]
    schedule = make_schedule(
        Topology.of("two ways", nodes, links), Collective.ALL_GATHER, rows, chunk_slot=[0] * 8 + [1] * 8
    )
    schedule = replace(schedule, path=np.full(16, -1, np.int32))
    report = verify_schedule(schedule)
    assert report.ok, report.failures
    assert report.inv_rate is not None
    assert report.inv_rate < 1


def test_default_routes_do_not_pass_ranks() -> None:
    rows: list[Row] = [(0, 0, 2, COPY, (0, 1, 2), -1)]
    jump = make_schedule(ring_topology(4), Collective.BROADCAST, rows, chunk_slot=[0], root=0)
    report = verify_schedule(replace(jump, path=np.array([-1])))
    assert failing(report, "the default route of a transfer does not exist")
    assert report.inv_rate is None


@pytest.mark.parametrize("make", [ring_all_gather, ring_reduce_scatter, ring_all_reduce])
@pytest.mark.parametrize("damage", ["drop", "double", "reaim", "retime", "rechunk", "flip"])
def test_every_damage_is_found(make: object, damage: str) -> None:
    schedule = make(6)  # type: ignore[operator]
    for row in range(0, schedule.num_transfers, 7):
        keep = np.arange(schedule.num_transfers)
        if damage == "drop":
            keep = np.delete(keep, row)
        if damage == "double":
            keep = np.insert(keep, row, row)
        columns = {
            name: getattr(schedule, name)[keep] for name in ("chunk", "src", "dst", "op", "path", "step")
        }
        if damage == "reaim":
            columns["dst"][row] = (columns["dst"][row] + 1) % 6
        if damage == "retime":
            columns["step"][row] += 1
        if damage == "rechunk":
            columns["chunk"][row] = (columns["chunk"][row] + 1) % 6
        if damage == "flip":
            columns["op"][row] = 1 - columns["op"][row]
        broken = replace(schedule, **columns, after_start=np.zeros(len(keep) + 1, np.int64))
        report = verify_schedule(broken)
        if damage == "double" and schedule.op[row] == COPY:
            assert report.redundant > 0
        else:
            assert not report.ok, (row, damage)


MALFORMED: list[tuple[str, object]] = [
    ("chunk_slot", np.array([0, 1, 2, 1])),
    ("chunk_share", np.array([1, 1, 0, 1])),
    ("slot_weight", np.array([1, 1, 1])),
    ("chunk", np.full(12, 4)),
    ("op", np.full(12, 2)),
    ("src", np.full(12, 4)),
    ("dst", np.full(12, -1)),
    ("path", np.full(12, 99)),
    ("after", np.array([12])),
    ("after_start", np.zeros(12, np.int64)),
    ("root", 2),
]


@pytest.mark.parametrize(("name", "column"), MALFORMED)
def test_malformed_columns_are_named(name: str, column: object) -> None:
    report = verify_schedule(replace(ring_all_gather(4), **{name: column}))
    assert failing(report, name)
