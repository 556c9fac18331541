"""Language of distributed tensors (layout on the ranks, computation, communication), and published programs in it.

Theory. A tensor is *local* (ranks hold terms of a sum), *replicated* (all hold the same), or *sliced* along a dimension
(rank r holds the r-th of N equal parts). Every operation says what it makes of the layouts of its operands; where they
do not fit the program is refused. Operations are a graph in an order in which operands come first. The fused ones form
a kernel, in ``kernels``; pairs of kernels in ``overlaps`` run chunk by chunk, side by side.

The programs are optimizers, the end of a tensor-parallel layer, and the send to the next pipeline stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError

LOCAL, REPLICATED = -2, -1
"""Layouts beside slices, which are the number of their dimension."""


class OpKind(StrEnum):
    """Kind of operation."""

    INPUT = "input"
    """A tensor from outside, in the layout that it has."""
    ALL_REDUCE = "all_reduce"
    """Local to replicated."""
    REDUCE_SCATTER = "reduce_scatter"
    """Local to sliced."""
    ALL_GATHER = "all_gather"
    """Sliced to replicated."""
    BROADCAST = "broadcast"
    """The first rank's term to all."""
    SEND = "send"
    """From every rank to its counterpart in the next group."""
    SLICE = "slice"
    """Replicated to sliced: each rank takes its part."""
    MATMUL = "matmul"
    """The product of matrices; slices of the summed dimension give local terms."""
    POINTWISE = "pointwise"
    """A function of elements of its operands."""
    DROPOUT = "dropout"
    """Elements kept with a probability, by their place in the whole tensor, others 0."""
    NORM = "norm"
    """The square root of the sum of squares: of a slice it needs a sum of one number over ranks."""
    UPDATE = "update"
    """The same, whose first operand is a state that the result replaces."""


ELEMENTWISE = (OpKind.POINTWISE, OpKind.DROPOUT, OpKind.UPDATE)


