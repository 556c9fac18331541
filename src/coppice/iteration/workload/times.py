"""Layers on a device: those of transformers, their times, workloads of gradient policies, steps of sequential models.

What a layer keeps, for a sequence, is as in Korthikanti et al. (MLSys 2023, section 4): s h (34 + 5 a s / h) bytes, of
which norms, dropout and residuals have 10, attention 9 and the MLP 16 - its own norm and mask counted - and 5 a s / h
are the scores where attention is not fused. A token that is sent to k experts is kept by each of them.

A product takes its operations at the rate of its size, which is that of the constants of the device or of its measured
table, and no less than its operands and result need from memory; passes over activations run at the rate of memory. The
backward pass computes gradients of inputs and of weights, each a product of the same size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coppice.iteration.devices import KERNELS
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.machine import Cluster
from coppice.iteration.step.block import BACKWARD, FORWARD, GroupExchange, LayerBlock, Step
from coppice.iteration.transformer import Layout, Shard, Transformer, layer_kinds
from coppice.iteration.workload.catalogue import LayeredModel, MatrixProduct, ModelLayer

_HALF = 2  # bytes of a value


def transformer_row(model: Transformer, *, fused_attention: bool = True) -> tuple[ModelLayer, ...]:
    """Embedding, attention and MLP (or experts) of every layer, and the output layer.

    Args:
        fused_attention: Scores stay on the chip, so that none are kept.

    Examples:
        >>> from coppice.iteration.models import MODELS
        >>> row = transformer_row(MODELS["mixtral-8x7b"])
        >>> len(row), row[2].kind, sum(each.parameters for each in row) == MODELS["mixtral-8x7b"].parameters
        (66, 'experts', True)
    """
    table = model.hidden * (model.input_width or model.vocab)
    tied_head = model.tied and not model.input_width
    head = 0.0 if tied_head else model.vocab * model.hidden
    row = [
        ModelLayer(
            name="embedding",
            kind="embedding",
            products=(
                (MatrixProduct(rows=model.seq, n=model.hidden, k=model.input_width),)
                if model.input_width
                else ()
            ),
            passed_bytes=2 * _HALF * model.seq * model.hidden,
            activation_bytes=model.seq * model.hidden,
            parameters=table + model.extra_parameters,
        )
    ]
    attentions = {
        view: _attention(view, fused=fused_attention)
        for view in dict.fromkeys(_attention_view(view) for view, _ in layer_kinds(model) if view.share("*"))
    }
    dense, mixture = _mlp(model), _experts(model) if model.experts else None

    def append_layer(view: Transformer, name: str) -> None:
        if view.share("M"):
            row.append(_named(_state_space(view), f"{name}.states"))
            return
        if view.share("*"):
            row.append(_named(attentions[_attention_view(view)], f"{name}.attention"))
        if mixture is not None and view.experts:
            row.append(_named(mixture, f"{name}.experts"))
        elif view.share("-"):
            row.append(_named(dense, f"{name}.mlp"))

    for layer in range(model.layers):
        append_layer(model.of_layer(layer), f"layer{layer}")
    scored = model.scored_tokens or model.seq
    last = ModelLayer(
        name="head",
        kind="head",
        products=(MatrixProduct(rows=scored, n=model.vocab, k=model.hidden),),
        passed_bytes=6 * _HALF * scored * model.vocab,
        activation_bytes=2 * _HALF * scored * model.vocab,
        parameters=head,
    )
    row.append(last)
    for further in range(model.mtp_layers):
        row.append(
            ModelLayer(
                name=f"mtp{further}.joined",
                kind="mlp",
                products=(MatrixProduct(rows=model.seq, n=model.hidden, k=2 * model.hidden),),
                passed_bytes=6 * _HALF * model.seq * model.hidden,
                activation_bytes=4 * _HALF * model.seq * model.hidden,
                parameters=2 * model.hidden**2 + 3 * model.hidden,
            )
        )
        append_layer(model.of_layer(model.layers - 1), f"mtp{further}")
        row.append(replace(last, name=f"mtp{further}.head", parameters=0.0))
    return tuple(row)


def _attention_view(view: Transformer) -> Transformer:
    """A model of such layers, as far as attention tells them apart."""
    return replace(view, experts=0, experts_per_token=1, pattern="*" if view.pattern else "")


def _named(layer: ModelLayer, name: str) -> ModelLayer:
    return replace(layer, name=name)


def _small(model: Transformer) -> tuple[float, float]:
    """Parameters outside of matrices: of attention, and of the MLP."""
    if not model.biases:
        return model.hidden + model.query_rank + model.kv_rank, model.hidden
    attention = 3 * model.hidden + model.query_width + model.key_value_width
    return attention, model.small_parameters - attention


def _attention(model: Transformer, *, fused: bool) -> ModelLayer:
    """Norm, projections to queries, keys and values, attention, and output projection."""
    seq, queries, context, pair = model.seq, model.query_width, model.context_width, model.key_value_width
    scores = 0.0 if fused else 5 * model.heads * seq * seq
    if model.kv_rank:
        heads = queries - model.heads * model.rope_width + context
        products = [
            MatrixProduct(rows=seq, n=model.latent_width, k=model.hidden),
            MatrixProduct(rows=seq, n=queries, k=model.query_rank or model.hidden),
            MatrixProduct(rows=seq, n=heads, k=model.kv_rank),
        ]
    else:
        products = [MatrixProduct(rows=seq, n=queries + pair, k=model.hidden)]
    return ModelLayer(
        name="",
        kind="attention",
        products=(*products, MatrixProduct(rows=seq, n=model.hidden, k=context)),
        attention=2 * seq * (model.seen_tokens if fused else seq) * (queries + context),
        attention_shape=(model.heads, seq),
        passed_bytes=5 * _HALF * seq * model.hidden,
        # Input of the norm 2, of q, k, v 2, the mask 1; queries and the context 2 each, keys and values.
        activation_bytes=seq * (5 * model.hidden + _HALF * (queries + context + pair + model.latent_width))
        + scores,
        parameters=model.attention_parameters + _small(model)[0],
    )


def _state_space(model: Transformer) -> ModelLayer:
    """Norm, projections, convolution and scan, which takes as long as what it reads and writes."""
    seq, layer = model.seq, model.state_space
    passed = _HALF * (5 * model.hidden + 2 * layer.convolved + 3 * layer.inner) + layer.scan_bytes
    return ModelLayer(
        name="",
        kind="states",
        products=tuple(MatrixProduct(rows=seq, n=n, k=k) for n, k in layer.products.values()),
        other_flops=seq * (layer.scan_flops + 2 * layer.convolution),
        passed_bytes=seq * passed,
        activation_bytes=seq * (5 * model.hidden + _HALF * layer.kept),
        parameters=layer.parameters + layer.small_parameters + model.hidden,
    )


def _mlp(model: Transformer) -> ModelLayer:
    """Norm and MLP."""
    seq = model.seq
    return ModelLayer(
        name="",
        kind="mlp",
        products=(
            MatrixProduct(rows=seq, n=(model.mlp_matrices - 1) * model.ffn, k=model.hidden),
            MatrixProduct(rows=seq, n=model.hidden, k=model.ffn),
        ),
        passed_bytes=_HALF * seq * (5 * model.hidden + 4 * model.ffn),
        activation_bytes=seq * (5 * model.hidden + _HALF * model.ffn * model.mlp_matrices),
        parameters=model.mlp_parameters + _small(model)[1],
    )


def _experts(model: Transformer) -> ModelLayer:
    """Norm, router, experts, and shared experts."""
    seq, ffn = model.seq, model.expert_ffn or model.ffn
    slots = seq * model.routed_share
    products = [
        MatrixProduct(rows=seq, n=model.experts, k=model.hidden),
        MatrixProduct(rows=slots, n=(model.mlp_matrices - 1) * ffn, k=model.hidden, parts=model.experts),
        MatrixProduct(rows=slots, n=model.hidden, k=ffn, parts=model.experts),
    ]
    if model.shared_ffn:
        products.append(
            MatrixProduct(rows=seq, n=(model.mlp_matrices - 1) * model.shared_ffn, k=model.hidden)
        )
        products.append(MatrixProduct(rows=seq, n=model.hidden, k=model.shared_ffn))
    kept = 5 * seq * model.hidden + 2 * _HALF * slots * model.hidden
    wide = slots * ffn + seq * model.shared_ffn
    return ModelLayer(
        name="",
        kind="experts",
        products=tuple(products),
        passed_bytes=_HALF * (seq * 5 * model.hidden + 4 * slots * model.hidden + 4 * wide),
        activation_bytes=kept + _HALF * wide * model.mlp_matrices,
        parameters=model.experts * model.expert_parameters + model.shared_parameters + _small(model)[1],
        expert_parameters=model.experts * model.expert_parameters,
        exchanged_bytes=2 * _HALF * slots * model.hidden,
    )


_MEASURE_BYTES = 1e9


@dataclass(frozen=True, kw_only=True)
class LayerSeconds:
    """Times of a layer's passes."""

    forward: float  # Forward pass
    input_gradient: float  # Gradients of its inputs
    weight_gradient: float  # Gradients of its weights

    @property
    def backward(self) -> float:
        """Time of the backward pass."""
        return self.input_gradient + self.weight_gradient


