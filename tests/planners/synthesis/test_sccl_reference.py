"""SCCL and complete enumeration agree on small networks, direct and switched, symmetric or not."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytest.importorskip("z3", reason="z3-solver is not installed: pip install 'coppice[smt]'")

import coppice
from coppice.bounds import Problem
from coppice.errors import UnreachableError
from coppice.planners.synthesis.sccl.deciding import fewest_rounds_per_chunk
from coppice.planners.synthesis.sccl.encoding import StepFormula, StepInstance
from coppice.planners.synthesis.sccl.model import model_of
from coppice.planners.synthesis.sccl.routes import find_routes
from coppice.planners.synthesis.synthesizing import Status
from coppice.topology import preset
from coppice.topology.model import Link, Node, NodeKind, Topology
from reference.sccl import Group, State, is_satisfiable, least_rounds


def ends_of(collective: str, ranks: int, chunks: int) -> tuple[State, State]:
    """Where the chunks are, and where they have to be; a chunk is (block, number) as one number."""
    start, goal = set(), set()
    pairs = list(itertools.product(range(ranks), repeat=2))
    blocks = {
        "all_gather": [(u, set(range(ranks))) for u in range(ranks)],
        "broadcast": [(0, set(range(ranks)))],
        "gather": [(u, {0}) for u in range(1, ranks)],
        "scatter": [(0, {v}) for v in range(1, ranks)],
        "all_to_all": [(u, {v}) for u, v in pairs if u != v],
    }[collective]
    for block, (source, targets) in enumerate(blocks):
        for chunk in range(chunks):
            start.add((block * chunks + chunk, source))
            goal |= {(block * chunks + chunk, rank) for rank in targets}
    return frozenset(start), frozenset(goal)


def direct(rates: dict[tuple[int, int], int]) -> list[Group]:
    return [(frozenset({pair}), rate) for pair, rate in rates.items()]


def status_of(topology: Topology, collective: str, steps: int, rounds: int, chunks: int) -> Status:
    options = {"steps": steps, "rounds": rounds, "chunks": chunks}
    return coppice.synthesize(topology, collective, method="sccl", options=options).status


@settings(max_examples=25)
@given(
    st.integers(2, 3),
    st.lists(st.sampled_from([0, 1, 1, 2]), min_size=6, max_size=6),
    st.sampled_from(["all_gather", "broadcast", "gather", "scatter", "all_to_all"]),
    st.integers(1, 2),
)
def test_random_networks(ranks: int, rates: list[int], collective: str, chunks: int) -> None:
    assume(chunks == 1 or ranks == 2 or collective in ("broadcast", "scatter"))
    pairs = [(u, v) for u in range(ranks) for v in range(ranks) if u != v]
    wired = {pair: rate for pair, rate in zip(pairs, rates, strict=False) if rate}
    links = [
        Link(src=f"g{u}", dst=f"g{v}", gb_per_s=Fraction(rate), duplex=False)
        for (u, v), rate in wired.items()
    ]
    topology = Topology.of("random", [Node(id=f"g{u}") for u in range(ranks)], links)
    slowest = min(wired.values(), default=1)
    # With links of 2 alone, a round is at 2.
    groups = direct({pair: rate // slowest for pair, rate in wired.items()})
    start, goal = ends_of(collective, ranks, chunks)
    for steps, extra in itertools.product(range(1, 3), range(3)):
        expected = is_satisfiable(groups, start, goal, steps=steps, rounds=steps + extra)
        try:
            found = status_of(topology, collective, steps, steps + extra, chunks)
        except UnreachableError:
            assert not expected
            continue
        assert found is (Status.SAT if expected else Status.UNSAT)


def star(ranks: int) -> list[Group]:
    """What each rank sends, and what it receives."""
    everybody = range(ranks)
    out = [(frozenset({(u, v) for v in everybody if v != u}), 1) for u in everybody]
    return out + [(frozenset({(u, v) for u in everybody if u != v}), 1) for v in everybody]


@pytest.mark.parametrize(
    ("topology", "groups", "chunks"),
    [
        (preset("star", gpus=3), star(3), 1),
        (
            preset("ring", gpus=4),
            direct({(u, v): 1 for u in range(4) for v in ((u + 1) % 4, (u - 1) % 4)}),
            1,
        ),
        (preset("path", gpus=3), direct({(0, 1): 1, (1, 0): 1, (1, 2): 1, (2, 1): 1}), 2),
    ],
    ids=lambda value: value.name if isinstance(value, Topology) else "",
)
def test_fewest_rounds(topology: Topology, groups: list[Group], chunks: int) -> None:
    start, goal = ends_of("all_gather", topology.num_ranks, chunks)
    for steps in (1, 2):
        expected = least_rounds(groups, start, goal, steps=steps, most=5)
        for rounds in range(steps, 6):
            is_enough = expected is not None and rounds >= expected
            found = status_of(topology, "all_gather", steps, rounds, chunks)
            assert found is (Status.SAT if is_enough else Status.UNSAT)


def test_a_shared_uplink() -> None:
    """Two pairs of GPUs on two switches: the link between the switches carries a chunk a round for all of them."""
    nodes = [Node(id=f"g{i}") for i in range(4)] + [Node(id=f"s{i}", kind=NodeKind.SWITCH) for i in range(2)]
    links = [Link(src=f"g{i}", dst=f"s{i // 2}", gb_per_s=Fraction(1)) for i in range(4)]
    topology = Topology.of("uplink", nodes, [*links, Link(src="s0", dst="s1", gb_per_s=Fraction(1))])
    crossing = [
        (frozenset({(u, v) for u in side for v in other}), 1)
        for side, other in (((0, 1), (2, 3)), ((2, 3), (0, 1)))
    ]
    start, goal = ends_of("broadcast", 4, 1)
    for steps, rounds in itertools.product((1, 2), (1, 2, 3)):
        if rounds >= steps:
            expected = is_satisfiable([*star(4), *crossing], start, goal, steps=steps, rounds=rounds)
            found = status_of(topology, "broadcast", steps, rounds, 1)
            assert found is (Status.SAT if expected else Status.UNSAT)


@settings(max_examples=15)
@given(st.sampled_from(["ring", "complete", "star"]), st.integers(3, 4), st.integers(1, 3), st.integers(0, 3))
def test_no_bound_refutes_what_there_is(name: str, ranks: int, steps: int, extra: int) -> None:
    """Bounds, symmetric schedules and the order of chunks leave every instance its answer."""
    problem = Problem(preset(name, gpus=ranks), "all_gather")
    model = model_of(problem, find_routes(problem.topology))
    assume(steps >= model.fewest_steps)
    for chunks in (1, 2):
        instance = StepInstance(steps, steps + extra, chunks)
        whole = StepFormula(model, instance, model.trivial).attempt().status
        symmetric = StepFormula(model, instance, model.images).attempt().status
        least = fewest_rounds_per_chunk(model, steps)
        assert least is not None
        if Fraction(steps + extra, chunks) < least:
            assert whole is Status.UNSAT
        if symmetric is Status.SAT:
            assert whole is Status.SAT
