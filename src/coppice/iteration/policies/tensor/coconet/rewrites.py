"""Rewrites of programs that preserve their semantics.

* **split**: an all-reduce becomes a reduce-scatter along some dimension and an all-gather.
* **reorder**: what takes a gathered tensor element by element, sends it, or takes its norm, takes slices instead, and
  is gathered behind that; other operands are sliced, which costs nothing. The norm of slices needs no gather: a sum of
  one number over ranks gives it to all.
* **as slice**: a state that only the program uses, and of which only slices are used, is stored sliced, and its new
  value stays sliced (as ZeRO shards states).
* **fuse**: an operation and one that takes its result run in one kernel: elementwise ones, norms, and a reduce-scatter
  before and an all-gather behind them (then computation is inside the collective). Kernels must not wait for each other
  in a circle.
* **overlap**: a product and the collective that takes it, or a collective and a send, run chunk by chunk side by side,
  in the order in which the ring needs chunks. Nothing else that the second takes waits for the first, and neighbours
  in a chain do not share what they run on: two collectives have the same links, unless a send to another group is
  between.

The first three change operations, the last two only when they run, so that any sequence of transforms has the same
result as one in this order: it is enough to try those.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from coppice.iteration.policies.tensor.coconet.program import (
    ELEMENTWISE,
    REPLICATED,
    OpKind,
    Tensor,
    TensorOp,
    TensorProgram,
)

_Found = Iterator[tuple[str, TensorProgram]]
_FUSED = (*ELEMENTWISE, OpKind.NORM, OpKind.REDUCE_SCATTER, OpKind.ALL_GATHER)
_RUNS_ON = {
    OpKind.MATMUL: "products",
    OpKind.SEND: "links between groups",
    OpKind.ALL_REDUCE: "links",
    OpKind.REDUCE_SCATTER: "links",
    OpKind.ALL_GATHER: "links",
}


def splits(program: TensorProgram) -> _Found:
    """Split every all-reduce along every dimension that the ranks divide."""
    for name, op in program.ops.items():
        if op.kind is not OpKind.ALL_REDUCE:
            continue
        for along, size in enumerate(program.tensors[name].shape):
            if size % program.ranks == 0:
                made = {
                    f"{name}.scatter": TensorOp(OpKind.REDUCE_SCATTER, op.operands, along=along),
                    name: TensorOp(OpKind.ALL_GATHER, (f"{name}.scatter",)),
                }
                yield f"split {name} along {along}", _with(program, name, made)


def reorders(program: TensorProgram) -> _Found:
    """Move every operation that allows it before the all-gather of an operand."""
    for name, op in program.ops.items():
        gathers = [each for each in op.operands if program.ops[each].kind is OpKind.ALL_GATHER]
        if not gathers:
            continue
        if op.kind in (OpKind.SEND, OpKind.NORM):
            (source,) = program.ops[gathers[0]].operands
            if op.kind is OpKind.NORM:
                yield f"reorder {name}", _with(program, name, {name: replace(op, operands=(source,))})
            else:
                made = {
                    f"{name}.slice": replace(op, operands=(source,)),
                    name: TensorOp(OpKind.ALL_GATHER, (f"{name}.slice",)),
                }
                yield f"reorder {name}", _with(program, name, made)
        elif op.kind in ELEMENTWISE:
            for along in sorted({_layout_before(program, each) for each in gathers}):
                sliced = _sliced(program, name, along)
                if sliced is not None:
                    yield f"reorder {name} along {along}", sliced


def state_slices(program: TensorProgram) -> _Found:
    """Shard every private input that is used only in shards along one dimension."""
    for name, op in program.ops.items():
        users = program.users(name)
        dimensions = {program.ops[user].along for user in users}
        if not op.private or op.tensor is None or op.tensor.layout != REPLICATED or len(dimensions) != 1:
            continue
        if (
            any(program.ops[user].kind is not OpKind.SLICE for user in users)
            or name in program.outputs.values()
        ):
            continue
        ops = {
            each: replace(
                own, operands=tuple(name if operand in users else operand for operand in own.operands)
            )
            for each, own in program.ops.items()
            if each not in users
        }
        ops[name] = replace(op, tensor=Tensor(op.tensor.shape, dimensions.pop()))
        outputs = {outside: _before_gather(ops, inside, name) for outside, inside in program.outputs.items()}
        yield f"as slice {name}", replace(program, ops=ops, outputs=outputs).pruned()


def fusions(program: TensorProgram) -> _Found:
    """Fuse every pair of producer and consumer kernels."""
    for name, op in program.ops.items():
        for operand in op.operands:
            first, second = program.kernel(operand), program.kernel(name)
            both = first | second
            kinds = [program.ops[each].kind for each in both]
            if first == second or any(kind not in _FUSED for kind in kinds):
                continue
            if max(kinds.count(OpKind.REDUCE_SCATTER), kinds.count(OpKind.ALL_GATHER)) > 1:
                continue
            fused = replace(program, kernels=program.kernels - {first, second} | {both})
            if fused.in_order() is not None:
                yield f"fuse {operand} and {name}", fused


def overlaps(program: TensorProgram) -> _Found:
    """Overlap every producer kernel with a consumer, chunk by chunk; a kernel is in one chain only."""
    firsts = {program.kernel(first) for first, _ in program.overlaps}
    seconds = {program.kernel(second) for _, second in program.overlaps}
    for name, op in program.ops.items():
        second = program.kernel(name)
        if second in seconds or not (taken := _runs_on(program, second)):
            continue
        for operand in op.operands:
            first = program.kernel(operand)
            own = _runs_on(program, first)
            if first == second or first in firsts or own in ("", taken) or taken == "products":
                continue
            others = program.taken(second) - first
            if any(_comes_after(program, other, first) for other in others):
                continue
            yield (
                f"overlap {operand} and {name}",
                replace(program, overlaps=program.overlaps | {(operand, name)}),
            )


PHASES = ((splits, reorders, state_slices), (fusions,), (overlaps,))
"""Transforms, in the order that is enough."""


def _with(
    program: TensorProgram, name: str, made: dict[str, TensorOp], slices: dict[str, TensorOp] | None = None
) -> TensorProgram:
    """Replace operations of a program, with slices right after their operands."""
    ops: dict[str, TensorOp] = {}
    for each, op in program.ops.items():
        ops |= made if each == name else {each: op}
        ops |= {slice_: own for slice_, own in (slices or {}).items() if own.operands[0] == each}
    return _simplified(replace(program, ops=ops))


def _simplified(program: TensorProgram) -> TensorProgram:
    """Remove slices of the all-gather of the same slices, and dead operations."""
    known: dict[str, str] = {}
    for name, op in program.ops.items():
        if op.kind is OpKind.SLICE and program.ops[op.operands[0]].kind is OpKind.ALL_GATHER:
            (source,) = program.ops[op.operands[0]].operands
            if program.tensors[source].layout == op.along:
                known[name] = source
    ops = {
        name: replace(op, operands=tuple(known.get(each, each) for each in op.operands))
        if op.operands
        else op
        for name, op in program.ops.items()
        if name not in known
    }
    return replace(program, ops=ops).pruned()


def _layout_before(program: TensorProgram, gather: str) -> int:
    """Dimension of the gathered shards."""
    return program.tensors[program.ops[gather].operands[0]].layout


def _sliced(program: TensorProgram, name: str, along: int) -> TensorProgram | None:
    """Elementwise operation on shards along a dimension of the result; None where an operand cannot be sliced."""
    op, shape = program.ops[name], program.tensors[name].shape
    operands: list[str] = []
    slices: dict[str, TensorOp] = {}
    if program.tensors[name].layout != REPLICATED or shape[along] % program.ranks:
        return None
    for each in op.operands:
        dimension = along - (len(shape) - len(program.tensors[each].shape))
        gathered = program.ops[each].kind is OpKind.ALL_GATHER
        if dimension < 0:
            operands.append(each)
        elif gathered and _layout_before(program, each) == dimension:
            operands.append(program.ops[each].operands[0])
        else:
            slice_ = f"{each}.slice{dimension}"
            if slice_ not in program.ops:
                slices[slice_] = TensorOp(OpKind.SLICE, (each,), along=dimension)
            operands.append(slice_)
    made = {
        f"{name}.slice": replace(op, operands=tuple(operands)),
        name: TensorOp(OpKind.ALL_GATHER, (f"{name}.slice",)),
    }
    return _with(program, name, made, slices)


def _before_gather(ops: dict[str, TensorOp], inside: str, state: str) -> str:
    """The gathered value, if it is the new value of a state."""
    op = ops[inside]
    if op.kind is OpKind.ALL_GATHER:
        source = ops[op.operands[0]]
        if source.kind is OpKind.UPDATE and source.operands[0] == state:
            return op.operands[0]
    return inside


def _runs_on(program: TensorProgram, kernel: frozenset[str]) -> str:
    """Dimension along which a kernel can run chunk by chunk; empty: it cannot, as with norms."""
    kinds = {program.ops[name].kind for name in kernel}
    found = [place for kind, place in _RUNS_ON.items() if kind in kinds]
    return found[0] if found and OpKind.NORM not in kinds else ""


def _comes_after(program: TensorProgram, name: str, kernel: frozenset[str]) -> bool:
    """Whether a result depends on a kernel."""
    front, seen = [name], set()
    while front:
        each = front.pop()
        if each in kernel:
            return True
        if each not in seen:
            seen.add(each)
            front += program.ops[each].operands
    return False
