"""Policies on a job: compositions, the table of all, their bounds, tuning and advice."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from coppice.errors import InputError
from coppice.iteration.job import composed
from coppice.iteration.job.advice import Advice, AdvisedPolicies, advise
from coppice.iteration.job.compared import ComparedPolicy, compare_on_layers, compare_policies
from coppice.iteration.job.composed import compose, composition_of, simulated_job, step_of
from coppice.iteration.job.file import parse_job_record
from coppice.iteration.job.job import TrainingJob, job_of
from coppice.iteration.job.tuned import tune_on_job, tune_on_layers
from coppice.iteration.pipeline.orders import ORDERS
from coppice.iteration.policies.catalogue import POLICIES, policies_of
from coppice.iteration.policies.data_parallel.p3 import PriorityPropagation
from coppice.iteration.policies.policy import Policy
from coppice.iteration.policies.step_plans import plan_named
from coppice.iteration.policies.whole.operations import WholePolicy
from coppice.iteration.predicted import predict
from coppice.iteration.step.simulated import order_for, simulate_step
from iteration.policies.workloads import workload_of

SMALL = """
model = {layers = 8, hidden = 1024, heads = 16, ffn = 4096, seq = 1024, vocab = 32000}
cluster = {topology = "dgx-a100", boxes = 2}
layout = {tp = 4, pp = 2, global_batch = 16}
"""
QUICK = [name for name in POLICIES if name not in policies_of(WholePolicy)]
LAYERS = workload_of((1.0,) * 8, (2.0,) * 8, (8.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1.0, 8.0), message=0.1)


def job(**run: object) -> TrainingJob:
    made = job_of(parse_job_record(SMALL, where="small"))
    return replace(made, run=msgspec.structs.replace(made.run, **run))


@pytest.mark.parametrize(
    ("text", "both"),
    [
        ("ddp+dear", "ddp and dear, which both decide gradients"),
        ("1f1b+zero-bubble", "1f1b and zero-bubble, which both decide order"),
        ("fold3d+wfbp", "fold3d and wfbp, which both decide gradients"),
        ("oases+lynx", "oases and lynx, which both decide recompute"),
    ],
)
def test_two_that_decide_the_same_are_refused(text: str, both: str) -> None:
    with pytest.raises(InputError, match=f"found {both}: leave one out"):
        composition_of(text)


def test_options_have_short_names_and_sizes() -> None:
    found = composition_of("bytescheduler+1f1b", {"partition": "4M", "bytescheduler.credit": "16M"})
    assert found.policies[0].settings.partition_bytes == 4 * 2**20
    assert found.policies[0].settings.credit_bytes == 16 * 2**20
    assert composition_of("bytescheduler", {"partition": "4e6"}).policies[0].settings.partition_bytes == 4e6
    with pytest.raises(InputError, match="option partition_bytes of policy bytescheduler once"):
        composition_of("bytescheduler", {"partition": 1, "partition_bytes": 2})
    with pytest.raises(
        InputError, match=r"found 'nothing', which none of them has: they take interleaved\.stages"
    ):
        composition_of("interleaved+ddp", {"nothing": 1})
    assert predict(LAYERS, "priority", {"partition": "2"}) == predict(
        LAYERS, "priority", {"partition_bytes": 2}
    )


def test_inside_layers_a_group_is_that_of_the_job() -> None:
    by_key = simulated_job(job(policy="decomposition"))
    found = compose(job(), composition_of("decomposition", ranks=4))
    assert found.seconds == by_key.seconds


@pytest.mark.parametrize("name", [name for name in QUICK if name in POLICIES])
def test_alone_each_is_its_own_path(name: str) -> None:
    """What `train estimate` simulates under --policy is what the policy of that name does."""
    try:
        found = compose(job(), composition_of(name, ranks=4))
    except InputError:
        return  # test_every_policy_has_a_row_or_a_reason
    own = simulated_job(job(policy=name))
    assert found.seconds == own.seconds
    assert found.lower_bound_seconds == own.lower_bound_seconds
    assert own.composition.name == name
    if name in ("fold3d", "modulo", "fast-forward") or found.layout != job().layout:
        return  # with messages, chunks or times of their own
    assert own.step is not None
    if name not in ORDERS and "gradients" not in POLICIES[name].decides:
        return  # inside layers
    assert name in (own.step.order, own.step.overlap)
    lies, machines = job().layout, job().machines
    alone = step_of(job().model, lies, machines)
    order = order_for(name if name in ORDERS else None, lies.pipeline, lies.micro_batches, lies.chunks)[1]
    overlap = "none" if name in ORDERS else name
    assert simulate_step(alone, plan_named(overlap, alone, order)).seconds == own.seconds


@pytest.fixture(scope="module")
def table() -> dict[str, ComparedPolicy]:
    found = compare_policies(job(), QUICK, processes=1)
    assert {each.name for each in found.rows} | {each.name for each in found.refused} == {*QUICK, "none"}
    assert all(each.reason.endswith(".") for each in found.refused)
    return {each.name: each for each in found.rows}


def test_most_policies_suit_a_small_job(table: dict[str, ComparedPolicy]) -> None:
    assert {"ddp", "bytescheduler", "dear", "interleaved", "zero-bubble", "decomposition"} < table.keys()
    assert "trirace" not in table


def test_none_is_below_its_bound_or_what_is_computed(table: dict[str, ComparedPolicy]) -> None:
    for each in table.values():
        assert each.seconds >= each.lower_bound_seconds * (1 - 1e-9), each.name
        assert each.lower_bound_seconds >= each.compute_seconds * (1 - 1e-9), each.name


@pytest.mark.parametrize("order", ["1f1b", "gpipe", "zero-bubble", "fast-forward", "breadth-first"])
@pytest.mark.parametrize("gradients", ["bytescheduler", "dear", "priority", "ooo"])
def test_iterations_that_overlap_keep_their_bound(order: str, gradients: str) -> None:
    """Gradients of weights at the end of an iteration fill what a device waits for at the beginning of the next."""
    found = compose(job(), composition_of(f"{order}+{gradients}+decomposition+lynx", ranks=4))
    assert found.seconds >= found.lower_bound_seconds * (1 - 1e-9)


def test_a_bound_is_kept_where_a_device_fills_its_wait() -> None:
    text = """
    model.name = "gpt-7.5b"
    cluster = {topology = "dgx-a100", boxes = 2}
    layout = {tp = 4, pp = 2, global_batch = 32}
    """
    given = job_of(parse_job_record(text, where="given"))
    found = compose(given, composition_of("fast-forward+bytescheduler+decomposition+lynx", ranks=4))
    assert found.seconds >= found.lower_bound_seconds * (1 - 1e-9)


def test_the_best_together_gain_more_and_are_found_again() -> None:
    names = ["zero-bubble", "decomposition", "ddp"]
    alone = compare_policies(job(), names, processes=1)
    again = compare_policies(job(), names, processes=1)
    assert alone == again
    best = min(each.seconds for each in alone.rows)
    together = compare_policies(job(), ["zero-bubble+ddp+decomposition"], processes=1)
    assert together.rows[0].name == "zero-bubble+ddp+decomposition"
    assert together.rows[0].seconds < best


def test_all_has_the_best_composition(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: POLICIES[name] for name in ("1f1b", "zero-bubble", "ddp", "dear", "decomposition")}
    monkeypatch.setattr("coppice.iteration.job.compared.POLICIES", few)
    both = compare_policies(job(), ["all", "1f1b+dear"], processes=1)
    assert len([each for each in both.rows if "+" in each.name]) == 2
    found = compare_policies(job(), processes=1)
    composed_rows = [each for each in found.rows if "+" in each.name]
    assert len(composed_rows) == 1
    assert found.rows[0] is composed_rows[0]
    assert set(found.rows[0].name.split("+")) & {"zero-bubble"}
    assert [each.seconds for each in found.rows] == sorted(each.seconds for each in found.rows)
    record = found.record()
    assert record["rows"][0].keys() == {
        *("policy", "family", "iteration_seconds", "gain", "lower_bound_seconds", "exposed_seconds"),
        *("messages", "memory_bytes", "fits", "staleness"),
    }
    advice = advise(found)
    assert advice.best.name == found.rows[0].name
    assert 0 < advice.best.share <= 1
    assert advice.worth is not None
    assert advice.worth.share >= 0.9 * advice.best.share
    assert advice.stock is None or advice.stock.stock
    assert all(each.endswith(".") for each in advice.sentences())


def test_a_rounding_below_the_bound_leaves_nothing() -> None:
    taken = AdvisedPolicies(name="dear", seconds=0.5 - 1e-10, share=1.0, assumes=(), stock=())
    advice = Advice(baseline_seconds=1.0, lower_bound_seconds=0.5, worth=taken, best=taken, stock=None)
    assert advice.record()["left_seconds"] == 0.0
    assert "leaves 0 ms." in advice.sentences()[1]


def test_memory_follows_what_is_in_flight(table: dict[str, ComparedPolicy]) -> None:
    """GPipe keeps all 8 micro-batches of a replica, 1F1B as many as there are stages: 2."""
    given = job()
    usual, all_of_them = (compose(given, composition_of(name)).memory for name in ("1f1b", "gpipe"))
    assert given.layout.micro_batches == 8
    assert all_of_them.activations == pytest.approx(4 * usual.activations)
    assert table["1f1b"].memory_bytes == table["none"].memory_bytes == usual.total


def test_what_does_not_fit_is_no_advice() -> None:
    given = job()
    small = compose(given, composition_of("none")).memory_bytes * 1.0001
    kind = given.machines.kinds[0]
    device = replace(kind.cluster.device, memory_bytes=small)
    kinds = (replace(kind, cluster=replace(kind.cluster, device=device)),)
    tight = replace(given, machines=replace(given.machines, kinds=kinds))
    found = compare_policies(tight, ["fast-forward", "zero-bubble"], processes=1)
    assert {each.name: each.fits for each in found.rows} == {
        "fast-forward": False,
        "zero-bubble": True,
        "none": True,
    }
    assert advise(found).best.name == "zero-bubble"


def test_too_many_messages_are_counted_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*_: object) -> None:
        pytest.fail("messages were made")

    monkeypatch.setattr(PriorityPropagation, "messages", made)
    monkeypatch.setattr(composed, "MOST_MESSAGES", 100)
    with pytest.raises(
        InputError, match=r"at most 100 messages of an iteration, found at least [\d,]+ of p3: cut"
    ):
        compose(job(), composition_of("p3"))


def test_endless_cutting_is_refused() -> None:
    with pytest.raises(InputError, match=r"fewer than 1,000,000 parts of a message, found 8,000,000"):
        predict(LAYERS, "priority", {"partition_bytes": 1e-6})


def with_run(run: str, notes: list[str] | None = None) -> TrainingJob:
    return job_of(parse_job_record(f"{SMALL}run = {{{run}}}", where="small", note=(notes or []).append))


def test_keys_of_a_file_do_not_decide_the_same() -> None:
    for run, found in (
        ('overlap = "ddp", policy = "dear"', "dear and ddp, which both decide gradients"),
        ('order = "gpipe", policy = "1f1b"', "1f1b and gpipe, which both decide order"),
        ('inside = "coconet", policy = "decomposition"', "which both decide tensor"),
    ):
        with pytest.raises(InputError, match=f"{found}: leave one out"):
            simulated_job(with_run(run))


def test_former_keys_name_policies() -> None:
    notes: list[str] = ["", ""]
    run = 'order = "zero-bubble", overlap = "ddp", inside = "lynx", policy = "decomposition"'
    made = with_run(run, notes)
    assert made.run.policy == "decomposition+zero-bubble+ddp+lynx"
    assert notes[2:] == ["note: run.order and run.overlap and run.inside are now run.policy in small."]
    assert with_run('overlap = "none"').run.policy == "none"
    assert with_run('overlap = "none", order = "gpipe"').run.policy == "gpipe"
    with pytest.raises(
        InputError, match=r"`run.order`: expected a string \(order of the pipeline\), found 3 in"
    ):
        with_run("order = 3")
    both = simulated_job(made)
    other = compose(job(), composition_of("zero-bubble+ddp+decomposition+lynx", ranks=4))
    assert both.seconds == other.seconds


def test_rows_of_layers_are_those_of_a_policy() -> None:
    found = compare_on_layers(LAYERS, processes=1)
    for each in found.rows:
        alone = predict(LAYERS, each.name)
        assert (each.seconds, each.lower_bound_seconds) == (
            alone.iteration_seconds,
            alone.lower_bound_seconds,
        )
        least = found.compute_seconds if each.staleness else found.lower_bound_seconds
        assert each.seconds >= least(each.family) * (1 - 1e-9)
    assert {each.name for each in found.refused} == POLICIES.keys() - policies_of(Policy).keys()
    assert {name: each.name for name, each in found.baselines.items()} == {
        "gradients": "serial",
        "order": "gpipe",
    }


def test_one_policy_at_a_time_on_layers() -> None:
    found = compare_on_layers(LAYERS, ["ddp", "dear+1f1b"], processes=1)
    assert {each.name for each in found.rows} == {"ddp", "serial"}
    assert found.refused[0].reason == (
        "expected one policy at a time on a workload of layers, found dear+1f1b: compare it on a job."
    )


@pytest.mark.parametrize("name", ["priority", "bytescheduler", "dear", "interleaved"])
def test_tuned_on_layers_is_no_worse_than_the_tuner(name: str) -> None:
    found = tune_on_layers(LAYERS, name)
    policy = POLICIES[name].of()
    assert isinstance(policy, Policy)
    own = predict(LAYERS, name, policy.tune(LAYERS)).iteration_seconds
    assert found.seconds <= min(found.default_seconds, own)
    assert found.seconds == predict(LAYERS, name, found.settings).iteration_seconds
    for key, each in found.flat.items():
        assert each.least <= found.settings[key] <= each.most
        assert (
            predict(LAYERS, name, {**found.settings, key: each.least}).iteration_seconds
            <= found.seconds * 1.01
        )


def test_tuned_on_a_job() -> None:
    found = tune_on_job(job(), "p3")
    again = compose(job(), composition_of("p3", found.settings))
    assert again.seconds == found.seconds <= found.default_seconds
    assert found.trials < 100
    with pytest.raises(InputError, match="expected one policy to tune, found ddp"):
        tune_on_job(job(), "ddp+1f1b")
    beside = tune_on_job(job(policy="zero-bubble"), "p3")
    assert beside.seconds == compose(job(), composition_of("p3+zero-bubble", beside.settings)).seconds
    with pytest.raises(InputError, match="ddp and p3, which both decide gradients"):
        tune_on_job(job(policy="ddp"), "p3")
    shared = SMALL.replace("tp = 4", 'shard = "zero3", tp = 4')
    with pytest.raises(InputError, match="expected parameters that replicas keep for policy ddp"):
        tune_on_job(job_of(parse_job_record(shared, where="shared")), "ddp")
