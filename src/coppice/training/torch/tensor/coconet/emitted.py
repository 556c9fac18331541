"""Emit a transformed CoCoNet program as operations of a graph.

Kernels go in the program's order. What it overlaps goes in chunks: the product of a chunk, then the collective's start;
what a kernel does behind a collective is added when the next chunk's product is. Slices along rows are those that
torch's collectives make. For them a chunk has a part of the rows of every rank, so that the chunks of a rank's slice
are its rows in their order.

Dropout draws its mask for the whole tensor on every rank, as it would without transforms, and each rank takes its
slice: the same elements are dropped, and the generators of all ranks stay together.

Reordering takes for granted that operands of elementwise work are alike on all ranks: ``f(gathered, z)`` is the
gathered ``f(slice, slice of z)`` only then. A graph does not say which of its inputs are; so ``coppice::alike``
compares a sum over all elements, weighted by their places, the first time that it runs, and is the identity after that.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.fx import Node

from coppice.errors import CheckError
from coppice.iteration.policies.tensor.coconet.costs import kernel_chains
from coppice.iteration.policies.tensor.coconet.program import ELEMENTWISE, REPLICATED, OpKind, TensorProgram
from coppice.training.torch.tensor.coconet.regions import SumRegion
from coppice.training.torch.tensor.decomposition import TASK
from coppice.training.torch.tensor.passes_hops import group_of
from coppice.training.torch.tensor.passes_layout import DimensionPlace, NodeEmitter, arguments

_places = itertools.count()
_SEEN: set[int] = set()
_PERIOD = 8191  # weights repeat after so many elements


def next_place() -> int:
    """Number of an operation, equal on all ranks that compile the same graphs."""
    return next(_places)


def _alike(value: torch.Tensor, group_name: str, place: int, what: str) -> torch.Tensor:
    if place in _SEEN:
        return value
    _SEEN.add(place)
    flat = value.detach().reshape(-1).to(torch.float64)
    weights = torch.arange(len(flat), device=flat.device, dtype=torch.float64) % _PERIOD + 1
    total = (flat * weights).sum()
    both = torch.stack([total, -total])
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group_of(group_name))
    if float(both[0]) != -float(both[1]):
        raise CheckError(
            f"expected {what} alike on all ranks, as it meets a sum over them, found otherwise: seed ranks alike, or "
            "leave such graphs to another policy."
        )
    return value


_LIBRARY: Any = torch.library.Library("coppice", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("alike(Tensor(a) value, str group_name, int place, str what) -> Tensor(a)")
_LIBRARY.impl("alike", _alike, "CompositeExplicitAutograd")


def _shape(value: torch.Tensor, *_: object) -> torch.Tensor:
    return value.view_as(value)


torch.library.register_fake("coppice::alike", _shape, lib=_LIBRARY)

alike = torch.ops.coppice.alike.default


_aten: Any = torch.ops.aten
_functional: Any = torch.ops._c10d_functional  # noqa: SLF001 (the operations that torch traces)
_DROPOUT = _aten.native_dropout.default
_Value = Node | list[Node]


def emit_program(
    region: SumRegion, program: TensorProgram, chunks: int, number: int
) -> tuple[tuple[str, ...], list[Node]]:
    """Replace a region by its program.

    Args:
        region: The region; it is no longer one afterwards.
        program: What the transforms made of it.
        number: Number of the region, for ``meta``.

    Returns:
        What a rank does, in order: ``run`` of operations, ``start`` and ``wait`` of collectives, with the number of
        the chunk behind. And the nodes that have to run one after the other for that.
    """
    made = _EmittedRegion(region, program, chunks, number)
    for chain in kernel_chains(program):
        made.run_chain(chain)
    made.finish()
    return tuple(made.done), made.chain


class _EmittedRegion:
    """Region under construction."""

    def __init__(self, region: SumRegion, program: TensorProgram, chunks: int, number: int) -> None:
        self.region, self.program, self.number, self.chunks = region, program, number, chunks
        before, graph = region.last, region.start.graph
        self.emit = NodeEmitter(graph, before, region.ranks)
        self.cutter = NodeEmitter(graph, before, chunks)
        group = group_of(region.group)
        self.rank, self.group = dist.get_rank(group), group.group_name
        matrices = {name: each for name, each in program.tensors.items() if len(each.shape) == 2}
        rows_sliced = any(each.layout == 0 for name, each in matrices.items() if name != "w")
        self.outer = region.ranks if rows_sliced else 1
        self.on_slices = any(
            op.kind in ELEMENTWISE and program.tensors[name].layout >= 0 for name, op in program.ops.items()
        )
        self.done: list[str] = []
        self.chain: list[Node] = []
        self.values: dict[str, _Value] = {}
        self.masks: dict[str, Node] = {}

    def note(self, doing: str, name: str, part: int | None, node: Node) -> None:
        """Record the node at which an operation of a kernel, or of its chunk, begins or ends."""
        said = f"{doing} {name} {part or 0}"
        self.done.append(said)
        node.meta[TASK] = (self.number, said)
        self.chain.append(node)

    def run_chain(self, chain: Sequence[tuple[str, ...]]) -> None:
        """Emit overlapped kernels, or a single one."""
        if len(chain) == 1:
            for _ in self.kernel(chain[0], None):
                pass
            return
        first, second = chain
        under_way: list[Iterator[None]] = []
        for part in range(self.chunks):
            for _ in self.kernel(first, part):
                pass
            started = self.kernel(second, part)
            next(started, None)
            under_way = [each for each in under_way if _goes_on(each)]
            under_way.append(started)
        while under_way:
            under_way = [each for each in under_way if _goes_on(each)]

    def kernel(self, kernel: tuple[str, ...], part: int | None) -> Iterator[None]:
        """Emit a kernel, by chunk or whole; yields while a collective is outstanding."""
        for name in kernel:
            kind = self.program.ops[name].kind
            if kind in _STARTS:
                node = _STARTS[kind](self, name, part)
                self.note("start", name, part, node)
                yield
                waited = self.emit.call(_functional.wait_tensor.default, node)
                self.note("wait", name, part, waited)
                self.keep(name, part, self.received(name, waited))
            else:
                node = self.computed(name, part)
                self.keep(name, part, node)
                self.note("run", name, part, node)

    def keep(self, name: str, part: int | None, node: Node) -> None:
        """Record the value of an operation, or of a chunk."""
        if part is None:
            self.values[name] = node
        else:
            held = self.values.setdefault(name, [])
            if isinstance(held, list):
                held.append(node)

    def place(self, name: str) -> DimensionPlace:
        """Position of chunks in a rank's part of a value."""
        return DimensionPlace(0, 1 if self.program.tensors[name].layout == 0 else self.outer)

    def value(self, name: str, part: int | None) -> Node:
        """A rank's part of a value, or a chunk of it; vectors have no chunks."""
        held = self.values.get(name)
        if held is None:
            slices = self.program.ops[name].kind is OpKind.SLICE  # they take nothing, and are no kernels
            held = self.values[name] = self.computed(name, None) if slices else self.given(name)
        if isinstance(held, list):
            if part is not None:
                return held[part]
            held = self.values[name] = self.cutter.joined(held, self.place(name))
        if part is None or len(self.program.tensors[name].shape) < 2:
            return held
        return self.cutter.slice(held, self.place(name), part)

    def given(self, name: str) -> Node:
        """Input: the reduced tensor, or an operand that is equal on all ranks."""
        node, tensor = self.region.nodes[name], self.program.tensors[name]
        if tensor.layout == REPLICATED:
            node = self.compared(node, f"{node.name} of shape {list(node.meta['val'].shape)}")
        return self.flat(node) if len(tensor.shape) == 2 else node

    def compared(self, node: Node, what: str) -> Node:
        """Tensor that must be equal on all ranks if element-wise work is sharded."""
        if not self.on_slices:
            return node
        return self.emit.call(alike, node, self.group, next_place(), what)

    def flat(self, node: Node) -> Node:
        """Tensor as rows and columns."""
        return self.emit.call(_aten.reshape.default, node, [self.region.rows, self.region.columns])

    def computed(self, name: str, part: int | None) -> Node:
        """Emit an operation without communication."""
        op, region = self.program.ops[name], self.region
        if op.kind is OpKind.MATMUL:
            return self.product(part)
        if op.kind is OpKind.SLICE:
            return self.emit.slice(self.value(op.operands[0], part), DimensionPlace(op.along), self.rank)
        source = region.nodes[name.removesuffix(".slice")]
        if op.kind is OpKind.DROPOUT:
            kept = self.emit.call(_aten.mul.Tensor, self.value(op.operands[0], part), self.mask(name, part))
            return self.emit.call(_aten.mul.Tensor, kept, 1 / op.keep if op.keep else 0.0)
        operands = iter(op.operands)
        args = [
            self.value(next(operands), part) if isinstance(each, Node) else each for each in arguments(source)
        ]
        return self.emit.call(source.target, *args, **source.kwargs)

    def product(self, part: int | None) -> Node:
        """Emit the product, or a chunk of its rows."""
        product = self.region.product
        if product is None:  # a program has a product only if its region has one
            return self.region.start
        if part is None:
            return self.emit.call(product.node.target, *arguments(product.node))
        rows = self.cutter.slice(product.left, DimensionPlace(0, self.outer), part)
        return product.emit(self.cutter, [rows, product.right], "m", DimensionPlace(0, self.outer), part)

    def mask(self, name: str, part: int | None) -> Node:
        """Dropout mask in the result's layout, drawn whole at its original position."""
        source = name.removesuffix(".slice")
        if source not in self.masks:
            dropout = self.region.nodes[source]
            there = NodeEmitter(self.emit.graph, dropout, self.emit.ranks)
            value = arguments(dropout)[0].meta["val"]
            like = there.call(_aten.zeros.default, list(value.shape), dtype=value.dtype, device=value.device)
            drawn = there.call(_DROPOUT, like, arguments(dropout)[1], True)  # noqa: FBT003 (as torch traces it)
            mask = there.call(operator.getitem, drawn, 1)
            if source in self.region.masks:
                self.region.masks[source].replace_all_uses_with(mask)
            self.masks[source] = self.flat(self.compared(mask, f"the mask of {source}"))
        whole, layout = self.masks[source], self.program.tensors[name].layout
        if layout != REPLICATED:
            whole = self.emit.slice(whole, DimensionPlace(layout), self.rank)
        return whole if part is None else self.cutter.slice(whole, self.place(name), part)

    def all_reduce(self, name: str, part: int | None) -> Node:
        """Start an all-reduce."""
        given = self.value(self.program.ops[name].operands[0], part)
        return self.emit.call(_functional.all_reduce.default, given, "sum", self.group)

    def reduce_scatter(self, name: str, part: int | None) -> Node:
        """Start a reduce-scatter."""
        op = self.program.ops[name]
        given = self.value(op.operands[0], part)
        if op.along:
            parts = [
                self.emit.slice(given, DimensionPlace(op.along), rank) for rank in range(self.emit.ranks)
            ]
            given = self.emit.call(_aten.cat.default, parts, 0)
        target = _functional.reduce_scatter_tensor.default
        return self.emit.call(target, given, "sum", self.emit.ranks, self.group)

    def all_gather(self, name: str, part: int | None) -> Node:
        """Start an all-gather."""
        given = self.value(self.program.ops[name].operands[0], part)
        contiguous = self.emit.call(_aten.contiguous.default, given)
        target = _functional.all_gather_into_tensor.default
        return self.emit.call(target, contiguous, self.emit.ranks, self.group)

    def received(self, name: str, node: Node) -> Node:
        """Result of a collective; gathered column slices are concatenated."""
        op = self.program.ops[name]
        if op.kind is not OpKind.ALL_GATHER or self.program.tensors[op.operands[0]].layout == 0:
            return node
        parts = [self.emit.slice(node, DimensionPlace(0), rank) for rank in range(self.emit.ranks)]
        return self.emit.call(_aten.cat.default, parts, 1)

    def finish(self) -> None:
        """Replace the region by its results."""
        region = self.region
        for outside, inside in self.program.outputs.items():
            old = region.value_of(outside)
            shape = list(old.meta["val"].shape)
            old.replace_all_uses_with(self.emit.call(_aten.reshape.default, self.value(inside, None), shape))


_STARTS = {
    OpKind.ALL_REDUCE: _EmittedRegion.all_reduce,
    OpKind.REDUCE_SCATTER: _EmittedRegion.reduce_scatter,
    OpKind.ALL_GATHER: _EmittedRegion.all_gather,
}


def _goes_on(kernel: Iterator[None]) -> bool:
    """Emit a kernel up to its next collective; return whether there is one."""
    return next(kernel, _ENDED) is not _ENDED


_ENDED = object()
