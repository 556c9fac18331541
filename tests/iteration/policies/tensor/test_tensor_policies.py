"""Policies inside layers on the step of a job: what they leave of exchanges is what their theory says, and no more."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from coppice.errors import InputError
from coppice.iteration.job.composed import Composition, composition_of, simulated_job, step_of
from coppice.iteration.job.file import parse_job_record
from coppice.iteration.job.job import job_of
from coppice.iteration.layout import Layout, Recompute, Shard
from coppice.iteration.machine import cluster_of
from coppice.iteration.models import model_named
from coppice.iteration.pipeline.orders import ORDERS
from coppice.iteration.policies.catalogue import policies_of, policy_named
from coppice.iteration.policies.step_plans import plan_named
from coppice.iteration.policies.tensor.half_batches import HalfBatches, HalvedBlock
from coppice.iteration.policies.tensor.policy import TensorPolicy, transformed
from coppice.iteration.step.blocks import transformer_step
from coppice.iteration.step.plan import BACKWARD, FORWARD, RECOMPUTE, GroupExchange, LayerBlock, Step
from coppice.iteration.step.simulated import simulate_step
from coppice.iteration.tasks import run_tasks
from coppice.topology.presets import preset

SUM, PAIR = ("all_reduce",), ("all_gather", "reduce_scatter")


def exchange(when: str, collective: str, seconds: float, group: str = "tp") -> GroupExchange:
    return GroupExchange(group=group, collective=collective, size_bytes=8.0, when=when, seconds=seconds)


def layer(forward: float, seconds: float, kinds: tuple[str, ...] = SUM, again: float = 0.0) -> LayerBlock:
    """A layer with two sums, or gathers and scatters, a pass."""
    whens = (FORWARD, BACKWARD, RECOMPUTE) if again else (FORWARD, BACKWARD)
    return LayerBlock(
        name="layer",
        kind="layer",
        forward=forward,
        input_gradient=forward,
        weight_gradient=forward,
        recompute=again,
        activation_bytes=100.0,
        exchanges=tuple(
            exchange(when, kind, seconds / len(kinds)) for when in whens for _ in range(2) for kind in kinds
        ),
    )


def drawn_step(draw: random.Random) -> Step:
    def block(number: int) -> LayerBlock:
        if draw.random() < 0.2:
            return LayerBlock(name="head", kind="head", forward=1.0, input_gradient=1.0, weight_gradient=1.0)
        kinds = draw.choice([SUM, PAIR])
        again = draw.choice([0.0, 0.5, draw.randint(1, 16) / 4])
        made = layer(draw.randint(1, 32) / 4, draw.choice([0, draw.randint(0, 32) / 4]), kinds, again)
        return replace(
            made,
            name=f"layer {number}",
            exchanges=(*made.exchanges, exchange(FORWARD, "all_to_all", 1.0, "ep")),
        )

    stages = draw.randint(1, 3)
    return Step(
        stages=tuple(tuple(block(number) for number in range(draw.randint(1, 4))) for _ in range(stages)),
        micro_batches=draw.randint(1, 4),
    )


def held(step: Step) -> float:
    """Computation and exchanges of all blocks, once."""
    return sum(
        block.compute + sum(each.seconds for each in block.exchanges)
        for stage in step.stages
        for block in stage
    )


def simulated(step: Step) -> float:
    order = ORDERS["1f1b"](len(step.stages), step.micro_batches, 1)
    found = simulate_step(step, plan_named("none", step, order))
    assert found.seconds >= found.lower_bound_seconds - 1e-9
    return found.seconds


def check_random_steps(count: int, policies: int, simulates: int) -> None:
    """So many steps with so many policies each; every so many are simulated as well."""
    draw = random.Random(12)
    for number in range(count):
        step = drawn_step(draw)
        before = None if number % simulates else simulated(step)
        computed = sum(block.compute for stage in step.stages for block in stage)
        for name in draw.sample(list(policies_of(TensorPolicy)), policies):
            policy = policy_named(name, TensorPolicy)
            settings = {"mode": draw.choice(["t3", "t3-mca", "split"])} if name == "t3" else {}
            if name in ("decomposition", "coconet", "t3"):
                settings["ranks"] = draw.choice([2, 4, 7])
            after = policy.of(**settings).transform(step)
            assert after == policy.of(**settings).transform(step)
            assert held(after) <= held(step) + 1e-9, name
            hidden = 0 if name != "lynx" else sum(block.recompute for stage in step.stages for block in stage)
            assert held(after) >= computed - hidden - 1e-9, name
            assert before is None or simulated(after) <= before + 1e-9, name
            for old, new in zip(step.stages, after.stages, strict=True):
                for was, now in zip(old, new, strict=True):
                    kept = [each for each in was.exchanges if each.group != "tp"]
                    assert [each for each in now.exchanges if each.group != "tp"] == kept
                    assert (now.name, now.kind, now.parameters) == (was.name, was.kind, was.parameters)


def test_no_policy_makes_a_step_slower_or_beats_its_bound() -> None:
    check_random_steps(30, 5, 1)


@pytest.mark.slow
def test_no_policy_makes_any_of_many_steps_slower() -> None:
    check_random_steps(5000, 1, 5)


@pytest.mark.parametrize("name", policies_of(TensorPolicy))
def test_with_free_communication_a_step_takes_its_computation(name: str) -> None:
    for kinds in (SUM, PAIR):
        step = Step(stages=((layer(3.0, 0.0, kinds, 1.5),) * 3,), micro_batches=2)
        assert (
            simulated(policy_named(name, TensorPolicy).of().transform(step))
            == simulated(step)
            == 2 * 3 * 10.5
        )


@pytest.mark.parametrize(
    ("product", "seconds", "left"), [(8.0, 3.0, 0.0), (4.0, 6.0, 3.0)], ids=["compute", "network"]
)
def test_decomposition_leaves_what_the_closed_form_says(product: float, seconds: float, left: float) -> None:
    """Published figures: 8 s and 7 s on four ranks."""
    block = replace(
        layer(2 * product, 0.0), exchanges=tuple(exchange(FORWARD, kind, seconds) for kind in PAIR)
    )
    policy = policy_named("decomposition", TensorPolicy).of(ranks=4, products=1.0)
    (made,) = policy.stage((block,), 1)
    assert [each.seconds for each in made.exchanges] == [left, left]
    sums = replace(block, exchanges=(exchange(FORWARD, "all_reduce", seconds),))
    assert policy.stage((sums,), 1) == (sums,)


def test_small_shards_are_not_cut_where_they_lose_more_than_they_hide() -> None:
    block = replace(layer(8.0, 0.0), exchanges=(exchange(FORWARD, "all_gather", 3.0),))

    def left(half_rows: float) -> float:
        policy = policy_named("decomposition", TensorPolicy).of(
            ranks=4, products=1.0, rows=1024, half_rows=half_rows
        )
        return policy.stage((block,), 1)[0].exchanges[0].seconds

    assert [left(half) for half in (0.0, 128.0)] == [
        0.0,
        pytest.approx(8 * (256 + 128) / (1024 + 128) * 4 - 8),
    ]
    assert left(4096.0) == 3.0
    slow = policy_named("decomposition", TensorPolicy).of(ranks=4, products=1.0, extra_seconds=4.0)
    assert slow.stage((block,), 1) == (block,)


def test_triggered_scatters_leave_the_gather() -> None:
    """Of a sum of 6 s the gather, 3 s, stays; its scatter hides beside 8 s of products on four ranks."""
    block = replace(layer(16.0, 0.0), exchanges=(exchange(FORWARD, "all_reduce", 6.0),))

    def left(mode: str) -> float:
        policy = policy_named("t3", TensorPolicy).of(ranks=4, products=1.0, mode=mode, contention=0.125)
        return policy.stage((block,), 1)[0].exchanges[0].seconds

    assert left("t3-mca") == 3.0
    assert left("t3") == 3.0 + 3 * 2 * 0.125
    assert left("split") == 3.0 + 2.0
    gather = replace(block, exchanges=(exchange(FORWARD, "all_gather", 6.0),))
    assert policy_named("t3", TensorPolicy).of().stage((gather,), 1) == (gather,)


def test_fused_sums() -> None:
    """In 4 chunks 8 s of products and a sum of 4 s take 9 s; bias and dropout a quarter of their time."""
    block = replace(layer(16.0, 0.0), exchanges=(exchange(FORWARD, "all_reduce", 4.0),))
    policy = policy_named("coconet", TensorPolicy).of(ranks=4, products=1.0, chunks=4, elementwise=0.5)
    (made,) = policy.stage((block,), 1)
    assert made.exchanges[0].seconds == 1.0
    assert (made.forward, made.input_gradient) == (16.0 * (0.5 + 0.5 / 4), 16.0)


@pytest.mark.parametrize(("compute", "sums", "expected"), [(1, 1, 97), (1, 0.5, 96.5), (1, 2, 193)])
def test_two_halves_of_the_published_example(compute: float, sums: float, expected: float) -> None:
    """48 blocks are 24 layers with two sums each."""
    blocks = (layer(4.0 * compute, 2.0 * sums),) * 24
    made = policy_named("oases", TensorPolicy).of().stage(blocks, 1)
    forward = sum(
        block.forward + sum(each.seconds for each in block.exchanges if each.when == FORWARD)
        for block in made
    )
    assert forward == expected


def test_two_halves_are_the_simulated_schedule() -> None:
    draw = random.Random(8)
    for _ in range(100):
        silent = draw.random() < 0.5
        blocks = tuple(
            layer(draw.randint(1, 16) / 4, draw.randint(1, 16) / 4, again=draw.choice([0.0, 1.5]))
            for _ in range(draw.randint(1, 4))
        )
        made = policy_named("oases", TensorPolicy).of(silent=silent).stage(blocks, 1)
        halved = [
            HalvedBlock(
                forward=block.forward / 4,
                gradients=block.forward / 2,
                recompute=block.recompute / 4,
                forward_sum=block.exchanges[0].seconds / 2,
                backward_sum=block.exchanges[0].seconds / 2,
            )
            for block in blocks
            for _ in range(2)
        ]
        expected = run_tasks(HalfBatches(blocks=halved, silent=silent).graph()).seconds
        assert (
            sum(block.compute + sum(each.seconds for each in block.exchanges) for block in made) == expected
        )


def test_silent_recomputation_keeps_what_sums_give() -> None:
    (made,) = policy_named("oases", TensorPolicy).of().stage((layer(4.0, 1.0, again=4.0),), 1)
    assert not [each for each in made.exchanges if each.when == RECOMPUTE]
    assert made.activation_bytes == 108.0
    (loud,) = policy_named("oases", TensorPolicy).of(silent=False).stage((layer(4.0, 1.0, again=4.0),), 1)
    assert loud.activation_bytes == 100.0
    assert len(loud.exchanges) == 6


def test_windows_hide_what_is_computed_again() -> None:
    """Two windows of 1 s in each layer's backward pass, 3 s to compute again: 1 s is left; memory for all, and none."""
    blocks = (layer(4.0, 1.0, again=3.0),) * 4
    policy = policy_named("lynx", TensorPolicy)
    made = policy.of().stage(blocks, 2)
    assert [block.recompute for block in made] == [pytest.approx(1.0)] * 4
    assert [block.activation_bytes for block in made] == [100.0] * 4
    roomy = policy.of(layer_bytes=3200.0, limit_bytes=2 * 4 * 3200.0).stage(blocks, 2)
    assert [block.recompute for block in roomy] == [0.0] * 4
    assert [block.activation_bytes for block in roomy] == [3300.0] * 4
    some = [
        sum(block.recompute for block in policy.of(layer_bytes=3200.0, limit_bytes=limit).stage(blocks, 2))
        for limit in (3200.0, 6400.0, 9600.0, 16000.0, 25600.0)
    ]
    assert some == sorted(some, reverse=True)
    assert some[0] == pytest.approx(12.0)  # no room for the layer below
    assert some[-1] == 0.0
    tight = policy.of(layer_bytes=3200.0, limit_bytes=3200.0, search="stage").stage(blocks, 2)
    assert sum(block.recompute for block in tight) == pytest.approx(
        12.0 - 2.0
    )  # the last layer's windows are free
    with pytest.raises(InputError, match="one layer's activations"):
        policy.of(layer_bytes=3200.0, limit_bytes=100.0).stage(blocks, 2)


