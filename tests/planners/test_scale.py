"""The ends of the range: a thousand GPUs and more, and groups so small or odd that little is left to plan."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from coppice.bounds import Problem, bound
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.forest.planner import plan_forest
from coppice.planners.planning import plan
from coppice.schedule.files.plan_file import decode_plan, encode_plan
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.plan import Plan
from coppice.schedule.shape import shape
from coppice.schedule.verification.report import Report
from coppice.schedule.verification.verify import verify
from coppice.topology import resolve, subset
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.operations import remove_links, scale_nodes, set_link_rate
from reference.expected import expected_inv_rate
from reference.network import describe
from reference.plans import judged_inv_rate
from reference.strategies import CONNECTED_FAMILIES, seeded

TREE_COLLECTIVES = [collective for collective in Collective if collective.made_of_trees]
GIB = 2**30


def verified(problem: Problem, forest: Forest) -> Report:
    """The report on a plan that claims the optimum."""
    found = bound(problem)
    assert found.attainable is not None
    report = verify(Plan(problem=problem, inv_rate=found.attainable, forest=forest, bound=found))
    assert report.ok, report.failures
    assert report.inv_rate == found.attainable
    return report


class TestThousandGpus:
    SIZES = (
        ("dgx-a100", {}, 128, Fraction(127, 25)),
        ("mi250", {}, 64, Fraction(63, 16)),
        ("dgx-h100", {}, 128, Fraction(127, 50)),
        ("torus", {"dims": "32x32"}, None, None),
        ("torus", {"dims": "8x8x16"}, None, None),
    )

    @pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER], ids=str)
    @pytest.mark.parametrize(("spec", "options", "count", "inv_rate"), SIZES)
    @pytest.mark.spread(3)
    def test_planned_and_verified(
        self,
        spec: str,
        options: dict[str, str],
        count: int | None,
        inv_rate: Fraction | None,
        collective: Collective,
    ) -> None:
        topology = resolve(spec, boxes=count, options=options)
        assert topology.num_ranks == 1024
        if inv_rate is None:  # tori leave no link idle
            inv_rate = 1023 / (topology.num_links // 1024 * topology.gb_per_s(0))
        problem = Problem(topology=topology, collective=collective)
        forest = plan_forest(problem)
        report = verified(problem, forest)
        assert report.inv_rate == inv_rate
        assert report.checked["edges"] % 1023 == 0
        assert report.optimal

    @pytest.mark.slow
    def test_all_reduce(self) -> None:
        problem = Problem(topology=resolve("dgx-a100", boxes=128), collective=Collective.ALL_REDUCE)
        forest = plan_forest(problem)
        assert verified(problem, forest).inv_rate == Fraction(127, 25) / 512
        assert shape(forest).max_height <= 4

    def test_time_and_memory_of_the_command(self) -> None:
        arguments = ["plan", "dgx-a100", "--boxes", "128", "-c", "all_gather", "--no-ring", "--json"]
        done = subprocess.run([sys.executable, "-m", "coppice", *arguments], capture_output=True, check=True)
        record = json.loads(done.stdout)
        print(f"128 A100 boxes: {record['seconds']:.2f} s, {record['peak_rss_bytes'] / GIB:.2f} GiB")
        assert record["verified"] is True
        assert record["optimal"] is True
        assert record["seconds"] < 15  # the goal is 3 s; the rest is for busy machines
        assert record["peak_rss_bytes"] < 2 * GIB

    @pytest.mark.slow
    def test_one_network_card_at_half_rate(self) -> None:
        topology = resolve("dgx-a100", boxes=128)
        topology = set_link_rate(topology, "box0/gpu0", "box0/mlx5_0", "50%")
        problem = Problem(topology=topology, collective=Collective.ALL_GATHER)
        forest = plan_forest(problem)
        assert forest.symmetry is None
        report = verified(problem, forest)
        assert report.optimal
        assert report.inv_rate == 1016 / (15 * Fraction(25, 2))  # into the box with the slow card

    @pytest.mark.slow
    @pytest.mark.parametrize(("spec", "count"), [("mi250", 64), ("dgx-h100", 128)])
    def test_one_link_at_half_rate(self, spec: str, count: int) -> None:
        topology = resolve(spec, boxes=count)
        e = topology.num_links // 3
        ends = [topology.node_ids[v] for v in (topology.src[e], topology.dst[e])]
        problem = Problem(
            topology=set_link_rate(topology, *ends, "50%", one_way=True), collective=Collective.ALL_GATHER
        )
        assert verified(problem, plan_forest(problem)).optimal

    @pytest.mark.parametrize(
        "collective", [Collective.BROADCAST, pytest.param(Collective.REDUCE, marks=pytest.mark.slow)], ids=str
    )
    def test_single_root(self, collective: Collective) -> None:
        """A box takes in as much as its 8 cards can, a GPU more than that."""
        problem = posed(resolve("dgx-a100", boxes=128), collective, 5)
        assert verified(problem, plan_forest(problem)).inv_rate == Fraction(1, 200)

    @pytest.mark.slow
    def test_random_shares(self) -> None:
        choose = random.Random(1024)
        weights = tuple(choose.randint(0, 9) for _ in range(1024))
        problem = Problem(
            topology=resolve("dgx-a100", boxes=128), collective=Collective.ALL_GATHER, weights=weights
        )
        least = min(sum(weights[box * 8 : box * 8 + 8]) for box in range(128))
        assert verified(problem, plan_forest(problem)).inv_rate == Fraction(sum(weights) - least, 200)

    @pytest.mark.slow
    def test_one_box_with_fewer_gpus(self) -> None:
        whole = resolve("dgx-a100", boxes=128)
        topology = subset(whole, list(range(1021)))
        problem = Problem(topology=topology, collective=Collective.ALL_GATHER)
        assert verified(problem, plan_forest(problem)).optimal


def check_image(forest: Forest, tree: int, element: int) -> None:
    """One image of one template, taken from the group's table and walked on the links."""
    assert forest.symmetry is not None
    topology = forest.topology
    image = forest.symmetry.image(np.arange(topology.num_nodes), element).tolist()
    root = image[int(forest.tree_root[tree])]
    paths = [tuple(image[v] for v in path) for _, _, path in forest.edges(tree)]
    if forest.tree_phase[tree] == Phase.REDUCE:
        paths = [path[::-1] for path in paths[::-1]]
    links = topology.link_index
    reached = {root}
    for path in paths:
        assert path[0] in reached
        assert path[-1] not in reached
        hops = pairwise(path if forest.tree_phase[tree] == Phase.BROADCAST else path[::-1])
        assert all(hop in links for hop in hops)
        reached.add(path[-1])
    assert reached == set(topology.rank_nodes.tolist())


