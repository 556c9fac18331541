"""Algorithms in which switches copy and add."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.schedule.forest import Forest, Phase
from coppice.topology.model import Topology
from coppice.topology.presets import preset
from planners.algorithms.crossbar import made, verified, with_able_switches, with_ranks_shuffled
from support.alpha_beta import simulate

ALL_REDUCE = Collective.ALL_REDUCE


def algbw(body: object, shards: int = 1) -> Fraction:
    assert isinstance(body, Forest)
    inv_rate = verified(body).inv_rate
    assert inv_rate is not None
    simulate(body, 1 << 20)
    return shards / inv_rate


@pytest.mark.parametrize("gpus", [2, 3, 8])
def test_nvls_in_one_box(gpus: int) -> None:
    """Every rank sends M to the switch and receives M; for all-gather and reduce-scatter (g - 1)/g M one way."""
    box = preset("dgx-h100", gpus=gpus)
    assert algbw(made("nvls", ALL_REDUCE, box)) == 450
    for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        assert algbw(made("nvls", collective, box), gpus) == Fraction(450 * gpus, gpus - 1)


@pytest.mark.parametrize("boxes", [2, 3, 4])
def test_network_switches_add_up_the_slices(boxes: int) -> None:
    """Each of 8 rails takes M/8 once and gives it once: 400 GB/s; heads in the box need (g - 1)/g M, twice."""
    cluster = with_ranks_shuffled(with_able_switches(preset("dgx-h100", boxes=boxes)), boxes)
    assert algbw(made("nvls", ALL_REDUCE, cluster)) == 400
    for name in ("collnet-direct", "collnet-chain"):
        assert algbw(made(name, ALL_REDUCE, cluster)) == Fraction(450 * 8, 14)


def test_switch_of_the_network_is_the_root_of_both_phases() -> None:
    cluster = with_able_switches(preset("dgx-h100", boxes=2))
    forest = made("nvls", ALL_REDUCE, cluster)
    assert isinstance(forest, Forest)
    ids = [cluster.node_ids[root] for root in forest.tree_root.tolist()]
    assert sorted(ids) == sorted(2 * [f"rail{rail}" for rail in range(8)])
    assert forest.tree_phase.tolist() == 8 * [Phase.REDUCE, Phase.BROADCAST]


@pytest.mark.parametrize(("boxes", "expected"), [(1, 450), (2, 400), (4, 200)])
def test_nvls_tree(boxes: int, expected: int) -> None:
    """Between four boxes an inner head receives four halves of its slice, M/8, at 50 GB/s."""
    assert algbw(made("nvls-tree", ALL_REDUCE, preset("dgx-h100", boxes=boxes))) == expected


def test_nvls_tree_of_racks() -> None:
    assert algbw(made("nvls-tree", ALL_REDUCE, preset("gb200-nvl72"))) == 900


@pytest.mark.parametrize("name", ["collnet-direct", "collnet-chain"])
@pytest.mark.parametrize(
    "network",
    [
        preset("star", gpus=5),
        preset("fat-tree"),
        preset("dgx-a100", boxes=3),
        preset("dgx-a100-pcie", boxes=2),
    ],
    ids=lambda topology: topology.name,
)
def test_collnet(name: str, network: Topology) -> None:
    assert algbw(made(name, ALL_REDUCE, with_able_switches(network))) > 0


def test_adding_in_spines_alone_and_in_leaves_as_well() -> None:
    """With leaves that add, a leaf sends up once for all its ranks; without, paths run beside each other."""
    tree = preset("fat-tree", oversubscription=4)
    assert algbw(made("collnet-direct", ALL_REDUCE, with_able_switches(tree))) == 1
    spines = with_able_switches(tree)
    leaf = [name.startswith("leaf") for name in tree.node_ids]
    multicast, aggregate = spines.multicast.copy(), spines.aggregate.copy()
    multicast[leaf] = aggregate[leaf] = False
    only = replace(spines, multicast=multicast, aggregate=aggregate)
    assert algbw(made("collnet-direct", ALL_REDUCE, only)) == Fraction(1, 4)


@pytest.mark.parametrize(
    ("name", "collective", "topology", "complaint"),
    [
        (
            "nvls",
            ALL_REDUCE,
            preset("dgx-a100"),
            "multicast and aggregate next to all GPUs .* found none at gpu0",
        ),
        ("nvls", ALL_REDUCE, preset("dgx-h100", boxes=2), "between the boxes, found none"),
        ("nvls", Collective.ALL_GATHER, preset("dgx-h100", boxes=2), "in one box, found 2"),
        ("nvls", ALL_REDUCE, preset("fat-tree"), "boxes of 2 or more ranks"),
        ("nvls-tree", ALL_REDUCE, preset("torus"), "boxes of 2 or more ranks"),
        ("nvls-tree", ALL_REDUCE, with_able_switches(preset("mi250", boxes=2)), "next to all GPUs of a box"),
        ("collnet-direct", ALL_REDUCE, preset("star", gpus=4), "between the boxes, found none"),
        ("collnet-chain", ALL_REDUCE, preset("dgx-h100"), "several boxes, found one"),
    ],
)
def test_what_is_missing_is_said(
    name: str, collective: Collective, topology: Topology, complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        made(name, collective, topology)


@pytest.mark.parametrize("name", ["nvls", "nvls-tree", "collnet-direct", "collnet-chain"])
def test_one_rank_has_nothing_to_do(name: str) -> None:
    forest = made(name, ALL_REDUCE, preset("star", gpus=1))
    assert isinstance(forest, Forest)
    assert forest.num_trees == 0
    verified(forest)
