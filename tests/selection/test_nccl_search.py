"""NCCL's search: the native one equals its reference on made-up machines, and what is found on known ones."""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from coppice import _core
from coppice.selection.nccl.communicator import BoxOfRanks, found_by
from coppice.selection.nccl.graph import ChannelGraph, ChannelPattern
from coppice.selection.nccl.machine import (
    NVSWITCH,
    HostMachine,
    MachineGpu,
    Nic,
    PcieSwitch,
    PluginPort,
    Processor,
)
from coppice.selection.nccl.native import _columns, search
from coppice.selection.nccl.paths import systems_of
from coppice.selection.nccl.searching import SearchRequest, graphs_of, speeds_of
from coppice.selection.nccl.system import PathType, System, SystemKind
from reference.nccl_search import search as searched_plainly
from support.nccl_machines import drawn_machine


def box(
    capability: int,
    *,
    nvlink: float,
    gpus: int = 8,
    nics: int = 0,
    nic: float = 50.0,
    each: int = 1,
    pcie: float = 48.0,
) -> BoxOfRanks:
    """GPUs on an NVSwitch, so many on a PCIe switch, the NICs dealt out among the switches, on two processors."""
    switches = []
    for first in range(0, gpus, each):
        parts: list[MachineGpu | Nic] = [
            MachineGpu(
                key=f"gpu{i}", dev=i, capability=capability, gb_per_s=pcie, nvlinks=((NVSWITCH, nvlink),)
            )
            for i in range(first, min(gpus, first + each))
        ]
        for n in range(nics):
            if n * gpus // nics // each == first // each:
                port = PluginPort(dev=n, gb_per_s=nic)
                parts.append(Nic(key=f"nic{n}", gb_per_s=pcie, ports=(port,)))
        switches.append(PcieSwitch(key=f"pcie{first}", gb_per_s=pcie, parts=tuple(parts)))
    half = -(-len(switches) // 2)
    return BoxOfRanks(
        machine=HostMachine(
            processors=tuple(
                Processor(key=f"cpu{i}", maker="intel", gb_per_s=22.0, parts=tuple(part))
                for i, part in enumerate((switches[:half], switches[half:]))
                if part
            ),
            multicast=capability >= 90,
        ),
        gpus=tuple(f"gpu{i}" for i in range(gpus)),
    )


@pytest.mark.parametrize(
    ("capability", "nvlink", "nics", "found"),
    [
        # (ring channels, ring GB/s, tree GB/s inside, NVLS channels, inside, between)
        (80, 240.0, 0, (12, 20, 20, 0, 0, 0)),
        (90, 370.8, 0, (12, 30, 30, 8, 40, 60)),
        (100, 721.8, 0, (16, 45, 45, 8, 80, 90)),
        # 2 x 40 and 3 x 30 leave more than 5 x 20; below half of a speed that works nothing slower is tried.
        (80, 100.0, 0, (5, 20, 20, 0, 0, 0)),
        (80, 70.0, 0, (4, 15, 15, 0, 0, 0)),
        (90, 370.8, 8, (8, 48, 48, 8, 40, 48)),
        # As many heads of NVLS as NICs; and fast channels are split where they are four or fewer.
        (90, 370.8, 4, (8, 24, 48, 4, 48, 48)),
    ],
)
def test_known_boxes(capability: int, nvlink: float, nics: int, found: tuple[int, ...]) -> None:
    one = box(capability, nvlink=nvlink, nics=nics, each=2 if nics == 4 else 1)
    comm = found_by([one] * (2 if nics else 1)).communicator
    nvls = comm.nvls
    figures = (0, 0, 0) if nvls is None else (nvls.count, nvls.within, nvls.across)
    assert (comm.ring.count, comm.ring.within, comm.tree.within, *figures) == found
    assert comm.ring.count == comm.tree.count


@pytest.mark.parametrize(
    "seed",
    [*range(4), *range(5, 20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 60))],
)
def test_the_native_search_equals_its_reference(seed: int) -> None:
    random = Random(seed)
    machine = drawn_machine(random)
    gpus = [gpu.key for gpu in machine.gpus]
    random.shuffle(gpus)
    gpus = gpus[: random.randint(1, len(gpus))]
    several = random.random() < 0.6
    if len(gpus) == 1 and not several:
        return
    if random.random() < 0.3:
        machine = machine.adding()
    for system in systems_of(machine, gpus, several=several):
        for adds in (False, True):
            made = [
                graphs_of(system, multicast=machine.multicast, adds=adds and system.several, search=each)
                for each in (search, searched_plainly)
            ]
            for name in ("ring", "tree", "nvls", "collnet_chain", "collnet_direct"):
                mine, plain = (getattr(each, name) for each in made)
                assert rounded(mine) == rounded(plain), name


