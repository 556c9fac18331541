"""Lower a forest to a schedule, one chunk per tree, and the place of each chunk in the buffer.

Rows follow chunk by chunk in the order of the trees' edges, which is an order in which data can flow. In an
all-reduce the shares that reduce trees and broadcast trees of one root carry need not be cut at the same
places: a chunk is then a piece that one reduce tree brings to the root and one broadcast tree takes from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.rows import ranges
from coppice.schedule.columns import num_slots, require_well_formed
from coppice.schedule.forest import Forest, Phase, expanded
from coppice.schedule.loads import exact_total, grouped_sums
from coppice.schedule.schedule import Op, Schedule

_INT64_MAX = 2**63 - 1


def chunk_bounds(schedule: Schedule, size_bytes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First byte and length of every chunk in a buffer of ``size_bytes``.

    Chunks follow each other slot by slot, cut at floor(bytes before x total / weight of all): lengths of equal
    shares differ by one byte at most, and all of them add up to the whole. In an all-to-all the buffers of all
    senders follow each other, ``size_bytes`` x ranks altogether. A slot without chunks keeps its place.

    Args:
        size_bytes: M in bytes, 0 or more.

    Examples:
        >>> from coppice.planners.algorithms.algorithm import AlgorithmCase
        >>> from coppice.planners.algorithms.parts.moves import Moves, blocks
        >>> from coppice.topology.presets import preset
        >>> case = AlgorithmCase(topology=preset("ring", gpus=4), collective=Collective.ALL_GATHER)
        >>> offset, length = chunk_bounds(Moves(case, blocks(case)).schedule(), 10)
        >>> offset.tolist(), length.tolist()
        ([0, 2, 5, 7], [2, 3, 2, 3])
    """
    if size_bytes < 0:
        raise InputError(f"expected a size of 0 bytes or more, found {size_bytes}.")
    chunks = schedule.num_chunks
    slot_weight: list[int] = schedule.slot_weight.tolist()
    total, weight = size_and_weight(schedule, size_bytes)
    if weight and total * sum(slot_weight) // weight > _INT64_MAX:
        raise InputError(
            f"expected less than 2^63 bytes in all buffers, found more with {size_bytes}: choose a smaller size."
        )
    if not chunks or not weight:
        return np.zeros(chunks, dtype=np.int64), np.zeros(chunks, dtype=np.int64)
    # A chunk begins at total * (before its slot + slot weight * before it / shares of the slot) / weight.
    common = gcd(weight, *slot_weight)
    slot_weight, weight = [each // common for each in slot_weight], weight // common
    shares = grouped_sums(schedule.chunk_slot, schedule.chunk_share, len(slot_weight))
    widest = max(shares) * sum(slot_weight)
    if widest < 2**31 and total // weight < 2**31:
        begin, end = _cuts(schedule, np.array(slot_weight), np.array(shares), total, weight)
    else:
        begin, end = _cuts(
            schedule, np.array(slot_weight, dtype=object), np.array(shares, dtype=object), total, weight
        )
    return begin.astype(np.int64), (end - begin).astype(np.int64)


def size_and_weight(schedule: Schedule, size: int) -> tuple[int, int]:
    """Size of all buffers that slots lie in, where M is ``size``, and the slot weight it is divided by.

    In an all-to-all these are the send buffers of all ranks, what each has for itself included.
    """
    whole = exact_total(schedule.slot_weight)
    return size * (schedule.topology.num_ranks if schedule.collective is Collective.ALL_TO_ALL else 1), whole


def _cuts(
    schedule: Schedule, slot_weight: NDArray[Any], shares: NDArray[Any], total: int, weight: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """First byte of each chunk and of what follows it, in integers of the type of ``slot_weight``."""
    kind = slot_weight.dtype
    slot = schedule.chunk_slot
    share = schedule.chunk_share.astype(kind)
    up_to = np.cumsum(share, dtype=kind)
    first_of_slot = np.searchsorted(slot, slot)
    before_slot = np.cumsum(slot_weight, dtype=kind) - slot_weight
    unit = shares[slot]
    inside_end = up_to - (up_to - share)[first_of_slot]
    whole = unit * weight
    begin_share = before_slot[slot] * unit + slot_weight[slot] * (inside_end - share)
    end_share = before_slot[slot] * unit + slot_weight[slot] * inside_end
    # total * x // whole without leaving 64 bits: split total into a multiple of whole and the rest.
    multiple, rest = total // whole, total % whole
    return (
        multiple * begin_share + rest * begin_share // whole,
        multiple * end_share + rest * end_share // whole,
    )


@dataclass
class _Chunks:
    """Chunks and the trees that carry them, in row order."""

    slot: list[int] = field(default_factory=list)
    share: list[int] = field(default_factory=list)
    tree: list[int] = field(default_factory=list)
    tree_chunk: list[int] = field(default_factory=list)

    def add(self, slot: int, share: int, trees: tuple[int, ...]) -> None:
        """A chunk that ``trees`` carry one after the other."""
        self.tree_chunk.extend([len(self.slot)] * len(trees))
        self.tree.extend(trees)
        self.slot.append(slot)
        self.share.append(share)


def lower(forest: Forest) -> Schedule:
    """Lower a forest to an equivalent schedule.

    Args:
        forest: A verified forest whose trees branch at ranks only.
    """
    require_well_formed(forest)
    forest = expanded(forest)
    topology = forest.topology
    rank = topology.rank
    ends = np.concatenate([forest.tree_root, forest.edge_src, forest.edge_dst])
    inner = ends[rank[ends] < 0]
    if len(inner):
        raise InputError(
            f"expected trees that branch at ranks, found one at {topology.node_ids[inner[0]]}: "
            "a copying or adding switch cannot be lowered to transfers between ranks; plan without `in_network`."
        )
    both = forest.collective is Collective.ALL_REDUCE
    chunks = _all_reduce_chunks(forest) if both else _single_phase_chunks(forest)
    tree = np.array(chunks.tree, dtype=np.int64)
    rows, segment = _concatenated(forest.tree_start, tree)
    slots = num_slots(forest.collective, topology.num_ranks)
    op = np.where(forest.tree_phase == Phase.REDUCE, Op.REDUCE, Op.COPY).astype(np.int8)
    return Schedule(
        topology=topology,
        collective=forest.collective,
        root=_root_rank(forest) if forest.collective.rooted else -1,
        slot_weight=_slot_weights(chunks, slots),
        chunk_slot=np.array(chunks.slot, dtype=np.int32),
        chunk_share=np.array(chunks.share, dtype=np.int64),
        src=rank[forest.edge_src[rows]],
        dst=rank[forest.edge_dst[rows]],
        chunk=np.array(chunks.tree_chunk, dtype=np.int32)[segment],
        op=op[tree[segment]],
        path=forest.edge_path[rows].astype(np.int32),
        step=np.full(len(rows), -1, dtype=np.int32),
        after_start=np.zeros(len(rows) + 1, dtype=np.int64),
        after=np.zeros(0, dtype=np.int32),
        path_start=forest.path_start,
        path_nodes=forest.path_nodes,
    )


def _root_rank(forest: Forest) -> int:
    roots = np.unique(forest.topology.rank[forest.tree_root])
    if len(roots) != 1:
        raise InputError(
            f"expected {forest.collective} trees at one root, found {len(roots)} roots: verify the forest."
        )
    return int(roots[0])


def _single_phase_chunks(forest: Forest) -> _Chunks:
    """A chunk per tree, by slot."""
    rank = forest.topology.rank[forest.tree_root]
    slot = np.zeros_like(rank) if forest.collective.rooted else rank
    chunks = _Chunks()
    weight = forest.tree_weight.tolist()
    for tree in np.argsort(slot, kind="stable").tolist():
        chunks.add(int(slot[tree]), weight[tree], (tree,))
    return chunks


def _all_reduce_chunks(forest: Forest) -> _Chunks:
    """At each root the common refinement of what reduce trees bring and broadcast trees take."""
    rank = forest.topology.rank[forest.tree_root].tolist()
    phase = forest.tree_phase.tolist()
    trees: dict[Phase, list[list[int]]] = {
        each: [[] for _ in range(forest.topology.num_ranks)] for each in Phase
    }
    for tree, (root, which) in enumerate(zip(rank, phase, strict=True)):
        trees[Phase(which)][root].append(tree)
    weight = forest.tree_weight.tolist()
    chunks = _Chunks()
    for root, (up, down) in enumerate(zip(trees[Phase.REDUCE], trees[Phase.BROADCAST], strict=True)):
        brought, taken = sum(weight[tree] for tree in up), sum(weight[tree] for tree in down)
        if brought != taken:
            raise InputError(
                f"expected equal weights of both phases at rank {root}, found {brought} reduced and {taken} "
                "broadcast: verify the forest."
            )
        above, below = iter(up), iter(down)
        up_tree = down_tree = -1
        up_left = down_left = 0
        while brought:
            if not up_left:
                up_tree = next(above)
                up_left = weight[up_tree]
            if not down_left:
                down_tree = next(below)
                down_left = weight[down_tree]
            share = min(up_left, down_left)
            chunks.add(root, share, (up_tree, down_tree))
            up_left, down_left, brought = up_left - share, down_left - share, brought - share
    return chunks


def _slot_weights(chunks: _Chunks, slots: int) -> NDArray[np.int64]:
    """Sum of the shares of each slot in lowest terms; ones where there are no chunks."""
    if not chunks.slot:
        return np.ones(slots, dtype=np.int64)
    sums = grouped_sums(np.array(chunks.slot, dtype=np.int64), chunks.share, slots)
    unit = gcd(*sums)
    if max(sums) // unit >= 2**63:
        raise InputError("expected slot weights below 2^63: the trees' weights are too large to be lowered.")
    return np.array([total // unit for total in sums], dtype=np.int64)


def _concatenated(
    start: NDArray[np.int64], tree: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Edge rows of the named trees one after the other, and the place in ``tree`` that each comes from."""
    length = (start[1:] - start[:-1])[tree]
    return ranges(start[tree], length), np.repeat(np.arange(len(tree), dtype=np.int64), length)
