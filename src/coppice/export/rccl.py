"""Export trees and rings for stock RCCL on one box: the values of ``RCCL_TREES`` and ``NCCL_RINGS``.

RCCL reduces along a tree to its root and broadcasts back along the same tree. Tree i serves the channels i, i + n and
so on, and all channels carry equal shares; a GPU has three children at most; GPUs are named by device index, which has
to be their rank. For a number of trees there are two ways, of which the better one is taken:

* the broadcast trees of the plan, repeated in proportion to their weights; children beyond the third move to other GPUs
  with a link of their own, where that loads links least;
* trees made anew for equal shares over the same links (:mod:`coppice.fitting.rccl`).

RCCL keeps a ring if it names every GPU of the communicator on the host once, by device index, and drops it without a
word otherwise. It gives every ring the same rate, and uses the rings in its ring and in its tree graph.

What is lost against the plan is counted exactly, by the load of links.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.export.formats import Exported, RcclRingsOptions, RcclTreesOptions
from coppice.fitting.rccl import check_one_box, depth_of, packed_trees, rccl_rings
from coppice.schedule.forest import Forest, Phase, expanded
from coppice.schedule.plan import Plan
from coppice.topology.model import Topology

MOST_CHILDREN = 3
MOST_TREES = 63
MOST_CHARACTERS = 255
"""Limits of RCCL: children of a GPU, trees, and the text of a tree."""

Loads = dict[tuple[int, int], int]


@dataclass(frozen=True, kw_only=True)
class RcclTrees:
    """Trees of equal shares."""

    parents: tuple[tuple[int, ...], ...]  # Parent of each rank, tree by tree; -1 for the root
    moved: int | None  # Children that moved to another GPU, in all trees; None where the trees were made anew
    inv_rate: Fraction  # Time that the busiest link needs per GB of an all-reduce, exact, 1 / (GB/s)

    @property
    def text(self) -> str:
        """The value of ``RCCL_TREES``."""
        return "|".join(map(_text, self.parents))


def export_rccl_trees(plan: Plan, options: RcclTreesOptions) -> Exported:
    """Export the trees of an all-reduce plan for one box as a line that sets ``RCCL_TREES``."""
    made = rccl_trees(plan, trees=options.trees)
    before, after = 1 / plan.inv_rate, 1 / made.inv_rate
    loss = 1 - after / before
    words = f"{100 * float(loss):.3g}% less" if loss > 0 else "nothing lost"
    origin = (
        f"not those of the plan: of at most {MOST_CHILDREN} children, made anew"
        if made.moved is None
        else f"those of the plan, {made.moved} children moved for the limit of {MOST_CHILDREN}"
    )
    return Exported(
        text=f"RCCL_TREES={made.text}\n",
        notes=(
            f"{len(made.parents)} trees of equal shares, {origin}, up to {max(map(depth_of, made.parents))} steps deep",
            f"algbw {float(after):.6g} GB/s by links, the plan {float(before):.6g} GB/s: {words}",
            f"make the number of channels a multiple of {len(made.parents)} (NCCL_MIN_NCHANNELS, NCCL_MAX_NCHANNELS)",
            "every communicator of the process has to hold all GPUs of the box, rank r on device r",
            "written as RCCL 2.21.5 reads it; all all-reduces then take the trees, whatever their size",
        ),
        suffix=".env",
        read_as="rccl-trees",
    )


def rccl_trees(plan: Plan, *, trees: int | None = None) -> RcclTrees:
    """Trees of equal shares with at most three children for an all-reduce plan.

    Args:
        plan: A forest for an all-reduce on one box.
        trees: Number of trees; None takes the number up to 63 that loses least, the smallest of several.
    """
    forest = _checked(plan)
    if trees is not None and not 1 <= trees <= MOST_TREES:
        raise InputError(f"expected 1 .. {MOST_TREES} trees, found {trees}.")
    broadcast = [t for t in range(forest.num_trees) if forest.tree_phase[t] == Phase.BROADCAST]
    weights = [int(forest.tree_weight[t]) for t in broadcast]
    grown = list(_growing(forest, broadcast, weights, MOST_TREES if trees is None else trees))
    pairs = _pairs(plan.topology)
    if trees is not None:
        return _better(grown[-1], plan, pairs)
    best: RcclTrees | None = None
    for own in grown:
        made = _better(own, plan, pairs)
        if best is None or made.inv_rate < best.inv_rate:
            best = made
        if best.inv_rate <= plan.inv_rate:
            break
    return grown[0] if best is None else best


def _better(own: RcclTrees, plan: Plan, pairs: Mapping[tuple[int, int], Fraction]) -> RcclTrees:
    """The plan's trees, or as many made anew where these load links less."""
    if own.inv_rate <= plan.inv_rate:
        return own
    found = packed_trees(
        plan.topology.num_ranks, pairs, trees=len(own.parents), children=MOST_CHILDREN, goal=plan.inv_rate
    )
    if found is None or found[1] >= own.inv_rate:
        return own
    return RcclTrees(parents=found[0], moved=None, inv_rate=found[1])


def _pairs(topology: Topology) -> dict[tuple[int, int], Fraction]:
    """Pairs of ranks with a link of their own both ways, and the lesser rate of the two."""
    rank, found = topology.rank, {}
    for (a, b), link in topology.link_index.items():
        back = topology.link_index.get((b, a))
        if back is not None and 0 <= rank[a] < rank[b]:
            rate = min(topology.gb_per_s(link), topology.gb_per_s(back))
            found[int(rank[a]), int(rank[b])] = rate
    return found


