"""Advice on the eight clusters, on real dumps of machines, and for what people asked: every figure by another way."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import coppice
from coppice.advice.advise import LibraryAdvice
from coppice.advice.page import page_lines
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.topology.model import Topology
from coppice.topology.presets import preset
from support.shared_data import SHARED, needs_shared

SIZES = "1K,1M,1G"

CLUSTERS = {
    "dgx-a100": preset("dgx-a100", boxes=4),
    "dgx-h100": preset("dgx-h100", boxes=4),
    "dgx-1v": preset("dgx-1v", boxes=4),
    "mi250": preset("mi250", boxes=2),
    "mi300x": preset("mi300x", boxes=4),
    "torus": preset("torus", dims=(8, 8), gb_per_s=50),
    "dragonfly": preset(
        "dragonfly",
        groups=8,
        routers_per_group=4,
        gpus_per_router=2,
        gb_per_s=25,
        local_gb_per_s=25,
        global_gb_per_s=25,
    ),
    "fat-tree": preset("fat-tree", leaves=8, gpus_per_leaf=8, spines=4, oversubscription=2, gb_per_s=50),
}
"""Those of the page on eight clusters."""


def check_nccl(found: LibraryAdvice, cluster: Topology) -> None:
    """Rows are what the library's own model picks, no time is below the bound, and nothing is said to be worse."""
    limits: dict[Collective, float] = {}
    for row in found.rows:
        pick = coppice.select("nccl", row.collective, row.size_bytes, topology=cluster)
        assert row.picked == pick.algorithm
        if row.picked_us is None:
            continue
        assert row.picked_us == pick.cell.time_us or (
            "links between switches" in row.model and row.picked_us > pick.cell.time_us
        )
        assert row.best_us is not None
        assert row.best_us <= row.picked_us
        if not row.picked.startswith(("NVLS", "CollNet")):
            if row.collective not in limits:
                limits[row.collective] = float(coppice.bound(cluster, row.collective).algbw_gb_per_s)
            assert row.picked_us >= row.size_bytes / limits[row.collective] / 1000 * (1 - 1e-9)


@pytest.mark.parametrize("name", [name for name in CLUSTERS if name.startswith("dgx")])
def test_clusters_with_nccl_need_nothing(name: str) -> None:
    found = coppice.advise(CLUSTERS[name], sizes=SIZES, collectives="all_reduce,all_gather")
    assert found.library == "nccl"
    check_nccl(found, CLUSTERS[name])
    assert not found.gaining
    assert not found.changes


@pytest.mark.parametrize("name", ["mi250", "mi300x"])
def test_clusters_of_amd_are_for_rccl(name: str) -> None:
    found = coppice.advise(CLUSTERS[name], sizes="1M", collectives="all_reduce")
    assert found.library == "rccl"
    assert all(row.best_us is None or row.best_us <= row.picked_us for row in found.rows)


@pytest.mark.parametrize(("name", "size"), [("fat-tree", 2**22), ("fat-tree", 2**16), ("dragonfly", 2**22)])
def test_clusters_with_mpi_are_simulated(name: str, size: int) -> None:
    """What Open MPI picks and what is advised take what `simulate` says of the same algorithms."""
    cluster = CLUSTERS[name]
    (row,) = coppice.advise(
        cluster, library="open-mpi", sizes=str(size), collectives="all_reduce", jobs=1
    ).rows
    own = coppice.select("open-mpi", "all_reduce", size, topology=cluster)
    assert row.picked == own.runs_as
    made = coppice.plan(
        cluster, "all_reduce", algorithm=own.ours, parameters=dict(own.parameters), order="rank"
    )
    assert row.picked_us == pytest.approx(coppice.simulate(made, size, model="mpi-tcp", pieces=1).time_us)
    assert row.best_us is not None
    assert row.best_us <= row.picked_us


@pytest.mark.parametrize("library", ["open-mpi", "mpich"])
def test_nodes_of_a_torus_pass_messages_on(library: str) -> None:
    """There are no switches between most ranks: what passes by is simulated as what GPUs relay."""
    torus = preset("torus", dims=(3, 4), gb_per_s=50)
    found = coppice.advise(torus, library=library, sizes="4M", collectives="all_reduce", jobs=1)
    (row,) = found.rows
    own = coppice.select(library, "all_reduce", 2**22, topology=torus)
    made = coppice.plan(
        torus,
        "all_reduce",
        algorithm=own.ours,
        parameters=dict(own.parameters),
        order="rank",
        relay_gpus=True,
    )
    assert row.picked_us == pytest.approx(coppice.simulate(made, 2**22, model="mpi-tcp", pieces=1).time_us)
    assert any("passed on" in words for words in found.assumptions)


