"""Closed forms against the native machines of the same protocols over a simulated network, packet by packet."""

from __future__ import annotations

from fractions import Fraction
from statistics import mean
from typing import Any

import pytest

from coppice.innetwork.simulated import simulate_all_reduce
from coppice.innetwork.systems import AggregationCase, estimate
from coppice.innetwork.systems.windows import UDP_BYTES, ValueFrame, lossy_tensor_us

RATE = 12.5


def formula(
    packets: int, slots: int, workers: int, *, latency_us: float, loss: float, timeout_ms: float
) -> float:
    """What the closed form says of a switch at the end of links with a latency."""
    wire = (4 * 256 + UDP_BYTES) / RATE / 1000
    return lossy_tensor_us(
        packets,
        slots,
        wire_us=wire,
        rtt_us=2 * latency_us + wire,
        timeout_us=1000 * timeout_ms,
        loss=loss,
        workers=workers,
    )


def simulated(
    packets: int,
    slots: int,
    workers: int,
    *,
    latency_us: float,
    loss: float,
    timeout_ms: float,
    seeds: int = 1,
) -> float:
    """What SwitchML's machines need on average."""
    runs = [
        simulate_all_reduce(
            workers=workers,
            elements=256 * packets,
            values=256,
            slots=slots,
            gb_per_s=RATE,
            latency_us=latency_us,
            drop=loss,
            timeout_ms=timeout_ms,
            seed=seed,
        )
        for seed in range(seeds)
    ]
    assert all(run.complete and run.wrong == 0 for run in runs)
    return mean(run.time_us for run in runs)


@pytest.mark.parametrize("slots", [1, 16, 35, 36, 37, 128])
@pytest.mark.parametrize("packets", [1, 100, 501])
def test_without_loss_both_agree_to_the_nanosecond(packets: int, slots: int) -> None:
    case = {"latency_us": 1.5, "loss": 0.0, "timeout_ms": 10.0}
    assert formula(packets, slots, 3, **case) == pytest.approx(
        simulated(packets, slots, 3, **case), abs=2e-3 * packets
    )


@pytest.mark.parametrize(
    ("packets", "slots", "workers", "loss", "timeout_ms", "seeds"),
    [
        (1024, 64, 8, 1e-3, 1.0, 15),
        (256, 16, 4, 0.02, 1.0, 30),
        (800, 8, 2, 0.01, 0.2, 30),
        (2048, 128, 8, 1e-3, 0.1, 8),
        (2048, 128, 8, 1e-4, 1.0, 12),
        (300, 7, 3, 0.1, 1.0, 20),
    ],
)
def test_loss_costs_what_the_machines_need(
    packets: int, slots: int, workers: int, loss: float, timeout_ms: float, seeds: int
) -> None:
    case = {"latency_us": 1.5, "loss": loss, "timeout_ms": timeout_ms}
    found = simulated(packets, slots, workers, **case, seeds=seeds)
    assert formula(packets, slots, workers, **case) == pytest.approx(found, rel=0.1)


@pytest.mark.parametrize("workers", [2, 7])
@pytest.mark.parametrize("packets", [64, 2000])
def test_streaming_adders_reach_what_the_closed_form_says(workers: int, packets: int) -> None:
    latency_us, wire = 1.5, ValueFrame(values=256).wire_us(RATE)
    run = simulate_all_reduce(
        protocol="streaming",
        workers=workers,
        elements=256 * packets,
        values=256,
        gb_per_s=RATE,
        latency_us=latency_us,
    )
    assert run.complete
    case = AggregationCase(
        workers=workers, gb_per_s=Fraction(RATE), rtt_us=2 * latency_us + wire, skew_us=0.0, values=256
    )
    assert estimate("streaming", case, 1024 * packets).time_us == pytest.approx(run.time_us, rel=1e-3)


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize(
    ("system", "options", "case"),
    [
        ("netreduce", {"window": 2, "slots": 1024}, {"window": 2, "message_bytes": 16 * 1024}),
        ("netreduce", {"window": 8, "slots": 4096}, {"window": 8, "message_bytes": 16 * 1024}),
        ("atp", {"window": 100, "slots": 40_000}, {}),
        ("fpisa", {"window": 16, "slots": 16, "element": "float32"}, {"slots": 16}),
    ],
    ids=["netreduce, window 2", "netreduce, window 8", "atp", "fpisa"],
)
def test_windows_of_others_limit_alike(
    system: str, options: dict[str, Any], case: dict[str, Any], workers: int
) -> None:
    """Frames differ by a few bytes, and what starts and ends a tensor by a round trip."""
    elements = 62 * 256 * 64
    run = simulate_all_reduce(
        protocol=system, workers=workers, elements=elements, gb_per_s=RATE, latency_us=3, **options
    )
    assert run.complete
    asked = AggregationCase(workers=workers, gb_per_s=Fraction(RATE), rtt_us=6.088, **case)
    assert estimate(system, asked, 4 * elements).time_us == pytest.approx(run.time_us, rel=0.04)


def test_time_does_not_depend_on_workers_in_either() -> None:
    case = {"latency_us": 1.5, "loss": 0.0, "timeout_ms": 10.0}
    assert len({simulated(200, 16, workers, **case) for workers in (2, 5, 16)}) == 1
