"""Published gains beside simulated ones, in settings as near to the published ones as models here allow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from coppice.iteration.job.job import TrainingJob
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.workload.nets import vgg
from policies_grid import GRADIENTS, Case, seconds_of, workload_of
from policies_jobs import EXPERTS, GPT, composed, job_with, on
from tables import Table

__all__ = ["headline_table"]

SINGLE = 125 / 15.7
"""How much longer a V100 computes with 32 bits than with 16, by its data sheet."""
P4000 = 125 / 5.3

BREADTH = """
[model]
layers = 64
hidden = 8192
heads = 64
ffn = 32768
seq = 1024
vocab = 51200
[cluster]
topology = "dgx-a100"
boxes = 8
[layout]
tp = 2
pp = 8
dp = 4
chunks = {chunks}
micro_batch = 1
global_batch = {batch}
"""
HALVES = """
[model]
name = "gpt-7.5b"
[cluster]
topology = "dgx-a100"
boxes = 4
[layout]
tp = 8
dp = 4
micro_batch = 2
global_batch = 64
"""
EXPERTS_16 = (
    EXPERTS.replace("boxes = 16", "boxes = 2").replace("dp = 128", "dp = 16").replace("ep = 128", "ep = 16")
)
EXPERTS_16 = EXPERTS_16.replace("global_batch = 1024", "global_batch = 128").replace(
    'name = "switch-large-128"', 'name = "switch-large-128"\nexperts = 16'
)


@cache
def slowed(model: str, workers: int, gb_per_s: float, slower: float, samples: int = 32) -> LayerWorkload:
    """A workload whose computation takes longer than on a V100 with 16 bits."""
    found = workload_of(
        vgg(19, classes=21841) if model == "vgg-19-22k" else model, "V100", samples, workers, gb_per_s
    )
    return replace(
        found,
        forward=tuple(slower * each for each in found.forward),
        backward=tuple(slower * each for each in found.backward),
    )


@cache
def took(name: str, workload: LayerWorkload) -> float:
    """Seconds of a policy, tuned (``NAME*``) or not."""
    kind = GRADIENTS[name.removesuffix("*")]
    policy = kind.of(**kind.of().tune(workload)) if name.endswith("*") else kind.of()
    return seconds_of(policy, workload)


def _gain(workload: LayerWorkload, name: str, over: Sequence[str]) -> float:
    """How much more a policy gets done than the best of others."""
    return min(took(each, workload) for each in over) / took(name, workload) - 1


def _most(
    model: str, workers: int, rates: Iterable[float], slower: float, name: str, over: Sequence[str]
) -> str:
    """The largest gain over rates of the network, and where it is."""
    found = {rate: _gain(slowed(model, workers, rate, slower), name, over) for rate in rates}
    rate = max(found, key=found.__getitem__)
    return f"{found[rate]:.0%} ({model}, {rate:g} Gb/s)"


def _grid(cases: Sequence[Case], name: str, over: Sequence[str]) -> str:
    """The largest gain on the common set up to 64 workers."""
    found = [
        (min(each.seconds(other) for other in over) / each.seconds(name) - 1, each)
        for each in cases
        if each.workers <= 64
    ]
    most, at = max(found, key=lambda pair: pair[0])
    return f"up to {most:.0%} ({at.where})"


def _faster(job: TrainingJob, name: str, over: Sequence[str] = ("none",)) -> str:
    """How much faster a composition is than the best of others."""
    before = [each.seconds for each in (composed(job, other) for other in over) if each.seconds]
    after = composed(job, name).seconds
    return "-" if after is None or not before else f"{min(before) / after:.2f}x"


def _jobs(rates: Sequence[float], name: str, over: Sequence[str]) -> str:
    """GPT-3 on networks of several rates."""
    found = []
    for rate in rates:
        before = [on(GPT, rate, other).seconds for other in over]
        after = on(GPT, rate, name).seconds
        found.append(
            "-" if after is None else f"{min(x for x in before if x) / after - 1:.0%} ({rate:g} Gb/s)"
        )
    return ", ".join(found)


def _linked(text: str, gb_per_s: float) -> TrainingJob:
    """A job whose GPUs have links of so many GB/s to others of their box."""
    job = job_with(text)
    kinds = tuple(
        replace(
            kind,
            cluster=replace(
                kind.cluster,
                device=replace(kind.cluster.device, link_bytes_per_second=gb_per_s * 1e9),
            ),
        )
        for kind in job.machines.kinds
    )
    return replace(job, machines=replace(job.machines, kinds=kinds))


def _gradients(cases: Sequence[Case]) -> list[tuple[str, ...]]:
    """Policies of gradients."""
    low = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30)
    wide = (1, 5, 10, 25, 40, 100)
    usual = ("wfbp", "ddp", "mg-wfbp", "bytescheduler")
    large = slowed("vgg-19-22k", 16, 10, SINGLE)
    pooled = slowed("vgg-16", 512, 56, 1.0, 128)
    pooled = replace(pooled, bytes=tuple(each / 2 for each in pooled.bytes), matrices=(), element_bytes=2.0)
    sparse = seconds_of(GRADIENTS["gradientflow"].of(ratio=0.1, theta_bytes=4e6), pooled)
    single = {name: slowed(name, 32, 100, SINGLE) for name in ("resnet-50",)}
    resnet = single["resnet-50"]
    dear = {
        rate: max(
            (_gain(slowed(model, 64, rate, SINGLE), "dear*", usual), model)
            for model in ("resnet-50", "bert-large", "vgg-19")
        )
        for rate in (10, 100)
    }
    return [
        (
            "Poseidon (ATC'17)",
            "VGG19-22K, 16 nodes, 10 GbE",
            "15.5x speed-up of 16 (reported)",
            (
                f"{16 * large.compute_seconds / took('poseidon', large):.1f}x, wfbp "
                f"{16 * large.compute_seconds / took('wfbp', large):.1f}x"
            ),
            "rebuilding matrices from factors costs nothing here, and servers are never late",
        ),
        (
            "DDP (VLDB'20)",
            "ResNet-50, 32 GPUs, NCCL, 100 Gb/s",
            "overlap cuts 38% (reported)",
            f"{1 - took('ddp', resnet) / took('serial', resnet):.0%} of `serial`",
            "every GPU has 100 Gb/s to itself here, so that there is less to hide than where a box shares them",
        ),
        (
            "P3 (MLSys'19)",
            "VGG-19, 4 P4000, best of rates up to 30 Gb/s",
            "66%",
            (
                f"{_most('vgg-19', 4, low, P4000, 'p3*', ('wfbp',))}, as all-reduce "
                f"{_most('vgg-19', 4, low, P4000, 'priority*', ('wfbp',))}"
            ),
            (
                "an order gains a third at most over wait-free sums where the backward pass takes twice as "
                "long as the forward one; the "
                "published baseline also waits for round trips to servers, which P3 removes"
            ),
        ),
        (
            "P3 (MLSys'19)",
            "ResNet-50, the same",
            "25%",
            (
                f"{_most('resnet-50', 4, low, P4000, 'p3*', ('wfbp',))}, as all-reduce "
                f"{_most('resnet-50', 4, low, P4000, 'priority*', ('wfbp',))}"
            ),
            "the same",
        ),
        (
            "TicTac (MLSys'19)",
            "training, parameter servers",
            "up to 19.2%",
            f"{_tictac(cases)}",
            (
                "their baseline fetches at random; here parameters in the order of the backward pass, the worst "
                "for a chain"
            ),
        ),
        (
            "ByteScheduler (SOSP'19)",
            "up to 64 GPUs, 1 to 100 Gb/s",
            "up to 196%",
            (
                f"{_most('vgg-16', 64, wide, SINGLE, 'bytescheduler*', ('wfbp',))}, "
                f"{_most('resnet-50', 64, wide, SINGLE, 'bytescheduler*', ('wfbp',))}"
            ),
            (
                "a third at most, as above; more needs a baseline that does not fill the network, or does not "
                "overlap at all"
            ),
        ),
        (
            "ByteScheduler over P3",
            "the same",
            "up to 43%",
            _most("vgg-16", 64, wide, SINGLE, "bytescheduler*", ("p3",)) + " over P3's slices of 50,000",
            "slices of 200 kB pay for a tree of 64 workers each here; over P3 with tuned slices "
            + _most("vgg-16", 64, wide, SINGLE, "bytescheduler*", ("p3*",)),
        ),
        (
            "PACE (INFOCOM'20)",
            "all-reduce",
            "up to 36% over the best others",
            f"{_grid(cases, 'pace*', ('wfbp', 'mg-wfbp', 'bytescheduler'))}, over `wfbp` "
            + _grid(cases, "pace*", ("wfbp",)),
            "others are simulated without the cost of negotiation of Horovod and ByteScheduler",
        ),
        (
            "DeAR (ICDCS'23)",
            "64 GPUs, 10 GbE",
            "up to 83% over the best others",
            f"{dear[10][0]:.0%} ({dear[10][1]})",
            (
                "its own closed form gives 25% at most over wait-free sums; others negotiate and lose bandwidth "
                "there"
            ),
        ),
        (
            "DeAR (ICDCS'23)",
            "64 GPUs, 100 Gb/s InfiniBand",
            "up to 15%",
            f"{dear[100][0]:.0%} ({dear[100][1]})",
            "the same; ByteScheduler, which is among the others, has no negotiation here",
        ),
        (
            "GradientFlow (2019)",
            "AlexNet, 512 V100, 56 Gb/s",
            "410.2x speed-up of 512",
            (
                f"{512 * pooled.compute_seconds / sparse:.0f}x with a tenth of the chunks, "
                f"{512 * pooled.compute_seconds / took('gradientflow', pooled):.0f}x with all (VGG-16)"
            ),
            "AlexNet is none of the models here, and VGG-16 computes longer for a weight: all is hidden",
        ),
        (
            "OOO (EuroSys'22)",
            "data parallel, beside BytePS",
            "1.10x to 1.27x",
            _grid(cases, "ooo*", ("bytescheduler*",)),
            "beside partitions that are tuned, on a network that loses nothing to preemption",
        ),
    ]


def _tictac(cases: Sequence[Case]) -> str:
    """TAC over the order of the backward pass, the most on the common set up to 64 workers."""
    found = []
    for each in cases:
        if each.workers <= 64 and each.model in ("vgg-19", "resnet-50"):
            workload = slowed(each.model, each.workers, each.gb_per_s, SINGLE)
            plain = seconds_of(GRADIENTS["tictac"].of(order="backward"), workload)
            found.append((plain / took("tictac", workload) - 1, each))
    most, at = max(found, key=lambda pair: pair[0])
    return f"up to {most:.0%} ({at.where})"


def _whole(cases: Sequence[Case]) -> list[tuple[str, ...]]:
    """Policies of pipelines, of layers, and of the whole step."""
    del cases
    small = job_with(BREADTH.format(chunks=8, batch=32), 100)
    experts = job_with(EXPERTS_16)
    pcie = _linked(HALVES, 20)
    recomputed = job_with(GPT.replace('"selective"', '"full"'))
    return [
        (
            "Breadth-first (MLSys'23)",
            "52B, small batch a GPU, beside Megatron-LM",
            "up to 43%",
            (
                f"{_faster(small, 'breadth-first+wfbp', ('interleaved',))} over interleaved, "
                f"{_faster(small, 'breadth-first+wfbp', ('1f1b',))} over 1F1B"
            ),
            (
                "batch of 32 on 64 A100 here (tp 2, pp 8, dp 4, 8 chunks, 100 Gb/s): sums are short beside the "
                "bubble, which interleaving fills as well"
            ),
        ),
        (
            "Fold3D (TPDS'23)",
            "3D parallel, clouds of 10 to 100 Gb/s",
            "25.2% to 42.1%",
            _jobs((10, 25, 100), "fold3d", ("none", "interleaved")),
            "GPT-3 with batch 512 computes long beside its sums, so that the gain is that of slow networks",
        ),
        (
            "Lina (ATC'23)",
            "mixtures of experts, 16 A100",
            "up to 1.73x",
            _faster(experts, "lina"),
            (
                "all-to-alls that share links with gradient all-reduces are what it mends; here they wait in "
                "order in the baseline "
                "too"
            ),
        ),
        (
            "SYNDICATE (NSDI'23)",
            "large models",
            "21% to 74%",
            f"{_faster(experts, 'syndicate')} (16 experts), {_jobs((200,), 'syndicate', ('none',))}",
            "the share of communication differs; `-`: no result in a minute",
        ),
        (
            "Centauri (ASPLOS'24)",
            "hybrid parallel, slow networks between boxes",
            "up to 1.49x (reported)",
            f"{_faster(experts, 'centauri')} (16 experts), {_jobs((200,), 'centauri', ('none',))}",
            "the same",
        ),
        (
            "Decomposition (ASPLOS'23)",
            "tensor parallel, TPU v4",
            "1.14x to 1.38x (reported)",
            f"{_faster(job_with(GPT), 'decomposition')} (GPT-3)",
            "NVLink instead of a torus",
        ),
        (
            "CoCoNet (ASPLOS'22)",
            "blocks of tensor parallelism alone",
            "up to 1.51x (reported)",
            f"{_faster(job_with(GPT), 'coconet')} of the whole step (GPT-3)",
            "a block of a layer there, the whole iteration here",
        ),
        (
            "T3 (ASPLOS'24)",
            "training, whole iterations",
            "up to 12%",
            f"{_faster(job_with(GPT), 't3')} (GPT-3)",
            "ring of 150 GB/s and tp of 8 to 32 there, 300 GB/s and 8 here",
        ),
        (
            "Oases (2023)",
            "32 GPUs, beside Megatron-LM",
            "up to 1.95x",
            (
                f"{_faster(pcie, 'oases')} (gpt-7.5b, links of 20 GB/s), {_faster(job_with(HALVES), 'oases')} "
                "(NVLink)"
            ),
            (
                "half a micro-batch computes less efficiently here; their planner also changes degrees layer by "
                "layer"
            ),
        ),
        (
            "Lynx (2024)",
            "over baselines of recomputation",
            "up to 1.37x",
            f"{_faster(recomputed, 'lynx')} (GPT-3, all recomputed)",
            "windows of tensor parallelism over NVLink are short",
        ),
    ]


def headline_table(cases: Sequence[Case]) -> Table:
    """All that a setting is known of."""
    return Table(
        title="Headlines",
        header=("system", "setting", "published", "simulated", "why they differ"),
        rows=[*_gradients(cases), *_whole(cases)],
        notes=[
            (
                "Reported: from reports about the publication, not checked against it. Gains are more "
                "iterations in the same "
                "time, `x` times as fast; of rows with several models or rates the largest. Nets compute "
                "with 32 bits on V100 "
                "(a P4000 for P3) by data sheet, 32 samples a worker; jobs are those below, and as said. "
                "TriRace, whose "
                "gradients are late, is not compared: the training differs."
            )
        ],
    )