def test_ranks_in_another_order_are_simulated(tmp_path: Path) -> None:
    """Ranks dealt over leaves: the ring of Open MPI crosses all of them, and in the order that is written few."""
    tree = preset("fat-tree", leaves=2, gpus_per_leaf=3, spines=1, oversubscription=3, gb_per_s=1)
    dealt = coppice.load(tree, ranks=[0, 3, 1, 4, 2, 5])
    found = coppice.advise(
        dealt,
        library="open-mpi",
        sizes="16M",
        collectives="all_reduce",
        jobs=1,
        write=str(tmp_path / "advice"),
    )
    (row,) = found.rows
    assert row.change == "all changes"
    assert row.gain > 2
    hosts = (tmp_path / "advice" / "hosts.txt").read_text().split()
    of_host = {dealt.hosts[dealt.host[node]]: rank for rank, node in enumerate(dealt.rank_nodes)}
    moved = coppice.load(dealt, ranks=[of_host[host] for host in hosts])
    assert row.best == "ring"
    made = coppice.plan(moved, "all_reduce", algorithm="ring", order="rank")
    assert row.best_us == pytest.approx(
        coppice.simulate(made, row.size_bytes, model="mpi-tcp", pieces=1).time_us
    )


# What is found of hosts, and whether something is gained, by the dump.
DUMPS = {
    "aws_p4d-24xl-topo.xml": None,
    "azure_ncv4-topo.xml": None,
    "azure_ndv4-topo.xml": None,
    "azure_ndv5-topo.xml": None,
    "dgx1v_8x_v100_4ib.txt": set[str](),
    "dgx_a100_8x.txt": set[str](),
    "gb200_tray_4x.txt": set[str](),
    "h800_8x.txt": set[str](),
    "hgx_b200_8x.txt": set[str](),
    "hgx_b200_8x.xml": set[str](),
    "hgx_b200_8x_gpu2_nvlink_down.txt": {"mend H08"},
    "hgx_h100_8x_10nic.txt": set[str](),
    "hgx_h200_8x.txt": set[str](),
    "hgx_h200_8x.xml": set[str](),
    "oci_bm_gpu_h100_8x.xml": set[str](),
    "perlmutter_a100_4x.txt": set[str](),
    "perlmutter_a100_4x_nid001056.xml": set[str](),
    "v100_sxm2_8x_1nic.txt": set[str](),
}


