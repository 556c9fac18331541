"""Step of a transformer: its layers, embedding and head as blocks, with the collectives of a layout.

The times are those of :mod:`coppice.iteration.estimate`; a backward pass is half gradients of inputs, half of
weights.

Layers with experts exchange tokens all-to-all between the ranks that share them out: a token goes to its experts and
comes back, two all-to-alls a pass (GShard; Lepikhin et al., ICLR 2021). Tokens are taken to be dealt evenly, up to the
capacity of experts.
"""

from __future__ import annotations

import itertools
import math

from coppice.iteration.costs.group import RankGroup
from coppice.iteration.estimate import (
    OPTIMIZER_BYTES,
    LayerWork,
    context_seconds,
    crossing_share,
    hop_seconds,
    routing_seconds,
)
from coppice.iteration.machine import Cluster
from coppice.iteration.memory import layer_bytes
from coppice.iteration.recomputation import layers_of, repeated_sums, repeats_routing
from coppice.iteration.sharding import sharded_exchanges, tensors_of
from coppice.iteration.step.block import BACKWARD, FORWARD, RECOMPUTE, GroupExchange, LayerBlock, Step
from coppice.iteration.transformer import Layout, Recompute, Shard, Transformer, dealt_layers

_HALF = 2  # bytes of a value
_LARGE = 1e10  # bytes of a message beside which waiting does not count


