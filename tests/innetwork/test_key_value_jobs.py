"""All-reduces of SwitchAgg and NetAgg over the simulated network: exact under every fault, failures that are told, and
traffic and times that follow the formulas."""

from __future__ import annotations

import math
import random
from collections import Counter
from fractions import Fraction

import pytest

from coppice._switch import AggregationJob, Element, SwitchAggWorker, aggregation_switch
from coppice.errors import InputError
from coppice.innetwork.simulated import simulate_all_reduce
from coppice.innetwork.systems.netagg import box_knee_gb_per_s
from coppice.innetwork.systems.switchagg import pairs_out

PROTOCOLS = ("switchagg", "netagg")


def test_the_switch_refuses_what_it_has_no_memory_for() -> None:
    with pytest.raises(InputError, match="slots"):
        simulate_all_reduce(workers=2, protocol="switchagg", slots=4, settings={"key_bytes": 64})
    with pytest.raises(InputError, match="1 to 32 workers, found 33"):
        simulate_all_reduce(workers=33, protocol="netagg")


def pairs_that_leave(keys: list[int], front: int, back: int) -> int:
    """Pairs that one worker's stream leaves after a switch with such memories."""
    settings = {"lanes": 1.0, "back": float(back)}
    job = AggregationJob(1, 1, front, 64, 64, Element.int32, 10**6, 10**9, settings)
    worker, switch = SwitchAggWorker(job, 0, 1), aggregation_switch("switchagg", front)
    switch.open(job, [0])
    pairs: list[tuple[bytes, list[int]]] = [(key.to_bytes(4, "big"), [1]) for key in keys]
    up = [packet for _, packet in worker.begin_pairs(pairs, 0)]
    found = 0
    while up:
        down = [packet for each in up for _, packet in switch.receive(0, each, 0)]
        found += sum(int.from_bytes(each[18:20], "big") for each in down if each[0] == 2)
        up = [packet for each in down for _, packet in worker.receive(1, each, 0)]
        assert not worker.failure()
    assert worker.done()
    assert worker.combined() == {key.to_bytes(4, "big"): [count] for key, count in Counter(keys).items()}
    return found


def effective(front: int, back: int, keys: int) -> int:
    """Different keys in both memories: places of the front that some key has, and what the back holds besides."""
    places = front * (1 - math.exp(-keys / front))
    return round(places + back - places * back / keys)


@pytest.mark.parametrize(("front", "back"), [(16, 1000), (100, 400), (32, 64), (400, 0), (64, 600)])
def test_uniform_keys_leave_as_the_formula_says(front: int, back: int) -> None:
    """N (1 - C / U) + C for many pairs: those that fill the memory are in it as if it were full from the start."""
    count, keys = 60_000, 1_000
    drawn = random.Random(front).choices(range(keys), k=count)
    expected = pairs_out(count, keys, back if back >= keys else effective(front, back, keys))
    assert pairs_that_leave(drawn, front, back) == pytest.approx(expected, rel=0.03)


def test_every_key_leaves_once_where_the_large_memory_holds_all() -> None:
    drawn = random.Random(1).choices(range(300), k=9_000)
    assert pairs_that_leave(drawn, 8, 300) == pairs_out(9_000, 300, 300) == 300


@pytest.mark.parametrize("exponent", [0.6, 1.0, 1.3])
def test_zipf_keys_leave_as_their_probabilities_say(exponent: float) -> None:
    """The front has the key that met its place last, the back those that were first to be evicted; by probabilities."""
    count, keys, front, back = 20_000, 1_000, 64, 200
    weights = [1 / (rank + 1) ** exponent for rank in range(keys)]
    total = sum(weights)
    drawn = random.Random(3).choices(range(keys), weights=weights, k=count)
    share = [each / total for each in weights]
    hit = [each / (each + (1 - each) / front) for each in share]

    def held(time: float) -> float:
        return sum(1 - math.exp(-each * time) for each in share)

    low, high = 0.0, 1e9
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if held(middle) < back else (low, middle)
    inside = [1 - math.exp(-each * low) for each in share]
    passed_on = sum(p * (1 - h) * (1 - b) for p, h, b in zip(share, hit, inside, strict=True))
    measured = pairs_that_leave(drawn, front, back)
    assert measured == pytest.approx(count * passed_on + back, rel=0.12)
    # Far fewer than with uniform keys, for which the memories are the same.
    assert measured < pairs_out(count, keys, effective(front, back, keys))


def throughput_gb_per_s(rate_gb_per_s: float, children: int) -> float:
    run = simulate_all_reduce(
        workers=children,
        protocol="netagg",
        elements=256 * 600,
        slots=128,
        window=64,
        gb_per_s=1.0,
        latency_us=1,
        overhead_bytes=0,
        timeout_ms=10,
        settings={"rate": rate_gb_per_s * 1e9},
    )
    assert (run.complete, run.wrong) == (True, 0)
    return run.algbw_gb_per_s


def test_a_box_is_the_bottleneck_below_the_sum_of_its_links() -> None:
    """min(B, R / m): the knee of the model lies at R = m B."""
    children, payload = 4, 1024 / 1052
    knee = float(box_knee_gb_per_s(children, Fraction(1)))
    for rate in (0.25 * knee, 0.5 * knee, 0.8 * knee):
        assert throughput_gb_per_s(rate, children) == pytest.approx(payload * rate / children, rel=0.05)
    assert throughput_gb_per_s(2 * knee, children) == pytest.approx(payload, rel=0.05)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_tree_of_switches_sends_one_stream_up(protocol: str) -> None:
    settings = {"lanes": 64.0, "back": 1024.0} if protocol == "switchagg" else {}
    run = simulate_all_reduce(
        workers=8,
        protocol=protocol,
        tree=[4, 4],
        elements=64 * 500,
        slots=128,
        values=64,
        timeout_ms=50,
        settings=settings,
    )
    assert run.wrong == 0
    packets = 500
    # Contributions of 8 workers and 2 switches, and acknowledgements of results on as many links.
    assert 10 * packets <= run.up.packets <= 20 * packets + 40
