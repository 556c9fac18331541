"""Kernels and frameworks of an estimate: what slows them down, what a profile changes, and ranges of published runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coppice.errors import InputError
from coppice.iteration.accuracy import QUANTILES, estimate_range
from coppice.iteration.frameworks import ATTENTION, FRAMEWORKS, SOFTMAX, framework_named
from coppice.iteration.job.composed import simulated_job
from coppice.iteration.job.file import parse_job_record
from coppice.iteration.job.job import TrainingJob, job_of
from coppice.iteration.layout import dealt_layers
from coppice.iteration.machine import box_of
from coppice.iteration.memory import memory_of

JOB = """
[model]
layers = {layers}
hidden = 4096
heads = {heads}
ffn = 16384
seq = {seq}
vocab = 32000
[cluster]
topology = "dgx-a100"
boxes = 2
[layout]
tp = 2
pp = {pp}
global_batch = 32
[run]
"""


def job(run: str = "", **sizes: Any) -> TrainingJob:
    sizes = {"layers": 16, "heads": 32, "seq": 2048, "pp": 2} | sizes
    return job_of(parse_job_record(JOB.format(**sizes) + run, where="job.toml"))


def seconds(run: str = "", **sizes: Any) -> float:
    return simulated_job(job(run, **sizes)).seconds


def test_scores_that_leave_the_chip_cost_more_the_longer_sequences_are() -> None:
    for seq in (1024, 4096, 16384):
        flash, softmax, eager = (
            seconds(f'attention = "{kernel}"', seq=seq) for kernel in ("flash-2", "softmax", "eager")
        )
        assert flash < softmax < eager
    assert seconds('attention = "flash-1"', seq=16384) > seconds('attention = "flash-2"', seq=16384)


def test_heads_that_are_not_aligned_are_slow() -> None:
    # Heads of 128 values; of 4096 / 24, which is none; and of as many values as with 64 heads, which is.
    unfused = 'attention = "softmax"'
    even, odd = (seconds(unfused, heads=heads) for heads in (32, 30))
    assert odd > 1.02 * even


def test_eight_bits_gain_less_than_twice() -> None:
    plain, narrow = seconds(), seconds("precision = 2.0")
    assert plain / 2 < narrow < plain


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_framework_estimates_time_and_memory(name: str) -> None:
    made = job(f'framework = "{name}"')
    assert made.cluster.framework == framework_named(name)
    assert simulated_job(made).seconds > 0
    held = memory_of(made.model, made.layout, made.cluster.framework)
    assert held.runtime > 0
    assert held.total == pytest.approx(sum(held.parts.values()))


def test_frameworks_and_kernels_are_named() -> None:
    with pytest.raises(InputError, match=r"expected a framework \(megatron, .*\), found 'megatrom'"):
        job('framework = "megatrom"')
    with pytest.raises(
        InputError, match=r"`run.attention`: expected a kernel of attention .*, found 'flash'"
    ):
        job('attention = "flash"')
    assert {job(f'attention = "{kernel}"').layout.fused_attention for kernel in ATTENTION} == {True}
    assert {job(f'attention = "{kernel}"').layout.fused_attention for kernel in SOFTMAX} == {False}


def test_replicas_that_share_out_parameters_run_fsdp() -> None:
    sharded = JOB.replace("global_batch", 'shard = "zero3"\nglobal_batch')
    text = sharded.format(layers=16, heads=32, seq=2048, pp=1)
    assert job_of(parse_job_record(text, where="job.toml")).cluster.framework.name == "fsdp"
    assert job().cluster.framework.name == "megatron"


@pytest.mark.parametrize("layers", range(1, 40))
def test_layers_are_dealt_as_evenly_as_can_be(layers: int) -> None:
    for stages in range(1, layers + 1):
        dealt = dealt_layers(layers, stages)
        assert (len(dealt), sum(dealt)) == (stages, layers)
        assert max(dealt) - min(dealt) <= 1
        # The stages with the embedding and with the output layer are not the ones with more.
        if max(dealt) > min(dealt) and dealt.count(max(dealt)) <= stages - 2:
            assert dealt[0] == dealt[-1] == min(dealt)


def test_stages_that_do_not_divide_the_layers_go_at_the_pace_of_the_longest() -> None:
    short, odd, full = (seconds(layers=layers, pp=4) for layers in (12, 14, 16))
    assert short < odd < full * (1 + 1e-9)
    with pytest.raises(InputError, match="at most as many stages as the 3 layers, found 4 x 1"):
        job(layers=3, pp=4)


def test_the_last_stage_keeps_scores_of_words() -> None:
    made = job()
    few = memory_of(made.model, made.layout, made.cluster.framework)
    many = memory_of(replace(made.model, vocab=512_000), made.layout, made.cluster.framework)
    assert few.logits == 0  # the first stage has more micro-batches in flight
    tokens = made.model.seq * made.layout.micro_batch
    assert many.logits == pytest.approx(made.cluster.framework.logit_bytes * tokens * 512_000 / 2)


def test_ranges_are_those_of_the_nearest_kind() -> None:
    megatron, nobody = box_of("H100"), box_of("V100")
    assert estimate_range(megatron).like == "megatron on H100"
    assert estimate_range(nobody).like == "megatron"
    unknown = replace(megatron, framework=FRAMEWORKS["deepspeed-2021"])
    found = estimate_range(unknown)
    assert found.like == "any kind"
    assert found.of(2.0) == (2 * found.low, 2 * found.high)
    assert all(low < 1 < high for _, low, high in QUANTILES.values())
