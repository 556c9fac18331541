"""No time of NCCL's cost model lies below the bound of its class, and what is raised to it is said."""

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
from coppice.selection import Selection, select
from coppice.topology.load import load
from coppice.topology.model import Topology
from coppice.topology.operations import scale_nodes
from coppice.topology.presets import preset
from support.random_clusters import clusters
from support.shared_data import SHARED

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


@given(
    clusters(),
    st.sampled_from(COLLECTIVES),
    st.integers(1, 2**34),
    st.sampled_from(
        [{}, {"generation": "blackwell"}, {"channels": "32", "bw_intra": "90", "bw_inter": "90"}]
    ),
)
@settings(max_examples=60, deadline=None)
def test_random_clusters(
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
