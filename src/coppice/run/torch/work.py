"""Torch work objects, and the thread that executes a group's work in issue order."""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from coppice.errors import CoppiceError

_NO_TIMEOUT = timedelta(0)
_AT_EXIT_S = 2.0


class PlannedWork(dist.Work):
    """Base of works, in terms of what they wait for."""

    _outputs: Any

    def synchronize(self) -> None:
        """As :meth:`wait`."""
        self.wait()

    def result(self) -> Any:
        """Outputs, once done."""
        self.wait()
        return self._outputs


class Task(PlannedWork):
    """An outstanding collective.

    Args:
        what: Its name, for messages.
        outputs: What the future holds when it is done.
        action: Carries it out.
        device: The GPU of its tensors, if they are on one.
    """

    def __init__(
        self, what: str, outputs: Any, action: Callable[[], None], *, device: torch.device | None = None
    ) -> None:
        super().__init__()
        self._what, self._outputs, self._action = what, outputs, action
        self._device = device
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._before: Any = None
        self._after: Any = None
        if device is not None:
            self._before = torch.cuda.current_stream(device).record_event()

    def carry_out(self, stream: Any) -> None:
        """Execute it, on ``stream`` for a GPU, and wake waiters."""
        try:
            if self._device is None:
                self._action()
            else:
                with torch.cuda.stream(stream):
                    stream.wait_event(self._before)
                    self._action()
                    self._after = stream.record_event()
        except BaseException as error:  # noqa: BLE001  (who waits for it gets it)
            self.finish(error_of(self._what, error), stream)
        else:
            self.finish(None, stream)

    def finish(self, error: Exception | None, stream: Any = None) -> None:
        """Mark it as done."""
        with self._lock:
            if self._done.is_set():
                return
            self._error = error
            if self._device is None or error is not None:
                self._action = _nothing  # lets go of the tensors that it read
            self._done.set()
            future = self._future
        if future is not None:
            with torch.cuda.stream(stream) if self._device is not None else contextlib.nullcontext():
                future.set_result(self._outputs)

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait until done; for a GPU, make the current stream wait."""
        limit = timeout.total_seconds() if timeout and timeout > _NO_TIMEOUT else None
        if not self._done.wait(limit):
            raise dist.DistBackendError(f"{self._what} did not complete within {limit:g} s.")
        if self._error is not None:
            raise self._error
        if self._after is not None:
            torch.cuda.current_stream(self._device).wait_event(self._after)
            self._action = _nothing  # their memory may be used again on that stream, and not before
        return True

    def block_current_stream(self) -> None:
        """As :meth:`wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it is done or has failed."""
        return self._done.is_set() and (self._after is None or bool(self._after.query()))

    def is_success(self) -> bool:
        """Whether it is done without failure."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """Error of the task."""
        return self._error

    def get_future(self) -> torch.futures.Future[Any]:
        """Future of the outputs that also raises errors in C++."""
        with self._lock:
            if self._future is None:
                devices: Any = [self._device] if self._device is not None else None
                self._future = torch.futures.Future(devices=devices)
                over = self._done.is_set()
            else:
                over = False
            future = self._future
        if over:
            future.set_result(self._outputs)
        # An exception that Python sets is a value to C++; one that a callback raises is an error.
        return future.then(self._checked)

    def _checked(self, future: torch.futures.Future[Any]) -> Any:
        if self._error is not None:
            raise self._error
        return future.value()


class AllOf(PlannedWork):
    """Several works combined."""

    def __init__(self, works: Sequence[dist.Work], outputs: Any = None) -> None:
        super().__init__()
        self._works, self._outputs = list(works), outputs

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait for all; of several errors the first is raised."""
        first: Exception | None = None
        for work in self._works:
            try:
                work.wait(timeout) if timeout else work.wait()
            except RuntimeError as error:
                first = first or error
        if first is not None:
            raise first
        return True

    def is_completed(self) -> bool:
        """Whether all are done."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all are done without failure."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> Any:
        """Error of the first that failed."""
        return next((error for error in (work.exception() for work in self._works) if error), None)

    def get_future(self) -> torch.futures.Future[Any]:
        """Future of the outputs."""
        gathered = torch.futures.collect_all([work.get_future() for work in self._works])

        def checked(found: torch.futures.Future[Any]) -> Any:
            for future in found.value():
                future.wait()
            return self._outputs

        return gathered.then(checked)


class Afterwards(PlannedWork):
    """Work of gloo or NCCL followed by a local action on its result.

    Args:
        work: The work.
        action: Done once, by the first who waits.
        outputs: What the future holds.
        told: What is raised in place of an error of the work, if anything.
    """

    def __init__(
        self,
        work: dist.Work,
        action: Callable[[], None],
        outputs: Any,
        *,
        told: Callable[[RuntimeError], Exception] | None = None,
    ) -> None:
        super().__init__()
        self._work, self._action, self._outputs, self._told = work, action, outputs, told
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait for the work, and run the action."""
        try:
            self._work.wait(timeout) if timeout else self._work.wait()
        except RuntimeError as error:
            if self._told is None:
                raise
            found = self._told(error)
            raise found from found.__cause__
        self._finish()
        return True

    def is_completed(self) -> bool:
        """Whether the work is done."""
        return self._work.is_completed()

    def is_success(self) -> bool:
        """Whether the work is done without failure."""
        return self._work.is_success()

    def exception(self) -> Any:
        """Error of the work."""
        return self._work.exception()

    def get_future(self) -> torch.futures.Future[Any]:
        """Future of the outputs."""

        def rest(found: torch.futures.Future[Any]) -> Any:
            try:
                found.value()
            except RuntimeError as error:
                if self._told is None:
                    raise
                told = self._told(error)
                raise told from told.__cause__
            self._finish()
            return self._outputs

        return self._work.get_future().then(rest)

    def _finish(self) -> None:
        with self._lock:
            action, self._action = self._action, _nothing
            action()


class Queue:
    """In-order queue of tasks with one thread.

    A task that its caller waits for anyway is carried out by the caller, if nothing is before it: to wake a thread and
    be woken costs more than a small collective.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._tasks: deque[Task] = deque()
        self._busy = False
        self._stopped = ""
        self._thread: threading.Thread | None = None
        self._stream: Any = None

    def put(self, task: Task, *, device: torch.device | None = None, waits: bool = False) -> Task:
        """Append a task.

        Args:
            device: The GPU that it is for.
            waits: Whoever issued it does nothing before it is done.
        """
        with self._changed:
            if self._stopped:
                task.finish(dist.DistBackendError(self._stopped))
                return task
            if device is not None and self._stream is None:
                self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            here = waits and device is None and not self._busy and not self._tasks
            self._busy = self._busy or here
            if not here:
                self._tasks.append(task)
                self._start()
                self._changed.notify_all()
        if here:
            try:
                task.carry_out(None)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
        return task

    def stop(self, why: str, *, drain: bool, timeout_s: float) -> bool:
        """Accept no more tasks, and stop the thread.

        Args:
            drain: Tasks that wait are carried out first; otherwise they fail.
            timeout_s: Longest wait for that, in seconds.

        Returns:
            The thread has ended.
        """
        with self._changed:
            self._stopped = self._stopped or why
            dropped = [] if drain else list(self._tasks)
            if not drain:
                self._tasks.clear()
            self._changed.notify_all()
        for task in dropped:
            task.finish(dist.DistBackendError(why))
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def _start(self) -> None:
        if self._thread is None:
            # A daemon, since programs end without destroying their groups; it must not outlive the interpreter.
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            _QUEUES.add(self)
            self._thread.start()

    def _serve(self) -> None:
        while True:
            with self._changed:
                while self._busy or not self._tasks:
                    if self._stopped and not self._tasks and not self._busy:
                        return
                    self._changed.wait()
                task = self._tasks.popleft()
                self._busy = True
            task.carry_out(self._stream)
            del task
            with self._changed:
                self._busy = False
                self._changed.notify_all()


_QUEUES: weakref.WeakSet[Queue] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """A thread that still runs when the interpreter goes away would end the process with an error."""
    for queue in list(_QUEUES):
        queue.stop("the process ends", drain=False, timeout_s=_AT_EXIT_S)


def _nothing() -> None:
    """What is left to do of a task that is done."""


def error_of(what: str, error: BaseException) -> Exception:
    """Convert an error to what torch's users expect."""
    if isinstance(error, CoppiceError):
        found: Exception = dist.DistBackendError(str(error))
    else:
        found = dist.DistBackendError(f"{what} failed with {type(error).__name__}: {error}")
    found.__cause__ = error
    return found
