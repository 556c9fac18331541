"""Random clusters of equal boxes for property tests: NVSwitch, direct links or PCIe inside, on narrow fabrics too."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import strategies as st

from coppice.topology.composition.compose import Host, Port, compose, repeated
from coppice.topology.composition.fabric import RailFabric, SwitchFabric
from coppice.topology.model import Link, Node, NodeKind, Topology

ARCHITECTURES = (None, "sm_70", "sm_80", "sm_86", "sm_90", "sm_100")
RATES = st.sampled_from(
    [Fraction(each) for each in ("1/2", "3", "12", "16", "20", "25", "48", "64", "240", "450", "900")]
)


@st.composite
def boxes(draw: st.DrawFn) -> Topology:
    """GPUs joined by a switch, by each other, or by two PCIe switches under CPUs."""
    gpus, arch = draw(st.integers(2, 5)), draw(st.sampled_from(ARCHITECTURES))
    nodes = [Node(id=f"gpu{i}", host="box", arch=arch) for i in range(gpus)]
    kind = draw(st.sampled_from(("switch", "direct", "pcie")))
    if kind == "switch":
        adds = draw(st.booleans())
        nodes.append(Node(id="nvs", kind=NodeKind.SWITCH, host="box", multicast=adds, aggregate=adds))
        rate = draw(RATES)
        links = [
            Link(src=f"gpu{i}", dst="nvs", gb_per_s=rate * draw(st.sampled_from((1, 1, 1, Fraction(1, 2)))))
            for i in range(gpus)
        ]
    elif kind == "direct":
        links = [Link(src=f"gpu{i}", dst=f"gpu{(i + 1) % gpus}", gb_per_s=draw(RATES)) for i in range(gpus)]
    else:
        nodes += [
            Node(id=f"{name}{i}", kind=NodeKind.SWITCH, host="box")
            for name in ("plx", "cpu")
            for i in range(2)
        ]
        links = [Link(src=f"gpu{i}", dst=f"plx{i % 2}", gb_per_s=draw(RATES)) for i in range(gpus)]
        links += [Link(src=f"plx{i}", dst=f"cpu{i}", gb_per_s=draw(RATES)) for i in range(2)]
        links.append(Link(src="cpu0", dst="cpu1", gb_per_s=draw(RATES)))
    return Topology.of("box", nodes, links)


@st.composite
def clusters(draw: st.DrawFn) -> Topology:
    """One to three boxes, with one NIC or one for each GPU, on a fabric that may be too narrow for them."""
    box, count = draw(boxes()), draw(st.integers(1, 3))
    gpus = [box.node_ids[v] for v in box.rank_nodes.tolist()]
    rate = draw(RATES)
    ports = tuple(
        Port(at=gpu, gb_per_s=rate, nic=f"nic{i}" if draw(st.booleans()) else None)
        for i, gpu in enumerate(gpus if draw(st.booleans()) else gpus[:1])
    )
    narrow = draw(st.sampled_from((1, 4, 100)))
    fabric = draw(
        st.sampled_from(
            (SwitchFabric(), RailFabric(hosts_per_leaf=1, spines=1, oversubscription=Fraction(narrow)))
        )
    )
    hosts = repeated(Host(name="box", topology=box, ports=ports), count)
    return compose(hosts, None if count == 1 else fabric, name="made up")
