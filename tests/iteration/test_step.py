"""Simulated training steps: beside the closed form, unfolded, beside their bounds, and where their time goes."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coppice.errors import InputError
from coppice.iteration.estimate import estimate
from coppice.iteration.layout import Layout, Recompute, Shard
from coppice.iteration.machine import cluster_of
from coppice.iteration.models import MODELS
from coppice.iteration.pipeline.order import PipelineOrder, StagePass, Work
from coppice.iteration.pipeline.orders import ORDERS
from coppice.iteration.policies.catalogue import policies_of
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.step_plans import plan_named, stage_workload
from coppice.iteration.predicted import predict
from coppice.iteration.step.blocks import transformer_step
from coppice.iteration.step.lower import lower
from coppice.iteration.step.plan import (
    BACKWARD,
    FORWARD,
    RECOMPUTE,
    GroupExchange,
    LayerBlock,
    Step,
    StepPlan,
)
from coppice.iteration.step.simulated import SimulatedStep, order_for, simulate_step
from coppice.iteration.tasks import run_tasks
from coppice.iteration.trace import write_task_trace
from coppice.topology.presets import preset
from reference import tasks as reference
from reference.unfold import unfolded

CLUSTER = cluster_of(preset("dgx-a100", boxes=2))
GPT = MODELS["gpt-175b"]
LAYOUT = Layout(tensor=8, pipeline=8, data=4, global_batch=128)
LOOPED = ("interleaved", "breadth-first")
PLAIN = [name for name in ORDERS if name != "dualpipe-v"]


def chunks_of(order: str, looped: int) -> int:
    return looped if order in LOOPED else 2 if order == "dualpipe-v" else 1


def simulated(
    layout: Layout, order: str | None = None, overlap: str = "none", model: str = "gpt-175b"
) -> SimulatedStep:
    name, passes = order_for(order, layout.pipeline, layout.micro_batches, layout.chunks)
    step = transformer_step(MODELS[model], layout, CLUSTER)
    return simulate_step(step, plan_named(overlap, step, passes), name=name)


GRID = [
    Layout(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        context=context,
        micro_batch=2,
        global_batch=2 * data * micro_batches,
        recompute=recompute,
        sequence_parallel=sequence_parallel,
        shard=shard,
    )
    for tensor, sequence_parallel in ((1, False), (8, True), (16, False))
    for pipeline in (1, 2, 8)
    for data, context, shard in (
        (1, 1, Shard.NONE),
        (4, 1, Shard.NONE),
        (2, 2, Shard.ZERO1),
        (4, 1, Shard.ZERO3),
    )
    for micro_batches in (1, 8, 24)
    for recompute in (Recompute.NONE, Recompute.FULL)
]


@pytest.mark.parametrize("pipeline", [1, 2, 8])
def test_where_nothing_overlaps_the_step_is_the_closed_form(pipeline: int) -> None:
    for layout in GRID:
        if layout.pipeline != pipeline:
            continue
        closed, found = estimate(GPT, layout, CLUSTER), simulated(layout)
        # The closed form lets the last device send behind every pass; it sends back only. Where the head takes less
        # than a send, the device before is the slowest.
        one = closed.sends / layout.micro_batches / 2
        least = closed.seconds - (layout.micro_batches + 1) * one
        assert least * (1 - 1e-7) <= found.seconds <= closed.seconds * (1 + 1e-7)
        if pipeline == 1 or closed.sends == 0:
            assert found.seconds == pytest.approx(closed.seconds, rel=1e-7)
        for part in ("compute", "head", "tensor", "gradients", "optimizer"):
            assert found.parts[part] == pytest.approx(getattr(closed, part), rel=1e-6, abs=1e-7), part


@pytest.mark.parametrize("chunks", [2, 3])
def test_of_several_chunks_only_the_head_differs(chunks: int) -> None:
    # The head delays one chunk of a device whose others have slack: the closed form counts it for all micro-batches,
    # but does not let it fill what would be a bubble.
    layout = replace(LAYOUT, chunks=chunks)
    closed, found = estimate(GPT, layout, CLUSTER), simulated(layout)
    assert found.seconds == pytest.approx(closed.seconds, rel=0.01)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("overlap", ["none", "megatron", "ddp", "dear"])
def test_no_order_beats_its_bound_and_the_parts_add_up(order: str, overlap: str) -> None:
    shard = Shard.ZERO1 if overlap == "megatron" else Shard.NONE
    layout = replace(LAYOUT, chunks=chunks_of(order, 3), shard=shard)
    found = simulated(layout, order, overlap)
    assert found.seconds >= found.lower_bound_seconds * (1 - 1e-9)
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert sum(each.seconds for each in found.path) == pytest.approx(found.seconds)
    assert min(found.parts.values()) >= 0
    if overlap == "none":
        assert found.exposed["dp all_reduce on NIC"] == pytest.approx(found.parts["gradients"])
    elif overlap != "dear":  # which gathers only when a forward pass comes, stage after stage
        assert found.seconds < simulated(layout, order).seconds


def test_what_overlaps_takes_less_and_says_what_is_left() -> None:
    sharded = replace(LAYOUT, shard=Shard.ZERO3)
    plain, ahead = simulated(sharded), simulated(sharded, overlap="fsdp")
    assert ahead.seconds < 0.75 * plain.seconds
    assert ahead.parts["gradients"] < plain.parts["gradients"]
    assert next(iter(ahead.exposed)) == "dp all_gather on NIC"
    with pytest.raises(InputError, match="shard for policy fsdp, found none"):
        simulated(LAYOUT, overlap="fsdp")
    with pytest.raises(InputError, match=r"found them sharded, so that .*: take fsdp"):
        simulated(sharded, overlap="megatron")
    with pytest.raises(InputError, match="expected an overlap"):
        simulated(LAYOUT, overlap="all")


T3L = ((1, 1, 1), (2, 2, 2), (2, 2, 8))
U10L = ((1,) * 10, (2,) * 10, (3,) * 10)


@pytest.mark.parametrize("name", policies_of(DataParallelPolicy))
@pytest.mark.parametrize("columns", [T3L, U10L], ids=["T3L", "U10L"])
def test_a_stage_alone_is_what_policies_say_of_layers(
    name: str, columns: tuple[tuple[float, ...], ...]
) -> None:
    share = {"all_reduce": 1.0, "reduce_scatter": 0.5, "all_gather": 0.5}

    def between(collective: str, size: float) -> GroupExchange:
        seconds = share[collective] * size / 2**21
        return GroupExchange(group="dp", collective=collective, size_bytes=size, seconds=seconds)

    blocks = tuple(
        LayerBlock(
            name="layer",
            kind="layer",
            forward=forward,
            input_gradient=backward / 2,
            weight_gradient=backward / 2,
            parameters=seconds * 2**21,
        )
        for forward, backward, seconds in zip(*columns, strict=True)
    )
    step = Step(stages=(blocks,), micro_batches=1, replicas=4, gradient_bytes=1.0, between_replicas=between)
    found = simulate_step(step, plan_named(name, step, ORDERS["1f1b"](1, 1, 1)))
    expected = predict(stage_workload(step, 0), name)
    assert found.seconds == pytest.approx(expected.iteration_seconds, abs=1e-7)
    assert found.lower_bound_seconds <= found.seconds + 1e-7


def test_contention_slows_what_runs_beside_exchanges() -> None:
    layout = replace(LAYOUT, shard=Shard.ZERO3)
    name, order = order_for(None, 8, layout.micro_batches, 1)
    step = transformer_step(GPT, layout, CLUSTER)
    times = [
        simulate_step(step, plan_named("fsdp", step, order), name=name, contention=each).seconds
        for each in (0.0, 0.2, 0.4)
    ]
    assert times == sorted(set(times))
    # A gather of 3 s beside computation of 2 s, both half as long again: 3 s, then 1 s that is left of the gather.
    gather = GroupExchange(group="dp", collective="all_gather", size_bytes=1, seconds=3.0, when=FORWARD)
    blocks = (
        LayerBlock(name="first", kind="layer", forward=2.0),
        LayerBlock(name="second", kind="layer", forward=1.0, exchanges=(gather,)),
    )
    two = Step(stages=(blocks,), micro_batches=1, replicas=2, between_replicas=lambda *_: gather)
    beside = [
        simulate_step(two, plan_named("fsdp", two, ORDERS["1f1b"](1, 1, 1)), contention=each).seconds
        for each in (0.0, 0.5)
    ]
    assert beside == pytest.approx([4.0, 5.0])
    with pytest.raises(InputError, match="`contention` of 0 or more"):
        simulate_step(step, plan_named("none", step, order), contention=-1)


@pytest.mark.parametrize(
    ("order", "overlap", "fields"),
    [
        ("1f1b", "none", {}),
        ("1f1b", "megatron", {"shard": Shard.ZERO1}),
        ("breadth-first", "megatron", {"chunks": 2, "shard": Shard.ZERO1}),
        ("interleaved", "ddp", {"chunks": 2}),
        ("1f1b", "dear", {}),
        ("zero-bubble", "fsdp", {"shard": Shard.ZERO3}),
    ],
)
def test_folding_symmetric_ranks_changes_nothing(order: str, overlap: str, fields: dict[str, object]) -> None:
    layout = Layout(tensor=4, pipeline=4, data=4, global_batch=16, sequence_parallel=True, **fields)
    step = transformer_step(MODELS["gpt-1.7b"], layout, CLUSTER)
    passes = order_for(order, 4, layout.micro_batches, layout.chunks)[1]
    made = lower(step, plan_named(overlap, step, passes), count=2)
    ranks = np.arange(16)
    groups = {"tp": ranks // 4, "dp": ranks % 4}
    folded, all_ranks = run_tasks(made.graph), run_tasks(unfolded(made, groups, CLUSTER.device.box))
    assert len(all_ranks.graph) == 16 * len(made.graph)
    assert np.abs(all_ranks.finish.reshape(-1, 16) - folded.finish[:, None]).max() < 1e-8


def random_step(draw: random.Random) -> tuple[Step, PipelineOrder, str]:
    """A step of unequal blocks, an order and an overlap that suit it; times are multiples of 2^-10 s."""
    name = draw.choice(list(ORDERS))
    devices = draw.randint(1, 3)
    micro_batches = devices * draw.randint(2, 3)
    order = ORDERS[name](devices, micro_batches, chunks_of(name, draw.randint(1, 2)))
    stages = order.stages
    links = ("NVLink", "NIC")

    def seconds() -> float:
        return draw.choice((0, 1, 1, 2, 3, 5)) / 1024

    def loads() -> dict[str, float]:
        return {link: draw.choice((0.25, 0.5, 1.0)) for link in links if draw.random() < 0.6}

    sharded = draw.random() < 0.3
    tensor = GroupExchange(
        group="tp", collective="all_reduce", size_bytes=1, seconds=seconds(), when=FORWARD, loads=loads()
    )
    inside = [replace(tensor, when=when) for when in (FORWARD, BACKWARD, RECOMPUTE) if draw.random() < 0.7]
    if sharded:
        gather = GroupExchange(
            group="dp", collective="all_gather", size_bytes=1, seconds=seconds(), when=FORWARD, loads=loads()
        )
        inside += [gather, replace(gather, when=BACKWARD)]
        inside.append(replace(gather, collective="reduce_scatter", when=BACKWARD))

    def block(number: int) -> LayerBlock:
        return LayerBlock(
            name=f"layer {number}",
            kind=draw.choice(("layer", "head")),
            forward=seconds(),
            input_gradient=seconds(),
            weight_gradient=seconds(),
            recompute=seconds(),
            parameters=draw.choice((0, 3e7, 5e7)),
            exchanges=tuple(inside) if draw.random() < 0.7 else (),
        )

    rate, share = draw.choice((4e9, 4e10)), loads()

    def between(collective: str, size: float) -> GroupExchange:
        rounds = 2 if collective == "all_reduce" else 1
        taken = round(rounds * size / rate * 1024) / 1024
        return GroupExchange(group="dp", collective=collective, size_bytes=size, seconds=taken, loads=share)

    step = Step(
        stages=tuple(tuple(block(k) for k in range(draw.randint(1, 3))) for _ in range(stages)),
        micro_batches=micro_batches,
        replicas=4,
        send=GroupExchange(group="pp", collective="send", size_bytes=1, seconds=seconds(), loads=loads())
        if draw.random() < 0.8
        else None,
        optimizer=tuple(seconds() for _ in range(stages)),
        between_replicas=between,
    )
    overlap = draw.choice(
        ("none", "fsdp") if sharded else ("none", "megatron", "ddp", "wfbp", "dear", "priority")
    )
    step = replace(step, shares_optimizer=overlap == "megatron")
    return step, order, overlap


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.spread(2)
def test_random_steps_run_by_the_rules_and_never_beat_their_bound(seed: int) -> None:
    draw = random.Random(seed)
    step, order, overlap = random_step(draw)
    contention = draw.choice((0.0, 0.0, 0.25))
    found = simulate_step(step, plan_named(overlap, step, order), contention=contention)
    assert found.seconds >= found.lower_bound_seconds - 1e-9
    assert sum(found.parts.values()) == pytest.approx(found.seconds, abs=1e-9)
    assert sum(each.seconds for each in found.path) == pytest.approx(found.seconds, abs=1e-9)
    if not contention:  # whose speeds are no multiples
        start, finish = reference.run(found.times.graph)
        assert np.abs(np.asarray(start) - found.times.start).max() < 1e-8
        assert np.abs(np.asarray(finish) - found.times.finish).max() < 1e-8


@pytest.mark.parametrize(
    ("devices", "micro_batches"), [(p, m) for p in (1, 2, 4, 8) for m in (p, 2 * p, 4 * p)]
)
def test_bubbles_of_steps_follow_the_formula(devices: int, micro_batches: int) -> None:
    for name in PLAIN:
        for chunks in (1, 2, 4) if name in LOOPED else (1,):
            order = ORDERS[name](devices, micro_batches, chunks)
            one = 1 / order.stages * devices
            block = LayerBlock(name="one", kind="layer", forward=one, input_gradient=one, weight_gradient=one)
            step = Step(stages=((block,),) * order.stages, micro_batches=micro_batches)
            found = simulate_step(step, plan_named("none", step, order), name=name)
            known = {"zero-bubble": devices - 1, "fast-forward": 2 * (devices - 1)}
            bubble = known.get(name, 3 * (devices - 1) / chunks)
            if name == "zero-bubble" and micro_batches < 2 * devices:
                continue
            assert found.seconds == pytest.approx(3 * micro_batches + bubble, abs=1e-8)
            assert found.parts["bubble"] == pytest.approx(bubble, abs=1e-8)


def test_passes_that_run_at_once_hide_exchanges() -> None:
    order = ORDERS["dualpipe-v"](4, 16, 2)
    inside = GroupExchange(group="ep", collective="all_to_all", size_bytes=1, seconds=1.0, when=FORWARD)
    block = LayerBlock(
        name="experts",
        kind="layer",
        forward=1.0,
        input_gradient=1.0,
        weight_gradient=1.0,
        exchanges=(inside, replace(inside, when=BACKWARD)),
    )
    step = Step(stages=((block, block),) * 8, micro_batches=16)
    together = simulate_step(step, plan_named("none", step, order))
    apart = simulate_step(step, plan_named("none", step, replace(order, co_scheduled=frozenset())))
    assert together.seconds >= together.lower_bound_seconds - 1e-9
    assert together.seconds < 0.85 * apart.seconds
    assert together.parts["experts"] < 0.6 * apart.parts["experts"]
    assert sum(together.parts.values()) == pytest.approx(together.seconds)


@pytest.mark.parametrize(
    ("devices", "micro_batches"), [(p, m) for p in (1, 2, 3, 4, 8) for m in (2 * p, 3 * p + 1)]
)
@pytest.mark.parametrize(("forward", "weights"), [(1, 1), (2, 1), (3, 0)])
def test_the_bubble_of_both_directions(
    devices: int, micro_batches: int, forward: float, weights: float
) -> None:
    order = ORDERS["dualpipe-v"](devices, micro_batches, 2)
    block = LayerBlock(
        name="one", kind="layer", forward=forward, input_gradient=forward, weight_gradient=weights
    )
    step = Step(stages=((block,),) * order.stages, micro_batches=micro_batches)
    found = simulate_step(step, plan_named("none", step, order))
    backward = forward + weights
    bubble = (devices - 1) * ((forward + backward) + backward - 3 * weights)
    assert found.seconds == pytest.approx(2 * micro_batches * (forward + backward) + bubble, abs=1e-7)


def test_a_breadth_first_order_hides_sums_of_gradients() -> None:
    layout = replace(LAYOUT, chunks=3, global_batch=32, shard=Shard.ZERO1)
    depth, breadth = (
        simulated(layout, each, "megatron").seconds for each in ("interleaved", "breadth-first")
    )
    assert breadth <= depth


def test_orders_that_do_not_suit() -> None:
    with pytest.raises(InputError, match="expected an order of a pipeline"):
        simulated(LAYOUT, "best")
    with pytest.raises(InputError, match="one chunk of a device for order 1f1b, found 3"):
        simulated(replace(LAYOUT, chunks=3), "1f1b")
    with pytest.raises(InputError, match="expected 2 chunks of a device for order dualpipe-v, found 1"):
        simulated(LAYOUT, "dualpipe-v")
    step = transformer_step(GPT, LAYOUT, CLUSTER)
    with pytest.raises(InputError, match="8 stages and 32 micro-batches, found 8 and 31"):
        simulate_step(step, plan_named("none", step, ORDERS["1f1b"](8, 31, 1)))


def test_passes_that_wait_for_each_other_are_named() -> None:
    programs = ["0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"]
    passes = [tuple(StagePass(int(p[0]), Work(p[1]), int(p[2])) for p in row.split()) for row in programs]
    order = PipelineOrder(devices=tuple(passes), stages=2, micro_batches=2)
    block = LayerBlock(name="one", kind="layer", forward=1.0, input_gradient=1.0, weight_gradient=1.0)
    with pytest.raises(InputError, match=r"do not wait for themselves, found 0B0 of 0 after .*1F1"):
        simulate_step(Step(stages=((block,), (block,)), micro_batches=2), StepPlan(order=order))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"stages": ()}, "stages of 1 block or more"),
        ({"micro_batches": 0}, "1 micro-batch or more, found 0"),
        ({"replicas": 2}, "exchanges between 2 replicas cost, found nothing"),
        ({"optimizer": (1.0, 2.0)}, "an optimizer for each of 1 stages, found 2"),
    ],
)
def test_steps_that_cannot_be(fields: dict[str, Any], words: str) -> None:
    block = LayerBlock(name="one", kind="layer")
    with pytest.raises(InputError, match=words):
        Step(**{"stages": ((block,),), "micro_batches": 1, **fields})
    with pytest.raises(InputError, match="0 or more seconds in block two, found -1"):
        LayerBlock(name="two", kind="layer", forward=-1)


def test_the_trace_has_every_task_on_a_stream(tmp_path: Path) -> None:
    found = simulated(LAYOUT)
    path = tmp_path / "trace.json"
    shown = write_task_trace(found.times, path)
    events = json.loads(path.read_text())["traceEvents"]
    tasks = [event for event in events if event["ph"] == "X"]
    assert len(tasks) == shown == int((found.times.graph.stream >= 0).sum())
    kinds = {"forward", "backward", "tp all_reduce", "pp send", "dp all_reduce", "optimizer"}
    assert {event["cat"] for event in tasks} == kinds
    ends = max(event["ts"] + event["dur"] for event in tasks)
    assert ends == pytest.approx(1e6 * found.seconds, rel=1e-6)
    again = tmp_path / "again.json"
    write_task_trace(simulated(LAYOUT).times, again)
    assert again.read_bytes() == path.read_bytes()
