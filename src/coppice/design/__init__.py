"""Design direct-connect networks: graphs, their expansions, and the schedules that follow from them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from coppice.arguments import CallableRoom
from coppice.display import loaded

if TYPE_CHECKING:
    from coppice.design.cabling import cabling_of
    from coppice.design.evaluation import evaluate
    from coppice.design.purchase.market import compare_networks
    from coppice.design.purchase.request import read_prices, read_workload
    from coppice.design.recipes.parser import parse as recipe
    from coppice.design.search.finder import design

_LAZY = {
    "cabling_of": "coppice.design.cabling:cabling_of",
    "compare_networks": "coppice.design.purchase.market:compare_networks",
    "design": "coppice.design.search.finder:design",
    "evaluate": "coppice.design.evaluation:evaluate",
    "read_prices": "coppice.design.purchase.request:read_prices",
    "read_workload": "coppice.design.purchase.request:read_workload",
    "recipe": "coppice.design.recipes.parser:parse",
}
"""Where each name comes from."""

__all__ = [
    "cabling_of",
    "compare_networks",
    "design",
    "evaluate",
    "read_prices",
    "read_workload",
    "recipe",
]


def __getattr__(name: str) -> Any:
    """A name when it is first used: recipes bring no search, a price list no recipe."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return loaded(_LAZY[name])


sys.modules[__name__].__class__ = CallableRoom
