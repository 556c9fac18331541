"""Partial recomputation, groups of replicas that shard, tokens that cross to a box once, and capped cards."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coppice.errors import InputError
from coppice.iteration.accuracy import estimate_range
from coppice.iteration.costs.traffic import job_demands
from coppice.iteration.devices import DEVICES, Cap
from coppice.iteration.estimate import estimate
from coppice.iteration.frameworks import FRAMEWORKS
from coppice.iteration.job.composed import simulated_job
from coppice.iteration.job.file import parse_job_record
from coppice.iteration.job.job import TrainingJob, job_of
from coppice.iteration.layout import MODULES, Layout, Recompute, Shard, recomputed_layers
from coppice.iteration.machine import Cluster, box_of, capped, cluster_of
from coppice.iteration.memory import memory_of
from coppice.iteration.models import MODELS
from coppice.iteration.step.blocks import layer_block, stalls_of, transformer_step
from coppice.iteration.step.exchanges import crossing_share
from coppice.iteration.transformer import Transformer
from coppice.iteration.workload.times import product_seconds
from coppice.topology.presets import preset

H100 = cluster_of(preset("dgx-h100", boxes=4))
LLAMA = MODELS["llama3-8b"]


def job(
    layout: str, *, model: str = "llama3-8b", topology: str = "dgx-h100", cluster: str = ""
) -> TrainingJob:
    text = f'[model]\nname = "{model}"\n[cluster]\ntopology = "{topology}"\nboxes = 4\n{cluster}\n[layout]\n{layout}\n'
    return job_of(parse_job_record(text, where="job.toml"))


def seconds(model: Transformer, layout: Layout, cluster: Cluster = H100) -> float:
    """Time of a device's passes over its blocks, and of what they exchange."""
    step = transformer_step(model, layout, cluster)
    return sum(
        block.compute + sum(each.seconds for each in block.exchanges)
        for stage in step.stages
        for block in stage
    )


models = st.builds(
    Transformer,
    layers=st.sampled_from([4, 6, 12]),
    hidden=st.sampled_from([512, 1024, 4096]),
    heads=st.sampled_from([8, 16]),
    kv_heads=st.sampled_from([0, 4, 8]),
    ffn=st.sampled_from([1024, 4096, 14336]),
    mlp_matrices=st.sampled_from([2, 3]),
    seq=st.sampled_from([512, 4096]),
    vocab=st.just(32000),
    experts=st.sampled_from([0, 8]),
    experts_per_token=st.sampled_from([1, 2]),
    expert_every=st.sampled_from([1, 2]),
    shared_ffn=st.sampled_from([0, 512]),
)
layouts = st.builds(
    Layout,
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2]),
    data=st.sampled_from([1, 4]),
    micro_batch=st.sampled_from([1, 2]),
    global_batch=st.just(64),
    sequence_parallel=st.booleans(),
    fused_attention=st.booleans(),
)


@given(model=models, layout=layouts, framework=st.sampled_from(sorted(FRAMEWORKS)))
@settings(max_examples=60, deadline=None)
def test_computing_more_again_takes_no_more_memory_and_no_less_time(
    model: Transformer, layout: Layout, framework: str
) -> None:
    profile = FRAMEWORKS[framework]
    cluster = replace(H100, framework=profile)
    held = model.layers // layout.pipeline
    some: list[Layout] = [layout]
    some += [replace(layout, recompute=Recompute.FULL, recompute_layers=n) for n in range(1, held)]
    some.append(replace(layout, recompute=Recompute.FULL))
    times = [seconds(model, each, cluster) for each in some]
    assert all(fewer <= more * (1 + 1e-12) for fewer, more in itertools.pairwise(times))
    kept = [memory_of(model, each, profile).activations for each in some]
    # Of layers that are all computed again the input of the last one stays beside what it needs.
    slack = 2 * layout.micro_batch * model.seq * model.hidden
    assert all(more <= fewer + slack for fewer, more in itertools.pairwise(kept))
    for kind in (Recompute.OPERATORS, Recompute.SELECTIVE):
        each = replace(layout, recompute=kind)
        assert times[0] <= seconds(model, each, cluster) <= times[-1] * (1 + 1e-12)
        assert memory_of(model, each, profile).activations <= kept[0] * (1 + 1e-12)
        every = replace(each, recompute_every=2)
        assert times[0] <= seconds(model, every, cluster) <= seconds(model, each, cluster) * (1 + 1e-12)


