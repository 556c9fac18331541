"""GPU engines of an exported script; follows the emulator in the script."""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np

from coppice.export.put_signal.standalone.emulator import (
    Windows,
    input_of,
    output_of,
    places_of,
    run_rank,
)


def levels_of(operations: list[list[Any]], places: dict[str, tuple[str, int]]) -> list[list[list[Any]]]:
    """Group operations of a call into levels; within a level none touches what another writes."""
    levels: list[list[list[Any]]] = []
    written: dict[tuple[str, int], int] = {}
    read: dict[tuple[str, int], int] = {}
    for operation in operations:
        rest, count = operation[1:-1], operation[-1]
        slots = [
            [(places[buffer][0], places[buffer][1] + slot + nth) for nth in range(count)]
            for buffer, slot in zip(rest[::2], rest[1::2], strict=True)
        ]
        level = max(
            [written.get(slot, 0) for each in slots for slot in each]
            + [read.get(slot, 0) for slot in slots[-1]]
        )
        written |= dict.fromkeys(slots[-1], level + 1)
        read |= {slot: max(read.get(slot, 0), level + 1) for each in slots[:-1] for slot in each}
        levels += [[]] if level == len(levels) else []
        levels[level].append(operation)
    return levels


class OnGpu:
    """Common base of the GPU engines: tensors, streams, and the comparison."""

    def __init__(
        self, program: dict[str, Any], rank: int, *, in_place: bool, elements: int, device: str
    ) -> None:
        import torch

        self.torch: Any = torch
        self.program, self.rank, self.device = program, rank, device
        self.elements = elements
        self.memory = Windows(program, rank, in_place=in_place, make=self.window)
        self.streams: dict[int, Any] = {}

    def window(self, slots: int) -> Any:
        """Allocate a window."""
        raise NotImplementedError

    def stream(self, number: int) -> Any:
        """Stream of a number; None on the CPU."""
        if number not in self.streams:
            self.streams[number] = self.torch.cuda.Stream() if self.device != "cpu" else None
        return self.streams[number]

    def local(self, stream: int, operations: list[list[Any]]) -> None:
        """Copy and reduce; independent operations share one kernel for copies and one for sums."""
        with self.torch.cuda.stream(self.stream(stream)):
            for level in levels_of(operations, self.memory.places):
                self.together(level)

    def together(self, operations: list[list[Any]]) -> None:
        """Run independent operations."""
        copies, sums, apart = [], [], []
        for word, *rest in operations:
            into, *read = (
                self.memory.slots(rest[at], rest[at + 1], rest[-1]) for at in range(len(rest) - 3, -1, -2)
            )
            place = [into.data_ptr(), *(each.data_ptr() for each in read)]
            if word == "copy":
                copies += [(into, read[0])] if place[0] != place[1] else []
            elif place[0] in place[1:]:
                sums.append((into, read[place[1:].index(place[0]) - 1]))
            else:
                apart.append((into, read))
        if len(apart) == 1:
            [(into, read)] = apart
            self.torch.add(*read, out=into)
        else:
            copies += [(into, read[0]) for into, read in apart]
            sums += [(into, read[1]) for into, read in apart]
        if copies:
            self.torch._foreach_copy_(*map(list, zip(*copies, strict=True)))
        if sums:
            self.torch._foreach_add_(*map(list, zip(*sums, strict=True)))

    def fill(self, seed: int) -> None:
        """Fill the input."""
        given = self.torch.from_numpy(input_of(self.program, self.rank, self.elements, seed))
        self.memory.slots("input", 0, len(given)).copy_(given)
        self.join()

    def right(self, seed: int) -> bool:
        """Whether the output is correct."""
        self.join()
        wanted = output_of(self.program, self.rank, self.elements, seed)
        found = self.memory.slots("output", 0, len(wanted)).cpu().numpy()
        return bool(np.array_equal(found, wanted))

    def join(self) -> None:
        """Wait for all streams."""
        if self.device != "cpu":
            self.torch.cuda.synchronize()


def is_registered(window: Any) -> bool:
    """Whether NCCL made a window: without symmetric memory it returns success and a null handle, or nothing."""
    return window is not None and bool(getattr(window, "handle", window))


