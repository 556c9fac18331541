"""All-reduces through switches of a simulated network: when they finish, what is lost, whether sums are right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.innetwork.protocols import find_protocol
from coppice.innetwork.simulated.job import groups_of, job_of
from coppice.native import _switch

__all__ = ["LinkTraffic", "SwitchedAllReduce", "simulate_all_reduce"]

UDP_BYTES = 66
"""On the wire beside a packet: preamble and gap 20, Ethernet 14 and 4, IPv4 20, UDP 8."""


@dataclass(frozen=True, kw_only=True)
class LinkTraffic:
    """What links of one direction carried, all together.

    Attributes:
        packets: Packets that entered a link.
        size_bytes: Their bytes on the wire.
        dropped: Packets lost by chance.
        overflowed: Packets that found a queue full, and did not enter.
        duplicated: Packets that arrived twice.
        reordered: Packets that others may have overtaken.
    """

    packets: int
    size_bytes: int
    dropped: int
    overflowed: int
    duplicated: int
    reordered: int


@dataclass(frozen=True, kw_only=True)
class SwitchedAllReduce:
    """What came of it.

    Attributes:
        elements: Of the tensors, one after the other.
        element: ``"int32"`` or ``"float32"``.
        finish_us: When each worker had its last sum; None where it never did.
        failures: Why each worker gave up; empty where it did not.
        wrong: Elements of int32 that are not the sum.
        worst_error: Of float32, the greatest difference from the sum, for inputs from -1 to 1.
        slots_in_use: Of all switches, at the end.
        waited_for: Workers that switches still waited for at the end.
        end_us: Time of the last event.
        delivered: Packets that nodes took in.
        up: Traffic towards switches and servers.
        down: Traffic towards workers.
        worker_counts: What happened to packets at the workers, by name, all together.
        switch_counts: The same at the switches.
        server_counts: The same at the server of a protocol that has one.
    """

    elements: tuple[int, ...]
    element: str
    finish_us: tuple[float | None, ...]
    failures: tuple[str, ...]
    wrong: int
    worst_error: float
    slots_in_use: int
    waited_for: tuple[int, ...]
    end_us: float
    delivered: int
    up: LinkTraffic
    down: LinkTraffic
    worker_counts: Mapping[str, int]
    switch_counts: Mapping[str, int]
    server_counts: Mapping[str, int]

    @property
    def complete(self) -> bool:
        """Whether every worker had every sum, and the switches kept nothing."""
        return None not in self.finish_us and self.slots_in_use == 0

    @property
    def time_us(self) -> float:
        """Until the last worker finished; infinite where one did not."""
        return max((math.inf if each is None else each for each in self.finish_us), default=0.0)

    @property
    def algbw_gb_per_s(self) -> float:
        """Bytes of the tensors by that time."""
        return 4 * sum(self.elements) / self.time_us / 1000 if self.time_us > 0 else 0.0


@checked
def simulate_all_reduce(
    *,
    workers: int,
    protocol: str = "switchml",
    elements: int | Sequence[int] = 1_000_000,
    element: str = "int32",
    slots: int = 64,
    window: int | None = None,
    values: int | None = None,
    tree: Sequence[int] | None = None,
    gb_per_s: float = 12.5,
    latency_us: float = 1.0,
    uplink_gb_per_s: float | None = None,
    queue_bytes: int | None = None,
    overhead_bytes: int = UDP_BYTES,
    drop: float = 0.0,
    duplicate: float = 0.0,
    reorder: float = 0.0,
    reorder_us: float = 10.0,
    switch_packets_per_s: float | None = None,
    worker_packets_per_s: float | None = None,
    timeout_ms: float = 10.0,
    patience_ms: float = 30_000.0,
    starts_us: Sequence[float] | None = None,
    crash_worker: int | None = None,
    crash_us: float = 0.0,
    restart_switch: int | None = None,
    restart_us: float = 0.0,
    settings: Mapping[str, float] | None = None,
    seed: int = 0,
) -> SwitchedAllReduce:
    """Runs all-reduces through switches of a simulated network, with every sum checked.

    The machines that run are those that sockets drive: here packets are events on links with a rate, a latency and a
    queue, and each is lost, doubled or late with a probability of its own, drawn by seed.

    Args:
        workers: How many.
        protocol: What they and the switches speak, see ``coppice.innetwork.protocols``.
        elements: Of the tensor, or of each of several that follow each other.
        element: Type of the values, ``"int32"`` or ``"float32"``.
        slots: Aggregators of the job in each switch.
        window: Packets that a worker may have under way; as many as slots unless given.
        values: Values of a packet; what is usual with the protocol unless given.
        tree: Workers below each switch, where a root joins several; one switch unless given.
        gb_per_s: Rate of each worker's link, in gigabytes per second and direction.
        latency_us: Of a link, one way, without the time on the wire.
        uplink_gb_per_s: Rate of the links between switches and to a server; that of the workers' unless given.
        queue_bytes: Room before each link; without limit unless given.
        overhead_bytes: On the wire, of each packet, besides its own bytes.
        drop: Probability that a link loses a packet.
        duplicate: Probability that a link delivers a packet twice.
        reorder: Probability that a packet is late.
        reorder_us: How late at most.
        switch_packets_per_s: Packets that a switch takes in per second; without limit unless given.
        worker_packets_per_s: The same of a worker.
        timeout_ms: Of a worker, before it sends a packet again.
        patience_ms: Of a worker without any sum, before it gives up.
        starts_us: When each worker begins; all at once unless given.
        crash_worker: A worker that falls silent.
        crash_us: From when on.
        restart_switch: A switch (leaves are numbered first, then the root) that forgets everything.
        restart_us: When it does.
        settings: What only the protocol knows, by name.
        seed: Of inputs and faults.

    Returns:
        Times, traffic and counts; a wrong sum is counted, not raised.

    Raises:
        InputError: If the protocol cannot serve the job, or a rate or probability is none.

    Examples:
        >>> run = simulate_all_reduce(workers=8, elements=256 * 1000, slots=128, drop=0.001, timeout_ms=1, seed=3)
        >>> run.complete, run.wrong, run.up.dropped > 0, run.worker_counts["completed"]
        (True, 0, True, 8000)
    """
    for name, chance in (("drop", drop), ("duplicate", duplicate), ("reorder", reorder)):
        if not 0 <= chance < 1:
            msg = f"expected `{name}` as a probability from 0 to below 1, found {chance}."
            raise InputError(msg)
    positive = {
        "gb_per_s": gb_per_s,
        "uplink_gb_per_s": uplink_gb_per_s,
        "queue_bytes": queue_bytes,
        "switch_packets_per_s": switch_packets_per_s,
        "worker_packets_per_s": worker_packets_per_s,
    }
    for name, rate in positive.items():
        if rate is not None and not 0 < rate < math.inf:
            msg = f"expected `{name}` above 0, found {rate}."
            raise InputError(msg)
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
            msg = f"expected `{name}` from 0 on, found {number}."
            raise InputError(msg)
    groups = groups_of(workers, tree)
    switches = len(groups) + (len(groups) > 1)
    for name, failing, most in (
        ("crash_worker", crash_worker, workers),
        ("restart_switch", restart_switch, switches),
    ):
        if failing is not None and not 0 <= failing < most:
            msg = f"expected `{name}` from 0 to {most - 1}, found {failing}."
            raise InputError(msg)

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
        patience_ns=_ns(1000 * patience_ms),
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
        worker_counts=found["workers"],
        switch_counts=found["switches"],
        server_counts=found["server"],
    )


def _ns(time_us: float) -> int:
    return min(round(1000 * time_us), 2**62)
