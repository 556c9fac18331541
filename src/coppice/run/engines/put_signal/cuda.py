"""Common part of the GPU devices: torch streams, copies, reductions, and a watchdog.

Operations of torch on one stream are carried out one after the other; the caller's stream is joined at both ends, and
the host waits for nothing. The libraries' watchdogs do not see puts and signals, so every run has a time limit here.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from coppice.errors import InputError, MissingExtraError
from coppice.run.engines.datatype import DataType, ReduceOp, divide, elements_of
from coppice.run.engines.put_signal.device import window_missing
from coppice.run.engines.put_signal.kernels import TYPES_OF_MANY, LocalCall, in_few_kernels
from coppice.run.errors import RunError, TimedOut

_LOG = logging.getLogger("coppice")
_LOOK_S = 0.02
_GRACE_S = 30.0


class WatchedEvent(Protocol):
    """An event of torch."""

    def query(self) -> bool:
        """Whether it has completed."""


class Watchdog:
    """Watch the runs of a device, and abort the device when one fails.

    A GPU that waits for a signal which never comes may not be called back: if it still waits some time after the device
    was given up, whoever waits for that GPU would wait for ever, so the process is ended with a message, as torch's own
    watchdog of NCCL does. Giving up may wait for the GPU as well (NCCL's abort does), so that it has a thread of its
    own, which nobody waits for longer than he must.

    Args:
        name: What the device is called in messages.
        failure: What the library reports by itself, or nothing.
        let_go: Gives the device up, and may never return; called once, in a thread of its own.
        grace_s: How long runs may take after that, in seconds.
        end: Ends the process, with a message.
    """

    def __init__(
        self,
        name: str,
        failure: Callable[[], str],
        let_go: Callable[[], None],
        *,
        grace_s: float = _GRACE_S,
        end: Callable[[str], None] | None = None,
    ) -> None:
        self._name, self._failure, self._let_go = name, failure, let_go
        self._grace_s, self._end = grace_s, end or _end_process
        self._changed = threading.Condition()
        self._watched: list[tuple[str, WatchedEvent, float, float]] = []
        self._error: RunError | None = None
        self._ends = float("inf")
        self._closed = False
        self._thread: threading.Thread | None = None
        self._letting_go: threading.Thread | None = None

    def watch(self, what: str, event: WatchedEvent, timeout_s: float) -> None:
        """Watch a run until its event, ``timeout_s`` seconds at most."""
        with self._changed:
            self._watch([(what, event, time.monotonic() + timeout_s, timeout_s)])

    def check(self) -> None:
        """Raise the first error so far."""
        if self._error is not None:
            raise self._error

    def give_up(self, error: RunError, waiting: Sequence[WatchedEvent] = ()) -> threading.Thread:
        """Abort the device once, without waiting; return the thread.

        Args:
            waiting: What the GPU should reach now; the process ends if it does not.
        """
        with self._changed:
            if self._letting_go is None:
                self._error, self._ends = error, time.monotonic() + self._grace_s
                self._letting_go = threading.Thread(
                    target=self._give_up, name="put-signal-give-up", daemon=True
                )
                self._letting_go.start()
            self._watch([(str(error), event, self._ends, self._grace_s) for event in waiting])
            return self._letting_go

    def close(self) -> None:
        """Stop the thread; outstanding runs are no longer watched."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _watch(self, runs: list[tuple[str, WatchedEvent, float, float]]) -> None:
        """Look at these too, in the thread that does, which is there from the first one on."""
        self._watched += runs
        if self._thread is None and runs:
            self._thread = threading.Thread(target=self._serve, name="put-signal-watchdog", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _give_up(self) -> None:
        try:
            self._let_go()
        except Exception as error:  # noqa: BLE001 (whatever the library raises, nobody else would hear of it)
            _LOG.warning("%s could not be given up: %s: %s", self._name, type(error).__name__, error)

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._watched and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                watched = list(self._watched)
            over, broken = [], ""
            for run in watched:
                try:
                    if run[1].query():
                        over.append(run)
                except Exception as error:  # noqa: BLE001 (a GPU that has failed; it waits for nothing any more)
                    over.append(run)
                    broken = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            left = [run for run in watched if run not in over]
            with self._changed:
                self._watched = [run for run in self._watched if run not in over]
            if self._error is None:
                verdict = self._broken(over[-1], broken) if broken else self._verdict(left)
                if verdict is not None:
                    self.give_up(verdict)
            elif left and time.monotonic() > self._ends:
                self._end(f"{self._error} {self._name} still waits for it: this process ends.")
                return
            with self._changed:
                if not self._closed:
                    self._changed.wait(_LOOK_S)

    def _broken(self, run: tuple[str, WatchedEvent, float, float], reason: str) -> RunError:
        return RunError(
            f"expected {run[0]} to complete on {self._name}, found {reason}: see the output of the other ranks."
        )

    def _verdict(self, left: list[tuple[str, WatchedEvent, float, float]]) -> RunError | None:
        """What is wrong with runs that are not over."""
        if not left:
            return None
        if reason := self._failure():
            return self._broken(left[0], reason)
        for what, _, end, timeout_s in left:
            if time.monotonic() > end:
                return TimedOut(
                    f"{what} did not complete on {self._name} within {timeout_s:g} s: see what the other ranks do, or "
                    "allow more time."
                )
        return None


def _end_process(words: str) -> None:
    sys.stderr.write(f"error: {words}\n")
    sys.stderr.flush()
    os.abort()


PLACE = "cuda"
"""Where windows and tensors are."""


_POLL_S = 2e-5
_PREPARE_S = 300.0
_LET_GO_S = 10.0
_DESTROY_S = 60.0
_PAGE_BYTES = 4096


class CudaStreams:
    """Streams and a memory window on the current GPU.

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
        """Make the caller's stream wait for the previous run."""
        self._watchdog.check()
        if self.recording():
            self._recorded = True
        elif self._end is not None:
            self.torch.cuda.current_stream(self.device).wait_event(self._end)

    def new_window(self, num_bytes: int) -> int:
        """Size of the window to allocate, 0 where the present one suffices; the old one is idle then.

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
        """Whether a replaced window must be kept for a graph; queried once per new window."""
        kept, self._recorded = self._recorded, False
        return kept

    def want_streams(self, number: int) -> None:
        """Ensure a number of streams."""
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
        """Asynchronous error of the library, or nothing."""
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
        """Abort the library in a thread, since that may never return; overridden by devices."""
        self._given_up = True

    def leave(self, destroy: Callable[[], None] | None = None) -> None:
        """Let issued work finish without limit, and destroy the library's objects.

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
