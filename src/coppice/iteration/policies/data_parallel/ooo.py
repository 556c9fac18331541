"""Out-of-order backpropagation (Oh et al., EuroSys 2022): run weight gradients when they are urgent.

The backward pass of layer i makes the gradient of its input, which layer i - 1 waits for, and that of its weights,
which only communication waits for. Both need the gradient of the input of layer i + 1 and not each other, so any
order is right in which the gradients of inputs are a chain.

*Reverse first k.* The gradients of weights of the first k layers are left out of the backward pass and run after it
from layer 0 on: those that the next forward pass needs first are made, and by priority sent, first. A larger k makes
layer 0 sooner and the others later; too large a k leaves the network idle. What is delayed keeps its input and the
gradient of its output in memory. The best k depends on the workload and is searched; source: section 5.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.order import Work
from coppice.iteration.policies.data_parallel.priority import Priority
from coppice.iteration.policies.policy import PositiveBytes
from coppice.iteration.step.plan import LayerPass


class DelayOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Number of deferred layers, and message partitioning."""

    # Layers, from the first on, whose gradients of weights are delayed
    k: Annotated[int, msgspec.Meta(ge=0)] = 0
    partition_bytes: PositiveBytes | None = None  # Bytes of a message at most; None: messages are not cut


class OutOfOrder(Priority):
    """Reverse first-k: weight gradients of the first k layers run after the backward pass, the first layer's first."""

    name = "ooo"
    about = "gradients of the first k weights last, layer 0 first (OOO, EuroSys'22)"
    assumes = "backward passes in two halves; memory for what is delayed; messages by priority"
    decides: ClassVar[frozenset[str]] = frozenset({"gradients", "weights"})
    options: ClassVar[type[msgspec.Struct]] = DelayOptions

    def backward(self, workload: LayerWorkload) -> Sequence[LayerPass]:
        """Input and weight gradients from the last layer on; weight gradients of the first k at the end.

        A layer whose halves cannot be told apart has a whole backward pass in its turn.
        """
        delayed = self.settings.k
        if delayed > workload.layers:
            raise InputError(
                f"expected `k` at most {workload.layers}, the number of layers, found {delayed}."
            )
        found = []
        for layer in reversed(range(workload.layers)):
            if not workload.is_separable(layer):
                found.append(LayerPass(Work.BACKWARD, layer))
                continue
            found.append(LayerPass(Work.INPUT, layer))
            if layer >= delayed:
                found.append(LayerPass(Work.WEIGHT, layer))
        return [
            *found,
            *(LayerPass(Work.WEIGHT, layer) for layer in range(delayed) if workload.is_separable(layer)),
        ]

    def lower_bound_seconds(self, workload: LayerWorkload) -> float:
        """Lower bound over all orders of input and weight gradients.

        From the time at which the first gradient of layer i or of what it needs is there, the network carries all of
        these until the next forward pass of layer i; before it come the gradients of inputs above it.
        """
        weights, rest = list(workload.backward), list(workload.backward)
        for layer in filter(workload.is_separable, range(workload.layers)):
            weights[layer] = workload.weight_seconds(layer)
            rest[layer] -= weights[layer]
        every = sum(workload.bytes)
        found = max(workload.compute_seconds, workload.message(every) if every else 0.0)
        following, preceding = workload.following(workload.forward), workload.preceding(workload.bytes)
        for layer in range(workload.layers):
            if preceding[layer]:
                soonest = min(sum(rest[each + 1 :]) + weights[each] for each in range(layer + 1))
                found = max(found, following[layer] + soonest + workload.message(preceding[layer]))
        return found

    def choices(self, workload: LayerWorkload) -> Sequence[Mapping[str, Any]]:
        """All values of k."""
        return [{"k": k} for k in range(workload.layers + 1)]
