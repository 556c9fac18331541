"""Find products next to all-gathers and reduce-scatters in a graph of functional collectives.

A *gather region* is an all-gather and the products of which it is an operand, directly or behind layout operations, and
which do not need each other: a shard is multiplied by all of them when it is there. What else uses the gathered tensor
gets it joined from the shards, which have all come by then. A *scatter region* is a reduce-scatter and what it sums:
products, or sums of them, that nobody else uses.

Regions are carried out as rings: hops between the products of parts, in the order that the policy says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.fx import Graph, Node

from coppice.iteration.policies.tensor.ring_products import RingProduct, RingStep, execution_order
from coppice.training.torch.tensor.passes_hops import group_of, hop_start, hop_wait
from coppice.training.torch.tensor.passes_layout import (
    DimensionPlace,
    GraphProduct,
    NodeEmitter,
    arguments,
    is_layout,
    place_after,
    place_before,
    product_of,
    regrouped,
    shape_of,
)

_aten: Any = torch.ops.aten
_functional: Any = torch.ops._c10d_functional  # noqa: SLF001 (the operations that torch traces)
_GATHER = _functional.all_gather_into_tensor.default
_SCATTER = _functional.reduce_scatter_tensor.default
_WAIT = _functional.wait_tensor.default


@dataclass(frozen=True)
class _Fed:
    """Product of gathered parts."""

    product: GraphProduct  # The product
    operand: int  # Which operand they are in
    place: DimensionPlace  # Where, in it

    @property
    def letter(self) -> str:
        """Dimension of the parts."""
        return self.product.letter(self.operand, self.place)


@dataclass
class GatherRegion:
    """An all-gather with the products of its result."""

    start: Node  # The collective
    wait: Node  # What waits for it
    ranks: int  # Number of ranks
    group: Any  # Name of their group
    fed: list[_Fed] = field(default_factory=list)  # The products
    places: dict[Node, DimensionPlace] = field(default_factory=dict)  # Where parts lie in each node between
    collective = "all_gather"

    @property
    def shard(self) -> Node:
        """Input of a rank."""
        given: Node = arguments(self.start)[0]
        return given

    @property
    def flops(self) -> float:
        """Operations of its products."""
        return sum(each.product.flops for each in self.fed)

    @property
    def cases(self) -> tuple[str, ...]:
        """Kind of split of each product."""
        return tuple(each.product.case(each.letter) for each in self.fed)

    @property
    def size_bytes(self) -> int:
        """Bytes of the gathered tensor."""
        return int(self.wait.meta["val"].nbytes)

    @property
    def rows(self) -> int:
        """Size of the split dimension."""
        fed = self.fed[0]
        return (shape_of(fed.product.operands[fed.operand]) or (1,))[fed.place.dim]

    def part(self, emit: NodeEmitter, node: Node, known: dict[Node, Node]) -> Node:
        """Part of an intermediate node."""
        if node not in known:
            found = regrouped(node, self.ranks)
            if found is not None:
                known[node] = self.part(emit, found[0], known)
            else:
                known[node] = emit.moved(node, self.part(emit, arguments(node)[0], known), self.places[node])
        return known[node]

    def products(self, emit: NodeEmitter, shard: Node, number: int) -> list[Node]:
        """Every product with a rank's shard."""
        known = {self.wait: shard}
        made = []
        for each in self.fed:
            operands = [*each.product.operands]
            letter, other = each.letter, 1 - each.operand
            operands[each.operand] = self.part(emit, operands[each.operand], known)
            if letter in each.product.dims[other]:
                place = DimensionPlace(each.product.dims[other].index(letter), each.place.outer)
                operands[other] = emit.slice(operands[other], place, number)
            made.append(each.product.emit(emit, operands, letter, each.place, number))
        return made

    def replace(
        self, emit: NodeEmitter, shards: list[Node], products: list[list[Node]], order: list[int]
    ) -> None:
        """Replace the original nodes.

        Args:
            order: Ranks in the order in which their shards were multiplied: terms of a sum are added so.
        """
        for number, each in enumerate(self.fed):
            if each.letter in each.product.dims[2]:
                place = DimensionPlace(each.product.dims[2].index(each.letter), each.place.outer)
                whole = emit.joined([made[number] for made in products], place)
            else:
                whole = products[order[0]][number]
                for rank in order[1:]:
                    whole = emit.call(_aten.add.Tensor, whole, products[rank][number])
                whole = each.product.complete(emit, whole)
            each.product.node.replace_all_uses_with(whole)
        self.wait.replace_all_uses_with(emit.joined(shards, DimensionPlace(0)))

    @property
    def last(self) -> Node:
        """Last product in the graph."""
        return self.fed[-1].product.node


