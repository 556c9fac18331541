"""Exact times of the small workloads of the literature under every policy, and closed forms on grids."""

from __future__ import annotations

import random
from dataclasses import replace
from math import ceil, sqrt
from typing import Any

import pytest

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.catalogue import policy_named
from coppice.iteration.policies.data_parallel.bytescheduler import optimal_partition_bytes
from coppice.iteration.policies.data_parallel.gradientflow import optimal_theta_bytes
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.data_parallel.poseidon import (
    Poseidon,
    factor_elements,
    server_elements,
)
from iteration.policies import one_round
from iteration.policies.workloads import MANY, SIX, THREE, VGG_LIKE, alike, seconds, ten, workload_of
from reference.policies import adam_elements, factor_samples


def halves(sizes: tuple[float, ...]) -> LayerWorkload:
    """Passes of a second each; the gradient of the input of layer 0 is not needed."""
    count = len(sizes)
    return workload_of((1,) * count, (1, *(2,) * (count - 1)), sizes, weight_backward=(1,) * count)


@pytest.mark.parametrize(
    ("work", "policy", "settings", "expected"),
    [
        (THREE, "priority", {}, 16),
        (THREE, "priority", {"partition_bytes": 1}, 15),
        *((ten(s), "priority", {}, t) for s, t in ((1, 31), (2, 32), (3, 35), (4, 44), (6, 64))),
        *(
            (ten(s), "priority", {"partition_bytes": 0.5}, t)
            for s, t in ((1, 31), (2, 32), (3, 33), (4, 43), (6, 63))
        ),
        (VGG_LIKE, "priority", {}, 37.1),
        (VGG_LIKE, "priority", {"partition_bytes": 1}, 30.7),
        (replace(VGG_LIKE, element_bytes=1), "p3", {"slice_elements": 1, "transport": "all_reduce"}, 30.7),
        (THREE, "dear", {"threshold_bytes": 0}, 15),
        *(
            (ten(s), "dear", {"threshold_bytes": 0}, t)
            for s, t in ((1, 31), (2, 32), (3, 37.5), (4, 43), (6, 63))
        ),
        (VGG_LIKE, "dear", {"threshold_bytes": 0}, 33.9),
        # The all-gather of 10 s begins with the forward pass of layer 6, at 26.05 s after the backward pass began.
        (VGG_LIKE, "dear", {"threshold_bytes": 0, "ahead": 1}, 39.6),
        *(
            (MANY, "gradientflow", {"theta_bytes": 40 / count}, t)
            for count, t in ((1, 70.05), (10, 52.5), (20, 52.0), (25, 52.05), (200, 60.1))
        ),
        (MANY, "gradientflow", {}, 52.0),
        (SIX, "mg-wfbp", {"small_elements": 0}, 15.1),
        (SIX, "jia", {"theta_bytes": 0}, 16.5),
        (SIX, "pace", {"fusion": "end", "update_scope": "barrier"}, 14.7),
        (SIX, "pace", {"fusion": "none", "update_scope": "barrier"}, 16.5),
        *(
            (ten(3, 0.05), policy, {"partition_bytes": size, **more}, t)
            for size, t in ((0.1, 48), (0.5, 36), (1, 34.5), (1.5, 35), (3, 35.5))
            for policy, more in (("priority", {}), ("bytescheduler", {"credit_bytes": size}))
        ),
        (THREE, "bytescheduler", {"partition_bytes": 1, "credit_bytes": 1}, 15),
        (ten(3), "bytescheduler", {"partition_bytes": 0.5, "credit_bytes": 0.5}, 33),
        (ten(3), "bytescheduler", {"partition_bytes": 3, "credit_bytes": 3}, 35),
        (
            ten(3),
            "bytescheduler",
            {"partition_bytes": 3, "credit_bytes": 1000},
            42,
        ),  # first come, first served
        *((halves((1.5,) * 12), "ooo", {"k": k}, t) for k, t in ((0, 37), (2, 36), (6, 35))),
        *((halves((2.5,) * 12), "ooo", {"k": k}, t) for k, t in ((0, 39.5), (1, 39.5), (3, 39.5), (12, 43))),
        *((halves((6, 5, 4, 3, *(0.5,) * 8)), "ooo", {"k": k}, t) for k, t in ((0, 47), (12, 39))),
    ],
)
def test_exact_times(work: LayerWorkload, policy: str, settings: dict[str, Any], expected: float) -> None:
    assert seconds(work, policy, **settings) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("size", [8, 4, 2, 1, 0.5])
