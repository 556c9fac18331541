"""Layouts and matrix products in a graph: positions of the ranks' parts, and named dimensions of operands.

A gathered tensor has the shards of N ranks in a row. Views, permutations and casts behind the gather move them: they
lie along some dimension of size ``outer * N * inner``, rank r's at r of the middle factor. From a shard alone the same
operations, with that dimension N times shorter, give the part of their result. So a product can take a part as soon as
its shard is there; and what a reduce-scatter takes can be made part by part, going through operations backwards.
Dimensions of products are named as in ``numpy.einsum``.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, Node
from torch.utils._pytree import tree_map

_aten: Any = torch.ops.aten
_VIEWS = (
    _aten.view.default,
    _aten._unsafe_view.default,  # noqa: SLF001 (products of more than two dimensions are traced with it)
    _aten.reshape.default,
)
_SAME = (
    _aten.clone.default,
    _aten.contiguous.default,
    _aten.detach.default,
    _aten.alias.default,
    _aten._to_copy.default,  # noqa: SLF001 (casts are traced as it)
    torch.ops.prims.convert_element_type.default,
)
_PERMUTED = (_aten.permute.default, _aten.transpose.int, _aten.t.default)


@dataclass(frozen=True)
class DimensionPlace:
    """Position of the ranks' parts in a dimension."""

    dim: int  # The dimension
    outer: int = 1  # What comes before the number of the part in it


def arguments(node: Node) -> tuple[Any, ...]:
    """Arguments of a node."""
    return node.args


def shape_of(node: Node) -> tuple[int, ...] | None:
    """Shape of a node's tensor; None: no tensor, or unknown before execution."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not all(isinstance(each, int) for each in value.shape):
        return None
    return tuple(value.shape)


def in_one_mode(graph: Graph) -> None:
    """Convert fake tensors of several modes to one mode."""
    values = [node.meta.get("val") for node in graph.nodes]
    modes = {id(value.fake_mode) for value in values if isinstance(value, FakeTensor)}
    if len(modes) < 2:
        return
    mode = FakeTensorMode()

    def again(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        with mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)

    for node in graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = tree_map(again, node.meta["val"])


def is_layout(node: Node) -> bool:
    """Whether a node only moves or casts elements."""
    known = node.target in _VIEWS or node.target in _SAME or node.target in _PERMUTED
    return known or (node.target is _aten.expand.default and shape_of(node) == shape_of(arguments(node)[0]))


def _order(node: Node, dims: int) -> list[int]:
    """Operand dimension of each dimension of the result."""
    order = list(range(dims))
    if node.target is _aten.permute.default:
        return [each % dims for each in arguments(node)[1]]
    first, second = arguments(node)[1:3] if node.target is _aten.transpose.int else (0, dims - 1)
    order[first], order[second] = order[second], order[first]
    return order


def _viewed(
    old: Sequence[int], new: Sequence[int], place: DimensionPlace, ranks: int
) -> DimensionPlace | None:
    """Position of parts after a view; None: no longer one dimension."""
    before = prod(old[: place.dim]) * place.outer
    for dim, size in enumerate(new):
        behind = prod(new[:dim])
        if behind and before % behind == 0 and size % (before // behind * ranks) == 0:
            return DimensionPlace(dim, before // behind)
    return None


def place_after(node: Node, place: DimensionPlace, ranks: int) -> DimensionPlace | None:
    """Position of the parts in a layout operation's result; None: not contiguous."""
    old, new = shape_of(arguments(node)[0]), shape_of(node)
    if old is None or new is None:
        return None
    if node.target in _VIEWS:
        return _viewed(old, new, place, ranks)
    if node.target in _PERMUTED:
        return DimensionPlace(_order(node, len(old)).index(place.dim), place.outer)
    return place


def place_before(node: Node, place: DimensionPlace, ranks: int) -> DimensionPlace | None:
    """Position of the parts in a layout operation's operand."""
    old, new = shape_of(arguments(node)[0]), shape_of(node)
    if old is None or new is None:
        return None
    if node.target in _VIEWS:
        return _viewed(new, old, place, ranks)
    if node.target in _PERMUTED:
        return DimensionPlace(_order(node, len(old))[place.dim], place.outer)
    return place