class OverNccl(OnGpu):
    """Windows, puts, signals and waits by nccl4py or a compatible interface; runs every program."""

    def __init__(
        self, program: dict[str, Any], rank: int, nccl: Any, share: Callable[[Any], Any], **rest: Any
    ) -> None:
        self.nccl = nccl
        super().__init__(program, rank, **rest)
        calls = [call for calls in program["calls"] for call in calls if "communicator" in call]
        ends = [each[-2:] for call in calls for each in call.get("transfer", ())]
        signals = 1 + max((signal for signal, _ in ends), default=0)
        contexts = 1 + max((context for _, context in ends), default=0)
        settings = {"num_rma_ctx": contexts} if contexts > 1 else {}
        settings |= {"num_rma_sig": signals} if signals > 1 else {}  # NCCL 2.31.2 or later
        config = nccl.NCCLConfig(**settings) if settings else None
        self.lines, self.handles = [], []
        for _ in range(1 + max((call["communicator"] for call in calls), default=0)):
            name = nccl.get_unique_id() if rank == 0 else None
            said = share(None if name is None else getattr(name, "as_bytes", None) or bytes(name))
            line = nccl.Communicator.init(program["ranks"], rank, nccl.UniqueId.from_bytes(said), config)
            flag = nccl.WindowFlag.COLL_SYMMETRIC
            handles = {
                name: line.register_window(window, flag) for name, window in self.memory.windows.items()
            }
            if not all(is_registered(window) for window in handles.values()):
                raise RuntimeError(
                    "NCCL registers no symmetric windows here: see NCCL_CUMEM_ENABLE, NCCL_WIN_ENABLE and GIN"
                )
            line.signal(
                rank, stream=self.stream(0)
            )  # the first call of a communicator is collective up to 2.30
            line.wait_signal([nccl.WaitSignalDesc(rank)], stream=self.stream(0))
            self.lines.append(line)
            self.handles.append(handles)
        self.peers = [places_of(program, peer, in_place=rest["in_place"]) for peer in range(program["ranks"])]
        self.join()

    def window(self, slots: int) -> Any:
        """Allocate a window separately, as windows must begin at an allocation before NCCL 2.31."""
        return self.nccl.torch.empty(slots, self.elements, dtype=self.torch.float32)

    def transfer(self, stream: int, line: int, operations: list[list[Any]]) -> None:
        """Issue one group of puts and signals."""
        on = self.stream(stream)
        with self.nccl.group():
            for word, peer, *rest in operations:
                signal, context = rest[-2:]
                if word == "signal":
                    self.lines[line].signal(peer, signal, context, stream=on)
                    continue
                source, start, target, slot, count = rest[:5]
                window, first = self.peers[peer][target]
                self.lines[line].put_signal(
                    self.memory.slots(source, start, count).view(-1),
                    peer,
                    self.handles[line][window],
                    (first + slot) * self.elements,  # in elements
                    signal,
                    context,
                    stream=on,
                )

    def wait(self, stream: int, line: int, operations: list[list[Any]]) -> None:
        """Issue one wait."""
        wanted = [self.nccl.WaitSignalDesc(peer, *rest) for _, peer, *rest in operations]
        self.lines[line].wait_signal(wanted, stream=self.stream(stream))


class SharedLibrary:
    """Minimal ctypes replacement of nccl4py on libnccl.

    Settings of a communicator cannot be given, so that there is one signal and context.
    """

    class UniqueId(ctypes.Structure):
        """``ncclUniqueId``."""

        _fields_ = (("internal", ctypes.c_byte * 128),)
        from_bytes = classmethod(lambda cls, data: cls.from_buffer_copy(data))

    class WaitSignalDesc(ctypes.Structure):
        """``ncclWaitSignalDesc_t``."""

        _fields_ = tuple((name, ctypes.c_int) for name in ("count", "peer", "signal", "context"))

        def __init__(self, peer: int, count: int = 1, signal: int = 0, context: int = 0) -> None:
            super().__init__(count, peer, signal, context)

    def __init__(self, name: str, torch: Any) -> None:
        self.library = ctypes.CDLL(name)
        self.torch = SimpleNamespace(empty=self.empty)
        self.Communicator = SimpleNamespace(init=self.init)
        self.WindowFlag = SimpleNamespace(COLL_SYMMETRIC=1)
        self.tensors = torch

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function and check its status."""
        code = getattr(self.library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} returned {code}")

    def NCCLConfig(self, **settings: int) -> None:  # noqa: N802 (nccl4py's name)
        """Communicator configuration, whose layout differs by release."""
        raise RuntimeError(
            f"expected no settings of a communicator, found {settings}: take the engine nccl4py."
        )

    def get_unique_id(self) -> Any:
        """Create a unique id."""
        made = self.UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(made))
        return made

    def init(self, ranks: int, rank: int, name: Any, config: None) -> Any:
        """Create a communicator."""
        del config
        return SharedCommunicator(self, ranks, rank, name)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Group calls."""
        self.call("ncclGroupStart")
        try:
            yield
        finally:
            self.call("ncclGroupEnd")

    def empty(self, slots: int, elements: int, dtype: Any) -> Any:
        """Allocate a float32 tensor by ncclMemAlloc."""
        pointer, count = ctypes.c_void_p(), slots * elements
        self.call("ncclMemAlloc", ctypes.byref(pointer), ctypes.c_size_t(4 * count))
        told = {"shape": (slots, elements), "typestr": "<f4", "data": (pointer.value, False), "version": 3}
        memory = SimpleNamespace(__cuda_array_interface__=told)
        return self.tensors.as_tensor(memory, dtype=dtype, device="cuda")


