"""Task graph of a recorded step of sections, for whole-step planners.

For every section there is its forward pass with the activation all-reduce, its backward pass with the all-reduce of its
input's gradient, the gradients of its weights, and their mean over replicas. Forward and backward pass of a
section are cut by one decision; sections alike are decided alike. What all ranks have alike goes in two messages: that
which is ready when the backward pass reaches the last section, and the rest.

Weights of which replicas keep parts are gathered before either pass, and the mean goes to parts. A gather waits until
the section so many places before it has let its own go, so that only so many are whole at once; those of the last
sections are kept from one pass to the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coppice.iteration.policies.whole.operations import (
    Channel,
    CollectivePhase,
    GraphOperation,
    OperationGraph,
    OperationRows,
)

DEVICE = "device"
"""The channel that computes."""
PIECE_SECONDS = 1e-4
"""What a piece of computation costs beside its share, unless it was measured."""


@dataclass(frozen=True, kw_only=True)
class RecordedSection:
    """Recorded data of a section."""

    name: str  # Its name in the model
    kind: str  # Sections of one kind are decided alike
    sums: GraphOperation | None = None  # Its sum over the ranks that share it; None: it is not shared
    # The mean of its gradients over replicas; None: there is one replica, or nothing is trained
    gradients: GraphOperation | None = None
    gather: GraphOperation | None = None  # What makes its weights whole; None: they are
    before: float = 0.0  # Seconds between the section before it and this one
    forward: float = 0.0  # Seconds of its forward pass
    backward: float = 0.0  # Of its backward pass, without gradients of weights that may come later
    weights: float = 0.0  # Of these
    norm: float = 0.0  # Of the backward pass of what comes before the sum


@dataclass(kw_only=True)
class SectionOperations:
    """Operation numbers of a section; -1: none."""

    before: int
    forward: int = -1
    gather: int = -1
    second_gather: int = -1
    sums: int = -1
    backward: int = -1
    input_sums: int = -1
    weights: int = -1
    norm: int = -1
    gradients: int = -1


@dataclass(kw_only=True)
class StepOperations:
    """Task graph of a step, with the meaning of its operations."""

    graph: OperationGraph  # The operations
    sections: list[SectionOperations] = field(default_factory=list)  # Those of each section
    turn: int = -1  # From the last section's forward pass to its backward pass
    end: int = -1  # After the first section's backward pass
    early: int = -1  # The mean of what is ready at the turn; -1: nothing is
    late: int = -1  # The mean of all else that ranks have alike; -1: nothing is left


def step_graph(
    sections: Sequence[RecordedSection],  # In the order of the forward pass
    channels: Mapping[str, Channel],
    *,
    turn: float = 0.0,  # Seconds from the last section's forward pass to its backward pass
    end: float = 0.0,  # Seconds after the first section's backward pass
    piece: float = PIECE_SECONDS,  # Seconds that a piece of computation costs beside its share
    early: GraphOperation | None = None,  # The exchange of what is ready at the turn
    late: GraphOperation | None = None,  # The exchange of all else that ranks have alike
    beside: bool = True,  # Gradients of weights are computed during all-reduces of input gradients
    ahead: int = 1,  # Sections whose weights may be gathered before the one that computes is over
) -> StepOperations:
    """Build the operations of a step.

    Examples:
        >>> found = step_graph([RecordedSection(name="a", kind="A", forward=1.0, backward=1.0, weights=1.0)], {})
        >>> [each.name for each in found.graph.operations]
        ['before a', 'a forward', 'turn', 'a backward', 'a weights', 'a norm', 'end']
        >>> round(found.graph.seconds(), 4)
        3.0
    """
    layout = _StepRows(piece)
    found = StepOperations(graph=OperationGraph(operations=(), channels={}))
    before: list[int] = []
    for each in sections:
        gap = layout.compute(f"before {each.name}", each.before, before)
        group = f"{each.name} forward"
        own = SectionOperations(before=gap)
        ready = [gap]
        if each.gather is not None:
            number = len(found.sections) - 1 - ahead
            first = (found.sections or [own])[0].before
            release = [found.sections[number].forward if number >= 0 else first]
            own.gather = layout.gather(f"{each.name} gather", each.gather, release, each.kind)
            ready.append(own.gather)
        own.forward = layout.compute(
            group, each.forward, ready, decision=f"sums of {each.kind}" if each.sums else "", group=group
        )
        before = [own.forward]
        if each.sums is not None:
            own.sums = layout.exchange(f"{each.name} sums", each.sums, before, each.kind, group)
            before = [own.sums]
        found.sections.append(own)
    found.turn = layout.compute("turn", turn, before)
    before = [found.turn]
    if early is not None:
        found.early = layout.message("early means", early, before, "early")
    for number in reversed(range(len(sections))):
        each, own = sections[number], found.sections[number]
        group = f"{each.name} backward"
        if each.gather is not None and number + 1 + ahead < len(sections):
            release = [own.forward, found.sections[number + 1 + ahead].backward]
            own.second_gather = layout.gather(f"{each.name} second gather", each.gather, release, each.kind)
            before = [*before, own.second_gather]
        own.backward = layout.compute(
            group, each.backward, before, decision=f"sums of {each.kind}" if each.sums else "", group=group
        )
        ready = [own.backward]
        if each.sums is not None:
            name = f"{each.name} input sums"
            own.input_sums = layout.exchange(name, each.sums, ready, each.kind, group)
            ready = [own.input_sums]
        own.weights = layout.compute(
            f"{each.name} weights",
            each.weights,
            [own.backward] if beside else ready,
            decision=f"weights of {each.kind}" if beside else "",
            layer=group,
        )
        before = ready if beside else [own.weights]
        own.norm = layout.compute(f"{each.name} norm", each.norm, before, layer=group)
        before = [own.norm]
        if each.gradients is not None:
            own.gradients = layout.message(f"{each.name} means", each.gradients, [own.weights], each.kind)
    found.end = layout.compute("end", end, [*before, *(own.weights for own in found.sections)])
    if late is not None:
        found.late = layout.message("late means", late, [found.end], "late")
    found.graph = OperationGraph(
        operations=tuple(layout.operations), channels={DEVICE: Channel(start_seconds=piece), **channels}
    )
    return found


class _StepRows(OperationRows):
    """Operation graph of sections under construction."""

    def __init__(self, piece: float) -> None:
        super().__init__()
        self._piece = piece
        self._computed: dict[float, tuple[tuple[CollectivePhase, ...], ...]] = {}

    def compute(
        self,
        name: str,
        seconds: float,
        after: Sequence[int],
        *,
        decision: str = "",
        group: str = "",
        layer: str | None = None,
    ) -> int:
        """Computation on the device."""
        if seconds not in self._computed:
            starts = int(seconds > self._piece)
            phase = CollectivePhase(
                kind="compute", amount=seconds - starts * self._piece, channels=(DEVICE,), starts=starts
            )
            self._computed[seconds] = ((phase,),)
        return self.add(
            name,
            self._computed[seconds],
            after,
            decision=decision,
            group=group if decision else "",
            layer=group if layer is None else layer,
        )

    def exchange(self, name: str, one: GraphOperation, after: Sequence[int], kind: str, group: str) -> int:
        """All-reduce that computation waits for."""
        return self._like(name, one, after, decision=f"sums of {kind}", group=group, layer=group)

    def gather(self, name: str, one: GraphOperation, after: Sequence[int], kind: str) -> int:
        """All-gather of weights."""
        return self._like(name, one, after, decision=f"gathers of {kind}")

    def message(self, name: str, one: GraphOperation, after: Sequence[int], kind: str) -> int:
        """Gradient average that only the end of the step waits for."""
        return self._like(name, one, after, decision=f"means of {kind}", priority=1)

    def _like(self, name: str, one: GraphOperation, after: Sequence[int], **others: Any) -> int:
        return self.add(
            name, one.decompositions, after, labels=one.labels, size_bytes=one.size_bytes, **others
        )
