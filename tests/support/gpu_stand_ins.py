"""Stand-ins for torch's streams, nccl4py and symmetric memory: what is issued happens at once, on CPU tensors.

Each method has the parameters of the real one, and refuses what that would refuse; ranks are threads. A rank that waits
for a signal waits in its host, which is the strictest order: that of the issue.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from inspect import Parameter, Signature
from types import SimpleNamespace
from typing import Any

import torch

_PATIENCE_S = 120.0


class Event:
    """As ``torch.cuda.Event``; ``done`` says whether it has happened."""

    def __init__(self, *, done: bool = True) -> None:
        self.done = done

    def query(self) -> bool:
        return self.done


class Stream:
    """As ``torch.cuda.Stream``."""

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        del priority, kwargs
        self.device, self.cuda_stream, self.waited = device, id(self), 0

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, Event)
        self.waited += 1

    def wait_stream(self, stream: Stream) -> None:
        assert isinstance(stream, Stream)
        self.waited += 1

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()


def patch_cuda(patch: Any) -> SimpleNamespace:
    """Put stand-ins into ``torch.cuda``; ``capturing`` of the result may be set."""
    state = SimpleNamespace(capturing=False)
    here = threading.local()

    def current_stream(device: Any = None) -> Stream:
        if not hasattr(here, "stream"):
            here.stream = Stream(device)
        return here.stream  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def stream(stream: Stream) -> Iterator[None]:
        before, here.stream = current_stream(), stream
        yield
        here.stream = before

    for name, value in {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "current_stream": current_stream,
        "stream": stream,
        "Stream": Stream,
        "Event": Event,
        "is_current_stream_capturing": lambda: state.capturing,
        "device": lambda device: contextlib.nullcontext(device),
    }.items():
        patch.setattr(torch.cuda, name, value)
    return state


class _Counters:
    """Signals between ranks that share this process."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.values: dict[Any, int] = defaultdict(int)

    def add(self, key: Any, number: int) -> None:
        with self.changed:
            self.values[key] += number
            self.changed.notify_all()

    def until(self, key: Any, least: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.values[key] >= least, _PATIENCE_S), f"no signal {key}"


class NcclWorld:
    """The module ``nccl.core`` (nccl4py 0.6) for ranks of one process.

    Args:
        version: Release of the library.
        supported: Ranks can put to each other; None: nccl4py is for a later NCCL, which it cannot ask.
        windows: There is symmetric memory; if not, a window has no handle, or is None as up to nccl4py 0.4.
        tells: nccl4py says which NCCL it has loaded, as from 0.4.1 on.
        settings: Names that communicators may be set up with.

    Attributes:
        stuck: Set, so that nobody deadlocks; cleared, aborting and destroying wait for it, as NCCL's do for graphs.
    """

    def __init__(
        self,
        version: tuple[int, int, int] = (2, 31, 2),
        *,
        supported: bool | None = True,
        windows: bool | None = True,
        tells: bool = True,
        settings: Sequence[str] = ("num_rma_sig", "rma_eager_init"),
    ) -> None:
        self.version, self.supported = version, supported
        self.closed: list[torch.Tensor] = []
        self.stuck = threading.Event()
        self.stuck.set()
        self.counters = _Counters()
        self.buffers: dict[Any, torch.Tensor] = {}
        self.made = 0
        self.aborted: list[int] = []
        world = self

        class UniqueId:
            def __init__(self, number: int) -> None:
                self.number = number

            def __bytes__(self) -> bytes:
                return self.number.to_bytes(8, "little")

            @staticmethod
            def from_bytes(data: bytes) -> UniqueId:
                return UniqueId(int.from_bytes(data, "little"))

        class Communicator:
            """One rank's end."""

            @staticmethod
            def init(nranks: int, rank: int, unique_id: UniqueId, config: Any = None) -> Communicator:
                del config
                return Communicator(nranks, rank, unique_id.number)

            def __init__(self, ranks: int, rank: int, number: int) -> None:
                self.ranks, self.rank, self.number = ranks, rank, number
                self.expected: dict[Any, int] = defaultdict(int)

            @property
            def host_rma_support(self) -> bool:
                if world.supported is None:
                    raise RuntimeError("InvalidUsage (5): invalid usage")
                return world.supported

            def register_window(self, buffer: torch.Tensor, flags: int = 0) -> Any:
                assert flags == 1, "puts are refused"
                if windows is None:
                    return None
                if not windows:
                    return SimpleNamespace(handle=0, close=lambda: None, owner=self)
                world.buffers[self.number, self.rank] = buffer
                world.counters.add(("window", self.number), 1)
                return SimpleNamespace(handle=7, close=lambda: world.closed.append(buffer), owner=self)

            def put_signal(
                self,
                local: torch.Tensor,
                peer: int,
                window: Any,
                peer_window_offset: int,
                signal_index: int = 0,
                context: int = 0,
                flags: int = 0,
                *,
                stream: int,
            ) -> None:
                assert window.owner is self
                assert stream
                assert not flags
                there = world.buffers[self.number, peer]
                assert 0 <= peer_window_offset <= len(there) - len(local)
                there[peer_window_offset : peer_window_offset + len(local)] = local
                self.signal(peer, signal_index, context, stream=stream)

            def signal(
                self, peer: int, signal_index: int = 0, context: int = 0, flags: int = 0, *, stream: int
            ) -> None:
                assert stream
                assert not flags
                assert context == 0
                assert signal_index < (4 if world.version >= (2, 31, 2) else 1)
                world.counters.add((self.number, self.rank, peer, signal_index), 1)

            def wait_signal(self, descriptors: Sequence[Any], *, stream: int) -> None:
                assert stream
                for each in descriptors:
                    key = (self.number, each.peer, self.rank, each.signal_index)
                    self.expected[key] += each.op_count
                    world.counters.until(key, self.expected[key])

            def get_async_error(self) -> int:
                return 0

            def abort(self) -> None:
                world.aborted.append(self.rank)
                world.stuck.wait()

            def destroy(self) -> None:
                world.stuck.wait()

        def new_id() -> UniqueId:
            self.made += 1
            return UniqueId(self.made)

        def descriptor(*, peer: int, op_count: int = 1, signal_index: int = 0, context: int = 0) -> Any:
            assert context == 0
            return SimpleNamespace(peer=peer, op_count=op_count, signal_index=signal_index)

        library = SimpleNamespace(version=SimpleNamespace(release=version))
        told = SimpleNamespace(libnccl=library) if tells else SimpleNamespace(nccl4py_version="0.3.1")
        names = [Parameter(each, Parameter.KEYWORD_ONLY, default=None) for each in settings]

        def config(**given: Any) -> Any:
            config.__signature__.bind(**given)  # type: ignore[attr-defined]
            return given

        config.__signature__ = Signature(names)  # type: ignore[attr-defined]
        self.module = SimpleNamespace(
            get_version=lambda: told,
            get_unique_id=new_id,
            UniqueId=UniqueId,
            Communicator=Communicator,
            NCCLConfig=config,
            WindowFlag=SimpleNamespace(COLL_SYMMETRIC=1),
            WaitSignalDesc=descriptor,
            group=contextlib.nullcontext,
            torch=SimpleNamespace(empty=torch.zeros),
        )


