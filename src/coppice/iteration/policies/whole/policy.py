"""What policies of the whole iteration are: a plan for all operations of a step."""

from __future__ import annotations

from abc import abstractmethod

from coppice.iteration.policies.policy import ConfiguredPolicy
from coppice.iteration.policies.whole.operations import MotifPlan, OperationGraph

__all__ = ["WholePolicy"]


class WholePolicy(ConfiguredPolicy):
    """How collectives are cut, routed and ordered together with computation."""

    @abstractmethod
    def plan(self, graph: OperationGraph) -> MotifPlan:
        """How the operations of a step are done."""
