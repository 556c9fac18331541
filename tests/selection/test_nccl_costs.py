"""NCCL's cost model: cells worked out by hand, availability, and constants against their published text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from coppice.collectives import Collective
from coppice.selection.nccl.connect import kernel_channels
from coppice.selection.nccl.costs import Channels, CostCell, NcclCommunicator, cells
from coppice.selection.nccl.releases import constants
from support.shared_data import SHARED

NOTE = SHARED / "systems" / "collectives.md"

H100 = NcclCommunicator(
    ranks=8,
    nodes=1,
    generation="hopper",
    cpu="intel",
    ring=Channels(count=12, within=30, across=30),
    tree=Channels(count=12, within=30, across=30),
    nvls=Channels(count=8, within=40, across=60),
    channels=24,
    nvls_channels=16,
)
FEW = replace(H100, ring=Channels(count=2, within=30, across=30))
RAILS = Channels(count=8, within=48, across=48, across_type="PXB", same=False)
CLUSTER = replace(
    H100, ranks=32, nodes=4, ring=RAILS, tree=RAILS, nvls=replace(RAILS, within=40), cpu="amd", channels=16
)
A100 = NcclCommunicator(
    ranks=16,
    nodes=2,
    generation="ampere",
    cpu="amd",
    ring=Channels(count=8, within=24, across=24, across_type="PXB", latency_us=1.0),
    tree=Channels(count=8, within=30, across=24, across_type="PXB", latency_us=1.0),
    channels=16,
)


OVER_PCIE = replace(A100, tree=replace(A100.tree, within_type="PHB"))
POWER = replace(OVER_PCIE, cpu="ibm")


def cell(
    comm: NcclCommunicator, collective: Collective, algorithm: str, protocol: str, size: int = 2**20
) -> CostCell:
    found = [c for c in cells(comm, collective, size) if (c.algorithm, c.protocol) == (algorithm, protocol)]
    assert len(found) == 1
    return found[0]


# (communicator, collective, algorithm, protocol, M, latency us, GB/s), each by hand from the constants.
CELLS = [
    # 14 steps of NVLink; 12 x 30 GB/s, and 8/14 of a bus byte per byte.
    (H100, "all_reduce", "Ring", "Simple", 2**20, 8.4 + 14 * 3.4, 360 * 8 / 14),
    # LL: half of 360, limited to Hopper's 141.
    (H100, "all_reduce", "Ring", "LL", 2**20, 6.6 + 14 * 0.6, 141 * 8 / 14),
    (FEW, "all_reduce", "Ring", "LL", 2**20, 6.6 + 14 * 0.6, 60 * 0.5 * 8 / 14),
    (H100, "all_reduce", "Ring", "LL128", 2**20, 14 + 14 * 1.9, 360 * 0.92 * 8 / 14),
    (H100, "all_gather", "Ring", "Simple", 2**20, 8.4 + 7 * 3.4, 360 * 8 / 7),
    (H100, "reduce_scatter", "Ring", "LL", 2**20, 6.6 + 7 * 0.6, 141 * 8 / 7),
    # One box: all channels alike, one hop.
    (H100, "broadcast", "Ring", "Simple", 2**20, 8.4 + 3.4, 360),
    # Size 2^20 is 2^14 times 64 bytes: the factor is entry 14.
    (H100, "all_reduce", "Tree", "Simple", 2**20, 8.4 + 2 * 7 * 4, 360 * 0.92 / 2 * 0.5),
    (H100, "all_reduce", "Tree", "LL", 2**20, 6.8 + 2 * 7 * 0.6, 360 * 0.92 / 3.8 / 2 * 0.5),
    (H100, "all_reduce", "Tree", "LL128", 2**20, 14 + 2 * 7 * 1.25, 360 * 0.92 * 7 / 9 / 2 * 0.6),
    (H100, "all_reduce", "NVLS", "Simple", 2**20, 25, 8 * min(40 * 0.85 * 7 / 8 * 2, 60) * 8 / 14),
    (H100, "all_gather", "NVLS", "Simple", 2**20, 25, 8 * 40 * 0.85 * 7 / 8 * 7 / 8),
    # Four boxes: 56 steps at home at three times AMD's 2 us, 6 between boxes; 2^20/(16 x 32) >= 64 bytes: x 1.4.
    (CLUSTER, "all_reduce", "Ring", "Simple", 2**20, (8.4 + 56 * 6 + 6 * 14) * 1.4, 384 * 32 / 62),
    (CLUSTER, "all_reduce", "Ring", "Simple", 64 * 512, (8.4 + 56 * 6 + 6 * 14) * 1.4, 384 * 32 / 62),
    (CLUSTER, "all_reduce", "Ring", "Simple", 64 * 512 - 1, 8.4 + 56 * 6 + 6 * 14, 384 * 32 / 62),
    # LL: AMD's row, four boxes or more: 19.
    (CLUSTER, "all_reduce", "Ring", "LL", 2**20, 6.6 + 56 * 2 + 6 * 2.7, 19 * 32 / 62),
    # 8 x 36 GB/s for trees is the limit, then 8 x 29 GB/s for LL128.
    (CLUSTER, "all_reduce", "Tree", "LL128", 2**20, 14 + 2 * (7 * 1.25 + 2 * 8.5), 232 / 2 * 0.6),
    (CLUSTER, "all_gather", "Ring", "Simple", 2**20, 8.4 + 28 * 6 + 3 * 14, 384 * 32 / 31),
    (CLUSTER, "reduce", "Ring", "Simple", 2**20, 8.4 + 32 * 14, 384),
    (CLUSTER, "all_reduce", "NVLSTree", "Simple", 2**20, 25 + 2 * 2 * 20.9, 8 * 45.5 * 32 / 62),
    # Two boxes count the channels inside, with the network's own latency, twice for Simple.
    (A100, "all_reduce", "Tree", "Simple", 2**20, 8.4 + 2 * (7 * 4 + 16), 8 * 23.6 / 2 * 0.5),
    (A100, "all_reduce", "Tree", "LL", 2**20, 6.8 + 2 * (7 * 0.6 + 6), 22.5 / 2 * 0.5),
    (A100, "broadcast", "Ring", "LL", 2**20, 6.6 + 2.7, 22.5),
    # Over PCIe, and there on POWER, where a step of a tree counts as one of a ring.
    (OVER_PCIE, "all_reduce", "Tree", "Simple", 2**20, 8.4 + 2 * (7 * 4 + 16), 8 * 23.6 / 2 * 0.5),
    (POWER, "all_reduce", "Tree", "Simple", 2**20, 8.4 + 2 * (7 * 5.7 + 16), 8 * 23.6 / 2 * 0.5),
]  # fmt: skip


@pytest.mark.parametrize(("comm", "collective", "algorithm", "protocol", "size", "latency", "rate"), CELLS)
def test_cells(
    comm: NcclCommunicator,
    collective: str,
    algorithm: str,
    protocol: str,
    size: int,
    latency: float,
    rate: float,
) -> None:
    found = cell(comm, Collective(collective), algorithm, protocol, size)
    assert found.latency_us == pytest.approx(latency, rel=1e-12)
    assert found.gb_per_s == pytest.approx(rate, rel=1e-12)
    assert found.time_us == pytest.approx(latency + size / (1000 * rate), rel=1e-12)


def test_pat_for_one_rank_in_each_box() -> None:
    lone = replace(CLUSTER, ranks=12, nodes=12, nvls=None)
    found = cell(lone, Collective.ALL_GATHER, "PAT", "Simple")
    # Latency of the network is that of trees with one rank in each box; 8 <= 12 < 16.
    assert found.latency_us == pytest.approx(8 + 3 * 14 / 3.5 + 12 * 2.8)
    assert found.gb_per_s == pytest.approx(384 * 0.75)
    assert cell(CLUSTER, Collective.ALL_GATHER, "PAT", "Simple").unavailable is not None


def test_collnet() -> None:
    adding = replace(CLUSTER, collnet_direct=RAILS, collnet_chain=RAILS)
    direct = cell(adding, Collective.ALL_REDUCE, "CollNetDirect", "Simple")
    assert direct.latency_us == pytest.approx(2 * (3.7 + 7 * 0.4) + 31)
    assert direct.gb_per_s == pytest.approx(384 * 0.85 / 2)
    chain = cell(adding, Collective.ALL_REDUCE, "CollNetChain", "Simple")
    assert chain.latency_us == pytest.approx(2 * 7 * 2.8 + 30)
    assert chain.gb_per_s == pytest.approx(384 / 2)
    assert cell(adding, Collective.ALL_REDUCE, "NVLS", "Simple").time_us is not None
    for algorithm in ("CollNetDirect", "CollNetChain", "NVLS"):
        assert cell(CLUSTER, Collective.ALL_REDUCE, algorithm, "Simple").unavailable is not None


def test_collnet_with_more_gpus_than_channels() -> None:
    few = replace(RAILS, count=4)
    adding = replace(CLUSTER, generation="ampere", collnet_direct=few, nvls=None)
    # 8 GPUs for 4 channels: factor 2 - 1/2.
    assert cell(adding, Collective.ALL_REDUCE, "CollNetDirect", "Simple").gb_per_s == pytest.approx(
        4 * 48 / 1.5 / 2
    )


@pytest.mark.parametrize(
    ("generation", "across_type", "available"),
    [
        ("hopper", "PXN", True),
        ("hopper", "PHB", False),
        ("ampere", "PXB", True),
        ("ampere", "PXN", False),
        ("ampere", "SYS", False),
    ],
)
def test_ll128_needs_good_paths(generation: str, across_type: str, available: bool) -> None:
    path = replace(RAILS, across_type=across_type)
    comm = replace(CLUSTER, generation=generation, ring=path, tree=path, nvls=None)
    assert (cell(comm, Collective.ALL_REDUCE, "Ring", "LL128").unavailable is None) == available
    by_pcie = replace(comm, ring=replace(RAILS, within_type="PIX"))
    assert "NVLink" in str(cell(by_pcie, Collective.ALL_REDUCE, "Ring", "LL128").unavailable)


def test_paths_by_pcie_have_their_own_latency() -> None:
    by_pcie = replace(H100, ring=replace(H100.ring, within_type="PIX"))
    assert cell(by_pcie, Collective.ALL_REDUCE, "Ring", "Simple").latency_us == pytest.approx(8.4 + 14 * 5.7)


def test_every_pair_of_algorithm_and_protocol_is_listed_once() -> None:
    counts = {"all_reduce": 18, "all_gather": 12, "reduce_scatter": 12, "broadcast": 3, "reduce": 3}
    for collective, count in counts.items():
        found = cells(CLUSTER, Collective(collective), 2**20)
        assert len({(c.algorithm, c.protocol) for c in found}) == len(found) == count
        for c in found:
            assert (c.time_us is None) == (c.unavailable is not None)


def test_tree_correction_at_its_ends() -> None:
    rate = 360 * 0.92 / 2
    for size, factor in (
        (0, 1),
        (63, 1),
        (64, 0.9),
        (2**13 - 1, 0.9),
        (2**13, 0.8),
        (2**28, 0.9),
        (2**29, 1),
        (2**40, 1),
    ):
        assert cell(H100, Collective.ALL_REDUCE, "Tree", "Simple", size).gb_per_s == pytest.approx(
            rate * factor
        ), size
    # The last entry belongs to NVLSTree of Blackwell alone.
    blackwell = replace(CLUSTER, generation="blackwell")
    for size, factor in ((2**20, 0.5), (2**29, 0.9), (2**30, 1)):
        found = cell(blackwell, Collective.ALL_REDUCE, "NVLSTree", "Simple", size).gb_per_s
        assert found == pytest.approx(8 * min(40 * 0.74 * 7 / 8 * 2, 48, 80) * 32 / 62 * factor), size
        arm = cell(replace(blackwell, cpu="arm"), Collective.ALL_REDUCE, "NVLSTree", "Simple", size).gb_per_s
        assert arm * factor == pytest.approx(found)


def test_channels_of_a_kernel() -> None:
    def count(searched: int, boxes: int, within: float, capability: int = 90, *, more: bool = False) -> int:
        return len(kernel_channels(searched, capability=capability, boxes=boxes, within=within, more=more))

    assert count(12, 1, 30) == 24
    assert count(8, 4, 48) == 16
    # Few fast ones across boxes twice as often, from Hopper on.
    assert count(4, 4, 48) == 16
    assert (count(4, 4, 40), count(4, 1, 48), count(4, 4, 48, 80)) == (8, 8, 8)
    assert count(8, 4, 40, more=True) == 24
    assert count(40, 1, 20) == 64


def test_terms_say_how_each_figure_comes_about() -> None:
    found = cell(CLUSTER, Collective.ALL_REDUCE, "Ring", "Simple")
    assert found.terms == (
        "latency: 8.4 + 56 x 6 + 6 x 14 = 428.4 us",
        "8 channels x 48 GB/s = 384 GB/s",
        "from bus to algorithm bandwidth: x 0.516129 = 198.194 GB/s",
        "plateau: 2048 bytes per channel and rank >= 64: latency x 1.4",
    )


@pytest.mark.skipif(not NOTE.is_file(), reason="the reference note is not there")
def test_constants_equal_the_published_ones() -> None:
    text = NOTE.read_text().partition("### 3.6")[2].partition("### 3.7")[0]
    data = constants()

    def numbers(after: str, until: str) -> list[float]:
        part = text.partition(after)[2].partition(until)[0]
        return [float(number) for number in re.findall(r"(?<![A-Za-z\d])\d*\.?\d+", part)]

    assert numbers("llMaxBw [1 node,2,4+]:", "(multi") == [
        v for row in data.ll_gb_per_s.values() for v in row
    ]
    tree = [v for row in data.tree_gb_per_s_per_channel.values() for v in row]
    assert numbers("perCh Tree:", "perCh NVLSTree") == tree
    tree128 = [v for row in data.tree_ll128_gb_per_s_per_channel.values() for v in row]
    assert numbers("perCh TreeLL128:", "perCh Tree:") == tree128
    assert numbers("perCh RingLL128:", ". perCh Tree") == [
        row[0] for row in data.ring_ll128_gb_per_s_per_channel.values()
    ]
    assert numbers("NVLS efficiency", ".\n") == [
        data.nvls_efficiency["hopper"],
        data.nvls_efficiency["blackwell"],
    ]
    corrections = text.partition("(24 entries):")[2]
    assert [float(v) for v in re.findall(r"[\d.]+", corrections.partition("LL ")[2].partition(";")[0])] == (
        data.tree_correction["LL"]
    )
    assert [
        float(v) for v in re.findall(r"[\d.]+", corrections.partition("LL128 ")[2].partition(";")[0])
    ] == (data.tree_correction["LL128"])
    base = text.partition("base LL/LL128/Simple: ")[2]
    for name, row in re.findall(r"(Tree|Ring|PAT) ([\d./]+)", base)[:3]:
        assert data.base_latency_us[name] == [float(v) for v in row.rstrip(".").split("/")]
    for link, part in zip(
        ("NVLINK", "PCI", "NET"),
        re.split(r"PCI: |NET: ", base.partition("hw NVLink: ")[2].partition("\n")[0]),
        strict=True,
    ):
        for name, row in re.findall(r"(Tree|Ring) ([\d./]+)", part)[:2]:
            assert data.hardware_latency_us[link][name] == [float(v) for v in row.rstrip(".").split("/")]
