"""Orders of the ranks that suit a topology, for algorithms that know numbers only.

Rings and trees send most between neighbouring numbers. So the ranks of a box belong together, and from box to box a
rank is best followed by one on the same rail or under the same switch; on a tree of switches a depth-first walk crosses
every link once in each direction; on directly cabled GPUs a walk along the cables does.

    rank    as numbered
    rail    box after box; each is left and entered on one rail
    dfs     depth first through the switches
    near    a short closed tour of all ranks

All of them are judged by the links that a ring crosses; the order of fewest GPUs on the way, then fewest links, is
taken, and never one that crosses more links than rank order does.
"""

from __future__ import annotations

import numpy as np

from coppice.errors import InputError
from coppice.planners.algorithms.parts.boxes import boxes
from coppice.planners.algorithms.parts.tours import RELAY, crossings, hop_costs
from coppice.planners.algorithms.rings.box_rings import box_rings
from coppice.planners.ring.patch import patched_tour
from coppice.planners.ring.tour import local_tour
from coppice.topology.model import Topology

__all__ = ["POLICIES", "box_order", "depth_first", "links_crossed", "order_by"]

POLICIES = ("rank", "rail", "dfs", "near")
_MOST_RANKS = 4096  # more than that are not compared with each other
_MOST_TOURED = 256


def links_crossed(topology: Topology, order: tuple[int, ...]) -> int:
    """Links on the paths from every rank of a closed order to the next, all together.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> fabric = preset("fat-tree", leaves=2, gpus_per_leaf=2)
        >>> links_crossed(fabric, (0, 1, 2, 3)), links_crossed(fabric, (0, 2, 1, 3))
        (12, 16)
    """
    return _length(topology, order)[1]


def _length(topology: Topology, order: tuple[int, ...]) -> tuple[int, int]:
    """GPUs on the way, and links crossed, around a closed order."""
    hops = crossings(topology)[list(order), [*order[1:], *order[:1]]]
    return int((hops // RELAY).sum()), int((hops % RELAY).sum())


def box_order(topology: Topology) -> tuple[int, ...]:
    """An order of the ranks in which neighbours are near each other: ``result[p]`` is the rank at position p.

    Never one around which more links are crossed than in rank order. Rank order itself for more than 4,096 ranks
    without boxes.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> box_order(preset("torus", dims=(2, 3)))
        (0, 2, 5, 3, 4, 1)
    """
    if topology.num_ranks > _MOST_RANKS:
        return tuple(range(topology.num_ranks))
    orders = [order_by(topology, policy) for policy in POLICIES]
    limit = _length(topology, orders[0])[1]
    # The first of equals stays: rank order where nothing is gained.
    return min(
        (order for order in orders if _length(topology, order)[1] <= limit),
        key=lambda o: _length(topology, o),
    )


def order_by(topology: Topology, policy: str) -> tuple[int, ...]:
    """The order of one policy, one of :data:`POLICIES`; it begins with rank 0.

    Raises:
        InputError: If there is no such policy.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> order_by(preset("torus", dims=(3, 3)), "dfs")
        (0, 1, 2, 3, 4, 5, 6, 7, 8)
    """
    if policy not in POLICIES:
        msg = f"expected an order that is {', '.join(POLICIES[:-1])} or {POLICIES[-1]}, found {policy!r}."
        raise InputError(msg)
    ranks = tuple(range(topology.num_ranks))
    if policy == "rail" and len(boxes(topology)) > 1:
        return _from_zero(box_rings(topology, 1)[0])
    if policy == "dfs":
        return _from_zero(depth_first(topology))
    if policy == "near" and len(ranks) >= 4:
        return _from_zero(_near(topology))
    return ranks


def depth_first(topology: Topology) -> tuple[int, ...]:
    """Ranks as a depth-first walk through the switches meets them, from the first switch; lower nodes first.

    Ranks that no switch leads to follow as numbered.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> depth_first(preset("star", gpus=4))
        (0, 1, 2, 3)
    """
    out: list[list[int]] = [[] for _ in range(topology.num_nodes)]
    for src, dst in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
        out[src].append(dst)
    rank = topology.rank.tolist()
    order: list[int] = []
    seen: set[int] = set()
    for start in np.flatnonzero(topology.rank < 0).tolist():
        stack = [start]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if rank[node] >= 0:
                order.append(rank[node])
                continue
            # Ranks of this switch before the switches behind it; a stack gives back the last first.
            onward = sorted(out[node], key=lambda n: (rank[n] < 0, max(rank[n], 0), n))
            stack.extend(reversed(onward))
    met = set(order)
    return (*order, *(r for r in range(topology.num_ranks) if r not in met))


def _near(topology: Topology) -> tuple[int, ...]:
    """A short closed tour: along cables between ranks, else local search, for many ranks the nearest one each time."""
    along = _along_cables(topology)
    if along is not None:
        return along
    cost = hop_costs(topology, range(topology.num_ranks))
    np.fill_diagonal(cost, np.inf)
    if len(cost) <= _MOST_TOURED:
        natural = list(range(len(cost)))
        tour = local_tour(cost, np.random.default_rng(0), start=natural, kicks=0)
        again = local_tour(cost, np.random.default_rng(0), kicks=20)
        tours = [each for each in (tour, again) if each is not None]
        if tours:
            return min((tuple(each) for each in tours), key=lambda each: _length(topology, each))
    order = [0]
    cost[:, 0] = np.inf
    for _ in range(len(cost) - 1):
        order.append(int(np.argmin(cost[order[-1]])))
        cost[:, order[-1]] = np.inf
    return tuple(order)


def _along_cables(topology: Topology) -> tuple[int, ...] | None:
    """A closed tour that takes a cable at every step, or None where none was found."""
    if (topology.rank < 0).any():
        return None
    onward: list[list[int]] = [[] for _ in range(topology.num_ranks)]
    for src, dst in zip(
        topology.rank[topology.src].tolist(), topology.rank[topology.dst].tolist(), strict=True
    ):
        onward[src].append(dst)
    tour = patched_tour(onward, np.random.default_rng(0))
    return None if tour is None else tuple(tour)


def _from_zero(order: tuple[int, ...]) -> tuple[int, ...]:
    at = order.index(0)
    return order[at:] + order[:at]
