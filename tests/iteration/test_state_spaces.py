"""Models with state-space layers: sizes and operations of published ones, and what their parts take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coppice.errors import InputError
from coppice.iteration.estimate import estimate
from coppice.iteration.job.composed import simulated_job
from coppice.iteration.job.file import parse_job_record
from coppice.iteration.job.job import TrainingJob, job_of
from coppice.iteration.layout import Layout, Recompute
from coppice.iteration.machine import cluster_of
from coppice.iteration.memory import memory_of
from coppice.iteration.models import MODELS
from coppice.iteration.state_space import CHUNK, StateSpace
from coppice.iteration.step.blocks import kinds_of_blocks, layer_block
from coppice.iteration.transformer import Transformer, layer_kinds
from coppice.iteration.workload.transformers import transformer_layer
from coppice.topology.presets import preset

H100 = cluster_of(preset("dgx-h100", boxes=2))
HYBRIDS = ("nemotron-h-8b", "jamba-52b")


def job(layout: str, model: str = 'name = "nemotron-h-8b"') -> TrainingJob:
    text = f'[model]\n{model}\n[cluster]\ntopology = "dgx-h100"\nboxes = 2\n[layout]\n{layout}\n'
    return job_of(parse_job_record(text, where="job.toml"))


def test_published_sizes() -> None:
    # 8.1 billion weights; 24 Mamba-2, 4 attention and 24 MLP layers (arXiv 2504.03624, table 1).
    nemotron, jamba = (MODELS[name] for name in HYBRIDS)
    assert nemotron.parameters / 1e9 == pytest.approx(8.1, abs=0.05)
    assert {view.pattern: count for view, count in layer_kinds(nemotron)} == {"M": 24, "*": 4, "-": 24}
    # 52 billion weights, 12 of which a token meets (arXiv 2403.19887); 7 Mamba layers to one of attention.
    assert jamba.parameters / 1e9 == pytest.approx(52, abs=0.5)
    assert jamba.active_parameters / 1e9 == pytest.approx(12, abs=0.2)
    assert {view.pattern: count for view, count in layer_kinds(jamba)} == {"M": 28, "*": 4, "-": 16, "E": 16}


def test_operations_of_a_chunk_are_those_of_its_products() -> None:
    layer = StateSpace(hidden=64, heads=4, head_width=8, groups=2, state=16, rank=0)
    rng, found = np.random.default_rng(0), 0

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        nonlocal found
        found += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        return a @ b

    inputs, outputs = (rng.normal(size=(layer.groups, CHUNK, layer.state)) for _ in range(2))
    values = rng.normal(size=(layer.heads, CHUNK, layer.head_width))
    scores = [product(outputs[group], inputs[group].T) for group in range(layer.groups)]
    for head in range(layer.heads):
        group = head * layer.groups // layer.heads
        within = product(np.tril(scores[group]), values[head])
        state = product(inputs[group].T, values[head])
        assert (within + product(outputs[group], state)).shape == values[head].shape
    assert layer.scan_flops == found / CHUNK


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.OPERATORS, Recompute.FULL])
def test_a_hybrid_takes_what_its_kinds_take(name: str, recompute: Recompute) -> None:
    model = MODELS[name]
    layout = Layout(data=16, global_batch=16, recompute=recompute)
    kinds = kinds_of_blocks(model, layout, H100)
    found = estimate(model, layout, H100)
    assert found.compute == pytest.approx(sum(each.compute * count for each, count in kinds))
    assert all(each.forward <= each.input_gradient + each.weight_gradient for each, _ in kinds)
    parts = {
        view.pattern: {
            each.name for part in transformer_layer(view, layout, H100.framework) for each in part.operators
        }
        for view, _ in layer_kinds(model)
    }
    assert "scan" in parts["M"]
    assert not any("scan" in parts[kind] for kind in parts if kind != "M")
    assert "queries" in parts["*"]
    assert not {"queries", "up"} & parts["M"]


def test_a_pattern_of_attention_and_mlps_is_a_transformer() -> None:
    plain = replace(MODELS["llama3-8b"], extra_parameters=0)
    apart = replace(plain, layers=2 * plain.layers, pattern="*-")
    assert apart.parameters == plain.parameters
    assert apart.forward_flops(1) == plain.forward_flops(1)
    layout = Layout(tensor=2, data=8, global_batch=16, sequence_parallel=True, fused_attention=True)
    one = layer_block(plain, layout, H100)
    halves = [block for block, _ in kinds_of_blocks(apart, layout, H100)]
    for name in ("forward", "input_gradient", "weight_gradient"):
        assert sum(getattr(each, name) for each in halves) == pytest.approx(getattr(one, name))
    assert estimate(apart, layout, H100).tensor == pytest.approx(estimate(plain, layout, H100).tensor)
    held = [memory_of(each, layout).activations for each in (plain, apart)]
    assert held[0] == pytest.approx(held[1])


def test_longer_sequences_cost_states_less_than_attention() -> None:
    nemotron = MODELS["nemotron-h-8b"]
    attention = replace(
        nemotron, pattern="*-", state_width=0, state_heads=0, state_head_width=0, state_groups=1
    )
    grown = []
    for model in (nemotron, attention):
        layout = Layout(data=16, global_batch=16, fused_attention=True)
        times = [estimate(replace(model, seq=seq), layout, H100).compute for seq in (8192, 65536)]
        grown.append(times[1] / times[0])
    assert 7 < grown[0] < grown[1]


def test_jobs_of_hybrids_run() -> None:
    times = [
        simulated_job(job(layout)).seconds
        for layout in ("tp = 2\npp = 2", "tp = 2\npp = 2\nrecompute = 'full'")
    ]
    assert times[0] < times[1]
    assert simulated_job(job("ep = 8\nglobal_batch = 64\nshard = 'zero1'", 'name = "jamba-52b"')).seconds > 0
    shapes = 'layers = 4\nhidden = 512\nheads = 8\nffn = 1024\nseq = 256\nvocab = 999\npattern = "M-*-"'
    states = "state_width = 16\nstate_heads = 16\nstate_head_width = 64\nstate_groups = 2"
    assert job("", f"{shapes}\n{states}").model.share("M") == 0.25


@pytest.mark.parametrize(
    ("text", "layout", "words"),
    [
        ('pattern = "MX"', "", "expected a `pattern` of M * - E, found 'X' in 'MX'"),
        ('pattern = "ME"', "", "expected experts where `pattern` has mixtures (E), found 0 with 'ME'"),
        (
            'pattern = "M"\nstate_width = 0',
            "",
            "expected `state_width` of state-space layers (M), found none",
        ),
        ("state_groups = 5", "", "expected `state_groups` that divides 128 heads, found 5"),
        (
            'pattern = ""',
            "",
            "expected a `pattern` with state-space layers (M) beside `state_width`, found none",
        ),
        ("first_dense = 1", "", "expected no `first_dense` beside a `pattern`"),
        ("", "cp = 2", "expected cp 1 with state-space layers"),
    ],
)
def test_what_is_no_pattern_is_one_sentence(text: str, layout: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        job(layout, f'name = "nemotron-h-8b"\n{text}')
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_heads_of_states_are_divided_by_tensor_parallelism() -> None:
    shapes = 'layers = 2\nhidden = 512\nheads = 8\nffn = 1024\nseq = 256\nvocab = 999\npattern = "M"'
    states = "state_width = 16\nstate_heads = 6\nstate_head_width = 64"
    with pytest.raises(InputError, match="expected tp that divides 6 heads of state-space layers, found 4"):
        job("tp = 4", f"{shapes}\n{states}")
    assert isinstance(job("tp = 2", f"{shapes}\n{states}").model, Transformer)
