"""Published programs: optimizers, the end of a tensor-parallel layer, and the send to the next pipeline stage."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coppice.iteration.policies.tensor.coconet.program import LOCAL, OpKind, Tensor, TensorOp, TensorProgram

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
