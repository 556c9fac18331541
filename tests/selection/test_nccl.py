"""NCCL's inputs read off topologies, the channels of its search, and the pick."""

from __future__ import annotations

import json
import warnings
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from coppice.bounds import Problem, bound
from coppice.bounds.attainable import in_network_bound
from coppice.cli import app
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.selection import Selection, select
from coppice.selection.nccl.selecting import SETTINGS
from coppice.topology.load import load
from coppice.topology.model import Topology
from coppice.topology.operations import scale_nodes
from coppice.topology.presets import preset
from support.random_clusters import clusters
from support.shared_data import SHARED


def pick(size: int, collective: Collective = Collective.ALL_REDUCE, **options: object) -> Selection:
    return select("nccl", collective, size, **options)  # type: ignore[arg-type]


def test_presets_are_read() -> None:
    one = pick(2**30, topology=preset("dgx-h100"))
    assert (one.algorithm, one.ours) == ("NVLS/Simple", "nvls")
    assert one.cell is not None
    # Bus bandwidth 476 GB/s.
    assert 2**30 / 1e3 / (one.cell.time_us or 0) * 14 / 8 == pytest.approx(476, rel=0.01)
    assert pick(2**30, topology=preset("dgx-a100")).algorithm == "Ring/Simple"
    assert pick(256, topology=preset("dgx-a100")).algorithm == "Ring/LL"
    assert pick(1024, topology=preset("dgx-h100", boxes=4)).algorithm == "Tree/LL"
    assert pick(2**20, topology=preset("dgx-h100", boxes=4)).algorithm == "Tree/LL128"
    assert pick(2**30, topology=preset("dgx-h100", boxes=4)).algorithm == "Ring/Simple"


def test_the_smallest_time_wins_and_the_first_of_equal_ones() -> None:
    for power in range(0, 34, 3):
        found = pick(2**power, topology=preset("dgx-h100", boxes=2))
        times = [cell.time_us for cell in found.cells if cell.time_us is not None]
        assert found.cell is not None
        assert found.cell.time_us == min(times)
        assert found.algorithm == f"{found.cell.algorithm}/{found.cell.protocol}"


def test_inputs_that_are_given_are_not_assumed() -> None:
    given = {
        "generation": "hopper",
        "cpu": "amd",
        "channels": "16",
        "bw_intra": "20",
        "bw_inter": "20",
        "type_inter": "PIX",
        "latency_inter": "0.5",
    }
    found = pick(2**20, ranks=16, ranks_per_box=8, settings=given)
    assert found.assumptions == ("GPUs and boxes as in dgx-h100",)
    terms = next(c.terms for c in found.cells if (c.algorithm, c.protocol) == ("Tree", "LL"))
    assert "latency: 6.8 + 2 x (7 x 0.6 + 1 x 5.5) = 26.2 us" in terms
    assert "16 channels x 20 GB/s = 320 GB/s" in terms


def test_what_is_assumed_is_said() -> None:
    found = " ".join(pick(2**20, ranks=24).assumptions)
    for words in (
        "dgx-h100",
        "3 boxes of 8 GPUs",
        "8 channels, 48 GB/s",
        "class PIX",
        "no latency of its own",
        "intel",
    ):
        assert words in found
    star = pick(2**20, topology=preset("star", gpus=6))
    assert any("all ranks share one box" in words for words in star.assumptions)


def test_nvls_can_be_turned_off_and_collnet_on() -> None:
    assert (
        pick(2**30, topology=preset("dgx-h100"), settings={"nvls_channels": "0"}).algorithm == "Ring/Simple"
    )
    cluster = preset("dgx-h100", boxes=4)
    on = pick(2**20, topology=cluster, settings={"collnet": "yes"})
    assert {c.algorithm for c in on.cells if c.time_us is not None} >= {
        "CollNetDirect",
        "CollNetChain",
        "NVLS",
    }


