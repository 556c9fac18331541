"""Process group below the torch backend's collectives: gloo and NCCL, planned paths, one queue, shutdown."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from coppice.collectives import Collective
from coppice.errors import CoppiceError, InputError
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.shared_memory import store_exchange
from coppice.run.engines.torch.tensors import c10d, put_back, reduce_op, type_of
from coppice.run.errors import PeerLost, TimedOut
from coppice.run.torch.backend_path import BackendPath, Options, open_backend_path
from coppice.run.torch.puts import CollectiveCall, PutChoice
from coppice.run.torch.work import Afterwards, AllOf, Queue, Task, error_of

_CPU, _CUDA = torch.device("cpu"), torch.device("cuda")
_AT_EXIT_S = 1.0


class PlannedGroup(dist.ProcessGroup):
    """Process group over gloo and NCCL with planned paths.

    Args:
        store: The group's store.
        rank: This rank in the group.
        size: Number of ranks.
        timeout: Longest wait for another rank.
        members: Ranks of the world, by rank of the group.
        options: What the user says.
    """

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta, members: Sequence[int], options: Options
    ) -> None:
        # With a store, as torch's own types say, it cannot make an object of a subclass.
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._store, self._members, self._options = store, list(members), options
        # The backend for CPUs
        self.gloo: Any = c10d.ProcessGroupGloo(c10d.PrefixStore("gloo", store), rank, size, timeout)
        self._register_backend(_CPU, dist.ProcessGroup.BackendType.GLOO, self.gloo)
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self.nccl: Any = None  # The backend for GPUs, None where there are none
        if torch.cuda.is_available() and dist.is_nccl_available():
            # torch replaces the whole group by this one, also where another backend was asked for GPUs.
            chosen = c10d.ProcessGroupNCCL.Options()
            chosen._timeout = timeout  # noqa: SLF001
            self.nccl = c10d.ProcessGroupNCCL(c10d.PrefixStore("nccl", store), rank, size, chosen)
            self._register_backend(_CUDA, dist.ProcessGroup.BackendType.NCCL, self.nccl)
        self._queue = Queue(f"coppice-{rank}")
        self._paths: dict[str, BackendPath | None] = {}
        self._broken: Exception | None = None
        self._opening = threading.Lock()
        self._gathered: list[dist.Work] | None = None
        _GROUPS.add(self)

    def get_group_store(self) -> Any:
        """Store of the group."""
        return self._store

    def backend(self, tensor: torch.Tensor) -> Any:
        """Gloo or NCCL, by the tensor's device."""
        return self.nccl if tensor.device.type == "cuda" and self.nccl is not None else self.gloo

    def reducing(
        self,
        tensor: torch.Tensor,
        count: int,
        options: Any,
        collective: Collective,
        *,
        in_place: bool = False,  # Nothing is given beside the output
        always: bool = False,  # Whatever the size, and however blocks are cut
    ) -> tuple[BackendPath, DataType, ReduceOp] | None:
        """How to reduce ``count`` elements of this type; None leaves it to gloo or NCCL."""
        dtype, op = type_of(tensor), reduce_op(options.reduceOp)
        if dtype is None or op is None or not op.serves(dtype):
            return None
        call = CollectiveCall(collective=collective, count=count, dtype=dtype, op=op, in_place=in_place)
        path = self._path_for(tensor, None if always else call)
        return None if path is None else (path, dtype, op)

    def moving(
        self,
        tensor: torch.Tensor,
        count: int,
        collective: Collective,
        *,
        root: int = -1,
        in_place: bool = False,
        always: bool = False,
    ) -> tuple[BackendPath, DataType, int] | None:
        """How to move ``count`` elements of this type, and the number of elements of the carrier type."""
        dtype = type_of(tensor)
        if dtype is None:
            dtype, count = DataType.UINT8, count * tensor.itemsize
        call = CollectiveCall(collective=collective, count=count, dtype=dtype, root=root, in_place=in_place)
        path = self._path_for(tensor, None if always else call)
        return None if path is None else (path, dtype, count)

    def issue(
        self, what: str, outputs: Any, action: Callable[[], None], tensor: torch.Tensor, options: Any
    ) -> dist.Work:
        """Queue an action behind all issued before it."""
        device = tensor.device if tensor.device.type == "cuda" else None
        path = self._paths.get(tensor.device.type)
        if path is not None and path.recording():  # a graph: by this thread, on the stream that is recorded
            recorded = Task(what, outputs, action)
            recorded.carry_out(None)
            return self._noted(recorded)
        task = Task(what, outputs, action, device=device)
        waits = not getattr(options, "asyncOp", True) and self._gathered is None
        self._queue.put(task, device=device, waits=waits)
        return self._noted(task)

    def by_native(
        self,
        work: dist.Work,
        outputs: Any,
        # Contiguous memory and the strided tensor that it is put back to: gloo reads those wrongly
        copies: Sequence[tuple[torch.Tensor, torch.Tensor]],
        backend: Any,
    ) -> dist.Work:
        """Work of gloo or NCCL with errors converted to those of this group."""
        needed = [(memory, tensor) for memory, tensor in copies if memory.data_ptr() != tensor.data_ptr()]
        if not needed and backend is not self.gloo:
            return self._noted(work)

        def action() -> None:
            for memory, tensor in needed:
                put_back(memory, tensor)

        told = self._error_of_gloo if backend is self.gloo else None
        return self._noted(Afterwards(work, action, outputs, told=told))

    def _error_of_gloo(self, error: RuntimeError) -> Exception:
        """What gloo raised, as errors of this group are; the group stays broken, as gloo's connections do."""
        if isinstance(error, dist.DistBackendError):
            return error
        words = (str(error).splitlines() or [""])[0]
        late = "timed out" in words.lower()
        what = "waited too long for another rank" if late else "lost another rank"
        msg = f"rank {self.rank()} {what} in a call that gloo carries out ({words}): see the output of the other ranks."
        found = error_of("gloo", (TimedOut if late else PeerLost)(msg))
        if self._broken is None:
            self._broken = found
        return found

    def _start_coalescing(self, device: torch.device) -> None:
        """What is issued from now on is waited for together."""
        if device.type == "cuda" and self.nccl is not None:
            self.nccl._start_coalescing()  # noqa: SLF001
        self._gathered = []

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        """All that was issued since :meth:`_start_coalescing`, as one."""
        works, self._gathered = self._gathered or [], None
        if device.type == "cuda" and self.nccl is not None:
            together = self.nccl._end_coalescing()  # noqa: SLF001
            works += [together] if together is not None else []
        return AllOf(works)

    def replan(self, topology: Any = None) -> None:
        """Go on with plans for another network of the same ranks, behind all calls that were issued before.

        Every rank calls it between the same two calls; collectives are planned anew as they come, and results stay
        what they are.

        Args:
            topology: What :func:`coppice.load` takes; needed on rank 0, other ranks give the same one or None.

        Raises:
            torch.distributed.DistBackendError: On every rank, if networks differ, or its calls are not planned.
        """
        from coppice.topology.load import load

        left = None if topology is None else load(topology)
        path = self._path("cpu" if self.nccl is None else "cuda")
        if path is None:
            raise error_of(
                "replan", InputError("expected a group whose calls are planned, found one of gloo or NCCL.")
            )
        task = Task("replan", None, lambda: path.replan(left))
        self._queue.put(task, device=None, waits=True)
        task.wait()

    def shutdown(self) -> None:
        """Finish issued work, and stop the thread."""
        self._end("was shut down", drain=True, timeout_s=self._timeout_s())

    def abort(self) -> None:
        """Abort outstanding work; ranks that wait for this one raise."""
        self._end("was aborted", drain=False, timeout_s=_AT_EXIT_S)

    def _noted(self, work: dist.Work) -> dist.Work:
        if self._gathered is not None:
            self._gathered.append(work)
        return work

    def _path_for(self, tensor: torch.Tensor, call: CollectiveCall | None) -> BackendPath | None:
        """The way of a call, None for gloo or NCCL; without a call, whatever the size."""
        served = "cuda" if self.nccl is not None and tensor.device.type == "cuda" else "cpu"
        if self.size() == 1 or tensor.device.type != served or tensor.layout is not torch.strided:
            return None
        path = self._path(served)
        if path is None or call is None:
            return path
        if call.count * call.dtype.itemsize < path.threshold_bytes and not (path.puts and path.puts.tuned):
            return None
        if path.puts is None:
            return path
        if not path.puts.knows(call):
            self._plan(path, path.puts, call)
        return None if path.puts.group_for(call) is None else path

    def _plan(self, path: BackendPath, puts: PutChoice, call: CollectiveCall) -> None:
        """Find out with all ranks whether a new call can be put, after what was issued before it."""
        what = str(call.collective)
        if path.recording():
            msg = f"expected {what} to have run before it is recorded, found a new call: make it once before."
            raise error_of(what, InputError(msg))
        task = Task(what, None, lambda: puts.plan(call))
        self._queue.put(task, device=None, waits=True)
        task.wait()

    def _path(self, device: str) -> BackendPath | None:
        """The way around gloo or NCCL, if there is one, opened when it is needed: at the same call on every rank."""
        with self._opening:
            if self._broken is not None:
                raise self._broken
            if device not in self._paths:
                if device == "cuda" and torch.cuda.is_current_stream_capturing():
                    msg = "expected a call that ran before it is recorded, found the first one: make it once before."
                    raise error_of(device, InputError(msg))
                store = c10d.PrefixStore(f"coppice/{device}", self._store)
                options = self._options
                if device == "cpu" and self.nccl is not None and options.engine == "put-signal":
                    options = replace(options, engine="auto")  # that was meant for tensors on GPUs
                try:
                    self._paths[device] = open_backend_path(
                        store,
                        store_exchange(store, self.rank(), self.size()),
                        self.rank(),
                        self._members,
                        options,
                        world=dist.get_world_size() if dist.is_initialized() else self.size(),
                        device=device,
                        timeout=self._timeout_s,
                        native=self._native_all_reduce,
                    )
                except (CoppiceError, RuntimeError) as error:
                    self._broken = error_of("the set-up of a process group", error)
                    raise self._broken from error
            return self._paths[device]

    def _native_all_reduce(self, tensor: torch.Tensor) -> None:
        options = c10d.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        self.backend(tensor).allreduce([tensor], options).wait()

    def _timeout_s(self) -> float:
        """Longest wait for another rank, in seconds, as torch may have changed it since."""
        timeout: timedelta = self.gloo.options._timeout  # noqa: SLF001
        return max(1e-3, timeout.total_seconds())

    def _end(self, why: str, *, drain: bool, timeout_s: float) -> None:
        reason = f"the process group of rank {self.rank()} {why}: make a new one."
        if self._broken is None:
            self._broken = dist.DistBackendError(reason)
        if not drain:
            self._queue.stop(reason, drain=False, timeout_s=0.0)
            self._close_paths(given_up=reason)
        self._queue.stop(reason, drain=drain, timeout_s=timeout_s)
        self._close_paths()
        _GROUPS.discard(self)

    def _close_paths(self, *, given_up: str = "") -> None:
        for path in [each for each in self._paths.values() if each is not None]:
            with suppress(CoppiceError, RuntimeError):
                if given_up:
                    path.abort(given_up)
                path.close()


_GROUPS: weakref.WeakSet[PlannedGroup] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """A thread that still runs when the interpreter goes away would end the process with an error."""
    for group in list(_GROUPS):
        group.abort()
