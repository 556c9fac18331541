"""Simulated time of put/signal programs: small ones worked out by hand, and what can never be faster."""

from __future__ import annotations

from fractions import Fraction

import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.planning import plan
from coppice.program.put_signal.lower import lower_put_signal
from coppice.simulation.put_signal import PutSignalCosts, simulate_put_signal
from coppice.topology.model import Link, Node, Topology
from coppice.topology.presets import preset
from support.put_signal_cases import COLLECTIVES, forest

ZERO = {
    "wave_us": 0.0,
    "signal_us": 0.0,
    "wait_us": 0.0,
    "proxy_us": 0.0,
    "request_us": 0.0,
    "told_us": 0.0,
    "launch_us": 0.0,
    "memory_gb_per_s": 1e12,
}
MB = 10**6


def pair_time_us(**costs: float) -> float:
    """All-gather of 2 MB in a box of 2 GPUs, 100 GB/s each way: a credit to begin with, then 10 us of bytes."""
    body = forest("star", Collective.ALL_GATHER, (("gpus", 2), ("gb_per_s", 100)))
    program = lower_put_signal(body, pieces=1)
    return simulate_put_signal(program, body, 2 * MB, costs=PutSignalCosts(**{**ZERO, **costs})).time_us


@pytest.mark.parametrize(
    ("costs", "wanted_us"),
    [
        ({}, 10),
        ({"wave_us": 3}, 16),  # the credit, and the put
        ({"wait_us": 1}, 12),
        ({"signal_us": 0.5}, 11),
        ({"proxy_us": 7, "told_us": 7}, 10),  # nobody is in another box
        ({"launch_us": 25}, 25),  # the own copy, beside the rest
        ({"memory_gb_per_s": 50}, 40),  # reads and writes 1 MB
    ],
)
def test_two_gpus_by_hand(costs: dict[str, float], wanted_us: float) -> None:
    assert pair_time_us(**costs) == pytest.approx(wanted_us)


def test_another_box_is_reached_by_the_proxy() -> None:
    """Two boxes of one GPU each: the credit and the put, each posted and told; waits are for the other's."""
    topology = Topology.of(
        "two boxes of one",
        [Node(id="a", host="x"), Node(id="b", host="y")],
        [Link(src=src, dst=dst, gb_per_s=Fraction(100)) for src, dst in (("a", "b"), ("b", "a"))],
    )
    body = plan(Problem(topology=topology, collective=Collective.ALL_GATHER)).plan.body
    program = lower_put_signal(body, pieces=1)

    def time_us(**costs: float) -> float:
        made = PutSignalCosts(**{**ZERO, **costs})
        return simulate_put_signal(program, body, 2 * MB, costs=made).time_us

    bytes_us = time_us()
    assert time_us(wave_us=100, signal_us=100) == bytes_us
    assert time_us(proxy_us=4) == pytest.approx(bytes_us + 8)
    assert time_us(request_us=4) == pytest.approx(bytes_us + 8)
    assert time_us(told_us=4) == pytest.approx(bytes_us + 8)


@pytest.mark.parametrize(("collective", "lanes"), list(zip(COLLECTIVES, (1, 3, 2, 1, 1, 3), strict=True)))
def test_no_program_is_faster_than_the_rate_of_its_plan(collective: Collective, lanes: int) -> None:
    topology = preset("dgx-a100", boxes=2)
    root = 0 if collective.rooted else None
    made = plan(Problem(topology=topology, collective=collective, root=root)).plan
    program = lower_put_signal(made.body, pieces=1, lanes=lanes)
    size = 64 * MB
    best_us = float(size / made.algbw_gb_per_s) / 1e3
    for costs in (
        PutSignalCosts.free(),
        PutSignalCosts(),
    ):  # an order that costs bring about may be the better one
        assert simulate_put_signal(program, made.body, size, costs=costs).time_us >= best_us * (1 - 1e-6)
    assert simulate_put_signal(program, made.body, 0).time_us > 0


def test_costs_and_sizes_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match=r"expected wave_us of 0 or more, found -1"):
        PutSignalCosts(wave_us=-1)
    with pytest.raises(InputError, match=r"expected memory_gb_per_s above 0"):
        PutSignalCosts(memory_gb_per_s=0)
    body = forest("star", Collective.ALL_GATHER, (("gpus", 2), ("gb_per_s", 100)))
    program = lower_put_signal(body)
    with pytest.raises(InputError, match=r"expected a size of 0 bytes or more, found -1"):
        simulate_put_signal(program, body, -1)
    with pytest.raises(InputError, match=r"expected a program of 3 ranks, found one of 2"):
        simulate_put_signal(program, forest("ring", Collective.ALL_GATHER, (("gpus", 3),)), 1)
