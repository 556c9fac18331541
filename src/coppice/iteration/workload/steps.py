"""Step of a sequential model, replicated on every GPU: its layers as blocks."""

from __future__ import annotations

from coppice.iteration.machine import Cluster
from coppice.iteration.step.block import BACKWARD, FORWARD, GroupExchange, LayerBlock, Step
from coppice.iteration.transformer import Layout, Shard
from coppice.iteration.workload.catalogue import LayeredModel
from coppice.iteration.workload.times import layer_seconds

_ROUNDS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}


def layered_step(model: LayeredModel, layout: Layout, cluster: Cluster) -> Step:
    """Step of a sequential model whose replicas split the batch.

    Examples:
        >>> from coppice.iteration.machine import cluster_of
        >>> from coppice.iteration.workload.catalogue import dlrm
        >>> from coppice.topology.presets import preset
        >>> layout = Layout(data=16, micro_batch=4096, global_batch=65536)
        >>> step = layered_step(dlrm(), layout, cluster_of(preset("dgx-a100", boxes=2)))
        >>> [each.collective for block in step.stages[0] for each in block.exchanges]
        ['all_to_all', 'all_to_all']
    """
    share, replicas = cluster.gradient_share, layout.replicas

    def between_replicas(collective: str, size_bytes: float) -> GroupExchange:
        rounds = _ROUNDS[collective]
        seconds = cluster.ring_seconds(size_bytes, replicas, 1, rounds=rounds, share=share)
        moved = rounds * (replicas - 1) / replicas * size_bytes
        return GroupExchange(
            group="dp",
            collective=collective,
            size_bytes=size_bytes,
            seconds=seconds,
            loads=_loads(cluster, moved, replicas, seconds),
        )

    blocks = []
    for layer in model.row:
        took = layer_seconds(layer, layout.micro_batch, cluster)
        size = layer.exchanged_bytes * layout.micro_batch
        seconds = cluster.exchange_seconds(size, replicas, 1)
        exchanges = [
            GroupExchange(
                group="ep",
                collective="all_to_all",
                size_bytes=size,
                when=when,
                seconds=seconds,
                loads=_loads(cluster, size, replicas, seconds),
            )
            for when in (FORWARD, BACKWARD)
            if seconds
        ]
        blocks.append(
            LayerBlock(
                name=layer.name,
                kind="layer",
                forward=took.forward,
                input_gradient=took.input_gradient,
                weight_gradient=took.weight_gradient,
                parameters=layer.parameters - layer.expert_parameters,
                activation_bytes=layer.activation_bytes * layout.micro_batch,
                exchanges=tuple(exchanges),
            )
        )
    return Step(
        stages=(tuple(blocks),),
        micro_batches=layout.micro_batches,
        replicas=replicas,
        gradient_bytes=model.gradient_bytes,
        optimizer=(optimizer_seconds(model, layout, cluster),),
        shares_optimizer=layout.shard is not Shard.NONE,
        between_replicas=between_replicas if replicas > 1 else None,
        flops=3 * model.forward_flops(layout.global_batch),
        peak=layout.gpus * cluster.device.flops,
    )


def usual_overlap(layout: Layout) -> str:
    """Policy of data-parallel replicas of a sequential model: gradient buckets."""
    return "megatron" if layout.shard is not Shard.NONE else "ddp"


def optimizer_seconds(model: LayeredModel, layout: Layout, cluster: Cluster) -> float:
    """Time of the optimizer: it reads and writes weights and states, of tables only the rows used."""
    copied = model.parameters - model.table_parameters
    stepped = copied / (layout.replicas if layout.shard is not Shard.NONE else 1)
    states = 2 * (model.weight_bytes + model.state_bytes) + model.gradient_bytes
    looked = sum(each.passed_bytes for each in model.row if each.kind == "tables") * layout.micro_batch
    return (states * stepped + 2 * looked) / cluster.memory_rate


def _loads(cluster: Cluster, moved: float, ranks: int, seconds: float) -> dict[str, float]:
    """Utilisation of links: bytes moved over capacity in the time."""
    if not seconds or ranks == 1:
        return {}
    device = cluster.device
    inside = min(ranks, device.box)
    loads = {"NVLink": min(1.0, moved * (inside - 1) / inside / device.link_bytes_per_second / seconds)}
    if inside < ranks:
        loads["NIC"] = min(1.0, moved / cluster.nic_bytes_per_second / seconds)
    return {name: share for name, share in loads.items() if share > 0}
