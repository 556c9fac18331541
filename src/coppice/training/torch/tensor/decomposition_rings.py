"""Regions of a graph carried out as rings: hops between the products of parts, in the order that the policy says."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.fx import Node

from coppice.iteration.policies.tensor.ring_products import RingProduct, RingStep, carried_out
from coppice.training.torch.tensor.decomposition_regions import GatherRegion, ScatterRegion
from coppice.training.torch.tensor.passes_hops import group_of, hop_start, hop_wait
from coppice.training.torch.tensor.passes_layout import NodeEmitter, arguments
from coppice.training.torch.tensor.passes_products import product_of

TASK = "coppice_task"
"""Key of a node's ``meta``: the number of the region, and which task of its ring the node begins or ends."""

_aten: Any = torch.ops.aten


def decompose(
    region: GatherRegion | ScatterRegion, ring: RingProduct, number: int
) -> tuple[tuple[str, ...], list[Node]]:
    """Replace a region by its ring.

    Args:
        region: The region; it is no longer one afterwards.
        ring: The ring that the policy made of it.
        number: Number of the region, for ``meta``.

    Returns:
        What this rank does, in order: names of the ring's tasks, behind ``start``, ``wait`` or ``run``. And the nodes
        that have to run one after the other for that.
    """
    made = _Ring(region, ring, number)
    for doing, step in carried_out(made.steps):
        made.carry(doing, step)
    made.finish()
    return tuple(made.done), made.chain


class _Ring:
    """The operations under construction."""

    def __init__(self, region: GatherRegion | ScatterRegion, ring: RingProduct, number: int) -> None:
        self.region = region
        self.steps = ring.steps()
        self.number = number
        self.rank = dist.get_rank(group_of(region.group))
        self.ranks = region.ranks
        self.emit = NodeEmitter(region.start.graph, region.last, region.ranks)
        self.done: list[str] = []
        self.chain: list[Node] = []
        self.order: list[int] = []
        self.shards: dict[int, Node] = {}
        self.products: dict[int, list[Node]] = {}
        self.parts: dict[int, Node] = {}
        self.sums: dict[tuple[int, int], Node] = {}
        self.hops: dict[int, tuple[Node, Node]] = {}
        if isinstance(region, GatherRegion):
            self.shards[0] = region.shard

    def shard_of(self, step: RingStep) -> int:
        """The rank whose shard a task is about."""
        return (self.rank + step.offset) % self.ranks

    def carry(self, doing: str, number: int) -> None:
        """Add what a task does."""
        step = self.steps[number]
        way = {1: " down", -1: ""}.get(step.way, "")
        name = f"{step.kind} {step.step}{way}"
        self.done.append(f"{doing} {name}")
        before = len(self.emit.added)
        if doing == "start":
            node = self.start(step)
            self.hops[number] = (node, arguments(node)[0])
            nodes = [node]
        elif doing == "wait":
            nodes = [self.wait(number, step)]
        elif step.kind == "product":
            self.product(step)
            nodes = [node for node in self.emit.added[before:] if product_of(node) is not None]
        elif step.kind == "copy":
            nodes = [self.copy(step)]
        else:
            return
        nodes[0].meta[TASK] = (self.number, f"{doing} {name}")
        self.chain += nodes

    def start(self, step: RingStep) -> Node:
        """A hop begins: a shard of a gather, or a sum of a scatter, goes to a neighbour."""
        to, origin = (self.rank + step.way) % self.ranks, (self.rank - step.way) % self.ranks
        if isinstance(self.region, GatherRegion):
            source = self.shards[step.offset]
        else:
            source = self.passed_on(step.offset, step.way)
        group = group_of(self.region.group).group_name
        return self.emit.call(hop_start, source, to, origin, group, step.way)

    def passed_on(self, offset: int, way: int) -> Node:
        """What goes on to a neighbour: what came that way with the own part added."""
        came = self.sums.pop((offset, way), None)
        part = self.parts.pop(offset)
        return part if came is None else self.emit.call(_aten.add.Tensor, came, part)

    def wait(self, number: int, step: RingStep) -> Node:
        """A hop ends: what the neighbour started has come."""
        received, sent = self.hops.pop(number)
        came = self.emit.call(hop_wait, received, sent)
        # The neighbour on the other side sent what is as far from it as what was sent here is from this rank.
        offset = (step.offset - step.way) % self.ranks
        if isinstance(self.region, GatherRegion):
            self.shards[offset] = came
        else:
            self.sums[offset, step.way] = came
        return came

    def product(self, step: RingStep) -> None:
        """The products of a part."""
        rank = self.shard_of(step)
        self.order.append(rank)
        if isinstance(self.region, GatherRegion):
            self.products[rank] = self.region.products(self.emit, self.shards[step.offset], rank)
        else:
            self.parts[step.offset] = self.region.part(self.emit, rank)

    def copy(self, step: RingStep) -> Node:
        """A buffer is copied before it goes."""
        if isinstance(self.region, GatherRegion):
            node = self.emit.call(_aten.clone.default, self.shards[step.offset])
            self.shards[step.offset] = node
        else:
            summed = self.passed_on(step.offset, -1)
            node = self.emit.call(_aten.clone.default, summed)
            self.parts[step.offset] = node
        return node

    def finish(self) -> None:
        """Put the result in the place of the region."""
        if isinstance(self.region, GatherRegion):
            shards = [self.shards[(rank - self.rank) % self.ranks] for rank in range(self.ranks)]
            products = [self.products[rank] for rank in range(self.ranks)]
            self.region.replace(self.emit, shards, products, self.order)
            return
        total = self.parts.pop(0)
        for way in (-1, 1):
            if (0, way) in self.sums:
                total = self.emit.call(_aten.add.Tensor, self.sums.pop((0, way)), total)
        self.region.replace(self.emit, total)
