"""Latent attention, windows and layers that predict further words: weights, operations, and what they take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.errors import InputError
from coppice.iteration.job.composed import simulated_job
from coppice.iteration.job.file import read_job
from coppice.iteration.layout import Layout
from coppice.iteration.machine import box_of
from coppice.iteration.memory import memory_of
from coppice.iteration.models import MODELS
from coppice.iteration.step.blocks import end_blocks, layer_block
from coppice.iteration.step.exchanges import exchange_seconds
from coppice.iteration.step.plan import BACKWARD, FORWARD
from coppice.iteration.transformer import Transformer, layer_kinds
from coppice.iteration.workload.operators import AttentionProducts
from coppice.iteration.workload.times import operator_seconds
from coppice.iteration.workload.transformers import transformer_layer

SMALL = Transformer(layers=6, hidden=512, heads=8, ffn=2048, seq=1024, vocab=1000, mlp_matrices=3, tied=False)
LATENT = replace(SMALL, head_width=96, value_width=64, rope_width=32, kv_rank=128, query_rank=192)
H100 = box_of("H100")


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        # Cards of the models; of DeepSeek-V3 without the layer that predicts a further word.
        ("deepseek-v2", 236, 21),
        ("deepseek-v3", 671, 37),
        ("qwen3-30b-a3b", 30.5, 3.3),
        ("qwen3-235b-a22b", 235, 22),
        ("gpt-oss-20b", 20.9, None),
        ("gpt-oss-120b", 116.8, None),
    ],
)
def test_weights_of_published_models(name: str, billions: float, active: float | None) -> None:
    model = replace(MODELS[name], mtp_layers=0)
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.003)
    if active is not None:
        assert model.active_parameters / 1e9 == pytest.approx(active, rel=0.025)


def test_latent_attention_by_hand() -> None:
    """Down to the ranks and the key of positions; up to queries, to keys without positions, and to values; and out."""
    down = 512 * (192 + 128 + 32)
    up = 192 * 8 * 96 + 128 * 8 * (96 - 32) + 128 * 8 * 64
    assert LATENT.attention_parameters == down + up + 8 * 64 * 512
    without = replace(LATENT, query_rank=0)
    assert without.attention_parameters == 512 * (128 + 32) + 512 * 8 * 96 + 128 * 8 * 128 + 8 * 64 * 512
    scores = 2 * 1024**2 * 8 * (96 + 64)
    assert LATENT.forward_flops(1) - replace(LATENT, seq=1).forward_flops(1) * 1024 == pytest.approx(
        LATENT.layers * scores * (1 - 1 / 1024)
    )


@given(window=st.integers(1, 4000), every=st.integers(0, 7))
def test_operations_of_windows_are_those_of_the_layers_one_by_one(window: int, every: int) -> None:
    model = replace(SMALL, window=window, full_every=every)
    views = [model.of_layer(layer) for layer in range(model.layers)]
    assert sum(not each.window for each in views) == (model.layers // every if every else 0)
    assert sum(count for _, count in layer_kinds(model)) == model.layers
    alone = [replace(each, layers=1).forward_flops(1) for each in views]
    words = 2 * model.hidden * model.seq * model.vocab
    assert model.forward_flops(1) == pytest.approx(sum(alone) - (model.layers - 1) * words)
    assert model.forward_flops(1) <= SMALL.forward_flops(1)


@given(window=st.integers(1, 1024))
def test_a_window_never_takes_longer(window: int) -> None:
    layout = Layout(fused_attention=True)
    narrow, whole = (
        layer_block(model, layout, H100)
        for model in (replace(SMALL, window=window, seq=8192), replace(SMALL, seq=8192))
    )
    assert narrow.forward <= whole.forward
    assert narrow.input_gradient <= whole.input_gradient
    assert narrow.weight_gradient == whole.weight_gradient


def test_a_window_saves_nothing_where_scores_leave_the_chip() -> None:
    layout = Layout(fused_attention=False)
    narrow, whole = (layer_block(model, layout, H100) for model in (replace(SMALL, window=16), SMALL))
    assert narrow == whole


def test_layers_that_predict_further_words_come_behind_the_last() -> None:
    further = replace(SMALL, mtp_layers=1)
    layer = (SMALL.dense_parameters / SMALL.layers) + SMALL.small_parameters
    assert further.parameters - SMALL.parameters == layer + 2 * 512**2 + 3 * 512
    layout = Layout(pipeline=2, data=1, global_batch=4)
    plain, more = (layer_block(model, layout, H100) for model in (SMALL, further))
    assert more == plain
    head, longer = (end_blocks(model, layout, H100)[1].compute for model in (SMALL, further))
    assert longer > 2 * head + plain.compute
    assert memory_of(further, Layout()).total > memory_of(SMALL, Layout()).total


def test_tensor_parallelism_shards_heads_but_not_what_they_are_made_from() -> None:
    whole = layer_block(LATENT, Layout(), H100)
    shared = layer_block(LATENT, Layout(tensor=4), H100)
    assert whole.forward / 4 < shared.forward < whole.forward


@given(
    context=st.sampled_from([2, 4, 8]),
    seq=st.sampled_from([2048, 16384, 131072]),
    box=st.sampled_from([1, 8]),
)
def test_a_ring_of_keys_waits_for_what_attention_does_not_hide(context: int, seq: int, box: int) -> None:
    """Block by block, as the ring does it: attention to a block, and meanwhile the next one comes."""
    model = replace(SMALL, seq=seq)
    device = replace(H100.device, box=box)
    cluster = replace(H100, device=device)
    gathered = Layout(context=context, fused_attention=True)
    ring = replace(gathered, context_ring=True)
    size = 2 * seq * model.key_value_width
    whole = cluster.ring_seconds(size, context, 1, rounds=1)

    def waited_in(layout: Layout, when: str) -> float:
        exchanges = layer_block(model, layout, cluster).exchanges
        return exchange_seconds((each for each in exchanges if each.when == when), "cp")

    assert (waited_in(gathered, FORWARD), waited_in(gathered, BACKWARD)) == (whole, 2 * whole)
    part = transformer_layer(model, ring, cluster.framework)[0]
    own = next(each for each in part.operators if isinstance(each, AttentionProducts))
    took = operator_seconds(own, 1, cluster)
    for when, attention, sent in (
        (FORWARD, took.forward, whole),
        (BACKWARD, took.backward, 2 * whole),
    ):
        waited = waited_in(ring, when)
        now = computed = 0.0
        arrived = 0.0
        for block in range(context):
            now = max(now, arrived)
            computed += attention / context
            if block < context - 1:
                arrived = now + sent / (context - 1)
            now += attention / context
        assert waited == pytest.approx(now - computed, abs=1e-12)


def test_a_ring_of_keys_is_a_key_of_jobs(tmp_path: Path) -> None:
    text = """
    model = {name = "llama3-8b", seq = 131072}
    cluster = {topology = "dgx-h100", boxes = 2}
    layout = {cp = 16, global_batch = 1%s}
    """
    took = []
    for words in ("", ', cp_comm = "all_gather"', ', cp_comm = "p2p"'):
        path = tmp_path / "job.toml"
        path.write_text(text % words)
        took.append(simulated_job(read_job(path)).seconds)
    assert took[0] == took[1] > took[2]
    path.write_text((text % ', cp_comm = "p2p"').replace("cp = 16, ", ""))
    with pytest.raises(InputError, match=r"`layout.cp_comm`: expected cp of 2 or more"):
        read_job(path)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"query_rank": 64}, "expected latent attention"),
        ({"rope_width": 64}, "expected latent attention"),
        ({"kv_rank": 64, "rope_width": 64, "head_width": 64}, "`rope_width` below `head_width`"),
        ({"kv_rank": 64, "head_width": 64, "kv_heads": 2}, "leave one out"),
        ({"full_every": 2}, "expected a `window` beside `full_every` 2"),
        ({"window": -1}, "expected `window` of 0 or more"),
        ({"mtp_layers": -1}, "expected `mtp_layers` of 0 or more"),
    ],
)
def test_what_does_not_go_together(wrong: dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(SMALL, **wrong)
