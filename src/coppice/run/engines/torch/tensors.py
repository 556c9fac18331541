"""Tensors as operands of torch's collectives, and stepwise execution of programs on them for GPUs.

Nothing here waits on the host for a GPU: ``wait`` of a group of messages of NCCL makes the current stream wait, and
additions and copies follow on that stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from coppice.errors import InputError
from coppice.program.dialects.rank.program import RankBuffer, RankProgram, RowKind
from coppice.run.engines.datatype import DataType, ReduceOp, check_reduction

c10d: Any = distributed_c10d
"""What torch's own Python has from its C++ side; only parts of it are public names."""

_TYPES = {getattr(torch, dtype.value): dtype for dtype in DataType}


def torch_op(op: ReduceOp) -> Any:
    """Torch's name of a reduction."""
    return getattr(dist.ReduceOp, op.name)


_OPS = {op: torch_op(op) for op in ReduceOp}


def reduce_op(given: Any) -> ReduceOp | None:
    """Reduction of a torch op, or None where it is unsupported.

    torch compares its own options with its constants from the left only: ``SUM == options.reduceOp`` is false.

    Examples:
        >>> options = c10d.AllreduceOptions()
        >>> reduce_op(options.reduceOp), dist.ReduceOp.SUM == options.reduceOp
        (<ReduceOp.SUM: 'sum'>, False)
    """
    return next((ours for ours, theirs in _OPS.items() if given == theirs), None)


def type_of(tensor: torch.Tensor) -> DataType | None:
    """Element type of a tensor, or None where it is unsupported."""
    return _TYPES.get(tensor.dtype)


def listed(tensors: Any) -> list[torch.Tensor]:
    """A list of tensors, also for a single one."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def lists_of(tensors: Any) -> list[list[torch.Tensor]]:
    """A list of lists of tensors, also for a single list."""
    return [list(tensors)] if isinstance(tensors[0], torch.Tensor) else [list(each) for each in tensors]


def reduction_options(given: Any, timeout: timedelta | None, kind: type[Any]) -> Any:
    """Options of a reduction: as given, or from an operation."""
    options = given
    if not hasattr(given, "reduceOp"):
        options = kind()
        if given is not None:
            options.reduceOp = given
    elif not isinstance(given, kind) or isinstance(given, c10d.AllreduceCoalescedOptions):
        options = kind()
        options.reduceOp = given.reduceOp
        options.asyncOp = getattr(given, "asyncOp", True)
    set_timeout(options, timeout)
    return options


def set_timeout(options: Any, timeout: timedelta | None) -> None:
    """Put a timeout into options, if there is one."""
    if timeout is not None:
        options.timeout = timeout


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous elements of a tensor: its own memory if possible, otherwise a copy."""
    return tensor.detach().contiguous()


