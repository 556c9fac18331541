"""Two half batches, and degrees of blocks: published figures, closed forms, and plans against all plans there are."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest

from coppice.errors import InputError
from coppice.iteration.layout import Layout, Recompute
from coppice.iteration.machine import cluster_of
from coppice.iteration.models import model_named
from coppice.iteration.policies.tensor.degrees import DegreeProblem, TransformerBytes, degree_problem
from coppice.iteration.policies.tensor.half_batches import HalfBatches, HalvedBlock, RegroupedHalves
from coppice.iteration.tasks import lower_bound_seconds, run_tasks
from coppice.topology.presets import preset


@pytest.mark.parametrize(("compute", "sums", "expected"), [(1, 1, 97), (1, 0.5, 96.5), (1, 2, 193)])
def test_published_example(compute: float, sums: float, expected: float) -> None:
    halves = HalfBatches(blocks=[HalvedBlock(forward=compute, forward_sum=sums)] * 48)
    assert run_tasks(halves.graph(backward=False)).seconds == halves.forward_seconds == expected
    assert HalfBatches(blocks=[HalvedBlock(forward=1, forward_sum=1)] * 48).serial_seconds == 192


def test_closed_forms_of_blocks_alike() -> None:
    values = (0, 0.5, 1, 2.5)
    for count, a, b, r, g in itertools.product((1, 2, 3, 7), (0.5, 1, 3), values, values, (1, 2)):
        block = HalvedBlock(forward=a, forward_sum=b, backward_sum=b, recompute=r, gradients=g)
        halves = HalfBatches(blocks=[block] * count)
        forward = run_tasks(halves.graph(backward=False)).seconds
        backward = run_tasks(halves.graph(forward=False)).seconds
        assert forward == max(2 * count * a + b, a + 2 * count * b)
        assert backward == 2 * r + g + count * max(g, b) + (count - 1) * max(2 * r + g, b) + b


def drawn_blocks(draw: random.Random) -> list[HalvedBlock]:
    free = draw.random() < 0.2
    return [
        HalvedBlock(
            forward=draw.randint(0, 8) / 4,
            gradients=draw.randint(0, 8) / 4,
            recompute=draw.randint(0, 8) / 4,
            forward_sum=0 if free else draw.randint(0, 8) / 4,
            backward_sum=0 if free else draw.randint(0, 8) / 4,
        )
        for _ in range(draw.randint(1, 6))
    ]


def check_halves(count: int) -> None:
    draw = random.Random(18)
    for _ in range(count):
        blocks = drawn_blocks(draw)
        silent, loud = HalfBatches(blocks=blocks), HalfBatches(blocks=blocks, silent=False)
        graphs = silent.graph(), loud.graph()
        quick, slow = (run_tasks(graph).seconds for graph in graphs)
        assert quick == silent.forward_seconds + silent.backward_seconds
        assert slow == loud.forward_seconds + loud.backward_seconds
        assert quick <= slow <= loud.serial_seconds
        assert quick <= silent.serial_seconds
        assert quick >= lower_bound_seconds(graphs[0]) - 1e-9
        if not any(each.forward_sum or each.backward_sum for each in blocks):
            assert quick == slow == 2 * sum(each.forward + each.gradients + each.recompute for each in blocks)


def test_halves_are_no_slower_than_serial() -> None:
    check_halves(200)


@pytest.mark.slow
def test_halves_are_no_slower_than_serial_in_many_cases() -> None:
    check_halves(5000)


def test_silent_recomputation_saves_a_third_of_the_sums() -> None:
    block = HalvedBlock(forward=1, forward_sum=1, backward_sum=1, recompute=1, gradients=2)
    kinds = [
        sum(
            name.startswith("sum of") for name in HalfBatches(blocks=[block] * 4, silent=silent).graph().names
        )
        for silent in (True, False)
    ]
    assert kinds == [16, 24]


def drawn_problem(draw: random.Random) -> DegreeProblem:
    blocks, degrees = draw.randint(1, 5), draw.choice([(1, 2), (1, 2, 4), (2, 3)])

    def table(least: int, most: int) -> list[list[int]]:
        return [[draw.randint(least, most) for _ in degrees] for _ in range(blocks)]

    return DegreeProblem(
        degrees=degrees,
        forward=table(0, 9),
        backward=table(0, 9),
        sums=table(0, 9),
        memory=table(1, most := draw.choice([3, 9])),
        device_bytes=draw.randint(blocks, most * blocks),
        recompute=table(0, 3) if draw.random() < 0.5 else (),
        share=draw.choice([1.0, 0.95]),
    )


def plain_cost(problem: DegreeProblem, choice: tuple[int, ...]) -> Fraction:
    """The formula, read from the planner's description: passes one after the other, block by block."""
    chain = list(enumerate(choice))
    total = Fraction(0)
    for table, again, order in (
        (problem.forward, (), chain),
        (problem.backward, problem.recompute, chain[::-1]),
    ):

        def first_half(block: int, place: int, table: object = table, again: object = again) -> Fraction:
            return Fraction(table[block][place]) + (2 * Fraction(again[block][place]) if again else 0)

        total += first_half(*order[0])
        for (block, place), following in zip(order, [*order[1:], None], strict=True):
            comm = Fraction(problem.sums[block][place])
            total += max(Fraction(table[block][place]), comm)
            comp = first_half(*following) if following else Fraction(0)
            total += max(comp, comm)
            if following and following[1] != place:
                total += comm * problem.degrees[following[1]] / problem.degrees[place] + min(comp, comm)
    return total


