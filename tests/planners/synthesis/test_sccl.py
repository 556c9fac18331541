"""SCCL: known instances, proofs that there is none, all collectives, odd networks, interruption, time limits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("z3", reason="z3-solver is not installed: pip install 'coppice[smt]'")

import coppice
from coppice.bounds import Problem
from coppice.bounds.latency import latency_bound
from coppice.errors import InputError, MissingExtraError, UnreachableError
from coppice.planners.synthesis.sccl.deciding import even_shares, fewest_rounds_per_chunk
from coppice.planners.synthesis.sccl.encoding import StepFormula, StepInstance
from coppice.planners.synthesis.sccl.model import dual, model_of
from coppice.planners.synthesis.sccl.routes import find_routes
from coppice.planners.synthesis.synthesizing import Status, SynthesizedResult
from coppice.topology import preset, remove_links
from coppice.topology.model import Link, Node, NodeKind, Topology
from support.interrupts import LOST, CtrlC, pressed

DGX_1 = "dgx-1v"
HARD = {"steps": 3, "rounds": 15, "chunks": 13}
"""At the bound of two DGX A100, with many chunks: neither found nor refuted for a long time."""


def sccl(
    topology: Any,
    collective: str = "all_gather",
    *,
    seed: int = 0,
    time_limit_s: float | None = None,
    **options: Any,
) -> SynthesizedResult:
    return coppice.synthesize(
        topology, collective, method="sccl", options=options, seed=seed, time_limit_s=time_limit_s
    )


def instance(
    topology: Any, steps: int, rounds: int, chunks: int, collective: str = "all_gather"
) -> SynthesizedResult:
    return sccl(topology, collective, steps=steps, rounds=rounds, chunks=chunks)


def hard() -> Topology:
    return preset("dgx-a100", boxes=2)


def requires_steps(result: SynthesizedResult) -> None:
    """The schedule has as many steps and chunks as it says, and no link carries more than its rounds allow."""
    record, plan = result.record(), result.plan
    schedule, topology = plan.schedule, plan.topology
    assert schedule is not None
    assert len(record["rounds_per_step"]) == record["steps"]
    assert sum(record["rounds_per_step"]) <= record["rounds"]
    assert int(schedule.step.max(initial=-1)) < record["steps"]
    unit = Fraction(record["round_gb_per_s"])
    for step, rounds in enumerate(record["rounds_per_step"]):
        load = np.zeros(topology.num_links, dtype=np.int64)
        for row in np.flatnonzero(schedule.step == step).tolist():
            path = schedule.path[row]
            nodes = schedule.path_nodes[schedule.path_start[path] : schedule.path_start[path + 1]].tolist()
            for hop in pairwise(nodes):
                load[topology.link_index[hop]] += 1
        for link in np.flatnonzero(load).tolist():
            assert load[link] <= topology.gb_per_s(link) * rounds / unit


# The paper's machine.


def test_dgx_1_is_the_hybrid_cube_mesh() -> None:
    topology = preset(DGX_1)
    rates = sorted(topology.gb_per_s(link) for link in range(topology.num_links))
    assert rates == [Fraction(25)] * 16 + [Fraction(50)] * 16


@pytest.mark.parametrize(
    ("steps", "rounds", "chunks"), [(2, 2, 1), (2, 3, 2), (3, 4, 3), (3, 5, 4), (3, 6, 5), (3, 7, 6)]
)
def test_all_gather_on_dgx_1(steps: int, rounds: int, chunks: int) -> None:
    result = instance(DGX_1, steps, rounds, chunks)
    assert result.status is Status.SAT
    requires_steps(result)
    record = result.record()
    assert (record["steps"], record["rounds"], record["chunks"]) == (steps, rounds, chunks)
    assert record["fewest_steps"] == 2
    assert record["least_rounds_per_chunk"] == "7/6"
    assert result.plan.schedule.num_chunks == 8 * chunks
    assert Fraction(record["planned_inv_rate"]) <= Fraction(rounds, 25 * chunks)
    assert record["optimal"] is (rounds == 7)


@pytest.mark.parametrize(
    ("steps", "rounds", "chunks", "why"),
    [
        (2, 4, 3, "2 steps need 3/2 rounds per chunk"),
        (1, 9, 1, "the farthest block needs 2 steps"),
        (3, 2, 1, "a step takes a round or more"),
        (3, 6, 6, "the collective needs 7/6 rounds per chunk"),
    ],
)
def test_what_dgx_1_has_no_schedule_for(steps: int, rounds: int, chunks: int, why: str) -> None:
    result = instance(DGX_1, steps, rounds, chunks)
    assert result.status is Status.UNSAT
    assert result.record()["why"] == why
    assert result.record()["proved"] is True


def test_z3_refutes_alone_what_the_program_refutes() -> None:
    problem = Problem(preset(DGX_1), "all_gather")
    model = model_of(problem, find_routes(problem.topology))
    assert fewest_rounds_per_chunk(model, 2) == Fraction(3, 2)
    assert fewest_rounds_per_chunk(model, 3) == Fraction(7, 6)
    assert StepFormula(model, StepInstance(2, 4, 3), model.trivial).attempt().status is Status.UNSAT
    assert StepFormula(model, StepInstance(2, 3, 2), model.trivial).attempt().status is Status.SAT


def test_front_of_dgx_1() -> None:
    record = sccl(DGX_1, pareto=True).record()
    assert record["front"] == [[2, 3, 2], [3, 7, 6]]
    assert record["proved"] is True
    assert record["proved_for_any_chunks"] is True
    assert (record["steps"], record["rounds"], record["chunks"]) == (3, 7, 6)
    assert record["gap"] == 0


def test_a_choice_is_the_end_of_the_front() -> None:
    result = sccl(DGX_1)
    record = result.record()
    assert (record["steps"], record["rounds"], record["chunks"]) == (3, 7, 6)
    assert record["proved"] is True
    assert any(label == "chosen" for label, _ in result.synthesis.words)
    record = sccl(DGX_1, steps=2).record()
    assert (record["steps"], record["rounds"], record["chunks"]) == (2, 3, 2)
    record = sccl(DGX_1, chunks=1).record()
    assert (record["steps"], record["rounds"], record["chunks"]) == (2, 2, 1)
    record = sccl(DGX_1, steps=2, rounds=3).record()
    assert (record["steps"], record["rounds"], record["chunks"]) == (2, 3, 2)
    assert sccl(DGX_1, rounds=1).status is Status.UNSAT
    assert sccl(DGX_1, steps=1).status is Status.UNSAT


def test_a_choice_says_for_how_many_chunks_it_is_proved() -> None:
    """Of 5 rounds for 2 chunks nobody knows that it is the best: 7 for 3 are better, and were not looked at."""
    ends = [("s0", "g3"), ("g3", "g2"), ("g1", "g0"), ("g0", "s0"), ("g3", "g2"), ("s0", "g1")]
    nodes = [*(Node(id=f"g{i}") for i in range(4)), Node(id="s0", kind=NodeKind.SWITCH)]
    links = [Link(src=a, dst=b, gb_per_s=Fraction(1)) for a, b in ends]
    links.append(Link(src="g2", dst="g1", gb_per_s=Fraction(1), duplex=False))
    tiny = Topology.of("tiny", nodes, links)
    free = sccl(tiny, "reduce_scatter").record()
    assert (free["steps"], free["rounds"], free["chunks"]) == (3, 5, 2)
    assert (free["proved"], free["proved_for"], free["most_chunks"]) == (False, "with up to 2 chunks", 2)
    better = sccl(tiny, "reduce_scatter", steps=3, rounds=7, chunks=3).record()
    assert (better["status"], better["rounds_per_chunk"]) == ("sat", "7/3")
    two = sccl(tiny, "reduce_scatter", chunks=2).record()
    assert (two["proved"], two["proved_for"]) == (True, "with 2 chunks")
    every = sccl(DGX_1).record()
    assert (every["proved"], every["proved_for"]) == (True, "with any number of chunks")


# Other collectives.


@pytest.mark.parametrize(
    "collective", ["reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all"]
)
@pytest.mark.parametrize("name", [DGX_1, "ring"])
def test_collectives(name: str, collective: str) -> None:
    topology = preset(name)
    result = sccl(topology, collective, chunks=2)
    assert result.status is Status.SAT
    requires_steps(result)
    # No schedule has fewer steps than messages that wait for each other.
    plain = Topology.of("plain", topology.nodes(), topology.links())
    problem = Problem(plain, collective, root=result.problem.root)
    bound = latency_bound(problem, overhead_us=1.0)
    hops = sum(plain.latency_us[plain.link_index[hop]] for hop in pairwise(bound.route))
    assert result.record()["fewest_steps"] == round(bound.time_us - hops)


def test_reduce_scatter_has_the_front_of_all_gather() -> None:
    assert sccl(DGX_1, "reduce_scatter", pareto=True).record()["front"] == [[2, 3, 2], [3, 7, 6]]


def test_all_reduce_is_both() -> None:
    result = instance(DGX_1, 4, 6, 2, "all_reduce")
    requires_steps(result)
    assert result.plan.schedule.num_chunks == 16
    assert instance(DGX_1, 4, 5, 2, "all_reduce").status is Status.UNSAT
    assert instance(DGX_1, 3, 9, 1, "all_reduce").status is Status.UNSAT
    record = sccl(DGX_1, "all_reduce", chunks=2, pareto=True).record()
    assert record["front"] == [[4, 6, 2]]
    assert record["proved"] is True
    assert record["proved_for_any_chunks"] is False


@pytest.mark.slow
def test_front_of_all_reduce() -> None:
    record = sccl(DGX_1, "all_reduce", pareto=True).record()
    assert record["front"] == [[4, 6, 2], [5, 16, 6], [6, 14, 6]]
    assert record["proved_for_any_chunks"] is True


def test_blocks_of_unequal_size() -> None:
    topology = preset("ring", gpus=3)
    result = coppice.synthesize(topology, "all_gather", method="sccl", weights=[1, 0, 2])
    assert result.record()["optimal"] is True
    demands = [[0, 1, 2], [0, 0, 1], [3, 0, 0]]
    result = coppice.synthesize(topology, "all_to_all", method="sccl", demands=demands, options={"chunks": 1})
    assert result.status is Status.SAT
    requires_steps(result)


def test_barrier_is_not_synthesised() -> None:
    with pytest.raises(InputError, match="found barrier"):
        sccl("ring", "barrier")


def test_dual_of_a_dual_moves_on_the_same_links() -> None:
    problem = Problem(preset(DGX_1), "reduce", root=2)
    turned = dual(problem)
    assert turned is not None
    assert turned.root == 2
    assert dual(turned) is None
    assert turned.topology.transposed().sha256 == problem.topology.sha256


# Other networks.


@pytest.mark.parametrize(
    ("name", "parameters", "front"),
    [
        ("ring", {"gpus": 8}, [[4, 7, 2]]),
        ("ring", {"gpus": 5}, [[2, 2, 1]]),
        ("ring", {"gpus": 3}, [[1, 1, 1]]),
        ("path", {"gpus": 2}, [[1, 1, 1]]),
        ("hypercube", {"dimension": 3}, [[3, 7, 3]]),
        ("petersen", {}, [[2, 3, 1]]),
        ("complete", {"gpus": 5}, [[1, 1, 1]]),
        ("star", {"gpus": 8}, [[1, 7, 1]]),
        ("dgx-a100", {}, [[1, 7, 1]]),
    ],
)
def test_fronts_end_at_the_bound(name: str, parameters: dict[str, Any], front: list[list[int]]) -> None:
    result = sccl(preset(name, **parameters), pareto=True)
    record = result.record()
    assert record["front"] == front
    assert record["proved_for_any_chunks"] is True
    assert record["gap"] == 0
    requires_steps(result)


def test_dgx_1_with_a_lost_link() -> None:
    topology = remove_links(preset(DGX_1), [("gpu0", "gpu1")])
    result = sccl(topology, steps=2)
    record = result.record()
    assert Fraction(record["rounds_per_chunk"]) >= Fraction(record["least_rounds_per_chunk_in_steps"])
    assert Fraction(record["least_rounds_per_chunk"]) == Fraction(7, 4)
    requires_steps(result)


def behind_two_switches(between: int) -> Topology:
    """Four GPUs on each of two switches, which are joined by one link."""
    nodes = [Node(id=f"g{i}") for i in range(8)]
    nodes += [Node(id=f"s{i}", kind=NodeKind.SWITCH) for i in range(2)]
    links = [Link(src=f"g{i}", dst=f"s{i // 4}", gb_per_s=Fraction(1)) for i in range(8)]
    return Topology.of("switches", nodes, [*links, Link(src="s0", dst="s1", gb_per_s=Fraction(between))])


@pytest.mark.parametrize(("between", "rounds"), [(1, 16), (2, 8), (4, 7)])
def test_gpus_behind_two_switches_share_what_joins_them(between: int, rounds: int) -> None:
    """16 blocks have to cross if every GPU hears from every other directly, 4 if they are passed on."""
    result = instance(behind_two_switches(between), 1, rounds, 1)
    assert result.status is Status.SAT
    requires_steps(result)
    assert instance(behind_two_switches(between), 1, rounds - 1, 1).status is Status.UNSAT
    assert sccl(behind_two_switches(between), chunks=1, steps=2).record()["rounds"] == 7


def test_two_planes_are_two_routes() -> None:
    """Each of three GPUs has a link to both of two switches: two chunks of each block go at a time."""
    nodes = [Node(id=f"g{i}") for i in range(3)] + [Node(id=f"s{i}", kind=NodeKind.SWITCH) for i in range(2)]
    links = [Link(src=f"g{i}", dst=f"s{j}", gb_per_s=Fraction(1)) for i in range(3) for j in range(2)]
    planes = Topology.of("planes", nodes, links)
    assert len(find_routes(planes).path) == 12
    assert instance(planes, 1, 2, 2).status is Status.SAT
    assert instance(planes, 1, 3, 4).status is Status.UNSAT


def test_detours() -> None:
    """Two GPUs on a direct link and, slower, on a switch: the way round counts if it is asked for."""
    nodes = [Node(id="a"), Node(id="b"), Node(id="s", kind=NodeKind.SWITCH)]
    links = [Link(src=a, dst=b, gb_per_s=Fraction(1)) for a, b in ("ab", "as", "sb")]
    topology = Topology.of("detour", nodes, links)
    assert sccl(topology, steps=1, rounds=1, chunks=2).status is Status.UNSAT
    assert sccl(topology, steps=1, rounds=1, chunks=2, detour=1).status is Status.SAT


def test_too_many_routes_are_refused() -> None:
    nodes = [Node(id="a"), Node(id="b")] + [Node(id=f"s{i}", kind=NodeKind.SWITCH) for i in range(65)]
    links = [Link(src=end, dst=f"s{i}", gb_per_s=Fraction(1)) for i in range(65) for end in "ab"]
    with pytest.raises(InputError, match="at most 64 routes between two ranks"):
        sccl(Topology.of("many", nodes, links))


def test_rounds_of_another_rate() -> None:
    """A round at 50 GB/s: a link of 25 carries a chunk in two rounds, and none in one."""
    assert sccl(DGX_1, steps=2, rounds=2, chunks=1, round_gb_per_s="50").status is Status.UNSAT
    result = sccl(DGX_1, steps=2, rounds=4, chunks=1, round_gb_per_s=50)
    requires_steps(result)
    assert result.record()["least_rounds_per_chunk"] == "7/3"


def test_rates_that_are_no_multiples() -> None:
    """Links of 2 and 3: in a round of the slow one the fast one carries one chunk, in two rounds three."""
    nodes = [Node(id=name) for name in "abc"]
    rates = {"ab": 2, "bc": 3, "ca": 3}
    links = [Link(src=a, dst=b, gb_per_s=Fraction(rate)) for (a, b), rate in rates.items()]
    result = sccl(Topology.of("triangle", nodes, links), pareto=True)
    requires_steps(result)
    assert result.record()["round_gb_per_s"] == "2"


@pytest.mark.parametrize(
    "collective", ["all_gather", "all_reduce", "broadcast", "reduce", "all_to_all", "gather"]
)
def test_one_rank_has_nothing_to_do(collective: str) -> None:
    result = sccl(preset("path", gpus=1), collective)
    assert result.status is Status.SAT
    assert (result.record()["steps"], result.record()["rounds"]) == (0, 0)
    assert result.plan.schedule.num_transfers == 0
    assert sccl(preset("path", gpus=1), collective, pareto=True).record()["front"] == [[0, 0, 1]]


def test_ranks_without_a_way() -> None:
    apart = Topology.of("apart", [Node(id="a"), Node(id="b")], [])
    with pytest.raises(UnreachableError):
        sccl(apart)


def test_sixteen_gpus_in_fewest_steps() -> None:
    result = sccl(preset(DGX_1, boxes=2), steps=3, rounds=8, chunks=1)
    assert result.status is Status.SAT
    requires_steps(result)


# Manners.


def test_the_same_seed_gives_the_same_schedule() -> None:
    columns = []
    for seed in (1, 1):
        schedule = sccl(DGX_1, steps=3, rounds=5, chunks=4, seed=seed).plan.schedule
        columns.append([getattr(schedule, name).tolist() for name in ("src", "dst", "chunk", "step", "path")])
    assert columns[0] == columns[1]


def test_too_little_time_proves_nothing() -> None:
    result = sccl(hard(), time_limit_s=0.3, **HARD)
    assert result.status is Status.UNKNOWN
    assert result.planned is None


def test_little_effort_leaves_instances_undecided() -> None:
    record = sccl(DGX_1, conflicts=1).record()
    assert record["status"] in ("sat", "unknown")
    assert record["proved"] is False


def interrupting(words: str, key: CtrlC, *, time: int) -> Callable[[str], None]:
    """A listener that starts Ctrl-C when a stage has begun for the so-manieth time."""
    heard: list[str] = []

    def listen(stage: str) -> None:
        heard.extend([stage] * (words in stage))
        if len(heard) == time:
            key.start()
            heard.append("sent")

    return listen


@pytest.mark.filterwarnings(LOST)
def test_ctrl_c_ends_the_search() -> None:
    with pressed(0.3) as key, pytest.raises(KeyboardInterrupt):
        coppice.synthesize(
            hard(), "all_gather", method="sccl", options=HARD, on_stage=interrupting("R=15", key, time=1)
        )


@pytest.mark.filterwarnings(LOST)
def test_ctrl_c_leaves_the_best_so_far() -> None:
    """A first schedule is looked for with little effort; then (3, 15, 13), without end."""
    with pressed(0.3) as key:
        result = coppice.synthesize(
            hard(),
            "all_gather",
            method="sccl",
            options={"chunks": 13, "steps": 3, "conflicts": 0},
            on_stage=interrupting("R=15", key, time=2),
        )
    assert result.status is Status.SAT
    assert result.synthesis.interrupted
    assert result.record()["proved"] is False


def test_a_missing_solver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "z3", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'coppice\[smt\]'"):
        sccl("ring")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pareto": True, "steps": 2}, "leave out `steps` and `rounds`"),
        ({"chunks": 0}, "`chunks` to be 1 or more"),
        ({"steps": -1}, "`steps` to be 0 or more"),
        ({"detour": -1}, "`detour` to be 0 or more"),
        ({"round_gb_per_s": "0"}, "above 0"),
        ({"round_gb_per_s": "fast"}, "round_gb_per_s"),
        ({"sketch": "x"}, "found `sketch`"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        sccl("ring", **options)


def test_even_shares() -> None:
    for rounds in range(1, 12):
        for steps in range(1, rounds + 1):
            for share in even_shares(rounds, steps):
                assert sum(share) == rounds
                assert len(share) == steps
                assert max(share) - min(share) <= 1