def test_windows_without_exchanges_that_are_made_again() -> None:
    """Kept is what sums give but that of the first, which is the input of a layer behind it."""
    block = layer(8.0, 1.0, again=8.0)
    step = Step(stages=((block, block),), micro_batches=1)
    loud, silent = (
        policy_named("lynx", TensorPolicy).of(silent=each).transform(step) for each in (False, True)
    )
    assert held(loud) - held(silent) == 2 * 2 * 1.0
    for before, after in zip(loud.stages[0], silent.stages[0], strict=True):
        assert after.recompute == before.recompute
        assert after.activation_bytes == before.activation_bytes + 8.0


def test_several_at_once() -> None:
    step = Step(stages=((layer(4.0, 2.0, PAIR, 4.0),) * 4,), micro_batches=2)
    cut, moved, halves = (
        policy_named(name, TensorPolicy).of() for name in ("decomposition", "lynx", "oases")
    )
    both = transformed(step, [moved, cut])
    assert both == moved.transform(cut.transform(step))
    assert simulated(both) < min(simulated(cut.transform(step)), simulated(step))
    with pytest.raises(InputError, match="lynx and oases, which both decide recompute"):
        Composition(policies=(moved, halves))
    with pytest.raises(InputError, match="both decide tensor"):
        Composition(policies=(cut, halves))
    with pytest.raises(InputError, match="'unknown'"):
        policy_named("unknown", TensorPolicy)
    with pytest.raises(InputError, match="ranks"):
        policy_named("t3", TensorPolicy).of(ranks=1)