def check_plans(count: int) -> None:
    draw = random.Random(19)
    fitted = 0
    for _ in range(count):
        problem = drawn_problem(draw)
        plans = [
            (
                float(plain_cost(problem, choice)),
                sum(row[place] for row, place in zip(problem.memory, choice, strict=True)),
                choice,
            )
            for choice in itertools.product(range(len(problem.degrees)), repeat=len(problem.forward))
        ]
        fit = [plan for plan in plans if plan[1] <= problem.budget]
        for one_cut in (False, True):
            allowed = [
                plan
                for plan in fit
                if not one_cut or sum(a != b for a, b in itertools.pairwise(plan[2])) <= 1
            ]
            if not fit:
                with pytest.raises(InputError, match="room for"):
                    problem.solve(one_cut=one_cut)
                continue
            if not allowed:
                continue
            best = min(allowed)
            assert problem.cost(best[2]) == pytest.approx(best[0], rel=1e-15)
            plan = problem.solve(one_cut=one_cut)
            assert (plan.seconds, plan.memory_bytes) == (pytest.approx(best[0], rel=1e-15), best[1])
            assert plan.degrees == tuple(problem.degrees[place] for place in best[2])
            fitted += 1
    assert fitted > count


def test_plans_are_the_best_of_all() -> None:
    check_plans(300)


@pytest.mark.slow
def test_plans_are_the_best_of_all_in_many_cases() -> None:
    check_plans(5000)


def test_costs_are_those_of_the_schedule() -> None:
    draw = random.Random(20)
    for _ in range(200):
        count = draw.randint(1, 6)
        rows = [[draw.randint(0, 8) / 4 for _ in range(4)] for _ in range(count)]
        forward, backward, sums, again = ([[row[column]] for row in rows] for column in range(4))
        problem = DegreeProblem(
            degrees=(2,),
            forward=forward,
            backward=backward,
            recompute=again,
            sums=sums,
            memory=[[1]] * count,
            device_bytes=count,
            share=1.0,
        )
        blocks = [
            HalvedBlock(forward=f, gradients=g, recompute=r, forward_sum=comm, backward_sum=comm)
            for f, g, comm, r in rows
        ]
        assert run_tasks(HalfBatches(blocks=blocks).graph()).seconds == problem.solve().seconds