def loaded(path: Path) -> Topology:
    if not path.is_file():
        pytest.skip(f"there is no {path}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return coppice.load(path)


@needs_shared
@pytest.mark.parametrize("name", DUMPS)
def test_dumps_of_real_machines(name: str) -> None:
    expected = DUMPS[name]
    path = SHARED / "topologies" / name
    if expected is None:
        with pytest.raises(InputError, match=r"gpu=|self_links=drop"):  # a skeleton without GPUs
            loaded(path)
        return
    cluster = loaded(path)
    found = coppice.advise(cluster, library="nccl", sizes=SIZES, collectives="all_reduce,all_gather")
    check_nccl(found, cluster)
    assert {row.change for row in found.gaining} == expected
    if not expected:
        assert any(line.startswith("nothing to change") for line in page_lines(found))


@needs_shared
def test_a_gpu_without_its_nvlinks_is_what_the_sound_box_is_without() -> None:
    folder = SHARED / "topologies"
    lost, sound = (
        coppice.advise(loaded(folder / name), sizes="64M", collectives="all_reduce")
        for name in ("hgx_b200_8x_gpu2_nvlink_down.txt", "hgx_b200_8x.txt")
    )
    (row,), (right,) = lost.rows, sound.rows
    assert (row.best, row.best_us) == (right.picked, pytest.approx(right.picked_us))
    assert row.gain > 2


CASES = SHARED / "cases"


@needs_shared
def test_three_nodes_are_not_expected_to_be_half_as_fast() -> None:
    """Case 20: 40 GB/s on 2 and 4 nodes, 20 on 3. NCCL reckons with the same rate of links on all of them."""
    folder = CASES / "20-three-nodes-half-as-fast"
    rates = []
    for nodes in (2, 3, 4):
        cluster = loaded(folder / f"nodes_{nodes}.json")
        found = coppice.advise(cluster, library="nccl", sizes="1G", collectives="all_gather")
        check_nccl(found, cluster)
        (row,) = found.rows
        assert row.picked_us is not None
        rates.append(row.size_bytes / row.picked_us / 1000 * (8 * nodes - 1) / (8 * nodes))
    assert rates == pytest.approx([48, 48, 48], rel=0.015)


@needs_shared
def test_what_was_measured_there_is_told_to_be_slow(tmp_path: Path) -> None:
    """Case 20 with its measurement: on 3 nodes half of what NCCL reckons with is no choice of NCCL's."""
    cluster = loaded(CASES / "20-three-nodes-half-as-fast" / "nodes_3.json")
    log = tmp_path / "all_gather.log"
    rows = []
    for size in (2**28, 2**30):
        micros = size * 23 / 24 / 20e3
        busbw = 20.0
        rows.append(
            f"{size:12d} {size // 96:12d} float none -1 {micros:9.1f} {size / micros / 1e3:7.2f} {busbw:7.2f} 0 "
            f"{micros:9.1f} {size / micros / 1e3:7.2f} {busbw:7.2f} 0"
        )
    log.write_text("\n".join(rows) + "\n")  # nothing says whose they are
    found = coppice.advise(cluster, library="nccl", sizes="1G", collectives="all_gather", logs=[log])
    page = "\n".join(page_lines(found))
    assert "2 measured calls of 2 take 1.5 times what NCCL reckons with and more, 2.4 times at most" in page
    assert "nothing to change" not in page


@needs_shared
def test_a_collapse_is_told_from_a_choice() -> None:
    """Case 01: all-reduces of 64 MB and more take 58 times and more what NCCL reckons with; no choice does that."""
    log = CASES / "01-rows-torn-by-tuning-log" / "all_reduce_3x8_h100.log"
    cluster = preset("dgx-h100", boxes=3)
    found = coppice.advise(cluster, sizes="1K", collectives="all_reduce", logs=[log])
    assert (found.version, found.version_from) == ("2.22.3", str(log))
    measured = {row.size_bytes: row for row in found.rows if row.reckoned_us is not None}
    assert len(measured) == 14
    assert measured[2**18].picked == "Tree/LL128"
    times = {size: row.picked_us / row.reckoned_us for size, row in measured.items()}
    for size, row in measured.items():
        pick = coppice.select("nccl-2.22", "all_reduce", size, topology=cluster)
        assert row.reckoned_us == pick.cell.time_us
        assert (times[size] > 50) is (size >= 2**26)
    assert "the host or the network holds them up" in "\n".join(page_lines(found))


@needs_shared
@pytest.mark.parametrize(
    ("name", "most", "measured"),
    [
        ("two_nodes.json", 43.75, 41.55),  # trees send half as much over the NICs as rings
        ("four_nodes.json", 31.25, 24.0),
        ("a100_2x200g.json", 93.75, 57.06),
        ("p3dn.json", 23.44, 15.0),  # 134 ms with trees
    ],
)
def test_bus_bandwidth_above_that_of_nics(name: str, most: float, measured: float) -> None:
    """Case 18: what NCCL reckons with is above the rate of the NICs on two boxes, and below the bound."""
    cluster = loaded(CASES / "18-busbw-above-the-nic" / name)
    found = coppice.advise(cluster, library="nccl", sizes="1G", collectives="all_reduce")
    check_nccl(found, cluster)
    (row,) = found.rows
    assert row.picked_us is not None
    ranks = cluster.num_ranks
    busbw = row.size_bytes / row.picked_us / 1000 * 2 * (ranks - 1) / ranks
    assert busbw <= most * (1 + 1e-9)
    assert busbw == pytest.approx(measured, rel=0.5)
    assert not found.gaining


@needs_shared
def test_one_gpu_of_a_node_has_one_way_to_its_nics() -> None:
    """Case 19: not 200 GB/s of four NICs, but what the PCIe link of a GPU lets through; 41 GB/s was measured at 32M."""
    cluster = loaded(CASES / "19-one-gpu-four-nics" / "two_hosts.json")
    part = coppice.load(cluster, ranks=[0, 8])
    found = coppice.advise(part, sizes="2M,32M", collectives="all_reduce")
    check_nccl(found, part)
    small, large = found.rows
    assert large.picked_us == pytest.approx(812.3, rel=0.2)
    assert small.picked_us == pytest.approx(113.2, rel=0.2)


def test_switches_that_add_pass_the_bound_of_gpus_that_add() -> None:
    """Case 21: 480 GB/s of bus bandwidth on a box whose NVLinks have 450: NVLS adds in the NVSwitches."""
    (row,) = coppice.advise("dgx-h100", sizes="1G", collectives="all_reduce").rows
    assert row.picked == "NVLS/Simple"
    assert row.picked_us is not None
    algbw = row.size_bytes / row.picked_us / 1000
    assert algbw * 2 * 7 / 8 > 450
    assert algbw == pytest.approx(273, rel=0.02)