def _checked(plan: Plan) -> Forest:
    if plan.forest is None or plan.problem.collective is not Collective.ALL_REDUCE:
        raise InputError(
            f"RCCL_TREES is for all-reduce by trees, found {plan.problem.collective}: plan all_reduce with a forest."
        )
    check_one_box(plan.topology, "RCCL_TREES")
    if plan.forest.branches_at_switches:
        raise InputError(
            "trees of RCCL branch at GPUs, found a plan that branches at switches: plan without `in_network`."
        )
    return expanded(plan.forest)


def _growing(
    forest: Forest, broadcast: Sequence[int], weights: Sequence[int], most: int
) -> Iterator[RcclTrees]:
    """One tree, two, and so on: the next is the one that lacks most of its share, surplus children on free links."""
    topology = forest.topology
    total = sum(weights)
    taken = [0] * len(broadcast)
    loads: Loads = {}
    parents: tuple[tuple[int, ...], ...] = ()
    moved = 0
    for count in range(1, most + 1):
        at = max(range(len(broadcast)), key=lambda t: weights[t] * count - taken[t] * total)
        taken[at] += 1
        tree, changes = _capped(forest, broadcast[at], loads)
        parents, moved = (*parents, tree), moved + changes
        inv_rate = max(
            (load / topology.gb_per_s(topology.link_index[link]) / count for link, load in loads.items()),
            default=Fraction(0),
        )
        yield RcclTrees(parents=parents, moved=moved, inv_rate=inv_rate)


def _capped(forest: Forest, tree: int, loads: Loads) -> tuple[tuple[int, ...], int]:
    """Parents of a tree within the limit of children, and how many moved; ``loads`` gets what it loads."""
    topology = forest.topology
    rank = topology.rank
    parent = [-1] * topology.num_ranks
    paths: dict[int, tuple[int, ...]] = {}
    for src, dst, path in forest.edges(tree):
        parent[int(rank[dst])] = int(rank[src])
        paths[int(rank[dst])] = path
    moved = 0
    while True:
        children = [parent.count(r) for r in range(len(parent))]
        full = next((r for r, count in enumerate(children) if count > MOST_CHILDREN), None)
        if full is None:
            break
        options = [
            (_price(topology, loads, (a, b)), r, new)
            for r in range(len(parent))
            if parent[r] == full
            for new in range(len(parent))
            if children[new] < MOST_CHILDREN and new != full and not _below(parent, new, r)
            for a, b in [(int(topology.rank_nodes[new]), int(topology.rank_nodes[r]))]
            if (a, b) in topology.link_index and (b, a) in topology.link_index
        ]
        if not options:
            raise InputError(
                f"rank {full} has {children[full]} children and RCCL takes {MOST_CHILDREN}: no other GPU has links."
            )
        _, child, new = min(options)
        parent[child] = new
        paths[child] = (int(topology.rank_nodes[new]), int(topology.rank_nodes[child]))
        moved += 1
    for path in paths.values():
        for a, b in pairwise(path):
            for link in ((a, b), (b, a)):
                if link not in topology.link_index:
                    here, there = (topology.node_ids[v] for v in link)
                    raise InputError(
                        f"RCCL uses a tree both ways, found no link {here} -> {there}: add it to the topology."
                    )
                loads[link] = loads.get(link, 0) + 1
    return tuple(parent), moved


def _price(topology: Topology, loads: Loads, edge: tuple[int, int]) -> Fraction:
    """Time of the busier direction of a link with one tree more."""
    a, b = edge
    return max(
        (loads.get(link, 0) + 1) / topology.gb_per_s(topology.link_index[link]) for link in ((a, b), (b, a))
    )


def _below(parent: Sequence[int], rank: int, top: int) -> bool:
    """Whether a rank is in the subtree of another."""
    while rank >= 0:
        if rank == top:
            return True
        rank = parent[rank]
    return False


def _text(parent: Sequence[int]) -> str:
    def node(rank: int) -> str:
        return f"{rank}" + "".join(f"({node(child)})" for child, above in enumerate(parent) if above == rank)

    text = f"({node(parent.index(-1))})"
    if len(text) > MOST_CHARACTERS:
        raise InputError(
            f"RCCL reads {MOST_CHARACTERS} characters of a tree, found {len(text)}: plan fewer GPUs."
        )
    return text


def export_rccl_rings(plan: Plan, options: RcclRingsOptions) -> Exported:
    """Export rings for the collective of a plan on one box as a line that sets ``NCCL_RINGS``."""
    made = rccl_rings(plan, rings=options.rings)
    shards = plan.problem.shards
    rate, best, own = (shards / time for time in (made.inv_rate, made.best_inv_rate, plan.inv_rate))
    notes = [
        f"{len(made.orders)} rings of equal shares, {len(set(made.orders))} different ones",
        f"algbw {float(rate):.6g} GB/s by links, {_loss(rate, own, 'the plan')}",
        _loss(rate, best, "rings of any shares"),
    ]
    if made.detours:
        notes.append(
            f"{made.detours} hops join GPUs without a link of their own: RCCL may go another way there"
        )
    notes += [
        "for communicators of all GPUs of the box, rank r on device r; smaller ones drop the rings and search theirs",
        f"let RCCL use all channels: NCCL_MIN_NCHANNELS={len(made.orders)} or a multiple",
        "RCCL_TREES has to be unset; on several hosts every second one runs the rings backwards",
    ]
    return Exported(
        text=f'NCCL_RINGS="{made.text}"\n', notes=tuple(notes), suffix=".env", read_as="rccl-rings"
    )


def _loss(rate: Fraction, other: Fraction, name: str) -> str:
    loss = 1 - rate / other
    words = (
        f"{100 * float(loss):.3g}% less than" if loss > 0 else "as fast as" if loss == 0 else "faster than"
    )
    return f"{words} {name} ({float(other):.6g} GB/s)"
