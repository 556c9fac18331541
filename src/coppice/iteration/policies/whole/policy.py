"""What policies of the whole iteration are: a plan for all operations of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec

from coppice.iteration.policies.policy import NoOptions, settings_of
from coppice.iteration.policies.whole.operations import MotifPlan, OperationGraph

__all__ = ["WholePolicy"]


class WholePolicy(ABC):
    """How collectives are cut, routed and ordered together with computation.

    Attributes:
        name: What users call it.
        about: What it is, in a line, with its publication.
        assumes: What it needs, in a line.
        stock: What switches it on in PyTorch, DeepSpeed or Megatron-LM as they are; None: nothing does.
        decides: What it decides, of ``gradients``, ``order``, ``tensor``, ``recompute``, ``experts`` and ``weights``.
        beside: Gradients of weights are computed beside what is exchanged for gradients of inputs.
        options: A ``msgspec.Struct`` with its options and their defaults.
        settings: An instance of it.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    assumes: ClassVar[str] = ""
    stock: ClassVar[str | None] = None
    decides: ClassVar[frozenset[str]] = frozenset()
    beside: ClassVar[bool] = False
    options: ClassVar[type[msgspec.Struct]] = NoOptions

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    @classmethod
    def of(cls, **settings: Any) -> WholePolicy:
        """The policy with options by name, texts where they come from a command line.

        Raises:
            InputError: If it has no such option, or a value does not fit.
        """
        return cls(settings_of(cls.name, cls.options, settings))

    @abstractmethod
    def plan(self, graph: OperationGraph) -> MotifPlan:
        """How the operations of a step are done."""
