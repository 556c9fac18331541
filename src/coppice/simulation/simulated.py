"""A plan simulated at one or many sizes, beside its optimum, what protocols achieve, and hashed routes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from coppice.display import Brief
from coppice.schedule.forest import Forest
from coppice.schedule.messages import messages_of
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule
from coppice.simulation.channels import Wire, on_wire
from coppice.simulation.critical import time_by_reason
from coppice.simulation.hashed import Hashed, hashed_times, over_all_routes
from coppice.simulation.model import DEFAULT_MODEL, Model, Sharing
from coppice.simulation.simulator import best_pieces, run
from coppice.simulation.timeline import Timeline
from coppice.simulation.utilisation import busiest_links

__all__ = ["Outcome", "Scenario", "Simulated", "rate_figures", "simulate_sizes", "simulated_record"]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Simulated(Brief):
    """A plan at one size.

    Attributes:
        plan: The plan.
        outcome: What was simulated.
        hashed: Times under many hashes, where asked for.
    """

    plan: Plan
    outcome: Outcome
    hashed: Hashed | None = None

    @property
    def timeline(self) -> Timeline:
        """The nominal timeline."""
        return self.outcome.nominal

    @property
    def least_us(self) -> float:
        """Time that the optimum (or, without one, the plan's own rate) needs for the bytes alone."""
        bound, problem = self.plan.bound, self.plan.problem
        inv_rate = self.plan.inv_rate if bound is None else bound.inv_rate
        return float(inv_rate * self.outcome.size_bytes / problem.shards / 1000)

    def record(self, links: int) -> dict[str, Any]:
        """Everything as JSON values, with so many of the busiest links."""
        timeline, achievable, hashed = self.timeline, self.outcome.achievable, self.hashed
        topology = timeline.topology
        return {
            "size_bytes": self.outcome.size_bytes,
            "pieces": self.outcome.pieces,
            "messages": timeline.messages.count,
            **rate_figures(timeline),
            "optimum_us": self.least_us,
            "share_of_optimum": self.least_us / timeline.time_us if timeline.time_us else 0.0,
            "achievable": None if achievable is None else rate_figures(achievable),
            "hashed": None
            if hashed is None
            else {
                "times_us": hashed.times_us.tolist(),
                "median_us": hashed.median_us,
                "p99_us": hashed.p99_us,
                "multipath_us": hashed.multipath_us,
            },
            "critical_us": time_by_reason(timeline),
            "links": [
                {
                    "link": [topology.node_ids[topology.src[link]], topology.node_ids[topology.dst[link]]],
                    "busy_us": float(timeline.link_busy_us[link]),
                    "bytes": float(timeline.link_bytes[link]),
                    "utilisation": timeline.utilisation(link),
                }
                for link in busiest_links(timeline, links)
            ],
        }


def simulate_sizes(
    plan: Plan,
    sizes: Sequence[int],
    scenario: Scenario,
    *,
    seeds: int = 0,
    multipath: bool = False,
    on_stage: Callable[[str], None] | None = None,
) -> list[Simulated]:
    """A plan at every size.

    Args:
        plan: The plan; it is not verified.
        sizes: Sizes M in bytes.
        scenario: What is assumed of machines, and how chunks are cut.
        seeds: Number of hashes of default routes to try beside it, all with the same number of pieces.
        multipath: Spread default routes evenly over all equally good ones.
        on_stage: Called with words before each size.

    Raises:
        InputError: If the plan cannot be simulated so.
    """
    body = over_all_routes(plan.body) if multipath and isinstance(plan.body, Schedule) else plan.body
    rows = []
    for size_bytes in sizes:
        if on_stage is not None:
            on_stage(f"simulating {size_bytes} bytes")
        outcome = scenario.outcome(body, size_bytes)
        hashed = None
        if seeds:
            hashed = hashed_times(body, seeds, _time_us(scenario.model, outcome))
        rows.append(Simulated(plan=plan, outcome=outcome, hashed=hashed))
    return rows


def _time_us(model: Model, outcome: Outcome) -> Callable[[Schedule], float]:
    """The time of other bodies in the circumstances of an outcome."""
    fixed = Scenario(model=model, pieces=outcome.pieces)
    return lambda body: fixed.outcome(body, outcome.size_bytes).nominal.time_us


def simulated_record(
    plan: Plan, scenario: Scenario, rows: Sequence[Simulated], *, links: int
) -> dict[str, Any]:
    """A plan at several sizes as JSON values; the figures of a single size stand at the top as well.

    Args:
        plan: The plan.
        scenario: What was assumed.
        rows: A row for each size.
        links: How many of the busiest links to list for each.
    """
    model, wire = scenario.model, scenario.wire
    sizes = [row.record(links) for row in rows]
    return {
        "collective": plan.problem.collective.value,
        "topology": plan.topology.name,
        "topology_sha256": plan.topology.sha256,
        "ranks": plan.topology.num_ranks,
        "planner": plan.planner,
        "model": {
            "overhead_us": model.overhead_us,
            "sharing": model.sharing.value,
            "store_and_forward": model.store_and_forward,
            "send_engines": model.send_engines,
            "receive_engines": model.receive_engines,
            "reduce_gb_per_s": model.reduce_gb_per_s,
        },
        "wire": None
        if wire is None
        else {
            "data_bytes": 1 if wire.protocol is None else wire.protocol.data_bytes,
            "wire_bytes": 1 if wire.protocol is None else wire.protocol.wire_bytes,
            "channels_gb_per_s": None if wire.gpu_gb_per_s is None else float(wire.gpu_gb_per_s),
        },
        **(sizes[0] if len(sizes) == 1 else {}),
        "sizes": sizes,
    }


def rate_figures(timeline: Timeline) -> dict[str, float]:
    """Time and bandwidths as JSON values."""
    return {
        "time_us": timeline.time_us,
        "algbw_gb_per_s": timeline.algbw_gb_per_s,
        "busbw_gb_per_s": timeline.busbw_gb_per_s,
    }


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
            >>> from coppice.simulation.channels import protocol
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
