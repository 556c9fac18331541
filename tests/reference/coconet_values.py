"""Runs a program with NumPy on several ranks, each with what it holds.

Dropout takes a number between 0 and 1 for an element from a hash of its place in the whole tensor, so that a slice
drops what the whole would: the offset that its random numbers need. Two groups of ranks stand for a send: the values of
the next group are what was sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.iteration.policies.tensor.coconet.program import (
    LOCAL,
    REPLICATED,
    OpKind,
    Tensor,
    TensorOp,
    TensorProgram,
)

_Array = NDArray[np.float64]


def run_program(
    program: TensorProgram, inputs: Mapping[str, _Array | Sequence[_Array]]
) -> dict[str, list[_Array]]:
    """What every rank holds of every output, kernel by kernel.

    Args:
        program: The program.
        inputs: For each input what it is as a whole; of a local one what each rank holds.

    Raises:
        InputError: If kernels wait for each other in a circle.
    """
    kernels = program.in_order()
    if kernels is None:
        raise InputError(
            f"expected kernels that do not wait for each other, found {sorted(map(sorted, program.kernels))}."
        )
    values = {
        name: _held(program.tensors[name], inputs[name], program.ranks)
        for name, op in program.ops.items()
        if op.kind is OpKind.INPUT
    }
    for name in (name for kernel in kernels for name in kernel):
        op = program.ops[name]
        operands = [values[each] for each in op.operands]
        tensors = [program.tensors[each] for each in op.operands]
        values[name] = _run(op, operands, tensors, program.tensors[name], program.ranks)
    return {outside: values[name] for outside, name in program.outputs.items()}


def assembled(tensor: Tensor, held: Sequence[_Array]) -> _Array:
    """The tensor as a whole, of what ranks hold."""
    if tensor.layout >= 0:
        return np.concatenate(held, axis=tensor.layout)
    return held[0] if tensor.layout == REPLICATED else _summed(held)


def _held(tensor: Tensor, given: _Array | Sequence[_Array], ranks: int) -> list[_Array]:
    """What ranks hold of an input."""
    if tensor.layout == LOCAL:
        return [np.asarray(each, dtype=np.float64) for each in given]
    whole = np.asarray(given, dtype=np.float64)
    return np.split(whole, ranks, axis=tensor.layout) if tensor.layout >= 0 else [whole] * ranks


def _summed(held: Sequence[_Array]) -> _Array:
    total = held[0]
    for each in held[1:]:
        total = total + each
    return total


def _run(
    op: TensorOp, operands: list[list[_Array]], tensors: list[Tensor], result: Tensor, ranks: int
) -> list[_Array]:
    """What every rank holds of a result."""
    first = operands[0]
    match op.kind:
        case OpKind.ALL_REDUCE:
            return [_summed(first)] * ranks
        case OpKind.REDUCE_SCATTER:
            return np.split(_summed(first), ranks, axis=op.along)
        case OpKind.ALL_GATHER:
            return [np.concatenate(first, axis=tensors[0].layout)] * ranks
        case OpKind.BROADCAST:
            return [first[0]] * ranks
        case OpKind.SLICE:
            return [np.split(each, ranks, axis=op.along)[rank] for rank, each in enumerate(first)]
        case OpKind.SEND:
            return [each.copy() for each in first]
        case OpKind.MATMUL:
            return [left @ right for left, right in zip(*operands, strict=True)]
        case OpKind.NORM:
            squares = [np.asarray(np.sum(each * each)) for each in first]
            if tensors[0].layout >= 0:
                squares = [_summed(squares)] * ranks
            return [np.asarray(np.sqrt(each)) for each in squares]
        case OpKind.DROPOUT:
            places = np.arange(result.elements, dtype=np.uint64).reshape(result.shape)
            own = np.split(places, ranks, axis=result.layout) if result.layout >= 0 else [places] * ranks
            return [
                np.where(_uniform(op.seed, place) < op.keep, each / op.keep, 0.0)
                for each, place in zip(first, own, strict=True)
            ]
        case _:
            function = op.function or np.add
            return [np.asarray(function(*each)) for each in zip(*operands, strict=True)]


def _uniform(seed: int, places: NDArray[np.uint64]) -> _Array:
    """A number between 0 and 1 for each place (splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = (places + np.uint64(seed % 2**32 + 1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    return (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53
