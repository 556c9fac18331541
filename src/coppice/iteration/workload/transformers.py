"""Operators of a transformer's layers, embedding and output layer, as one GPU of a layout runs them for a sequence.

A layer is attention or a scan of states, an MLP or a mixture of experts, or one of the first and one of the second. Its
matrix products are those of a tensor-parallel rank; passes over activations are as many as the framework launches.
"""

from __future__ import annotations

from dataclasses import replace

from coppice.iteration.devices import KERNELS
from coppice.iteration.frameworks import MEGATRON, Framework
from coppice.iteration.layout import Layout
from coppice.iteration.transformer import Transformer, layer_kinds, layer_views
from coppice.iteration.workload.operators import (
    AttentionProducts,
    MatrixProduct,
    MemoryPasses,
    ModelLayer,
    Operator,
    StateScan,
)

_HALF = 2  # bytes of a value
ROUTED_PASSES = 12.3
"""Passes over tokens that go to experts: permutation there and back, and their weighted sum."""
SHARED_EXPERTS = ("up", "shared_activation", "down")
"""Operators of experts that every token passes, in their order."""


def transformer_layer(model: Transformer, layout: Layout, framework: Framework) -> tuple[ModelLayer, ...]:
    """Parts of a layer, where all are alike: attention or states, and MLP or experts.

    Operators are those of one GPU for a sequence; weights are those of all GPUs.

    Args:
        layout: How the job lies on the GPUs.

    Examples:
        >>> from coppice.iteration.models import MODELS
        >>> layout = Layout(tensor=8, fused_attention=True)
        >>> [[op.name for op in part.operators] for part in transformer_layer(MODELS["gpt-175b"], layout, MEGATRON)]
        [['norms', 'queries', 'rotation', 'attention', 'output'], ['norms', 'up', 'activation', 'down']]
    """
    own = _Rank(model, layout, framework)
    parts = []
    if model.share("M"):
        parts.append(own.states())
    if model.share("*"):
        parts.append(own.attention())
    if model.experts:
        parts.append(own.experts())
    elif model.share("-"):
        parts.append(own.mlp())
    return tuple(parts)


def head_layer(model: Transformer, layout: Layout, framework: Framework) -> ModelLayer:
    """The output layer and the loss."""
    tokens = model.seq / layout.context
    scored = (model.scored_tokens or model.seq) / model.seq
    words = tokens if framework.gathers_logits else tokens / layout.tensor
    passed = framework.loss_passes * words * scored * model.vocab * _HALF
    shares = model.tied and not model.input_width
    return ModelLayer(
        name="head",
        kind="head",
        operators=(
            MatrixProduct(
                name="scores",
                rows=tokens * scored,
                n=model.vocab / layout.tensor,
                k=model.hidden,
                precision=1.0,
            ),
            # Passes of the loss are counted forward and backward together.
            MemoryPasses(name="loss", moved_bytes=passed / 3),
        ),
        parameters=0.0 if shares else model.vocab * model.hidden,
    )


def embedding_layer(model: Transformer, layout: Layout) -> ModelLayer:
    """The embedding: a table that is looked up, or a matrix over the values of a token (patches of a picture)."""
    product = MatrixProduct(
        name="patches", rows=model.seq / layout.context, n=model.hidden / layout.tensor, k=model.input_width
    )
    return ModelLayer(
        name="embedding",
        kind="embedding",
        operators=(product,) if model.input_width else (),
        parameters=model.hidden * (model.input_width or model.vocab) + model.extra_parameters,
    )


def joining_layer(model: Transformer, layout: Layout) -> ModelLayer:
    """What joins two inputs before a layer that predicts further words (multi-token prediction)."""
    return ModelLayer(
        name="joined",
        kind="mlp",
        operators=(
            MatrixProduct(
                name="joined",
                rows=model.seq / layout.context,
                n=model.hidden / layout.tensor,
                k=2 * model.hidden,
            ),
        ),
        parameters=2 * model.hidden**2 + 3 * model.hidden,
    )


