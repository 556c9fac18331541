"""Breadth-first pipelines: what stays exposed, and how often sharded weights cross the network."""

from __future__ import annotations

import pytest

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.orders import breadth_first, interleaved, one_f_one_b, zero_bubble
from coppice.iteration.policies.pipelined.breadth_first import sharded_traffic
from coppice.iteration.predicted import predict


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("chunks", [2, 3, 4])
def test_depth_first_gathers_once_a_round(devices: int, rounds: int, chunks: int) -> None:
    micro_batches = devices * rounds
    breadth = sharded_traffic(breadth_first(devices, micro_batches, chunks))
    depth = sharded_traffic(interleaved(devices, micro_batches, chunks))
    for one, other in zip(breadth, depth, strict=True):
        assert (one.forward_gathers, one.backward_gathers, one.reductions) == (1, 1, 1)
        assert other.times * devices == one.times * micro_batches


def test_a_device_with_one_stage_keeps_its_weights() -> None:
    assert {each.times for each in sharded_traffic(one_f_one_b(4, 8))} == {3}


def test_parts_of_passes_say_nothing_of_weights() -> None:
    with pytest.raises(
        InputError, match="expected whole backward passes of an order whose weights are sharded"
    ):
        sharded_traffic(zero_bubble(2, 4))


@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
@pytest.mark.parametrize("gradients", [0, 2, 8, 16])
def test_the_last_chunk_stays_exposed(chunks: int, gradients: float) -> None:
    devices, micro_batches = 4, 8
    work = LayerWorkload(
        forward=(0.125,) * 32, backward=(0.25,) * 32, bytes=(gradients / 8,) * 32, bytes_per_second=1.0
    )
    plain = 3 * micro_batches + 3 * (devices - 1) / chunks
    found = predict(work, "breadth-first", {"chunks": chunks}).iteration_seconds
    # A chunk's sum takes no longer than its backward passes, which are 2 of 3 parts.
    assert gradients / chunks <= 2 * micro_batches / chunks
    assert found == pytest.approx(plain + gradients / chunks, abs=1e-8)
