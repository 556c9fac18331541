"""Systems that publications compare with: parameter servers with their habits, and Horovod's cycles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.catalogue import BASELINES, POLICIES, policy_named
from coppice.iteration.policies.policy import Policy
from coppice.iteration.step.workloads import steady_iteration

WORK = LayerWorkload(
    forward=(1.0,) * 6,
    backward=(2.0,) * 6,
    bytes=(4.0, 1.0, 2.0, 9.0, 1.0, 3.0),
    bytes_per_second=1.0,
    element_bytes=1.0,
    workers=4,
)


def seconds(policy: Policy, work: LayerWorkload = WORK) -> float:
    return steady_iteration(lambda count: policy.iterations(work, count)).seconds


def servers(work: LayerWorkload = WORK, **settings: object) -> float:
    return seconds(policy_named("servers").of(**settings), work)


def test_baselines_are_no_policies_to_choose() -> None:
    assert not BASELINES.keys() & POLICIES.keys()
    assert {policy_named(name) for name in BASELINES} == set(BASELINES.values())


@pytest.mark.parametrize("elements", [1, 2, 100])
def test_servers_with_slices_and_an_order_are_p3(elements: int) -> None:
    own = servers(order="next", slice_elements=elements)
    assert own == seconds(policy_named("p3").of(slice_elements=elements))


def test_servers_that_step_once_are_those_of_tictac() -> None:
    assert servers(pull="step", order="next") == seconds(policy_named("tictac").of(order="tac"))
    assert servers(pull="step") == seconds(policy_named("tictac").of(order="backward"))
    drawn = {servers(pull="step", order="random", seed=seed) for seed in range(12)}
    assert len(drawn) > 2
    assert servers(pull="step", order="next") == min(drawn | {servers(pull="step", order="next")})


def test_a_tensor_alone_goes_through_every_stage() -> None:
    """Out of the GPU, up, added, asked for, down and into the GPU: in slices all but one of each at the same time."""
    one = LayerWorkload(
        forward=(1.0,),
        backward=(2.0,),
        bytes=(8.0,),
        bytes_per_second=1.0,
        element_bytes=1.0,
        round_trip_seconds=0.5,
    )
    stages = {"copy_bytes_per_second": 4, "sum_bytes_per_second": 2}
    assert servers(one, trips=2, **stages) == 3 + 2 + 8 + 4 + 2 * 0.5 + 8 + 2
    assert servers(one, trips=0, slice_elements=1, **stages) == 3 + 0.25 + 8 + 0.5 + 1 + 0.25
    assert servers(one, trips=0, shared=True) == 3 + 16
    # Beside each other a push and a pull are half as quick; the first push and the last pull are alone.
    assert servers(one, trips=0, slice_elements=1, shared=True) == pytest.approx(3 + 16, abs=1.5)


def test_without_overlap_pushes_begin_when_the_backward_pass_is_done() -> None:
    late = servers(overlaps=False, trips=0)
    assert late > servers(trips=0)
    first = policy_named("servers").of(overlaps=False).messages(WORK)[0]  # type: ignore[attr-defined]
    assert first.layers == tuple(range(6))


def test_credit_waits_for_round_trips() -> None:
    far = replace(WORK, round_trip_seconds=1.0)
    settings = {"order": "next", "slice_elements": 1, "trips": 0}
    plain = servers(far, **settings)
    assert plain == servers(**settings)
    # A slice of one second, and one until it is acknowledged.
    assert servers(far, credit_bytes=1, **settings) > 1.5 * plain
    assert servers(far, credit_bytes=3, **settings) == pytest.approx(plain, rel=0.05)


def test_delayed_gradients_are_those_of_out_of_order() -> None:
    passes = policy_named("servers").of(k=2).backward(WORK)  # type: ignore[attr-defined]
    assert passes == policy_named("ooo").of(k=2).backward(WORK)  # type: ignore[attr-defined]


def test_whoever_comes_first_is_served_first() -> None:
    """Delayed gradients come last, layer 0 before layer 1, so that the next step begins under the last pulls."""
    sent = [
        each.carries[0]
        for each in policy_named("servers").of(k=3).messages(WORK)  # type: ignore[attr-defined]
        if each.collective == "push"
    ]
    assert sent == [5, 4, 3, 0, 1, 2]
    slow = {"trips": 0, "shared": True}
    assert servers(**slow) == sum(WORK.forward) + 2 * sum(WORK.bytes) + WORK.backward[-1]
    assert servers(k=3, **slow) < servers(**slow)


def test_a_session_ends_with_all_pulls() -> None:
    """Pushes are over at 22, pulls at 31: that of layer 3, 9 long, begins at 15, and those of 0, 1 and 2 are behind."""
    slow = {"trips": 0, "order": "next"}
    assert servers(barrier=True, **slow) == 31 + sum(WORK.forward)
    assert servers(**slow) < servers(barrier=True, **slow)


def test_horovod_sums_what_a_cycle_finds() -> None:
    policy = policy_named("horovod").of(cycle_seconds=5, fusion_bytes=10)
    # Backward passes end at 2, 4, 6, 8, 10 and 12: cycles at 5, 10 and 15 find 2, 3 and 1 of them; 9 + 2 do not fit.
    assert policy.groups(WORK) == [[5, 4], [3], [2, 1], [0]]  # type: ignore[attr-defined]
    found = policy.messages(WORK)  # type: ignore[attr-defined]
    assert [each.seconds for each in found if each.collective == "negotiation"] == [1, 0, 3]
    # Sums of 4, 9, 3 and 4 s begin at 5, 10, 19 and 22 after the begin of the backward pass.
    assert seconds(policy) == 6 + 26


def test_rank_0_spends_time_on_every_request() -> None:
    quick = policy_named("horovod").of(cycle_seconds=5)
    slow = policy_named("horovod").of(cycle_seconds=5, request_seconds=0.5)
    # Four requests for the last tensor, after it was ready.
    assert seconds(slow) >= seconds(quick) + 4 * 0.5
    assert seconds(policy_named("horovod").of(cycle_seconds=1e-9)) == pytest.approx(
        seconds(policy_named("wfbp").of()), rel=1e-6
    )


def test_training_takes_no_baselines() -> None:
    recorder = pytest.importorskip("coppice.training.torch.data_parallel.recorder")
    with pytest.raises(InputError, match="gradients alone, found 'horovod'"):
        recorder.data_parallel_policy("horovod", {})
