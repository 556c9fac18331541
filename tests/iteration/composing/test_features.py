"""Every policy with what-if, degraded nodes, traces and sharded replicas: it answers, or says why not."""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path

import pytest

from coppice.errors import InputError
from coppice.iteration.job.composed import ComposedStep, simulated_job
from coppice.iteration.job.file import parse_job_record
from coppice.iteration.job.job import TrainingJob, job_of
from coppice.iteration.job.what_if import what_if, what_ifs
from coppice.iteration.policies.catalogue import POLICIES, policies_of
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.whole.operations import WholePolicy
from coppice.iteration.trace import write_task_trace
from support.commands import run

JOB = """
model = {{layers = 8, hidden = 1024, heads = 16, ffn = 4096, seq = 1024, vocab = 32000}}
cluster = {{topology = "dgx-a100", boxes = 2}}
layout = {{tp = 4, pp = 2, global_batch = 16, shard = "{shard}"}}
run = {{policy = "{policy}"{settings}}}
"""
SETTINGS = {  # Smaller messages than the defaults are many, and plans are searched for less long
    "p3": "slice_elements = 400000",
    "syndicate": "budget = 60",
    "centauri": "budget = 40",
}
FEATURES = ("what-if", "degrade", "trace", "zero1", "zero3")
LATE = (
    r"gradients are of this iteration, found trirace, whose are 1 late: `coppice train policy` simulates it"
)
UNSHARDED = "replicas shard for policy {name}, found none: take `shard="
SERVERS = "do not shard for policy {name}, found one, but its servers keep the optimizer: take `shard=none`"
NO_MESSAGE = (
    "found them sharded, so that gradients are scattered inside passes and no message is left to order"
)
WHOLE = "for a policy of the whole iteration, found them sharded: take `shard=zero1`, or policy fsdp"
REFUSED = {
    **{("trirace", feature): LATE for feature in FEATURES},
    **{("megatron", feature): UNSHARDED for feature in ("what-if", "degrade", "trace")},
    **{("fsdp", feature): UNSHARDED for feature in ("what-if", "degrade", "trace", "zero1")},
    ("p3", "zero1"): SERVERS,
    ("tictac", "zero1"): SERVERS,
    **{(name, "zero3"): NO_MESSAGE for name in (*policies_of(DataParallelPolicy), "fold3d", "megatron")},
    **{(name, "zero3"): WHOLE for name in policies_of(WholePolicy)},
}
"""Why a policy does not go with a feature; all others do."""
CHANGES = ("nic=x0.5", "nic=x0.1", "nvlink=x0.5", "nic=x0.95", "flops=x0.5", "slow=nic:3:x0.9")
DEGRADED = ("degrade=box0/nic3=50%", "degrade=box1/gpu5=25%", "degrade=box0/nic0=0%")
FEW_OR_ALL = [
    pytest.param(slice(1), id="first"),
    pytest.param(slice(None), id="all", marks=pytest.mark.slow),
]
"""Which changes are tried with each policy."""


def job(policy: str, shard: str = "none", settings: str | None = None) -> TrainingJob:
    own = SETTINGS.get(policy) if settings is None else settings
    table = f", settings = {{{own}}}" if own else ""
    return job_of(parse_job_record(JOB.format(policy=policy, shard=shard, settings=table), where="job"))


@cache
def iteration(policy: str, shard: str) -> ComposedStep:
    """The iteration of a job, which several features begin with."""
    return simulated_job(job(policy, shard))


def taken(policy: str, feature: str) -> ComposedStep | None:
    """The iteration of a job with a feature; None: it is refused as the table says."""
    shard = feature if feature.startswith("zero") else "none"
    why = REFUSED.get((policy, feature))
    if why is None:
        return iteration(policy, shard)
    with pytest.raises(InputError, match=why.format(name=policy)) as caught:
        simulated_job(job(policy, shard))
    assert str(caught.value).endswith(".")
    return None


@pytest.mark.parametrize("changes", FEW_OR_ALL)
@pytest.mark.parametrize("name", POLICIES)
def test_a_factor_of_one_is_the_plain_estimate_and_nothing_slower_is_faster(
    name: str, changes: slice
) -> None:
    plain = taken(name, "what-if")
    if plain is None:
        return
    assert plain.composition.name == name
    made = job(name)
    healthy = None  # the first change has it simulated, the others take what that found
    for same in ("nic=x1", "nvlink=x1", "flops=x1", "memory=x1", "slow=nic:3:x1")[changes]:
        row = what_if(made, same, healthy=healthy).rows[0]
        assert (row.seconds, row.policy) == (plain.seconds, name), same
        healthy = healthy or row
    for change in CHANGES[changes]:
        assert what_if(made, change, healthy=healthy).rows[0].seconds >= plain.seconds, change


