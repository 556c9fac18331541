"""Base of data-parallel policies: layers on a compute stream, gradients on the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.order import Work
from coppice.iteration.policies.data_parallel.tuning import best_settings
from coppice.iteration.policies.policy import Policy, PolicyCosts
from coppice.iteration.step.passes import StepGraph
from coppice.iteration.step.plan import LayerPass, Message
from coppice.iteration.step.workloads import layers_graph


class UpdateScope(StrEnum):
    """Gradients that must be reduced before a layer runs again."""

    BARRIER = "barrier"
    """All gradients of all layers: an optimizer that steps once."""
    GROUP = "group"
    """The gradients of the layer, and those that are summed together with them."""


class DataParallelPolicy(Policy):
    """Baseline policy, whose decisions subclasses override.

    A message for every layer, first come first served, and an optimizer that steps when all are done. All is decided
    before anything runs, so that simulation and real training can ask the same policy, and so that every rank decides
    alike.
    """

    decides: ClassVar[frozenset[str]] = frozenset({"gradients"})
    assumes: ClassVar[str] = "an all-reduce that runs beside computation"
    update_scope: UpdateScope = UpdateScope.BARRIER  # What must be summed before a layer runs again
    # Communication runs beside the backward pass; otherwise it begins when that is over
    overlaps: ClassVar[bool] = True
    in_order: ClassVar[bool] = False  # Groups are launched in their order only
    # Choices that a search tries at random, and in all, where not all are tried
    tuning_trials: ClassVar[tuple[int, int]] = (4, 10)

    def groups(self, workload: LayerWorkload) -> Sequence[Sequence[int]]:
        """Layers of each message, in submission order.

        Each by itself, in the order of the backward pass.
        """
        return [[layer] for layer in reversed(range(workload.layers))]

    def parts(self, workload: LayerWorkload, size_bytes: float) -> Sequence[float]:
        """Partition sizes of a group: by default one."""
        del workload
        return [size_bytes]

    def key(self, workload: LayerWorkload, group: Sequence[int]) -> int:
        """Priority of a group's messages, lowest first: by default all equal, so first come, first served."""
        del workload, group
        return 0

    def backward(self, workload: LayerWorkload) -> Sequence[LayerPass]:
        """Order of the backward passes: by default whole ones, from the last layer on."""
        return [LayerPass(Work.BACKWARD, layer) for layer in reversed(range(workload.layers))]

    def choices(self, workload: LayerWorkload) -> Sequence[Mapping[str, Any]]:
        """Candidate settings for a workload: by default none."""
        del workload
        return []

    def tune(self, workload: LayerWorkload) -> dict[str, Any]:
        """Best of the choices and the current settings, by simulation."""
        return best_settings(self, workload, self.choices(workload))

    def messages(self, workload: LayerWorkload) -> Sequence[Message]:
        """Messages of an iteration, by the policy's decisions.

        A group of gradients is ready when the backward passes of its layers are done; its messages then wait for the
        network.
        """
        groups = self.layer_groups(workload)
        every = tuple(range(workload.layers))
        found: list[Message] = []
        launched: tuple[int, ...] = ()
        for number, group in enumerate(groups):
            size = sum(workload.bytes[layer] for layer in group)
            ready = group if self.overlaps else every
            if self.in_order:
                launched = ready = (*launched, *group)
            offset = 0.0
            for part, part_bytes in enumerate(self.parts(workload, size) if size else ()):
                found.append(
                    Message(
                        name=f"group {number} part {part}",
                        seconds=workload.message(part_bytes),
                        size_bytes=part_bytes,
                        layers=ready,
                        carries=group,
                        offset_bytes=offset,
                        priority=self.key(workload, group),
                        needed_by=workload.roots if self.update_scope is UpdateScope.BARRIER else group,
                    )
                )
                offset += part_bytes
        return found

    def least_messages(self, workload: LayerWorkload) -> int:
        """Lower bound on the number of messages, counted before any is made."""
        sizes = [sum(workload.bytes[layer] for layer in group) for group in self.layer_groups(workload)]
        return sum(len(self.parts(workload, size)) for size in sizes if size)

    def layer_groups(self, workload: LayerWorkload) -> list[tuple[int, ...]]:
        """Layer groups of the messages."""
        groups = [tuple(group) for group in self.groups(workload)]
        if sorted(layer for group in groups for layer in group) != list(range(workload.layers)):
            raise InputError(
                f"expected groups of policy {self.name} with each of {workload.layers} layers once, found {groups}."
            )
        return groups

    def iterations(self, workload: LayerWorkload, count: int) -> StepGraph:
        """Task graph of consecutive iterations of one worker; all workers are alike."""
        return layers_graph(workload, self.backward(workload), self.messages(workload), count)

    def costs(self, workload: LayerWorkload) -> PolicyCosts:
        """Messages and bytes that a worker sends per iteration, and its additional memory."""
        messages = self.messages(workload)
        share = (workload.workers - 1) / workload.workers
        sent = {"all_reduce": 2 * share, "reduce_scatter": share, "all_gather": share, "pull": 0.0}
        return PolicyCosts(
            messages=len(messages),
            bytes=sum(message.size_bytes * sent.get(message.collective, 1.0) for message in messages),
            extra_memory_bytes=self.extra_memory_bytes(workload),
        )

    def extra_memory_bytes(self, workload: LayerWorkload) -> float:
        """Memory of a worker beyond parameters, gradients and optimizer states: by default none."""
        del workload
        return 0.0

    def lower_bound_seconds(self, workload: LayerWorkload) -> float:
        """Lower bound for layer-by-layer execution with one all-reduce of every gradient."""
        return workload.lower_bound_seconds()

    def compute_seconds(self, workload: LayerWorkload) -> float:
        """Time of forward and backward pass."""
        return workload.compute_seconds