def layer_seconds(
    layer: ModelLayer, samples: float, cluster: Cluster, *, causal: bool = True
) -> LayerSeconds:
    """Times of a layer on one GPU.

    Args:
        causal: Attention skips the half of the scores that is masked; rates of attention count it, so that without
            masks it takes twice as long.
    """
    products = sum(_product_seconds(each, samples, cluster) for each in layer.products)
    passes = layer.passed_bytes * samples / cluster.memory_rate
    scores = [0.0, 0.0]
    if layer.attention:
        heads, seq = layer.attention_shape
        for backward in (False, True):
            scores[backward] = cluster.attention_seconds(
                layer.attention * samples,
                sequences=samples,
                seq=seq,
                heads=heads,
                width=layer.attention / (4 * seq**2 * heads),
                causal=causal,
                backward=backward,
            )
    kernels = len(layer.products) + 2 * bool(layer.attention) + 1
    least = cluster.host_seconds * min(1.0, kernels / KERNELS)
    inputs = products + passes + scores[1]
    weights = products + passes if layer.parameters else 0.0
    # Passes back over activations move twice what they move forward: gradients beside values.
    return LayerSeconds(
        forward=max(products + passes + scores[0], least),
        input_gradient=max(inputs, least),
        weight_gradient=max(weights, least) if layer.products and layer.parameters else 0.0,
    )