@pytest.mark.parametrize("changes", FEW_OR_ALL)
@pytest.mark.parametrize("name", POLICIES)
def test_a_degraded_node_never_makes_a_step_faster(name: str, changes: slice) -> None:
    plain = taken(name, "degrade")
    if plain is None:
        return
    healthy, *found = what_ifs(job(name), DEGRADED[changes])
    assert healthy.rows[0].seconds == plain.seconds
    for each in found:
        assert each.rows[0].way == "keep"
        assert each.rows[0].seconds > plain.seconds, each.change
        assert each.best.samples_per_second <= healthy.best.samples_per_second
        assert all(row.policy == name for row in each.rows if not row.searched)


@pytest.mark.parametrize("name", POLICIES)
def test_tasks_of_every_policy_are_traced(name: str, tmp_path: Path) -> None:
    found = taken(name, "trace")
    if found is None:
        return
    shown = write_task_trace(found.times, tmp_path / "trace.json")
    events = [
        each for each in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if each["ph"] == "X"
    ]
    assert len(events) == shown > 100
    # Iterations may be several; the last one ends the trace, and lasts as long as the answer says.
    end = max(each["ts"] + each["dur"] for each in events) / 1e6
    assert end == pytest.approx(found.times.seconds, abs=1e-6)
    assert end >= found.seconds - 1e-6
    # What a device computes does not overlap with itself.
    computing = [each for each in events if each["cat"] in ("forward", "backward", "compute")]
    for device in {each["tid"] for each in computing}:
        row = sorted((each["ts"], each["dur"]) for each in computing if each["tid"] == device)
        assert all(a + b <= c + 0.01 for (a, b), (c, _) in itertools.pairwise(row))


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("shard", ["zero1", "zero3"])
def test_replicas_that_shard(name: str, shard: str) -> None:
    found = taken(name, shard)
    if found is None:
        return
    assert found.lower_bound_seconds <= found.seconds * (1 + 1e-9)
    assert found.compute_seconds <= found.seconds * (1 + 1e-9)
    kept = simulated_job(job("none"))
    assert found.memory_bytes < kept.memory_bytes * (4 if name in ("gpipe", "fast-forward") else 3)
    if found.step is None or "gradients" not in POLICIES[name].decides or shard == "zero3":
        return
    sent = list(found.step.given[1].messages)
    scattered = sum(each.size_bytes for each in sent if each.collective == "reduce_scatter")
    gathered = sum(each.size_bytes for each in sent if each.collective == "all_gather")
    assert {each.collective for each in sent} == {"reduce_scatter", "all_gather"}
    weights = sum(block.parameters for stage in found.step.given[0].stages for block in stage)
    assert scattered == pytest.approx(gathered) == pytest.approx(weights * found.step.given[0].gradient_bytes)


def test_parameters_are_gathered_after_the_optimizer_and_before_their_layers() -> None:
    """ZeRO-1 under a policy that updates layer by layer: scatter, update, gather, forward pass, layer by layer."""
    for name in ("priority", "dear", "ddp"):
        found = simulated_job(job(name, "zero1"))
        assert found.step is not None
        graph, times = found.step.made, found.times
        count, size = graph.count, graph.size
        assert count > 1
        kinds = [graph.kinds[number] for number in graph.kind]
        for iteration in range(count - 1):
            for device in (0, 1):
                tasks = [task for task in range(size) if graph.device[task] == device]
                end = {
                    part: [
                        (times.start[task + iteration * size], times.finish[task + iteration * size])
                        for task in tasks
                        if (kinds[task].part, kinds[task].name) == part
                    ]
                    for part in (
                        ("message", "reduce_scatter"),
                        ("message", "all_gather"),
                        ("optimizer", "optimizer"),
                    )
                }
                scatters, gathers, updates = end.values()
                assert len(scatters)
                assert len(gathers)
                assert len(updates)
                # No parameters before some gradients are there and some update is done.
                assert min(finish for _, finish in scatters) <= min(finish for _, finish in updates) + 1e-12
                assert min(finish for _, finish in updates) <= min(start for start, _ in gathers) + 1e-12
                assert max(start for start, _ in gathers) >= max(finish for _, finish in scatters) - 1e-12


