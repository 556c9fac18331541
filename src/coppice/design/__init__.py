"""Design direct-connect networks: graphs, their expansions, and the schedules that follow from them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from coppice.arguments import CallableRoom

if TYPE_CHECKING:
    from coppice.design.search.finder import design

__all__ = ["design"]


def __getattr__(name: str) -> Any:
    """The finder, when it is first used."""
    if name != "design":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from coppice.design.search.finder import design

    return design


sys.modules[__name__].__class__ = CallableRoom
