"""Write and read the files of runtimes, libraries and launchers."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from coppice.arguments import CallableRoom

if TYPE_CHECKING:
    from coppice.export.formats import FORMATS, Exported
    from coppice.export.registry import export

__all__ = ["FORMATS", "Exported", "export"]

_PLACES = {"FORMATS": "formats", "Exported": "formats", "export": "registry"}


def __getattr__(name: str) -> Any:
    """A name when it is first used: the reader of one format does not bring all of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)


sys.modules[__name__].__class__ = CallableRoom
