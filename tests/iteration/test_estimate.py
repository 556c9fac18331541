"""Estimates of iterations: against the simulated pipeline, against known formulas, and what must change how."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from itertools import pairwise, product

import pytest

from coppice.bounds import bound
from coppice.errors import InputError
from coppice.iteration.costs.group import RankGroup
from coppice.iteration.devices import CALIBRATIONS, DEVICES
from coppice.iteration.estimate import estimate
from coppice.iteration.frameworks import FRAMEWORKS
from coppice.iteration.job.composed import simulated_job
from coppice.iteration.job.file import parse_job_record
from coppice.iteration.job.job import job_of
from coppice.iteration.layout import Layout, Recompute, Shard
from coppice.iteration.machine import Cluster, box_of, cluster_of, constants_borrowed, device_in
from coppice.iteration.memory import MemoryFit, fit_of, memory_of
from coppice.iteration.models import MODELS, model_named
from coppice.iteration.pipeline.orders import interleaved
from coppice.iteration.pipeline.stages import StageTimes
from coppice.iteration.search import search_layouts, simulated_layouts
from coppice.iteration.step.blocks import end_blocks, layer_block
from coppice.iteration.step.exchanges import exchange_seconds, stage_send
from coppice.iteration.step.workloads import stages_graph
from coppice.iteration.tasks import run_tasks
from coppice.iteration.transformer import Transformer
from coppice.iteration.workload.times import product_seconds, tile_share
from coppice.topology.presets import preset

GPT = MODELS["gpt-175b"]
A100 = Cluster(device=DEVICES["A100-80G"], nic_bytes_per_second=200e9, calibration=CALIBRATIONS["A100-80G"])
BY_NANOTRON = replace(A100, framework=FRAMEWORKS["nanotron"])
BASE = Layout(tensor=8, pipeline=8, data=1, global_batch=64)


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("micro_batches", [8, 16, 64])
def test_the_closed_form_is_the_simulated_pipeline(chunks: int, micro_batches: int) -> None:
    layout = replace(BASE, chunks=chunks, global_batch=micro_batches)
    free = replace(A100, calibration=replace(A100.calibration, near_seconds=0.0, far_seconds=0.0))
    found = estimate(GPT, layout, free)
    one = (found.compute + found.tensor) / micro_batches / chunks
    head = found.head / micro_batches
    order = interleaved(8, micro_batches, chunks)
    passes = [one] * (order.stages - 1) + [one + head]
    times = StageTimes(forward=[each / 3 for each in passes], backward=[2 * each / 3 for each in passes])
    simulated = run_tasks(stages_graph(order, times, 1).graph).seconds
    closed = (
        found.compute + found.tensor + found.head + found.bubble - 7 * found.sends / micro_batches / chunks
    )
    # The head delays a device whose other chunks have slack where there are several.
    assert closed == pytest.approx(simulated, rel=1e-6 if chunks == 1 else 0.03)


def test_operations_are_those_of_the_paper() -> None:
    # 96 B s l h^2 (1 + s / 6h + V / 16 l h) counts one more forward pass of the layers (Narayanan et al., SC 2021).
    for model in (GPT, MODELS["gpt-1t"]):
        h, s, layers, vocab = model.hidden, model.seq, model.layers, model.vocab
        paper = 96 * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
        recomputed = 24 * s * layers * h**2 * (1 + s / (6 * h))
        assert 3 * model.forward_flops(1) == pytest.approx(paper - recomputed, rel=1e-12)


def test_sizes_of_models() -> None:
    for name, billions in (("gpt-175b", 174.6), ("gpt-530b", 529.6), ("gpt-1t", 1008.0), ("gpt-7.5b", 7.5)):
        assert model_named(name).parameters / 1e9 == pytest.approx(billions, rel=0.01)
    assert MODELS["llama3-70b"].parameters / 1e9 == pytest.approx(69.5, rel=0.02)
    with pytest.raises(InputError, match="expected a model"):
        model_named("gpt-5")


def test_what_costs_what() -> None:
    base = estimate(GPT, BASE, A100)
    assert base.gradients == 0
    assert base.mfu < 0.7
    full = estimate(GPT, replace(BASE, recompute=Recompute.FULL), A100)
    # One more forward pass; gradients are added to sums as often as before.
    work = layer_block(GPT, BASE, A100)
    assert full.compute == pytest.approx(base.compute * (1 + work.forward / work.compute), rel=1e-12)
    # A forward pass is a third of both, but that attention behind it computes scores again.
    assert 0.3 < work.forward / work.compute < 1 / 3
    assert full.tensor == pytest.approx(1.5 * base.tensor)
    chunked = estimate(GPT, replace(BASE, chunks=3), A100)
    assert chunked.bubble < base.bubble / 2
    fused = estimate(GPT, replace(BASE, fused_attention=True), A100)
    assert fused.compute < base.compute
    far = estimate(GPT, replace(BASE, tensor=16, pipeline=4), A100)
    assert far.tensor > 2 * base.tensor
    replicas = replace(BASE, data=4, global_batch=256)
    assert estimate(GPT, replicas, A100).gradients > 0
    zero3 = replace(replicas, shard=Shard.ZERO3)
    assert estimate(GPT, zero3, A100).gradients > estimate(GPT, replicas, A100).gradients
    halved = estimate(GPT, replace(BASE, context=2), A100)
    assert halved.exchange > 0
    assert halved.compute < 0.6 * base.compute
    assert estimate(GPT, BASE, replace(A100, precision=2.0)).seconds < base.seconds


def test_memory_of_known_jobs() -> None:
    # Korthikanti et al., section 4: s b h / t (34 + 5 a s / h) for a layer with sequence parallelism.
    one = Layout(tensor=8, sequence_parallel=True)
    unit = GPT.seq * GPT.hidden
    plain = FRAMEWORKS["megatron-2021"]
    held = memory_of(GPT, one, plain).activations / GPT.layers
    assert held == pytest.approx(unit / 8 * (34 + 5 * 96 * 2048 / 12288))
    selective = memory_of(GPT, replace(one, recompute=Recompute.SELECTIVE), plain).activations / GPT.layers
    assert selective == pytest.approx(unit / 8 * 34)
    assert memory_of(GPT, replace(one, recompute=Recompute.FULL), plain).activations == pytest.approx(
        # One layer at a time has everything again.
        96 * 2 * unit / 8 + unit / 8 * (34 + 5 * 96 * 2048 / 12288)
    )
    plain = memory_of(GPT, replace(BASE, data=4, global_batch=256))
    sharded = memory_of(GPT, replace(BASE, data=4, global_batch=256, shard=Shard.ZERO1))
    assert sharded.optimizer == pytest.approx(plain.optimizer / 4)
    assert sharded.total < plain.total


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tensor": 0}, "`tensor` of 1 or more"),
        ({"data": 3, "global_batch": 64}, "multiple of 1 sequences x 3 replicas, found 64"),
    ],
)
def test_layouts_that_cannot_be(fields: dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Layout(**fields)
    with pytest.raises(InputError, match="2 or 3 matrices"):
        Transformer(layers=1, hidden=8, heads=1, ffn=8, seq=8, vocab=8, mlp_matrices=4)
    with pytest.raises(InputError, match="`vocab` of 1 or more"):
        Transformer(layers=1, hidden=8, heads=1, ffn=8, seq=8, vocab=0)


@pytest.mark.parametrize(
    ("name", "boxes", "device", "link", "nics"),
    [
        ("dgx-a100", 4, "A100-80G", 300e9, 200e9),
        ("dgx-h100", 2, "H100", 450e9, 400e9),
        ("dgx-b200", 2, "B200", 900e9, 400e9),
    ],
)
def test_clusters_from_topologies(name: str, boxes: int, device: str, link: float, nics: float) -> None:
    found = cluster_of(preset(name, boxes=boxes))
    assert (found.device.name, found.device.box) == (device, 8)
    assert found.device.link_bytes_per_second == pytest.approx(link)
    assert found.nic_bytes_per_second == pytest.approx(nics)


def test_gpus_share_nics_where_there_are_fewer() -> None:
    assert cluster_of(preset("dgx-1v", boxes=2)).shares_nics
    assert not cluster_of(preset("dgx-a100", boxes=2)).shares_nics
    assert not cluster_of(preset("dgx-a100", boxes=1)).shares_nics


def test_devices_are_named() -> None:
    assert device_in("2 x hgx-h200") == "H200"
    with pytest.raises(InputError, match=r"found topology 'ring of 4': name one"):
        cluster_of(preset("ring", gpus=4))
    with pytest.raises(InputError, match="found 'H1000'"):
        cluster_of(preset("ring", gpus=4), "H1000")


def test_products_are_nearer_to_the_peak_the_more_tiles_and_depth_they_have() -> None:
    def share(m: float, n: float, k: float) -> float:
        return 2 * m * n * k / product_seconds(A100, m, n, k) / A100.device.flops

    # 256 tiles of 256 x 128 take three waves of 108 processors, of which the last is not full; 512 of half the size
    # take five, nearly full ones.
    assert tile_share(4096, 2048, 108) == pytest.approx(0.95 * 512 / 540)
    assert share(4096, 2048, 4096) < share(4096, 2048, 16384) < 1
    assert share(512, 512, 8192) < share(8192, 8192, 8192)
    assert share(4096, 4096, 4096) > share(4096, 4096 + 8, 4096)
    # One row moves all of the weights.
    assert product_seconds(A100, 1, 8192, 8192) >= 2 * 8192**2 / A100.device.memory_bytes_per_second


def test_rings_of_some_gpus_that_share_nics_take_twice_as_long() -> None:
    shared = replace(A100, shares_nics=True)
    free = {"near_seconds": 0.0, "far_seconds": 0.0}
    whole, half = (replace(each, calibration=replace(each.calibration, **free)) for each in (A100, shared))
    for stride, factor in ((1, 1), (2, 2), (4, 2), (8, 1)):
        plain = whole.ring_seconds(1e9, 64 // stride, stride)
        assert half.ring_seconds(1e9, 64 // stride, stride) == pytest.approx(factor * plain)
    assert half.ring_seconds(1e9, 4, 1) == whole.ring_seconds(1e9, 4, 1)


def test_passes_stall_the_more_gpus_there_are() -> None:
    layout = replace(BASE, data=4, global_batch=256)
    calm = replace(A100, calibration=replace(A100.calibration, stall_share=0.0))
    for each in (BASE, layout):
        share = A100.calibration.stall_share * math.sqrt(each.gpus / 1000)
        expected = (1 + share) * estimate(GPT, each, calm).head
        assert estimate(GPT, each, A100).head == pytest.approx(expected)


def test_ranks_that_keep_shares_do_not_gather_what_a_stage_sends() -> None:
    gathered = A100.ring_seconds(2 * GPT.seq * GPT.hidden, 8, 1, rounds=1)
    shares = stage_send(GPT, replace(BASE, sequence_parallel=True), A100).seconds
    assert stage_send(GPT, BASE, A100).seconds == pytest.approx(shares + gathered)


@pytest.mark.parametrize("vocab", [1000, 131072, 1000000])
@pytest.mark.parametrize(("layers", "stages"), [(6, 2), (7, 3), (8, 4), (5, 5)])
def test_balanced_stages_are_the_best_of_all(layers: int, stages: int, vocab: int) -> None:
    model = Transformer(layers=layers, hidden=2048, heads=32, ffn=8192, mlp_matrices=3, seq=4096, vocab=vocab)
    layout = Layout(pipeline=stages, global_batch=64, fused_attention=True)
    found = estimate(model, layout, BY_NANOTRON)
    layer, head = layer_block(model, layout, BY_NANOTRON), end_blocks(model, layout, BY_NANOTRON)[1]
    ways = [way for way in product(range(layers + 1), repeat=stages) if sum(way) == layers]
    best = min(
        max(*(held * layer.compute for held in way[:-1]), way[-1] * layer.compute + head.compute)
        for way in ways
    )
    assert (found.compute + found.head) / 64 == pytest.approx(best)
    # Filling and draining takes what the other stages compute.
    free = replace(BY_NANOTRON, calibration=replace(A100.calibration, near_seconds=0.0, far_seconds=0.0))
    sends = (stages - 1) * estimate(model, layout, free).sends / 64
    rest = estimate(model, layout, free).bubble - sends
    assert rest == pytest.approx(layers * layer.compute + head.compute - best)


def test_how_zero_3_began() -> None:
    layout = Layout(data=384, micro_batch=4, global_batch=1536, recompute=Recompute.FULL, shard=Shard.ZERO3)
    biased = replace(GPT, biases=True)
    old = replace(A100, framework=FRAMEWORKS["deepspeed-2021"])

    def gathering(own: Layout, cluster: Cluster) -> float:
        return exchange_seconds(layer_block(biased, own, cluster).exchanges, "dp")

    now, then = (gathering(layout, each) for each in (A100, old))
    # Three gathers and a whole sum, where two gathers and scattered sums do, and three times as many messages.
    assert 5 / 3 < then / now < 5
    kept = gathering(replace(layout, recompute=Recompute.NONE), old)
    assert kept == pytest.approx(4 / 5 * then)
    assert gathering(replace(layout, shard=Shard.ZERO1), old) == 0


def test_zero_1_by_tensors_waits_for_each() -> None:
    layout = replace(BASE, pipeline=1, data=64, global_batch=64, shard=Shard.ZERO1)
    buckets, tensors = (
        estimate(
            GPT,
            layout,
            replace(each, framework=replace(each.framework, gradient_bytes=2.0, gradient_share=0.5)),
        ).gradients
        for each in (A100, BY_NANOTRON)
    )
    hops = 2 * 63 * A100.calibration.far_seconds
    volume = buckets - hops
    assert tensors == pytest.approx(volume + 12 * 96 * hops)


@pytest.mark.parametrize(
    ("name", "boxes"),
    [
        ("dgx-1v", 1),
        ("dgx-1v", 2),
        ("dgx-a100", 2),
        ("dgx-h100", 2),
        ("mi300x", 1),
        ("mi300x", 2),
        ("gb200-nvl72", 2),
    ],
)
def test_no_collective_of_a_job_is_faster_than_the_bound_of_its_group(name: str, boxes: int) -> None:
    """All groups of some ranks at a stride: no ring beats what links of a rank to its group and beyond boxes carry."""
    topology = preset(name, boxes=boxes)
    cluster, size = cluster_of(topology), 1e9
    whole = float(bound(topology, "all_reduce").algbw_gb_per_s) * 1e9
    assert cluster.ring_seconds(size, topology.num_ranks, 1) >= size / whole
    rates = topology.capacity / topology.denominator * 1e9
    box = cluster.device.box
    for stride in (each for each in range(1, box + 1) if box % each == 0):
        for ranks in (each for each in range(2, box // stride + 1) if box // stride % each == 0):
            members = [number * stride for number in range(ranks)]
            own = {topology.rank_nodes[number] for number in members}
            leaving = [
                sum(
                    rate
                    for rate, src, dst in zip(rates, topology.src, topology.dst, strict=True)
                    if src == node and (topology.rank[dst] < 0 or dst in own)
                )
                for node in own
            ]
            most = min(leaving)
            if most == 0:
                continue  # no path but through other GPUs
            assert cluster.ring_seconds(size, ranks, stride) >= 2 * (ranks - 1) / ranks * size / most
            assert cluster.exchange_seconds(size, ranks, stride) >= (ranks - 1) / ranks * size / most
            assert ranks > 2 or cluster.send_seconds(size, stride) >= size / most


@pytest.mark.parametrize(("overlap", "shard"), [("none", "none"), ("megatron", "zero1"), ("fsdp", "fsdp")])
def test_sums_of_gradients_of_an_iteration_are_no_faster_than_the_bound(overlap: str, shard: str) -> None:
    """What nothing hides is part of the iteration: replicas on all GPUs sum no faster than the whole cluster can."""
    text = f"""
    model.name = "gpt-1.7b"
    cluster = {{topology = "dgx-a100", boxes = 2}}
    layout = {{micro_batch = 1, shard = "{shard}"}}
    run.overlap = "{overlap}"
    """
    job = job_of(parse_job_record(text, where="job.toml"))
    found = simulated_job(job)
    least = (
        2
        * job.model.parameters
        / (float(bound(preset("dgx-a100", boxes=2), "all_reduce").algbw_gb_per_s) * 1e9)
    )
    assert found.seconds >= least
    if overlap == "none":
        assert found.step is not None
        assert found.step.parts["gradients"] >= least


def test_constants_of_another_gpu_are_told() -> None:
    assert {name for name in DEVICES if constants_borrowed(box_of(name))} == {
        *("A100", "H100-96G", "H200", "GB200", "GB300", "MI250X", "MI300X"),
        *("TITAN-X", "P4000", "P40", "P100", "GTX-1080-TI", "RTX-2080-TI", "RTX-3090"),
    }
    assert "GB200 are those fitted to B200" in constants_borrowed(box_of("GB200"))


@pytest.mark.parametrize(
    ("name", "boxes"), [("dgx-1v", 2), ("dgx-a100", 2), ("dgx-a100", 3), ("dgx-h100", 3), ("mi300x", 3)]
)
def test_no_collective_of_groups_across_boxes_is_faster_than_what_boxes_send(name: str, boxes: int) -> None:
    """All groups of all sizes and strides, also such as lie across boxes unevenly: what has to leave the box does."""
    topology, size = preset(name, boxes=boxes), 1e9
    cluster, total = cluster_of(topology), topology.num_ranks
    box = cluster.device.box
    for stride, ranks in product(range(1, total), range(2, total + 1)):
        if total % (stride * ranks):
            continue
        sums, exchanged, sent = ([0.0] * boxes for _ in range(3))
        for members in RankGroup(ranks, stride).members(total):
            for number in range(boxes):
                inside = sum(rank // box == number for rank in members)
                sums[number] += size if 0 < inside < ranks else 0.0
                exchanged[number] += inside * (ranks - inside) / ranks * size
            for rank, beyond in pairwise(members):
                sent[rank // box] += size if beyond // box != rank // box else 0.0
        rate = cluster.nic_bytes_per_second
        assert cluster.ring_seconds(size, ranks, stride) >= max(sums) / rate, (ranks, stride)
        assert cluster.exchange_seconds(size, ranks, stride) >= max(exchanged) / rate, (ranks, stride)
        assert cluster.send_seconds(size, stride, ranks) >= max(sent) / rate, (ranks, stride)


CLUSTER = cluster_of(preset("dgx-a100", boxes=2))
MODEL = MODELS["gpt-7.5b"]


def test_nothing_that_fits_is_faster() -> None:
    found = search_layouts(MODEL, CLUSTER, 16, 32)
    surely = [each.estimate.seconds for each in found.found if each.fit is MemoryFit.YES]
    tight = [each.estimate.seconds for each in found.found if each.fit is MemoryFit.TIGHT]
    assert [each.estimate.seconds for each in found.found] == sorted(surely) + sorted(tight)
    assert all(each.memory.total <= 80e9 for each in found.found)
    degrees = [1, 2, 4, 8, 16]
    for tensor, pipeline, micro_batch in itertools.product(degrees[:4], degrees[:3], degrees[:4]):
        data = 16 // (tensor * pipeline)
        if tensor * pipeline * data != 16 or 32 % (micro_batch * data):
            continue
        for recompute, shard in itertools.product(Recompute, (Shard.NONE, Shard.ZERO1)):
            layout = Layout(
                tensor=tensor,
                pipeline=pipeline,
                data=data,
                micro_batch=micro_batch,
                global_batch=32,
                recompute=recompute,
                shard=shard,
                sequence_parallel=tensor > 1,
                fused_attention=True,
            )
            held, seconds = memory_of(MODEL, layout).total, estimate(MODEL, layout, CLUSTER).seconds
            if fit_of(held, 80e9) is MemoryFit.YES:
                assert seconds >= surely[0] - 1e-9
            if held <= 80e9:
                assert seconds >= min(surely + tight) - 1e-9


def test_where_nothing_fits() -> None:
    with pytest.raises(
        InputError, match=r"fits 80 GB, found .* GB at least \(tp 8, pp 2, dp 1\): take more GPUs"
    ):
        search_layouts(MODELS["gpt-1t"], CLUSTER, 16, 32)
    with pytest.raises(InputError, match="a batch of 7, found none"):
        search_layouts(MODELS["gpt-1t"], CLUSTER, 24, 7)


def test_the_best_are_simulated() -> None:
    found = search_layouts(MODEL, CLUSTER, 16, 32).found[:8]
    best = simulated_layouts(MODEL, CLUSTER, found)
    times = [each.seconds for each in best]
    assert times == sorted(times)
    assert len(times) == 8
    for each in best:
        assert each.seconds == pytest.approx(each.found.estimate.seconds, rel=0.03)
        assert sum(each.parts.values()) == pytest.approx(each.seconds)
        assert each.why.endswith("%")
