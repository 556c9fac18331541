"""Closed forms of systems that aggregate in the network: figures of the literature, limits, and a packet simulation."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from statistics import mean
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.errors import InputError
from coppice.innetwork.systems import SYSTEMS, AggregationCase, estimate, estimates
from coppice.innetwork.systems.atp import aggregated_share
from coppice.innetwork.systems.estimate import block_float, float32_sum, fpisa_sum
from coppice.innetwork.systems.hosts import YARDSTICKS, ring_share
from coppice.innetwork.systems.netagg import box_knee_gb_per_s
from coppice.innetwork.systems.netreduce import hierarchical_threshold
from coppice.innetwork.systems.nvls import nvls_gain
from coppice.innetwork.systems.sharp import tree_depth
from coppice.innetwork.systems.switchagg import pairs_out
from coppice.innetwork.systems.windows import (
    ValueFrame,
    expected_waits,
    lossy_tensor_us,
    mean_waits,
    tensor_us,
    turn_waits,
    window_gb_per_s,
)
from reference.innetwork.lossy_window import LossyWindow

HUNDRED = Fraction(25, 2)
"""100 Gb/s."""


def case(**changes: Any) -> AggregationCase:
    return AggregationCase(**{"workers": 8, "gb_per_s": HUNDRED, **changes})


def test_gain_over_a_ring() -> None:
    assert [round(float(ring_share(n)), 2) for n in (2, 4, 8, 64)] == [1.0, 1.5, 1.75, 1.97]
    assert [round(float(nvls_gain(n)), 3) for n in (4, 8, 16)] == [1.2, 1.556, 1.765]


def test_frames_and_windows() -> None:
    assert [round(100 * float(ValueFrame(values=k).efficiency), 1) for k in (256, 64)] == [92.6, 75.7]
    rates = [8 * window_gb_per_s(ValueFrame(values=256), s, gb_per_s=12.5, rtt_us=6) for s in (32, 64, 128)]
    assert [round(rate) for rate in rates[:2]] == [43, 86]
    assert rates[2] == pytest.approx(92.55, rel=1e-3)


def test_time_does_not_depend_on_the_number_of_workers() -> None:
    times = {n: estimate("switchml", case(workers=n), 2**24).time_us for n in (2, 8, 32)}
    assert len(set(times.values())) == 1


def test_hierarchy_beats_a_flat_ring_from_the_threshold_on() -> None:
    assert round(float(hierarchical_threshold(8, 8)), 2) == 1.81
    size = 10**9
    for ratio, wins in ((Fraction(18, 10), False), (Fraction(182, 100), True)):
        rate = HUNDRED / ValueFrame(values=256).efficiency  # the closed form counts no heads of frames
        boxes = case(workers=64, gpus=8, gb_per_s=rate, box_gb_per_s=ratio * HUNDRED, rtt_us=0, window=10**4)
        flat = estimate("ring", case(workers=64, rtt_us=0), size).time_us
        assert (estimate("netreduce", boxes, size).time_us < flat) is wins


@given(
    packets=st.integers(1, 200),
    window=st.integers(1, 40),
    wire=st.sampled_from([0.5, 1.0]),
    rtt=st.sampled_from([0.0, 3.5, 20.0]),
)
def test_a_tensor_without_loss_is_exact(packets: int, window: int, wire: float, rtt: float) -> None:
    window = min(window, packets)
    left = [0.0] * packets
    for i in range(packets):
        after = left[i - 1] if i else 0.0
        answered = left[i - window] + rtt if i >= window else 0.0
        left[i] = max(after, answered) + wire
    assert tensor_us(packets, window, wire_us=wire, rtt_us=rtt) == pytest.approx(left[-1] + rtt)


@pytest.mark.parametrize(
    ("packets", "window", "workers", "timeout_us", "loss", "seeds"),
    [
        (256, 16, 4, 1000, 0.02, 30),
        (512, 64, 8, 1000, 1e-3, 20),
        (800, 8, 2, 200, 0.01, 20),
        (300, 7, 3, 1000, 0.1, 20),
    ],
)
def test_loss_costs_what_a_packet_simulation_says(
    packets: int, window: int, workers: int, timeout_us: float, loss: float, seeds: int
) -> None:
    alike: dict[str, float] = {"wire_us": 0.1, "rtt_us": 10}
    found = mean(
        LossyWindow(packets, window, workers, **alike, timeout_us=timeout_us, loss=loss, seed=seed).run()
        for seed in range(seeds)
    )
    asked: dict[str, float] = {**alike, "timeout_us": timeout_us, "loss": loss}
    assert lossy_tensor_us(packets, window, workers=workers, **asked) == pytest.approx(found, rel=0.1)


def test_without_loss_simulation_and_formula_are_equal() -> None:
    simulated = LossyWindow(100, 7, 3, 0.5, 8.0, 1000.0, 0.0, 1).run()
    assert tensor_us(100, 7, wire_us=0.5, rtt_us=8.0) == pytest.approx(simulated)


def test_waits_are_distributions_and_grow() -> None:
    for loss in (1e-4, 0.01, 0.3, 0.5):
        for each in turn_waits(loss, 8):
            assert sum(each) == pytest.approx(1)
            assert min(each) >= 0
    assert mean_waits(1e-6, 8) == pytest.approx(2 * 8 * 1e-6, rel=1e-3)
    by_loss = [expected_waits(1000, 10, loss=p, workers=4) for p in (0, 1e-4, 1e-3, 1e-2)]
    assert by_loss == sorted(by_loss)
    one = expected_waits(12, 12, loss=0.2, workers=3)
    waits = turn_waits(0.2, 3)
    ends = np.convolve(waits.first, waits.last)
    draws = np.random.default_rng(0).choice(len(ends), p=ends / ends.sum(), size=(20_000, 12))
    assert one == pytest.approx(draws.max(axis=1).mean(), rel=0.02)


def test_block_floating_point_stays_within_its_bound() -> None:
    assert f"{block_float(8, 2):.0e}" == "6e-08"
    values = np.random.default_rng(7).normal(size=(8, 1 << 16))
    values = np.clip(values, -4, 4)
    scale = (2**31 - 1) / (8 * 4)
    found = np.rint(values * scale).sum(axis=0) / scale
    worst = np.abs(found - values.sum(axis=0)).max()
    assert 0.2 * block_float(8, 2) < worst <= block_float(8, 2)


def test_float32_sums_stay_within_their_bound() -> None:
    values = np.random.default_rng(7).uniform(-1, 1, size=(8, 1 << 16)).astype(np.float32)
    exact = values.astype(np.float64).sum(axis=0)
    chained = values[0].copy()
    for each in values[1:]:
        chained += each
    assert np.abs(chained - exact).max() <= float32_sum(8)
    pairs = (
        (values[0] + values[1]) + (values[2] + values[3]),
        (values[4] + values[5]) + (values[6] + values[7]),
    )
    assert np.abs(pairs[0] + pairs[1] - exact).max() <= float32_sum(8, depth=3)
    mantissas, exponents = _fpisa(values)
    assert np.abs(np.ldexp(mantissas.astype(float), exponents) - exact).max() <= fpisa_sum(8)


def _fpisa(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mantissas of 24 bits added at the larger exponent, floor at each alignment; a sum is not packed."""
    parts, powers = np.frexp(values)
    mantissas, powers = np.rint(np.ldexp(parts, 24)).astype(np.int64), powers - 24
    held, power = mantissas[0], powers[0]
    for m, e in zip(mantissas[1:], powers[1:], strict=True):
        top = np.maximum(power, e)
        held, power = (held >> (top - power)) + (m >> (top - e)), top
    return held, power