@pytest.mark.slow
class TestSixteenThousandGpus:
    """Templates only: written out, these plans would have 268 million edges a phase."""

    SIZES = (
        ("dgx-a100", {}, 2048),
        ("mi250", {}, 1024),
        ("dgx-h100", {}, 2048),
        ("torus", {"dims": "128x128"}, None),
        ("torus", {"dims": "16x32x32"}, None),
        ("hypercube", {"dimension": "14"}, None),
    )

    @pytest.mark.parametrize(
        "collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE], ids=str
    )
    @pytest.mark.parametrize(("spec", "options", "count"), SIZES)
    def test_certificate(
        self, spec: str, options: dict[str, str], count: int | None, collective: Collective
    ) -> None:
        topology = resolve(spec, boxes=count, options=options)
        assert topology.num_ranks == 16384
        problem = Problem(topology=topology, collective=collective)
        result = plan(problem, ring=False)
        made = result.plan
        assert made.forest is not None
        assert made.forest.symmetry is not None
        assert result.loss == 0
        assert result.report.checked["edges"] % 16383 == 0
        print(f"{topology.name}, {collective}: {result.seconds}, {result.peak_rss_bytes / GIB:.2f} GiB")
        assert result.seconds["plan"] < 60
        choose = random.Random(spec)
        for _ in range(3):
            tree = choose.randrange(made.forest.num_trees)
            check_image(made.forest, tree, choose.randrange(made.forest.num_images))
        data = encode_plan(made)
        again = decode_plan(data, name="plan.json")
        assert encode_plan(again) == data
        assert verify(again).ok

    def test_on_the_command_line(self, tmp_path: Path) -> None:
        target = str(tmp_path / "plan.json")
        commands = [
            ["plan", "dgx-a100", "--boxes", "2048", "-c", "all_gather", "--no-ring", "-o", target],
            ["verify", target],
            ["explain", target],
        ]
        for arguments in commands:
            done = subprocess.run(
                [sys.executable, "-m", "coppice", *arguments], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            assert "Traceback" not in done.stderr


def wired(*links: tuple[str, str, int | Fraction], nodes: str = "", duplex: bool = True) -> Topology:
    """GPUs with one-letter names, in alphabetical order, and links between them."""
    names = sorted({*nodes, *(name for a, b, _ in links for name in (a, b))})
    made = [Link(src=a, dst=b, gb_per_s=Fraction(rate), duplex=duplex) for a, b, rate in links]
    return Topology.of("wired", [Node(id=name) for name in names], made)


def posed(topology: Topology, collective: Collective, root: int = 0) -> Problem:
    return Problem(topology=topology, collective=collective, root=root if collective.rooted else None)


def time_of(problem: Problem) -> Fraction:
    """Time per shard of a plan from end to end, judged by the slow count as well where it is a forest."""
    result = plan(problem, ring=False)
    assert result.report.ok
    assert result.plan.forest is not None
    assert judged_inv_rate(problem, result.plan.forest) == result.inv_rate
    return result.inv_rate


class TestSmallGroups:
    @pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=str)
    def test_one_gpu_has_nothing_to_do(self, collective: Collective) -> None:
        for topology in (wired(nodes="a"), subset(wired(("a", "b", 1), ("b", "c", 1)), [1], relays=True)):
            assert time_of(posed(topology, collective)) == 0
        result = plan(posed(wired(nodes="a"), Collective.ALL_TO_ALL), ring=False)
        assert result.inv_rate == 0

    @pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=str)
    def test_two_gpus(self, collective: Collective) -> None:
        # an all-reduce sends half of the data each way to be added, and half of it back
        assert time_of(posed(wired(("a", "b", 25)), collective)) == Fraction(1, 25)

    @pytest.mark.parametrize("collective", TREE_COLLECTIVES, ids=str)
    def test_two_gpus_behind_switches(self, collective: Collective) -> None:
        nodes = [Node(id="a"), Node(id="b"), *(Node(id=f"s{i}", kind=NodeKind.SWITCH) for i in range(3))]
        links = [
            Link(src=x, dst=y, gb_per_s=Fraction(rate))
            for x, y, rate in (("a", "s0", 9), ("s0", "s1", 4), ("s1", "s2", 6), ("s2", "b", 5))
        ]
        assert time_of(posed(Topology.of("line", nodes, links), collective)) == Fraction(1, 4)


