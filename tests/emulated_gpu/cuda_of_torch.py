"""``torch.cuda`` on the emulated runtime: streams, events and graphs of CUDA, whose kernels are operations on the CPU.

Memory of an emulated device is memory of the process, so that a tensor of the CPU can show it. What torch would launch
as a kernel (an operation on memory of a device that writes to a tensor that is there) is issued to the current stream
as a function of the host, and so takes its place in the order of streams, events and captured graphs. What makes a new
tensor of such memory waits for the current stream first, as reading a value does on a GPU, and runs at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_NOT_READY, _ACTIVE, _NON_BLOCKING, _NO_TIMING, _THREAD_CAPTURE = 600, 1, 1, 2, 1
_DEVICE_MEMORY = 2

_HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _PointerAttributes(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("device", ctypes.c_int),
        ("device_pointer", ctypes.c_void_p),
        ("host_pointer", ctypes.c_void_p),
        ("reserved", ctypes.c_long * 8),
    )


_here = threading.local()
_calls: dict[int, Callable[[], None]] = {}  # what functions of the host do, by number; kept for graphs
_numbers = itertools.count(1)
_failures: list[BaseException] = []
_of_host: set[int] = set()  # storages that arrays of NumPy share


def _library() -> Any:
    return ctypes.CDLL("libcudart.so.13")


def call(name: str, *arguments: Any) -> None:
    """Call the runtime, and raise what it answers as torch does."""
    code = getattr(_library(), name)(*arguments)
    if code:
        _library().cudaGetLastError()
        text = _library().cudaGetErrorString
        text.restype = ctypes.c_char_p
        raise RuntimeError(f"CUDA error: {text(code).decode()} ({name})")
    if _failures:
        raise RuntimeError("an operation of a stream failed") from _failures.pop()


@_HostFunction
def _call_back(number: int) -> None:
    try:
        _calls[number]()
    except BaseException as error:  # noqa: BLE001 (for whoever waits)
        _failures.append(error)


class Event:
    """As ``torch.cuda.Event``."""

    def __init__(self, **kwargs: Any) -> None:
        del kwargs
        self.handle = ctypes.c_void_p()
        call("cudaEventCreateWithFlags", ctypes.byref(self.handle), _NO_TIMING)

    def record(self, stream: Stream | None = None) -> None:
        call("cudaEventRecord", self.handle, (stream or current_stream()).handle)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        code = _library().cudaEventQuery(self.handle)
        if code not in (0, _NOT_READY):
            call("cudaEventQuery", self.handle)
        return not code

    def synchronize(self) -> None:
        call("cudaEventSynchronize", self.handle)


class Stream:
    """As ``torch.cuda.Stream``, of the device that its thread uses."""

    def __init__(self, device: Any = None, priority: int = 0, *, handle: int | None = None) -> None:
        del priority
        self.device, self.handle = device, ctypes.c_void_p(handle)
        if handle is None:
            call("cudaStreamCreateWithFlags", ctypes.byref(self.handle), _NON_BLOCKING)

    @property
    def cuda_stream(self) -> int:
        return self.handle.value or 0

    def wait_event(self, event: Event) -> None:
        call("cudaStreamWaitEvent", self.handle, event.handle, 0)

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        call("cudaStreamSynchronize", self.handle)

    def query(self) -> bool:
        return self.record_event().query()


class Graph:
    """A captured graph of the current stream."""

    def __init__(self, work: Callable[[], None]) -> None:
        graph, stream = ctypes.c_void_p(), current_stream()
        call("cudaStreamBeginCapture", stream.handle, _THREAD_CAPTURE)
        work()
        call("cudaStreamEndCapture", stream.handle, ctypes.byref(graph))
        self.executable = ctypes.c_void_p()
        call("cudaGraphInstantiate", ctypes.byref(self.executable), graph, ctypes.c_ulonglong(0))
        call("cudaGraphDestroy", graph)

    def replay(self) -> None:
        call("cudaGraphLaunch", self.executable, current_stream().handle)

    def delete(self) -> None:
        call("cudaGraphExecDestroy", self.executable)


def current_stream(device: Any = None) -> Stream:
    """The stream of this thread."""
    if not hasattr(_here, "stream"):
        _here.stream = Stream(device, handle=0)
    return _here.stream  # type: ignore[no-any-return]


@contextlib.contextmanager
def stream(chosen: Stream | None) -> Iterator[None]:
    """As ``torch.cuda.stream``."""
    before, _here.stream = current_stream(), chosen or current_stream()
    try:
        yield
    finally:
        _here.stream = before


def is_capturing() -> bool:
    """As ``torch.cuda.is_current_stream_capturing``."""
    status = ctypes.c_int()
    call("cudaStreamIsCapturing", current_stream().handle, ctypes.byref(status))
    return status.value == _ACTIVE


def synchronize(device: Any = None) -> None:
    """As ``torch.cuda.synchronize``."""
    del device
    call("cudaDeviceSynchronize")


def tensor_at(address: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of the memory at an address."""
    memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype)


def _on_device(tensor: torch.Tensor) -> bool:
    attributes = _PointerAttributes()
    call("cudaPointerGetAttributes", ctypes.byref(attributes), ctypes.c_void_p(tensor.data_ptr()))
    return attributes.type == _DEVICE_MEMORY


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for each in values:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from _tensors(each)


class Issued(TorchDispatchMode):
    """Issues what this thread writes to tensors to its current stream."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        used = list(_tensors([*args, *kwargs.values()]))
        written = [
            argument.name
            for argument in func._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        if func.is_view or not any(map(_on_device, used)):
            return func(*args, **kwargs)
        if not written:
            current_stream().synchronize()
            return func(*args, **kwargs)
        number = next(_numbers)

        def run() -> None:
            with torch.no_grad():
                func(*args, **kwargs)

        _calls[number] = run
        call("cudaLaunchHostFunc", current_stream().handle, _call_back, ctypes.c_void_p(number))
        if any(each.untyped_storage().data_ptr() in _of_host for each in used):
            current_stream().synchronize()  # copies from and to pageable memory of the host
        outs = [kwargs[name] for name in written if name in kwargs]
        if outs:
            return outs[0] if len(outs) == 1 else tuple(outs)
        return args[0] if isinstance(args[0], torch.Tensor) else None


def install(patch: Callable[[Any, str, Any], None]) -> None:
    """Put all of it into torch.

    Args:
        patch: Sets an attribute, such as ``monkeypatch.setattr`` or ``setattr``.
    """
    from_numpy = torch.from_numpy

    def from_host(array: Any) -> torch.Tensor:
        made = from_numpy(array)
        _of_host.add(made.untyped_storage().data_ptr())
        return made

    def set_device(device: Any) -> None:
        index = device if isinstance(device, int) else torch.device(device).index or 0
        call("cudaSetDevice", index)

    for name, value in {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "set_device": set_device,
        "device_count": lambda: 1,
        "current_stream": current_stream,
        "stream": stream,
        "synchronize": synchronize,
        "Stream": Stream,
        "Event": Event,
        "is_current_stream_capturing": is_capturing,
        "device": lambda device: contextlib.nullcontext(device),
    }.items():
        patch(torch.cuda, name, value)
    patch(torch, "from_numpy", from_host)
