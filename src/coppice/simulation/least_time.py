"""Bounds on time under a time model: the least time of a collective at each size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from coppice.bounds.latency import LatencyBound
from coppice.bounds.problem import Problem
from coppice.bounds.sizes.describe import limit_words, witness_record
from coppice.bounds.sizes.least import LinkPrices, TimeBound, TimeBounds
from coppice.bounds.sizes.timed import MessageCosts
from coppice.simulation.channels import TransportProfile, transport_profiles
from coppice.simulation.latency import least_latency
from coppice.simulation.models import Model
from coppice.topology.model import Topology

if TYPE_CHECKING:
    from coppice.outputs.shapes.planning import LeastTimeJson


@dataclass(frozen=True, eq=False, kw_only=True)
class LeastTime:
    """The least time of a collective at one size under a model, with its certificate."""

    model: Model
    bounds: tuple[TimeBound, ...]  # One for each protocol, of which a schedule may take any
    latency: str | None = None  # What takes that long, in words, where the latency bound says more
    latency_us: float = 0.0

    @property
    def bound(self) -> TimeBound:
        """The bound with the protocol under which least time is needed."""
        return min(self.bounds, key=_time)

    @property
    def by_protocol(self) -> dict[str | None, float]:
        """What no schedule undercuts in each protocol, in microseconds; without protocols under None."""
        named = bool(self.model.protocols)
        return {each.costs.name if named else None: float(each.time_us) for each in self.bounds}

    @property
    def size_bytes(self) -> int:
        """M in bytes."""
        return self.bound.size_bytes

    @property
    def exact_us(self) -> Fraction:
        """No schedule is faster under the model, in microseconds."""
        return self.bound.time_us if self.latency is None else Fraction(str(self.latency_us))

    @property
    def time_us(self) -> float:
        """The same as a float."""
        return float(self.exact_us)

    @property
    def limit(self) -> str:
        """What sets the least time, in words."""
        return limit_words(self.bound) if self.latency is None else self.latency


def least_record(found: LeastTime) -> LeastTimeJson:
    """A least time with its certificate as JSON values."""
    return {
        "size_bytes": found.size_bytes,
        "least_seconds": found.time_us / 1e6,
        "least_exact_seconds": str(found.exact_us / 10**6),
        "model_name": found.model.name,
        "model": found.model.name,
        "limited_by": found.limit,
        "limit": found.limit,
        "witness": witness_record(found.bound),
    }


class LeastTimes:
    """Least times of a problem under a model, at any size.

    Examples:
        >>> from coppice.simulation.models import model_of
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(preset("dgx-h100", boxes=2), "all_gather")
        >>> times = LeastTimes(problem, model_of("nccl-2.30"))
        >>> [(size, round(times.at(size).time_us, 2)) for size in (1024, 2**30)]
        [(1024, 9.9), (1073741824, 2026.13)]
    """

    def __init__(
        self,
        problem: Problem,
        model: Model,
        *,
        relay_gpus: bool = False,  # A message may pass through GPUs that take part
        helped: bool = False,  # Switches may copy and add where they can
    ) -> None:
        self.problem = problem
        self.model = model
        self._relay_gpus = relay_gpus
        self._known: dict[int, LeastTime] = {}
        prices = LinkPrices(problem, helped=helped)
        self._protocols = [
            [
                TimeBounds(problem, costs, helped=helped, prices=prices)
                for costs in costs_of(model, profile, problem.topology, relay_gpus=relay_gpus)
            ]
            for profile in transport_profiles(model, problem.topology)
        ]

    def at(self, size_bytes: int) -> LeastTime:
        """The least time of a message of this size."""
        if size_bytes not in self._known:
            self._known[size_bytes] = self._at(size_bytes)
        return self._known[size_bytes]

    def _at(self, size_bytes: int) -> LeastTime:
        bounds: list[TimeBound] = []
        for protocol in self._protocols:
            like = bounds[-1] if bounds else None
            bounds.append(max((each.least(size_bytes, like=like) for each in protocol), key=_time))
        found, latency = LeastTime(model=self.model, bounds=tuple(bounds)), self._latency
        if latency.time_us > found.time_us:
            return replace(found, latency=latency.why, latency_us=latency.time_us)
        return found

    def over(self, sizes: Iterable[int]) -> list[LeastTime]:
        """The least time at each size."""
        return [self.at(size) for size in sizes]

    @cached_property
    def _latency(self) -> LatencyBound:
        return least_latency(self.problem, self.model, relay_gpus=self._relay_gpus)


def _time(bound: TimeBound) -> Fraction:
    return bound.time_us


def costs_of(
    model: Model, profile: TransportProfile, topology: Topology, *, relay_gpus: bool = False
) -> list[MessageCosts]:
    """Least costs of messages under a model with one protocol; each list entry is true by itself.

    A message of a protocol takes as long as the protocol says, or its workers, or as the latencies of its links,
    whichever is longer: two entries. Where a message may pass through GPUs (`relay_gpus`), only its first sender costs,
    and only that one's channels carry it.
    """
    found = profile.protocol
    handled = model.send_us + model.receive_us
    message, crossing = model.overhead_us + handled, 0.0
    if found is not None:
        message = max(handled, min(found.box_us, found.network_us))
        crossing = max(handled, found.network_us) - message
    start = model.launch_us + (0.0 if found is None else found.start_us)
    costs = MessageCosts(
        name=profile.name or model.name,
        start_us=start,
        message_us=message,
        crossing_us=crossing,
        expansion=profile.expansion / Fraction(str(model.efficiency)),
        gpu_gb_per_s=profile.gpu_gb_per_s,
        burst_bytes=model.burst_bytes,
        workers=model.workers,
        send_us=model.send_us,
        receive_us=model.receive_us,
    )
    if relay_gpus:
        costs = replace(
            costs,
            start_us=start + (message if found is None else 0.0),
            message_us=0.0,
            crossing_us=0.0,
            gpu_gb_per_s=None,
        )
    if found is None:
        return [costs]
    by_links = replace(costs, message_us=0.0, crossing_us=0.0)
    return [replace(costs, links=False), by_links] if topology.latency_us.any() else [costs]
