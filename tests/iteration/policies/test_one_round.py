"""Times of policies against an iteration by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.catalogue import policy_named
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from iteration.policies import one_round
from iteration.policies.workloads import seconds


def chain(draw: random.Random) -> LayerWorkload:
    """With times that are sums of powers of two, so that ties are ties; passes take some time, as of those that take
    none it is open whether the network chooses before."""
    layers = draw.randint(1, 8)
    return LayerWorkload(
        forward=tuple(draw.choice([0, 0.25, 1, 2]) for _ in range(layers)),
        backward=tuple(draw.choice([0.5, 0.75, 1, 2]) for _ in range(layers)),
        bytes=tuple(draw.choice([0, 0.125, 0.5, 1, 2.5, 5]) for _ in range(layers)),
        bytes_per_second=draw.choice([0.5, 1, 2]),
        message_seconds=draw.choice([0, 0.0625, 1]),
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