@dataclass
class ScatterRegion:
    """A reduce-scatter with the products that it sums."""

    start: Node  # The collective
    wait: Node  # What waits for it
    ranks: int  # Number of ranks
    group: Any  # Name of their group
    mean: bool  # The sum is divided by the number of ranks
    made: list[GraphProduct] = field(default_factory=list)  # The products
    # Where parts lie in each node that is made part by part
    places: dict[Node, DimensionPlace] = field(default_factory=dict)
    collective = "reduce_scatter"

    @property
    def flops(self) -> float:
        """Operations of its products."""
        return sum(each.flops for each in self.made)

    @property
    def cases(self) -> tuple[str, ...]:
        """Kind of split of each product."""
        return tuple(each.case(each.letter(2, self.places[each.node])) for each in self.made)

    @property
    def size_bytes(self) -> int:
        """Bytes of a rank's input."""
        return int(arguments(self.start)[0].meta["val"].nbytes)

    @property
    def rows(self) -> int:
        """Size of the split dimension."""
        first = self.made[0].node
        return (shape_of(first) or (1,))[self.places[first].dim]

    @property
    def last(self) -> Node:
        """The collective."""
        return self.start

    def part(self, emit: NodeEmitter, number: int) -> Node:
        """Part for a destination rank."""
        return self._part(emit, arguments(self.start)[0], number, {})

    def _part(self, emit: NodeEmitter, node: Node, number: int, known: dict[Node, Node]) -> Node:
        if node in known:
            return known[node]
        place = self.places[node]
        product = product_of(node)
        found = regrouped(node, self.ranks)
        if found is not None and found[0] in self.places:
            made = self._part(emit, found[0], number, known)
        elif product is not None and product in self.made:
            letter = product.letter(2, place)
            operands = [
                emit.slice(operand, DimensionPlace(letters.index(letter), place.outer), number)
                if letter in letters
                else operand
                for operand, letters in zip(product.operands, product.dims, strict=False)
            ]
            made = product.emit(emit, operands, letter, place, number)
        elif node.target is _aten.add.Tensor and arguments(node)[0] in self.places:
            made = emit.call(
                _aten.add.Tensor, *(self._part(emit, each, number, known) for each in arguments(node))
            )
        elif is_layout(node) and arguments(node)[0] in self.places:
            made = emit.moved(node, self._part(emit, arguments(node)[0], number, known), place)
        else:
            made = emit.slice(node, place, number)
        known[node] = made
        return made

    def replace(self, emit: NodeEmitter, total: Node) -> None:
        """Replace the original nodes by the sum."""
        if self.mean:
            total = emit.call(_aten.div.Tensor, total, self.ranks)
        self.wait.replace_all_uses_with(total)


def regions_of(graph: Graph) -> Iterator[GatherRegion | ScatterRegion]:
    """All regions in graph order."""
    for node in list(graph.nodes):
        if node.target is _GATHER:
            gathering = _gather_region(node)
            if gathering is not None:
                yield gathering
        elif node.target is _SCATTER:
            scattering = _scatter_region(node)
            if scattering is not None:
                yield scattering


def _waited(start: Node) -> Node | None:
    """Sole wait for a collective."""
    users = list(start.users)
    return users[0] if len(users) == 1 and users[0].target is _WAIT else None


def _gather_region(start: Node) -> GatherRegion | None:
    wait = _waited(start)
    if wait is None or shape_of(wait) is None or arguments(start)[1] < 2:
        return None
    region = GatherRegion(start, wait, arguments(start)[1], arguments(start)[2])
    ranks = region.ranks
    region.places[wait] = DimensionPlace(0)
    front, products = [wait], {}
    while front:
        node = front.pop()
        place = region.places[node]
        for user in _regrouping_users(node):
            if user in region.places:
                continue
            found = regrouped(user, ranks)
            if found is not None and found[0] is node:
                after = DimensionPlace(found[2]) if place == DimensionPlace(found[1]) else None
            elif (product := product_of(user)) is not None:
                products[user] = product
                continue
            else:
                after = place_after(user, place, ranks) if is_layout(user) else None
            if after is not None:
                region.places[user] = after
                front.append(user)
    number = {node: place for place, node in enumerate(start.graph.nodes)}
    for node in sorted(products, key=lambda each: number[each]):
        fed = _fed(region, products[node])
        if fed is not None and not _needs(node, {each.product.node for each in region.fed}, number):
            region.fed.append(fed)
    return region if region.fed else None


def _fed(region: GatherRegion, product: GraphProduct) -> _Fed | None:
    """How parts enter a product; None: by both operands, by the bias, or not at all."""
    inside = [number for number, operand in enumerate(product.operands) if operand in region.places]
    known = all(shape_of(each) is not None for each in (product.node, *product.operands))
    if len(inside) != 1 or product.bias in region.places or not known:
        return None
    return _Fed(product, inside[0], region.places[product.operands[inside[0]]])


