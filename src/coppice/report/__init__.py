"""Render plans, topologies and comparisons as pages, pictures, and Graphviz graphs."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from coppice.arguments import CallableRoom

if TYPE_CHECKING:
    from coppice.report.reporting import report, report_text

__all__ = ["report", "report_text"]


def __getattr__(name: str) -> Any:
    """A name when it is first used: markup alone does not bring every picture."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("coppice.report.reporting"), name)


sys.modules[__name__].__class__ = CallableRoom
