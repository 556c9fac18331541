"""Steps of models: their layers as blocks of a GPU, with the collectives of a layout.

A transformer's layers are split into stages, a sequential model's replicas split its batch. What a block takes is what
its operators take (:mod:`coppice.iteration.workload.times`): a GPU that stalls stops all of them, so that passes of a
transformer take longer the more GPUs there are, and the gradient of a weight is added to the sum of earlier
micro-batches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from coppice.iteration.costs.group import RankGroup
from coppice.iteration.layout import (
    Layout,
    Recompute,
    Shard,
    dealt_layers,
    kinds_of,
    layers_of,
    repeated_parts,
)
from coppice.iteration.machine import Cluster
from coppice.iteration.memory import layer_bytes
from coppice.iteration.step.exchanges import layer_exchanges, replica_messages, stage_send, tensors_of
from coppice.iteration.step.plan import BACKWARD, FORWARD, GroupExchange, LayerBlock, Step
from coppice.iteration.transformer import Transformer
from coppice.iteration.workload.nets import LayeredModel
from coppice.iteration.workload.operators import AttentionProducts, MemoryPasses, ModelLayer
from coppice.iteration.workload.times import (
    PassSeconds,
    launch_seconds,
    layer_seconds,
    operator_seconds,
    repeated_seconds,
)
from coppice.iteration.workload.transformers import (
    SHARED_EXPERTS,
    embedding_layer,
    head_layer,
    joining_layer,
    transformer_layer,
)

OPTIMIZER_BYTES = 34
"""What Adam reads and writes for a parameter, its 32-bit states and copy included, and the norm of its gradient."""
_LARGE = 1e10  # bytes of a message beside which waiting does not count


def step_of_model(model: Transformer | LayeredModel, layout: Layout, cluster: Cluster) -> Step:
    """Step of a model.

    Args:
        layout: How the job lies on the GPUs.
    """
    if isinstance(model, LayeredModel):
        return layered_step(model, layout, cluster)
    return transformer_step(model, layout, cluster)


def transformer_blocks(model: Transformer, layout: Layout, cluster: Cluster) -> tuple[LayerBlock, ...]:
    """Blocks of a transformer: embedding, layers, head; equal blocks are one object.

    Args:
        layout: How the job lies on the GPUs.
    """
    embedding, head = end_blocks(model, layout, cluster)
    views = layers_of(model, layout)
    kinds = {(view, own): layer_block(view, own, cluster) for view, own in dict.fromkeys(views)}
    return (embedding, *(kinds[view] for view in views), head)


def kinds_of_blocks(model: Transformer, layout: Layout, cluster: Cluster) -> list[tuple[LayerBlock, int]]:
    """Blocks of the kinds of layers of a transformer, and how many layers there are of each."""
    return [(layer_block(view, own, cluster), count) for view, own, count in kinds_of(model, layout)]


def layer_block(model: Transformer, layout: Layout, cluster: Cluster) -> LayerBlock:
    """Layer of a model, where all are alike, with what it computes again and exchanges."""
    parts = transformer_layer(model, layout, cluster.framework)
    samples, slower = layout.micro_batch, stalls_of(layout.gpus, cluster)
    took = layer_seconds(parts, samples, cluster, slower=slower)
    if layout.recompute is Recompute.FULL:
        again = took.forward
    else:
        shares = repeated_parts(model, layout, cluster.framework)
        again = slower * repeated_seconds(parts, shares, samples, cluster) if shares else 0.0
        if layout.recompute is Recompute.OPERATORS:
            again = max(again, launch_seconds(parts, cluster))
    dense = model.dense_parameters / model.layers / layout.tensor
    experts, counted = expert_weights(model, layout, cluster)
    share = layout.replicas if layout.shard is Shard.ZERO3 else 1
    summed = cluster.framework.accumulated_bytes * (dense + experts) / share / cluster.memory_rate
    return LayerBlock(
        name="layer",
        kind="layer",
        forward=took.forward,
        input_gradient=took.input_gradient,
        weight_gradient=took.weight_gradient + summed,
        recompute=again,
        parameters=dense + counted,
        activation_bytes=layer_bytes(model, layout, cluster.framework),
        exchanges=layer_exchanges(
            model,
            layout,
            cluster,
            _attention(parts, layout, cluster),
            _shared_experts(parts, layout, cluster, slower),
        ),
    )


def _attention(parts: Sequence[ModelLayer], layout: Layout, cluster: Cluster) -> PassSeconds:
    """What attention takes beside which context-parallel ranks may send keys and values."""
    if layout.context == 1:
        return PassSeconds()
    found = (
        operator_seconds(each, layout.micro_batch, cluster)
        for part in parts
        for each in part.operators
        if isinstance(each, AttentionProducts)
    )
    return sum(found, PassSeconds())


def _shared_experts(
    parts: Sequence[ModelLayer], layout: Layout, cluster: Cluster, slower: float
) -> tuple[PassSeconds, PassSeconds]:
    """What shared experts take up to their activation, and behind it, where tokens go to others meanwhile."""
    halves = [PassSeconds(), PassSeconds()]
    if layout.shared_beside:
        for part in parts:
            for each in part.operators if part.kind == "experts" else ():
                if each.name in SHARED_EXPERTS:
                    took = operator_seconds(each, layout.micro_batch, cluster).scaled(slower, slower)
                    halves[each.name == SHARED_EXPERTS[-1]] += took
    return halves[0], halves[1]


def end_blocks(model: Transformer, layout: Layout, cluster: Cluster) -> tuple[LayerBlock, LayerBlock]:
    """Embedding and head of a transformer; layers that predict further words are in the head."""
    slower, words = stalls_of(layout.gpus, cluster), model.vocab * model.hidden / layout.tensor

    def block(name: str, *parts: ModelLayer) -> LayerBlock:
        took = sum(
            (layer_seconds((each,), layout.micro_batch, cluster, slower=slower) for each in parts),
            PassSeconds(),
        )
        return LayerBlock(
            name=name,
            kind=name,
            forward=took.forward,
            input_gradient=took.input_gradient,
            weight_gradient=took.weight_gradient,
            parameters=words,
        )

    embedding = block("embedding", embedding_layer(model, layout))
    own = head_layer(model, layout, cluster.framework)
    head = block("head", own)
    if not model.mtp_layers:
        return embedding, head
    last = layer_block(*layers_of(model, layout)[-1], cluster)
    further, count = block("head", own, joining_layer(model, layout)), model.mtp_layers
    return embedding, replace(
        head,
        forward=head.forward + count * (further.forward + last.forward),
        input_gradient=head.input_gradient + count * (further.input_gradient + last.input_gradient),
        weight_gradient=head.weight_gradient + count * (further.weight_gradient + last.weight_gradient),
        recompute=count * last.recompute,
    )


def stalls_of(gpus: int, cluster: Cluster) -> float:
    """Factor by which passes take longer on many GPUs."""
    return 1 + cluster.calibration.stall_share * math.sqrt(gpus / 1000)


def expert_weights(model: Transformer, layout: Layout, cluster: Cluster) -> tuple[float, float]:
    """Expert weights of a GPU per layer: held, and effective for messages between replicas.

    Only every `ep`-th replica has the same experts, and these are further apart: their bytes count as many as take a
    ring of all replicas as long as they take a ring of theirs.

    Args:
        layout: How the job lies on the GPUs.
    """
    if not model.experts:
        return 0.0, 0.0
    own = model.experts * model.expert_parameters / layout.tensor / layout.expert
    if layout.replicas == 1 or layout.expert == 1:
        return own, own
    groups = (
        (layout.replicas // layout.expert, layout.tensor * layout.expert),
        (layout.replicas, layout.tensor),
    )
    share = cluster.gradient_share
    few, all_ = (
        cluster.ring_seconds(_LARGE, ranks, stride, share=share) - cluster.ring_seconds(0.0, ranks, stride)
        for ranks, stride in groups
    )
    return own, own * few / all_


def transformer_step(model: Transformer, layout: Layout, cluster: Cluster) -> Step:
    """Step of a transformer: layers split evenly into stages, embedding before the first, head after the last.

    Args:
        layout: How the job lies on the GPUs.

    Examples:
        >>> from coppice.iteration.machine import cluster_of
        >>> from coppice.iteration.models import model_named
        >>> from coppice.topology.presets import preset
        >>> cluster = cluster_of(preset("dgx-a100", boxes=2))
        >>> layout = Layout(tensor=8, pipeline=2, global_batch=16)
        >>> step = transformer_step(model_named("gpt-7.5b"), layout, cluster)
        >>> [len(stage) for stage in step.stages], step.micro_batches, step.send.link
        ([19, 19], 16, 'NIC')
    """
    stages, framework = layout.pipeline * layout.chunks, cluster.framework
    embedding, *layers, head = transformer_blocks(model, layout, cluster)
    head_seconds = head.compute if framework.balanced else None
    held = dealt_layers(model.layers, stages, head_seconds, layers[0].compute)
    first = [0, *itertools.accumulate(held)]
    dealt = [tuple(layers[begin:end]) for begin, end in itertools.pairwise(first)]
    # The head has the weights of the embedding; of both copies on a single device gradients are summed once.
    if stages == 1:
        dealt = [(embedding, *dealt[0], replace(head, parameters=0.0))]
    else:
        dealt[0] = (embedding, *dealt[0])
        dealt[-1] = (*dealt[-1], head)
    shards = layout.shard is not Shard.NONE
    # The optimizer steps experts as they are, not as messages count them; fewer replicas share them out.
    stepped, few = (layout.sharing, layout.sharing_experts) if shards else (1, 1)
    weights = [expert_weights(model.of_layer(layer), layout, cluster) for layer in range(model.layers)]
    own = []
    for k, stage in enumerate(dealt):
        experts, counted = map(sum, zip(*weights[first[k] : first[k + 1]], (0.0, 0.0), strict=True))
        own.append((sum(block.parameters for block in stage) - counted) / stepped + experts / few)
    one = math.inf
    if framework.by_tensor and layout.shard is Shard.ZERO1:
        one = framework.gradient_bytes * model.layer_parameters / tensors_of(model) / layout.tensor
    return Step(
        stages=tuple(dealt),
        micro_batches=layout.micro_batches,
        replicas=layout.replicas,
        gradient_bytes=framework.gradient_bytes,
        send=stage_send(model, layout, cluster) if stages > 1 else None,
        optimizer=tuple(
            # The host steps once for all chunks of a device.
            framework.step_seconds / layout.chunks + OPTIMIZER_BYTES * each / cluster.memory_rate
            for each in own
        ),
        shares_optimizer=shards,
        between_replicas=replica_messages(layout, cluster, one) if layout.replicas > 1 else None,
        flops=3 * model.forward_flops(layout.global_batch),
        peak=layout.gpus * cluster.device.flops,
    )


def layered_step(model: LayeredModel, layout: Layout, cluster: Cluster) -> Step:
    """Step of a sequential model whose replicas split the batch.

    Examples:
        >>> from coppice.iteration.machine import cluster_of
        >>> from coppice.iteration.workload.nets import dlrm
        >>> from coppice.topology.presets import preset
        >>> layout = Layout(data=16, micro_batch=4096, global_batch=65536)
        >>> step = layered_step(dlrm(), layout, cluster_of(preset("dgx-a100", boxes=2)))
        >>> [each.collective for block in step.stages[0] for each in block.exchanges]
        ['all_to_all', 'all_to_all']
    """
    return Step(
        stages=(tuple(_layered_block(layer, layout, cluster) for layer in model.row),),
        micro_batches=layout.micro_batches,
        replicas=layout.replicas,
        gradient_bytes=model.gradient_bytes,
        optimizer=(optimizer_seconds(model, layout, cluster),),
        shares_optimizer=layout.shard is not Shard.NONE,
        between_replicas=replica_messages(layout, cluster) if layout.replicas > 1 else None,
        flops=3 * model.forward_flops(layout.global_batch),
        peak=layout.gpus * cluster.device.flops,
    )


def _layered_block(layer: ModelLayer, layout: Layout, cluster: Cluster) -> LayerBlock:
    """Layer of a sequential model, with the all-to-alls of what its replicas look up."""
    took = layer_seconds((layer,), layout.micro_batch, cluster)
    size = layer.exchanged_bytes * layout.micro_batch
    seconds = cluster.exchange_seconds(size, layout.replicas, 1)
    loads = cluster.link_loads("all_to_all", size, RankGroup(layout.replicas, 1), seconds)
    return LayerBlock(
        name=layer.name,
        kind="layer",
        forward=took.forward,
        input_gradient=took.input_gradient,
        weight_gradient=took.weight_gradient,
        parameters=layer.parameters - layer.expert_parameters,
        activation_bytes=layer.activation_bytes * layout.micro_batch,
        exchanges=tuple(
            GroupExchange(
                group="ep", collective="all_to_all", size_bytes=size, when=when, seconds=seconds, loads=loads
            )
            for when in (FORWARD, BACKWARD)
            if seconds
        ),
    )


def usual_overlap(layout: Layout) -> str:
    """Policy of data-parallel replicas of a sequential model: gradient buckets."""
    return "megatron" if layout.shard is not Shard.NONE else "ddp"


def optimizer_seconds(model: LayeredModel, layout: Layout, cluster: Cluster) -> float:
    """Time of the optimizer: it reads and writes weights and states, of tables only the rows used."""
    copied = model.parameters - model.table_parameters
    stepped = copied / (layout.replicas if layout.shard is not Shard.NONE else 1)
    states = 2 * (model.weight_bytes + model.state_bytes) + model.gradient_bytes
    looked = sum(
        each.moved_bytes
        for layer in model.row
        if layer.kind == "tables"
        for each in layer.operators
        if isinstance(each, MemoryPasses)
    )
    return (states * stepped + 2 * looked * layout.micro_batch) / cluster.memory_rate