def _regrouping_users(node: Node) -> Iterator[Node]:
    """Users that concatenate again what splits and slices have cut."""
    for user in node.users:
        yield user
        for part in (user, *user.users):
            yield from (join for join in part.users if join.target is _aten.cat.default)


def _needs(node: Node, wanted: set[Node], number: dict[Node, int]) -> bool:
    """Whether a node depends on one of some others."""
    if not wanted:
        return False
    first = min(number[each] for each in wanted)
    front, seen = [node], set()
    while front:
        each = front.pop()
        if each in wanted:
            return True
        for before in each.all_input_nodes:
            if before not in seen and number[before] >= first:
                seen.add(before)
                front.append(before)
    return False


def _scatter_region(start: Node) -> ScatterRegion | None:
    wait = _waited(start)
    given, how, ranks, group = arguments(start)
    if wait is None or shape_of(given) is None or how not in ("sum", "avg") or ranks < 2:
        return None
    region = ScatterRegion(start, wait, ranks, group, mean=how == "avg")
    _descend(region, given, DimensionPlace(0), start)
    return region if region.made else None


def _descend(region: ScatterRegion, node: Node, place: DimensionPlace, user: Node) -> None:
    """Follow a node's inputs as long as parts of it can be computed from parts."""
    region.places[node] = place
    found = regrouped(node, region.ranks)
    if found is not None and place == DimensionPlace(found[2]) and set(found[0].users) <= _cutters(node):
        _descend(region, found[0], DimensionPlace(found[1]), node)
        return
    if set(node.users) - {user} - _cutters(user):
        return  # somebody else needs it as a whole: parts are cut from that
    product = product_of(node)
    if product is not None:
        if all(shape_of(each) is not None for each in (node, *product.operands)):
            region.made.append(product)
    elif node.target is _aten.add.Tensor and not node.kwargs:
        operands = arguments(node)
        alike = all(isinstance(each, Node) and shape_of(each) == shape_of(node) for each in operands)
        if alike and operands[0] is not operands[1]:
            for each in operands:
                _descend(region, each, place, node)
    elif is_layout(node):
        before = place_before(node, place, region.ranks)
        if before is not None:
            _descend(region, arguments(node)[0], before, node)


def _cutters(join: Node) -> set[Node]:
    """Splits and slices that a node concatenates."""
    if join.target is not _aten.cat.default:
        return set()
    parts = set(arguments(join)[0])
    return parts | {arguments(part)[0] for part in parts if isinstance(arguments(part)[0], Node)}


TASK = "coppice_task"
"""Key of a node's ``meta``: the number of the region, and which task of its ring the node begins or ends."""


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
    for doing, step in execution_order(made.steps):
        made.carry(doing, step)
    made.finish()
    return tuple(made.done), made.chain


class _Ring:
    """Region under construction."""

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
        """Owner of a task's shard."""
        return (self.rank + step.offset) % self.ranks

    def carry(self, doing: str, number: int) -> None:
        """Emit a task."""
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
        """Start a hop: send a shard or a partial sum to a neighbour."""
        to, origin = (self.rank + step.way) % self.ranks, (self.rank - step.way) % self.ranks
        if isinstance(self.region, GatherRegion):
            source = self.shards[step.offset]
        else:
            source = self.passed_on(step.offset, step.way)
        group = group_of(self.region.group).group_name
        return self.emit.call(hop_start, source, to, origin, group, step.way)

    def passed_on(self, offset: int, way: int) -> Node:
        """Operand of a hop: the received partial sum plus the own part."""
        came = self.sums.pop((offset, way), None)
        part = self.parts.pop(offset)
        return part if came is None else self.emit.call(_aten.add.Tensor, came, part)

    def wait(self, number: int, step: RingStep) -> Node:
        """Finish a hop: wait for the neighbour's message."""
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
        """Emit the products of a part."""
        rank = self.shard_of(step)
        self.order.append(rank)
        if isinstance(self.region, GatherRegion):
            self.products[rank] = self.region.products(self.emit, self.shards[step.offset], rank)
        else:
            self.parts[step.offset] = self.region.part(self.emit, rank)

    def copy(self, step: RingStep) -> Node:
        """Copy a buffer before it is sent."""
        if isinstance(self.region, GatherRegion):
            node = self.emit.call(_aten.clone.default, self.shards[step.offset])
            self.shards[step.offset] = node
        else:
            summed = self.passed_on(step.offset, -1)
            node = self.emit.call(_aten.clone.default, summed)
            self.parts[step.offset] = node
        return node

    def finish(self) -> None:
        """Replace the region by its result."""
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