class TestBrokenNetworks:
    @pytest.mark.parametrize("collective", list(Collective), ids=str)
    @pytest.mark.parametrize(
        "topology",
        [
            wired(("a", "b", 1), ("c", "d", 1)),
            wired(("a", "b", 1), nodes="c"),
            wired(nodes="abc"),
            wired(("a", "b", 1), ("b", "c", 0)),
            remove_links(wired(("a", "b", 1), ("b", "c", 1)), [("b", "c")]),
            scale_nodes(wired(("a", "b", 1), ("b", "c", 1)), {"c": 0}),
        ],
        ids=["two parts", "a GPU without links", "no links", "a link of rate 0", "link removed", "GPU at 0%"],
    )
    def test_unreachable_ranks_are_named(self, topology: Topology, collective: Collective) -> None:
        with pytest.raises(UnreachableError, match=r"from|between") as caught:
            plan(posed(topology, collective))
        assert len(str(caught.value)) < 400
        assert "\n" not in str(caught.value)

    def test_links_of_rate_zero_are_no_links(self) -> None:
        with_zero = wired(("a", "b", 1), ("b", "c", 1), ("a", "c", 0))
        for collective in TREE_COLLECTIVES:
            without = posed(wired(("a", "b", 1), ("b", "c", 1)), collective)
            assert time_of(posed(with_zero, collective)) == time_of(without)

    def test_one_way_links(self) -> None:
        down = wired(("a", "b", 2), ("b", "c", 1), duplex=False)
        assert time_of(posed(down, Collective.BROADCAST)) == 1
        assert time_of(posed(down, Collective.REDUCE, root=2)) == 1
        for problem in (
            posed(down, Collective.BROADCAST, root=1),
            posed(down, Collective.REDUCE),
            posed(down, Collective.ALL_GATHER),
        ):
            with pytest.raises(UnreachableError):
                plan(problem)


class TestSubsets:
    def test_without_relays_the_others_leave_with_their_links(self) -> None:
        path = wired(("a", "b", 1), ("b", "c", 3))
        for collective in TREE_COLLECTIVES:
            assert time_of(posed(subset(path, [0, 2], relays=True), collective)) == 1
            with pytest.raises(UnreachableError, match="`relays`"):
                plan(posed(subset(path, [0, 2]), collective))

    def test_relays_add_rate(self) -> None:
        ring = resolve("ring", options={"gpus": "6"})
        pair = [
            time_of(posed(subset(ring, [0, 1], relays=relays), Collective.ALL_GATHER))
            for relays in (False, True)
        ]
        assert pair[1] == pair[0] / 2

    @pytest.mark.parametrize("relays", [False, True])
    @pytest.mark.parametrize("block", range(4))
    @pytest.mark.spread(3)
    def test_random_subsets_against_the_reference(self, block: int, *, relays: bool) -> None:
        planned = 0
        for seed in range(block * 15, block * 15 + 15):
            whole = seeded(seed, CONNECTED_FAMILIES, 9)
            choose = random.Random(seed)
            ranks = choose.sample(range(whole.num_ranks), choose.randint(1, whole.num_ranks))
            topology = subset(whole, ranks, relays=relays)
            for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.BROADCAST):
                problem = posed(topology, collective)
                lowest = expected_inv_rate(problem)
                if lowest is None:
                    with pytest.raises(UnreachableError):
                        plan_forest(problem)
                    continue
                planned += 1
                reached = judged_inv_rate(problem, plan_forest(problem))
                assert reached >= lowest == bound(problem).inv_rate, describe(problem)
                assert reached == bound(problem).attainable, describe(problem)
        assert planned >= 20


