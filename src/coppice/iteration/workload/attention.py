"""Layers of a transformer, for a sequence.

What a layer keeps is as in Korthikanti et al. (MLSys 2023, section 4): s h (34 + 5 a s / h) bytes, of which norms,
dropout and residuals have 10, attention 9 and the MLP 16 - its own norm and mask counted - and 5 a s / h are the scores
where attention is not fused. A token that is sent to k experts is kept by each of them.
"""

from __future__ import annotations

from dataclasses import replace

from coppice.iteration.transformer import Transformer
from coppice.iteration.workload.model import MatrixProduct, ModelLayer

_HALF = 2  # bytes of a value


def transformer_row(model: Transformer, *, fused_attention: bool = True) -> tuple[ModelLayer, ...]:
    """The embedding, attention and MLP (or experts) of every layer, and the output layer.

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
            kept_bytes=model.seq * model.hidden,
            parameters=table + model.extra_parameters,
        )
    ]
    attention = _attention(model, fused=fused_attention)
    dense, mixture = _mlp(model), _experts(model) if model.experts else None
    for layer in range(model.layers):
        row.append(_named(attention, f"layer{layer}.attention"))
        row.append(
            _named(mixture, f"layer{layer}.experts")
            if mixture is not None and model.of_layer(layer).experts
            else _named(dense, f"layer{layer}.mlp")
        )
    scored = model.scored_tokens or model.seq
    row.append(
        ModelLayer(
            name="head",
            kind="head",
            products=(MatrixProduct(rows=scored, n=model.vocab, k=model.hidden),),
            passed_bytes=6 * _HALF * scored * model.vocab,
            kept_bytes=2 * _HALF * scored * model.vocab,
            parameters=head,
        )
    )
    return tuple(row)


def _named(layer: ModelLayer, name: str) -> ModelLayer:
    return replace(layer, name=name)


def _small(model: Transformer) -> tuple[float, float]:
    """Weights outside of matrices: of attention, and of the MLP."""
    if not model.biases:
        return model.hidden, model.hidden
    attention = 3 * model.hidden + model.query_width + 2 * model.kv_width
    return attention, model.small_parameters - attention


def _attention(model: Transformer, *, fused: bool) -> ModelLayer:
    """Norm, queries, keys and values, attention, and the matrix after it."""
    seq, width = model.seq, model.query_width
    scores = 0.0 if fused else 5 * model.heads * seq * seq
    return ModelLayer(
        name="",
        kind="attention",
        products=(
            MatrixProduct(rows=seq, n=width + 2 * model.kv_width, k=model.hidden),
            MatrixProduct(rows=seq, n=model.hidden, k=width),
        ),
        attention=4 * seq * seq * width,
        attention_shape=(model.heads, seq),
        passed_bytes=5 * _HALF * seq * model.hidden,
        # Input of the norm 2, of q, k, v 2, the mask 1; queries and the context 2 each, keys and values.
        kept_bytes=seq * (5 * model.hidden + 2 * _HALF * width + 2 * _HALF * model.kv_width) + scores,
        parameters=model.attention_parameters + _small(model)[0],
    )


def _mlp(model: Transformer) -> ModelLayer:
    """Norm, and an MLP."""
    seq = model.seq
    return ModelLayer(
        name="",
        kind="mlp",
        products=(
            MatrixProduct(rows=seq, n=(model.mlp_matrices - 1) * model.ffn, k=model.hidden),
            MatrixProduct(rows=seq, n=model.hidden, k=model.ffn),
        ),
        passed_bytes=_HALF * seq * (5 * model.hidden + 4 * model.ffn),
        kept_bytes=seq * (5 * model.hidden + _HALF * model.ffn * model.mlp_matrices),
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
        kept_bytes=kept + _HALF * wide * model.mlp_matrices,
        parameters=model.experts * model.expert_parameters + model.shared_parameters + _small(model)[1],
        expert_parameters=model.experts * model.expert_parameters,
        exchanged_bytes=2 * _HALF * slots * model.hidden,
    )