def transformer_row(model: Transformer, framework: Framework = MEGATRON) -> tuple[ModelLayer, ...]:
    """The whole model on one GPU: embedding, the parts of every layer, output layer, and what is behind it.

    Examples:
        >>> from coppice.iteration.models import MODELS
        >>> row = transformer_row(MODELS["mixtral-8x7b"])
        >>> len(row), row[2].kind, sum(each.parameters for each in row) == MODELS["mixtral-8x7b"].parameters
        (66, 'experts', True)
    """
    layout = Layout(fused_attention=True)
    kinds = {view: transformer_layer(view, layout, framework) for view, _ in layer_kinds(model)}
    head = head_layer(model, layout, framework)

    def layer(number: int, name: str) -> list[ModelLayer]:
        return [replace(each, name=f"{name}.{each.kind}") for each in kinds[layer_views(model)[number]]]

    row = [embedding_layer(model, layout)]
    for number in range(model.layers):
        row += layer(number, f"layer{number}")
    row.append(head)
    for number in range(model.mtp_layers):
        name = f"mtp{number}"
        row.append(replace(joining_layer(model, layout), name=f"{name}.joined"))
        row += layer(model.layers - 1, name)
        row.append(replace(head, name=f"{name}.head", parameters=0.0))
    return tuple(row)