class TestUnequalShares:
    PATH = wired(("a", "b", 1), ("b", "c", 2))

    @pytest.mark.parametrize(
        ("weights", "gather", "scatter"),
        [
            ((1, 0, 0), 1, 1),
            ((0, 0, 5), 5, 5),
            ((0, 7, 0), 7, 7),
            ((1, 0, 1), 1, 1),
            ((4, 0, 1), 4, 4),
            ((0, 3, 1), 4, 4),
        ],
    )
    def test_zeros(self, weights: tuple[int, ...], gather: int, scatter: int) -> None:
        for collective, inv_rate in ((Collective.ALL_GATHER, gather), (Collective.REDUCE_SCATTER, scatter)):
            problem = Problem(topology=self.PATH, collective=collective, weights=weights)
            assert time_of(problem) == inv_rate

    @pytest.mark.parametrize("rank", range(8))
    def test_one_rank_with_everything_is_a_broadcast(self, rank: int) -> None:
        topology = resolve("dgx-1v")
        weights = tuple(3 * (r == rank) for r in range(8))
        alone = Problem(topology=topology, collective=Collective.ALL_GATHER, weights=weights)
        assert time_of(alone) == 3 * time_of(posed(topology, Collective.BROADCAST, rank))

    def test_sources_alone_need_a_way_out(self) -> None:
        """Ranks without data of their own need not reach anybody."""
        down = wired(("a", "b", 2), ("b", "c", 1), duplex=False)
        assert time_of(Problem(topology=down, collective=Collective.ALL_GATHER, weights=(1, 0, 0))) == 1
        with pytest.raises(UnreachableError):
            plan(Problem(topology=down, collective=Collective.ALL_GATHER, weights=(1, 1, 0)))

    @pytest.mark.parametrize(
        "weights", [(0, 0, 0), (1, -1, 1), (1, 1), (1, 1, 1, 1), (2**31, 1, 1), (10**30, 1, 1), ()]
    )
    def test_nonsense_is_refused(self, weights: tuple[int, ...]) -> None:
        with pytest.raises(InputError, match="weight"):
            plan(Problem(topology=self.PATH, collective=Collective.ALL_GATHER, weights=weights))


class TestHugeNumbers:
    def test_denominators_without_end_are_refused(self) -> None:
        with pytest.raises(InputError, match="`round_digits=3`"):
            wired(("a", "b", Fraction(1, 65537)), ("b", "c", Fraction(1, 65539)))
        with pytest.raises(InputError, match="`round_digits=3`"):
            wired(("a", "b", 2**62), ("b", "c", 1))

    def test_trees_beyond_all_integers_are_refused(self) -> None:
        names = "abcdefgh"
        rates = [2**57 - i for i in (1, 3, 7, 13, 25, 31, 57, 63)]
        ring = wired(*((names[i], names[(i + 1) % 8], rate) for i, rate in enumerate(rates)))
        with pytest.raises(InputError, match="`round_digits=3`"):
            plan(posed(ring, Collective.ALL_GATHER), ring=False)
        assert plan(posed(ring, Collective.ALL_GATHER), trees=1, ring=False).report.ok

    @pytest.mark.parametrize(
        "rates",
        [
            (Fraction(1, 2**31 - 1), 1, 1),
            (Fraction(10**9 + 7, 3), Fraction(998244353, 7), Fraction(1, 5)),
            (Fraction(2**31 - 19, 2**31 - 1), 1, 3),
            (2**40, 1, Fraction(12345, 1009)),
        ],
    )
    def test_large_numbers_that_fit_are_exact(self, rates: tuple[Fraction | int, ...]) -> None:
        ring = wired(("a", "b", rates[0]), ("b", "c", rates[1]), ("c", "a", rates[2]))
        for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.BROADCAST):
            problem = posed(ring, collective)
            assert time_of(problem) == expected_inv_rate(problem)
