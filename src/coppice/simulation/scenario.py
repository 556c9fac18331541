"""One plan at one size: nominal, and beside it what a protocol and its channels leave of that."""

from __future__ import annotations

from dataclasses import dataclass

from coppice.display import Brief
from coppice.schedule.forest import Forest
from coppice.schedule.messages import messages_of
from coppice.schedule.schedule import Schedule
from coppice.simulation.best_pieces import best_pieces
from coppice.simulation.channels import Wire, on_wire
from coppice.simulation.engine import run
from coppice.simulation.model import DEFAULT_MODEL, Model, Sharing
from coppice.simulation.timeline import Timeline

__all__ = ["Outcome", "Scenario"]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Outcome(Brief):
    """What a scenario makes of a plan at one size.

    Attributes:
        size_bytes: M in bytes.
        pieces: Pieces that every chunk is cut into.
        nominal: All bytes on the wire are data, messages cost what the model says.
        achievable: The same under the scenario's wire, None where it has none.
    """

    size_bytes: int
    pieces: int
    nominal: Timeline
    achievable: Timeline | None


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is assumed of machines, and how a plan is cut.

    Attributes:
        model: Links, engines and messages.
        pieces: Pieces that every chunk is cut into; None takes the number that is fastest under the nominal model.
        wire: Protocol and channels, or None.
    """

    model: Model = DEFAULT_MODEL
    pieces: int | None = 1
    wire: Wire | None = None

    def outcome(self, body: Schedule | Forest, size_bytes: int) -> Outcome:
        """Simulate a plan.

        Args:
            body: A verified schedule or forest.
            size_bytes: M in bytes.

        Raises:
            InputError: If the body is malformed, or the size or number of pieces out of range.
            UnreachableError: If a transfer names no path and there is none.

        Examples:
            Twice the bytes on the wire, and each of 7 messages in turn costs 0.6 us instead of 1:

            >>> from coppice.bounds.problem import Problem
            >>> from coppice.collectives import Collective
            >>> from coppice.planners.algorithms.catalogue import case_of, find, make
            >>> from coppice.simulation.protocols import protocol
            >>> from coppice.topology.presets import preset
            >>> problem = Problem(topology=preset("dgx-h100"), collective=Collective.ALL_GATHER)
            >>> ring = find("ring", Collective.ALL_GATHER)
            >>> schedule = make(ring, case_of(ring, problem))
            >>> found = Scenario(wire=Wire(protocol=protocol("ll"))).outcome(schedule, 8 * 450_000)
            >>> round(found.nominal.time_us, 3), round(found.achievable.time_us, 3)
            (14.0, 24.8)
        """
        pieces = self.pieces
        if pieces is None:
            pieces, nominal = best_pieces(body, size_bytes, model=self.model)
            if self.model.sharing is Sharing.FAIR:  # once more, with rates
                nominal = self._timeline(body, size_bytes, pieces, None)
        else:
            nominal = self._timeline(body, size_bytes, pieces, None)
        achievable = None if self.wire is None else self._timeline(body, size_bytes, pieces, self.wire)
        return Outcome(size_bytes=size_bytes, pieces=pieces, nominal=nominal, achievable=achievable)

    def _timeline(self, body: Schedule | Forest, size_bytes: int, pieces: int, wire: Wire | None) -> Timeline:
        messages = messages_of(body, size_bytes, pieces=pieces)
        return run(
            messages if wire is None else on_wire(messages, wire, model=self.model),
            model=self.model,
            collective=body.collective,
            size_bytes=size_bytes,
            keep_rates=self.model.sharing is Sharing.FAIR,
        )