class _Rank:
    """A tensor-parallel rank of a layer, where all layers are alike."""

    def __init__(self, model: Transformer, layout: Layout, framework: Framework) -> None:
        self.model = model
        self.layout = layout
        self.framework = framework
        self.tokens = model.seq / layout.context  # Of a sequence
        self.own = self.tokens / layout.tensor
        self.split = self.own if layout.sequence_parallel else self.tokens

    def attention(self) -> ModelLayer:
        """Norm, projections to queries, keys and values, attention, and output projection."""
        model, layout = self.model, self.layout
        passes, wide = self.framework.attention_passes, model.query_width + model.context_width
        # Kernels that keep scores on the chip skip what a window hides; others compute it.
        seen = model.seen_tokens if layout.fused_attention else model.seq
        operators = [
            self._norms(),
            *self._queries(),
            _passes("rotation", passes * self.own * (model.query_width + model.key_value_width)),
            AttentionProducts(
                flops=2 * self.own * seen * wide,
                sequences=1 / layout.context,
                seq=seen,
                heads=model.heads / layout.tensor,
                width=wide / model.heads / 2,
                causal=model.causal,
                fused=layout.fused_attention,
            ),
            self._product("output", model.hidden, model.context_width / layout.tensor, cast=model.hidden),
        ]
        return self._part("attention", operators, model.attention_parameters + self._small()[0])

    def _queries(self) -> list[Operator]:
        """Products that make queries, keys and values; of latent attention in two steps."""
        model, tensor = self.model, self.layout.tensor
        if not model.kv_rank:
            return [
                self._product("queries", (model.query_width + model.key_value_width) / tensor, model.hidden)
            ]
        heads = model.query_width - model.heads * model.rope_width + model.context_width
        direct = 0.0 if model.query_rank else model.query_width / tensor
        found: list[Operator] = [self._product("latent", model.latent_width + direct, model.hidden)]
        found.append(
            _passes("latent_norms", self.framework.attention_passes * self.split * model.latent_width)
        )
        if model.query_rank:
            found.append(self._product("query_up", model.query_width / tensor, model.query_rank))
        return [*found, self._product("key_value_up", heads / tensor, model.kv_rank)]

    def states(self) -> ModelLayer:
        """Norm, projections, convolution and scan of a state-space layer."""
        model, tensor, layer = self.model, self.layout.tensor, self.model.state_space
        operators = [self._norms()]
        for name, (n, k) in layer.products.items():
            whole = name in ("state_in", "state_steps")
            own_n, own_k = (n / tensor, k) if whole else (n, k / tensor)
            operators.append(self._product(name, own_n, own_k, cast=n))
        # Convolved values are read and written, and so are gates and results for the norm behind the scan.
        moved = self.own * (2 * layer.convolved + 3 * layer.inner)
        operators += [
            _passes("convolution", moved, flops=2 * self.own * layer.convolution),
            StateScan(
                flops=self.own * layer.scan_flops,
                moved_bytes=self.own * layer.scan_bytes,
                vector=layer.rank > 0,
            ),
        ]
        return self._part("states", operators, layer.parameters + layer.small_parameters + model.hidden)

    def mlp(self) -> ModelLayer:
        """Norm and MLP."""
        model = self.model
        operators = [self._norms(), *self._matrices(model.ffn, "activation")]
        return self._part("mlp", operators, model.mlp_parameters + self._small()[1])

    def experts(self) -> ModelLayer:
        """Norm, router, experts, and shared experts."""
        model, tensor, share = self.model, self.layout.tensor, self.model.routed_share
        ffn, parts = model.expert_ffn or model.ffn, model.experts / self.layout.expert
        wide, slots = model.mlp_matrices - 1, self.tokens * share
        operators = [
            self._norms(),
            MatrixProduct(name="router", rows=self.own, n=model.experts, k=model.hidden, precision=1.0),
            _passes("permutation", ROUTED_PASSES * self.own * model.hidden * share),
            MatrixProduct(name="routed", rows=slots, n=wide * ffn / tensor, k=model.hidden, parts=parts),
            _passes("routed_activation", self.framework.activation_passes * self.own * share * ffn * wide),
            MatrixProduct(name="routed", rows=slots, n=model.hidden, k=ffn / tensor, parts=parts),
        ]
        if model.shared_ffn:
            operators += self._matrices(model.shared_ffn, SHARED_EXPERTS[1])
        routed = model.experts * model.expert_parameters
        part = self._part("experts", operators, routed + model.shared_parameters + self._small()[1])
        exchanged = 2 * _HALF * self.own * share * model.hidden
        return replace(part, expert_parameters=routed, exchanged_bytes=exchanged)

    def _matrices(self, ffn: float, activation: str) -> list[Operator]:
        """An MLP of some width."""
        model, tensor, wide = self.model, self.layout.tensor, self.model.mlp_matrices - 1
        return [
            self._product("up", wide * ffn / tensor, model.hidden),
            _passes(activation, self.framework.activation_passes * self.own * ffn * wide),
            self._product("down", model.hidden, ffn / tensor, cast=model.hidden),
        ]

    def _product(self, name: str, n: float, k: float, *, cast: float = 0.0) -> MatrixProduct:
        """A product over all tokens.

        Args:
            cast: Values for a token, over all ranks, that are cast to 8 bits; 0: those of its result.
        """
        values = cast / self.layout.tensor if cast else n
        return MatrixProduct(name=name, rows=self.tokens, n=n, k=k, cast=values)

    def _norms(self) -> Operator:
        """Norms and residuals of half a layer."""
        return _passes("norms", self.framework.norm_passes * self.model.hidden * self.split / 2)

    def _small(self) -> tuple[float, float]:
        """Weights outside of matrices: of attention, and of the MLP."""
        model = self.model
        if not model.biases:
            return model.hidden + model.query_rank + model.kv_rank, model.hidden
        attention = 3 * model.hidden + model.query_width + model.key_value_width
        return attention, model.small_parameters - attention

    def _part(self, kind: str, operators: list[Operator], parameters: float) -> ModelLayer:
        return ModelLayer(
            name=kind, kind=kind, operators=tuple(operators), kernels=KERNELS / 2, parameters=parameters
        )


def _passes(name: str, values: float, *, flops: float = 0.0) -> MemoryPasses:
    """Passes over so many 16-bit values."""
    return MemoryPasses(name=name, moved_bytes=_HALF * values, flops=flops)