def test_shares_of_packets_that_find_a_slot() -> None:
    dice = np.random.default_rng(3)
    found = np.mean([len(set(dice.integers(0, 500, 300).tolist())) / 300 for _ in range(300)])
    assert aggregated_share(300, 500) == pytest.approx(found, rel=0.01)
    alone = estimate("atp", case(workers=32, slots=40_000), 10**9).gb_per_s
    many = estimate("atp", case(workers=32, slots=400, jobs=16), 10**9).gb_per_s
    assert many < alone / 2


def test_pairs_that_leave_a_table() -> None:
    dice = np.random.default_rng(5)
    keys, capacity, table, out = 200, 50, {}, 0
    stream = dice.integers(0, keys, 40_000)
    for key in stream.tolist():  # the first ones keep their places, the others pass
        if key in table or len(table) < capacity:
            table[key] = True
        else:
            out += 1
    assert out + len(table) == pytest.approx(pairs_out(len(stream), keys, capacity), rel=0.02)


def test_depths_of_trees_are_flat() -> None:
    depths = [tree_depth(n, 32) for n in range(2, 1100)]
    assert depths == [next(d for d in range(1, 4) if 32**d >= n) for n in range(2, 1100)]
    small, large = (
        {name: estimate(name, case(workers=64), size).time_us for name in ("sharp", "ring", "tree")}
        for size in (1024, 2**30)
    )
    assert small["sharp"] < small["tree"] < small["ring"]
    assert large["sharp"] < large["ring"] < large["tree"]