@dataclass(frozen=True)
class Tensor:
    """Shape and layout of a distributed tensor."""

    shape: tuple[int, ...]  # Its shape as a whole
    layout: int = REPLICATED  # LOCAL, REPLICATED, or the dimension along which it is sliced

    @property
    def elements(self) -> int:
        """Elements of the global tensor."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    def held(self, ranks: int) -> int:
        """Elements held by a rank."""
        return self.elements // ranks if self.layout >= 0 else self.elements


@dataclass(frozen=True)
class TensorOp:
    """Operation of a tensor program."""

    kind: OpKind  # Which
    operands: tuple[str, ...] = ()  # Names of its operands
    function: Callable[..., NDArray[np.float64]] | None = None  # Of a pointwise one or an update
    along: int = 0  # Dimension of slices that it makes
    seed: int = 0  # Of a dropout
    keep: float = 1.0  # Probability with which a dropout keeps an element
    tensor: Tensor | None = None  # What an input is
    # Nothing but this program uses an input, so that it may as well lie otherwise: states of an optimizer
    private: bool = False


@dataclass(frozen=True)
class TensorProgram:
    """Operations by name, in topological order.

    Raises:
        InputError: If layouts or shapes do not fit; the message names the operation.

    Examples:
        >>> program = TensorProgram(2, {
        ...     "g": TensorOp(OpKind.INPUT, tensor=Tensor((4,), LOCAL)),
        ...     "sum": TensorOp(OpKind.ALL_REDUCE, ("g",)),
        ...     "twice": TensorOp(OpKind.POINTWISE, ("sum",), function=lambda a: 2 * a),
        ... }, {"out": "twice"})
        >>> program.tensors["twice"].layout == REPLICATED
        True
    """

    ranks: int  # Ranks of the group
    ops: Mapping[str, TensorOp]  # The operations
    outputs: Mapping[str, str]  # For each name outside, the operation that has it
    # Sets of operations that are fused; all others are kernels by themselves
    kernels: frozenset[frozenset[str]] = frozenset()
    # Pairs of names: the kernel of the second takes what that of the first gives chunk by chunk
    overlaps: frozenset[tuple[str, str]] = frozenset()
    tensors: Mapping[str, Tensor] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        tensors: dict[str, Tensor] = {}
        for name, op in self.ops.items():
            missing = [each for each in op.operands if each not in tensors]
            if missing:
                raise InputError(f"expected operands of {name} before it, found none called {missing[0]}.")
            found = _result(op, [tensors[each] for each in op.operands], self.ranks)
            if found is None:
                layouts = ", ".join(f"{each} {tensors[each]}" for each in op.operands) or "none"
                raise InputError(
                    f"expected operands that {op.kind} {name} can take on {self.ranks} ranks, found {layouts}."
                )
            tensors[name] = found
        for name in self.outputs.values():
            if name not in tensors:
                raise InputError(f"expected outputs among the operations, found {name}.")
        object.__setattr__(self, "tensors", tensors)

    def users(self, name: str) -> list[str]:
        """Operations that use a result."""
        return [each for each, op in self.ops.items() if name in op.operands]

    def kernel(self, name: str) -> frozenset[str]:
        """Kernel of an operation."""
        return next((each for each in self.kernels if name in each), frozenset((name,)))

    def in_order(self) -> list[tuple[str, ...]] | None:
        """All kernels but inputs in a valid order; None where they form a cycle."""
        place = {name: number for number, name in enumerate(self.ops)}
        done = {name for name, op in self.ops.items() if op.kind is OpKind.INPUT}
        left = {self.kernel(name) for name in self.ops if name not in done}
        found: list[tuple[str, ...]] = []
        while left:
            ready = [each for each in left if self.taken(each) <= done]
            if not ready:
                return None
            following = min(ready, key=lambda each: min(place[name] for name in each))
            left.remove(following)
            done |= following
            found.append(tuple(sorted(following, key=lambda name: place[name])))
        return found

    def taken(self, kernel: Iterable[str]) -> set[str]:
        """Inputs of a kernel from other kernels."""
        own = set(kernel)
        return {operand for name in own for operand in self.ops[name].operands} - own

    def pruned(self) -> TensorProgram:
        """Program without dead operations, kernels and overlaps."""
        needed: set[str] = set()
        front = list(self.outputs.values())
        while front:
            name = front.pop()
            if name not in needed:
                needed.add(name)
                front += self.ops[name].operands
        if len(needed) == len(self.ops):
            return self
        return replace(self, ops={name: op for name, op in self.ops.items() if name in needed})

    def key(self) -> tuple[object, ...]:
        """Canonical form, equal for programs that differ only in the names of operations."""
        known: dict[str, tuple[object, ...]] = {}
        numbers: dict[tuple[object, ...], int] = {}
        number: dict[str, int] = {}
        for name, op in self.ops.items():
            own = name if op.kind is OpKind.INPUT else ""
            operands = tuple(number[each] for each in op.operands)
            known[name] = (op.kind, operands, op.function, op.along, op.seed, op.keep, op.tensor, own)
            number[name] = numbers.setdefault(known[name], len(numbers))
        return (
            tuple(numbers),
            tuple(sorted((outside, number[name]) for outside, name in self.outputs.items())),
            frozenset(frozenset(number[name] for name in each) for each in self.kernels),
            frozenset(tuple(number[name] for name in pair) for pair in self.overlaps),
        )


def _result(op: TensorOp, operands: list[Tensor], ranks: int) -> Tensor | None:
    """Result tensor of an operation; None where its operands are invalid."""
    if op.kind is OpKind.INPUT:
        return op.tensor if op.tensor is not None and _divides(op.tensor, ranks) else None
    if not operands:
        return None
    first = operands[0]
    if op.kind is OpKind.MATMUL:
        return _product(*operands) if len(operands) == 2 else None
    if op.kind in ELEMENTWISE:
        return _elementwise(operands)
    if op.kind is OpKind.NORM:
        return Tensor((), REPLICATED) if first.layout != LOCAL else None
    if op.kind is OpKind.SEND:
        return first
    wants, gives = {
        OpKind.ALL_REDUCE: (LOCAL, REPLICATED),
        OpKind.BROADCAST: (LOCAL, REPLICATED),
        OpKind.REDUCE_SCATTER: (LOCAL, op.along),
        OpKind.SLICE: (REPLICATED, op.along),
        OpKind.ALL_GATHER: (first.layout if first.layout >= 0 else None, REPLICATED),
    }[op.kind]
    made = Tensor(first.shape, gives)
    return made if first.layout == wants and _divides(made, ranks) else None


def _divides(tensor: Tensor, ranks: int) -> bool:
    """Whether shards are equal."""
    if tensor.layout < 0:
        return True
    return tensor.layout < len(tensor.shape) and tensor.shape[tensor.layout] % ranks == 0


def _product(left: Tensor, right: Tensor) -> Tensor | None:
    """Matrix product; None where shapes or layouts do not match."""
    if len(left.shape) != 2 or len(right.shape) != 2 or left.shape[1] != right.shape[0]:
        return None
    layout = {
        (REPLICATED, REPLICATED): REPLICATED,
        (1, 0): LOCAL,
        (REPLICATED, 1): 1,
        (0, REPLICATED): 0,
    }.get((left.layout, right.layout))
    return None if layout is None else Tensor((left.shape[0], right.shape[1]), layout)


def _elementwise(operands: list[Tensor]) -> Tensor | None:
    """Elementwise result: full-shape operands in one layout, broadcast operands sharded alike."""
    shape = max((each.shape for each in operands), key=len)
    layouts = {each.layout for each in operands if each.shape == shape}
    if len(layouts) != 1 or LOCAL in {each.layout for each in operands}:
        return None
    layout = layouts.pop()
    for each in operands:
        behind = len(shape) - len(each.shape)
        if each.shape != shape[behind:]:
            return None
        expected = layout - behind if layout >= behind else REPLICATED
        if each.shape != shape and each.layout != expected:
            return None
    return Tensor(shape, layout)


_Array = NDArray[np.float64]
_RATE, _MEAN, _SQUARE, _DECAY, _SMALL = 1e-3, 0.9, 0.999, 0.01, 1e-6


def _mean(state: _Array, gradient: _Array) -> _Array:
    return _MEAN * state + (1 - _MEAN) * gradient


def _square(state: _Array, gradient: _Array) -> _Array:
    return _SQUARE * state + (1 - _SQUARE) * gradient * gradient


def _adam_step(weights: _Array, mean: _Array, square: _Array) -> _Array:
    return weights - _RATE * mean / (np.sqrt(square) + _SMALL)


def _momentum_step(weights: _Array, mean: _Array) -> _Array:
    return weights - _RATE * mean


def _lamb_direction(weights: _Array, mean: _Array, square: _Array) -> _Array:
    return mean / (np.sqrt(square) + _SMALL) + _DECAY * weights


def _lamb_step(weights: _Array, direction: _Array, size: _Array, length: _Array) -> _Array:
    return weights - _RATE * size / length * direction


def _moments(elements: int) -> dict[str, TensorOp]:
    """All-reduced gradients, and updated moments."""
    whole = Tensor((elements,))
    return {
        "g": TensorOp(OpKind.INPUT, tensor=Tensor((elements,), LOCAL)),
        "p": TensorOp(OpKind.INPUT, tensor=whole),
        "m": TensorOp(OpKind.INPUT, tensor=whole, private=True),
        "v": TensorOp(OpKind.INPUT, tensor=whole, private=True),
        "sum": TensorOp(OpKind.ALL_REDUCE, ("g",)),
        "mean": TensorOp(OpKind.UPDATE, ("m", "sum"), function=_mean),
        "square": TensorOp(OpKind.UPDATE, ("v", "sum"), function=_square),
    }


def adam(*, ranks: int, elements: int) -> TensorProgram:
    """Adam after the all-reduce of gradients, without bias correction."""
    ops = _moments(elements)
    ops["step"] = TensorOp(OpKind.UPDATE, ("p", "mean", "square"), function=_adam_step)
    return TensorProgram(ranks, ops, {"p": "step", "m": "mean", "v": "square"})


def momentum(*, ranks: int, elements: int) -> TensorProgram:
    """SGD with momentum after the all-reduce of gradients."""
    ops = _moments(elements)
    del ops["v"], ops["square"]
    ops["step"] = TensorOp(OpKind.UPDATE, ("p", "mean"), function=_momentum_step)
    return TensorProgram(ranks, ops, {"p": "step", "m": "mean"})


def lamb(*, ranks: int, elements: int) -> TensorProgram:
    """LAMB of one layer, its step scaled by the ratio of two norms."""
    ops = _moments(elements)
    ops["direction"] = TensorOp(OpKind.POINTWISE, ("p", "mean", "square"), function=_lamb_direction)
    ops["size"] = TensorOp(OpKind.NORM, ("p",))
    ops["length"] = TensorOp(OpKind.NORM, ("direction",))
    ops["step"] = TensorOp(OpKind.UPDATE, ("p", "direction", "size", "length"), function=_lamb_step)
    return TensorProgram(ranks, ops, {"p": "step", "m": "mean", "v": "square"})


def tensor_parallel_layer(
    *, ranks: int, rows: int, inner: int, columns: int, keep: float = 0.9
) -> TensorProgram:
    """Sharded matrix product, all-reduce, bias, dropout and residual."""
    ops = {
        "x": TensorOp(OpKind.INPUT, tensor=Tensor((rows, inner), 1)),
        "w": TensorOp(OpKind.INPUT, tensor=Tensor((inner, columns), 0)),
        "bias": TensorOp(OpKind.INPUT, tensor=Tensor((columns,))),
        "residual": TensorOp(OpKind.INPUT, tensor=Tensor((rows, columns))),
        "product": TensorOp(OpKind.MATMUL, ("x", "w")),
        "sum": TensorOp(OpKind.ALL_REDUCE, ("product",)),
        "biased": TensorOp(OpKind.POINTWISE, ("sum", "bias"), function=np.add),
        "dropped": TensorOp(OpKind.DROPOUT, ("biased",), seed=7, keep=keep),
        "out": TensorOp(OpKind.POINTWISE, ("dropped", "residual"), function=np.add),
    }
    return TensorProgram(ranks, ops, {"out": "out"})


def pipeline_handoff(*, ranks: int, rows: int, columns: int) -> TensorProgram:
    """All-reduce in a tensor-parallel group, and its result sent to the group of the next stage."""
    ops = {
        "y": TensorOp(OpKind.INPUT, tensor=Tensor((rows, columns), LOCAL)),
        "sum": TensorOp(OpKind.ALL_REDUCE, ("y",)),
        "sent": TensorOp(OpKind.SEND, ("sum",)),
    }
    return TensorProgram(ranks, ops, {"out": "sent"})
