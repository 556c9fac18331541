"""Interface of policies: name, options, and the tasks of iterations."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import msgspec

from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.step.passes import StepGraph
from coppice.text import parse_size

_UNIT = re.compile(r"[KMGTB]\s*$", re.IGNORECASE)
"""The end of a size with a unit; bytes as plain numbers (4e6) are read as they are."""

Bytes = Annotated[float, msgspec.Meta(ge=0)]
PositiveBytes = Annotated[float, msgspec.Meta(gt=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True, kw_only=True)
class PolicyCosts:
    """Costs of a policy per worker and iteration."""

    messages: int  # Messages that it sends or takes part in
    bytes: float  # Bytes that it sends
    extra_memory_bytes: float  # Bytes that it keeps beside parameters, gradients and states of the optimizer


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of policies without any."""


class ConfiguredPolicy(ABC):
    """Name, decisions, requirements and options of a policy."""

    name: ClassVar[str]  # What users call it
    about: ClassVar[str]  # What it is, in a line, with its publication
    assumes: ClassVar[str] = ""  # What it needs, in a line
    kind: ClassVar[str] = "a policy"  # What errors call those of its kind
    # What switches it on in PyTorch, DeepSpeed or Megatron-LM as they are; None: nothing does
    stock: ClassVar[str | None] = None
    # What it decides, of `gradients`, `order`, `tensor`, `recompute`, `experts` and `weights`; policies that
    # decide different things can be composed
    decides: ClassVar[frozenset[str]] = frozenset()
    # Iterations by which gradients are late: with 0 the training is that of one device
    staleness: ClassVar[int] = 0
    # A `msgspec.Struct` with its options and their defaults
    options: ClassVar[type[msgspec.Struct]] = NoOptions

    def __init__(self, settings: Any) -> None:
        self.settings = settings  # An instance of it

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """Policy with options by name, texts from the command line included.

        A name may be the beginning of one (``partition`` for ``partition_bytes``); texts of bytes may have units.
        """
        known = cls.options.__struct_fields__
        values: dict[str, Any] = {}
        for given, value in settings.items():
            name = cls.option_named(given)
            if name is None:
                has = f"it takes {', '.join(known)}" if known else "it takes none"
                raise InputError(f"expected options of policy {cls.name}, found {given!r}: {has}.")
            if name in values:
                raise InputError(
                    f"expected option {name} of policy {cls.name} once, found it again as {given!r}: keep one."
                )
            sized = isinstance(value, str) and name.endswith("_bytes") and _UNIT.search(value)
            values[name] = (
                parse_size(value, option=f"option {given} of policy {cls.name}") if sized else value
            )
        try:
            return cls(msgspec.convert(values, decodable(cls.options), strict=False))
        except msgspec.ValidationError as error:
            raise InputError(
                f"expected options that policy {cls.name} can use, found otherwise: {error}."
            ) from None

    @classmethod
    def option_named(cls, text: str) -> str | None:
        """Option of a name or unique prefix; None: there is none."""
        known = cls.options.__struct_fields__
        longer = [name for name in known if name.startswith(f"{text}_")]
        return text if text in known else longer[0] if len(longer) == 1 else None


class Policy(ConfiguredPolicy):
    """Policy over iterations of a layer-wise workload."""

    @abstractmethod
    def iterations(self, workload: LayerWorkload, count: int) -> StepGraph:
        """Task graph of consecutive iterations."""

    @abstractmethod
    def lower_bound_seconds(self, workload: LayerWorkload) -> float:
        """Lower bound for policies of the same kind."""

    @abstractmethod
    def compute_seconds(self, workload: LayerWorkload) -> float:
        """Compute time of the busiest device per iteration."""

    def tune(self, workload: LayerWorkload) -> dict[str, Any]:
        """Best settings for a workload."""
        del workload
        return msgspec.structs.asdict(self.settings) if isinstance(self.settings, msgspec.Struct) else {}
