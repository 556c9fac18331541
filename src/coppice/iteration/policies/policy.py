"""What every policy is: a name, options, and the tasks of iterations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import msgspec

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.tasks import TaskGraph

__all__ = [
    "Bytes",
    "Count",
    "IterationGraph",
    "NoOptions",
    "Policy",
    "PolicyCosts",
    "PositiveBytes",
    "Seconds",
]


Bytes = Annotated[float, msgspec.Meta(ge=0)]
PositiveBytes = Annotated[float, msgspec.Meta(gt=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


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


@dataclass(frozen=True, kw_only=True)
class PolicyCosts:
    """What a policy costs a worker in an iteration.

    Attributes:
        messages: Messages that it sends or takes part in.
        bytes: Bytes that it sends.
        extra_memory_bytes: Bytes that it keeps beside parameters, gradients and states of the optimizer.
    """

    messages: int
    bytes: float
    extra_memory_bytes: float


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For policies without options."""


class Policy(ABC):
    """What may start when, in which order, cut how.

    Attributes:
        name: What users call it.
        about: What it is, in a line, with its publication.
        assumes: What it needs, in a line.
        stock: What switches it on in PyTorch, DeepSpeed or Megatron-LM as they are; None: nothing does.
        decides: What it decides, of ``gradients``, ``order``, ``tensor``, ``recompute``, ``experts`` and ``weights``;
            policies that decide different things can be composed.
        options: A ``msgspec.Struct`` with its options and their defaults.
        settings: An instance of it.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    assumes: ClassVar[str] = ""
    stock: ClassVar[str | None] = None
    decides: ClassVar[frozenset[str]] = frozenset()
    options: ClassVar[type[msgspec.Struct]] = NoOptions

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

    @abstractmethod
    def iterations(self, workload: LayerWorkload, count: int) -> IterationGraph:
        """The tasks of so many iterations in a row."""

    @abstractmethod
    def lower_bound_seconds(self, workload: LayerWorkload) -> float:
        """What no policy of the same kind can beat."""

    @abstractmethod
    def compute_seconds(self, workload: LayerWorkload) -> float:
        """Time for which the busiest device computes in an iteration."""

    def tune(self, workload: LayerWorkload) -> dict[str, Any]:
        """Settings that suit a workload best, by name: those that it has, where there is nothing to tune."""
        del workload
        return msgspec.structs.asdict(self.settings) if isinstance(self.settings, msgspec.Struct) else {}