def _pointer(stream: Any) -> ctypes.c_void_p:
    """A stream as NCCL takes it; None is the default stream."""
    return ctypes.c_void_p(None if stream is None else stream.cuda_stream)


class SharedCommunicator:
    """Communicator of :class:`SharedLibrary`."""

    def __init__(self, nccl: SharedLibrary, ranks: int, rank: int, name: Any) -> None:
        self.nccl, self.handle = nccl, ctypes.c_void_p()
        nccl.call("ncclCommInitRank", ctypes.byref(self.handle), ranks, name, rank)

    def register_window(self, tensor: Any, flags: int) -> Any:
        """Register the window of a tensor; None without symmetric memory."""
        window, size = ctypes.c_void_p(), ctypes.c_size_t(4 * tensor.numel())
        memory = ctypes.c_void_p(tensor.data_ptr())
        self.nccl.call("ncclCommWindowRegister", self.handle, memory, size, ctypes.byref(window), flags)
        return window if window.value else None

    def signal(self, peer: int, signal: int = 0, context: int = 0, *, stream: Any) -> None:
        """Signal a peer."""
        self.nccl.call("ncclSignal", peer, signal, context, 0, self.handle, _pointer(stream))

    def put_signal(
        self, local: Any, peer: int, window: Any, offset: int, signal: int, context: int, *, stream: Any
    ) -> None:
        """Put float32 numbers (ncclFloat32 is 7) and signal the peer."""
        memory, count = ctypes.c_void_p(local.data_ptr()), ctypes.c_size_t(local.numel())
        rest = (signal, context, 0, self.handle, _pointer(stream))
        self.nccl.call("ncclPutSignal", memory, count, 7, peer, window, ctypes.c_size_t(4 * offset), *rest)

    def wait_signal(self, wanted: list[Any], *, stream: Any) -> None:
        """Wait for signals."""
        line = (SharedLibrary.WaitSignalDesc * len(wanted))(*wanted)
        self.nccl.call("ncclWaitSignal", len(wanted), line, self.handle, _pointer(stream))


