"""Operations of a step, their decompositions into collective phases on channels, and plans that choose among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, kw_only=True)
class Channel:
    """Resource that serves one phase at a time: a device's compute stream, a node's links, its NIC."""

    units_per_second: float = 1.0  # Bytes, or seconds of computation, that it does in a second
    start_seconds: float = 0.0  # Time that a phase takes to start
    # Share of each link, by name, that it takes meanwhile; links are shared with other channels
    loads: Mapping[str, float] = field(default_factory=dict)
    parallel: bool = False  # What it is given does not wait for its turn


@dataclass(frozen=True, kw_only=True)
class CollectivePhase:
    """CollectivePhase of an operation, executed by one channel."""

    kind: str  # What it is, such as `reduce_scatter`
    amount: float  # Bytes, or seconds of computation
    channels: tuple[str, ...]  # Channels of which any can do it
    starts: int = 1  # Steps, each of which takes the time that its channel takes to start


@dataclass(frozen=True, kw_only=True)
class GraphOperation:
    """Operation of a step."""

    name: str  # Its name
    # Decompositions into phases, the plain one first
    decompositions: tuple[tuple[CollectivePhase, ...], ...]
    labels: tuple[str, ...] = ()  # Names of decompositions; missing: none
    after: tuple[int, ...] = ()  # Numbers of the operations that it comes after
    # Operations with the same one are cut, routed and ordered alike; empty: nothing is to be decided
    decision: str = ""
    group: str = ""  # Operations of a group go piece by piece; empty: it is alone
    layer: str = ""  # What it is part of: a layer in a direction
    priority: int = 0  # Of those that wait for a channel the least runs first, unless a plan says otherwise
    # Bytes of its buffer, where its phases are in other units; None: those of the plain decomposition
    size_bytes: float | None = None

    @property
    def bytes(self) -> float:
        """Size of the operation for rules about sizes."""
        return (
            sum(phase.amount for phase in self.decompositions[0])
            if self.size_bytes is None
            else self.size_bytes
        )


class OperationChoice(NamedTuple):
    """Choice of a plan for one decision."""

    pieces: int = 1
    """Pieces of equal size."""
    decomposition: int = 0
    """Number of the decomposition; operations that have fewer use their first."""
    channels: tuple[int, ...] = ()
    """For each phase of the decomposition the number of its channel; what is missing is 0."""


@dataclass(frozen=True, kw_only=True)
class WholePlan:
    """Plan of a step."""

    # For each decision what is settled; missing: in one piece, the plain decomposition, the first channels
    choices: Mapping[str, OperationChoice] = field(default_factory=dict)
    # For each decision its priority, the least first; missing: as operations say
    ranks: Mapping[str, int] = field(default_factory=dict)

    def key(self) -> tuple[tuple[tuple[str, OperationChoice], ...], tuple[tuple[str, int], ...]]:
        """Hashable value of the plan."""
        return tuple(sorted(self.choices.items())), tuple(sorted(self.ranks.items()))
