"""Orders of ranks that a library's own search found, as a parameter gives them, and the routes by the NICs it chose.

``0,7,6@5;0,6,7`` is two lists. In a ring ``6@5`` is rank 6 with the NIC of rank 5: libraries send a channel's data by
one NIC, which a GPU beside it reaches over a switch of PCIe or through the NIC's own GPU. In a tree the third of
``0,0,1@3`` is rank 2, whose parent is rank 1, with the NIC of rank 3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.schedule.schedule import Schedule
from coppice.topology.routing import Router


@dataclass(frozen=True, eq=False, kw_only=True)
class FoundOrder:
    """A list of ranks."""

    ranks: NDArray[np.int64]
    nics: NDArray[np.int64]  # At each place the rank whose NIC is used there


def found_orders(case: AlgorithmCase, name: str, *, parents: bool = False) -> list[FoundOrder]:
    """Lists that a parameter gives.

    Args:
        name: The parameter; its text may be empty. A place without ``@`` has its own rank's NIC.
        parents: Lists have the parent of every rank, with its own NIC.

    Raises:
        InputError: If it holds anything but ranks.
    """
    found = []
    for text in filter(None, str(case.parameters[name]).split(";")):
        places = [re.fullmatch(r"([0-9]{1,9})(?:@([0-9]{1,9}))?", each) for each in text.split(",")]
        ranks = [int(each[1]) for each in places if each is not None]
        own = range(len(ranks)) if parents else ranks
        nics = [int(each[2] or rank) for each, rank in zip(places, own, strict=False) if each is not None]
        if len(ranks) < len(places) or max(*ranks, *nics) >= case.size:
            raise InputError(
                f"expected `{name}` to be ranks below {case.size}, such as 0,1,2,3;0,3,2,1, found {text[:40]!r}: "
                "join ranks by commas, lists by semicolons."
            )
        found.append(FoundOrder(ranks=np.array(ranks), nics=np.array(nics)))
    return found


def orders_text(orders: Iterable[Sequence[tuple[int, int]]], *, parents: bool = False) -> str:
    """Lists of ranks, each with the rank whose NIC it uses, as a parameter gives them.

    Examples:
        >>> orders_text([[(0, 0), (1, 0)], [(1, 1), (0, 0)]])
        '0,1@0;1,0'
        >>> orders_text([[(0, 0), (0, 1), (1, 3)]], parents=True)
        '0,0,1@3'
    """
    return ";".join(
        ",".join(
            f"{rank}" if nic == (place if parents else rank) else f"{rank}@{nic}"
            for place, (rank, nic) in enumerate(order)
        )
        for order in orders
    )


def by_nics(schedule: Schedule, nics: Sequence[NDArray[np.int64]]) -> Schedule:
    """Route what crosses between boxes by given NICs.

    Args:
        schedule: Its chunks belong to the channels in turn.
        nics: For each channel and rank the rank whose NIC is used.
    """
    table = np.array(nics)
    channel = schedule.chunk % len(table)
    ends = np.stack([schedule.src, schedule.dst, table[channel, schedule.src], table[channel, schedule.dst]])
    host = schedule.topology.host[schedule.topology.rank_nodes]
    crosses = (host[ends[0]] != host[ends[1]]) & ((ends[0] != ends[2]) | (ends[1] != ends[3]))
    if not crosses.any():
        return schedule
    pairs, pair_of = np.unique(ends[:, crosses], axis=1, return_inverse=True)
    router = Router(schedule.topology, relay_gpus=True)
    routes = [_route(router, *pair) for pair in pairs.T.tolist()]
    path = schedule.path.copy()
    path[crosses] = len(schedule.path_start) - 1 + pair_of.reshape(-1)
    return replace(
        schedule,
        path=path,
        path_start=np.concatenate(
            [schedule.path_start, schedule.path_start[-1] + np.cumsum([len(route) for route in routes])]
        ),
        path_nodes=np.concatenate([schedule.path_nodes, *(np.array(each, np.int32) for each in routes)]),
    )


def _route(router: Router, src: int, dst: int, by: int, to: int) -> tuple[int, ...]:
    """The way from the NIC of ``by`` to that of ``to``, and the ways there from ``src`` and on to ``dst``."""
    nodes = router.topology.rank_nodes
    inner = router.path(by, to)
    if src != by:
        inner = _joined(router, int(nodes[src]), inner)
    if dst != to:
        inner = _joined(router, int(nodes[dst]), inner[::-1], back=True)[::-1]
    return inner


def _joined(router: Router, node: int, way: tuple[int, ...], *, back: bool = False) -> tuple[int, ...]:
    """The way from a node that shares a switch or the NIC with the way's first GPU, or else passes through that GPU."""
    links, host = router.topology.link_index, router.topology.host
    for place in range(1, len(way) - 1):
        if host[way[place]] != host[node]:
            break
        if ((way[place], node) if back else (node, way[place])) in links:
            return (node, *way[place:])
    inside = router.node_path(way[0], node)[::-1] if back else router.node_path(node, way[0])
    return (*inside, *way[1:])