@given(model=models, layout=layouts, modules=st.lists(st.sampled_from(MODULES), unique=True, min_size=1))
@settings(max_examples=60, deadline=None)
def test_each_module_more_takes_no_more_memory_and_no_less_time(
    model: Transformer, layout: Layout, modules: list[str]
) -> None:
    some = [
        replace(layout, recompute=Recompute.SELECTIVE, recompute_modules=tuple(modules[:n]))
        for n in range(1, len(modules) + 1)
    ]
    plain = replace(layout, recompute=Recompute.NONE)
    times = [seconds(model, each) for each in (plain, *some)]
    assert all(fewer <= more * (1 + 1e-12) for fewer, more in itertools.pairwise(times))
    kept = [memory_of(model, each).activations for each in (plain, *some)]
    assert all(more <= fewer * (1 + 1e-12) for fewer, more in itertools.pairwise(kept))


def test_operators_computes_every_second_product_again() -> None:
    # Of queries, keys, values, output, gate, up and down: keys, output and up.
    layout = Layout(micro_batch=2, global_batch=2, fused_attention=True)
    free = replace(
        H100.framework, norm_passes=0.0, activation_passes=0.0, attention_passes=0.0, host_seconds=0.0
    )
    cluster = replace(H100, framework=free)
    work = layer_block(LLAMA, replace(layout, recompute=Recompute.OPERATORS), cluster)
    tokens = 2 * LLAMA.seq
    up = product_seconds(cluster, tokens, 2 * LLAMA.ffn, LLAMA.hidden) / 2
    output = product_seconds(cluster, tokens, LLAMA.hidden, LLAMA.hidden)
    keys = product_seconds(cluster, tokens, 6144, 4096) * 1024 / 6144
    stalls = layer_block(LLAMA, replace(layout, recompute=Recompute.FULL), cluster).recompute / work.forward
    assert stalls == 1
    assert work.recompute == pytest.approx(
        (up + output + keys) * (1 + 0.0552 * math.sqrt(1 / 1000)), rel=1e-3
    )


def test_layers_that_are_computed_again() -> None:
    both = Layout(pipeline=2, chunks=2, global_batch=4, recompute=Recompute.FULL, recompute_layers=2)
    # 12 layers in four stages of three.
    assert recomputed_layers(12, both) == (True, True, False) * 4
    some = [
        job(f'pp = 2\nrecompute = "full"\nglobal_batch = 64\n{rest}') for rest in ("", "recompute_every = 2")
    ]
    full, half = (simulated_job(each) for each in some)
    none = simulated_job(job("pp = 2\nglobal_batch = 64"))
    assert half.seconds == pytest.approx((full.seconds + none.seconds) / 2, rel=0.02)
    assert full.memory_bytes < half.memory_bytes < none.memory_bytes
    estimates = [estimate(LLAMA, each.layout, each.cluster).compute for each in some]
    assert estimates[0] > estimates[1]


