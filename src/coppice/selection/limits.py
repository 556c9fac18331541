"""No predicted time below our own bound: what the links of a topology allow, for the class that an algorithm is of.

A cost model knows constants of GPUs and NICs, not the network. Algorithms whose GPUs add are held against the plain
bound, those whose switches add against the bound with the help of these.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from coppice.bounds import Problem, bound
from coppice.bounds.attainable import in_network_bound
from coppice.collectives import Collective
from coppice.selection.nccl_model import CostCell
from coppice.topology.model import NodeKind, Topology
from coppice.topology.operations import without_dead_ends

_NVSWITCHES_ADD = ("NVLS", "NVLSTree")
_NETWORK_ADDS = ("CollNetDirect", "CollNetChain")


def at_least_bound(
    cells: tuple[CostCell, ...], topology: Topology, collective: Collective, size_bytes: int, *, root: int = 0
) -> tuple[CostCell, ...]:
    """The cells, with the time of the bound where a model promises less.

    Args:
        size_bytes: M (see :mod:`coppice.collectives`).
        root: Root rank of a rooted collective.
    """
    plain = least_us(topology, collective, size_bytes, "", root)
    found = []
    for cell in cells:
        # With the help of switches the bound is no higher, and takes longer to compute.
        if cell.time_us is None or Fraction(cell.time_us) >= plain:
            found.append(cell)
        else:
            found.append(_capped(cell, least_us(topology, collective, size_bytes, cell.algorithm, root)))
    return tuple(found)


def least_us(
    topology: Topology, collective: Collective, size_bytes: int, algorithm: str, root: int = 0
) -> Fraction:
    """The time in microseconds that no schedule of an algorithm's class goes below.

    Args:
        root: Root rank of a rooted collective.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> box = preset("dgx-h100")
        >>> [float(least_us(box, Collective.ALL_REDUCE, 450_000, name)) for name in ("Ring", "NVLS")]
        [1.75, 1.0]
    """
    who = "network" if algorithm in _NETWORK_ADDS else "declared" if algorithm in _NVSWITCHES_ADD else "none"
    return _us_per_byte(topology, collective, root if collective.rooted else None, who) * size_bytes


@lru_cache(maxsize=64)
def _us_per_byte(topology: Topology, collective: Collective, root: int | None, adding: str) -> Fraction:
    """Microseconds for a byte of M at the bound; ``adding`` says whose switches may copy and add."""
    if adding == "network":
        switches = topology.kind == NodeKind.SWITCH
        topology = replace(
            topology, multicast=topology.multicast | switches, aggregate=topology.aggregate | switches
        )
    problem = Problem(topology=without_dead_ends(topology), collective=collective, root=root)
    inv_rate = bound(problem).inv_rate if adding == "none" else in_network_bound(problem).inv_rate
    return inv_rate / problem.shards / 1000


def _capped(cell: CostCell, least: Fraction) -> CostCell:
    time_us = cell.time_us or 0.0
    if Fraction(time_us) >= least:
        return cell
    words = f"NCCL's model promises {time_us:.6g} us, less than the links allow: the bound's time stands"
    return replace(cell, time_us=float(least), promised_us=time_us, terms=(*cell.terms, words))
