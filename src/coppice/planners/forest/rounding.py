"""Whole numbers of trees per link that a packing can really use.

Rounding capacities down can leave a switch with more trees out than in. A packing without copying needs in >= out, so
outgoing links are lowered where the cuts leave room for it; where they do not, the time per tree is raised to the next
value at which some link gains a tree, and so on.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from coppice.bounds.network import Network
from coppice.bounds.tree_units import TreeUnits, floor_units, next_breakpoint, unbalanced, violations
from coppice.errors import InputError

__all__ = ["balanced_units"]

MAX_STEPS = 10_000


def balanced_units(network: Network, *, trees: int, scale: Fraction) -> TreeUnits:
    """Units for ``trees`` trees per unit of weight, at the first time per tree from ``scale`` on that can be balanced.

    Raises:
        InputError: If none is found within many steps.
    """
    for _ in range(MAX_STEPS):
        units = floor_units(network, trees=trees, scale=scale)
        if not violations(network, units, limit=1):
            trimmed = trim(network, units)
            if trimmed is not None:
                return trimmed
        scale = next_breakpoint(network, scale)
    msg = f"found no whole numbers of trees that balance the switches for {trees} trees per root: give another number."
    raise InputError(msg)


def trim(network: Network, units: TreeUnits) -> TreeUnits | None:
    """Lower outgoing links of switches with more trees out than in until none is left; None if the cuts forbid it."""
    capacity = units.capacity.copy()
    topology = network.topology
    while (nodes := unbalanced(network, capacity)).size:
        node = int(nodes[0])
        outgoing = np.flatnonzero(topology.src == node)
        surplus = int(capacity[outgoing].sum() - capacity[topology.dst == node].sum())
        for link in outgoing[np.argsort(-capacity[outgoing], kind="stable")].tolist():
            lowered = min(surplus, int(capacity[link]))
            lowered -= missing(network, units, capacity, link, lowered)
            capacity[link] -= lowered
            surplus -= lowered
            if surplus == 0:
                break
        if surplus > 0:
            return None
    return replace(units, capacity=capacity)


def missing(network: Network, units: TreeUnits, capacity: np.ndarray, link: int, lowered: int) -> int:
    """How much too much it is to lower ``link`` by ``lowered``: the worst deficit of a cut that it enters."""
    trial = capacity.copy()
    trial[link] -= lowered
    topology = network.topology
    worst = 0
    demand = int(units.roots.sum())
    while cuts := violations(network, replace(units, capacity=trial)):
        deficit = 0
        for cut in cuts:
            inside = np.zeros(topology.num_nodes, dtype=np.bool_)
            inside[cut] = True
            entering = inside[topology.dst] & ~inside[topology.src]
            deficit = max(deficit, demand - int(units.roots[cut].sum()) - int(trial[entering].sum()))
        trial[link] += deficit
        worst += deficit
    return worst