def _product_seconds(product: MatrixProduct, samples: float, cluster: Cluster) -> float:
    """Time of a matrix product for a batch."""
    rows = product.rows * samples / product.parts
    return cluster.product_seconds(rows, product.n, product.k, parts=product.parts)


def layer_workload(
    model: Transformer | LayeredModel,
    cluster: Cluster,
    *,
    workers: int,
    samples: float,  # Samples of a batch of one of them
    # What a gradient all-reduce carries a second; None: a ring of the cluster
    bytes_per_second: float | None = None,
    message_seconds: float | None = None,  # What a sum takes by itself; None: a ring of the cluster
) -> LayerWorkload:
    """Workload of a data-parallel model, layer by layer, for gradient policies.

    Examples:
        >>> from coppice.iteration.machine import cluster_of
        >>> from coppice.iteration.workload.catalogue import resnet
        >>> from coppice.topology.presets import preset
        >>> found = layer_workload(resnet(50), cluster_of(preset("dgx-a100")), workers=8, samples=64)
        >>> found.layers, round(sum(found.bytes))
        (54, 102228128)
    """
    share = cluster.gradient_share
    once = cluster.ring_seconds(0.0, workers, 1, share=share)
    carried = cluster.ring_seconds(_MEASURE_BYTES, workers, 1, share=share) - once
    rate = _MEASURE_BYTES / carried if carried else cluster.device.memory_bytes_per_second
    causal = True
    if isinstance(model, LayeredModel):
        row, size = model.row, model.gradient_bytes
    else:
        row, size, causal = transformer_row(model), float(_HALF), model.causal
    forward, backward = [], []
    for layer in row:
        took = layer_seconds(layer, samples, cluster, causal=causal)
        exchanged = cluster.exchange_seconds(layer.exchanged_bytes * samples, workers, 1)
        forward.append(took.forward + exchanged)
        backward.append(took.backward + exchanged)
    return LayerWorkload(
        forward=tuple(forward),
        backward=tuple(backward),
        bytes=tuple(size * (each.parameters - each.expert_parameters) for each in row),
        bytes_per_second=bytes_per_second or rate,
        message_seconds=once if message_seconds is None else message_seconds,
        workers=workers,
    )


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
