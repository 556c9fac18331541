"""What a policy decides about the communication of an iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import msgspec

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.tasks import TaskGraph

__all__ = ["IterationGraph", "NoOptions", "Policy", "UpdateScope"]


class UpdateScope(StrEnum):
    """What must be summed before a layer runs again."""

    BARRIER = "barrier"
    """All gradients of all layers: an optimizer that steps once."""
    GROUP = "group"
    """The gradients of the layer, and those that are summed together with them."""


@dataclass(frozen=True, eq=False, kw_only=True)
class IterationGraph:
    """Tasks of some iterations in a row.

    Attributes:
        graph: The tasks.
        first: For each iteration, the task whose start begins it.
        last: For each iteration, the tasks with whose ends it is over.
    """

    graph: TaskGraph
    first: Sequence[int]
    last: Sequence[Sequence[int]]


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For policies without options."""


class Policy:
    """The baseline, of which policies change what they are about.

    A message for every layer, first come first served, and an optimizer that steps when all are done.

    The questions are answered before anything runs, so that simulation and real training can ask the same policy.

    Attributes:
        name: What users call it.
        about: What it is, in a line, with its publication.
        options: A ``msgspec.Struct`` with its options and their defaults.
        update_scope: What must be summed before a layer runs again.
        overlaps: Communication runs beside the backward pass; otherwise it begins when that is over.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    options: ClassVar[type[msgspec.Struct]] = NoOptions
    update_scope: ClassVar[UpdateScope] = UpdateScope.BARRIER
    overlaps: ClassVar[bool] = True
    in_order: ClassVar[bool] = False

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    @classmethod
    def of(cls, **settings: Any) -> Policy:
        """The policy with options by name, texts where they come from a command line.

        Raises:
            InputError: If it has no such option, or a value does not fit.
        """
        known = cls.options.__struct_fields__
        for name in settings:
            if name not in known:
                has = f"it takes {', '.join(known)}" if known else "it takes none"
                msg = f"expected options of policy {cls.name}, found {name!r}: {has}."
                raise InputError(msg)
        try:
            return cls(msgspec.convert(settings, cls.options, strict=False))
        except msgspec.ValidationError as error:
            msg = f"expected options that policy {cls.name} can use, found otherwise: {error}."
            raise InputError(msg) from None

    def groups(self, workload: LayerWorkload) -> Sequence[Sequence[int]]:
        """Layers whose gradients are sent as one, in the order in which they are submitted.

        Each by itself, in the order of the backward pass.
        """
        return [[layer] for layer in reversed(range(workload.layers))]

    def parts(self, workload: LayerWorkload, size_bytes: float) -> Sequence[float]:
        """Bytes of the messages that a group of so many bytes is cut into: one."""
        del workload
        return [size_bytes]

    def key(self, workload: LayerWorkload, group: Sequence[int]) -> int:
        """Priority of the messages of a group, the least first: all alike, so the first to be submitted."""
        del workload, group
        return 0

    def lower_bound_seconds(self, workload: LayerWorkload) -> float:
        """What no policy of the same kind can beat."""
        return workload.lower_bound_seconds()

    def compute_seconds(self, workload: LayerWorkload) -> float:
        """Time for which the busiest device computes in an iteration."""
        return workload.compute_seconds

    def iterations(self, workload: LayerWorkload, count: int) -> IterationGraph:
        """The tasks of so many iterations in a row."""
        from coppice.iteration.data_parallel import data_parallel_graph  # which asks the questions above

        return data_parallel_graph(workload, self, count)