class OverTorch(OnGpu):
    """Puts and signals by torch's symmetric memory: one communicator, signal and context.

    A put goes to the start of a symmetric tensor, so that every place where something lands is one of its own, and what
    came is copied to its slots after the wait that covers it. All is issued on one stream.
    """

    def __init__(self, program: dict[str, Any], rank: int, symmetric: Any, group: Any, **rest: Any) -> None:
        super().__init__(program, rank, **rest)
        self.symmetric, self.group = symmetric, group
        every = [
            (sender, call, each)
            for sender, calls in enumerate(program["calls"])
            for call in calls
            for each in call.get("transfer", ())
        ]
        if any(call["communicator"] or any(each[-2:]) for _, call, each in every):
            raise RuntimeError(
                "torch's symmetric memory has one communicator, signal and context: plan with communicators=1 "
                "and signals=1"
            )
        lands: dict[int, dict[tuple[Any, ...], int]] = defaultdict(dict)
        self.coming: dict[int, list[tuple[Any, ...] | None]] = defaultdict(list)
        for sender, _, each in every:
            key = tuple(each[4:7]) if each[0] == "put" else None
            if key is not None:
                lands[each[1]].setdefault(key, 0)
            if each[1] == rank:
                self.coming[sender].append(key)
        for keys in lands.values():
            keys.update({key: place for place, key in enumerate(sorted(keys, key=lambda key: -key[2]))})
        longest = [max((len(keys) for keys in lands.values()), default=0), 0]
        sizes = [1] * longest[0]
        for keys in lands.values():
            for key, place in keys.items():
                sizes[place] = max(sizes[place], key[2])
        self.lands = lands
        self.landing = [self.symmetric_tensor(size) for size in sizes]
        self.token = self.symmetric_tensor(1)
        self.outbox = self.symmetric_tensor(max(sizes, default=1))

    def window(self, slots: int) -> Any:
        """Allocate plain memory."""
        return self.torch.empty(slots, self.elements, dtype=self.torch.float32, device=self.device)

    def stream(self, number: int) -> Any:
        """Current stream of torch, which the group uses."""
        del number

    def symmetric_tensor(self, slots: int) -> tuple[Any, Any]:
        """Allocate a tensor on all ranks; return it with its handle."""
        tensor = self.symmetric.empty(slots * self.elements, dtype=self.torch.float32, device=self.device)
        return tensor, self.symmetric.rendezvous(tensor, self.group)

    def transfer(self, stream: int, line: int, operations: list[list[Any]]) -> None:
        """Put one after the other; a signal is a put of one unused slot."""
        del stream, line
        for word, peer, *rest in operations:
            handle, count = self.token[1], 1
            if word == "put":
                source, start, *key = rest[:5]
                count = key[2]
                handle = self.landing[self.lands[peer][tuple(key)]][1]
                self.outbox[0][: count * self.elements].copy_(
                    self.memory.slots(source, start, count).view(-1)
                )
            self.symmetric.put_signal(self.outbox[0][: count * self.elements], handle, peer)

    def wait(self, stream: int, line: int, operations: list[list[Any]]) -> None:
        """Wait for each signal, and copy the received data."""
        del stream, line
        for _, peer, count, *_ in operations:
            for _ in range(count):
                self.symmetric.wait_signal(self.token[1], peer)
            for key in self.coming[peer][:count]:
                if key is not None:
                    tensor = self.landing[self.lands[self.rank][key]][0]
                    self.memory.slots(*key).view(-1).copy_(tensor[: key[2] * self.elements])
            self.coming[peer] = self.coming[peer][count:] + self.coming[peer][:count]  # for the next run


def refused(words: str) -> int:
    """Print what is missing; return the exit status."""
    sys.stderr.write(f"error: {words}.\n")
    return 2


def run_on_gpus(program: dict[str, Any], given: argparse.Namespace) -> int:
    """Run a rank started by torchrun."""
    if "RANK" not in os.environ:
        return refused(
            f"expected the variables of torchrun, found no RANK: `torchrun ... FILE --engine {given.engine}`"
        )
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks != program["ranks"]:
        return refused(f"expected {program['ranks']} ranks, as the plan has, found {ranks}: start as many")
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        return refused(f"expected PyTorch for --engine {given.engine}, found none ({error}): install it")
    if not torch.cuda.is_available():
        return refused(
            "expected a GPU, found none that torch sees: leave --engine out to run on NumPy arrays"
        )

    rank, device = int(os.environ["RANK"]), f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    torch.cuda.set_device(device)
    dist.init_process_group("nccl" if given.engine == "torch" else "gloo")
    rest = {"in_place": given.in_place, "elements": given.elements, "device": device}

    def share(value: Any) -> Any:
        said = [value]
        dist.broadcast_object_list(said, src=0)
        return said[0]

    engine: OnGpu
    if given.engine != "torch":
        nccl = (
            import_module("nccl.core") if given.engine == "nccl4py" else SharedLibrary(given.library, torch)
        )
        engine = OverNccl(program, rank, nccl, share, **rest)
    else:
        import torch.distributed._symmetric_memory as symmetric

        symmetric.set_backend("NCCL")
        engine = OverTorch(program, rank, symmetric, dist.group.WORLD, **rest)
    wrong = 0
    for seed in range(given.seed, given.seed + given.runs):
        engine.fill(seed)
        dist.barrier()
        began = time.perf_counter()
        run_rank(program, rank, engine)
        engine.join()
        took = time.perf_counter() - began
        right = engine.right(seed)
        wrong += not right
        sys.stdout.write(f"rank {rank}, run {seed}: {took * 1e3:.3f} ms, {'right' if right else 'wrong'}\n")
        dist.barrier()
    dist.destroy_process_group()
    return 1 if wrong else 0
