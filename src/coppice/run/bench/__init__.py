"""Benchmark algorithms against the installed library on the running processes."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from coppice.arguments import CallableRoom

if TYPE_CHECKING:
    from coppice.run.bench.measuring import BenchRow, bench

__all__ = ["BenchRow", "bench"]


def __getattr__(name: str) -> Any:
    """A name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.measuring"), name)


sys.modules[__name__].__class__ = CallableRoom