def test_costs_of_several_degrees_are_those_of_the_schedule() -> None:
    draw = random.Random(21)
    for _ in range(300):
        problem = drawn_problem(draw)
        choice = [draw.randrange(len(problem.degrees)) for _ in problem.forward]
        passes = RegroupedHalves.planned(problem, [problem.degrees[place] for place in choice])
        assert run_tasks(passes.graph()).seconds == pytest.approx(problem.cost(choice), rel=1e-9, abs=1e-9)
        assert passes.seconds == pytest.approx(problem.cost(choice), rel=1e-9, abs=1e-9)


def test_a_long_chain_with_little_memory() -> None:
    """More room is never slower, and one cut never quicker than a degree for each block."""
    bytes_of = TransformerBytes(batch=4, seq=2048, hidden=1024, parameter_bytes=10**8)
    draw = random.Random(2)
    rows = [[draw.randint(1, 40) / 8 for _ in range(3)] for _ in range(24)]
    seconds = []
    most = 24 * bytes_of.of(1)
    for room in (0.3, 0.5, 0.8, 1.1):
        problem = DegreeProblem(
            degrees=(1, 2, 4),
            forward=rows,
            backward=[[2 * each for each in row] for row in rows],
            sums=[[0, 1, 1.5]] * 24,
            memory=[[bytes_of.of(degree) for degree in (1, 2, 4)]] * 24,
            device_bytes=int(room * most),
        )
        plan = problem.solve()
        assert plan.memory_bytes <= problem.budget
        assert plan.seconds <= problem.solve(one_cut=True).seconds
        assert plan == problem.solve()
        seconds.append(plan.seconds)
    assert seconds == sorted(seconds, reverse=True)


def test_refusals() -> None:
    with pytest.raises(InputError, match="0 or more seconds"):
        HalvedBlock(forward=-1)
    with pytest.raises(InputError, match="`sums`"):
        DegreeProblem(degrees=(1,), forward=[[1]], backward=[[1]], sums=[], memory=[[1]], device_bytes=1)
    problem = DegreeProblem(
        degrees=(1,), forward=[[1]], backward=[[1]], sums=[[1]], memory=[[1]], device_bytes=2
    )
    with pytest.raises(InputError, match=r"one of \[1\] for each of 1 blocks, found \[2\]"):
        RegroupedHalves.planned(problem, [2])
    with pytest.raises(InputError, match="a degree for each of 1 blocks, found 2"):
        RegroupedHalves.of([HalvedBlock(forward=1)], [1, 2], [])
    with pytest.raises(InputError, match="a change between two, found 1 and 1"):
        RegroupedHalves.of([HalvedBlock(forward=1)], [1], [(0.0, 0.0)])


def test_degrees_of_a_model() -> None:
    """Where memory is short some blocks have more ranks; one cut is as quick, as blocks are alike."""
    cluster = cluster_of(preset("dgx-a100"))
    layout = Layout(tensor=8, micro_batch=16, global_batch=16, recompute=Recompute.FULL)
    problem = degree_problem(model_named("gpt-18b"), layout, cluster, (2, 4, 8))
    plan = problem.solve()
    assert len(plan.degrees) == 80
    assert set(plan.degrees) == {4, 8}
    assert plan.memory_bytes <= 0.95 * cluster.device.memory_bytes
    assert plan.seconds == problem.solve(one_cut=True).seconds
    small = degree_problem(model_named("gpt-3.6b"), layout, cluster, (2, 4, 8)).solve()
    assert set(small.degrees) == {2}
    with pytest.raises(InputError, match="group of 8 GPUs, found 3"):
        degree_problem(model_named("gpt-18b"), layout, cluster, (3,))
    with pytest.raises(InputError, match="multiple of 16 sequences"):
        degree_problem(model_named("gpt-18b"), Layout(tensor=8, micro_batch=8, global_batch=8), cluster, (1,))
