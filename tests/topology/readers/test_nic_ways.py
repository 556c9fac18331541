"""PCIe as nothing but the way to NICs: what it carries lies between no PCIe at all and all of it."""

from __future__ import annotations

import itertools
from fractions import Fraction
from functools import cache, partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coppice import Collective, InputError, Problem, bound, load
from coppice.topology import Topology
from coppice.topology.composition.compose import Host, compose, default_ports, repeated
from coppice.topology.composition.fabric import FatTreeFabric, RailFabric, SwitchFabric
from coppice.topology.readers import ReadOptions, read
from coppice.topology.readers.host_graph import HostGraph, MachinePart
from support.shared_data import SHARED

relaxed = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
COLLECTIVES = (
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_REDUCE,
    Collective.BROADCAST,
    Collective.ALL_TO_ALL,
)
FABRICS = (SwitchFabric(), RailFabric(), FatTreeFabric(oversubscription=Fraction(2)))
RATES = st.sampled_from([Fraction(n) for n in (3, 6, 12, 24, 48)] + [Fraction(25, 2), Fraction(22)])


def machine(draw: st.DrawFn, pcie: tuple[str, ...]) -> list[Topology]:
    """A random machine, its PCIe left in each of these ways: devices and switches anywhere below one to three CPUs."""
    cpus = draw(st.integers(1, 3))
    bridges = [draw(st.integers(-cpus, i - 1)) for i in range(draw(st.integers(0, 4)))]
    above = st.integers(-cpus, len(bridges) - 1)
    gpus = [draw(above) for _ in range(draw(st.integers(2, 5)))]
    nics = [draw(above) for _ in range(draw(st.integers(1, 5)))]
    switched = draw(st.booleans())
    rates = [(draw(RATES), draw(RATES) if draw(st.booleans()) else None) for _ in bridges + gpus + nics]
    fast, sockets = draw(RATES), draw(RATES)
    shortcut = draw(st.one_of(st.none(), st.tuples(above, above))) if bridges else None

    def built(pcie: str) -> Topology:
        graph = HostGraph()
        add = partial(graph.add, host="box")
        cpu = [add(f"cpu{i}", MachinePart.CPU) for i in range(cpus)]
        gpu = [add(f"gpu{i}", MachinePart.GPU, rank=i) for i in range(len(gpus))]
        nic = [add(f"nic{i}", MachinePart.NIC) for i in range(len(nics))]
        bridge = [add(f"pcie{i}", MachinePart.BRIDGE) for i in range(len(bridges))]

        def parent(number: int) -> str:
            return bridge[number] if number >= 0 else cpu[-1 - number]

        for node, number, (down, up) in zip(bridge + gpu + nic, bridges + gpus + nics, rates, strict=True):
            graph.connect(parent(number), node, down, duplex=up is None)
            if up is not None:
                graph.connect(node, parent(number), up, duplex=False)
        if shortcut is not None and parent(shortcut[0]) != parent(shortcut[1]):
            graph.connect(parent(shortcut[0]), parent(shortcut[1]), fast)
        graph.connect_cpus(dict.fromkeys(cpu, sockets))
        if switched:
            switch = add("nvswitch", MachinePart.GPU_SWITCH)
            for each in gpu:
                graph.connect(each, switch, fast)
        else:
            for a, b in itertools.pairwise(gpu):
                graph.connect(a, b, fast)
        return graph.topology("box", options=ReadOptions(pcie=pcie), source="", where="box")

    return [built(each) for each in pcie]


@st.composite
def machines(draw: st.DrawFn) -> list[Topology]:
    return machine(draw, ("drop", "nics", "keep"))


def cluster(box: Topology, boxes: int, fabric: SwitchFabric | RailFabric | FatTreeFabric) -> Topology:
    hosts = repeated(Host(name="h", topology=box, ports=default_ports(box)), boxes)
    return compose(hosts, fabric, name="cluster")


def check_order(topologies: list[Topology], collective: Collective) -> None:
    """Each next topology carries what the one before carries."""
    root = 0 if collective is Collective.BROADCAST else None
    found = [bound(Problem(topology=each, collective=collective, root=root)) for each in topologies]
    for less, more in itertools.pairwise(found):
        assert more.inv_rate <= less.inv_rate
        assert more.attainable is None or less.attainable is None or more.attainable <= less.attainable


@relaxed
@given(boxes=machines(), collective=st.sampled_from(COLLECTIVES))
def test_a_box_carries_no_less_with_the_ways_to_nics_and_no_more_than_with_all_of_pcie(
    boxes: list[Topology], collective: Collective
) -> None:
    check_order(boxes, collective)


@pytest.mark.slow
@settings(relaxed, max_examples=300)
@given(boxes=machines(), collective=st.sampled_from(COLLECTIVES))
def test_many_boxes_carry_no_less_with_the_ways_to_nics_and_no_more_than_with_all_of_pcie(
    boxes: list[Topology], collective: Collective
) -> None:
    check_order(boxes, collective)


@relaxed
@given(
    boxes=machines(),
    count=st.integers(2, 3),
    fabric=st.sampled_from(FABRICS),
    collective=st.sampled_from(COLLECTIVES),
    relays=st.booleans(),
)
def test_no_cluster_carries_more_than_with_all_of_pcie(
    boxes: list[Topology],
    count: int,
    fabric: SwitchFabric | RailFabric | FatTreeFabric,
    collective: Collective,
    relays: bool,
) -> None:
    made = [cluster(box, count, fabric) for box in boxes[1:]]
    if relays:  # one GPU of each box alone, the others forwarding
        ranks = [r * boxes[0].num_ranks for r in range(count)]
        made = [load(each, ranks=ranks, relays=True) for each in made]
    check_order(made, collective)