def expert_exchanges(model: Transformer, layout: Layout, cluster: Cluster) -> list[GroupExchange]:
    """All-to-alls of a layer with experts; none where every rank holds all experts.

    Args:
        layout: How the job lies on the GPUs.
    """
    if not model.experts or layout.expert == 1:
        return []
    tokens = layout.micro_batch * model.seq / layout.context
    size = _HALF * tokens * model.routed_share * model.hidden / layout.tensor
    seconds = routing_seconds(model, layout, cluster)
    device = cluster.device
    inside = min(layout.expert, max(1, device.box // layout.tensor))
    fans_out = layout.deduplicated and inside < layout.expert
    near = size * (inside - 1) / (inside if fans_out else layout.expert) / device.link_bytes_per_second
    far = size * (layout.expert - inside) / layout.expert * device.box / cluster.nic_bytes_per_second
    if fans_out:
        far *= crossing_share(model, layout, device.box)
    near, far = near / seconds, far / seconds
    loads = {name: min(1.0, share) for name, share in (("NVLink", near), ("NIC", far)) if share > 0}
    passes = [FORWARD, BACKWARD, *([RECOMPUTE] if repeats_routing(layout) else [])]
    return [
        GroupExchange(
            group="ep", collective="all_to_all", size_bytes=size, when=when, seconds=seconds, loads=loads
        )
        for when in passes
        for _ in range(2)
    ]


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


_ROUNDS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}


def transformer_blocks(model: Transformer, layout: Layout, cluster: Cluster) -> tuple[LayerBlock, ...]:
    """Blocks of a transformer: embedding, layers, head; equal blocks are one object.

    Args:
        layout: How the job lies on the GPUs.
    """
    views = layers_of(model, layout)
    kinds = {(view, own): _layer(view, own, cluster) for view, own in dict.fromkeys(views)}
    work = LayerWork.of(model, layout, cluster)
    words = model.vocab * model.hidden / layout.tensor
    embedding = LayerBlock(name="embedding", kind="embedding", parameters=words)
    head = LayerBlock(
        name="head",
        kind="head",
        forward=work.head / 3,
        input_gradient=work.head / 3,
        weight_gradient=work.head / 3,
        parameters=words,
    )
    return (embedding, *(kinds[view] for view in views), head)


def _layer(model: Transformer, layout: Layout, cluster: Cluster) -> LayerBlock:
    """Layer of a model with equal layers."""
    work = LayerWork.of(model, layout, cluster)
    half = (work.backward - work.recompute) / 2
    dense = model.dense_parameters / model.layers / layout.tensor
    return LayerBlock(
        name="layer",
        kind="layer",
        forward=work.forward,
        input_gradient=half,
        weight_gradient=half,
        recompute=work.recompute,
        parameters=dense + expert_weights(model, layout, cluster)[1],
        activation_bytes=layer_bytes(model, layout, cluster.framework),
        exchanges=(
            *_tensor(model, layout, cluster, work.tokens),
            *_context(model, layout, cluster),
            *expert_exchanges(model, layout, cluster),
            *_sharded(model, layout, cluster),
        ),
    )


def _tensor(model: Transformer, layout: Layout, cluster: Cluster, tokens: float) -> list[GroupExchange]:
    """Activation all-reduces: two per pass; with sequence parallelism each is an all-gather and a reduce-scatter."""
    if layout.tensor == 1:
        return []
    size = _HALF * tokens * model.hidden
    whole = cluster.sum_seconds(size, layout.tensor, split=layout.sequence_parallel)
    loads = _loads(cluster, size, layout.tensor, 1, 2, whole)
    kinds = ("all_gather", "reduce_scatter") if layout.sequence_parallel else ("all_reduce",)
    row = [(when, kind) for when in (FORWARD, BACKWARD) for kind in model.sums * kinds]
    row += [(RECOMPUTE, kind) for kind in repeated_sums(model, layout)]
    return [
        GroupExchange(
            group="tp", collective=kind, size_bytes=size, when=when, seconds=whole / len(kinds), loads=loads
        )
        for when, kind in row
    ]


def _context(model: Transformer, layout: Layout, cluster: Cluster) -> list[GroupExchange]:
    """Context parallelism: keys and values gathered in every attention pass, and their gradients scattered; or sent."""
    forward, backward = context_seconds(model, layout, cluster)
    size = _HALF * layout.micro_batch * model.seq * model.key_value_width / layout.tensor
    if layout.context_ring:
        kinds = [(FORWARD, "send", forward), (BACKWARD, "send", backward)]
    else:
        kinds = [(FORWARD, "all_gather", forward), (BACKWARD, "all_gather", forward)]
        kinds += [(BACKWARD, "reduce_scatter", backward - forward)]
    kinds += [(RECOMPUTE, kinds[0][1], forward)] if layout.recompute is Recompute.FULL else []
    return [
        GroupExchange(
            group="cp",
            collective=kind,
            size_bytes=size,
            when=when,
            seconds=seconds,
            loads=_loads(cluster, size, layout.context, layout.tensor, 1, seconds),
        )
        for when, kind, seconds in kinds
        if seconds
    ]


def _sharded(model: Transformer, layout: Layout, cluster: Cluster) -> list[GroupExchange]:
    """ZeRO-3: parameters all-gathered in both passes, gradients reduce-scattered."""
    return [
        GroupExchange(
            group="dp",
            collective=each.collective,
            size_bytes=each.size_bytes,
            when=BACKWARD if each.backward else FORWARD,
            seconds=each.seconds,
            loads=_loads(
                cluster,
                each.size_bytes,
                each.group.ranks,
                each.group.stride,
                _ROUNDS[each.collective],
                each.seconds,
            ),
        )
        for each in (sharded_exchanges(model, layout, cluster) if layout.shard is Shard.ZERO3 else ())
    ]


def _loads(
    cluster: Cluster, size_bytes: float, ranks: int, stride: int, rounds: int, seconds: float
) -> dict[str, float]:
    """Utilisation of links by a collective: bytes moved over capacity in its time."""
    if ranks == 1 or not seconds:
        return {}
    if cluster.costs is not None:
        name = "all_reduce" if rounds == 2 else "all_gather"
        return dict(cluster.costs.cost(name, size_bytes, RankGroup(ranks, stride)).loads)
    device = cluster.device
    moved = rounds * (ranks - 1) / ranks * size_bytes
    inside = min(ranks, max(1, device.box // stride))
    loads = {}
    if inside > 1:
        loads["NVLink"] = min(1.0, moved / device.link_bytes_per_second / seconds)
    if inside < ranks:
        groups = device.box / inside
        loads["NIC"] = min(1.0, moved * groups / cluster.nic_bytes_per_second / seconds)
    return {name: share for name, share in loads.items() if share > 0}


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
    stages = layout.pipeline * layout.chunks
    embedding, *layers, head = transformer_blocks(model, layout, cluster)
    head_seconds = head.compute if cluster.framework.balanced else None
    held = dealt_layers(model.layers, stages, head_seconds, layers[0].compute)
    first = [0, *itertools.accumulate(held)]
    dealt = [tuple(layers[begin:end]) for begin, end in itertools.pairwise(first)]
    # The head has the weights of the embedding; of both copies on a single device gradients are summed once.
    if stages == 1:
        dealt = [(embedding, *dealt[0], _without_weights(head))]
    else:
        dealt[0] = (embedding, *dealt[0])
        dealt[-1] = (*dealt[-1], head)
    replicas = layout.replicas
    shards = layout.shard is not Shard.NONE
    # The optimizer steps experts as they are, not as messages count them; fewer replicas share them out.
    stepped, few = (layout.sharing, layout.sharing_experts) if shards else (1, 1)
    weights = [expert_weights(model.of_layer(layer), layout, cluster) for layer in range(model.layers)]
    own = []
    for k, stage in enumerate(dealt):
        experts, counted = map(sum, zip(*weights[first[k] : first[k + 1]], (0.0, 0.0), strict=True))
        own.append((sum(block.parameters for block in stage) - counted) / stepped + experts / few)
    one = math.inf
    if cluster.framework.by_tensor and layout.shard is Shard.ZERO1:
        one = cluster.framework.gradient_bytes * model.layer_parameters / tensors_of(model) / layout.tensor

    def between_replicas(collective: str, size_bytes: float) -> GroupExchange:
        messages = max(1.0, size_bytes / one)
        seconds = messages * cluster.replicas_seconds(
            size_bytes / messages, replicas, layout.sharing, layout.tensor, collective=collective
        )
        rounds, ranks = _ROUNDS[collective], layout.sharing if collective == "all_gather" else replicas
        return GroupExchange(
            group="dp",
            collective=collective,
            size_bytes=size_bytes,
            seconds=seconds,
            loads=_loads(cluster, size_bytes, ranks, layout.tensor, rounds, seconds),
        )

    return Step(
        stages=tuple(dealt),
        micro_batches=layout.micro_batches,
        replicas=replicas,
        gradient_bytes=cluster.framework.gradient_bytes,
        send=_send(model, layout, cluster) if stages > 1 else None,
        optimizer=tuple(
            # The host steps once for all chunks of a device.
            cluster.framework.step_seconds / layout.chunks + OPTIMIZER_BYTES * each / cluster.memory_rate
            for each in own
        ),
        shares_optimizer=shards,
        between_replicas=between_replicas if replicas > 1 else None,
        flops=3 * model.forward_flops(layout.global_batch),
        peak=layout.gpus * cluster.device.flops,
    )


def _without_weights(head: LayerBlock) -> LayerBlock:
    return LayerBlock(
        name=head.name,
        kind=head.kind,
        forward=head.forward,
        input_gradient=head.input_gradient,
        weight_gradient=head.weight_gradient,
    )


def _send(model: Transformer, layout: Layout, cluster: Cluster) -> GroupExchange:
    """Send of a micro-batch's activations to the next stage, a part by every tensor-parallel rank.

    The rate of what is gathered after that inside a box is not counted as load.
    """
    tokens = layout.micro_batch * model.seq / layout.context
    size = _HALF * tokens * model.hidden / layout.tensor
    stride = layout.tensor * layout.data * layout.context
    seconds = hop_seconds(model, layout, cluster)
    device = cluster.device
    near = stride < device.box
    rate = device.link_bytes_per_second if near else cluster.nic_bytes_per_second / device.box
    taken = min(1.0, size / rate / seconds) if seconds and math.isfinite(seconds) else 0.0
    return GroupExchange(
        group="pp",
        collective="send",
        size_bytes=size,
        seconds=seconds,
        loads={"NVLink" if near else "NIC": taken} if taken else {},
    )
