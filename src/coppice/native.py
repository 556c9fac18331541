"""The native extensions that an installation may lack: `_run`, `_switch`.

The planner's, `_core`, is always there. `make demo` builds no other, so that a first plan is there soon; a wheel and
`make setup` have all three. Import the others from here, so that a missing one says what builds it:

    from coppice.native import _switch
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from coppice.errors import MissingExtraError

if TYPE_CHECKING:
    from coppice import _run, _switch

_HOLDS = {
    "_run": "the executors of ranks in shared memory and of put/signal programs",
    "_switch": "switches in software and their workers",
}

__all__ = ["_run", "_switch"]


def __getattr__(name: str) -> ModuleType:
    if name not in _HOLDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module(f"coppice.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"coppice.{name}":
            raise
        raise MissingExtraError.unbuilt(name, _HOLDS[name]) from None