@pytest.mark.parametrize("name", policies_of(TensorPolicy))
def test_on_the_step_of_a_job(name: str) -> None:
    """GPT of 7.5 billion weights on two boxes, in several orders of the pipeline, beside overlaps of gradients."""
    cluster = cluster_of(preset("dgx-a100", boxes=2))
    settings = {"ranks": 4} if name in ("decomposition", "coconet", "t3") else {}
    for overlap in ("none", "megatron", "dear"):
        layout = Layout(
            tensor=4,
            pipeline=2,
            data=2,
            global_batch=16,
            recompute=Recompute.FULL,
            sequence_parallel=name == "decomposition",
            shard=Shard.ZERO1 if overlap == "megatron" else Shard.NONE,
        )
        step = transformer_step(model_named("gpt-7.5b"), layout, cluster)
        quicker = policy_named(name, TensorPolicy).of(**settings).transform(step)
        for order in ("1f1b", "gpipe", "zero-bubble"):
            program = ORDERS[order](2, step.micro_batches, 1)
            before = simulate_step(step, plan_named(overlap, step, program))
            after = simulate_step(quicker, plan_named(overlap, quicker, program))
            assert after.lower_bound_seconds <= after.seconds * (1 + 1e-9) < before.seconds
            if name != "lynx":
                assert after.parts["tensor"] < before.parts["tensor"]
        assert len({id(block) for stage in quicker.stages for block in stage}) <= 8 + 36 * (name == "oases")


