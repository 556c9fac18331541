"""The order in which plans add, against the bits that ranks compute in random orders of messages."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.catalogue import algorithms
from coppice.planners.choice import from_catalogue
from coppice.planners.ordered_trees import NAME, plan_ordered
from coppice.program.dialects.rank.lower import lower_for_run
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.interpreter import interpret
from coppice.run.engines.shared_memory import ShmEngine, shm_engines
from coppice.schedule.forest import Forest
from coppice.schedule.loads import body_loads
from coppice.schedule.schedule import Op, Schedule
from coppice.schedule.verification.sums import LINEAR, PAIRS, Addends, SumOrder, named_order, sum_order
from coppice.schedule.verification.transfers import verify_schedule
from coppice.schedule.verification.verify import verify
from coppice.topology import preset
from coppice.topology.model import Topology
from coppice.topology.operations import set_link_rate
from coppice.verbs.planning import plan, plan_set
from reference.ordered_bound import most_algbw
from support.rank_groups import by_engines

ADDING = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE)


def added(order: Addends, data: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The sum in this order."""
    if isinstance(order, int):
        return data[order]
    return np.asarray(added(order[0], data) + added(order[1], data))


def parsed(order: str) -> Addends:
    """The order of a text such as ((0+1)+2)."""
    found: Addends = eval(order.replace("+", ","))
    return found


def numbers(ranks: int, count: int, seed: int) -> list[NDArray[np.float32]]:
    """Numbers of so many magnitudes that two orders hardly ever come to the same bits."""
    draw = np.random.default_rng(seed)
    data = draw.standard_normal((ranks, count)) * 10.0 ** draw.integers(-3, 4, (ranks, count))
    return list(data.astype(np.float32))


def results(
    body: Schedule | Forest, data: list[NDArray[np.float32]], *, piece: int | None, seed: int | None
) -> list[NDArray[np.float32]]:
    """What the ranks have in the end."""
    programs = lower_for_run(body, len(data[0]), in_place=False, piece_elements=piece)
    outputs = [np.zeros(program.output_elements, np.float32) for program in programs]
    interpret(programs, data, outputs, seed=seed)
    return outputs