def regrouped(node: Node, ranks: int) -> tuple[Node, int, int] | None:
    """Node split into N parts along one dimension and joined along another: ``(tensor, from, to)``."""
    if node.target is not _aten.cat.default:
        return None
    parts: list[Node] = list(arguments(node)[0])
    source = _whole_of(parts[0])
    if source is None or len(parts) != ranks:
        return None
    shape = shape_of(source[0])
    if shape is None or shape[source[1]] % ranks:
        return None
    each = shape[source[1]] // ranks
    for number, part in enumerate(parts):
        if _whole_of(part) != (source[0], source[1], number * each, (number + 1) * each):
            return None
    to = arguments(node)[1] if len(arguments(node)) > 1 else 0
    return source[0], source[1], to % len(shape)


def _whole_of(part: Node) -> tuple[Node, int, int, int] | None:
    """Source of a slice: tensor, dimension, start, end."""
    if part.target is _aten.slice.Tensor:
        whole, dim, begin, end = (
            (*arguments(part), 0, 0, None)[:4] if len(arguments(part)) < 4 else arguments(part)[:4]
        )
        shape = shape_of(whole)
        if shape is None or len(arguments(part)) > 4 or end is None:
            return None
        return whole, dim % len(shape), begin, min(end, shape[dim])
    if part.target is not operator.getitem:
        return None
    split, number = arguments(part)
    if not isinstance(split, Node) or split.target not in (
        _aten.split.Tensor,
        _aten.split_with_sizes.default,
    ):
        return None
    whole, sizes = arguments(split)[:2]
    dim = arguments(split)[2] if len(arguments(split)) > 2 else 0
    shape = shape_of(whole)
    if shape is None:
        return None
    size = shape[dim]
    if isinstance(sizes, int):
        return whole, dim % len(shape), number * sizes, min(size, (number + 1) * sizes)
    return whole, dim % len(shape), sum(sizes[:number]), sum(sizes[: number + 1])