def test_a_tensor_alone_takes_its_time_and_that_of_a_slice(size: float) -> None:
    alone = alike(0, 0, (8,), element_bytes=size)
    assert seconds(alone, "p3", slice_elements=1) == 8 + size


@pytest.mark.parametrize("count", [1, 2, 4, 5, 8, 10, 20, 25, 40, 50, 100, 200])
@pytest.mark.parametrize(("network", "message"), [(40, 0.05), (60, 0.2), (30, 0.4)])
def test_buckets_alike_take_what_the_closed_form_says(count: int, network: float, message: float) -> None:
    work = alike(0.05, 0.1, (network / 200,) * 200, message)
    bucket = network / count + message
    found = seconds(work, "gradientflow", theta_bytes=network / count)
    if bucket >= 20 / count:  # the network never waits for gradients
        assert found == pytest.approx(10 + 20 / count + network + count * message, abs=1e-7)
    else:
        assert found == pytest.approx(10 + 20 + bucket, abs=1e-7)


@pytest.mark.parametrize("message", [0.05, 0.2, 0.45, 0.8])
def test_the_best_theta_is_that_of_the_closed_form(message: float) -> None:
    work = alike(0.05, 0.1, (0.4,) * 200, message)
    assert optimal_theta_bytes(work) == pytest.approx(80 / sqrt(20 / message))
    best = min(seconds(work, "gradientflow", theta_bytes=80 / n) for n in (1, 2, 4, 5, 8, 10, 20, 25, 40, 50))
    assert seconds(work, "gradientflow") <= best * 1.005


@pytest.mark.parametrize("ratio", [1.0, 0.5, 0.25, 0.1])
def test_sparse_traffic(ratio: float) -> None:
    work = alike(0.05, 0.1, (4000.0,) * 20)
    found = seconds(work, "gradientflow", theta_bytes=1e9, ratio=ratio, chunk_elements=100)
    norms = 0 if ratio == 1 else 4 * 20 * 1000 / 100
    assert found == pytest.approx(3 + 80000 * ratio + max(0, norms - 0.05 * 19), abs=1e-6)


@pytest.mark.parametrize("size", [0.1, 0.2, 0.25, 0.5, 0.75, 1, 1.5, 3])
@pytest.mark.parametrize("message", [0.01, 0.05, 0.2])
def test_partitions_keep_the_bound_of_bytescheduler(size: float, message: float) -> None:
    work = ten(3, message)
    found = seconds(work, "bytescheduler", partition_bytes=size, credit_bytes=size)
    parts = 10 * ceil(3 / size - 1e-9)
    assert found <= 33 + parts * message + size + message + 1e-8
    least = optimal_partition_bytes(work)
    assert 30 * message / least + least <= 30 * message / size + size + 1e-9


