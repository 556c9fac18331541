"""What the devices on GPUs have in common: streams, copies and sums of torch, and a watchdog.

Operations of torch on one stream are carried out one after the other; the caller's stream is joined at both ends, and
the host waits for nothing. The libraries' watchdogs do not see puts and signals, so every run has a time limit here.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from coppice.errors import InputError, MissingExtraError
from coppice.run.engines.datatype import DataType, ReduceOp, divide, elements_of
from coppice.run.engines.put_signal.device import window_missing
from coppice.run.engines.put_signal.kernels import TYPES_OF_MANY, LocalCall, in_few_kernels
from coppice.run.engines.put_signal.watch import Watchdog
from coppice.run.errors import RunError, TimedOut

PLACE = "cuda"
"""Where windows and tensors are."""

_LOG = logging.getLogger("coppice")
_POLL_S = 2e-5
_PREPARE_S = 300.0
_LET_GO_S = 10.0
_DESTROY_S = 60.0
_PAGE_BYTES = 4096


class CudaStreams:
    """Streams and a window on the current GPU.

    Args:
        name: What the device is called in messages.

    Raises:
        MissingExtraError: If torch is not installed.
        InputError: If torch sees no GPU.
    """

    def __init__(self, name: str) -> None:
        try:
            import torch
        except ImportError:
            package = "torch"
            raise MissingExtraError.of(package, extra=package) from None
        if not torch.cuda.is_available():
            raise InputError(
                f"expected a GPU for {name}, found none that torch sees: use `emulated`, or run where there is one."
            )
        if "LOCAL_RANK" in os.environ:  # of torchrun: a GPU each, or in turn where there are fewer
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        self.torch: Any = torch
        self.name = name
        self.device = torch.device(PLACE, torch.cuda.current_device())
        self.window: Any = None  # The own window, bytes
        self._streams: list[Any] = []
        self._end: Any = None
        self._given_up = False
        self._waiting: list[Any] = []  # what did not come in time
        self._recorded = False  # a graph uses the window of now
        self._joined: Any = None  # not tried yet; False: it is no use here
        self._watchdog = Watchdog(name, self.failure, self.let_go)

    def recording(self) -> bool:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.recording`."""
        return bool(self.torch.cuda.is_current_stream_capturing())

    def refusal(self, op: ReduceOp, dtype: DataType) -> str:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.refusal`."""
        from coppice.run.engines.torch.tensors import combining

        try:
            combining(op, dtype)
        except InputError as error:
            return str(error)
        return ""

    def elements(
        self, buffer: Any, dtype: DataType, elements: int, *, name: str, writable: bool = False
    ) -> Any:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.elements`: of the GPU, or of the host."""
        if not isinstance(buffer, self.torch.Tensor):
            return elements_of(buffer, dtype, elements, name=name, writable=writable)
        from coppice.run.engines.torch.tensors import elements_on

        return elements_on(buffer, dtype, elements, self.device, name)

    def to_device(self, array: np.ndarray[Any, Any]) -> Any:
        """See :meth:`coppice.run.engines.engine.DeviceMemory.to_device`."""
        name = "bfloat16" if array.dtype.name == "uint16" else array.dtype.name  # as engines name its bits
        flat = self.torch.from_numpy(array.reshape(-1).view(np.uint8))
        return flat.to(self.device).view(getattr(self.torch, name))

    def upload(self, array: np.ndarray[Any, Any], buffer: Any) -> None:
        """See :meth:`coppice.run.engines.engine.DeviceMemory.upload`."""
        self._bytes(buffer).copy_(self._bytes(array))

    def download(self, buffer: Any, array: np.ndarray[Any, Any]) -> None:
        """See :meth:`coppice.run.engines.engine.DeviceMemory.download`."""
        self._bytes(array).copy_(self._bytes(buffer))

    def settle(self) -> None:
        """See :meth:`coppice.run.engines.engine.DeviceMemory.settle`."""
        self.finish("what was issued", _PREPARE_S)

    def order(self) -> None:
        """Let the caller's stream wait for the end of the run before, whatever stream that was for."""
        self._watchdog.check()
        if self.recording():
            self._recorded = True
        elif self._end is not None:
            self.torch.cuda.current_stream(self.device).wait_event(self._end)

    def new_window(self, num_bytes: int) -> int:
        """Bytes of the window to make, 0 where that of now will do; all that uses the old one is over then.

        But for graphs, whose replays nobody knows of: see :meth:`window_kept`.
        """
        if self.window is not None and num_bytes <= self.window.numel():
            return 0
        if self.recording():
            raise window_missing(num_bytes)
        self.finish("what came before a larger window", _PREPARE_S)
        step = max(
            _PAGE_BYTES, 1 << num_bytes.bit_length() >> 4
        )  # an eighth more at most, and seldom a new window
        return -(-num_bytes // step) * step

    def window_kept(self) -> bool:
        """Whether the window that is replaced must stay, since a graph uses it; asked once when there is a new one."""
        kept, self._recorded = self._recorded, False
        return kept

    def want_streams(self, number: int) -> None:
        """Have so many streams or more."""
        while len(self._streams) < number:
            self._streams.append(self.torch.cuda.Stream(self.device))

    def stream(self, number: int) -> Any:
        """A stream."""
        return self._streams[number]

    def begin(self) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.begin`."""
        now = self.torch.cuda.current_stream(self.device)
        for stream in self._streams:
            stream.wait_stream(now)

    def write(self, offset: int, values: Any) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.write`."""
        data = self._bytes(values)
        self.window[offset : offset + data.numel()].copy_(data)

    def read(self, offset: int, into: Any) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.read`."""
        data = self._bytes(into)
        data.copy_(self.window[offset : offset + data.numel()])

    def copy(self, stream: int, source: int, target: int, num_bytes: int) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.copy`."""
        with self.torch.cuda.stream(self._streams[stream]):
            self.window[target : target + num_bytes].copy_(self.window[source : source + num_bytes])

    def add(
        self,
        stream: int,
        source: int,
        addend: int,
        target: int,
        num_bytes: int,
        dtype: DataType,
        op: ReduceOp,
    ) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.add`."""
        from coppice.run.engines.torch.tensors import combining

        kind = getattr(self.torch, dtype.value)
        one, other, out = (self.window[at : at + num_bytes].view(kind) for at in (source, addend, target))
        with self.torch.cuda.stream(self._streams[stream]):
            combining(op, dtype)(one, other, out=out)

    def divide(self, dtype: DataType, values: Any, ranks: int) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.divide`."""
        if isinstance(values, np.ndarray):
            divide(dtype, values, ranks)
        else:
            values.div_(ranks, rounding_mode=None if dtype.is_float else "trunc")

    def join(self, what: str, timeout_s: float, *, into: Any) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.join`."""
        now = self.torch.cuda.current_stream(self.device)
        for stream in self._streams:
            now.wait_stream(stream)
        if self.recording():
            return
        if isinstance(into, np.ndarray):
            self.finish(what, timeout_s)
            return
        self._end = now.record_event()
        self._watchdog.watch(what, self._end, timeout_s)

    def local(self, stream: int, call: LocalCall, dtype: DataType, op: ReduceOp) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.local`."""
        with self.torch.cuda.stream(self._streams[stream]):
            if call.takes_several and op in (ReduceOp.SUM, ReduceOp.AVG) and dtype in TYPES_OF_MANY:
                kernel = self._joined_kernel(call)
                if kernel is not None:
                    kernel.carry_out(self.window, call, getattr(self.torch, dtype.value))
                    return
            for level in call.levels:
                for each in in_few_kernels(self.window, level, dtype, op):
                    self.add(stream, each.source, each.addend, each.target, each.num_bytes, dtype, op)

    def _joined_kernel(self, call: LocalCall) -> Any:
        """The kernel that carries out a whole call, None where there is none; it cannot come to be in a recording."""
        if self.recording() and (self._joined is None or call.placed is None):
            return None
        if self._joined is None:
            self._joined = False
            try:
                from coppice.run.engines.put_signal.joined import JoinedKernel

                self._joined = JoinedKernel(self.device)
            except Exception as error:  # noqa: BLE001 (compilers and drivers raise what they like, and there is another way)
                _LOG.warning(
                    "sums of a call take several kernels on %s, not one of Triton: %s", self.name, error
                )
        return self._joined or None

    def finish(self, what: str, timeout_s: float) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.finish`."""
        events = [
            stream.record_event() for stream in (*self._streams, self.torch.cuda.current_stream(self.device))
        ]
        end = time.monotonic() + timeout_s
        while not all(event.query() for event in events):
            reason, late = self.failure(), time.monotonic() > end
            if reason or late:
                self._waiting = events
            if reason:
                raise RunError(
                    f"expected {what} to complete on {self.name}, found {reason}: see the output of the other ranks."
                )
            if late:
                raise TimedOut(
                    f"{what} did not complete on {self.name} within {timeout_s:g} s: see what the other ranks do, or "
                    "allow more time."
                )
            time.sleep(_POLL_S)

    def failure(self) -> str:
        """What the library reports by itself, or nothing."""
        return ""

    def abort(self, reason: str) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.abort`.

        Whoever calls this goes on after a while, whatever the library does; a GPU that still waits for what did not
        come is left to the watchdog.
        """
        self._given_up = True
        waiting, self._waiting = self._waiting, []
        thread = self._watchdog.give_up(RunError(reason), waiting)
        thread.join(_LET_GO_S)
        if thread.is_alive():
            _LOG.warning("%s has not been given up within %g s: %s", self.name, _LET_GO_S, reason)

    def let_go(self) -> None:
        """Let the library give up, in a thread of its own: it may never return. Devices add what they can."""
        self._given_up = True

    def leave(self, destroy: Callable[[], None] | None = None) -> None:
        """Let what was issued end, as long as that may take, and the library destroy what it holds.

        What does not end is left to the watchdog.
        """
        if self._given_up:
            return
        try:
            self.finish("what was issued before the end", _PREPARE_S)
        except RunError as error:
            self.abort(str(error))
            return
        self._watchdog.close()
        if destroy is None:
            return
        self._given_up = True
        failed: list[Exception] = []

        def destroyed() -> None:
            try:
                destroy()
            except Exception as error:  # noqa: BLE001 (for the thread that closes)
                failed.append(error)

        thread = threading.Thread(target=destroyed, name="put-signal-close", daemon=True)
        thread.start()
        thread.join(_DESTROY_S)
        if thread.is_alive():
            raise TimedOut(
                f"expected {self.name} to close within {_DESTROY_S:g} s, found that it waits: delete the CUDA graphs "
                "that captured calls of this group before it is closed."
            )
        if failed:
            raise failed[0]

    def _bytes(self, values: Any) -> Any:
        """Values of the caller's as bytes of torch."""
        if isinstance(values, np.ndarray):
            return self.torch.from_numpy(values.reshape(-1).view(np.uint8))
        return values.reshape(-1).view(self.torch.uint8)
