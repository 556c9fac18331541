"""What holds of every policy of gradients on random workloads."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.catalogue import policies_of, policy_named
from coppice.iteration.policies.data_parallel.ddp import assign_buckets
from coppice.iteration.policies.data_parallel.gradientflow import norm_bytes
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.data_parallel.tuning import policy_seconds
from coppice.iteration.tasks import run_tasks
from iteration.policies.workloads import alike, random_workload, seconds

NAMES = list(policies_of(DataParallelPolicy))

IN_TURN = ("serial", "wfbp", "ddp", "jia", "gradientflow", "dear", "tictac", "poseidon")
"""What these send goes in an order that does not depend on its times, so a quicker network never makes them slower;
with priorities and messages that are not interrupted it may (Graham, 1969)."""


def settings_of(name: str, work: LayerWorkload, draw: random.Random) -> dict[str, Any]:
    """Options that suit the sizes of a workload."""
    largest = max(work.bytes) or 1.0
    size = draw.choice([0.2, 0.5, 1.0, 3.0]) * largest
    choices: dict[str, list[dict[str, Any]]] = {
        "ddp": [
            {"bucket_bytes": size, "first_bytes": size / 2},
            {"first_iteration": True},
            {"bucket_bytes": size, "first_bytes": size / 2, "find_unused_parameters": True},
        ],
        "jia": [{"theta_bytes": size}],
        "mg-wfbp": [{}, {"small_elements": 0}],
        "gradientflow": [{}, {"theta_bytes": size}, {"theta_bytes": size, "ratio": 0.3, "chunk_elements": 1}],
        "priority": [{}, {"partition_bytes": size}],
        "p3": [
            {"slice_elements": max(1, int(size))},
            {"slice_elements": max(1, int(size)), "transport": "all_reduce"},
        ],
        "tictac": [{"order": order} for order in ("tac", "tic", "backward")],
        "bytescheduler": [
            {"partition_bytes": size, "credit_bytes": size * room} for room in (0.5, 1.0, 2.5, 10.0)
        ],
        "pace": [{"quantum_bytes": size, "fusion": fusion} for fusion in ("none", "end")]
        + [{"update_scope": "barrier", "fusion": "end"}],
        "dear": [{"threshold_bytes": size}, {"threshold_bytes": 0, "ahead": 1}, {"threshold_bytes": 0}],
        "ooo": [{"k": draw.randint(0, work.layers)}, {"k": work.layers, "partition_bytes": size}],
    }
    return draw.choice(choices.get(name, [{}]))


def check_messages(name: str, policy: DataParallelPolicy, work: LayerWorkload) -> None:
    """Every gradient is sent once, as the policy counts, and messages speak of what there is."""
    messages = policy.messages(work)
    assert messages == policy.messages(work)
    again = policy_named(name)(policy.settings)
    assert messages == again.messages(work)  # type: ignore[attr-defined]
    sent: dict[str, float] = defaultdict(float)
    for number, message in enumerate(messages):
        sent[message.collective] += message.size_bytes
        assert all(before != number for before in message.after)
        assert message.needed_by or message.collective in ("push", "reduce_scatter")
        assert set(message.gradients) <= set(range(work.layers))
    whole = pytest.approx(sum(work.bytes), rel=1e-9, abs=1e-9)
    ratio = policy.settings.ratio if name == "gradientflow" else 1.0
    if ratio < 1:
        norms = norm_bytes(work, policy.settings.chunk_elements)
        assert sent.get("all_reduce", 0.0) in (pytest.approx(sum(work.bytes) * ratio + norms, rel=1e-9), 0.0)
    elif set(sent) & {"push", "pull"}:
        assert sent["push"] == whole
        assert sent["pull"] == whole
    elif set(sent) & {"reduce_scatter", "all_gather"}:
        assert sent["reduce_scatter"] == whole
        assert sent["all_gather"] == whole
    else:
        assert sent.get("all_reduce", 0.0) == whole
    reached = set().union(*(message.gradients for message in messages)) if messages else set()
    assert reached >= {layer for layer in range(work.layers) if work.bytes[layer]}
    parts: dict[tuple[int, ...], float] = defaultdict(float)
    for message in messages:
        if message.collective in ("all_reduce", "push") and ratio == 1:
            assert message.offset_bytes == pytest.approx(parts[message.gradients])
            parts[message.gradients] += message.size_bytes


def check_times(policy: DataParallelPolicy, work: LayerWorkload) -> None:
    """Nothing starts before what it needs has ended."""
    made = policy.iterations(work, 3)
    times = run_tasks(made.graph)
    for task in range(len(made.graph)):
        for before in made.graph.predecessors(task):
            assert times.start[task] >= times.finish[before]
    layers = {name: task for task, name in enumerate(made.graph.names)}
    words = [f" block {layer}" if work.layers > 1 else "" for layer in range(work.layers)]
    for message in policy.messages(work):
        for iteration in range(2):
            sent = layers[f"{message.name} of {iteration}"]
            for layer in message.needed_by:
                assert times.start[layers[f"0F0{words[layer]} of {iteration + 1}"]] >= times.finish[sent]
            for layer in message.layers:
                whole, weights = (
                    layers.get(f"0B0{words[layer]}{half} of {iteration}") for half in ("", " weights")
                )
                backward = whole if weights is None else weights
                assert backward is not None
                assert times.start[sent] >= times.finish[backward]


def check(cases: int, seed: int) -> None:
    draw = random.Random(seed)
    for case in range(cases):
        name = NAMES[case % len(NAMES)]
        work = random_workload(draw, graph=draw.random() < 0.3)
        settings = settings_of(name, work, draw)
        policy = policy_named(name).of(**settings)
        assert isinstance(policy, DataParallelPolicy)
        check_messages(name, policy, work)
        check_times(policy, work)
        found = seconds(work, name, **settings)
        assert found == seconds(work, name, **settings)
        least = policy.lower_bound_seconds(work)
        assert found >= least - 1e-7 * max(1.0, least), (name, settings, work)
        costs = policy.costs(work)
        assert costs.messages == len(policy.messages(work))
        assert min(costs.bytes, costs.extra_memory_bytes) >= 0
        free = replace(work, bytes_per_second=1e12, message_seconds=0.0, round_trip_seconds=0.0)
        assert seconds(free, name, **settings) == pytest.approx(work.compute_seconds, abs=1e-6)
        if name == "poseidon":
            assert found <= seconds(work, "wfbp") + 1e-7
        if name in IN_TURN and settings.get("theta_bytes", name != "gradientflow"):
            quicker = replace(work, bytes_per_second=work.bytes_per_second * draw.choice([1.1, 2, 5]))
            assert seconds(quicker, name, **settings) <= found + 1e-7, (name, settings, work)


def test_random_workloads() -> None:
    check(208, 21)


@pytest.mark.slow
def test_many_random_workloads() -> None:
    check(5000, 22)


@pytest.mark.parametrize("name", NAMES)
def test_tuned_settings_are_never_worse(name: str) -> None:
    draw = random.Random(24)
    for _ in range(4):
        work = random_workload(draw, most=5)
        settings = settings_of(name, work, draw)
        policy = policy_named(name).of(**settings)
        tuned = policy.tune(work)
        assert set(tuned) == set(policy.options.__struct_fields__)
        assert policy_seconds(policy, work, tuned) <= seconds(work, name, **settings) + 1e-9


def test_priorities_may_lose_by_a_quicker_network() -> None:
    """That messages cannot be interrupted: the reason why priorities are not among those that never lose."""
    draw = random.Random(23)
    lost = 0
    for _ in range(400):
        work = random_workload(draw, most=5)
        quicker = replace(work, bytes_per_second=work.bytes_per_second * 1.1)
        lost += seconds(quicker, "priority") > seconds(work, "priority") + 1e-7
    assert lost


def test_nothing_to_send_takes_no_time() -> None:
    work = LayerWorkload(forward=(1, 2), backward=(2, 4), bytes=(0, 0), bytes_per_second=1, message_seconds=1)
    for name in NAMES:
        assert seconds(work, name) == 9
        assert policy_named(name).of().tune(work) is not None


def test_one_layer_leaves_nothing_to_choose() -> None:
    work = LayerWorkload(forward=(1,), backward=(2,), bytes=(4,), bytes_per_second=2, workers=1)
    for name in NAMES:
        pushes = name in ("p3", "tictac")
        assert seconds(work, name) == pytest.approx(7 if pushes else 5, abs=1e-7)


PROGRAM = """
import random
from hashlib import sha256
from coppice.iteration.policies.catalogue import policy_named
from iteration.policies.test_random_workloads import NAMES, settings_of
from iteration.policies.workloads import random_workload
draw = random.Random(25)
found = sha256()
for name in NAMES * 3:
    work = random_workload(draw, graph=True)
    policy = policy_named(name).of(**settings_of(name, work, draw))
    found.update(repr([*policy.messages(work), *policy.backward(work)]).encode())
    found.update(repr(sorted(policy.tune(work).items())).encode())
