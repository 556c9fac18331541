"""RCCL's picks: its boards, its cost model worked out by hand, its limits of sizes, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison import compare
from coppice.comparison.library import simulate_picks
from coppice.errors import InputError
from coppice.planners.planning import plan
from coppice.selection import select
from coppice.selection.rccl.boards import boards_of, constants
from coppice.simulation.models import model_of
from coppice.topology.model import Link, Node, Topology
from coppice.topology.presets import preset
from support.pages import coppice

BOXES = {"mi250": "gfx90a", "mi300x": "gfx942", "mi355x": "gfx950"}


def renumbered(topology: Topology, seed: int) -> Topology:
    """The same box with its GPUs in another order."""
    order = np.random.default_rng(seed).permutation(topology.num_nodes).tolist()
    ids = topology.node_ids
    nodes = [Node(id=ids[i], host="box", arch=topology.arch[i]) for i in order]
    links = [
        Link(src=ids[a], dst=ids[b], gb_per_s=topology.gb_per_s(e), duplex=False)
        for e, (a, b) in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    ]
    return Topology.of("renumbered", nodes, links)


@pytest.mark.parametrize("name", BOXES)
@pytest.mark.parametrize("boxes", [1, 2, 5])
def test_rings_go_round_over_links(name: str, boxes: int) -> None:
    topology = preset(name, boxes=boxes)
    for box, each in enumerate(boards_of(topology, BOXES[name])):
        linked = {
            (int(topology.rank[a]), int(topology.rank[b]))
            for a, b in zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
        }
        first = box * each.board.gpus
        for ring in each.rings:
            assert sorted(ring) == list(range(each.board.gpus))
            assert all((first + a, first + b) in linked for a, b in pairwise(ring))


def test_each_shipped_board_is_consistent() -> None:
    for board in constants().boards:
        assert board.rings
        assert all(0 <= a < b < board.gpus and count > 0 for a, b, count in board.links)
        for ring in board.rings:
            gpus = [int(word) for word in ring.split() if not word.startswith("N")]
            nics = [int(word[1:]) for word in ring.split() if word.startswith("N")]
            assert sorted(gpus) == list(range(board.gpus)), (board.name, ring)
            assert len(nics) in (0, 2)
            assert all(nic < board.nics for nic in nics)


@pytest.mark.parametrize("name", BOXES)
def test_boards_are_found_under_any_numbering(name: str) -> None:
    box = preset(name)
    for seed in range(3):
        mixed = renumbered(box, seed)
        (matched,) = boards_of(mixed, BOXES[name])
        assert len(matched.rings) == len(boards_of(box, BOXES[name])[0].rings)
        for size in (2**12, 2**20, 2**30):
            ours, theirs = (select("rccl", "all_reduce", size, topology=each) for each in (box, mixed))
            assert (ours.algorithm, ours.channels, ours.cell) == (
                theirs.algorithm,
                theirs.channels,
                theirs.cell,
            )


def test_the_cost_model_by_hand() -> None:
    """7 links of 48 GB/s: 336; a ring of 8 carries 8/14 of it as algorithm bandwidth, in 17 us and 14 steps of 2.1."""
    pick = select("rccl", "all_reduce", 2**26, topology=preset("mi300x"))
    assert pick.algorithm == "Ring/Simple"
    assert pick.cell is not None
    assert pick.cell.model_us == pytest.approx(17 + 14 * 2.1 + 2**26 / (1000 * 336 * 8 / 14))
    # Two boxes: half of 6% of it by trees of LL, down and up 7 GPUs and over one hop, nine tenths lost at 1 KiB.
    pick = select("rccl", "all_reduce", 2**10, topology=preset("mi300x", boxes=2))
    assert pick.algorithm == "Tree/LL"
    assert pick.cell is not None
    assert pick.cell.model_us == pytest.approx(
        12 + 2 * (7 * 0.9 + 10.5) + 2**10 / (1000 * 336 * 0.06 / 2 * 0.1)
    )


@pytest.mark.parametrize(
    ("name", "boxes", "collective", "size", "protocol"),
    [
        ("mi300x", 2, "all_reduce", 524288, "LL"),
        ("mi300x", 2, "all_reduce", 524289, "LL128"),
        ("mi300x", 2, "all_reduce", 4415057, "LL128"),
        ("mi300x", 2, "all_reduce", 4415058, "Simple"),
        ("mi300x", 4, "all_reduce", 16777216, "LL128"),
        ("mi300x", 4, "all_reduce", 16777217, "Simple"),
        ("mi355x", 2, "all_reduce", 262144, "LL"),
        ("mi355x", 2, "all_reduce", 70640910, "LL128"),
        ("mi355x", 2, "all_reduce", 70640912, "Simple"),
        ("mi300x", 2, "reduce_scatter", 16 * 131072, "LL"),
        ("mi300x", 2, "reduce_scatter", 16 * 131073, "LL128"),
        ("mi300x", 1, "reduce_scatter", 8 * 352128, "LL"),
        ("mi300x", 2, "broadcast", 16 * 8192, "LL"),
        ("mi300x", 2, "broadcast", 16 * 8193, "LL128"),
    ],
)
def test_sizes_decide_the_protocol(name: str, boxes: int, collective: str, size: int, protocol: str) -> None:
    pick = select("rccl", collective, size, topology=preset(name, boxes=boxes))
    assert pick.algorithm.endswith(f"/{protocol}"), (pick.algorithm, pick.notes)
    assert pick.cell is not None
    assert pick.cell.protocol == protocol


def test_small_all_gathers_go_directly() -> None:
    for name, boxes, most in (
        ("mi300x", 1, 4 << 20),
        ("mi300x", 4, 4 << 20),
        ("mi355x", 2, 4 << 20),
        ("mi355x", 4, 8 << 20),
    ):
        topology = preset(name, boxes=boxes)
        assert select("rccl", "all_gather", most, topology=topology).algorithm == "Direct/Simple"
        assert select("rccl", "all_gather", most + 8, topology=topology).algorithm.startswith("Ring/")
    assert select("rccl", "all_gather", 1024, topology=preset("mi250")).algorithm == "Ring/LL"


def test_channels() -> None:
    assert select("rccl", "all_reduce", 2**30, topology=preset("mi300x")).channels == 56
    assert select("rccl", "all_reduce", 2**30, topology=preset("mi250")).channels == 24
    two = preset("mi355x", boxes=2)
    found = [
        select("rccl", "reduce_scatter", 16 * each, topology=two).channels for each in (2048, 65536, 2**20)
    ]
    assert found == [4, 16, 48]


def test_ll128_is_told_and_can_be_said() -> None:
    topology = preset("mi300x", boxes=2)
    told = select("rccl", "all_reduce", 2**20, topology=topology)
    assert any("LL128 on" in words for words in told.assumptions)
    off = select("rccl", "all_reduce", 2**20, topology=topology, settings={"ll128": "no"})
    assert off.algorithm.endswith("/Simple")


def test_shipped_msccl_files_are_named() -> None:
    notes = " ".join(select("rccl", "all_reduce", 2**16, topology=preset("mi300x")).notes)
    assert "allreduce-allpairs-8n-ll-32tb.xml" in notes
    assert "MSCCL on" not in " ".join(select("rccl", "all_reduce", 2**26, topology=preset("mi300x")).notes)


def test_compare_and_simulate_say_the_same() -> None:
    problem = Problem(preset("mi300x"), "all_reduce")
    sizes = (2**12, 2**26)
    picks = compare(problem, sizes=sizes, algorithms=["nccl-ring"], jobs=1).picks
    for pick, row in zip(picks, simulate_picks(problem, "rccl", sizes, model=model_of()), strict=True):
        assert row.picked is not None
        assert row.picked.cell is not None
        assert (pick.library, pick.name, pick.channels) == ("RCCL", row.picked.algorithm, row.picked.channels)
        assert (pick.predicted_us, pick.predicted_by) == (row.picked.cell.time_us, row.picked.model_name)
        assert pick.time_us == row.time_us
        # What is simulated is a plan that does what it says.
        made = row.plan
        given = {name: str(each) for name, each in made.parameters.items() if name != "relay_gpus"}
        relays = made.parameters["relay_gpus"] is True
        assert plan(problem, algorithm=made.planner, parameters=given, relay_gpus=relays).report.ok


def test_what_it_refuses() -> None:
    with pytest.raises(InputError, match="expected AMD GPUs of gfx90a, gfx942, gfx950"):
        select("rccl", "all_reduce", 1024, topology=preset("dgx-h100"))
    with pytest.raises(InputError, match="expected a topology for RCCL"):
        select("rccl", "all_reduce", 1024, ranks=8)
    with pytest.raises(InputError, match="no input 'channels'"):
        select("rccl", "all_reduce", 1024, topology=preset("mi300x"), settings={"channels": "4"})
    ring = preset("ring", gpus=8)
    other = replace(ring, arch=tuple("gfx942" for _ in range(ring.num_nodes)))
    with pytest.raises(InputError, match="expected a board that RCCL knows"):
        select("rccl", "all_reduce", 1024, topology=other)


def test_direct_collectives_have_nothing_to_choose() -> None:
    pick = select("rccl", Collective.ALL_TO_ALL, 2**12, topology=preset("mi300x"))
    assert (pick.algorithm, pick.ours) == ("point-to-point", "linear")


def test_the_command() -> None:
    done = coppice("select", "mi300x", "--boxes", "4", "--library", "rccl", "--size", "1M", "--json")
    told = json.loads(done.stdout)
    assert (told["library"], told["algorithm"], told["protocol"]) == ("RCCL", "Tree/LL128", "LL128")
    assert told["predicted_by"].startswith("RCCL ")
