"""Steps of jobs as operations: the same times as the simulator's, and policies of the whole iteration on them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from coppice.errors import InputError
from coppice.iteration.job.composed import compose, composition_of
from coppice.iteration.job.file import parse_job_record
from coppice.iteration.job.job import job_of
from coppice.iteration.pipeline.orders import interleaved, one_f_one_b, zero_bubble
from coppice.iteration.policies.catalogue import policies_of, policy_named
from coppice.iteration.policies.policy import Policy
from coppice.iteration.policies.whole import steps
from coppice.iteration.policies.whole.centauri import Centauri
from coppice.iteration.policies.whole.lina import Lina
from coppice.iteration.policies.whole.operations import (
    OperationChoice,
    OperationGraph,
    WholePlan,
    WholePolicy,
)
from coppice.iteration.policies.whole.steps import plan_step, step_operations
from coppice.iteration.policies.whole.syndicate import Syndicate
from coppice.iteration.step.plan import (
    BACKWARD,
    FORWARD,
    RECOMPUTE,
    GroupExchange,
    LayerBlock,
    Message,
    Step,
    StepPlan,
)
from coppice.iteration.step.simulated import simulate_step

NIC = {"NIC": 1.0}


def summed(collective: str, size: float) -> GroupExchange:
    seconds = size if collective == "all_reduce" else size / 2
    return GroupExchange(group="dp", collective=collective, size_bytes=size, seconds=seconds, loads=NIC)


def some_step(draw: random.Random, stages: int, *, micro_batches: int = 3, replicas: int = 1) -> Step:
    def exchange(when: str) -> GroupExchange:
        return GroupExchange(
            group="tp",
            collective="all_reduce",
            size_bytes=8,
            seconds=draw.choice([0.25, 0.5]),
            when=when,
            loads={"NVLink": 1.0},
        )

    def block() -> LayerBlock:
        return LayerBlock(
            name="block",
            kind="layer",
            forward=draw.choice([0, 0.5, 1]),
            input_gradient=draw.choice([0.5, 1]),
            weight_gradient=draw.choice([0, 0.5, 1]),
            recompute=draw.choice([0, 0.5]),
            parameters=draw.choice([0, 1, 3]),
            exchanges=tuple(exchange(when) for when in (FORWARD, RECOMPUTE, BACKWARD) if draw.random() < 0.6),
        )

    return Step(
        stages=tuple(tuple(block() for _ in range(draw.randint(1, 3))) for _ in range(stages)),
        micro_batches=micro_batches,
        replicas=replicas,
        gradient_bytes=1.0,
        between_replicas=summed,
        send=GroupExchange(group="pp", collective="send", size_bytes=1, seconds=0.125)
        if stages > 1
        else None,
        optimizer=(0.5,) * stages,
    )


def check_plain(seed: int, cases: int) -> None:
    draw = random.Random(seed)
    for _ in range(cases):
        stages = draw.choice([1, 2, 4])
        micro_batches = draw.choice([4, 8])
        step = some_step(draw, stages, micro_batches=micro_batches)
        order = draw.choice(
            [
                one_f_one_b(stages, micro_batches),
                zero_bubble(stages, micro_batches),
                *([interleaved(2, micro_batches, 2)] if stages == 4 else []),
            ]
        )
        expected = simulate_step(step, StepPlan(order=order)).seconds
        operations = step_operations(step, order)
        assert operations.seconds() == pytest.approx(expected, abs=1e-8)
        assert operations.lower_bound_seconds() <= expected + 1e-8


def test_plain_steps_take_what_the_simulator_says() -> None:
    check_plain(1, 60)


def test_stages_that_share_a_block_have_links_of_their_own() -> None:
    draw = random.Random(2)
    for _ in range(10):
        step = some_step(draw, 1, micro_batches=4)
        step = replace(step, stages=step.stages * 2, optimizer=())
        order = one_f_one_b(2, 4)
        expected = simulate_step(step, StepPlan(order=order)).seconds
        assert step_operations(step, order).seconds() == pytest.approx(expected, abs=1e-8)
        channels = step_operations(step, order).channels
        assert {"device 0", "device 1"} <= set(channels)
        if any(block.exchanges for block in step.stages[0]):
            assert {"NVLink of device 0", "NVLink of device 1"} <= set(channels)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_many_plain_steps_take_what_the_simulator_says(seed: int) -> None:
    check_plain(100 + seed, 500)


def test_gradients_are_sent_beside_the_backward_pass() -> None:
    draw = random.Random(3)
    for _ in range(20):
        step = some_step(draw, 1, replicas=2)
        order = one_f_one_b(1, 3)
        messages = tuple(
            Message.of(
                step.message("all_reduce", block.parameters),
                name=f"block {layer}",
                layers=(layer,),
            )
            for layer, block in reversed(list(enumerate(step.stages[0])))
            if block.parameters
        )
        expected = simulate_step(step, StepPlan(order=order, messages=messages)).seconds
        assert step_operations(step, order).seconds() == pytest.approx(expected, abs=1e-8)


POLICIES: tuple[WholePolicy, ...] = (Lina.of(micro_bytes=1), Syndicate.of(budget=60), Centauri.of(budget=40))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_policies_never_make_a_step_slower(policy: WholePolicy) -> None:
    draw = random.Random(4)
    gained = 0
    for _ in range(4):
        step = some_step(draw, 2, micro_batches=6, replicas=2)
        found = plan_step(step, one_f_one_b(2, 6), policy, start_seconds=0.01, micro_batches=2)
        assert found.lower_bound_seconds - 1e-8 <= found.seconds <= found.plain_seconds + 1e-8
        assert found.seconds >= max(6 * sum(block.compute for block in stage) for stage in step.stages)
        gained += found.seconds < found.plain_seconds - 0.1
    assert policy.name == "lina" or gained


def mixture() -> Step:
    """Experts whose tokens are exchanged on the NIC, on which gradients are summed as well."""
    exchanges = tuple(
        GroupExchange(group="ep", collective="all_to_all", size_bytes=2, seconds=2, when=when, loads=NIC)
        for when in (FORWARD, FORWARD, BACKWARD, BACKWARD)
    )
    block = LayerBlock(
        name="block",
        kind="experts",
        forward=1,
        input_gradient=1,
        weight_gradient=1,
        parameters=6,
        exchanges=exchanges,
    )
    return Step(
        stages=((block,) * 4,), micro_batches=1, replicas=2, gradient_bytes=1.0, between_replicas=summed
    )


def test_exchanges_of_tokens_do_not_wait_for_sums() -> None:
    step, order = mixture(), one_f_one_b(1, 1)
    plain = step_operations(step, order).seconds()
    cut = plan_step(step, order, Lina.of(micro_bytes=0.5, token_pieces=1), start_seconds=0)
    piece = plan_step(step, order, Lina.of(micro_bytes=0.5), start_seconds=0)
    assert cut.seconds < plain - 2
    assert piece.seconds < cut.seconds
    sums = [decision for decision in cut.plan.choices if decision.startswith("dp")]
    assert [cut.plan.choices[each] for each in sums] == [OperationChoice(pieces=12)]
    assert {cut.plan.ranks[each] for each in cut.plan.ranks if each.startswith("ep")} == {0}


def test_what_a_planned_step_waits_for() -> None:
    step, order = mixture(), one_f_one_b(1, 1)
    found = plan_step(step, order, Lina.of(micro_bytes=100, token_pieces=1), start_seconds=0)
    assert found.messages == 4
    assert plan_step(step, order, Lina.of(micro_bytes=1, token_pieces=1), start_seconds=0).messages == 24
    # All that computes one after the other is on the path or hidden behind what is exposed.
    computes = sum(block.compute for block in step.stages[0])
    assert found.seconds - computes <= found.exposed_seconds + 1e-8
    assert found.exposed_seconds <= found.seconds
    alone = replace(step, replicas=1)
    block = replace(step.stages[0][0], exchanges=())
    assert plan_step(replace(alone, stages=((block,) * 4,)), order, Lina.of()).exposed_seconds == 0
    only = plan_step(alone, order, Lina.of(token_pieces=1), start_seconds=0)
    assert only.messages == 0
    assert only.exposed_seconds == pytest.approx(4 * 4 * 2)
    assert only.seconds == pytest.approx(computes + 4 * 4 * 2)


def test_large_steps_are_planned_by_few_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    class Watched(Lina):
        def plan(self, graph: OperationGraph) -> WholePlan:
            sizes.append(len(graph.operations))
            return super().plan(graph)

    step, order = replace(mixture(), micro_batches=8), one_f_one_b(1, 8)
    all_of = len(step_operations(step, order).operations)
    monkeypatch.setattr(steps, "_MOST_OPERATIONS", all_of // 5)
    policy = Watched.of(micro_bytes=0.5)
    found = plan_step(step, order, policy, start_seconds=0)
    assert sizes[0] < all_of / 4
    assert found.seconds < found.plain_seconds - 2
    plan_step(step, order, policy, start_seconds=0, micro_batches=8)
    assert sizes[1] == all_of


def test_steps_that_cannot_be() -> None:
    step = mixture()
    with pytest.raises(InputError, match="expected an order of 1 stages and 1 micro-batches, found 1 and 2"):
        step_operations(step, one_f_one_b(1, 2))
    shared = GroupExchange(group="dp", collective="all_gather", size_bytes=1, seconds=1, when=FORWARD)
    block = LayerBlock(name="block", kind="layer", exchanges=(shared,))
    with pytest.raises(InputError, match="expected parameters that replicas keep"):
        step_operations(Step(stages=((block,),), micro_batches=1), one_f_one_b(1, 1))


def test_every_policy_says_what_it_is() -> None:
    kinds = {"gradients", "order", "tensor", "recompute", "experts", "weights"}
    for name, policy in policies_of(WholePolicy).items():
        assert policy_named(name, WholePolicy) is policy
        assert name not in policies_of(Policy)
        assert policy.name == name
        assert 20 < len(policy.about) < 80
        assert policy.assumes
        assert policy.decides
        assert policy.decides <= kinds
        with pytest.raises(InputError, match="found 'size'"):
            policy.of(size=1)
    with pytest.raises(InputError, match=r"\(lina, syndicate, centauri\), found 'ddp'"):
        policy_named("ddp", WholePolicy)


@pytest.mark.parametrize("name", policies_of(WholePolicy))
def test_composed_jobs_say_what_is_exposed(name: str) -> None:
    words = 'model.name="gpt-1.7b"\ncluster={topology="dgx-a100",boxes=2}\nlayout={tp=4,pp=2,dp=2,global_batch=16}'
    job = job_of(parse_job_record(words, where="x"))
    found = compose(job, composition_of(name))
    plain = compose(job, composition_of("none")) if name == "lina" else None
    assert found.messages >= 24 + 2  # layers, embedding and head
    assert 0 < found.exposed_seconds < found.seconds
    assert found.lower_bound_seconds <= found.seconds
    assert plain is None or found.seconds < 1.1 * plain.seconds
