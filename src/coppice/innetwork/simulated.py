"""Protocols of in-network aggregation over simulated links, at random or model-checked through all interleavings.

All-reduces through switches of a simulated network: at random, or by every order, loss, copy and time-out. A simulation
says when they finish, what is lost, and whether sums are right; a search goes through everything that a network may do
to a protocol within budgets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from coppice.arguments import checked
from coppice.errors import CheckError, InputError
from coppice.innetwork.serving.settings import with_former_names
from coppice.innetwork.systems import SwitchProtocol, find_protocol
from coppice.native import _switch

__all__ = [
    "LinkTraffic",
    "ProtocolSearch",
    "SwitchedAllReduce",
    "search_interleavings",
    "simulate_all_reduce",
]


ELEMENTS = ("int32", "float32")
MOST_NS = 2**62


def groups_of(workers: int, tree: Sequence[int] | None) -> list[int]:
    """Number of workers below each switch."""
    groups = [workers] if tree is None else list(tree)
    if workers < 1 or min(groups, default=0) < 1 or sum(groups) != workers:
        raise InputError(
            f"expected 1 worker or more, and `tree` to say how many are below each switch, found {workers} workers "
            f"and groups of {groups}: make the groups add up."
        )
    return groups


def job_of(
    protocol: SwitchProtocol,
    *,
    workers: int,
    slots: int,
    window: int | None,
    values: int | None,
    element: str,
    timeout_ns: int,
    give_up_timeout_ns: int,
    settings: Mapping[str, float] | None,
) -> _switch.AggregationJob:
    """Make the job for the native state machines, which check it."""
    if element not in ELEMENTS:
        raise InputError(f"expected `element` to be one of {', '.join(ELEMENTS)}, found {element!r}.")
    if not 0 < timeout_ns <= MOST_NS or not 0 < give_up_timeout_ns <= MOST_NS:
        raise InputError(
            "expected `timeout_ms` and `give_up_timeout_ms` above 0, found one that is not: give times in milliseconds."
        )
    for name, number in (("workers", workers), ("slots", slots), ("window", window), ("values", values)):
        if number is not None and not 1 <= number < 2**31:
            raise InputError(f"expected `{name}` from 1 on, found {number}.")
    return _switch.AggregationJob(
        id=1,
        workers=workers,
        slots=slots,
        values=protocol.values if values is None else values,
        window=slots if window is None else window,
        element=getattr(_switch.Element, element),
        timeout_ns=timeout_ns,
        give_up_timeout_ns=give_up_timeout_ns,
        settings=dict(settings or {}),
    )


UDP_BYTES = 66
"""On the wire beside a packet: preamble and gap 20, Ethernet 14 and 4, IPv4 20, UDP 8."""


@dataclass(frozen=True, kw_only=True)
class LinkTraffic:
    """Traffic of all links in one direction."""

    packets: int  # Packets that entered a link
    size_bytes: int  # Their bytes on the wire
    dropped: int  # Packets lost by chance
    overflowed: int  # Packets that found a queue full, and did not enter
    duplicated: int  # Packets that arrived twice
    reordered: int  # Packets that others may have overtaken


@dataclass(frozen=True, kw_only=True)
class SwitchedAllReduce:
    """The outcome of simulated all-reduces."""

    elements: tuple[int, ...]  # Of the tensors, one after the other
    element: str  # `"int32"` or `"float32"`
    finish_us: tuple[float | None, ...]  # When each worker had its last sum; None where it never did
    failures: tuple[str, ...]  # Why each worker gave up; empty where it did not
    wrong: int  # Elements of int32 that are not the sum
    worst_error: float  # Of float32, the greatest difference from the sum, for inputs from -1 to 1
    slots_in_use: int  # Of all switches, at the end
    waited_for: tuple[int, ...]  # Workers that switches still waited for at the end
    end_us: float  # Time of the last event
    delivered: int  # Packets that nodes took in
    up: LinkTraffic  # Traffic towards switches and servers
    down: LinkTraffic  # Traffic towards workers
    worker_counts: Mapping[str, int]  # What happened to packets at the workers, by name, all together
    switch_counts: Mapping[str, int]  # The same at the switches
    server_counts: Mapping[str, int]  # The same at the server of a protocol that has one

    @property
    def complete(self) -> bool:
        """Whether every worker got every sum, and no slot of a switch stayed in use."""
        return None not in self.finish_us and self.slots_in_use == 0

    @property
    def time_us(self) -> float:
        """Time until the last worker finished; infinite where one did not."""
        return max((math.inf if each is None else each for each in self.finish_us), default=0.0)

    @property
    def algbw_gb_per_s(self) -> float:
        """Algorithm bandwidth: bytes of the tensors over :attr:`time_us`."""
        return 4 * sum(self.elements) / self.time_us / 1000 if self.time_us > 0 else 0.0


@checked
def simulate_all_reduce(
    *,
    workers: int,
    protocol: str = "switchml",  # What they and the switches speak, see `coppice.innetwork.systems`
    elements: int | Sequence[int] = 1_000_000,  # Of the tensor, or of each of several that follow each other
    element: str = "int32",  # Type of the values, `"int32"` or `"float32"`
    slots: int = 64,  # Aggregators of the job in each switch
    window: int | None = None,  # Packets that a worker may have under way; as many as slots unless given
    values: int | None = None,  # Values of a packet; what is usual with the protocol unless given
    # Workers below each switch, where a root joins several; one switch unless given
    tree: Sequence[int] | None = None,
    gb_per_s: float = 12.5,  # Rate of each worker's link, in gigabytes per second and direction
    latency_us: float = 1.0,  # Of a link, one way, without the time on the wire
    # Rate of the links between switches and to a server; that of the workers' unless given
    uplink_gb_per_s: float | None = None,
    queue_bytes: int | None = None,  # Room before each link; without limit unless given
    overhead_bytes: int = UDP_BYTES,  # On the wire, of each packet, besides its own bytes
    drop: float = 0.0,  # Probability that a link loses a packet
    duplicate: float = 0.0,  # Probability that a link delivers a packet twice
    reorder: float = 0.0,  # Probability that a packet is late
    reorder_us: float = 10.0,
    # Packets that a switch takes in per second; without limit unless given
    switch_packets_per_s: float | None = None,
    worker_packets_per_s: float | None = None,
    timeout_ms: float = 10.0,  # Of a worker, before it sends a packet again
    give_up_timeout_ms: float = 30_000.0,  # Of a worker without any sum, before it gives up
    starts_us: Sequence[float] | None = None,  # When each worker begins; all at once unless given
    crash_worker: int | None = None,
    crash_us: float = 0.0,
    # A switch (leaves are numbered first, then the root) that forgets everything
    restart_switch: int | None = None,
    restart_us: float = 0.0,
    settings: Mapping[str, float] | None = None,  # What only the protocol knows, by name
    seed: int = 0,
) -> SwitchedAllReduce:
    """Simulate all-reduces through switches of a lossy network, and check every sum.

    The machines that run are those that sockets drive: here packets are events on links with a rate, a latency and a
    queue, and each is lost, doubled or late with a probability of its own, drawn by seed.

    Returns:
        Times, traffic and counts; a wrong sum is counted, not raised.

    Examples:
        >>> run = simulate_all_reduce(workers=8, elements=256 * 1000, slots=128, drop=0.001, timeout_ms=1, seed=3)
        >>> run.complete, run.wrong, run.up.dropped > 0, run.worker_counts["completed"]
        (True, 0, True, 8000)
    """
    for name, chance in (("drop", drop), ("duplicate", duplicate), ("reorder", reorder)):
        if not 0 <= chance < 1:
            raise InputError(f"expected `{name}` as a probability from 0 to below 1, found {chance}.")
    positive = {
        "gb_per_s": gb_per_s,
        "uplink_gb_per_s": uplink_gb_per_s,
        "queue_bytes": queue_bytes,
        "switch_packets_per_s": switch_packets_per_s,
        "worker_packets_per_s": worker_packets_per_s,
    }
    for name, rate in positive.items():
        if rate is not None and not 0 < rate < math.inf:
            raise InputError(f"expected `{name}` above 0, found {rate}.")
    tensors = [elements] if isinstance(elements, int) else list(elements)
    starts = list(starts_us or ())
    at_least_0 = {
        "latency_us": latency_us,
        "reorder_us": reorder_us,
        "overhead_bytes": overhead_bytes,
        "elements": min(tensors, default=0),
        "starts_us": min(starts, default=0),
        "crash_us": crash_us,
        "restart_us": restart_us,
        "seed": seed,
    }
    for name, number in at_least_0.items():
        if not 0 <= number < 2**63:
            raise InputError(f"expected `{name}` from 0 on, found {number}.")
    groups = groups_of(workers, tree)
    switches = len(groups) + (len(groups) > 1)
    for name, failing, most in (
        ("crash_worker", crash_worker, workers),
        ("restart_switch", restart_switch, switches),
    ):
        if failing is not None and not 0 <= failing < most:
            raise InputError(f"expected `{name}` from 0 to {most - 1}, found {failing}.")

    def link(rate: float) -> _switch.AggregationLink:
        return _switch.AggregationLink(
            bytes_per_s=rate * 1e9,
            latency_ns=_ns(latency_us),
            queue_bytes=queue_bytes or 0,
            overhead_bytes=overhead_bytes,
            drop=drop,
            duplicate=duplicate,
            reorder=reorder,
            reorder_delay_ns=_ns(reorder_us),
        )

    job = job_of(
        find_protocol(protocol),
        workers=workers,
        slots=slots,
        window=window,
        values=values,
        element=element,
        timeout_ns=_ns(1000 * timeout_ms),
        give_up_timeout_ns=_ns(1000 * give_up_timeout_ms),
        settings=settings,
    )
    try:
        found = _switch.aggregation_experiment(
            protocol=protocol,
            job=job,
            groups=groups,
            link=link(gb_per_s),
            uplink=link(gb_per_s if uplink_gb_per_s is None else uplink_gb_per_s),
            switch_packets_per_s=switch_packets_per_s or 0.0,
            worker_packets_per_s=worker_packets_per_s or 0.0,
            tensors=tensors,
            starts_ns=[_ns(each) for each in starts],
            seed=seed,
            crash_worker=-1 if crash_worker is None else crash_worker,
            crash_at_ns=_ns(crash_us),
            restart_switch=-1 if restart_switch is None else restart_switch,
            restart_at_ns=_ns(restart_us),
            limit_ns=2**62,
        )
    except ValueError as error:
        msg_0 = f"{error}."
        raise InputError(msg_0) from None
    return SwitchedAllReduce(
        elements=tuple(tensors),
        element=element,
        finish_us=tuple(None if each is None else each / 1000 for each in found["finish_ns"]),
        failures=tuple(found["failures"]),
        wrong=found["wrong"],
        worst_error=found["worst"],
        slots_in_use=found["slots_in_use"],
        waited_for=tuple(found["waited_for"]),
        end_us=found["end_ns"] / 1000,
        delivered=found["delivered"],
        up=LinkTraffic(**found["up"]),
        down=LinkTraffic(**found["down"]),
        worker_counts=with_former_names(found["workers"]),
        switch_counts=with_former_names(found["switches"]),
        server_counts=with_former_names(found["server"]),
    )


def _ns(time_us: float) -> int:
    return min(round(1000 * time_us), 2**62)


@dataclass(frozen=True, kw_only=True)
class ProtocolSearch:
    """The outcome of a search: states seen, and the fault with its trace where there is one."""

    protocol: str  # Its name
    fault: str  # What went wrong, in one sentence; empty where nothing does
    trace: tuple[str, ...]  # Events that lead there, the fewest, a line for each
    states: int  # Different states that were reached
    events: int  # Events tried in them
    depth: int  # Events from the first packets to the furthest state
    whole: bool  # Whether no state within the budgets was left out

    @property
    def ok(self) -> bool:
        """Whether no fault was found in what was searched."""
        return not self.fault

    def require_ok(self) -> None:
        """Raise CheckError with the trace of events if a fault was found."""
        if self.fault:
            raise CheckError(
                f"expected every worker of {self.protocol} to have the sum at the end, found that "
                f"{self.fault}, after these {len(self.trace)} events:\n" + "\n".join(self.numbered())
            )

    def record(self) -> dict[str, Any]:
        """The outcome as JSON values."""
        return {"ok": self.ok, **asdict(self)}

    def numbered(self) -> list[str]:
        """The trace as lines to print."""
        width = len(str(len(self.trace)))
        return [f"  {number:{width}}  {line}" for number, line in enumerate(self.trace, 1)]


@checked
def search_interleavings(
    *,
    protocol: str = "switchml",  # Which one, see `coppice.innetwork.systems`
    workers: int = 2,
    slots: int = 1,  # Aggregators of the job in each switch
    window: int | None = None,  # Packets that a worker may have under way; as many as slots unless given
    values: int = 1,
    elements: int | Sequence[int] = 3,  # Of the tensor, or of each of several that follow each other
    # Workers below each switch, where a root joins several; one switch unless given
    tree: Sequence[int] | None = None,
    losses: int = 1,
    duplicates: int = 1,  # Packets that may arrive a second time, at any later moment
    early_timeouts: int = 1,  # Time-outs while a packet is still under way; others cost nothing
    reordering: bool = True,  # Whether a packet may overtake another of the same link
    settings: Mapping[str, float] | None = None,  # What only the protocol knows, by name
    most_events: int = 1_000_000,  # Depth beyond which the search does not go
    most_states: int = 1_000_000,
) -> ProtocolSearch:
    """Drive a protocol's state machines through every interleaving of arrivals, losses, copies and time-outs.

    Each packet under way may arrive next, be lost, or arrive and stay under way as a copy; nodes may be woken early.
    In every state that is reached a worker that is done has the exact sum, and if nothing fails from then on everyone
    ends and the switches are empty. The machines are those that sockets drive. States are told apart by hashes of 128
    bits.

    Examples:
        >>> found = search_interleavings(elements=2)
        >>> found.ok, found.whole, found.states > 1000
        (True, True, True)

        The published switch goes by the order of packets alone, so a late copy is taken for a new packet:

        >>> found = search_interleavings(losses=0, early_timeouts=0, settings={"published_rule": 1})
        >>> print(found.fault)
        worker 0 has a wrong sum: element 2 of tensor 0 is 72298, expected 129367 = 48140 + 81227
        >>> print(found.numbered()[1])
           2  worker 1 -> switch: slot 0 set 0 packet 0 value 24158, and a copy stays under way
    """
    tensors = [elements] if isinstance(elements, int) else list(elements)
    budgets = {
        "losses": losses,
        "duplicates": duplicates,
        "early_timeouts": early_timeouts,
        "elements": min(tensors, default=-1),
        "most_events": most_events,
        "most_states": most_states,
    }
    for name, budget in budgets.items():
        if not 0 <= budget < 2**31:
            raise InputError(f"expected `{name}` from 0 on, found {budget}.")
    if budgets["most_states"] > 2**28:
        raise InputError(f"expected `most_states` up to 2^28, found {most_states}: they are kept in memory.")
    record = find_protocol(protocol)
    job = job_of(
        record,
        workers=workers,
        slots=slots,
        window=window,
        values=values,
        element="int32",
        timeout_ns=10_000_000,
        give_up_timeout_ns=2**62,
        settings={"doubled_after": 0, **(settings or {})},
    )
    try:
        found = _switch.aggregation_exploration(
            protocol=protocol,
            job=job,
            groups=groups_of(workers, tree),
            tensors=tensors,
            reordering=reordering,
            losses=losses,
            duplicates=duplicates,
            early_timeouts=early_timeouts,
            most_events=most_events,
            most_states=most_states,
        )
    except ValueError as error:
        raise InputError(f"{error}.") from None
    return ProtocolSearch(protocol=protocol, **{**found, "trace": tuple(found["trace"])})
