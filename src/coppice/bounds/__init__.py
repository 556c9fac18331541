"""Lower bounds on the time of collectives, each with the cut or dual that proves it."""

from __future__ import annotations

from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound

__all__ = ["Bound", "Problem", "bound"]
