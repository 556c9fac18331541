"""Less of a network never helps, more never hurts: on presets, real dumps and random graphs, for every collective."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from functools import cache

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coppice import Collective, InputError, Problem, bound
from coppice.errors import UnreachableError
from coppice.topology import PRESETS, Topology, preset
from coppice.topology.model import Link, NodeKind
from coppice.topology.operations import relabel, remove_nodes, subset
from coppice.topology.readers import read
from reference.strategies import CONNECTED_FAMILIES, topologies
from support.shared_data import SHARED

relaxed = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
COLLECTIVES = (
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_REDUCE,
    Collective.BROADCAST,
    Collective.REDUCE,
    Collective.ALL_TO_ALL,
)
BOXES = ("dgx-1v", "ndv2", "dgx-a100", "dgx-a100-pcie", "mi100", "mi300x")
DUMPS = (
    *sorted((SHARED / "topologies").glob("*"))[::2],
    *sorted((SHARED / "cases").glob("1[1-9]*/*.txt"))[::2],
)


@cache
def machines() -> tuple[Topology, ...]:
    """Presets of one and two boxes, and dumps with PCIe kept and only as the way to NICs."""
    found = [preset(name) for name in BOXES] + [preset(name, boxes=2) for name in BOXES[:3]]
    found += [preset(name) for name in ("pcie-box", "star", "ring") if name in PRESETS]
    for path in DUMPS:
        for options in ({}, {"pcie": "nics"}):
            for model in ({}, {"gpu": "a100"}, {"gpu": "mi250", "xgmi_links": "1"}):
                try:
                    found.append(read(path.read_bytes(), options={**options, **model}).topology)
                    break
                except InputError:
                    continue
    return tuple(found)


def sometimes(draw: st.DrawFn) -> Topology:
    """A machine that exists, or a random graph."""
    return draw(st.one_of(st.sampled_from(machines()), topologies(CONNECTED_FAMILIES)))


@st.composite
def anything(draw: st.DrawFn) -> Topology:
    return sometimes(draw)


def any_collective(topology: Topology) -> st.SearchStrategy[Collective]:
    """All of them; programs of all_to_all take long on large machines."""
    return st.sampled_from(COLLECTIVES[: -1 if topology.num_nodes > 20 else None])


def times(topology: Topology, collective: Collective) -> tuple[Fraction, Fraction | None] | None:
    """Times per unit by the cut bound and as attained; None where the collective is impossible."""
    root = 0 if collective.rooted else None
    try:
        found = bound(Problem(topology=topology, collective=collective, root=root))
    except UnreachableError:
        return None
    return found.inv_rate, found.attainable


def check(less: Topology, more: Topology, collective: Collective) -> None:
    """``more`` is at least as fast as ``less``."""
    slow, fast = times(less, collective), times(more, collective)
    if slow is None:
        return
    assert fast is not None, "more of the network made it impossible"
    assert fast[0] <= slow[0]
    assert fast[1] is None or slow[1] is None or fast[1] <= slow[1]


def with_links(topology: Topology, links: list[Link]) -> Topology:
    return Topology.of(topology.name, topology.nodes(), links)


@relaxed
@given(topology=anything(), data=st.data())
def test_a_removed_or_slowed_link_never_helps(topology: Topology, data: st.DataObject) -> None:
    collective = data.draw(any_collective(topology))
    links = topology.links()
    some = data.draw(st.sets(st.integers(0, len(links) - 1), min_size=1, max_size=3))
    share = data.draw(st.sampled_from([Fraction(0), Fraction(1, 2), Fraction(99, 100)]))
    less = [
        replace(link, gb_per_s=link.gb_per_s * share) if i in some else link
        for i, link in enumerate(links)
        if i not in some or share
    ]
    check(with_links(topology, less), topology, collective)


@relaxed
@given(topology=anything(), data=st.data())
def test_another_or_faster_link_never_hurts(topology: Topology, data: st.DataObject) -> None:
    collective = data.draw(any_collective(topology))
    ends = data.draw(st.lists(st.sampled_from(topology.node_ids), min_size=2, max_size=2, unique=True))
    rate = data.draw(st.sampled_from([Fraction(1, 3), Fraction(25), Fraction(1000)]))
    more = [*topology.links(), Link(src=ends[0], dst=ends[1], gb_per_s=rate, duplex=data.draw(st.booleans()))]
    check(topology, with_links(topology, more), collective)


@relaxed
@given(topology=anything(), data=st.data())
def test_a_removed_switch_or_nic_never_helps(topology: Topology, data: st.DataObject) -> None:
    collective = data.draw(any_collective(topology))
    others = [
        name
        for name, kind in zip(topology.node_ids, topology.kind.tolist(), strict=True)
        if kind != NodeKind.GPU
    ]
    if others:
        check(remove_nodes(topology, [data.draw(st.sampled_from(others))]), topology, collective)


@relaxed
@given(topology=anything(), data=st.data())
def test_relays_never_hurt(topology: Topology, data: st.DataObject) -> None:
    collective = data.draw(any_collective(topology))
    if topology.num_ranks < 3:
        return
    ranks = data.draw(
        st.lists(
            st.integers(0, topology.num_ranks - 1),
            min_size=2,
            max_size=min(6, topology.num_ranks - 1),
            unique=True,
        )
    )
    check(subset(topology, ranks), subset(topology, ranks, relays=True), collective)


@relaxed
@given(topology=anything(), data=st.data())
def test_names_and_the_order_of_ranks_change_nothing(topology: Topology, data: st.DataObject) -> None:
    collective = data.draw(any_collective(topology))
    if collective.rooted:
        return
    shuffled = random.Random(data.draw(st.integers(0, 2**20)))
    nodes, links = topology.nodes(), topology.links()
    ranks = list(range(topology.num_ranks))
    shuffled.shuffle(ranks)
    turned = [node if node.rank is None else replace(node, rank=ranks[node.rank]) for node in nodes]
    shuffled.shuffle(turned)
    shuffled.shuffle(links)
    again = Topology.of("again", turned, links)
    again = relabel(again, {name: f"n{i}" for i, name in enumerate(again.node_ids)})
    assert times(again, collective) == times(topology, collective)
