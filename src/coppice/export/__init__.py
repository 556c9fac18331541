"""Files that runtimes, libraries and launchers read: written, and read back."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from coppice.arguments import CallableRoom

if TYPE_CHECKING:
    from coppice.export.exported import Exported
    from coppice.export.registry import FORMATS, export

__all__ = ["FORMATS", "Exported", "export"]


def __getattr__(name: str) -> Any:
    """A name when it is first used: the reader of one format does not bring all of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'exported' if name == 'Exported' else 'registry'}"), name)


sys.modules[__name__].__class__ = CallableRoom
