"""What Ctrl-C does to the program: while it loads it ends at once, while a command is at work that may tidy up."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["loading", "running"]


@contextmanager
def loading() -> Iterator[None]:
    """Let Ctrl-C end the program at once while modules are being loaded and options are read.

    An exception inside an import can come out as another one; nothing is open yet that would need care. Programs that
    handle Ctrl-C in a way of their own keep it.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler or not _in_main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def running() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt within :func:`loading`: a command that is at work may have to tidy up."""
    if not _in_main_thread() or signal.getsignal(signal.SIGINT) is not _leave:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _leave)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _leave(*_: Any) -> None:
    if os.isatty(2):
        os.write(2, b"interrupted: no file was left half-written.\n")
    os._exit(130)