def rounded(graph: ChannelGraph | None) -> ChannelGraph | None:
    if graph is None:
        return None
    return replace(
        graph,
        within=round(graph.within, 4),
        across=round(graph.across, 4),
        latency_us=round(graph.latency_us, 4),
        orders=tuple(order[:1] for order in graph.orders)
        if graph.pattern is ChannelPattern.NVLS
        else graph.orders,
    )


def system(seed: int = 3) -> System:
    machine = drawn_machine(Random(seed))
    return systems_of(machine, [gpu.key for gpu in machine.gpus], several=True)[0]


def test_every_channel_takes_every_gpu_and_no_more_than_its_links_carry() -> None:
    for seed in range(30):
        machine = drawn_machine(Random(seed), most=6)
        for one in systems_of(machine, [gpu.key for gpu in machine.gpus], several=True):
            ring = search(SearchRequest(system=one, pattern=ChannelPattern.RING, least=1, most=32))
            ranks = sorted(gpu.rank for gpu in one.gpus)
            assert all(sorted(order) == ranks for order in ring.orders)
            if ring.across_type is PathType.SYS and ring.across == 0.1:
                continue  # NCCL found nothing and took the GPUs as they come
            by_rank = {gpu.rank: gpu for gpu in one.gpus}
            used: dict[int, float] = {}
            rates = {link.id: link.gb_per_s for link in one.number_links()}
            for order, (port_in, port_out) in zip(ring.orders, ring.ports, strict=True):
                way = [(one.nets[port_in], by_rank[order[0]], ring.across)]
                way += [(by_rank[a], by_rank[b], ring.within) for a, b in itertools.pairwise(order)]
                way.append((by_rank[order[-1]], one.nets[port_out], ring.across))
                for a, b, rate in way:
                    for link in a.paths[b.kind][b.index].links:
                        used[link.id] = used.get(link.id, 0.0) + rate
            assert all(total <= rates[link] + 0.01 for link, total in used.items()), seed


def test_a_search_that_reckons_otherwise_is_noticed() -> None:
    """The checks above would see a link that carries too much."""
    one = box(80, nvlink=240.0)
    lean = box(80, nvlink=200.0)
    assert found_by([one]).communicator.ring.count != found_by([lean]).communicator.ring.count


def test_columns_are_checked() -> None:
    one = system()
    request = SearchRequest(system=one, pattern=ChannelPattern.RING, least=1, most=32)
    speeds = np.array(speeds_of(80, several=True))
    columns = _columns(one)
    with pytest.raises(ValueError, match="rank must have"):
        _core.nccl_search(replace(columns, rank=columns.rank[:0]), request, speeds)
    with pytest.raises(ValueError, match=r"0 \.\. 64 channels"):
        _core.nccl_search(columns, replace(request, most=65), speeds)
    with pytest.raises(ValueError, match="a GPU and a speed"):
        _core.nccl_search(columns, request, speeds[:0])


def test_ranks_that_reach_each_other_faster_by_the_network_are_boxes_of_their_own() -> None:
    """Two sockets joined at 6 GB/s, with a GPU and a faster NIC on each: NCCL treats them as two machines."""
    parts = [
        PcieSwitch(
            key=f"pcie{i}",
            gb_per_s=48.0,
            parts=(
                MachineGpu(key=f"gpu{i}", dev=i, capability=90, gb_per_s=48.0),
                Nic(key=f"nic{i}", gb_per_s=48.0, ports=(PluginPort(dev=i, gb_per_s=50.0),)),
            ),
        )
        for i in range(2)
    ]
    machine = HostMachine(
        processors=tuple(
            Processor(key=f"cpu{i}", maker="intel", gb_per_s=6.0, parts=(part,))
            for i, part in enumerate(parts)
        )
    )
    found = found_by([BoxOfRanks(machine=machine, gpus=("gpu0", "gpu1"))])
    assert found.communicator.nodes == 2
    assert found.ranks == ((0,), (1,))
    assert found.connections.rings[0] == (0, 1)


def test_traffic_takes_the_gpu_beside_a_port() -> None:
    """One NIC for four GPUs on NVSwitches: the others reach it through that GPU (PXN), not through processors."""
    one = box(90, nvlink=370.8, gpus=4, nics=1)
    graph = systems_of(one.machine, list(one.gpus), several=True)[0]
    kinds = [gpu.paths[SystemKind.NET][0].kind for gpu in graph.gpus]
    assert kinds == [PathType.PIX, PathType.PXN, PathType.PXN, PathType.PXN]
