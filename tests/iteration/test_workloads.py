"""Models as workloads: published sizes, sequential models that add up, and times on devices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.errors import InputError
from coppice.iteration.devices import CALIBRATIONS, DEVICES
from coppice.iteration.estimate import estimate
from coppice.iteration.frameworks import FRAMEWORKS
from coppice.iteration.job.composed import step_of
from coppice.iteration.job.job import KindOfBox, Machines
from coppice.iteration.layout import Layout, Recompute, Shard
from coppice.iteration.machine import Cluster, cluster_of
from coppice.iteration.measured.table import AttentionRow, CopyRow, DeviceTable, MatrixRow
from coppice.iteration.memory import layer_bytes, memory_of
from coppice.iteration.models import MODELS, any_model
from coppice.iteration.policies.catalogue import POLICIES
from coppice.iteration.policies.step_plans import plan_named
from coppice.iteration.predicted import predict
from coppice.iteration.search import estimate_of
from coppice.iteration.step.simulated import order_for, simulate_step
from coppice.iteration.transformer import Transformer
from coppice.iteration.workload.nets import LAYERED_MODELS
from coppice.iteration.workload.single import single_workload
from coppice.iteration.workload.times import layer_workload, product_seconds
from coppice.iteration.workload.transformers import transformer_row
from coppice.topology.presets import preset

PLAIN = FRAMEWORKS["megatron-2021"]
A100 = Cluster(device=DEVICES["A100-80G"], nic_bytes_per_second=200e9, calibration=CALIBRATIONS["A100-80G"])


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # torchvision's models; Inception without its auxiliary classifier, which has 3,326,696 of 27,161,264
        ("alexnet", 61_100_840),
        ("densenet-121", 7_978_856),
        ("densenet-169", 14_149_480),
        ("densenet-201", 20_013_928),
        ("inception-v3", 27_161_264 - 3_326_696),
        ("resnet-50", 25_557_032),
        ("resnet-101", 44_549_160),
        ("resnet-152", 60_192_808),
        ("vgg-16", 138_357_544),
        ("vgg-19", 143_667_240),
        ("vit-b16", 86_567_656),
        ("vit-l16", 304_326_632),
        ("vit-h14", 632_045_800),
        # those of their authors, and of timm
        ("inception-v4", 42_679_816),
        ("bert-base", 109_482_240),
        ("bert-large", 335_141_888),
        ("gpt2-xl", 1_557_611_200),
        ("llama2-7b", 6_738_415_616),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
        ("deepseek-moe-16b", 16_375_728_128),
    ],
)
def test_models_have_their_published_sizes(name: str, parameters: int) -> None:
    assert any_model(name).parameters == parameters


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        # Multiply-adds counted once: He et al. (CVPR 2016), table 1, and torchvision's counts.
        ("alexnet", 0.714),
        ("densenet-121", 2.83),
        ("densenet-169", 3.36),
        ("densenet-201", 4.29),
        ("inception-v3", 5.71),
        ("resnet-50", 4.09),
        ("resnet-101", 7.8),
        ("resnet-152", 11.51),
        ("vgg-16", 15.47),
        ("vgg-19", 19.63),
        ("vit-b16", 17.56),
        ("vit-l16", 61.55),
        ("vit-h14", 167.29),
    ],
)
def test_models_have_their_published_operations(name: str, billions: float) -> None:
    assert any_model(name).forward_flops(1) / 2e9 == pytest.approx(billions, rel=2e-3)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_layers_of_a_transformer_add_up(name: str) -> None:
    model = MODELS[name]
    row = transformer_row(model)
    assert sum(each.parameters for each in row) == pytest.approx(model.parameters, rel=1e-12)
    padded = (model.capacity_factor or 1.0) - 1
    spare = 2 * model.seq * model.expert_layers * model.experts_per_token * model.expert_parameters * padded
    assert sum(each.flops for each in row) == pytest.approx(model.forward_flops(1) + spare, rel=1e-12)
    further = model.mtp_layers if model.of_layer(model.layers - 1).experts else 0
    experts = model.expert_layers + further
    assert sum(each.expert_parameters for each in row) == experts * model.experts * model.expert_parameters
    assert sum(each.kind == "experts" for each in row) == experts


def test_what_a_layer_keeps_is_the_papers_formula() -> None:
    # Korthikanti et al. (MLSys 2023), equation 1: s b h (34 + 5 a s / h).
    model = MODELS["gpt-175b"]
    unit = model.seq * model.hidden
    assert layer_bytes(model, Layout(fused_attention=True), PLAIN) == 34 * unit
    scores = 5 * model.heads * model.seq / model.hidden
    assert layer_bytes(model, Layout(), PLAIN) == pytest.approx(unit * (34 + scores))
    # A gated MLP has one result more, and 8 heads of keys and values a twelfth of theirs.
    gated = replace(model, mlp_matrices=3, kv_heads=8)
    assert layer_bytes(gated, Layout(fused_attention=True), PLAIN) == pytest.approx(
        unit * (34 + 8 - 4 * 11 / 12)
    )


@pytest.mark.parametrize("fields", [{"experts": 4, "experts_per_token": 5}, {"kv_heads": 5}])
def test_models_that_cannot_be(fields: dict[str, int]) -> None:
    with pytest.raises(InputError, match=r"expected `(experts_per_token|kv_heads)`"):
        replace(MODELS["gpt-175b"], **fields)
    with pytest.raises(InputError, match=r"found none of 2: lower `expert_every` \(3\)"):
        Transformer(layers=2, hidden=8, heads=1, ffn=8, seq=8, vocab=8, experts=2, expert_every=3)
    with pytest.raises(InputError, match="did you mean 'resnet-50'"):
        any_model("resnet50")


@pytest.mark.parametrize("name", [*LAYERED_MODELS, "bert-large", "mixtral-8x7b"])
def test_every_model_is_a_workload_of_policies(name: str) -> None:
    model = any_model(name)
    workload = layer_workload(model, A100, workers=16, samples=4)
    copied = model.parameters - sum(
        each.expert_parameters
        for each in (transformer_row(model) if isinstance(model, Transformer) else model.row)
    )
    size = 2 if isinstance(model, Transformer) else model.gradient_bytes
    assert sum(workload.bytes) == pytest.approx(size * copied)
    assert workload.message(1e9) == pytest.approx(A100.ring_seconds(1e9, 16, 1, share=A100.gradient_share))
    more = layer_workload(model, A100, workers=16, samples=8)
    assert workload.compute_seconds < more.compute_seconds < 2.01 * workload.compute_seconds
    given = layer_workload(model, A100, workers=16, samples=4, bytes_per_second=1.0, message_seconds=2.0)
    assert (given.bytes_per_second, given.message_seconds) == (1.0, 2.0)


def test_policies_order_gradients_of_nets() -> None:
    """On a slow network sums beside the backward pass, and the most urgent first, save what theory says (VGG-19)."""
    vgg = layer_workload(any_model("vgg-19"), A100, workers=16, samples=32, bytes_per_second=4e9)
    times = {name: predict(vgg, name).iteration_seconds for name in ("serial", "wfbp", "ddp")}
    assert times["wfbp"] < times["serial"]
    assert all(each >= vgg.lower_bound_seconds() * (1 - 1e-9) for each in times.values())
    assert "serial" in POLICIES


def test_a_step_of_layers_is_the_simulated_policy() -> None:
    """The step of a net with buckets sends what its layers have, beside the backward pass."""
    layout = Layout(data=16, micro_batch=64, global_batch=2048)
    machines = Machines(name="x", kinds=(kind("dgx-a100", 2),))
    model = any_model("resnet-50")
    step = step_of(model, layout, machines)
    assert sum(each.parameters for each in step.stages[0]) == model.parameters
    _, order = order_for(None, 1, layout.micro_batches, 1)
    found = simulate_step(step, plan_named("ddp", step, order))
    plain = simulate_step(step, plan_named("none", step, order))
    assert found.seconds < plain.seconds
    closed = estimate_of(model, layout, machines.cluster)
    assert found.seconds == pytest.approx(closed.seconds, rel=0.02)


def kind(name: str, boxes: int) -> KindOfBox:
    topology = preset(name, boxes=boxes)
    return KindOfBox(name=topology.name, boxes=boxes, cluster=cluster_of(topology), topology=topology)


@pytest.mark.parametrize("recompute", Recompute)
@pytest.mark.parametrize(("tensor", "pipeline", "expert"), [(1, 1, 8), (2, 1, 2), (2, 2, 4), (1, 4, 1)])
def test_mixtures_agree_with_the_closed_form(
    tensor: int, pipeline: int, expert: int, recompute: Recompute
) -> None:
    machines = Machines(name="x", kinds=(kind("dgx-h100", 2),))
    data = 16 // tensor // pipeline
    layout = Layout(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        expert=expert,
        global_batch=8 * data,
        recompute=recompute,
        shard=Shard.ZERO1,
    )
    for model in (MODELS["mixtral-8x7b"], replace(MODELS["mixtral-8x7b"], expert_every=2)):
        closed = estimate(model, layout, machines.cluster)
        _, order = order_for(None, pipeline, layout.micro_batches, 1)
        step = step_of(model, layout, machines)
        found = simulate_step(step, plan_named("none", step, order))
        assert found.seconds == pytest.approx(closed.seconds, rel=0.03)
        assert (found.parts["experts"] > 0) == (closed.exchange > 0) == (expert > 1)


def test_what_experts_cost() -> None:
    model, layout = MODELS["mixtral-8x7b"], Layout(data=8, expert=8, global_batch=64)
    base = estimate(model, layout, A100)
    padded = estimate(replace(model, capacity_factor=1.5), layout, A100)
    assert padded.compute > 1.2 * base.compute
    assert padded.exchange > 1.2 * base.exchange
    assert padded.flops == base.flops
    alone = estimate(model, replace(layout, expert=1), A100)
    assert alone.gradients > 4 * base.gradients
    more = estimate(replace(model, experts_per_token=4), layout, A100)
    assert more.exchange > 1.4 * base.exchange


def test_memory_of_experts_and_shards() -> None:
    model = MODELS["mixtral-8x7b"]
    words = model.vocab * model.hidden
    # The embedding and the output layer have weights of their own.
    whole = memory_of(model, Layout(data=8, global_batch=8))
    assert whole.parameters == 2 * (model.dense_parameters + 2 * words + model.routed_parameters)
    spread = memory_of(model, Layout(data=8, expert=8, global_batch=8))
    assert spread.parameters == pytest.approx(
        2 * (model.dense_parameters + 2 * words + model.routed_parameters / 8)
    )
    # ZeRO (SC 2020), figure 1: 2 and 2 and 12 bytes for each weight, of which stages shard 12, 14, 16.
    gpt = Transformer(layers=1, hidden=1024, heads=8, ffn=4096, seq=8, vocab=7_488_000)
    weights = gpt.dense_parameters + gpt.vocab * gpt.hidden
    halves = replace(PLAIN, kept_gradient_bytes=2.0)

    def states(shard: Shard) -> float:
        held = memory_of(gpt, Layout(data=64, global_batch=64, shard=shard), halves)
        gathered = 4 * gpt.dense_parameters if shard is Shard.ZERO3 else 0.0  # two layers, of 16-bit weights
        return held.parameters + held.gradients + held.optimizer - gathered

    assert states(Shard("fsdp")) == pytest.approx(16 / 64 * weights)
    for shard, factor in ((Shard.NONE, 16), (Shard.ZERO1, 4 + 12 / 64), (Shard.ZERO2, 2 + 14 / 64)):
        assert states(shard) == pytest.approx(factor * weights)
    # The paper's figures for 7.5 billion weights on 64 GPUs: 120, 31.4, 16.6 and 1.9 GB.
    published = [(Shard.NONE, 120), (Shard.ZERO1, 31.4), (Shard.ZERO2, 16.6), (Shard.ZERO3, 1.9)]
    for shard, gigabytes in published:
        assert 7.5 * states(shard) / weights == pytest.approx(gigabytes, rel=0.02)


def test_memory_of_rows_of_layers() -> None:
    net = any_model("vgg-16")
    held = memory_of(net, Layout(data=8, micro_batch=32, global_batch=256))
    assert (held.parameters, held.gradients) == (4 * net.parameters, 4 * net.parameters)
    double = memory_of(net, Layout(data=8, micro_batch=64, global_batch=512))
    assert double.activations == 2 * held.activations
    sharded = memory_of(net, Layout(data=8, micro_batch=32, global_batch=256, shard=Shard.ZERO2))
    assert (sharded.gradients, sharded.optimizer) == (held.gradients / 8, held.optimizer / 8)
    tables = any_model("dlrm")
    spread = [memory_of(tables, Layout(data=n, global_batch=n)).parameters for n in (8, 16)]
    assert spread[0] == pytest.approx(2 * spread[1], rel=1e-3)
    assert 8 * spread[0] > 4 * 24e9


@given(share=st.floats(0.1, 0.9))
def test_a_measured_table_takes_the_place_of_constants(share: float) -> None:
    rows = [MatrixRow(m=m, n=n, k=n, tflops_per_s=312 * share) for m in (16, 16384) for n in (1024, 16384)]
    attention = AttentionRow(
        sequences=1, seq=2048, heads=8, head_width=128, forward_tflops_per_s=100.0, backward_tflops_per_s=50.0
    )
    table = DeviceTable(
        name="NVIDIA A100",
        matrices=tuple(rows),
        copies=(CopyRow(bytes=1 << 30, bytes_per_second=1e12),),
        attention=(attention,),
    )
    found = replace(A100, table=table)
    assert found.memory_rate == 1e12
    assert product_seconds(found, 777, 5000, 5000) == pytest.approx(2 * 777 * 5000**2 / (312e12 * share))
    layout = Layout(tensor=8, pipeline=8, global_batch=8, fused_attention=True)
    model = MODELS["gpt-175b"]
    times = estimate(model, layout, found), estimate(model, layout, replace(found, precision=2.0))
    assert times[1].compute < times[0].compute
    # Attention goes at the measured rates, its backward pass at its own.
    none = replace(table, attention=())
    other = estimate(model, layout, replace(A100, table=none))
    assert other.compute != times[0].compute


def test_attention_without_a_mask_computes_all_scores() -> None:
    model, layout = MODELS["gpt-7.5b"], Layout(fused_attention=True)
    masked = estimate(model, layout, A100)
    assert estimate(replace(model, causal=False), layout, A100).compute > masked.compute
    unfused = Layout()
    assert estimate(replace(model, causal=False), unfused, A100).compute == pytest.approx(
        estimate(model, unfused, A100).compute
    )


def test_training_with_32_bits_takes_the_operations_that_are_left() -> None:
    """Bounds by data sheet: 3 x 3 kernels of stride 1 multiply 2.25 times less, and nothing beats 80% of the peak."""
    for name in ("vgg-16", "resnet-50", "inception-v3"):
        model = any_model(name)
        found = single_workload(model, "P100", workers=2, samples=32, bytes_per_second=1e9)
        products = [(layer, each) for layer in model.row for each in layer.products]
        flops = sum(each.flops / (2.25 if each.kernel == 3 else 1) for _, each in products)
        assert 3 * 32 * flops / (0.8 * 10.6e12) < found.compute_seconds < 3 * 32 * flops / (0.3 * 10.6e12)
        assert sum(found.bytes) == 4 * model.parameters
    assert sum(each.kernel == 3 for layer in any_model("vgg-16").row for each in layer.products) == 13
    # Three stages of ResNet begin with a stride in a kernel of 3 x 3.
    assert sum(each.kernel == 3 for layer in any_model("resnet-50").row for each in layer.products) == 13
    base = single_workload(any_model("bert-base"), "V100", workers=2, samples=8, bytes_per_second=1e9)
    assert sum(base.bytes) == pytest.approx(4 * any_model("bert-base").parameters)


def test_a_gpu_without_a_known_peak_of_32_bits_is_refused() -> None:
    with pytest.raises(InputError, match="found H100: take one"):
        single_workload(any_model("alexnet"), "H100", workers=2, samples=1, bytes_per_second=1e9)
