"""Products in a graph: which dimension of which operand is which, as in ``numpy.einsum``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.fx import Node

from coppice.training.torch.tensor.passes_layout import DimensionPlace, NodeEmitter, arguments, shape_of

_aten: Any = torch.ops.aten


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
        """Operations: a multiplication and an addition for each pair of elements that meet."""
        sizes: dict[str, int] = {}
        for letters, operand in zip(self.dims, self.operands, strict=False):
            sizes |= dict(zip(letters, shape_of(operand) or (), strict=False))
        return 2.0 * prod(sizes.values())

    def letter(self, operand: int, place: DimensionPlace) -> str:
        """The dimension of an operand (0, 1) or the result (2)."""
        return self.dims[operand][place.dim]

    def case(self, letter: str) -> str:
        """What cutting along a dimension is: ``batch``, ``contracting`` or ``non-contracting``."""
        if letter not in self.dims[2]:
            return "contracting"
        return "batch" if letter in self.dims[0] and letter in self.dims[1] else "non-contracting"

    def emit(
        self, emit: NodeEmitter, operands: Sequence[Node], letter: str, cut: DimensionPlace, part: int
    ) -> Node:
        """The product of parts; the bias is added unless parts are terms of a sum, to which :meth:`complete` adds it.

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
        """The result of a sum of parts."""
        return total if self.bias is None else emit.call(_aten.add.Tensor, total, self.bias)

    def _plain(self, emit: NodeEmitter, operands: Sequence[Node]) -> Node:
        target: dict[Any, Any] = {
            _aten.addmm.default: _aten.mm.default,
            _aten.baddbmm.default: _aten.bmm.default,
        }
        return emit.call(target.get(self.node.target, self.node.target), *operands)


def product_of(node: Node) -> GraphProduct | None:
    """The product that a node is; None: none, or one that scales what it adds."""
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