print(found.hexdigest())
"""


def test_every_rank_decides_alike() -> None:
    """In processes whose hashes differ."""
    tests = str(Path(__file__).resolve().parents[2])
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": tests},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


SIZES = {"float16": 2, "float32": 4, "float64": 8}


def random_tensors(draw: random.Random) -> tuple[list[int], list[str]]:
    count = draw.randint(1, 25)
    dtypes = [draw.choice(list(SIZES)) for _ in range(count)]
    return [draw.choice([1, 10, 300, 1000, 5000]) for _ in range(count)], dtypes


def test_buckets_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    from torch.distributed import _compute_bucket_assignment_by_size as assign

    draw = random.Random(4)
    for _ in range(300):
        counts, dtypes = random_tensors(draw)
        tensors = [
            torch.empty(count, dtype=getattr(torch, dtype))
            for count, dtype in zip(counts, dtypes, strict=True)
        ]
        sizes = [count * SIZES[dtype] for count, dtype in zip(counts, dtypes, strict=True)]
        caps = [draw.choice([100, 4000]), draw.choice([4000, 20000])][draw.randint(0, 1) :]
        found = assign_buckets(sizes, dtypes, caps, in_order=False)
        assert found == assign(tensors, caps, [False] * len(tensors))[0]
        # In the order in which gradients were ready: buckets as they are closed; the open ones at the end in any order.
        ready = list(range(len(tensors)))
        draw.shuffle(ready)
        turned = assign_buckets([sizes[k] for k in ready], [dtypes[k] for k in ready], caps, in_order=True)
        ours = [[ready[place] for place in bucket] for bucket in turned]
        theirs = assign([tensors[k] for k in ready], caps, [False] * len(ready), ready)[0]
        closed = len(ours) - len(set(dtypes))
        assert ours[: max(0, closed)] == theirs[: max(0, closed)]
        assert sorted(ours) == sorted(theirs)


def groups_of(work: object, **settings: object) -> list[list[int]]:
    return [list(group) for group in policy_named("ddp").of(**settings).groups(work)]  # type: ignore[attr-defined]


def test_the_three_ways_of_building_buckets() -> None:
    mib = 2**20
    work = alike(1, 1, (0.6 * mib,) * 6)
    caps = {"first_bytes": mib, "bucket_bytes": 1.5 * mib}
    assert groups_of(work, **caps) == [[5, 4], [3, 2, 1], [0]]
    assert groups_of(work, first_iteration=True, **caps) == [[0, 1, 2, 3, 4, 5]]
    assert groups_of(work, find_unused_parameters=True, **caps) == [[5], [2, 3, 4], [0, 1]]


def test_a_bucket_holds_one_type() -> None:
    work = alike(1, 1, (1.0,) * 6, dtypes=("half", "float") * 3)
    assert groups_of(work, first_bytes=2, bucket_bytes=2) == [[5, 3], [4, 2], [1], [0]]