def put_back(memory: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy back after :func:`flat` made a copy."""
    if memory.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(memory.view(tensor.shape))


def give_out(memory: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    """Copy consecutive blocks to tensors."""
    for part, first in zip(parts, bounds_of(parts), strict=False):
        part.detach().copy_(memory[first : first + part.numel()].view(part.shape))


def bounds_of(parts: Sequence[torch.Tensor]) -> list[int]:
    """Offsets of consecutive parts, and the total number of elements."""
    return [0, *accumulate(part.numel() for part in parts)]


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two contiguous tensors share memory."""
    ends = one.data_ptr() + one.numel() * one.itemsize, other.data_ptr() + other.numel() * other.itemsize
    return one.data_ptr() < ends[1] and other.data_ptr() < ends[0]


def as_type(tensor: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """View a contiguous tensor as bytes where its type is unsupported."""
    if dtype is DataType.UINT8 and tensor.dtype is not torch.uint8:
        return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
    return tensor


_UNSIGNED = {DataType.UINT16, DataType.UINT32, DataType.UINT64}


def nccl_group(store: Any, rank: int, ranks: int, timeout: timedelta) -> Any:
    """NCCL process group outside torch's registry."""
    if not (dist.is_nccl_available() and torch.cuda.is_available()):
        raise InputError("expected a GPU and a build of torch with NCCL, found none: use the device cpu.")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout  # noqa: SLF001  (torch has no other name for it)
    group = dist.ProcessGroup(store, rank, ranks)
    backend = dist.ProcessGroupNCCL(store, rank, ranks, options)
    group._register_backend(  # noqa: SLF001
        torch.device("cuda"), dist.ProcessGroup.BackendType.NCCL, backend
    )
    group._set_default_backend(dist.ProcessGroup.BackendType.NCCL)  # noqa: SLF001
    return group


def run_steps(
    # Has `send` and `recv`; on GPUs also `_start_coalescing` and `_end_coalescing`, since sends and receives
    # of a step must be started as one there
    group: Any,
    program: RankProgram,
    given: torch.Tensor | None,  # INPUT, contiguous; not looked at where the program is in place
    wanted: torch.Tensor,
    *,
    dtype: DataType,
    op: ReduceOp,
    device: str | torch.device,
) -> None:
    """Execute a program on tensors."""
    place = torch.device(device)
    combine = combining(op, dtype) if program.collective.reduces else torch.add
    arrays = (
        elements_on(given, dtype, program.input_elements, place, "the input"),
        elements_on(wanted, dtype, program.output_elements, place, "the output"),
        torch.empty(program.scratch_elements, dtype=getattr(torch, dtype.value), device=place),
    )
    staging = torch.empty(program.staging_elements, dtype=arrays[2].dtype, device=place)
    names = ("kind", "peer", "tag", "buffer", "offset", "length", "source", "source_offset")
    rows = list(zip(*(getattr(program, name).tolist() for name in names), strict=True))
    for begin, end in pairwise(program.step_start.tolist()):
        arrivals: dict[int, torch.Tensor] = {}
        sends: list[tuple[torch.Tensor, int, int]] = []
        receives: list[tuple[torch.Tensor, int, int]] = []
        used = 0
        for row in range(begin, end):
            kind, peer, tag, buffer, offset, length, _, _ = rows[row]
            if kind == RowKind.COPY:
                continue
            target = arrays[buffer][offset : offset + length]
            if kind == RowKind.RECV_REDUCE:
                target = arrivals[row] = staging[used : used + length]
                used += length
            (sends if kind == RowKind.SEND else receives).append((target, peer, tag))
        _move(group, sends, receives, place)
        for row in range(begin, end):
            kind, _, _, buffer, offset, length, source, first = rows[row]
            if kind not in (RowKind.COPY, RowKind.RECV_REDUCE):
                continue
            own = arrays[source][first : first + length]
            target = arrays[buffer][offset : offset + length]
            if kind == RowKind.COPY:
                target.copy_(own)
            else:
                combine(own, arrivals[row], out=target)
    if op is ReduceOp.AVG and program.collective.reduces and program.result_elements:
        first = program.result_offset
        result = arrays[RankBuffer.OUTPUT][first : first + program.result_elements]
        result.div_(program.ranks, rounding_mode=None if dtype.is_float else "trunc")


def _move(
    group: Any,
    sends: list[tuple[torch.Tensor, int, int]],
    receives: list[tuple[torch.Tensor, int, int]],
    place: torch.device,
) -> None:
    """All messages of a step, at once."""
    if not sends and not receives:
        return
    together = place.type == "cuda"
    if together:
        group._start_coalescing(place)  # noqa: SLF001  (what batch_isend_irecv of torch does)
    works = [group.send([part], peer, tag) for part, peer, tag in sends]
    works += [group.recv([part], peer, tag) for part, peer, tag in receives]
    if together:
        works = [group._end_coalescing(place)]  # noqa: SLF001
    for work in works:
        work.wait()


def elements_on(
    tensor: torch.Tensor | None, dtype: DataType, elements: int, place: torch.device, name: str
) -> torch.Tensor:
    """First elements of a tensor, flat."""
    kind = getattr(torch, dtype.value)
    if not elements:
        return torch.empty(0, dtype=kind, device=place)
    found = "none" if tensor is None else f"{tensor.numel()} of {tensor.dtype} on {tensor.device}"
    if (
        tensor is None
        or tensor.numel() < elements
        or tensor.dtype != kind
        or tensor.device.type != place.type
        or not tensor.is_contiguous()
    ):
        raise InputError(
            f"expected {elements} contiguous elements of {dtype} on {place} in {name}, found {found}."
        )
    return tensor.detach().view(-1)[:elements]


def combining(op: ReduceOp, dtype: DataType) -> Callable[..., torch.Tensor]:
    """Torch function with ``out=`` of a reduction."""
    check_reduction(op, dtype)
    if dtype in _UNSIGNED:
        raise InputError(f"expected a type that torch adds up, found {dtype}: choose another one.")
    if dtype is DataType.BOOL:
        any_of = (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.BOR)
        if op is ReduceOp.BXOR:
            return torch.logical_xor
        return torch.logical_or if op in any_of else torch.logical_and
    return _FUNCTIONS[op]


_FUNCTIONS: dict[ReduceOp, Callable[..., torch.Tensor]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.AVG: torch.add,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.PRODUCT: torch.mul,
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}