class NodeEmitter:
    """Insert operations before a node, with the shapes of their tensors.

    Args:
        graph: The graph.
        before: Where.
        ranks: Number of parts.
    """

    def __init__(self, graph: Graph, before: Node, ranks: int) -> None:
        self.graph = graph
        self.before = before
        self.ranks = ranks
        self.added: list[Node] = []

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Add an operation."""
        with self.graph.inserting_before(self.before):
            node = self.graph.call_function(target, args, kwargs)
        held = torch.fx.node.map_arg((args, kwargs), lambda each: each.meta["val"])
        node.meta["val"] = target(*held[0], **held[1])
        self.added.append(node)
        return node

    def slice(self, whole: Node, place: DimensionPlace, part: int) -> Node:
        """Slice of a tensor."""
        shape = list(whole.meta["val"].shape)
        inner = shape[place.dim] // (place.outer * self.ranks)
        if place.outer == 1:
            return self.call(_aten.slice.Tensor, whole, place.dim, part * inner, (part + 1) * inner)
        before, after = shape[: place.dim], shape[place.dim + 1 :]
        apart = self.call(_aten.reshape.default, whole, [*before, place.outer, self.ranks, inner, *after])
        cut = self.call(_aten.slice.Tensor, apart, place.dim + 1, part, part + 1)
        return self.call(_aten.reshape.default, cut, [*before, place.outer * inner, *after])

    def joined(self, parts: Sequence[Node], place: DimensionPlace) -> Node:
        """Concatenation of parts."""
        if place.outer == 1:
            return self.call(_aten.cat.default, list(parts), place.dim)
        shape = list(parts[0].meta["val"].shape)
        before, after = shape[: place.dim], shape[place.dim + 1 :]
        inner = shape[place.dim] // place.outer
        apart = [
            self.call(_aten.reshape.default, part, [*before, place.outer, 1, inner, *after]) for part in parts
        ]
        whole = self.call(_aten.cat.default, apart, place.dim + 1)
        return self.call(_aten.reshape.default, whole, [*before, place.outer * self.ranks * inner, *after])

    def moved(self, node: Node, part: Node, after: DimensionPlace) -> Node:
        """Layout operation applied to a part; ``after`` is the position of parts in its result."""
        if node.target in _VIEWS or node.target is _aten.expand.default:
            shape = list(shape_of(node) or ())
            shape[after.dim] //= self.ranks
            target = node.target if node.target is _aten.expand.default else _aten.reshape.default
            return self.call(target, part, shape)
        return self.call(node.target, part, *arguments(node)[1:], **node.kwargs)


@dataclass(frozen=True)
class GraphProduct:
    """A product of two tensors of a graph."""

    node: Node  # Its node
    left: Node  # First operand
    right: Node  # Second operand
    dims: tuple[str, str, str]  # Letters of the dimensions of both operands and the result
    bias: Node | None = None  # What is added, in last dimensions of the result; None: nothing

    @property
    def operands(self) -> tuple[Node, Node]:
        """Both operands."""
        return self.left, self.right

    @property
    def flops(self) -> float:
        """Operations: a multiplication and an addition per element pair."""
        sizes: dict[str, int] = {}
        for letters, operand in zip(self.dims, self.operands, strict=False):
            sizes |= dict(zip(letters, shape_of(operand) or (), strict=False))
        return 2.0 * prod(sizes.values())

    def letter(self, operand: int, place: DimensionPlace) -> str:
        """Name of a dimension of an operand (0, 1) or the result (2)."""
        return self.dims[operand][place.dim]

    def case(self, letter: str) -> str:
        """Kind of a split along a dimension: ``batch``, ``contracting`` or ``non-contracting``."""
        if letter not in self.dims[2]:
            return "contracting"
        return "batch" if letter in self.dims[0] and letter in self.dims[1] else "non-contracting"

    def emit(
        self, emit: NodeEmitter, operands: Sequence[Node], letter: str, cut: DimensionPlace, part: int
    ) -> Node:
        """Emit the product of parts, with the bias unless parts are summed (see :meth:`complete`).

        Args:
            operands: Both operands, or parts of them.
            cut: How it is cut: the place in any tensor that has it.
        """
        bias, out = self.bias, self.dims[2]
        if bias is None or letter not in out:
            return self._plain(emit, operands)
        dim = out.index(letter) - (len(out) - len(shape_of(bias) or ()))
        if dim >= 0 and (shape_of(bias) or ())[dim] != 1:
            bias = emit.slice(bias, DimensionPlace(dim, cut.outer), part)
        if self.node.target is _aten.linear.default:
            return emit.call(_aten.linear.default, *operands, bias)
        return emit.call(self.node.target, bias, *operands)

    def complete(self, emit: NodeEmitter, total: Node) -> Node:
        """Add the bias to a sum of parts."""
        return total if self.bias is None else emit.call(_aten.add.Tensor, total, self.bias)

    def _plain(self, emit: NodeEmitter, operands: Sequence[Node]) -> Node:
        target: dict[Any, Any] = {
            _aten.addmm.default: _aten.mm.default,
            _aten.baddbmm.default: _aten.bmm.default,
        }
        return emit.call(target.get(self.node.target, self.node.target), *operands)


def product_of(node: Node) -> GraphProduct | None:
    """Product of a node; None: it is none, or one with a scaled addend."""
    if node.kwargs or node.op != "call_function":
        return None
    args = arguments(node)
    match node.target:
        case _aten.mm.default:
            return GraphProduct(node, args[0], args[1], ("mk", "kn", "mn"))
        case _aten.bmm.default:
            return GraphProduct(node, args[0], args[1], ("bmk", "bkn", "bmn"))
        case _aten.addmm.default:
            return GraphProduct(node, args[1], args[2], ("mk", "kn", "mn"), args[0])
        case _aten.baddbmm.default:
            return GraphProduct(node, args[1], args[2], ("bmk", "bkn", "bmn"), args[0])
        case _aten.linear.default:
            shape = shape_of(args[0])
            if shape is None:
                return None
            rows = "abcdefgh"[: len(shape) - 1]
            bias = args[2] if len(args) > 2 else None
            return GraphProduct(node, args[0], args[1], (f"{rows}k", "nk", f"{rows}n"), bias)
    return None
