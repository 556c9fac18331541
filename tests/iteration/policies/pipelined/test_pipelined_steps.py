"""Policies of pipelines on steps of jobs: the same exact times as on layers."""

from __future__ import annotations

import pytest

from coppice.iteration.pipeline.graph import StageTimes
from coppice.iteration.pipeline.order import PipelineOrder
from coppice.iteration.pipeline.orders import breadth_first, gpipe
from coppice.iteration.policies.pipelined.steps import fast_forward_order, fold3d_messages, stage_times
from coppice.iteration.step.block import GroupExchange, LayerBlock, Step
from coppice.iteration.step.overlap import Overlap
from coppice.iteration.step.simulated import order_for, simulate_step


def summed(collective: str, size: float) -> GroupExchange:
    seconds = size if collective == "all_reduce" else size / 2
    return GroupExchange(group="dp", collective=collective, size_bytes=size, seconds=seconds)


def even(gradients: float, chunks: int, devices: int = 4, micro_batches: int = 8) -> Step:
    """Forward pass, gradients of inputs and of weights take 1 s on a device, its gradients so many."""
    block = LayerBlock(
        name="block",
        kind="layer",
        forward=1 / chunks,
        input_gradient=1 / chunks,
        weight_gradient=1 / chunks,
        parameters=gradients / chunks,
    )
    return Step(
        stages=((block,),) * (devices * chunks),
        micro_batches=micro_batches,
        replicas=2,
        gradient_bytes=1.0,
        between_replicas=summed,
    )


@pytest.mark.parametrize(
    ("gradients", "chunks", "expected"),
    [(16, 4, 30.25), (24, 1, 57), (24, 4, 32.25), (24, 8, 28.125), (32, 4, 40.25)],
)
def test_fold3d(gradients: float, chunks: int, expected: float) -> None:
    step, order = even(gradients, chunks), breadth_first(4, 8, chunks)
    found = simulate_step(step, order, overlap="fold3d")
    assert found.seconds == pytest.approx(expected, abs=1e-8)
    assert found.lower_bound_seconds <= found.seconds + 1e-8
    assert sum(each.exchange.size_bytes for each in fold3d_messages(step, order)) == pytest.approx(
        4 * gradients
    )
    unsplit = Overlap(name="unsplit", messages=fold3d_messages(step, order, share=0.0), steps_at_once=False)
    whole = simulate_step(step, order, overlap=unsplit)
    assert found.seconds <= whole.seconds + 1e-8


@pytest.mark.parametrize(("devices", "plain", "fast"), [(4, 21, 18), (8, 45, 38)])
def test_fast_forward(devices: int, plain: float, fast: float) -> None:
    step, order = even(0, 1, devices, devices), gpipe(devices, devices)
    _, named = order_for("fast-forward", devices, devices, 1)
    for given, expected in ((order, plain), (fast_forward_order(step, order), fast), (named, fast)):
        assert isinstance(given, PipelineOrder)
        assert simulate_step(step, given).seconds == pytest.approx(expected, abs=1e-8)


def test_times_of_stages_are_those_of_passes() -> None:
    assert stage_times(even(0, 2, devices=1)) == StageTimes(
        forward=[0.5, 0.5], backward=[1.0, 1.0], weight=[0.5, 0.5]
    )
