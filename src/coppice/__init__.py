"""Coppice: provably optimal collective communication for any GPU cluster.

    load(spec)        a topology from a preset name or a file
    bound(problem)    the exact optimum and the cut that sets it
    plan(problem)     a plan that attains it, verified, with its figures
    verify(plan)      check a plan against its topology, independent of any planner
    simulate(body, size_bytes)    a timeline of its forest or schedule at a size
    compare(problem, sizes=sizes)       every algorithm at every size, beside the limits

Importing this package loads nothing else: every name comes with its module, when it is first used. Topologies and
plans bring NumPy and msgspec; the rest comes with what needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coppice.bounds import bound
    from coppice.bounds.problem import Problem
    from coppice.bounds.result import Bound
    from coppice.collectives import Collective
    from coppice.comparison import compare
    from coppice.errors import CheckError, CoppiceError, InputError, MissingExtraError, UnreachableError
    from coppice.planners.planning import plan
    from coppice.schedule.files.plan_file import read_plan, write_plan
    from coppice.schedule.verification.verify import verify
    from coppice.simulation import simulate
    from coppice.topology.load import load
    from coppice.topology.model import Topology

from coppice.display import DRAWN_BY
from coppice.version import __version__

__all__ = [
    "Bound",
    "CheckError",
    "Collective",
    "CoppiceError",
    "InputError",
    "MissingExtraError",
    "Problem",
    "Topology",
    "UnreachableError",
    "__version__",
    "bound",
    "compare",
    "load",
    "plan",
    "read_plan",
    "simulate",
    "verify",
    "write_plan",
]

_LAZY = {
    "Bound": ("coppice.bounds.result", "Bound"),
    "CheckError": ("coppice.errors", "CheckError"),
    "Collective": ("coppice.collectives", "Collective"),
    "CoppiceError": ("coppice.errors", "CoppiceError"),
    "InputError": ("coppice.errors", "InputError"),
    "MissingExtraError": ("coppice.errors", "MissingExtraError"),
    "Problem": ("coppice.bounds.problem", "Problem"),
    "Topology": ("coppice.topology.model", "Topology"),
    "UnreachableError": ("coppice.errors", "UnreachableError"),
    "bound": ("coppice.bounds", "bound"),
    "compare": ("coppice.comparison", "compare"),
    "load": ("coppice.topology.load", "load"),
    "plan": ("coppice.planners.planning", "plan"),
    "simulate": ("coppice.simulation", "simulate"),
    "read_plan": ("coppice.schedule.files.plan_file", "read_plan"),
    "verify": ("coppice.schedule.verification.verify", "verify"),
    "write_plan": ("coppice.schedule.files.plan_file", "write_plan"),
}


DRAWN_BY.update(
    {
        "Topology": "coppice.report.notebook:topology_html",
        "Bound": "coppice.report.notebook:bound_html",
        "Plan": "coppice.report.notebook:plan_html",
        "PlannedResult": "coppice.report.notebook:result_html",
        "Timeline": "coppice.report.notebook:timeline_html",
        "Comparison": "coppice.report.notebook:comparison_html",
    }
)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    module, attribute = _LAZY[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