def wanted_parts(collective: Collective, ranks: int, count: int) -> list[slice | None]:
    """Which elements of the sum each rank gets."""
    if collective is Collective.ALL_REDUCE:
        return [slice(0, count)] * ranks
    if collective is Collective.REDUCE:
        return [slice(0, count), *[None] * (ranks - 1)]
    cuts = [count * rank // ranks for rank in range(ranks + 1)]
    return [slice(begin, end) for begin, end in pairwise(cuts)]


def problem_of(collective: Collective, ranks: int) -> Problem:
    return Problem(
        topology=preset("star", gpus=ranks),
        collective=collective,
        root=0 if collective is Collective.REDUCE else None,
    )


@pytest.mark.parametrize("ranks", [2, 5, 8, 12])
@pytest.mark.parametrize("collective", ADDING)
@pytest.mark.spread(2)
def test_ranks_compute_the_bits_of_the_one_order(collective: Collective, ranks: int) -> None:
    """Whatever the size, the pieces and the order in which messages arrive; ranks that agree do so in bits."""
    problem, kinds = problem_of(collective, ranks), set()
    for name in (name for name, performed in algorithms() if performed is collective):
        try:
            body = from_catalogue(problem, name).body
        except InputError:
            continue
        found = sum_order(body)
        if found is None:
            continue
        kinds.add((found.fixed, found.ranks_agree))
        for count, piece in ((4 * ranks, None), (97, 5)):
            if collective is Collective.REDUCE_SCATTER and count % ranks:
                count = 8 * ranks
            data = numbers(ranks, count, seed=count)
            outputs = results(body, data, piece=piece, seed=ranks)
            if found.fixed:
                right = added(parsed(found.order), data)
                for part, output in zip(wanted_parts(collective, ranks, count), outputs, strict=True):
                    if part is not None:
                        np.testing.assert_array_equal(output, right[part], err_msg=name)
            if collective is Collective.ALL_REDUCE:
                alike = all(np.array_equal(outputs[0], output) for output in outputs)
                assert alike is found.ranks_agree, name
    assert (True, True) in kinds
    if collective is Collective.ALL_REDUCE and ranks > 2:
        assert kinds == {(True, True), (False, True), (False, False)}


def test_a_change_of_the_order_is_caught() -> None:
    """Of the only chunk of a linear sum two rows are swapped: another order, which ranks compute, too."""
    body = from_catalogue(problem_of(Collective.REDUCE, 4), "linear").body
    assert isinstance(body, Schedule)
    before = sum_order(body)
    assert before is not None
    assert before.fixed
    order = np.arange(body.num_transfers)
    first, second = np.flatnonzero(body.op == Op.REDUCE)[:2]
    order[[first, second]] = second, first
    swapped = replace(body, src=body.src[order], dst=body.dst[order], chunk=body.chunk[order])
    after = sum_order(swapped)
    assert after is not None
    assert after.fixed
    assert after.order != before.order
    data = numbers(4, 64, seed=1)
    one, other = (results(each, data, piece=None, seed=3)[0] for each in (body, swapped))
    assert not np.array_equal(one, other)
    np.testing.assert_array_equal(other, added(parsed(after.order), data))


def test_one_chunk_of_many_in_another_order_is_caught() -> None:
    body = from_catalogue(problem_of(Collective.ALL_REDUCE, 8), "rabenseifner").body
    assert isinstance(body, Schedule)
    assert sum_order(body) == SumOrder(
        fixed=True, ranks_agree=True, name=PAIRS, order="(((0+1)+(2+3))+((4+5)+(6+7)))"
    )
    renamed = np.array([0, 2, 1, 3, 4, 5, 6, 7], np.int32)  # 1 and 2 take each other's place in one chunk
    last = body.chunk == body.num_chunks - 1
    changed = replace(
        body, src=np.where(last, renamed[body.src], body.src), dst=np.where(last, renamed[body.dst], body.dst)
    )
    assert verify_schedule(replace(changed, ordered=False)).ok
    assert sum_order(changed) == SumOrder(fixed=False, ranks_agree=True)


MESH = set_link_rate(preset("star", gpus=6), "gpu0", "switch", 50)


@pytest.mark.parametrize(
    "cluster",
    [
        *(preset("dgx-a100", boxes=2), preset("ring", gpus=16), preset("star", gpus=16)),
        *(preset("star", gpus=6), preset("ring", gpus=6), MESH, preset("mi300x")),
    ],
    ids=lambda each: each.name,
)
@pytest.mark.spread(2)
def test_deterministic_plans_have_the_same_bits_everywhere(cluster: Topology) -> None:
    """Three sizes, three placements each of 16 and of 6 ranks (and a mesh of 8), two engines: the bits of one order."""
    ranks = cluster.num_ranks
    made = plan(cluster, "all_reduce", deterministic=True, relay_gpus=True)
    report = verify(made.plan)
    assert report.sums is not None
    assert report.sums.name == PAIRS
    for count in (3, 250, 4096):
        data = numbers(ranks, count, seed=count)
        right = added(named_order(PAIRS, ranks), data)
        programs = lower_for_run(made.plan.body, count, in_place=False, piece_elements=100)
        found = [np.zeros(count, np.float32) for _ in range(ranks)]

        def work(engine: ShmEngine, programs: Any = programs, data: Any = data, found: Any = found) -> None:
            rank = engine.rank
            engine.run(
                programs[rank],
                data[rank],
                found[rank],
                dtype=DataType.FLOAT32,
                op=ReduceOp.SUM,
                timeout_s=60,
            )

        assert by_engines(shm_engines(ranks), work) == [None] * ranks
        for output in (*found, *results(made.plan.body, data, piece=None, seed=count)):
            np.testing.assert_array_equal(output, right)


@pytest.mark.parametrize("collective", ADDING)
@pytest.mark.parametrize("ranks", [2, 3, 7, 12])
def test_trees_along_the_order_send_no_more_than_any_reduction(collective: Collective, ranks: int) -> None:
    """Each rank sends each block that it does not sum once; the bits are those of the order."""
    problem = problem_of(collective, ranks)
    body = plan_ordered(problem).body
    assert isinstance(body, Schedule)
    assert verify_schedule(body).ok
    found = sum_order(body)
    assert found is not None
    assert found.name == PAIRS
    blocks = 1 if collective is Collective.REDUCE else ranks
    sent = np.bincount(body.src[body.op == Op.REDUCE], minlength=ranks) * blocks / body.num_chunks
    assert sent.sum() == blocks * (ranks - 1)
    if collective is not Collective.REDUCE:
        assert (sent == ranks - 1).all()
    count = 8 * ranks
    data = numbers(ranks, count, seed=ranks)
    right = added(named_order(PAIRS, ranks), data)
    outputs = results(body, data, piece=3, seed=1)
    for part, output in zip(wanted_parts(collective, ranks, count), outputs, strict=True):
        if part is not None:
            np.testing.assert_array_equal(output, right[part])


@pytest.mark.parametrize(("name", "boxes", "loss"), [("dgx-a100", 3, 0.12), ("dgx-h100", 5, 0.06)])
@pytest.mark.spread(2)
def test_boxes_that_are_no_power_of_two_lose_little(name: str, boxes: int, loss: float) -> None:
    """Before there were trees along the order, three boxes lost 92%, and five had no plan."""
    made = plan(preset(name, boxes=boxes), "all_reduce", deterministic=True, ring=False)
    assert made.plan.planner == NAME
    assert made.loss < loss
    with pytest.raises(InputError, match="equal blocks"):
        plan_ordered(Problem(topology=preset("star"), collective=Collective.ALL_GATHER))


@pytest.mark.parametrize(
    ("name", "boxes", "relay_gpus", "share"),
    [
        (
            "mi300x",
            1,
            False,
            1.0,
        ),  # the pairs that begin have one link of seven: nothing adds so and is faster
        ("mi300x", 1, True, 0.9),
        ("mi250", 1, True, 0.96),
        ("mi300x", 3, False, 1.0),
        ("mi250", 3, False, 0.92),
        pytest.param("mi250", 3, True, 0.87, marks=pytest.mark.slow),
        ("dgx-a100", 3, True, 0.9),
    ],
)
@pytest.mark.spread(2)
def test_no_plan_in_the_one_order_is_much_faster(
    name: str, boxes: int, relay_gpus: bool, share: float
) -> None:
    """Whatever stands for the parts of a sum: a linear program, which knows no planner, bounds them all."""
    cluster = preset(name, boxes=boxes) if boxes > 1 else preset(name)
    problem = Problem(topology=cluster, collective=Collective.ALL_REDUCE)
    body = plan_ordered(problem, relay_gpus=relay_gpus).body
    assert isinstance(body, Schedule)
    assert verify_schedule(body, relay_gpus=relay_gpus).ok
    found = sum_order(body)
    assert found is not None
    assert found.name == PAIRS
    made = 1 / float(body_loads(body, problem).inv_rate) * problem.shards
    most = most_algbw(cluster, named_order(PAIRS, cluster.num_ranks), relay_gpus=relay_gpus)
    assert share * most <= made <= most * (1 + 1e-6)


@pytest.mark.parametrize(
    ("gpus", "sizes"), [(4, "1K,16M"), pytest.param(8, "1K:16M:16", marks=pytest.mark.slow)]
)
def test_what_the_one_order_costs_is_told(gpus: int, sizes: str) -> None:
    """At each size the fastest of all plans stands beside it; in a set all plans add in the same order."""
    with pytest.raises(InputError, match=r"adds in different orders.*leave out what chooses it"):
        plan("star", "all_reduce", deterministic=True, algorithm="ring")
    with pytest.raises(InputError, match="prefer=low"):
        plan("star", "all_reduce", deterministic=True, prefer="low")
    made = plan_set(preset("star", gpus=gpus), "all_reduce", sizes=sizes, deterministic=True)
    orders = {verify(each.plan).sums for each in made.ranges}
    assert len(orders) == 1
    assert len(made.ranges) > 1
    gathered = plan("star", "all_gather", deterministic=True)  # adds nothing
    assert gathered.loss == 0
    assert verify(gathered.plan).sums is None


def test_orders_have_names() -> None:
    assert named_order(LINEAR, 1) == named_order(PAIRS, 1) == 0
    assert named_order(PAIRS, 7) == ((((0, 1), (2, 3)), ((4, 5), 6)))
    for ranks in range(1, 20):
        for name in (PAIRS, LINEAR):
            order = named_order(name, ranks)
            assert leaves(order) == list(range(ranks))


def leaves(order: Addends) -> list[int]:
    return [order] if isinstance(order, int) else leaves(order[0]) + leaves(order[1])
