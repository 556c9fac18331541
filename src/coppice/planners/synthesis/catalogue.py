"""The methods of synthesis by name; a method's module is loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module

from coppice.errors import InputError
from coppice.planners.synthesis.method import SynthesisMethod

METHODS = {
    "sccl": "coppice.planners.synthesis.sccl.search",
    "taccl": "coppice.planners.synthesis.taccl.stages",
    "te-ccl": "coppice.planners.synthesis.te_ccl.epochs",
    "tacos": "coppice.planners.synthesis.tacos.matching",
    "syccl": "coppice.planners.synthesis.syccl.sketches",
    "blink": "coppice.planners.synthesis.blink.packing",
}
"""Module of each method; it has the :class:`SynthesisMethod` as ``METHOD``."""


def method_named(name: str) -> SynthesisMethod:
    """The method of a name."""
    if name not in METHODS:
        raise InputError(f"expected a method of synthesis ({', '.join(METHODS)}), found {name!r}.")
    method: SynthesisMethod = import_module(METHODS[name]).METHOD
    return method
