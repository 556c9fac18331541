"""Torch process group with planned collectives: ``init_process_group("coppice")``.

It is a :class:`torch.distributed.ProcessGroup` with gloo (and NCCL where there are GPUs) inside. What is not planned,
and what gloo or NCCL do faster, goes to them, in the thread that calls, so that all ranks issue it in one order. What
is planned goes through a queue of one thread, over connections or memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.torch.tensors import (
    as_type,
    bounds_of,
    c10d,
    flat,
    give_out,
    listed,
    lists_of,
    overlap,
    put_back,
    reduction_options,
    set_timeout,
)
from coppice.run.torch.backend_path import BackendPath, Options, options_from
from coppice.run.torch.group import PlannedGroup
from coppice.run.torch.work import AllOf

NAME = "coppice"
_Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]]


class CoppiceProcessGroup(PlannedGroup):
    """One rank's process group; created by torch.

    Every call has the names of older versions of torch too, which call what the newer ones call by other names.
    """

    def getBackendName(self) -> str:  # noqa: N802  (torch's name)
        """Name of this backend."""
        return NAME

    def name(self) -> str:
        """Name of this backend."""
        return NAME

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> dist.Work:
        """Reduce a tensor in place."""
        [tensor], options = listed(tensors), reduction_options(opts, timeout, c10d.AllreduceOptions)
        ready = self.reducing(tensor, tensor.numel(), options, Collective.ALL_REDUCE, in_place=True)
        if ready is None:
            return self._left(tensor, lambda memory: self.backend(tensor).allreduce([memory], options))
        path, dtype, op = ready

        def action() -> None:
            memory = flat(tensor)
            path.run(Collective.ALL_REDUCE, None, memory, count=memory.numel(), dtype=dtype, op=op)
            put_back(memory, tensor)

        return self.issue("all_reduce", [tensor], action, tensor, options)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist.Work:
        """Reduce several tensors in place."""
        options = reduction_options(opts, None, c10d.AllreduceOptions)
        return AllOf([self.allreduce([tensor], options) for tensor in tensors], list(tensors))

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> dist.Work:
        """Broadcast the root's tensor."""
        [tensor], options = listed(tensors), opts
        if not isinstance(options, c10d.BroadcastOptions):
            options = c10d.BroadcastOptions()
            options.rootRank = opts or 0
        set_timeout(options, timeout)
        root = options.rootRank
        ready = self.moving(tensor, tensor.numel(), Collective.BROADCAST, root=root, in_place=True)
        if ready is None:
            return self._left(tensor, lambda memory: self.backend(tensor).broadcast([memory], options))
        path, dtype, count = ready

        def action() -> None:
            memory = flat(tensor)
            path.run(Collective.BROADCAST, None, as_type(memory, dtype), count=count, dtype=dtype, root=root)
            put_back(memory, tensor)

        return self.issue("broadcast", [tensor], action, tensor, options)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:  # noqa: A002
        """Gather a tensor of every rank into one."""
        options = opts or c10d.AllgatherOptions()
        usable = output.numel() == self.size() * input.numel() and output.dtype == input.dtype
        ready = self.moving(output, output.numel(), Collective.ALL_GATHER) if usable else None
        if ready is None:
            start = self.backend(output)._allgather_base  # noqa: SLF001
            return self._left(output, lambda memory: start(memory, flat(input), options))
        path, dtype, count = ready

        def action() -> None:
            whole, own = flat(output), flat(input)
            source: torch.Tensor | None = own
            if overlap(whole, own):
                # Whether it lies at its place may differ between ranks, and all need programs of one plan.
                first = whole.data_ptr() + self.rank() * own.numel() * own.itemsize
                source = None if path.direct and own.data_ptr() == first else own.clone()
            block = None if source is None else as_type(source, dtype)
            path.run(Collective.ALL_GATHER, block, as_type(whole, dtype), count=count, dtype=dtype)
            put_back(whole, output)

        return self.issue("all_gather", [output], action, output, options)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        """Gather several tensors."""
        pairs = zip(outputs, inputs, strict=True)
        return AllOf([self.all_gather_single(output, given, opts) for output, given in pairs], list(outputs))

    def allgather(  # type: ignore[override]
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> dist.Work:
        """Gather a tensor of every rank into a list; sizes may differ."""
        [parts], [given] = lists_of(outputs), listed(inputs)
        options = opts or c10d.AllgatherOptions()
        set_timeout(options, timeout)
        total = sum(part.numel() for part in parts)
        even = all(part.numel() == given.numel() for part in parts)
        alike = all(part.dtype == given.dtype and part.device == given.device for part in parts)
        usable = alike and len(parts) == self.size() and parts[self.rank()].numel() == given.numel()
        ready = self.moving(given, total, Collective.ALL_GATHER, always=not even) if usable else None
        if ready is None:
            memory = [flat(part) for part in parts]
            work = self.backend(given).allgather([memory], [flat(given)], options)
            return self.by_native(work, [parts], list(zip(memory, parts, strict=True)), self.backend(given))
        path, dtype, count = ready
        if not even and not path.direct:
            return self._broadcasts(parts, given)
        scale = count // total if total else 1
        bounds = None if even else [scale * bound for bound in bounds_of(parts)]

        def action() -> None:
            whole = torch.empty(total, dtype=given.dtype, device=given.device)
            source, target = as_type(flat(given), dtype), as_type(whole, dtype)
            path.run(Collective.ALL_GATHER, source, target, count=count, dtype=dtype, bounds=bounds)
            give_out(whole, parts)

        return self.issue("all_gather", [parts], action, given, options)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:  # noqa: A002
        """Reduce a tensor, and scatter its blocks."""
        options = reduction_options(opts, None, c10d.ReduceScatterOptions)
        usable = input.numel() == self.size() * output.numel() and output.dtype == input.dtype
        ready = self.reducing(input, input.numel(), options, Collective.REDUCE_SCATTER) if usable else None
        if ready is None:
            start = self.backend(output)._reduce_scatter_base  # noqa: SLF001
            return self._left(output, lambda memory: start(memory, flat(input), options))
        path, dtype, op = ready

        def action() -> None:
            source, block = flat(input), flat(output)
            if overlap(source, block):
                block = torch.empty_like(block)
            path.run(Collective.REDUCE_SCATTER, source, block, count=source.numel(), dtype=dtype, op=op)
            put_back(block, output)

        return self.issue("reduce_scatter", [output], action, output, options)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        """Reduce several tensors, and scatter their blocks."""
        pairs = zip(outputs, inputs, strict=True)
        return AllOf(
            [self.reduce_scatter_single(output, given, opts) for output, given in pairs], list(outputs)
        )

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> dist.Work:
        """Reduce the tensors of a list, and scatter them."""
        [output], [parts] = listed(outputs), lists_of(inputs)
        options = reduction_options(opts, timeout, c10d.ReduceScatterOptions)
        total = sum(part.numel() for part in parts)
        even = all(part.numel() == output.numel() for part in parts)
        alike = all(part.dtype == output.dtype and part.device == output.device for part in parts)
        usable = alike and len(parts) == self.size() and parts[self.rank()].numel() == output.numel()
        ready = (
            self.reducing(output, total, options, Collective.REDUCE_SCATTER, always=not even)
            if usable
            else None
        )
        if ready is not None and not even and not ready[0].direct:
            return self._reduces(output, parts, options)
        if ready is None:
            given, start = [[flat(part) for part in parts]], self.backend(output).reduce_scatter
            return self._left(output, lambda memory: start([memory], given, options))
        path, dtype, op = ready
        bounds = None if even else bounds_of(parts)

        def action() -> None:
            source = torch.cat([part.detach().reshape(-1) for part in parts])
            block = flat(output)
            path.run(Collective.REDUCE_SCATTER, source, block, count=total, dtype=dtype, op=op, bounds=bounds)
            put_back(block, output)

        return self.issue("reduce_scatter", [output], action, output, options)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002
        output_splits: Any = (),
        input_splits: Any = (),
        opts: Any = None,
    ) -> dist.Work:
        """Exchange the parts of a tensor; with explicit sizes, as planned from those of all ranks."""
        options = opts or c10d.AllToAllOptions()
        named = len(output_splits) or len(input_splits)
        if named and output.dtype == input.dtype:
            found = self.moving(input, input.numel(), Collective.ALL_TO_ALL, always=True)
            if found is not None and found[0].exchanges_blocks:
                return self._unequal(found[0], found[1], output, input, output_splits, input_splits, options)
        alike = output.numel() == input.numel() and output.dtype == input.dtype
        usable = alike and not named and not input.numel() % self.size()
        ready = self.moving(input, input.numel(), Collective.ALL_TO_ALL) if usable else None
        if ready is None:
            splits, start = (list(output_splits), list(input_splits)), self.backend(output).alltoall_base
            return self._left(output, lambda memory: start(memory, flat(input), *splits, options))
        path, dtype, count = ready

        def action() -> None:
            target, source = flat(output), flat(input)
            if overlap(target, source):
                source = source.clone()
            path.run(
                Collective.ALL_TO_ALL,
                as_type(source, dtype),
                as_type(target, dtype),
                count=count,
                dtype=dtype,
            )
            put_back(target, output)

        return self.issue("all_to_all", [output], action, output, options)

    def _unequal(
        self,
        path: BackendPath,
        dtype: DataType,
        output: torch.Tensor,
        given: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        options: Any,
    ) -> dist.Work:
        """An all-to-all whose parts have the sizes that are given, in rows."""
        received, sent = (
            _elements(output, output_splits, self.size()),
            _elements(given, input_splits, self.size()),
        )
        if dtype is DataType.UINT8:
            received, sent = [[each * given.itemsize for each in part] for part in (received, sent)]

        def action() -> None:
            target, source = flat(output), flat(given)
            if overlap(target, source):
                source = source.clone()
            path.exchange_blocks(as_type(source, dtype), as_type(target, dtype), sent, received, dtype=dtype)
            put_back(target, output)

        return self.issue("all_to_all", [output], action, given, options)

    def barrier(  # type: ignore[override]
        self, opts: Any = None, timeout: Any = None
    ) -> dist.Work:
        """Wait for all ranks, after all issued work."""
        options = opts if isinstance(opts, c10d.BarrierOptions) else c10d.BarrierOptions()
        set_timeout(options, timeout)
        nothing = torch.empty(0)
        ready = self.moving(nothing, 0, Collective.BARRIER, always=True) if self.nccl is None else None
        if ready is None or not ready[0].direct:
            before = self.issue("barrier", [], _nothing, nothing, options)
            native = self.gloo if self.nccl is None else self.nccl
            return AllOf([before, self.by_native(native.barrier(options), [], [], native)], [])
        action = _barrier(ready[0], nothing)
        return self.issue("barrier", [], action, nothing, options)

    def send(self, tensors: Any, dst: int, tag: int = 0) -> dist.Work:
        """Send a tensor, by gloo or NCCL."""
        parts, backend = listed(tensors), self.backend(listed(tensors)[0])
        return self.by_native(backend.send(parts, dst, tag), parts, [], backend)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> dist.Work:
        """Receive a tensor, by gloo or NCCL."""
        parts, backend = listed(tensors), self.backend(listed(tensors)[0])
        return self.by_native(backend.recv(parts, src, tag), parts, [], backend)

    def _left(self, tensor: torch.Tensor, start: Callable[[torch.Tensor], dist.Work]) -> dist.Work:
        """What is left to gloo or NCCL: the work that ``start`` begins on contiguous memory of the tensor."""
        memory = flat(tensor) if tensor.layout is torch.strided else tensor
        return self.by_native(start(memory), [tensor], [(memory, tensor)], self.backend(tensor))

    def _broadcasts(self, parts: list[torch.Tensor], given: torch.Tensor) -> dist.Work:
        """Gather tensors of different sizes, one root after the other."""
        parts[self.rank()].detach().copy_(given.detach())
        works: list[dist.Work] = []
        for root, part in enumerate(parts):
            single = c10d.BroadcastOptions()
            single.rootRank, single.asyncOp = root, True
            start = self.backend(part).broadcast
            works.append(self._left(part, lambda memory, start=start, single=single: start([memory], single)))  # type: ignore[misc]
        return AllOf(works, [parts])

    def _reduces(self, output: torch.Tensor, parts: list[torch.Tensor], options: Any) -> dist.Work:
        """Reduce tensors of different sizes, one root after the other."""
        works: list[dist.Work] = []
        for root, part in enumerate(parts):
            single = c10d.ReduceOptions()
            single.reduceOp, single.rootRank = options.reduceOp, root
            memory = part.detach().clone(memory_format=torch.contiguous_format)
            copies = [(memory, output)] if root == self.rank() else []
            backend = self.backend(part)
            works.append(self.by_native(backend.reduce([memory], single), [output], copies, backend))
        return AllOf(works, [output])

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]
    alltoall_base = all_to_all_single  # type: ignore[assignment]


