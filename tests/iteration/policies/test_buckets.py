"""Buckets against the reducer of PyTorch itself."""

from __future__ import annotations

import random

import pytest

from coppice.iteration.policies.catalogue import policy_named
from coppice.iteration.policies.data_parallel.ddp import assign_buckets
from iteration.policies.workloads import alike

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
