"""A time limit for runs that no host waits for: events of a GPU, looked at now and then by a thread."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

from coppice.run.errors import RunError, TimedOut

__all__ = ["Watchdog", "WatchedEvent"]

_LOOK_S = 0.02
_GRACE_S = 30.0


class WatchedEvent(Protocol):
    """What is watched: an event of torch."""

    def query(self) -> bool:
        """It has happened."""


class Watchdog:
    """Watches the runs of a device, and gives the device up when one of them fails.

    A GPU that waits for a signal which never comes may not be called back: if a run is not over some time after the
    device was given up, whoever waits for that GPU would wait for ever, so the process is ended with a message, as
    torch's own watchdog of NCCL does.

    Args:
        name: What the device is called in messages.
        failure: What the library reports by itself, or nothing.
        give_up: Takes the reason; called once, in the thread of the watchdog.
        grace_s: How long runs may take after that, in seconds.
        end: Ends the process, with a message.
    """

    def __init__(
        self,
        name: str,
        failure: Callable[[], str],
        give_up: Callable[[str], None],
        *,
        grace_s: float = _GRACE_S,
        end: Callable[[str], None] | None = None,
    ) -> None:
        self._name, self._failure, self._give_up = name, failure, give_up
        self._grace_s, self._end = grace_s, end or _end_process
        self._changed = threading.Condition()
        self._watched: list[tuple[str, WatchedEvent, float, float]] = []
        self._error: RunError | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def watch(self, what: str, event: WatchedEvent, timeout_s: float) -> None:
        """Watch a run until its event, ``timeout_s`` seconds at most."""
        with self._changed:
            self._watched.append((what, event, time.monotonic() + timeout_s, timeout_s))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="put-signal-watchdog", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what has gone wrong so far.

        Raises:
            RunError: If a run has failed.
        """
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread; what is still under way is not watched any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _serve(self) -> None:
        ends = float("inf")
        while True:
            with self._changed:
                while not self._watched and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                watched = list(self._watched)
            over = [run for run in watched if run[1].query()]
            left = [run for run in watched if run not in over]
            with self._changed:
                self._watched = [run for run in self._watched if run not in over]
            if self._error is None and (error := self._verdict(left)) is not None:
                self._error, ends = error, time.monotonic() + self._grace_s
                self._give_up(str(error))
            elif left and time.monotonic() > ends:
                self._end(f"{self._error} {self._name} still waits for it: this process ends.")
                return
            with self._changed:
                if not self._closed:
                    self._changed.wait(_LOOK_S)

    def _verdict(self, left: list[tuple[str, WatchedEvent, float, float]]) -> RunError | None:
        """What is wrong with runs that are not over."""
        if not left:
            return None
        if reason := self._failure():
            return RunError(
                f"expected {left[0][0]} to complete on {self._name}, found {reason}: see the output of the other ranks."
            )
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
