"""Interface of whole-step policies: a plan for all operations of a step."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from coppice.iteration.policies.policy import ConfiguredPolicy
from coppice.iteration.policies.whole.operations import OperationGraph
from coppice.iteration.policies.whole.phases import WholePlan


class WholePolicy(ConfiguredPolicy):
    """Partition, route and order collectives together with computation."""

    kind: ClassVar[str] = "a policy of the whole iteration"
    # Gradients of weights are computed beside what is exchanged for gradients of inputs
    beside: ClassVar[bool] = False

    @abstractmethod
    def plan(self, graph: OperationGraph) -> WholePlan:
        """Plan of a step's operations."""