def test_in_a_job() -> None:
    text = """
    model.name = "gpt-7.5b"
    cluster = {topology = "dgx-h100", boxes = 2}
    layout = {tp = 8, pp = 2, global_batch = 16, recompute = "full", sequence_parallel = true}
    """
    plain, cut, both = (
        job_of(parse_job_record(f"{text}\n{run}", where="job.toml"))
        for run in ("", 'run.inside = "decomposition"', 'run.inside = "decomposition + lynx"')
    )
    seconds = [simulated_job(job).seconds for job in (plain, cut, both)]
    assert seconds == sorted(seconds, reverse=True)
    assert len(set(seconds)) == 3
    step = step_of(plain.model, plain.layout, plain.machines)
    order = ORDERS["1f1b"](2, step.micro_batches, 1)
    (policy,) = composition_of("decomposition", ranks=8).policies
    assert isinstance(policy, TensorPolicy)
    assert policy.settings.ranks == 8
    changed = policy.transform(step)
    assert seconds[1] == simulate_step(changed, plan_named("none", changed, order)).seconds
    with pytest.raises(InputError, match="'lyn'"):
        simulated_job(job_of(parse_job_record(f'{text}\nrun.inside = "lyn"', where="job.toml")))


def test_what_users_see() -> None:
    for policy in policies_of(TensorPolicy).values():
        assert policy.about
        assert policy.assumes
        assert policy.decides <= {"tensor", "recompute"}
        assert len(policy.about) <= 110
