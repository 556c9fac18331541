"""A time limit for runs that no host waits for: events of a GPU, looked at now and then by a thread."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from coppice.run.errors import RunError, TimedOut

_LOG = logging.getLogger("coppice")
_LOOK_S = 0.02
_GRACE_S = 30.0


class WatchedEvent(Protocol):
    """What is watched: an event of torch."""

    def query(self) -> bool:
        """It has happened."""


class Watchdog:
    """Watches the runs of a device, and gives the device up when one of them fails.

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
        """Raise what has gone wrong so far."""
        if self._error is not None:
            raise self._error

    def give_up(self, error: RunError, waiting: Sequence[WatchedEvent] = ()) -> threading.Thread:
        """Give the device up, once, without waiting for that; the thread that does it.

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
        """End the thread; what is still under way is not watched any more."""
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
