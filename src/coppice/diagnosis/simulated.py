"""Rates that flows of probes would have with slow parts and noise, to try a diagnosis with known answers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from coppice.diagnosis.design import ProbeDesign
from coppice.diagnosis.probes import GPU, HOST, rates
from coppice.errors import InputError
from coppice.text import suggestion
from coppice.topology.model import Topology

NOISE = 0.03
"""Standard deviation of the logarithm of a rate, where nothing else is said."""


def measure(
    design: ProbeDesign,
    slow: Mapping[str, float] = MappingProxyType({}),
    *,
    now: Topology | None = None,
    spread: float = NOISE,
    seed: int = 0,
) -> list[NDArray[np.float64]]:
    """Rates of all flows in max-min fairness with slow parts, with noise.

    Nothing of the model of the inference is used: links are slower, and rates are computed anew.

    Args:
        design: The probes.
        slow: Share of its rate that each slow part keeps, by its name.
        now: The network with faults, instead; links that are gone carry nothing.
        spread: Standard deviation of the logarithm of rates.
        seed: Where random choices begin.
    """
    parts = design.parts
    topology = parts.topology
    place = {name: part for part, name in enumerate(parts.names)}
    capacity = topology.capacity / topology.denominator
    if now is not None:
        where = [now.node_index.get(name, -1) for name in topology.node_ids]
        left = [
            now.link_index.get((where[a], where[b]))
            for a, b in zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
        ]
        capacity = np.array([0.0 if e is None else now.capacity[e] / now.denominator for e in left])
    ends = np.ones(topology.num_ranks)
    for name, share in slow.items():
        part = place.get(name)
        if part is None:
            raise InputError(f"expected a part of {topology.name}, found {name!r}: {suggestion(name, place)}")
        links = parts.links[parts.first[part] : parts.first[part + 1]]
        capacity[links] *= share
        if parts.kinds[part] in (GPU, HOST):  # what is slow there is the process, too
            nodes = topology.rank_nodes
            struck = parts.of_node[nodes] == part
            if len(parts.of_host):
                struck |= (topology.host[nodes] >= 0) & (parts.of_host[topology.host[nodes]] == part)
            ends[struck] *= share
    draw = np.random.default_rng(seed)
    found = []
    for each, healthy in zip(design.rounds, design.healthy, strict=True):
        most = healthy * np.minimum(ends[each.src], ends[each.dst])
        rate = np.minimum(rates(each, capacity), most)
        found.append(rate * np.exp(draw.normal(0.0, spread, len(rate))))
    return found
