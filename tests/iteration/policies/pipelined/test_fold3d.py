"""Fold3D: exact times, the published share, a plain recursion for one device, and bounds on random pipelines."""

from __future__ import annotations

import random
import re

import pytest

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.order import PipelineOrder
from coppice.iteration.pipeline.orders import breadth_first, gpipe, interleaved, one_f_one_b, zero_bubble
from coppice.iteration.pipeline.stages import StageTimes
from coppice.iteration.policies.pipelined.breadth_first import sharded_traffic
from coppice.iteration.policies.pipelined.fold3d import Fold3D, forward_share
from coppice.iteration.policies.step_plans import fast_forward_order, fold3d_messages, plan_named, stage_times
from coppice.iteration.predicted import predict
from coppice.iteration.step.plan import GroupExchange, LayerBlock, Step, StepPlan
from coppice.iteration.step.simulated import order_for, simulate_step
from coppice.iteration.tasks import run_tasks
from iteration.policies.workloads import workload_of


def pipe(gradients: float, layers: int = 32) -> LayerWorkload:
    """Four devices of forward 1 and backward 2 a micro-batch, whose gradients take so long on a device."""
    return workload_of((4 / layers,) * layers, (8 / layers,) * layers, (gradients * 4 / layers,) * layers)


@pytest.mark.parametrize(
    ("gradients", "chunks", "plain", "split"),
    [
        (16, 4, 30.25, 30.25),
        (24, 1, 57, 57),
        (24, 4, 38.25, 32.25),
        (24, 8, 35.125, 28.125),
        (32, 4, 46.25, 40.25),
    ],
)
def test_exact_times(gradients: float, chunks: int, plain: float, split: float) -> None:
    for policy, expected in (("breadth-first", plain), ("fold3d", split)):
        found = predict(pipe(gradients), policy, {"chunks": chunks})
        assert found.iteration_seconds == pytest.approx(expected, abs=1e-8)
        assert found.lower_bound_seconds <= found.iteration_seconds + 1e-8


@pytest.mark.parametrize("gradients", [8, 16, 24, 32, 64])
def test_more_chunks_never_take_longer(gradients: float) -> None:
    times = [predict(pipe(gradients), "fold3d", {"chunks": v}).iteration_seconds for v in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)


def test_the_published_share() -> None:
    assert forward_share(0.5) == 1 / 3
    assert forward_share(0.5, recompute=True) == 0.25
    assert Fold3D.of().share(pipe(1)) == 1 / 3  # type: ignore[attr-defined]
    again = LayerWorkload(forward=(1,) * 4, backward=(3,) * 4, bytes=(1,) * 4, bytes_per_second=1.0)
    assert Fold3D.of(recompute=True).share(again) == 0.25  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="found `ratio=-1"):
        forward_share(-1.0)
    with pytest.raises(InputError, match=r"<= 1.0.*\$\.share"):
        predict(pipe(1), "fold3d", {"share": 2})


def test_nothing_left_to_the_forward_pass_waits_for_itself_alone() -> None:
    whole = predict(pipe(24), "fold3d", {"chunks": 4, "share": 0}).iteration_seconds
    split = predict(pipe(24), "fold3d", {"chunks": 4}).iteration_seconds
    assert whole == pytest.approx(38.25, abs=1e-8)
    assert split < whole


def one_device(work: LayerWorkload, micro_batches: int, share: float) -> float:
    """Iterations of one device whose layers are chunks, followed instant by instant of the network and the device."""
    layers = work.layers
    sent = [size / work.bytes_per_second for size in work.bytes]
    alpha = work.message_seconds
    now = net = 0.0
    late: dict[int, float] = {}  # seconds of the message that the forward pass starts
    whole = [0.0] * layers  # end of the message of the backward pass
    begins = []
    for _ in range(12):
        for layer in range(layers):
            end = 0.0
            if late.get(layer):
                end = late[layer]
            now = max(now, end, whole[layer])
            if not layer:
                begins.append(now)
            later = share * sent[layer + 1] if layer + 1 < layers else 0.0
            late.pop(layer, None)
            if later and len(begins) > 1:
                net = max(net, now) + alpha + later
                late[layer + 1] = net
            now += micro_batches * work.forward[layer]
        for layer in reversed(range(layers)):
            now += micro_batches * work.backward[layer]
            at_once = sent[layer] - (share * sent[layer] if layer else 0.0)
            if at_once:
                net = max(net, now) + alpha + at_once
                whole[layer] = net
            else:
                whole[layer] = now
    return begins[-1] - begins[-2]


def test_one_device_follows_the_recursion() -> None:
    draw = random.Random(10)
    for _ in range(200):
        layers, micro_batches = draw.randint(1, 6), draw.randint(1, 4)
        work = workload_of(
            tuple(draw.choice([0.25, 1, 2]) for _ in range(layers)),
            tuple(draw.choice([0.5, 1, 3]) for _ in range(layers)),
            tuple(draw.choice([0, 1, 4, 12]) for _ in range(layers)),
            message=draw.choice([0, 0.125]),
        )
        share = draw.choice([0, 0.25, 0.5, 1])
        options = {"stages": 1, "micro_batches": micro_batches, "chunks": layers, "share": share}
        found = predict(work, "fold3d", options)
        assert found.iteration_seconds == pytest.approx(one_device(work, micro_batches, share), abs=1e-8)