def test_one_gpu_in_each_box_takes_pat() -> None:
    few = pick(1024, Collective.ALL_GATHER, ranks=4, ranks_per_box=1)
    # 6.6 + 3 x 5 us for the ring, 8 + 2 x 14 / 3.5 + 4 x 2.8 us for PAT.
    latency = {(c.algorithm, c.protocol): c.latency_us for c in few.cells if c.time_us is not None}
    assert latency["Ring", "LL"] == pytest.approx(21.6)
    assert latency["PAT", "Simple"] == pytest.approx(27.2)
    assert few.algorithm == "Ring/LL"
    many = pick(2**20, Collective.ALL_GATHER, ranks=64, ranks_per_box=1)
    assert (many.algorithm, many.ours) == ("PAT/Simple", "pat")


@pytest.mark.parametrize("collective", [Collective.ALL_TO_ALL, Collective.GATHER, Collective.SCATTER])
def test_direct_collectives_have_no_choice(collective: Collective) -> None:
    found = pick(2**20, collective, ranks=4)
    assert (found.algorithm, found.ours, found.cells) == ("point-to-point", "linear", ())


def test_kernel_shrinks_with_the_size() -> None:
    def words(size: int) -> str:
        return pick(size, topology=preset("dgx-a100"), settings={"channels": "12"}).notes[0]

    # Ring with LL: 8 ranks x 8 bytes for each of 512 threads.
    assert words(64 * 512 * 3) == "the kernel takes 3 of 24 channels, 512 threads to move data each"
    assert words(64 * 512 * 3 - 1) == "the kernel takes 2 of 24 channels, 512 threads to move data each"
    assert words(64 * 256) == "the kernel takes 1 of 24 channels, 256 threads to move data each"
    assert words(1) == "the kernel takes 1 of 24 channels, 96 threads to move data each"


def test_one_rank_and_no_bytes() -> None:
    alone = pick(2**20, ranks=1)
    assert (alone.algorithm, alone.ours, alone.cells) == ("copy", None, ())
    empty = pick(0, ranks=8)
    assert empty.cell is not None
    assert empty.cell.time_us == empty.cell.latency_us


def test_channels_without_a_rate_are_not_available() -> None:
    found = pick(2**20, ranks=8, settings={"nvls_bw_intra": "0"})
    assert [c.unavailable for c in found.cells if c.algorithm == "NVLS"][2] == "its channels have no rate"


def test_many_ranks() -> None:
    found = pick(2**40, ranks=2**20)
    assert found.cell is not None
    assert (found.cell.time_us or 0) > 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ranks": 12}, r"up to 8\) or a multiple of 8, found 12"),
        ({"ranks": 12, "ranks_per_box": 8}, "equal boxes"),
        ({"ranks": 8, "settings": {"speed": "3"}}, "no input 'speed'"),
        ({"ranks": 8, "settings": {"channels": "0"}}, r"channels to be 1 \.\. 32"),
        ({"ranks": 8, "settings": {"channels": "33"}}, r"channels to be 1 \.\. 32"),
        ({"ranks": 8, "settings": {"bw_intra": "fast"}}, "bw_intra to be a number"),
        ({"ranks": 8, "settings": {"bw_intra": "nan"}}, "bw_intra to be a number"),
        ({"ranks": 8, "settings": {"bw_inter": "0"}}, "more than 0 GB/s"),
        ({"ranks": 8, "settings": {"generation": "kepler"}}, "generation to be volta"),
        ({"ranks": 8, "settings": {"type_inter": "C3"}}, "type_inter to be LOC"),
        ({"ranks": 8, "settings": {"collnet": "maybe"}}, "collnet to be yes or no"),
        ({"ranks": 8, "variant": "tuned"}, "neither functions nor tables"),
        ({"ranks": 0}, r"expected 1 \.\. 2,147,483,647 ranks, found 0"),
        ({"ranks": 2**31}, "found 2,147,483,648"),
        ({"ranks": 4, "ranks_per_box": 5}, r"1 \.\. 4 ranks per box, found 5"),
        ({}, "found neither"),
    ],
)
def test_what_is_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        pick(2**20, **options)


def test_barrier_is_not_one_of_nccls() -> None:
    with pytest.raises(InputError, match="NCCL has no barrier"):
        pick(0, Collective.BARRIER, ranks=8)


def test_settings_belong_to_nccl() -> None:
    with pytest.raises(InputError, match="which mpich does not have: leave out channels"):
        select("mpich", Collective.ALL_REDUCE, 1, ranks=2, settings={"channels": "2"})