def _elements(tensor: torch.Tensor, splits: Sequence[int], ranks: int) -> list[int]:
    """Elements of the parts of a tensor, which have so many rows; equal ones where no sizes are given."""
    rows = tensor.shape[0] if tensor.dim() else 0
    parts = [int(each) for each in splits] or [rows // ranks] * ranks
    if len(parts) != ranks or sum(parts) != rows or min(parts) < 0:
        raise InputError(
            f"expected {ranks} sizes of parts that add up to {rows} rows, found {parts[:8]}: see `all_to_all_single`."
        )
    row = tensor.numel() // rows if rows else 0
    return [each * row for each in parts]


def _nothing() -> None:
    """A task that is done when all before it are."""


def _barrier(path: BackendPath, nothing: torch.Tensor) -> Callable[[], None]:
    return lambda: path.run(
        Collective.BARRIER, nothing, nothing, count=0, dtype=DataType.UINT8, op=ReduceOp.SUM
    )


_world_options = Options()


def _create(given: Any, options: Any) -> CoppiceProcessGroup:
    """What torch calls for every new group; groups within the world are set up as the world is."""
    global _world_options
    members = list(given.global_ranks_in_group)
    if not members:
        _world_options = options_from(options if isinstance(options, Options) else None)
    chosen = options_from(options) if isinstance(options, Options) else _world_options
    return CoppiceProcessGroup(
        given.store,
        given.group_rank,
        given.group_size,
        given.timeout,
        members or range(given.group_size),
        chosen,
    )


def register() -> None:
    """Register the backend with torch (idempotent)."""
    if NAME.upper() not in dist.Backend._plugins:  # noqa: SLF001  (torch has no other way to ask)
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
