"""Predicted iteration time under a policy, with its lower bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.catalogue import policy_named
from coppice.iteration.step.workloads import steady_iteration

if TYPE_CHECKING:
    from coppice.outputs.shapes.training import PolicyPlanJson


@dataclass(frozen=True, kw_only=True)
class PredictedIteration:
    """A steady-state iteration."""

    policy: str  # Name of the policy
    iteration_seconds: float  # Time from one iteration to the next
    lower_bound_seconds: float  # What no policy of the same kind can beat
    compute_seconds: float  # Time for which the busiest device computes
    period: int  # Iterations after which the distances repeat; 0: they did not
    # Iterations by which gradients are late; 0: weights are those of training on one device
    staleness: int = 0

    def record(self) -> PolicyPlanJson:
        """The figures as JSON values."""
        return {
            "policy": self.policy,
            "iteration_seconds": self.iteration_seconds,
            "lower_bound_seconds": self.lower_bound_seconds,
            "compute_seconds": self.compute_seconds,
            "period": self.period,
            "staleness": self.staleness,
        }


def predict(
    workload: LayerWorkload, policy: str, settings: Mapping[str, Any] | None = None
) -> PredictedIteration:
    """Predict the iteration time of a workload under a policy.

    Args:
        policy: Name of the policy (see :data:`coppice.iteration.policies.catalogue.POLICIES`).
        settings: Options of the policy by name.

    Examples:
        >>> three = LayerWorkload(forward=(1, 1, 1), backward=(2, 2, 2), bytes=(2, 2, 8), bytes_per_second=1.0)
        >>> found = predict(three, "wfbp")
        >>> found.iteration_seconds, found.lower_bound_seconds
        (17.0, 15.0)
    """
    chosen = policy_named(policy).of(**dict(settings or {}))
    steady = steady_iteration(lambda count: chosen.iterations(workload, count))
    return PredictedIteration(
        policy=policy,
        iteration_seconds=steady.seconds,
        lower_bound_seconds=chosen.lower_bound_seconds(workload),
        compute_seconds=chosen.compute_seconds(workload),
        period=steady.period,
        staleness=chosen.staleness,
    )