@given(
    model=models,
    layout=layouts,
    shard=st.sampled_from([Shard.ZERO1, Shard.ZERO2, Shard.ZERO3]),
    data=st.sampled_from([8, 16]),
)
@settings(max_examples=40, deadline=None)
def test_one_group_that_shards_is_all_replicas(
    model: Transformer, layout: Layout, shard: Shard, data: int
) -> None:
    whole = replace(layout, data=data, global_batch=data * 2, micro_batch=1, shard=shard)
    one = replace(whole, shard_ranks=data)
    assert memory_of(model, one) == memory_of(model, whole)
    assert transformer_step(model, one, H100).stages == transformer_step(model, whole, H100).stages
    assert estimate(model, one, H100) == estimate(model, whole, H100)
    # Smaller groups hold more.
    held = [memory_of(model, replace(whole, shard_ranks=ranks)).total for ranks in (data, data // 2, 2)]
    assert held == sorted(held)


def test_hybrid_sharding_gathers_inside_a_box_and_sums_across() -> None:
    text = 'dp = 32\nshard = "zero3"\nglobal_batch = 32\n'
    whole, hybrid = job(text), job(f"{text}shard_ranks = 8")
    block = transformer_step(LLAMA, hybrid.layout, hybrid.cluster).stages[0][1]
    size = 2 * LLAMA.dense_parameters / LLAMA.layers
    found = [(each.collective, each.size_bytes, each.link) for each in block.exchanges]
    assert found == [
        ("all_gather", pytest.approx(size), "NVLink"),
        ("all_gather", pytest.approx(size), "NVLink"),
        ("reduce_scatter", pytest.approx(size), "NVLink"),
        ("all_reduce", pytest.approx(size / 8), "NIC"),
    ]
    assert simulated_job(hybrid).seconds < simulated_job(whole).seconds
    assert simulated_job(hybrid).memory_bytes > simulated_job(whole).memory_bytes
    demands = {each.name: each for each in job_demands(LLAMA, hybrid.layout)}
    assert {name: len(each.groups[0]) for name, each in demands.items()} == {
        "dp gradients": 8,
        "dp parameters": 8,
        "dp gradients across groups": 4,
    }


def test_a_second_copy_is_gathered_in_a_box_by_backward_passes() -> None:
    text = 'dp = 32\nshard = "zero3"\nglobal_batch = 32\n'
    whole, second = job(text), job(f"{text}secondary_ranks = 8")
    assert simulated_job(second).seconds < simulated_job(whole).seconds
    more = memory_of(LLAMA, second.layout).parameters - memory_of(LLAMA, whole.layout).parameters
    words = 2 * LLAMA.vocab * LLAMA.hidden
    assert more == pytest.approx(2 * (LLAMA.dense_parameters + words) / 8)


def test_states_of_the_optimizer_in_a_box() -> None:
    text = 'dp = 32\nshard = "zero1"\nglobal_batch = 32\n'
    whole, near = job(text), job(f"{text}shard_ranks = 8")
    assert memory_of(LLAMA, near.layout).optimizer == pytest.approx(
        4 * memory_of(LLAMA, whole.layout).optimizer
    )
    steps = [transformer_step(LLAMA, each.layout, each.cluster) for each in (whole, near)]
    scattered, gathered = (
        [step.message(name, 1e9) for step in steps] for name in ("reduce_scatter", "all_gather")
    )
    assert [each.link for each in gathered] == ["NIC", "NVLink"]
    assert gathered[1].seconds < gathered[0].seconds
    assert scattered[1].seconds > scattered[0].seconds  # shares are summed across boxes, not scattered


@pytest.mark.parametrize(
    ("experts", "chosen", "boxes"), [(8, 2, 2), (8, 3, 4), (12, 4, 3), (6, 6, 3), (6, 1, 2)]
)
def test_boxes_that_a_token_goes_to_are_counted(experts: int, chosen: int, boxes: int) -> None:
    home = experts // boxes
    found = list(itertools.combinations(range(experts), chosen))
    others = sum(len({each // home for each in one} - {0}) for one in found)
    copies = sum(sum(each // home > 0 for each in one) for one in found)
    model = replace(LLAMA, experts=experts, experts_per_token=chosen)
    layout = Layout(data=boxes, expert=boxes, global_batch=boxes)
    assert crossing_share(model, layout, 1) == pytest.approx(others / copies)


@given(
    experts=st.sampled_from([16, 64]),
    chosen=st.integers(1, 8),
    expert=st.sampled_from([8, 16, 32]),
    tensor=st.sampled_from([1, 2]),
)
@settings(max_examples=30, deadline=None)
def test_tokens_that_cross_once_take_no_longer(experts: int, chosen: int, expert: int, tensor: int) -> None:
    assume(experts % expert == 0 and tensor * expert <= 32)
    model = replace(LLAMA, experts=experts, experts_per_token=chosen, expert_ffn=1024)
    data = 32 // tensor
    layout = Layout(tensor=tensor, data=data, expert=expert, global_batch=data, sequence_parallel=True)
    once = replace(layout, deduplicated=True)
    assert seconds(model, once) <= seconds(model, layout) * (1 + 1e-12)
    if tensor * expert <= 8:
        assert seconds(model, once) == seconds(model, layout)


@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
@pytest.mark.parametrize("shared", [512, 8192])
def test_shared_experts_beside_exchanges(shared: int, recompute: Recompute) -> None:
    """Of dispatch and combine as much is waited for as products of shared experts do not take, by hand."""
    model = Transformer(
        layers=2, hidden=1024, heads=8, ffn=4096, seq=4096, vocab=32000, mlp_matrices=3,
        experts=16, experts_per_token=2, expert_ffn=2048, shared_ffn=shared,
    )  # fmt: skip
    after = Layout(data=16, expert=16, global_batch=16, recompute=recompute)
    beside = replace(after, shared_beside=True)
    rows, rate = 4096, H100.memory_rate
    whole = H100.exchange_seconds(2.0 * rows * 2 * 1024, 16, 1)
    up, down = (product_seconds(H100, rows, n, k) for n, k in ((2 * shared, 1024), (1024, shared)))
    passed = 2 * H100.framework.activation_passes * rows * shared * 2 / rate
    slower = stalls_of(16, H100)
    forward = max(0.0, whole - slower * (up + passed)) + max(0.0, whole - slower * down)
    backward = max(0.0, whole - slower * (up + 2 * passed)) + max(0.0, whole - slower * down)
    wanted = forward + backward + (forward if recompute is Recompute.FULL else 0.0)
    took = [
        sum(each.seconds for each in layer_block(model, layout, H100).exchanges if each.group == "ep")
        for layout in (after, beside)
    ]
    assert took[0] == pytest.approx(whole * (6 if recompute is Recompute.FULL else 4))
    assert took[1] == pytest.approx(wanted)
    assert 0 <= took[1] < took[0]
    assert layer_block(model, beside, H100).compute == layer_block(model, after, H100).compute
    assert seconds(model, after) - seconds(model, beside) == pytest.approx(2 * (took[0] - took[1]))


def test_shared_experts_beside_exchanges_in_a_job() -> None:
    text = "pp = 4\nep = 8\nglobal_batch = 64"
    after, beside = (
        simulated_job(job(f"{text}{more}", model="deepseek-moe-16b"))
        for more in ("", '\nshared_experts = "beside"')
    )
    assert beside.seconds < after.seconds
    with pytest.raises(InputError, match="expected a model with shared experts, found none: give"):
        job('ep = 8\nshared_experts = "beside"', model="mixtral-8x7b")


def test_computation_follows_the_clock() -> None:
    half = capped(H100, Cap(clock_mhz=DEVICES["H100"].clock_mhz / 2))
    wide, thin = (8192, 8192, 8192), (64, 65536, 8192)
    assert product_seconds(half, *wide) == pytest.approx(2 * product_seconds(H100, *wide), rel=0.01)
    assert product_seconds(half, *thin) == product_seconds(H100, *thin)  # by memory
    assert half.ring_seconds(1e9, 8, 1) == H100.ring_seconds(1e9, 8, 1)
    times = [
        simulated_job(job("dp = 32", cluster=f"power_watts = {watts}")).seconds
        for watts in (300, 500, 700, 900)
    ]
    assert times[0] > times[1] > times[2] == times[3]
    assert capped(box_of("H100"), Cap(power_watts=350)).clock_shares[0] == 0.5


def test_a_power_limit_is_a_range_and_a_clock_is_not() -> None:
    plain, clock, power = (
        estimate_range(capped(box_of("A100-80G"), each))
        for each in (Cap(), Cap(clock_mhz=1005), Cap(power_watts=250))
    )
    assert (clock.low, clock.high) == (plain.low, plain.high)
    assert power.low < plain.low
    assert power.high > plain.high


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "recompute_every = 2",
            "expected what is computed again beside `recompute_every`, found `recompute` none",
        ),
        ('recompute = "full"\nrecompute_every = 2\nrecompute_layers = 1', "leave one out"),
        ('recompute = "full"\nrecompute_modules = ["mlp"]', "expected `recompute` selective beside"),
        ('recompute = "selective"\nrecompute_modules = ["mpl"]', "found 'mpl': did you mean"),
        ('recompute = "some"', "`layout.recompute`: expected one of full, none, operators, selective"),
        ('recompute = "full"\nrecompute_every = 0', "`layout.recompute_every`: expected an integer from 1"),
        (
            "shard_ranks = 8",
            "expected something that replicas shard beside `shard_ranks` 8, found `shard` none",
        ),
        ('shard = "zero1"\nshard_ranks = 5', "expected `shard_ranks` that divides 32 replicas"),
        (
            'shard = "zero1"\nsecondary_ranks = 8',
            "expected `shard` zero3 beside `secondary_ranks`, found zero1",
        ),
        (
            'shard = "zero3"\nshard_ranks = 4\nsecondary_ranks = 8',
            "of at most the 4 replicas that shard, found 8",
        ),
        (
            'ep_comm = "deduplicated"',
            "`layout.ep_comm`: expected ep of 2 or more beside deduplicated, found none",
        ),
        (
            'shared_experts = "beside"',
            "`layout.shared_experts`: expected ep of 2 or more, whose exchanges they stand beside, found none",
        ),
    ],
)
def test_what_does_not_go_together_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        job(f"dp = 32\n{text}")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_limits_of_unknown_cards_are_refused() -> None:
    with pytest.raises(InputError, match="expected a number above 0"):
        job("dp = 32", cluster="power_watts = 0")
    with pytest.raises(InputError, match="expected no recompute_every for resnet-50"):
        job('dp = 32\nrecompute = "full"\nrecompute_every = 2', model="resnet-50")
    kinds = '[[cluster.mixed]]\ntopology = "dgx-a100"\nboxes = 1\n'
    mixed = f'[model]\nname = "gpt-7.5b"\n[cluster]\nclock_mhz = 900\n{kinds}'
    with pytest.raises(InputError, match="expected `power_watts` and `clock_mhz` with each kind of boxes"):
        job_of(parse_job_record(mixed, where="job.toml"))
    each = f'[model]\nname = "gpt-7.5b"\n[cluster]\n{kinds}clock_mhz = 705\n[layout]\ndp = 8'
    assert job_of(parse_job_record(each, where="job.toml")).cluster.clock_share == 0.5
