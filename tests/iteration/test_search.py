"""The search of layouts: complete on a small cluster, ordered, and with a reason where nothing fits."""

from __future__ import annotations

import itertools

import pytest

from coppice.errors import InputError
from coppice.iteration.cluster import cluster_of
from coppice.iteration.estimate import estimate
from coppice.iteration.memory import memory_of
from coppice.iteration.models import MODELS
from coppice.iteration.search import search_layouts, simulated_layouts
from coppice.iteration.transformer import Layout, Recompute, Shard
from coppice.topology.presets import preset

CLUSTER = cluster_of(preset("dgx-a100", boxes=2))
MODEL = MODELS["gpt-7.5b"]


def test_nothing_that_fits_is_faster() -> None:
    found = search_layouts(MODEL, CLUSTER, 16, 32)
    times = [each.estimate.seconds for each in found.found]
    assert times == sorted(times)
    assert all(each.memory.total <= 80e9 for each in found.found)
    degrees = [1, 2, 4, 8, 16]
    for tensor, pipeline, micro_batch in itertools.product(degrees[:4], degrees[:3], degrees[:4]):
        data = 16 // (tensor * pipeline)
        if tensor * pipeline * data != 16 or 32 % (micro_batch * data):
            continue
        for recompute, shard in itertools.product(Recompute, (Shard.NONE, Shard.ZERO1)):
            layout = Layout(
                tensor=tensor,
                pipeline=pipeline,
                data=data,
                micro_batch=micro_batch,
                global_batch=32,
                recompute=recompute,
                shard=shard,
                sequence_parallel=tensor > 1,
                fused_attention=True,
            )
            if memory_of(MODEL, layout).total <= 80e9:
                assert estimate(MODEL, layout, CLUSTER).seconds >= times[0] - 1e-9


def test_where_nothing_fits() -> None:
    with pytest.raises(
        InputError, match=r"fits 80 GB, found .* GB at least \(tp 8, pp 2, dp 1\): take more GPUs"
    ):
        search_layouts(MODELS["gpt-1t"], CLUSTER, 16, 32)
    with pytest.raises(InputError, match="a batch of 7, found none"):
        search_layouts(MODELS["gpt-1t"], CLUSTER, 24, 7)


def test_the_best_are_simulated() -> None:
    found = search_layouts(MODEL, CLUSTER, 16, 32).found[:8]
    best = simulated_layouts(MODEL, CLUSTER, found)
    times = [each.seconds for each in best]
    assert times == sorted(times)
    assert len(times) == 8
    for each in best:
        assert each.seconds == pytest.approx(each.found.estimate.seconds, rel=0.03)
        assert sum(each.parts.values()) == pytest.approx(each.seconds)
        assert each.why.endswith("%")
