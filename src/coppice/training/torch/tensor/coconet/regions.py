"""Find all-reduced products with elementwise successors in a graph, as CoCoNet programs.

A region is an all-reduce with the product that it takes and the elementwise work behind it, or a reduce-scatter with
its product. Its program has two dimensions: rows, which are all but the last one of the graph, and columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.fx import Graph, Node

from coppice.iteration.policies.tensor.coconet.program import LOCAL, OpKind, Tensor, TensorOp, TensorProgram
from coppice.training.torch.tensor.passes_hops import group_of
from coppice.training.torch.tensor.passes_layout import (
    GraphProduct,
    arguments,
    is_layout,
    product_of,
    shape_of,
)

_aten: Any = torch.ops.aten
_functional: Any = torch.ops._c10d_functional  # noqa: SLF001 (the operations that torch traces)
_SUMS = {
    _functional.all_reduce.default: OpKind.ALL_REDUCE,
    _functional.reduce_scatter_tensor.default: OpKind.REDUCE_SCATTER,
}
_WAIT = _functional.wait_tensor.default
_ELEMENTWISE = (
    *(_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor, _aten.relu.default),
    *(_aten.gelu.default, _aten.silu.default, _aten.tanh.default, _aten.sigmoid.default),
)
_DROPOUT = _aten.native_dropout.default


@dataclass
class SumRegion:
    """An all-reduce with the operations around it."""

    start: Node  # The collective
    wait: Node  # What waits for it
    kind: OpKind  # Which collective
    ranks: int  # Number of ranks
    group: Any  # Name of their group
    shape: tuple[int, ...]  # Shape of what is summed
    product: GraphProduct | None = None  # The product that it takes; None: something else
    # For each operation of the program the node whose result it has
    nodes: dict[str, Node] = field(default_factory=dict)
    # For each dropout the node that has its mask, if something uses it
    masks: dict[str, Node] = field(default_factory=dict)
    _names: dict[Node, str] = field(default_factory=dict)
    _ops: dict[str, TensorOp] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Product of all dimensions but the last."""
        return prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        """Size of the last dimension."""
        return self.shape[-1]

    @property
    def flops(self) -> float:
        """Operations of its product."""
        return 0.0 if self.product is None else self.product.flops

    @property
    def size_bytes(self) -> int:
        """Bytes of a rank's input."""
        return int(arguments(self.start)[0].meta["val"].nbytes)

    @property
    def last(self) -> Node:
        """Last node in the graph."""
        own = {self.start, self.wait, *self.nodes.values()}
        return max(own)

    def program(self) -> TensorProgram:
        """The region as a CoCoNet program."""
        inside = set(self.nodes.values()) | {
            user for node in self.nodes.values() if node.target is _DROPOUT for user in node.users
        }
        outputs = {}
        for name, node in self.nodes.items():
            if self._ops[name].kind in (OpKind.INPUT, OpKind.MATMUL):
                continue
            users = set(_value(node).users) - inside
            if users:
                outputs[name] = name
        return TensorProgram(self.ranks, self._ops, outputs)

    def add(self, name: str, op: TensorOp, node: Node | None = None) -> str:
        """Add an operation."""
        self._ops[name] = op
        if node is not None:
            self.nodes[name] = node
            self._names[_value(node)] = name
        return name

    def value_of(self, name: str) -> Node:
        """Node of an operation's result."""
        return _value(self.nodes[name])

    def known(self, node: Node) -> str | None:
        """Operation of a node's result."""
        return self._names.get(node)

    def operand(self, node: Node) -> str | None:
        """Operation of an operand; external ones become inputs. None: its shape does not fit."""
        if node in self._names:
            return self._names[node]
        shape = shape_of(node)
        if shape == self.shape:
            own: tuple[int, ...] = (self.rows, self.columns)
        elif shape == (self.columns,):
            own = shape
        else:
            return None
        return self.add(node.name, TensorOp(OpKind.INPUT, tensor=Tensor(own)), node)


def _value(node: Node) -> Node:
    """Node of the result; of dropout the first output."""
    if node.target is not _DROPOUT:
        return node
    return next((user for user in node.users if arguments(user)[1] == 0), node)


def sum_regions_of(graph: Graph) -> Iterator[SumRegion]:
    """All regions in graph order."""
    for node in list(graph.nodes):
        if node.target in _SUMS:
            region = _region(node)
            if region is not None:
                yield region


def _region(start: Node) -> SumRegion | None:
    given, how, *_ = arguments(start)
    users = list(start.users)
    shape = shape_of(given)
    if how != "sum" or shape is None or len(shape) < 2 or len(users) != 1 or users[0].target is not _WAIT:
        return None
    group = arguments(start)[-1]
    ranks = dist.get_world_size(group_of(group))
    kind = _SUMS[start.target]
    if ranks < 2:
        return None
    region = SumRegion(start, users[0], kind, ranks, group, shape)
    _take_product(region, given)
    along = {"along": 0} if kind is OpKind.REDUCE_SCATTER else {}
    source = "product" if region.product is not None else "given"
    region.add("sum", TensorOp(kind, (source,), **along), users[0])  # type: ignore[arg-type]
    if kind is OpKind.ALL_REDUCE:
        _take_elementwise(region)
    elif region.product is None:
        return None
    return region


def _take_product(region: SumRegion, given: Node) -> None:
    """Add the reduced product, if nothing else uses it."""
    node, user = given, region.start
    while is_layout(node) and set(node.users) == {user}:
        user, node = node, arguments(node)[0]
    product = product_of(node)
    whole = (region.rows, region.columns)
    if product is not None and set(node.users) == {user} and shape_of(node) == whole:
        left, right = (shape_of(each) for each in product.operands)
        if left is not None and right is not None and product.dims == ("mk", "kn", "mn"):
            region.product = product
            inner = left[1] * region.ranks
            region.add("x", TensorOp(OpKind.INPUT, tensor=Tensor((region.rows, inner), 1)))
            region.add("w", TensorOp(OpKind.INPUT, tensor=Tensor((inner, region.columns), 0)))
            region.add("product", TensorOp(OpKind.MATMUL, ("x", "w")), node)
            return
    region.add("given", TensorOp(OpKind.INPUT, tensor=Tensor(whole, LOCAL)), given)


def _take_elementwise(region: SumRegion) -> None:
    """Add element-wise successors, as long as their other operands do not depend on the all-reduce."""
    behind: set[Node] = {region.wait}
    for node in region.start.graph.nodes:
        before = node.all_input_nodes
        if not any(each in behind for each in before):
            continue
        behind.add(node)
        if any(each in behind and region.known(each) is None for each in before):
            continue
        if node.target is _DROPOUT and arguments(node)[2] is True:
            (source,) = before
            op = TensorOp(OpKind.DROPOUT, (region.known(source) or "",), keep=1 - float(arguments(node)[1]))
            region.add(node.name, op, node)
            for user in node.users:
                if arguments(user)[1] == 1:
                    region.masks[node.name] = user
        elif node.target in _ELEMENTWISE and shape_of(node) == region.shape:
            operands = [region.operand(each) for each in arguments(node) if isinstance(each, Node)]
            names = tuple(each for each in operands if each is not None)
            if len(names) == len(operands):
                function: Any = node.target
                region.add(node.name, TensorOp(OpKind.POINTWISE, names, function=function), node)