def test_a_slow_box_or_adder_is_the_bottleneck() -> None:
    knee = box_knee_gb_per_s(8, HUNDRED)
    for system in ("netagg", "streaming"):
        full = estimate(system, case(), 10**9).gb_per_s
        assert estimate(system, case(adding_gb_per_s=knee), 10**9).gb_per_s == full
        assert estimate(system, case(adding_gb_per_s=knee / 2), 10**9).gb_per_s == pytest.approx(full / 2)


def test_racks_without_a_box_load_their_uplink() -> None:
    racks = {"workers": 16, "racks": 4, "gb_per_s": Fraction(1), "uplink_gb_per_s": Fraction(2)}
    by_boxes = [
        estimate("netagg", AggregationCase(**racks, racks_with_boxes=boxes), 10**9).gb_per_s
        for boxes in range(5)
    ]
    assert by_boxes == [0.5, 0.5, 0.5, 0.5, 1.0]
    box = Fraction(4)
    slow = [
        estimate(
            "netagg", AggregationCase(**racks, racks_with_boxes=boxes, adding_gb_per_s=box), 10**9
        ).gb_per_s
        for boxes in range(5)
    ]
    assert slow == [float(min(Fraction(1, 2), box / (4 * (4 - k) + k))) for k in range(4)] + [1.0]


def test_passes_share_the_loopback_ports() -> None:
    free = estimate("switchml", case(), 10**9).gb_per_s
    tight = estimate("switchml", case(recirculation_gb_per_s=8 * 3 * HUNDRED / 2), 10**9).gb_per_s
    assert tight == pytest.approx(free / 2)
    one_pass = case(values=64, recirculation_gb_per_s=Fraction(1))
    assert (
        estimate("switchml", one_pass, 10**9).gb_per_s
        == estimate("switchml", case(values=64), 10**9).gb_per_s
    )


@pytest.mark.parametrize("system", [*SYSTEMS, *YARDSTICKS])
def test_nothing_beats_the_link(system: str) -> None:
    """A tensor crosses each link once each way at least, over boxes with all NICs."""
    suited = {
        "camdoop": {"workers": 27},
        "nvls-tree": {"workers": 16, "gpus": 8, "nics": 8, "box_gb_per_s": HUNDRED},
    }
    asked = case(**suited.get(system, {}))
    links = 6 if system == "camdoop" else asked.nics
    for size in (8, 2**20, 2**30):
        found = estimate(system, asked, size)
        assert found.time_us >= size / (float(asked.gb_per_s) * 1000 * links)
        assert found.gb_per_s <= float(asked.gb_per_s) * links
        longer = estimate(system, asked, 2 * size).time_us
        assert longer >= found.time_us


@pytest.mark.parametrize("system", ["switchml", "fpisa", "atp", "netreduce"])
def test_loss_slows_down_and_more_slots_help(system: str) -> None:
    times = [estimate(system, case(loss=p, timeout_us=100), 2**22).time_us for p in (0, 1e-4, 1e-3, 1e-2)]
    assert times == sorted(times)
    assert times[0] < times[-1]
    more = [estimate(system, case(slots=s), 2**30).gb_per_s for s in (1, 16, 64, 256)]
    assert more == sorted(more)


def test_systems_that_do_not_suit_say_so() -> None:
    found, refused = estimates([*SYSTEMS], case(loss=0.01), 2**20)
    assert {each.system for each in found} == {"switchml", "fpisa", "atp", "netreduce"}
    assert set(refused) == set(SYSTEMS) - {each.system for each in found}
    assert "relies on" in refused["nvls"]
    with pytest.raises(InputError, match=r"expected a system that aggregates, .* did you mean 'sharp'"):
        estimate("sharpp", case(), 1)
    with pytest.raises(InputError, match="expected a size of 1 byte or more, found 0"):
        estimate("ring", case(), 0)
    with pytest.raises(InputError, match="expected a slot for each of 5 jobs, found 4"):
        estimate("switchml", case(slots=4, jobs=5), 1)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"loss": 0.6}, "`loss` as a probability of 0 to 0.5, found 0.6"),
        ({"rtt_us": -1.0}, "`rtt_us` of 0 or more microseconds, found -1.0"),
        ({"rtt_us": float("nan")}, "found nan"),
        ({"server_gb_per_s": Fraction(0)}, "`server_gb_per_s` above 0 GB/s, found 0"),
        ({"slots": 0}, "`slots` of 1 or more, found 0"),
        ({"gpus": 3}, "a rest of 2"),
        ({"racks": 3}, "found 8 workers, 3 racks"),
        ({"racks": 2, "racks_with_boxes": 3}, "2 racks, 3 with boxes"),
    ],
)
def test_cases_without_meaning_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        replace(case(), **changes)