def test_sizes_out_of_range() -> None:
    for size in (-1, 2**63):
        with pytest.raises(InputError, match="a size of 0"):
            pick(size, ranks=8)


def test_every_setting_changes_something() -> None:
    changed = {
        "generation": "blackwell",
        "cpu": "amd",
        "channels": "3",
        "bw_intra": "11",
        "bw_inter": "11",
        "tree_bw_intra": "11",
        "nvls_channels": "3",
        "nvls_bw_intra": "11",
        "nvls_bw_inter": "11",
        "type_intra": "PHB",
        "type_inter": "SYS",
        "latency_inter": "3",
        "same_channels": "yes",
        "collnet": "yes",
    }
    assert set(changed) == set(SETTINGS)
    for key, value in changed.items():
        for collective, boxes in (
            (Collective.ALL_REDUCE, 4),
            (Collective.ALL_REDUCE, 2),
            (Collective.BROADCAST, 4),
        ):
            topology = preset("dgx-h100", boxes=boxes)
            before = pick(2**24, collective, topology=topology)
            if pick(2**24, collective, topology=topology, settings={key: value}).cells != before.cells:
                break
        else:
            pytest.fail(f"{key} changes nothing")


COLLECTIVES = (
    Collective.ALL_REDUCE,
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.BROADCAST,
    Collective.REDUCE,
)
ROUNDING = 1 + Fraction(1, 2**50)
"""A time is the nearest floating-point number to its sum of a few."""

# As users give them: NVIDIA boxes, with the options that files need which do not say everything.
DUMPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("aws_p4d-24xl-topo.xml", {"gpu": "a100"}),
    ("azure_ncv4-topo.xml", {"self_links": "drop"}),
    ("azure_ndv4-topo.xml", {"gpu": "a100"}),
    ("azure_ndv5-topo.xml", {"gpu": "h100"}),
    ("dgx1v_8x_v100_4ib.txt", {}),
    ("dgx_a100_8x.txt", {}),
    ("gb200_tray_4x.txt", {"gpu": "b200"}),
    ("h800_8x.txt", {"gpu": "h800"}),
    ("hgx_b200_8x.txt", {"gpu": "b200"}),
    ("hgx_b200_8x.xml", {}),
    ("hgx_b200_8x_gpu2_nvlink_down.txt", {"gpu": "b200"}),
    ("hgx_h100_8x_10nic.txt", {"pcie": "nics"}),
    ("hgx_h200_8x.xml", {}),
    ("oci_bm_gpu_h100_8x.xml", {}),
    ("perlmutter_a100_4x.txt", {}),
    ("perlmutter_a100_4x_nid001056.xml", {}),
    ("v100_sxm2_8x_1nic.txt", {}),
)


def check_no_time_below_bounds(
    topology: Topology, collective: Collective, size: int, **inputs: str
) -> Selection:
    found = select("nccl", collective, size, topology=topology, settings=inputs)
    problem = Problem(topology, collective, root=0 if collective.rooted else None)
    plain = bound(problem).inv_rate / problem.shards / 1000 * size
    helped = None
    for cell in found.cells:
        if cell.time_us is None:
            continue
        least = plain
        if cell.algorithm in ("NVLS", "NVLSTree"):
            if helped is None:
                helped = in_network_bound(problem).inv_rate / problem.shards / 1000 * size
            least = helped
        assert Fraction(cell.time_us) * ROUNDING >= least, (cell.algorithm, cell.protocol)
        if cell.promised_us is not None:
            assert cell.promised_us < cell.time_us == float(least)
            assert any("NCCL's model promises" in term for term in cell.terms)
    return found


@pytest.mark.parametrize("rates", ["nominal", "measured"])
@pytest.mark.parametrize("boxes", [1, 2, 3])
@pytest.mark.parametrize(
    "name", ["dgx-1v", "ndv2", "dgx-a100", "dgx-a100-pcie", "dgx-h100", "hgx-h200", "dgx-b200", "gb200-nvl72"]
)
@pytest.mark.spread(5)
def test_presets(name: str, boxes: int, rates: str) -> None:
    topology = preset(name, boxes=boxes, rates=rates)
    for collective in COLLECTIVES[:2] if topology.num_ranks > 100 else COLLECTIVES:
        for size in (2**12, 2**24, 2**34):
            found = check_no_time_below_bounds(topology, collective, size)
            # What NCCL knows of these boxes is what they are: nothing has to be raised.
            assert all(cell.promised_us is None for cell in found.cells)