def some_pipeline(draw: random.Random) -> tuple[LayerWorkload, dict[str, float]]:
    devices, chunks = draw.randint(1, 4), draw.randint(1, 3)
    layers = devices * chunks + draw.randint(0, 3)
    work = workload_of(
        tuple(draw.choice([0, 0.5, 1, 2]) for _ in range(layers)),
        tuple(draw.choice([0, 1, 2, 3.5]) for _ in range(layers)),
        tuple(draw.choice([0, 1, 4, 20]) for _ in range(layers)),
        rate=draw.choice([0.5, 1, 4]),
        message=draw.choice([0, 0.25]),
    )
    options = {
        "stages": devices,
        "chunks": chunks,
        "micro_batches": draw.randint(1, 6),
        "transfer_seconds": draw.choice([0, 0.25]),
    }
    return work, options


def check_random(seed: int, cases: int) -> None:
    draw = random.Random(seed)
    for _ in range(cases):
        work, options = some_pipeline(draw)
        share = draw.choice([0, 1 / 3, 1])
        found = predict(work, "fold3d", options | {"share": share})
        assert found.iteration_seconds >= found.lower_bound_seconds - 1e-8
        assert found.iteration_seconds >= found.compute_seconds - 1e-8
        assert found == predict(work, "fold3d", options | {"share": share})
        policy = Fold3D.of(**options, share=share)
        assert isinstance(policy, Fold3D)
        of_stage = dict.fromkeys(range(options["stages"] * options["chunks"]), 0.0)  # type: ignore[arg-type]
        for message in policy.messages(work):
            of_stage[message.stage or 0] += (message.seconds - work.message_seconds) * work.bytes_per_second
        assert sum(of_stage.values()) == pytest.approx(sum(work.bytes))
        free = LayerWorkload(
            forward=work.forward, backward=work.backward, bytes=(0,) * work.layers, bytes_per_second=1.0
        )
        # Without gradients the next iteration starts as soon as the device has ended the last one.
        quick = predict(free, "fold3d", options).iteration_seconds
        assert quick <= predict(free, "breadth-first", options).iteration_seconds + 1e-8
        assert quick <= found.iteration_seconds + 1e-8


def test_random_pipelines() -> None:
    check_random(3, 80)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_many_random_pipelines(seed: int) -> None:
    check_random(100 + seed, 1000)


def test_every_stage_waits_for_its_own_gradients() -> None:
    policy = Fold3D.of(chunks=4)
    made = policy.iterations(pipe(32), 4)
    times = run_tasks(made.graph)
    names = {name: task for task, name in enumerate(made.graph.names)}
    sums = [task for task, name in enumerate(made.graph.names) if name.startswith("gradients")]
    for task in sums:
        named = re.fullmatch(r"gradients of stage (\d+) of (\d+)", made.graph.names[task])
        assert named is not None
        stage, iteration = named.groups()
        first = names[f"{stage}B7 of {iteration}"]
        assert times.start[task] >= times.finish[first] - 1e-9
        after = names.get(f"{stage}F0 of {int(iteration) + 1}")
        if after is not None:
            assert times.start[after] >= times.finish[task] - 1e-9
    # A chunk but the first has two messages, of which the next iteration starts one.
    assert len(sums) == 4 * (4 + 2 * 12)


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
    found = simulate_step(step, plan_named("fold3d", step, order))
    assert found.seconds == pytest.approx(expected, abs=1e-8)
    assert found.lower_bound_seconds <= found.seconds + 1e-8
    assert sum(each.size_bytes for each in fold3d_messages(step, order)) == pytest.approx(4 * gradients)
    messages = fold3d_messages(step, order, share=0.0)
    unsplit = StepPlan(name="unsplit", order=order, messages=messages, synchronous_step=False)
    whole = simulate_step(step, unsplit)
    assert found.seconds <= whole.seconds + 1e-8


@pytest.mark.parametrize(("devices", "plain", "fast"), [(4, 21, 18), (8, 45, 38)])
def test_fast_forward(devices: int, plain: float, fast: float) -> None:
    step, order = even(0, 1, devices, devices), gpipe(devices, devices)
    _, named = order_for("fast-forward", devices, devices, 1)
    for given, expected in ((order, plain), (fast_forward_order(step, order), fast), (named, fast)):
        assert isinstance(given, PipelineOrder)
        assert simulate_step(step, plan_named("none", step, given)).seconds == pytest.approx(
            expected, abs=1e-8
        )


def test_times_of_stages_are_those_of_passes() -> None:
    assert stage_times(even(0, 2, devices=1)) == StageTimes(
        forward=[0.5, 0.5], backward=[1.0, 1.0], weight=[0.5, 0.5]
    )


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
