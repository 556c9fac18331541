"""Poseidon: volumes of server and factors, and the number of samples at which they are equal."""

from __future__ import annotations

import random

import pytest

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.catalogue import policy_named
from coppice.iteration.policies.data_parallel.poseidon import (
    Poseidon,
    adam_elements,
    factor_elements,
    factor_samples,
    server_elements,
)
from iteration.policies.workloads import seconds


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
    return LayerWorkload(
        forward=(1, 1),
        backward=(2, 2),
        bytes=(4 * 5000.0, 4 * (1000 * 500 + 500)),
        matrices=(None, (1000, 500)),
        samples=samples,
        bytes_per_second=1e5,
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