def test_policies_together(tmp_path: Path) -> None:
    text = JOB.format(policy="dear+breadth-first+lynx", shard="none", settings="")
    (tmp_path / "job.toml").write_text(text)
    words = ("train", "estimate", str(tmp_path / "job.toml"), "--what-if", "nic=x0.5")
    trace = tmp_path / "trace.json"
    found = run(*words, "--degrade", "box0/nic3=50%", "--trace", str(trace), "--json").json
    assert trace.stat().st_size > 1000
    assert found["policy"] == "dear+breadth-first+lynx"
    (plain, _), (half,), (keep, *_) = (each["ways"] for each in found["what_if"])
    assert plain["iteration_seconds"] == found["iteration_seconds"] < half["iteration_seconds"]
    assert keep["iteration_seconds"] == half["iteration_seconds"]
    assert plain["policy"] == half["policy"] == keep["policy"] == found["policy"]
    with_contention = run(*words, "--contention", "0.3", "--json").json
    assert (
        with_contention["what_if"][0]["ways"][0]["iteration_seconds"] == with_contention["iteration_seconds"]
    )
    assert with_contention["iteration_seconds"] > found["iteration_seconds"]


def test_a_plan_of_the_whole_iteration(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB.format(policy="lina", shard="none", settings=""))
    words = ("train", "estimate", str(tmp_path / "job.toml"), "--what-if", "nic=x0.5")
    found = run(*words, "--trace", str(tmp_path / "trace.json"), "--json").json
    assert found["what_if"][0]["ways"][0]["iteration_seconds"] == found["iteration_seconds"]
    assert (tmp_path / "trace.json").stat().st_size > 1000
    assert "as it is" in run(*words).out


def test_a_layout_found_anew_does_without_what_does_not_suit_it() -> None:
    """On half of the boxes one stage is best: an order of pipelines has nothing to say there."""
    found = what_ifs(job("dualpipe-v+lynx"), ["drain=1"])[1].best
    assert found.layout.pipeline == 1
    assert found.policy == "lynx"


def test_slower_machines_are_never_told_as_a_gain() -> None:
    """Decisions for a slower network may be the better ones; the healthy network could follow them."""
    text = """
    model = {layers = 8, hidden = 2048, heads = 16, ffn = 1024, seq = 128, vocab = 32000}
    cluster = {topology = "dgx-a100", boxes = 2}
    layout = {pp = 4, global_batch = 64, shard = "zero1", recompute = "full"}
    run.policy = "ooo"
    """
    made = job_of(parse_job_record(text, where="job"))
    plain = simulated_job(made)
    slower = [what_if(made, f"nvlink=x{factor}") for factor in (0.97, 0.9, 0.8, 0.6, 0.5, 0.4)]
    gains = [each for each in slower if each.rows[0].decided_seconds is not None]
    assert gains, "no decision for a slower network is better here: take another job"
    for each in slower:
        row = each.rows[0]
        assert row.seconds >= plain.seconds
        assert row.samples_per_second == made.layout.global_batch / row.seconds
        assert bool(each.why_not) == (row.decided_seconds is not None)
    assert all(each.rows[0].decided_seconds < plain.seconds == each.rows[0].seconds for each in gains)
    assert all(each.why_not.endswith("no gain.") for each in gains)


def test_orders_of_a_pipeline_are_orders_of_a_device_alone() -> None:
    """A job file of a published test says `order = "1f1b"`, and runs with one stage as well."""
    text = JOB.format(policy="1f1b", shard="none", settings="").replace("pp = 2, ", "")
    assert "pp" not in text
    one, none = (
        simulated_job(job_of(parse_job_record(text.replace("1f1b", name), where="job")))
        for name in ("1f1b", "none")
    )
    assert one.seconds == none.seconds
    late = simulated_job(job_of(parse_job_record(text.replace("1f1b", "gpipe"), where="job")))
    assert late.memory.activations > none.memory.activations
    with pytest.raises(InputError, match="expected a pipeline for policy fold3d, found one stage: raise pp"):
        simulated_job(job_of(parse_job_record(text.replace("1f1b", "fold3d"), where="job")))
