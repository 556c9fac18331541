"""Handling of Ctrl-C: end at once during imports, raise KeyboardInterrupt during work.

Little is imported here: until it is there, Ctrl-C ends the program with a traceback.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


class _Handling:
    """A handler of Ctrl-C for a while, in place of another one; any further one and other threads stay as they are."""

    def __init__(self, before: object, handler: object) -> None:
        self._before, self._handler = before, handler
        self._changed = False

    def __enter__(self) -> None:
        if signal.getsignal(signal.SIGINT) is self._before:
            self._changed = _handle(self._handler)

    def __exit__(self, *_: object) -> None:
        if self._changed:
            _handle(self._before)


def loading() -> _Handling:
    """Context in which Ctrl-C ends the program at once: imports and option parsing.

    An exception inside an import can come out as another one; nothing is open yet that would need care. Programs that
    handle Ctrl-C in a way of their own keep it.
    """
    return _Handling(signal.default_int_handler, _leave)


def running() -> _Handling:
    """Context within :func:`loading` in which Ctrl-C raises KeyboardInterrupt, for clean-up."""
    return _Handling(_leave, signal.default_int_handler)


class _Later:
    def __enter__(self) -> None:
        before = signal.getsignal(signal.SIGINT)
        self._before: Callable[..., object] | None = before if callable(before) else None
        self._came: tuple[object, ...] = ()
        self._changed = self._before is not None and _handle(self._note)

    def __exit__(self, *_: object) -> None:
        if self._changed:
            _handle(self._before)
            if self._came and self._before is not None:
                self._before(*self._came)

    def _note(self, *came: object) -> None:
        self._came = came


def later() -> _Later:
    """Context that defers Ctrl-C to its end, for work that must not stop halfway.

    A blocked signal is no help: it reaches another thread, and Python handles all of them in the main one.
    """
    return _Later()


def handled() -> None:
    """Let the program end with its own exit code after a KeyboardInterrupt that was handled.

    CPython remembers one that left code given as text to ``exec`` or ``eval``, as the standard library makes
    dataclasses and named tuples, and `python -m` then kills the process at its end. Any other code given as text makes
    it forget.
    """
    exec("")


def _handle(handler: object) -> bool:
    """Take a handler, where this is the main thread, which alone can."""
    try:
        signal.signal(signal.SIGINT, handler)  # type: ignore[arg-type]
    except ValueError:
        return False
    return True


def _leave(*_: object) -> None:
    if os.isatty(2):
        os.write(2, b"interrupted: no file was left half-written.\n")
    os._exit(130)