def matrix(rows: str) -> bytes:
    """The text of a matrix from lines of words; tabs between them."""
    lines = [line.split() for line in rows.strip().splitlines()]
    return "\n".join("\t".join(line) for line in [["", *lines[0]], *lines[1:]]).encode()


FOUR_V100 = matrix("""
GPU0 GPU1 GPU2 GPU3 NIC0 NIC1
GPU0 X NV2 NV2 NV2 PIX SYS
GPU1 NV2 X NV2 NV2 PIX SYS
GPU2 NV2 NV2 X NV2 SYS PIX
GPU3 NV2 NV2 NV2 X SYS PIX
NIC0 PIX PIX SYS SYS X SYS
NIC1 SYS SYS PIX PIX SYS X
""")


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        ({}, 12),
        ({"nic_gb_per_s": "6"}, 6),
        ({"rates": "nominal"}, Fraction(25, 2)),
        ({"pcie_gb_per_s": "5"}, 5),
    ],
)
@pytest.mark.parametrize("pcie", ["nics", "keep"])
def test_a_nic_beside_two_gpus_sends_at_its_own_rate(
    pcie: str, options: dict[str, str], rate: Fraction
) -> None:
    box = read(FOUR_V100, options={"gpu": "v100", "pcie": pcie, **options}).topology
    assert [port.gb_per_s for port in default_ports(box)] == [rate, rate]
    for boxes in (2, 4):
        found = bound(Problem(topology=cluster(box, boxes, SwitchFabric()), collective=Collective.ALL_REDUCE))
        assert found.algbw_gb_per_s == 2 * rate * (1 if boxes == 2 else Fraction(boxes, 2 * (boxes - 1)))


def virtual_functions(count: int) -> bytes:
    """Two GPUs on switches of their own, with so many functions of one NIC behind each."""
    names = ["GPU0", "GPU1", *(f"NIC{i}" for i in range(2 * count))]

    def cell(a: int, b: int) -> str:
        if max(a, b) < 2:
            return "NV18"
        if a % 2 != b % 2:
            return "SYS"
        return "PXB" if min(a, b) < 2 else "PIX"

    rows = [
        [name, *("X" if a == b else cell(a, b) for b in range(len(names)))] for a, name in enumerate(names)
    ]
    return "\n".join("\t".join(row) for row in [["", *names], *rows]).encode()


@pytest.mark.parametrize("pcie", ["nics", "keep"])
def test_many_functions_of_a_nic_share_the_link_of_their_gpu(pcie: str) -> None:
    """9 ports at 48 GB/s behind one GPU whose own PCIe link carries 48."""
    box = read(virtual_functions(9), options={"gpu": "h100", "pcie": pcie}).topology
    two = load(cluster(box, 2, SwitchFabric()), ranks=[0, 2])
    assert bound(Problem(topology=two, collective=Collective.ALL_REDUCE)).algbw_gb_per_s == 48


def test_a_nic_far_from_gpus_that_have_their_own_joins_no_gpus() -> None:
    """GPUs do not reach each other over PCIe by a NIC that all are equally far from."""
    text = matrix("""
GPU0 GPU1 NIC0 NIC1 NIC2
GPU0 X NV12 PIX SYS NODE
GPU1 NV12 X SYS PIX NODE
NIC0 PIX SYS X SYS NODE
NIC1 SYS PIX SYS X NODE
NIC2 NODE NODE NODE NODE X
""")
    rates = {
        pcie: bound(
            Problem(
                topology=read(text, options={"gpu": "a100", "pcie": pcie}).topology,
                collective=Collective.ALL_GATHER,
            )
        ).algbw_gb_per_s
        for pcie in ("drop", "nics", "keep")
    }
    assert rates == {"drop": 480, "nics": 480, "keep": 528}


DUMPS = [
    *sorted((SHARED / "topologies").glob("*")),
    *sorted((SHARED / "cases").glob("1[1-9]*/*.txt")),
    *sorted((SHARED / "cases").glob("09*/*.xml")),
]


@cache
def read_each_way(path: Path) -> list[Topology]:
    """A dump without PCIe, with the ways to NICs and with all of it, by the first options with which it has NVLinks."""
    data = path.read_bytes()
    found: list[Topology] = []
    for options in ({}, {"gpu": "a100"}, {"gpu": "h100"}, {"gpu": "mi250", "xgmi_links": "1"}):
        here = []
        for pcie in ("drop", "nics", "keep"):
            try:
                here.append(read(data, options={"pcie": pcie, **options}).topology)
            except InputError:
                continue
        found = max(found, here, key=len)
    return found


@pytest.mark.skipif(not DUMPS, reason="no real dumps here: set COPPICE_SHARED")
@pytest.mark.parametrize("collective", COLLECTIVES, ids=str)
def test_real_dumps(collective: Collective) -> None:
    checked = 0
    for path in DUMPS:
        here = read_each_way(path)
        check_order(here, collective)
        if len(here) > 1 and default_ports(here[-1]):
            check_order([cluster(box, 2, SwitchFabric()) for box in here[-2:]], collective)
            checked += 1
    assert checked >= 12