class SymmetricWorld:
    """Symmetric memory of the back end CUDA for ranks of one process: its allocations and its meetings.

    Groups are looked up where torch does, among its process groups, and ranks meet in the store of theirs.
    """

    def __init__(self) -> None:
        self.counters = _Counters()
        self.buffers: dict[Any, torch.Tensor] = {}
        self.turns: dict[str, int] = defaultdict(int)

    def patch(self, patch: Any) -> None:
        """Put it into torch, in place of what needs a GPU."""
        from torch._C._distributed_c10d import _SymmetricMemory

        patch.setattr(_SymmetricMemory, "empty_strided_p2p", self.allocate)
        patch.setattr(_SymmetricMemory, "rendezvous", self.rendezvous)

    def allocate(
        self,
        size: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        group_name: str | None = None,
        alloc_id: int | None = None,
    ) -> torch.Tensor:
        assert device.type == "cpu"
        assert group_name is None
        assert alloc_id is None
        return torch.zeros(*size, dtype=dtype).as_strided(size, stride)

    def rendezvous(self, tensor: torch.Tensor, group_name: str | None = None) -> SymmetricHandle:
        from torch._C._distributed_c10d import _resolve_process_group

        assert group_name is not None
        group = _resolve_process_group(group_name)  # type: ignore[arg-type]
        rank, ranks, store = group.rank(), group.size(), group.get_group_store()  # type: ignore[attr-defined]
        turn = self.turns[group_name] = self.turns[group_name] + 1
        self.buffers[turn, rank] = tensor
        store.set(f"met/{turn}/{rank}", str(tensor.numel()))
        lengths = {store.get(f"met/{turn}/{peer}") for peer in range(ranks)}
        assert len(lengths) == 1
        return SymmetricHandle(self, turn, rank)


class SymmetricHandle:
    """As ``torch._C._distributed_c10d._SymmetricMemory``: a signal is a flag."""

    def __init__(self, world: SymmetricWorld, turn: int, rank: int) -> None:
        self._world, self._turn, self._rank = world, turn, rank

    def get_buffer(
        self, rank: int, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int = 0
    ) -> torch.Tensor:
        [length] = sizes
        whole = self._world.buffers[self._turn, rank]
        assert dtype == whole.dtype
        assert storage_offset + length <= len(whole)
        return whole[storage_offset : storage_offset + length]

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        del timeout_ms
        raised = self._turn, self._rank, dst_rank, channel
        taken = "taken", *raised
        self._world.counters.until(taken, self._world.counters.values[raised])
        self._world.counters.add(raised, 1)

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        del timeout_ms
        raised = self._turn, src_rank, self._rank, channel
        taken = "taken", *raised
        self._world.counters.until(raised, self._world.counters.values[taken] + 1)
        self._world.counters.add(taken, 1)
