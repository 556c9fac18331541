"""Groups of ranks that exchange at once on small networks."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from coppice.bounds.together.demands import CARRIED, GroupDemand
from coppice.topology.model import Topology
from reference.strategies import BALANCED_FAMILIES, boxes, symmetric, topologies


@st.composite
def cases(draw: st.DrawFn, collectives: tuple[str, ...] = CARRIED) -> tuple[Topology, list[GroupDemand]]:
    """A small topology with one or two kinds of groups on some of its ranks."""
    topology = draw(topologies((*BALANCED_FAMILIES, boxes, symmetric), most=7))
    assume(topology.num_nodes <= 8)
    found = []
    for number in range(draw(st.integers(1, 2))):
        order = draw(st.permutations(range(topology.num_ranks)))
        size = draw(st.integers(2, max(2, topology.num_ranks)))
        if size > topology.num_ranks:
            continue
        count = draw(st.integers(1, topology.num_ranks // size))
        groups = [list(order[k * size : (k + 1) * size]) for k in range(count)]
        sizes = [Fraction(draw(st.integers(1, 9)) * 10**9) for _ in groups]
        name = draw(st.sampled_from(collectives))
        found.append(GroupDemand(f"d{number}", name, np.array(groups, dtype=np.int64), sizes))
    return topology, found
