"""Job files: what they stand for, and errors that name the key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coppice.errors import InputError
from coppice.iteration.job import read_job
from coppice.iteration.job.composed import simulated_job
from coppice.iteration.job.file import job_keys, parse_job_record
from coppice.iteration.job.job import job_of
from coppice.iteration.job_options import parse_degrees
from coppice.iteration.layout import Recompute, Shard
from coppice.iteration.memory import memory_of
from coppice.iteration.transformer import Transformer
from iteration.test_measured import RECORD
from support.paths import ROOT

EXAMPLES = sorted((ROOT / "examples" / "iteration").glob("*.toml"))
CLUSTER = '[cluster]\ntopology = "dgx-a100"\nboxes = 2\n'
GPT = '[model]\nname = "gpt-7.5b"\n'


def job(text: str) -> object:
    return job_of(parse_job_record(text, where="job.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_and_fit(path: Path) -> None:
    found = read_job(path)
    assert found.layout.gpus == found.machines.gpus
    assert memory_of(found.model, found.layout).total < found.cluster.device.memory_bytes
    assert simulated_job(found).seconds > 0


def test_every_key_arrives() -> None:
    found = job(
        """
        [model]
        layers = 8
        hidden = 512
        heads = 8
        kv_heads = 4
        head_width = 128
        ffn = 2048
        gated = true
        seq = 128
        vocab = 1000
        tied = false
        causal = false
        biases = true
        experts = 8
        experts_per_token = 2
        expert_ffn = 256
        shared_ffn = 128
        expert_every = 2
        first_dense = 2
        capacity_factor = 1.5
        [cluster]
        topology = "dgx-a100"
        boxes = 2
        rates = "nominal"
        device = "H100"
        [layout]
        tp = 2
        pp = 2
        dp = 2
        cp = 2
        ep = 4
        chunks = 2
        micro_batch = 2
        global_batch = 16
        recompute = "full"
        shard = "fsdp"
        sequence_parallel = false
        fused_attention = false
        [run]
        order = "interleaved"
        overlap = "fsdp"
        precision = 2.0
        """
    )
    model, layout = found.model, found.layout
    assert isinstance(model, Transformer)
    assert (model.mlp_matrices, model.kv_heads, model.head_width) == (3, 4, 128)
    assert (model.tied, model.causal, model.biases) == (False, False, True)
    assert (model.experts, model.experts_per_token, model.expert_ffn, model.shared_ffn) == (8, 2, 256, 128)
    assert (model.expert_every, model.first_dense, model.capacity_factor) == (2, 2, 1.5)
    assert (layout.tensor, layout.pipeline, layout.data, layout.context, layout.expert) == (2, 2, 2, 2, 4)
    assert (layout.chunks, layout.micro_batch, layout.global_batch) == (2, 2, 16)
    assert (layout.recompute, layout.shard) == (Recompute.FULL, Shard.ZERO3)
    assert (layout.sequence_parallel, layout.fused_attention) == (False, False)
    assert (found.cluster.device.name, found.cluster.precision) == ("H100", 2.0)
    assert found.run.policy == "interleaved+fsdp"


def test_what_is_left_out() -> None:
    layout = job(GPT + CLUSTER + "[layout]\ntp = 2\npp = 2\nmicro_batch = 3").layout
    assert (layout.data, layout.global_batch) == (4, 12)
    assert layout.recompute is Recompute.NONE
    smaller = job('[model]\nname = "gpt-7.5b"\nseq = 512\n' + CLUSTER).model
    assert (smaller.seq, smaller.hidden) == (512, 4096)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[layout]\ntp = 0",
            "`layout.tp`: expected an integer from 1 to 1,000,000,000 (tensor parallelism), found 0 in job.toml",
        ),
        (
            "[layout]\ntp = 2.5",
            "`layout.tp`: expected an integer from 1 to 1,000,000,000 (tensor parallelism), found 2.5",
        ),
        ("[layout]\nfused_attention = 1", "`layout.fused_attention`: expected true or false"),
        (
            '[layout]\nrecompute = "all"',
            "expected one of full, none, operators, selective (what is computed again), found 'all'",
        ),
        ("[layout]\ntpp = 2", "found an unknown one in job.toml: did you mean 'tp'"),
        (
            "[layouts]\ntp = 2",
            "`layouts`: expected a table of a job, found it in job.toml: did you mean 'layout'",
        ),
        ("tp = 2", "`tp`: expected a table of a job, found it in job.toml: write it under [layout]"),
        ("[layout]\nhidden = 2", "found an unknown one in job.toml: write it under [model]"),
        ("layout = 3", "`layout`: expected a table, found 3"),
        ("[layout\n", "expected TOML in job.toml, found otherwise"),
        ("[model]\ncapacity_factor = -1", "`model.capacity_factor`: expected a number from 0 to 1,000,000"),
        ("[run]\nprecision = 0", "`run.precision`: expected a number above 0"),
        ("[run]\nprecision = inf", "`run.precision`: expected a number above 0 and up to 1000"),
        ("[run]\nprecision = nan", "`run.precision`: expected a number above 0 and up to 1000"),
        ("[model]\nlayers = 1000000000000", "`model.layers`: expected an integer from 1 to 100,000"),
        (
            "[layout]\nglobal_batch = 100000000000000000000000000",
            "`layout.global_batch`: expected an integer from 1 to 1,000,000,000",
        ),
        (
            GPT + CLUSTER + "[layout]\ntp = 8\npp = 2\nglobal_batch = 1000000",
            "found 2,000,000 (1,000,000 micro-batches on 2 stages): raise micro_batch, or lower global_batch",
        ),
        (
            '[model]\nname = "vgg-16"\n' + CLUSTER + "[layout]\nglobal_batch = 16000000",
            "found 1,000,000 (1,000,000 micro-batches on 1 stages)",
        ),
        (GPT + CLUSTER + "[layout]\nchunks = 4", "found 4 with pp 1: raise pp, or leave chunks out"),
        (
            '[model]\nname = "mixtral-8x7b"\nfirst_dense = 33\n' + CLUSTER,
            "expected a layer with experts, found none of 32: lower `expert_every` (1) or `first_dense` (33)",
        ),
        (
            '[model]\nname = "gpt-7.5b"\nfirst_dense = 40\n' + CLUSTER,
            "`model.first_dense`: expected a model with experts, found none: give `model.experts`",
        ),
        (
            '[model]\nname = "bloom"\nlayers = 70\nhidden = 14336\n' + CLUSTER,
            "or give `model.heads`, `model.ffn`, `model.seq`, `model.vocab` as well",
        ),
        ("[cluster]\nmixed = [{boxes = 2}]", "missing required field `topology`"),
        ("[cluster]\nmixed = 3", "`cluster.mixed`: expected an array of tables"),
        (GPT, "`cluster.topology`: expected a preset or file, or `cluster.mixed`, found neither"),
        (CLUSTER, "`model.layers`: expected a number, or a model named by `model.name`, found neither"),
        ('[model]\nname = "gpt-7.5"\n' + CLUSTER, "did you mean 'gpt-7.5b'"),
        ('[model]\nname = "vgg-16"\nseq = 2\n' + CLUSTER, "`model.seq`: expected a key that vgg-16 has"),
        (
            '[model]\nname = "gpt-7.5b"\nkv_heads = 5\n' + CLUSTER,
            "[model]: expected `kv_heads` that divides 32 heads",
        ),
        (GPT + CLUSTER + "[layout]\ntp = 3", "expected tp x pp x cp that divides 16 GPUs, found 3"),
        (GPT + CLUSTER + "[layout]\ntp = 2\ndp = 2", "whose product is the 16 GPUs of 2 x dgx-a100, found 4"),
        (
            GPT + CLUSTER + "[layout]\npp = 16\nchunks = 3\nglobal_batch = 16\n",
            "at most as many stages as the 36 layers, found 16 x 3: lower pp or chunks",
        ),
        (
            GPT + CLUSTER + "[layout]\nep = 4\n",
            "expected a model with experts for ep 4, found none: leave ep out",
        ),
        (GPT + CLUSTER + "[layout]\nep = 3\n", "expected ep that divides 16 replicas (dp x cp), found 3"),
        (GPT + CLUSTER + "[layout]\nglobal_batch = 7\n", "multiple of 1 sequences x 16 replicas, found 7"),
        (
            '[model]\nname = "vgg-16"\n' + CLUSTER + "[layout]\ntp = 2",
            "vgg-16, which is not cut, found 2 for tp",
        ),
        (
            '[model]\nname = "gpt-7.5b"\nheads = 12\nhidden = 4092\n' + CLUSTER + "[layout]\ntp = 8\n",
            "expected tp that divides 12 heads, found 8",
        ),
        (
            '[model]\nname = "gpt-7.5b"\nseq = 2047\n' + CLUSTER + "[layout]\ncp = 2\n",
            "cp that divides 2047 tokens",
        ),
        (
            '[model]\nname = "gpt-7.5b"\n[cluster]\ntopology = "dgx-a100"\ndevice = "A1000"',
            "found 'A1000': did you mean 'A100'",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence_with_the_key(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        job(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("numbers", "billions"),
    [
        # BLOOM, Falcon 40B and GPT-NeoX 20B as their papers have them.
        (
            'name = "bloom"\nlayers = 70\nhidden = 14336\nheads = 112\nffn = 57344\nseq = 2048\nvocab = 250880\n',
            176.2,
        ),
        (
            (
                'name = "falcon-40b"\nlayers = 60\nhidden = 8192\nheads = 128\nkv_heads = 8\nffn = 32768\nseq = 2048\n'
                "vocab = 65024\nhead_width = 64\n"
            ),
            41.3,
        ),
        (
            (
                'name = "gpt-neox-20b"\nlayers = 44\nhidden = 6144\nheads = 64\nffn = 24576\nseq = 2048\n'
                "vocab = 50432\ntied = false\n"
            ),
            20.6,
        ),
    ],
)
def test_a_model_that_is_told_in_full_has_a_name_of_its_own(numbers: str, billions: float) -> None:
    found = job(f"[model]\n{numbers}" + CLUSTER)
    assert found.name == numbers.split('"')[1]
    assert found.model.parameters / 1e9 == pytest.approx(billions, abs=0.15)


def test_a_degree_is_given_once() -> None:
    with pytest.raises(InputError, match=r"found tp twice in 'tp=4,tp=8'"):
        parse_degrees("tp=4,tp=8")


def test_files_are_looked_for_beside_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "mine.json").write_text(json.dumps(RECORD))
    (folder / "job.toml").write_text(GPT + CLUSTER + 'device = "mine.json"\n[layout]\ntp = 8\n')
    monkeypatch.chdir(tmp_path)
    found = read_job(folder / "job.toml").cluster
    assert found.table is not None
    assert found.table.name == "NVIDIA H200"
    assert found.device.flops == 989.4e12
    with pytest.raises(InputError, match=r"missing\.toml"):
        read_job(tmp_path / "missing.toml")


def test_the_page_lists_every_key() -> None:
    page = (ROOT / "docs" / "jobs.md").read_text()
    for table, key, values, meaning in job_keys():
        assert f"| `{table}.{key}` | {meaning} | {values} |" in page