@pytest.mark.parametrize("part", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("room", [1, 2, 3, 5])
@pytest.mark.parametrize("trip", [0.0, 0.5, 2.0, 6.0])
def test_credit_limits_the_throughput(part: float, room: int, trip: float) -> None:
    parts = 240
    work = alike(0, 0, (part * parts,), round_trip_seconds=trip)
    found = seconds(work, "bytescheduler", partition_bytes=part, credit_bytes=part * room)
    bound = part * parts / min(1.0, room * part / (part + trip))
    assert found == pytest.approx(bound, rel=(part + trip) / (part * parts) * 2)
    assert found <= bound + 1e-7


def test_what_is_in_flight_is_not_overtaken() -> None:
    work = LayerWorkload(
        forward=(1, 1), backward=(1, 1), bytes=(1, 40), bytes_per_second=1, round_trip_seconds=1
    )
    waits = [
        seconds(work, "bytescheduler", partition_bytes=1, credit_bytes=credit) for credit in (2, 4, 8, 16, 64)
    ]
    # Layer 0 waits for what was admitted before it; the network is the bottleneck and never idles.
    assert waits == sorted(waits)
    assert waits[0] < waits[-1]


@pytest.mark.parametrize("network", [0.5, 1, 2, 3, 4, 5, 6, 8])
def test_halves_of_all_reduces_in_bulk(network: float) -> None:
    layers = 400
    work = alike(1 / layers, 2 / layers, (network / layers,) * layers)
    bulk = max(2, network / 2) + max(1, network / 2)
    assert seconds(work, "dear", threshold_bytes=0) == pytest.approx(bulk, abs=0.03)
    whole = 1 + max(2, network)
    assert seconds(work, "wfbp") == pytest.approx(whole, abs=0.03)


def test_slices_may_be_too_small() -> None:
    work = replace(VGG_LIKE, element_bytes=0.01, message_seconds=0.02)
    times = [seconds(work, "p3", slice_elements=size) for size in (2, 10, 50, 200, 2000)]
    least = times.index(min(times))
    assert 0 < least < len(times) - 1
    assert times[: least + 1] == sorted(times[: least + 1], reverse=True)
    assert times[least:] == sorted(times[least:])


@pytest.mark.parametrize("layers", [3, 10])
def test_parameters_in_the_order_of_tac(layers: int) -> None:
    # Pushes end a second after the backward pass; then layer after layer, each fetched while the one before it runs.
    work = alike(1, 1, (1.0,) * layers)
    assert seconds(work, "tictac") == layers + 1 + layers + 1
    assert seconds(work, "tictac", order="backward") == layers + 1 + layers + layers
    assert policy_named("tictac").of(order="tic").priorities(work) == [0, *range(layers - 1)]  # type: ignore[attr-defined]


def chain(draw: random.Random) -> LayerWorkload:
    """With times that are sums of powers of two, so that ties are ties; passes take some time, as of those that take
    none it is open whether the network chooses before."""
    layers = draw.randint(1, 8)
    return workload_of(
        tuple(draw.choice([0, 0.25, 1, 2]) for _ in range(layers)),
        tuple(draw.choice([0.5, 0.75, 1, 2]) for _ in range(layers)),
        tuple(draw.choice([0, 0.125, 0.5, 1, 2.5, 5]) for _ in range(layers)),
        rate=draw.choice([0.5, 1, 2]),
        message=draw.choice([0, 0.0625, 1]),
    )


def test_priorities() -> None:
    draw = random.Random(31)
    for _ in range(150):
        work = chain(draw)
        most = draw.choice([None, 0.25, 0.5, 1.0, 3.0])
        found = seconds(work, "priority", **({} if most is None else {"partition_bytes": most}))
        assert found == pytest.approx(float(one_round.by_priority(work, most)), abs=1e-9)
        if most is not None:
            whole = replace(work, element_bytes=0.25)
            slices = {"slice_elements": int(most * 4)}
            by_sum = seconds(whole, "p3", transport="all_reduce", **slices)
            assert by_sum == pytest.approx(found, abs=1e-9)
            by_server = float(one_round.by_priority(work, most, servers=True))
            assert seconds(whole, "p3", **slices) == pytest.approx(by_server, abs=1e-9)
            credit = seconds(work, "bytescheduler", partition_bytes=most, credit_bytes=0.1)
            assert credit == pytest.approx(found, abs=1e-9)  # a partition at a time


def test_delayed_gradients_of_weights() -> None:
    draw = random.Random(32)
    for _ in range(150):
        work = chain(draw)
        k = draw.randint(0, work.layers)
        expected = float(one_round.by_priority(work, delayed=k))
        assert seconds(work, "ooo", k=k) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("ahead", [None, 1, 2])
def test_halves(ahead: int | None) -> None:
    draw = random.Random(33)
    for _ in range(100):
        work = chain(draw)
        found = seconds(work, "dear", threshold_bytes=0, ahead=ahead)
        assert found == pytest.approx(float(one_round.in_halves(work, ahead)), abs=1e-9)


@pytest.mark.parametrize("name", ["wfbp", "serial", "ddp", "jia", "mg-wfbp", "gradientflow"])
def test_groups_in_turn(name: str) -> None:
    draw = random.Random(34)
    caps = {
        "ddp": {"bucket_bytes": 3, "first_bytes": 1},
        "jia": {"theta_bytes": 2},
        "mg-wfbp": {"small_elements": 0},
    }
    for _ in range(80):
        work = chain(draw)
        policy = policy_named(name).of(**caps.get(name, {}))
        assert isinstance(policy, DataParallelPolicy)
        if name == "serial":
            layers = [[layer] for layer in range(work.layers)]
            sums = [float(one_round.message(work, one_round.exact(size))) for size in work.bytes if size]
            expected = work.compute_seconds + sum(sums)
            assert len(policy.groups(work)) == len(layers)
        else:
            expected = float(one_round.with_a_barrier(work, policy.groups(work)))
        assert seconds(work, name, **caps.get(name, {})) == pytest.approx(expected, abs=1e-9)


def test_the_layer_of_the_paper() -> None:
    assert factor_samples(25088, 4096, 8, 8) == 880
    server, factors = server_elements(25088, 4096, 8, 8), factor_elements(25088, 4096, 8, 32)
    assert server == pytest.approx(3.597e8, rel=1e-3)
    assert factors == pytest.approx(1.307e7, rel=1e-3)
    assert server / factors == pytest.approx(27.5, abs=0.05)
    assert adam_elements(25088, 4096, 8, 32) == 7 * (25088 * 4096 + 32 * (25088 + 4096))


def test_factors_are_less_up_to_the_threshold() -> None:
    draw = random.Random(1)
    for _ in range(500):
        rows, columns = draw.randint(1, 3000), draw.randint(1, 3000)
        workers, servers = draw.randint(2, 64), draw.randint(1, 64)
        most = factor_samples(rows, columns, workers, servers)
        least = server_elements(rows, columns, workers, servers)
        assert factor_elements(rows, columns, workers, most) <= least * (1 + 1e-12)
        assert factor_elements(rows, columns, workers, most + 1) > least * (1 - 1e-12)
        if workers == servers:
            assert most == 2 * rows * columns // (workers * (rows + columns))


def work(samples: int, workers: int) -> LayerWorkload:
    return workload_of(
        (1, 1),
        (2, 2),
        (4 * 5000.0, 4 * (1000 * 500 + 500)),
        matrices=(None, (1000, 500)),
        samples=samples,
        rate=1e5,
        workers=workers,
    )


@pytest.mark.parametrize("workers", [2, 4, 8, 32])
def test_a_sweep_of_samples_has_its_kink_at_the_threshold(workers: int) -> None:
    most = factor_samples(1000, 500, workers, workers)
    policy = Poseidon.of()
    assert isinstance(policy, Poseidon)
    times = []
    for samples in range(1, 2 * most, max(1, most // 10)):
        case = work(samples, workers)
        assert policy.by_factors(case, 1) == (samples <= most)
        assert not policy.by_factors(case, 0)
        times.append(seconds(case, "poseidon"))
        assert times[-1] <= seconds(case, "wfbp") + 1e-7
        message = policy.messages(case)[0]
        if samples <= most:
            assert message.collective == "factors"
            assert message.size_bytes == 4 * (samples * 1500 + 500)
            volume = factor_elements(1000, 500, workers, samples) / server_elements(
                1000, 500, workers, workers
            )
            assert message.seconds == pytest.approx(4 * (500000 * volume + 500) / 1e5)
    assert times == sorted(times)
    assert times[-1] == seconds(work(1, workers), "wfbp")


def test_factors_grow_with_workers_and_a_server_does_not() -> None:
    sent = [Poseidon.of().costs(work(8, workers)).bytes for workers in (2, 4, 8)]  # type: ignore[attr-defined]
    dense = [2 * (workers - 1) / workers * (20000 + 2000) for workers in (2, 4, 8)]
    factors = [total - rest for total, rest in zip(sent, dense, strict=True)]
    assert factors == pytest.approx([(workers - 1) * 4 * 8 * 1500 for workers in (2, 4, 8)])


def test_fewer_servers_take_longer() -> None:
    case = work(10**6, 8)
    times = [seconds(case, "poseidon", servers=servers) for servers in (8, 4, 2, 1)]
    assert times == sorted(times)
    assert times[0] == seconds(case, "wfbp") < times[-1]
    assert policy_named("poseidon").of(servers=1).lower_bound_seconds(case) <= times[-1]


def test_a_worker_alone_sends_nothing_as_factors() -> None:
    assert factor_samples(10, 10, 1, 1) == 0
    assert seconds(work(1, 1), "poseidon") == seconds(work(1, 1), "wfbp")
