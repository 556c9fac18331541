"""Rings for RCCL on one box: which orders, each how often, lose least where all rings carry equal shares.

A forest branches and a ring does not, so that the rings are found anew for what a plan performs, on its topology
(:func:`coppice.planners.ring.best.best_ring`). Each is repeated in proportion to its share of the best mixture, and
what is lost against that mixture is counted exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.ring.best import RingPlan, best_ring
from coppice.schedule.plan import Plan
from coppice.topology.model import NodeKind

__all__ = ["MOST_RINGS", "RcclRings", "rccl_rings"]

MOST_RINGS = 64
"""Half of the channels that RCCL has, since it doubles them."""


@dataclass(frozen=True, kw_only=True)
class RcclRings:
    """Rings of equal shares.

    Attributes:
        orders: Ranks of each ring, in order.
        inv_rate: Time that the busiest link needs per GB of a shard, exact, 1 / (GB/s).
        best_inv_rate: The same for the best mixture of rings, with any shares.
        detours: Hops between GPUs without a link of their own, for which RCCL finds a path by itself.
    """

    orders: tuple[tuple[int, ...], ...]
    inv_rate: Fraction
    best_inv_rate: Fraction
    detours: int

    @property
    def text(self) -> str:
        """The value of ``NCCL_RINGS``."""
        return "|".join(" ".join(map(str, order)) for order in self.orders)


def rccl_rings(plan: Plan, *, rings: int | None = None) -> RcclRings:
    """Rings of equal shares for what a plan performs.

    Args:
        plan: A plan for one box.
        rings: Number of rings; None takes the number up to 64 that loses least, the smallest of several.

    Raises:
        InputError: If RCCL cannot run rings for the plan, or there is no ring through all GPUs.
    """
    _check(plan)
    if rings is not None and not 1 <= rings <= MOST_RINGS:
        msg = f"expected 1 .. {MOST_RINGS} rings, found {rings}."
        raise InputError(msg)
    found = best_ring(plan.problem)
    if found is None:
        msg = f"no ring goes through all GPUs of {plan.topology.name} over its links: export to rccl-trees."
        raise InputError(msg)
    made = list(_growing(found, MOST_RINGS if rings is None else rings))
    return made[-1] if rings is not None else min(made, key=lambda each: each.inv_rate)


def _check(plan: Plan) -> None:
    topology, collective = plan.topology, plan.problem.collective
    if not collective.made_of_trees:
        msg = f"RCCL runs no rings for {collective}: plan all_reduce, all_gather, reduce_scatter, broadcast or reduce."
        raise InputError(msg)
    if plan.problem.weights is not None:
        msg = "rings of RCCL are for blocks of equal size, found weights: plan without `weights`."
        raise InputError(msg)
    hosts = set(topology.host[topology.rank_nodes].tolist())
    if len(hosts) != 1:
        msg = f"NCCL_RINGS is made for one box, found {len(hosts)} hosts in {topology.name}: plan one box."
        raise InputError(msg)
    gpus = int((topology.kind == NodeKind.GPU).sum())
    if gpus != topology.num_ranks:
        msg = (
            f"NCCL_RINGS needs all {gpus} GPUs of the box to take part, found {topology.num_ranks}: plan all."
        )
        raise InputError(msg)


def _growing(found: RingPlan, most: int) -> Iterator[RcclRings]:
    """One ring, two, and so on: the next is the one that lacks most of its share."""
    topology, problem = found.problem.topology, found.problem
    ranks = topology.num_ranks
    hops = _hops(problem.collective, ranks)
    taken = [0] * len(found.orders)
    loads: Counter[tuple[int, int]] = Counter()
    orders: list[tuple[int, ...]] = []
    detours = 0
    for count in range(1, most + 1):
        at = max(range(len(taken)), key=lambda j: found.weights[j] * count - taken[j])
        taken[at] += 1
        orders.append(found.orders[at])
        # The hop back to where a rooted ring begins carries nothing.
        used = found.paths[at] if problem.root is None else _rooted(found, at)
        detours += sum(1 for path in found.paths[at] if len(path) > 2)
        for path in used:
            loads.update(pairwise(path))
        inv_rate = max(
            (
                hops * load / topology.gb_per_s(topology.link_index[link]) / count
                for link, load in loads.items()
            ),
            default=Fraction(0),
        )
        yield RcclRings(
            orders=tuple(orders), inv_rate=inv_rate, best_inv_rate=found.inv_rate, detours=detours
        )


def _hops(collective: Collective, ranks: int) -> Fraction:
    """What a hop of a ring carries, in shards."""
    if collective is Collective.ALL_REDUCE:
        return Fraction(2 * (ranks - 1), ranks)
    return Fraction(ranks - 1) if collective.sharded else Fraction(1)


def _rooted(found: RingPlan, at: int) -> tuple[tuple[int, ...], ...]:
    """Paths that a broadcast or a reduction uses: all but the one into the root, or out of it."""
    paths = found.paths[at]
    return paths[:-1] if found.problem.collective is Collective.BROADCAST else paths[1:]
