"""P3 (Jayarajan et al., MLSys 2019): slices with priorities between workers and parameter servers.

Every tensor is cut into slices of at most `slice_elements`, dealt to the servers in turn. A worker pushes the slice of
the layer nearest to the input first, one at a time, so that none waits behind less urgent ones in a queue of the
transport. When a server has a slice of every worker it updates it and sends it back at once, in the same order; the
next forward pass of a layer waits for its own slices only. Links carry pushes and pulls at the same time, so that a
tensor alone takes its own time and that of a slice: slices of s/n overlap all but one.

Smaller slices preempt sooner and fill both directions, and cost more messages: the time over their size has a minimum.
Source: section 4 of the paper; slices of 50,000 elements there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import msgspec

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.data_parallel.policy import UpdateScope
from coppice.iteration.policies.data_parallel.priority import Priority, cut
from coppice.iteration.policies.policy import Count
from coppice.iteration.step.plan import Message


class SliceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Slice size, and the transport of slices."""

    slice_elements: Count = 50_000  # Elements of a slice at most
    transport: Literal["server", "all_reduce"] = "server"  # Parameter servers, or all-reduces


class PriorityPropagation(Priority):
    """Push and pull slices in the order in which the forward pass needs them."""

    name = "p3"
    about = "slices pushed and pulled, what is needed first goes first (P3, MLSys'19)"
    assumes = "servers that update slice by slice on duplex links; no clipping by a global norm"
    options: ClassVar[type[msgspec.Struct]] = SliceOptions
    update_scope: UpdateScope = UpdateScope.GROUP

    def parts(self, workload: LayerWorkload, size_bytes: float) -> Sequence[float]:
        """Slice sizes."""
        return cut(size_bytes, self.settings.slice_elements * workload.element_bytes)

    def messages(self, workload: LayerWorkload) -> Sequence[Message]:
        """A push for every slice, followed by its pull."""
        slices = super().messages(workload)
        if self.settings.transport == "all_reduce":
            return slices
        found: list[Message] = []
        for each in slices:
            push = replace(each, name=f"push of {each.name}", stream="up", collective="push", needed_by=())
            pull = replace(
                each, name=f"pull of {each.name}", stream="down", collective="pull", after=(len(found),)
            )
            found += [push, pull]
        return found

    def extra_memory_bytes(self, workload: LayerWorkload) -> float:
        """Parameters held by the servers, one copy spread over the nodes."""
        return sum(workload.bytes) / workload.workers if self.settings.transport == "server" else 0.0

    def choices(self, workload: LayerWorkload) -> Sequence[Mapping[str, Any]]:
        """Slice counts of the largest tensor."""
        largest = max(workload.bytes) / workload.element_bytes
        sizes = sorted({max(1, round(largest / share)) for share in (1, 2, 4, 8, 16, 32, 64)})
        return [{"slice_elements": size} for size in sizes]
