"""Ctrl-C for code that runs in the process of the tests."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LOST = "ignore::pytest.PytestUnraisableExceptionWarning"
"""A filter for tests in which a Ctrl-C may be lost."""


class CtrlC:
    """Presses Ctrl-C a little after it is told to, and every five seconds until it is heard.

    Python loses one that comes while it frees something: in a destructor, a weak reference's callback, or a callback of
    its garbage collector, of which hypothesis has one. A user presses again.
    """

    def __init__(self, after: float) -> None:
        self._after = after
        self._heard = threading.Event()
        self._thread = threading.Thread(target=self._press, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """It was heard."""
        self._heard.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _press(self) -> None:
        wait = self._after
        while not self._heard.wait(wait):
            os.kill(os.getpid(), signal.SIGINT)
            wait = 5.0


@contextmanager
def pressed(after: float) -> Iterator[CtrlC]:
    """Ctrl-C for a part of a test, which starts it."""
    key = CtrlC(after)
    try:
        yield key
    finally:
        key.stop()
