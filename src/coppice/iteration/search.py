"""Search the layouts of a model on a cluster that divide it and fit into memory, fastest first.

The closed form orders them all; the best are simulated, and then ordered by what that says.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from coppice.errors import InputError
from coppice.iteration.accuracy import APART, Anchor, RunSetting, correction, estimate_range
from coppice.iteration.estimate import Estimate, estimate
from coppice.iteration.layout import Layout, Recompute, Shard
from coppice.iteration.machine import Cluster
from coppice.iteration.memory import Memory, MemoryFit, fit_of, memory_of
from coppice.iteration.policies.step_plans import BASELINE, plan_named
from coppice.iteration.predicted import predict
from coppice.iteration.step.blocks import optimizer_seconds, step_of_model, usual_overlap
from coppice.iteration.step.simulated import order_for, simulate_step
from coppice.iteration.transformer import Transformer
from coppice.iteration.workload.nets import LayeredModel
from coppice.iteration.workload.times import layer_workload


def estimate_of(model: Transformer | LayeredModel, layout: Layout, cluster: Cluster) -> Estimate:
    """Iteration time of a layout.

    A transformer is estimated part by part. Replicas of a sequential model all-reduce the gradients of their last
    micro-batch in buckets during its backward pass (PyTorch DDP, VLDB 2020), which is simulated.

    Args:
        layout: How it lies on the GPUs.

    Examples:
        >>> from coppice.iteration.machine import cluster_of
        >>> from coppice.iteration.workload.nets import resnet
        >>> from coppice.topology.presets import preset
        >>> layout = Layout(data=16, micro_batch=256, global_batch=4096)
        >>> found = estimate_of(resnet(50), layout, cluster_of(preset("dgx-a100", boxes=2)))
        >>> found.gradients < 0.1 * found.compute
        True
    """
    if isinstance(model, Transformer):
        return estimate(model, layout, cluster)
    workload = layer_workload(model, cluster, workers=layout.data, samples=layout.micro_batch)
    once = workload.compute_seconds
    last = predict(workload, "ddp").iteration_seconds
    exchanged = sum(each.exchanged_bytes for each in model.row) * layout.micro_batch
    exchanging = 2 * cluster.exchange_seconds(exchanged, layout.data, 1)
    return Estimate(
        compute=layout.micro_batches * (once - exchanging),
        head=0.0,
        tensor=0.0,
        sends=0.0,
        bubble=0.0,
        gradients=last - once,
        optimizer=optimizer_seconds(model, layout, cluster),
        exchange=layout.micro_batches * exchanging,
        flops=3 * model.forward_flops(layout.global_batch),
        peak=layout.gpus * cluster.device.flops,
    )


_RECOMPUTES = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)


@dataclass(frozen=True, kw_only=True)
class FoundLayout:
    """Layout that fits."""

    layout: Layout  # The layout
    estimate: Estimate  # Its iteration
    memory: Memory  # What a GPU keeps
    fit: MemoryFit  # Whether that surely fits, or may

    @property
    def why(self) -> str:
        """Largest cost apart from its layers, as text."""
        found = self.estimate
        costs = {
            "tp exchanges": found.tensor,
            "bubble": found.bubble,
            "gradients": found.gradients,
            "head": found.head,
            "sends": found.sends,
            "all-to-alls": found.exchange,
        }
        name = max(costs, key=lambda each: costs[each])
        return f"{name} {100 * costs[name] / found.seconds:.0f}%"


@dataclass(frozen=True, kw_only=True)
class LayoutSearch:
    """Result of a search."""

    found: Sequence[FoundLayout]  # Layouts that fit, the fastest first, before those that may fit
    tried: int  # Layouts that divide the model and the batch
    too_large: int  # Those of them that do not fit into memory

    @property
    def fitting(self) -> int:
        """Layouts that fit, with or without what is computed again."""
        return self.tried - self.too_large


@dataclass(frozen=True, kw_only=True)
class SimulatedLayout:
    """Layout that fits, simulated."""

    found: FoundLayout  # The layout, and its closed form
    seconds: float  # An iteration, by what is simulated and what was measured
    simulated_seconds: float  # By what is simulated
    mfu: float  # Share of the peak that operations of the model make up
    # Where the time goes (see :class:`coppice.iteration.step.simulated.SimulatedStep`)
    parts: Mapping[str, float]

    @property
    def why(self) -> str:
        """Largest cost apart from its layers, as text."""
        costs = {words: self.parts[name] for name, words in _COSTS.items()}
        name = max(costs, key=lambda each: costs[each])
        return f"{name} {100 * costs[name] / self.simulated_seconds:.0f}%"


_COSTS = {
    "tensor": "tp exchanges",
    "bubble": "bubble",
    "gradients": "gradients",
    "head": "head",
    "sends": "sends",
    "experts": "all-to-alls",
}


def simulated_layouts(
    model: Transformer | LayeredModel,
    cluster: Cluster,
    found: Sequence[FoundLayout],
    anchors: Sequence[Anchor] = (),  # Measured steps, which correct the times
) -> list[SimulatedLayout]:
    """Simulate layouts, fastest first before those that may not fit.

    Only gradient all-reduces of a sequential model overlap.
    """
    spread = estimate_range(cluster).spread
    simulated = []
    for each in found:
        layout = each.layout
        name, order = order_for(None, layout.pipeline, layout.micro_batches, layout.chunks)
        step = step_of_model(model, layout, cluster)
        overlap = usual_overlap(layout) if isinstance(model, LayeredModel) else BASELINE
        result = simulate_step(step, plan_named(overlap, step, order), name=name)
        setting = RunSetting(model=model, device=cluster.device.name, layout=layout)
        factor = correction(setting, anchors, spread).factor if anchors else 1.0
        simulated.append(
            SimulatedLayout(
                found=each,
                seconds=factor * result.seconds,
                simulated_seconds=result.seconds,
                mfu=result.mfu / factor,
                parts=result.parts,
            )
        )
    return sorted(simulated, key=lambda each: (each.found.fit is not MemoryFit.YES, each.seconds))


def as_fast(best: Sequence[SimulatedLayout]) -> int:
    """Number of layouts that may be the fastest: estimates of two differ that much from measurements."""
    most = best[0].seconds * math.exp(APART) if best else 0.0
    return sum(1 for _ in itertools.takewhile(lambda each: each.seconds <= most, best))


def search_layouts(
    model: Transformer | LayeredModel,
    cluster: Cluster,
    gpus: int,
    global_batch: int,
    *,
    fused_attention: bool = True,  # Scores of attention stay on the chip
) -> LayoutSearch:
    """Search all layouts of a model over a number of GPUs.

    Tensor parallelism stays inside a box; of recomputation the least that fits is taken, and what fits barely besides;
    of sharding states of the optimizer both ways; experts are sharded by as many ranks as divide them. A sequential
    model has replicas alone. Layouts that may not fit come behind those that do.
    Exhaustive: what the cost grows with is the number of divisors of GPUs, layers and batch.
    """
    found: list[FoundLayout] = []
    tried = too_large = 0
    least: tuple[float, Layout] | None = None
    for layout in _layouts(model, cluster, gpus, global_batch, fused_attention=fused_attention):
        tried += 1
        fits = False
        for recompute in _RECOMPUTES if isinstance(model, Transformer) else _RECOMPUTES[:1]:
            each = replace(layout, recompute=recompute)
            held = memory_of(model, each, cluster.framework)
            if least is None or held.total < least[0]:
                least = held.total, each
            if held.total > cluster.device.memory_bytes:
                continue
            fit = fit_of(held.total, cluster.device.memory_bytes)
            taken = estimate_of(model, each, cluster)
            found.append(FoundLayout(layout=each, estimate=taken, memory=held, fit=fit))
            fits = True
            if fit is MemoryFit.YES:
                break
        too_large += not fits
    if not found:
        room = cluster.device.memory_bytes / 1e9
        if least is None:
            msg = (
                f"expected a layout over {gpus} GPUs that divides {model.layers} layers and a batch of {global_batch}, "
                "found none: change the number of GPUs or the batch."
            )
        else:
            msg = (
                f"expected a layout that fits {room:.0f} GB, found {least[0] / 1e9:.3g} GB at least (tp "
                f"{least[1].tensor}, pp {least[1].pipeline}, dp {least[1].data}): take more GPUs."
            )
        raise InputError(msg)
    found.sort(key=lambda each: (each.fit is not MemoryFit.YES, each.estimate.seconds))
    return LayoutSearch(found=found, tried=tried, too_large=too_large)


def _layouts(
    model: Transformer | LayeredModel,
    cluster: Cluster,
    gpus: int,
    global_batch: int,
    *,
    fused_attention: bool,
) -> Iterator[Layout]:
    """Layouts whose degrees divide everything."""
    if isinstance(model, LayeredModel):
        for micro_batch in _divisors(global_batch // gpus) if global_batch % gpus == 0 else ():
            for shard in _shards(gpus):
                yield Layout(data=gpus, micro_batch=micro_batch, global_batch=global_batch, shard=shard)
        return
    for tensor in _divisors(gpus):
        if tensor > cluster.device.box or cluster.device.box % tensor or model.heads % tensor:
            continue
        for pipeline in _divisors(gpus // tensor):
            data = gpus // tensor // pipeline
            if model.layers % pipeline or global_batch % data:
                continue
            for micro_batch in _divisors(global_batch // data):
                count = global_batch // data // micro_batch
                held = model.layers // pipeline
                chunks = [1]
                if pipeline > 1 and count % pipeline == 0:
                    chunks = _divisors(held)
                experts = (
                    [each for each in _divisors(data) if not model.experts % each] if model.experts else [1]
                )
                for each, expert in itertools.product(chunks, experts):
                    for shard in _shards(data):
                        yield Layout(
                            tensor=tensor,
                            pipeline=pipeline,
                            data=data,
                            expert=expert,
                            chunks=each,
                            micro_batch=micro_batch,
                            global_batch=global_batch,
                            sequence_parallel=tensor > 1,
                            fused_attention=fused_attention,
                            shard=shard,
                        )


def _shards(replicas: int) -> tuple[Shard, ...]:
    """Sharding options of the replicas."""
    return (Shard.NONE, Shard.ZERO1) if replicas > 1 else (Shard.NONE,)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