@pytest.mark.parametrize("name", ["star", "torus", "fat-tree", "dragonfly", "pcie-box", "complete"])
def test_networks_of_other_rates(name: str) -> None:
    for collective in COLLECTIVES:
        check_no_time_below_bounds(preset(name), collective, 2**30)


@pytest.mark.parametrize(("file", "options"), DUMPS)
def test_dumps(file: str, options: dict[str, Any]) -> None:
    path = SHARED / "topologies" / file
    if not path.is_file():
        pytest.skip(f"reference data not found at {path}: set COPPICE_SHARED to its directory")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        topology = load(path, **options)
    for collective in COLLECTIVES:
        check_no_time_below_bounds(topology, collective, 2**30)


random_cases = given(
    clusters(),
    st.sampled_from(COLLECTIVES),
    st.integers(1, 2**34),
    st.sampled_from(
        [{}, {"generation": "blackwell"}, {"channels": "32", "bw_intra": "90", "bw_inter": "90"}]
    ),
)


@random_cases
@settings(max_examples=20, deadline=None)
def test_random_clusters(
    topology: Topology, collective: Collective, size: int, inputs: dict[str, str]
) -> None:
    check_no_time_below_bounds(topology, collective, size, **inputs)


@pytest.mark.slow
@random_cases
@settings(max_examples=200, deadline=None)
def test_many_random_clusters(
    topology: Topology, collective: Collective, size: int, inputs: dict[str, str]
) -> None:
    check_no_time_below_bounds(topology, collective, size, **inputs)


def test_a_narrow_fabric_raises_the_time_and_keeps_the_pick() -> None:
    """Two racks of two boxes, 16 times too little between them: NCCL sees NICs of 50 GB/s and no further."""
    options = {"fabric": "rail", "hosts_per_leaf": "1", "spines": "1", "oversubscription": "16"}
    wide, narrow = preset("dgx-h100", boxes=2), preset("dgx-h100", boxes=2, **options)
    size = 2**30
    assert (
        bound(narrow, Collective.ALL_REDUCE).algbw_gb_per_s
        < bound(wide, Collective.ALL_REDUCE).algbw_gb_per_s
    )
    before, found = (select("nccl", Collective.ALL_REDUCE, size, topology=each) for each in (wide, narrow))
    assert found.algorithm == before.algorithm
    assert found.cell is not None
    assert before.cell is not None
    assert found.cell.promised_us == before.cell.time_us
    assert found.record()["promised_us"] == found.cell.promised_us < found.record()["time_us"]
    assert "NCCL's cost model promises" in found.notes[0]


def test_the_command_says_what_was_raised() -> None:
    words = (
        "dgx-h100 --boxes 2 --set fabric=rail --set hosts_per_leaf=1 --set spines=1 --set oversubscription=16"
    )
    command = ["select", *words.split(), "--library", "nccl", "--size", "1G"]
    text = CliRunner().invoke(app, [*command, "--why"]).stdout
    assert "NCCL's cost model promises" in text
    assert "less than the links allow" in text
    record = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert record["promised_us"] < record["time_us"]


def test_a_link_that_lost_rate_lowers_what_nccl_reckons() -> None:
    """One NVLink port at half its rate: 9 links, of which NCCL knows."""
    whole, half = preset("dgx-a100"), scale_nodes(preset("dgx-a100"), {"gpu3": "50%"})
    times = [
        check_no_time_below_bounds(each, Collective.ALL_REDUCE, 2**30).record()["time_us"]
        for each in (whole, half)
    ]
    assert times[1] > 1.7 * times[0]


def test_the_bound_of_a_root_counts() -> None:
    slow = scale_nodes(preset("dgx-a100", boxes=2), {"box1/nic7": "1%", "box1/gpu7": "1%"})
    times = [
        select("nccl", Collective.BROADCAST, 2**30, topology=slow, root=root).record()["time_us"]
        for root in (0, 15)
    ]
    problem = Problem(slow, Collective.BROADCAST, root=15)
    assert times[1] * 1.001 >= float(bound(problem).inv_rate * 2**30 / 1000)
