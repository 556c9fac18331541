"""Dimensions of transformers: weights and operations of their layers, and which kinds of layers they have."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from coppice.errors import InputError
from coppice.iteration.state_space import StateSpace

KINDS = ("M", "*", "-", "E")
"""Kinds of layers of a pattern, as Megatron-LM's `--hybrid-override-pattern` writes them, and mixtures."""


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """Dimensions of a transformer; with experts, some of its MLPs are mixtures of them.

    Raises:
        InputError: If a number is out of range.

    Examples:
        GPT-3 has 174.6 billion weights (Brown et al., 2020); a token of Mixtral 8x7B meets 12.9 of its 46.7 billion
        (Jiang et al., 2024).

        >>> gpt = Transformer(layers=96, hidden=12288, heads=96, ffn=49152, seq=2048, vocab=50257)
        >>> round(gpt.parameters / 1e9, 1)
        174.6
        >>> mixtral = Transformer(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, mlp_matrices=3, seq=4096,
        ...                       vocab=32000, tied=False, experts=8, experts_per_token=2)
        >>> round(mixtral.parameters / 1e9, 1), round(mixtral.active_parameters / 1e9, 1)
        (46.7, 12.9)
    """

    layers: int  # Number of layers
    hidden: int  # Width of the model
    heads: int  # Heads of attention
    ffn: int  # Width of the MLP
    seq: int  # Tokens of a sequence
    vocab: int  # Words of the vocabulary, or classes
    kv_heads: int = 0  # Heads of keys and values
    mlp_matrices: int = 2  # Matrices of the MLP: 2, or 3 where it is gated
    head_width: int = 0  # Width of a head; 0: the width of the model over its heads
    value_width: int = 0  # Width of a head of values; 0: that of queries and keys
    # Latent attention (MLA; DeepSeek-V2, arXiv 2405.04434, section 2.1): width of what keys and values, and queries,
    # are made from; 0: from the layer's input
    kv_rank: int = 0
    query_rank: int = 0
    # Of the width of a head, what carries positions; all heads of latent attention have one such key
    rope_width: int = 0
    # Tokens before it that a token sees, but every so many layers, where it sees all; 0: it sees all everywhere
    window: int = 0
    full_every: int = 0  # 0: a window is in all layers
    # Layers behind the last one that predict further words (multi-token prediction; DeepSeek-V3, arXiv 2412.19437,
    # section 2.2)
    mtp_layers: int = 0
    tied: bool = True  # The output layer has the weights of the embedding
    # A token sees only those before it. Operations of attention are counted in full either way, as in papers.
    causal: bool = True
    # Values of a token of the input, where the embedding is a matrix over them (patches of a picture) and no
    # table; the output layer is then `tied` to nothing
    input_width: int = 0
    scored_tokens: int = 0  # Tokens of a sequence for which the output layer computes scores; 0: all
    biases: bool = False  # Matrices have biases, and norms too
    # Weights outside of layers, embedding and output layer: positions, last norm, pooling
    extra_parameters: int = 0
    experts: int = 0  # Experts of a mixture; 0: there are none
    experts_per_token: int = 1  # Experts that a token passes
    expert_ffn: int = 0  # Width of an expert; 0: that of the MLP
    shared_ffn: int = 0  # Width of experts that every token passes beside those it is sent to
    expert_every: int = 1  # Every so many layers the MLP is a mixture
    first_dense: int = 0  # Layers at the start that are no mixtures
    # Slots of all experts over the tokens sent to them, padded up and cut off there; 0: as many slots as
    # tokens
    capacity_factor: float = 0.0
    # Tokens for experts of the busiest rank over those of an average one, for which all wait
    busiest_experts: float = 1.0
    busiest_exchange: float = 1.0  # Time of an exchange of tokens over that of equal blocks
    # Kinds of layers, over and over: `M` state space (Mamba), `*` attention, `-` MLP, `E` mixture; each is one of these
    # alone. Empty: every layer is attention and an MLP or mixture
    pattern: str = ""
    state_width: int = 0  # Values of the state of an inner value of state-space layers
    state_heads: int = 0  # Their heads
    state_head_width: int = 0  # Width of these
    state_groups: int = 1  # Groups of heads that share inputs and outputs of the state
    step_rank: int = 0  # Rank of the matrix that steps are made with (Mamba); 0: Mamba-2

    def __post_init__(self) -> None:
        least = dict.fromkeys(("layers", "hidden", "heads", "ffn", "seq", "vocab"), 1)
        least |= dict.fromkeys(("experts_per_token", "expert_every"), 1)
        least |= dict.fromkeys(
            ("kv_heads", "head_width", "input_width", "scored_tokens", "extra_parameters", "experts"), 0
        )
        least |= dict.fromkeys(("expert_ffn", "shared_ffn", "first_dense", "capacity_factor"), 0)
        least |= dict.fromkeys(("busiest_experts", "busiest_exchange"), 0)
        least |= dict.fromkeys(("value_width", "kv_rank", "query_rank", "rope_width"), 0)
        least |= dict.fromkeys(("window", "full_every", "mtp_layers"), 0)
        least |= dict.fromkeys(("state_width", "state_heads", "state_head_width", "step_rank"), 0)
        least["state_groups"] = 1
        for name, low in least.items():
            if getattr(self, name) < low:
                raise InputError(f"expected `{name}` of {low} or more, found {getattr(self, name)}.")
        if self.mlp_matrices not in (2, 3):
            raise InputError(f"expected an MLP of 2 or 3 matrices, found {self.mlp_matrices}.")
        if self.kv_heads and self.heads % self.kv_heads:
            raise InputError(f"expected `kv_heads` that divides {self.heads} heads, found {self.kv_heads}.")
        if not self.kv_rank and (self.query_rank or self.rope_width):
            raise InputError(
                "expected latent attention (`kv_rank`) for `query_rank` and `rope_width`, found none: give it, or "
                "leave them out."
            )
        if self.kv_rank and not self.rope_width < self.head_width:
            raise InputError(
                f"expected `rope_width` below `head_width`, which holds it, found {self.rope_width} and "
                f"{self.head_width}."
            )
        if self.kv_rank and self.kv_heads not in (0, self.heads):
            raise InputError(
                f"expected keys of all {self.heads} heads from `kv_rank`, found `kv_heads` {self.kv_heads}: leave one "
                "out."
            )
        if self.full_every and not self.window:
            raise InputError(
                f"expected a `window` beside `full_every` {self.full_every}, found none: give it, or leave full_every "
                "out."
            )
        if self.experts and self.experts_per_token > self.experts:
            raise InputError(
                f"expected `experts_per_token` of at most {self.experts} experts, found {self.experts_per_token}."
            )
        self._check_pattern()
        if self.experts and self.expert_layers < 1:
            raise InputError(
                f"expected a layer with experts, found none of {self.layers}: lower `expert_every` "
                f"({self.expert_every}) or `first_dense` ({self.first_dense})."
            )

    def _check_pattern(self) -> None:
        """Check the kinds of layers."""
        states = ("state_width", "state_heads", "state_head_width")
        given = [name for name in (*states, "step_rank") if getattr(self, name)]
        if not self.pattern:
            if given:
                raise InputError(
                    f"expected a `pattern` with state-space layers (M) beside `{given[0]}`, found none: give it, or "
                    f"leave {given[0]} out."
                )
            return
        wrong = next((each for each in self.pattern if each not in KINDS), "")
        if wrong:
            raise InputError(
                f"expected a `pattern` of {' '.join(KINDS)}, found {wrong!r} in {self.pattern!r}."
            )
        if "M" in self.pattern and (missing := [name for name in states if not getattr(self, name)]):
            raise InputError(f"expected `{missing[0]}` of state-space layers (M), found none: give it.")
        if self.state_heads % self.state_groups:
            raise InputError(
                f"expected `state_groups` that divides {self.state_heads} heads, found {self.state_groups}."
            )
        if ("E" in self.pattern) != (self.experts > 0):
            raise InputError(
                f"expected experts where `pattern` has mixtures (E), found {self.experts} with {self.pattern!r}: "
                "change one."
            )
        others = {"expert_every": 1, "first_dense": 0, "full_every": 0, "mtp_layers": 0, "biases": False}
        for name, usual in others.items():
            if getattr(self, name) != usual:
                raise InputError(
                    f"expected no `{name}` beside a `pattern`, which has the kinds of all layers, found "
                    f"{getattr(self, name)}: leave it out."
                )

    def share(self, kind: str) -> float:
        """Share of the layers that have a kind of part."""
        if not self.pattern:
            mixed = self.expert_layers / self.layers
            return {"*": 1.0, "-": 1 - mixed, "E": mixed}.get(kind, 0.0)
        whole, rest = divmod(self.layers, len(self.pattern))
        return (whole * self.pattern.count(kind) + self.pattern[:rest].count(kind)) / self.layers

    @property
    def sums(self) -> int:
        """Sums over tensor-parallel ranks of a pass over a layer: one behind attention, one behind the MLP."""
        return 1 if self.pattern else 2

    @property
    def state_space(self) -> StateSpace:
        """Its state-space layers."""
        return StateSpace(
            hidden=self.hidden,
            heads=self.state_heads,
            head_width=self.state_head_width,
            groups=self.state_groups,
            state=self.state_width,
            rank=self.step_rank,
        )

    @property
    def sample(self) -> str:
        """Unit of the batch size."""
        return "sequence"

    @property
    def query_width(self) -> float:
        """Width of queries."""
        return self.heads * self.head_width if self.head_width else self.hidden

    @property
    def context_width(self) -> float:
        """Width of what attention makes of values, over all heads."""
        return self.heads * self.value_width if self.value_width else self.query_width

    @property
    def key_value_width(self) -> float:
        """Width of keys and values together, as attention takes them."""
        return (self.query_width + self.context_width) * (self.kv_heads or self.heads) / self.heads

    @property
    def latent_width(self) -> float:
        """Width of what queries, keys and values are made from where that is not the layer's input."""
        return self.query_rank + self.kv_rank + self.rope_width

    @property
    def seen_tokens(self) -> int:
        """Tokens whose scores a token has, with those that a causal mask takes half of; where layers are alike."""
        return min(self.seq, (1 + self.causal) * self.window) if self.window else self.seq

    @property
    def expert_layers(self) -> int:
        """Number of layers with experts."""
        if self.pattern:
            return round(self.layers * self.share("E"))
        return (self.layers - self.first_dense) // self.expert_every if self.experts else 0

    @property
    def attention_parameters(self) -> float:
        """Attention weights of a layer, matrices only."""
        if not self.kv_rank:
            return self.hidden * (self.query_width + self.key_value_width + self.context_width)
        heads = self.query_width - self.heads * self.rope_width + self.context_width
        found = self.hidden * (self.latent_width + self.context_width) + self.kv_rank * heads
        return found + (self.query_rank or self.hidden) * self.query_width

    @property
    def mlp_parameters(self) -> float:
        """MLP weights of a layer without experts, matrices only."""
        return self.mlp_matrices * self.hidden * self.ffn

    @property
    def expert_parameters(self) -> float:
        """Weights of an expert."""
        return self.mlp_matrices * self.hidden * (self.expert_ffn or self.ffn)

    @property
    def shared_parameters(self) -> float:
        """Weights of a mixture used by every token: shared experts, and the router."""
        return self.mlp_matrices * self.hidden * self.shared_ffn + self.hidden * self.experts

    @property
    def layer_parameters(self) -> float:
        """Weights used per token in a layer, averaged where only some have experts."""
        routed = self.experts_per_token * self.expert_parameters + self.shared_parameters
        found = self.share("*") * self.attention_parameters + self.share("-") * self.mlp_parameters
        if states := self.share("M"):
            found += states * self.state_space.parameters
        return found + self.share("E") * routed

    @property
    def routed_parameters(self) -> float:
        """Weights of all routed experts, which expert parallelism shards."""
        return self.expert_layers * self.experts * self.expert_parameters

    def of_layer(self, layer: int) -> Transformer:
        """Model with all layers equal to a given one: with experts in each of them or in none, and a window or none."""
        if self.full_every:
            whole = (layer + 1) % self.full_every == 0
            return replace(self, window=0 if whole else self.window, full_every=0).of_layer(layer)
        if self.pattern:
            kind = self.pattern[layer % len(self.pattern)]
            found = replace(self, pattern=kind) if kind == "E" else self._without_experts(pattern=kind)
            if kind == "M":
                return found
            return replace(
                found, state_width=0, state_heads=0, state_head_width=0, state_groups=1, step_rank=0
            )
        # The last of every `expert_every` layers has the experts.
        mixed = layer >= self.first_dense and not (layer - self.first_dense + 1) % self.expert_every
        if self.experts and mixed:
            return replace(self, expert_every=1, first_dense=0)
        return self._without_experts()

    def _without_experts(self, pattern: str = "") -> Transformer:
        return replace(
            self,
            experts=0,
            experts_per_token=1,
            shared_ffn=0,
            first_dense=0,
            capacity_factor=0.0,
            busiest_experts=1.0,
            busiest_exchange=1.0,
            pattern=pattern,
        )

    @property
    def routed_share(self) -> float:
        """Expert slots per token in a layer with experts, of the busiest rank."""
        return self.experts_per_token * (self.capacity_factor or 1.0) * self.busiest_experts

    @property
    def mlp_width(self) -> float:
        """MLP width per token, averaged over layers; padded slots count."""
        return self.share("-") * self.ffn + self.share("E") * (
            self.routed_share * (self.expert_ffn or self.ffn) + self.shared_ffn
        )

    @property
    def dense_parameters(self) -> float:
        """Weights of all layers without experts, matrices only."""
        used = self.expert_layers * self.experts_per_token * self.expert_parameters
        return self.layers * self.layer_parameters - used

    @property
    def small_parameters(self) -> float:
        """Weights of a layer outside of matrices: two norms, and biases; on average."""
        if self.pattern:
            states = self.share("M")
            return self.hidden + (states * self.state_space.small_parameters if states else 0.0)
        if not self.biases:
            return 2 * self.hidden + self.query_rank + self.kv_rank
        wide = (self.mlp_matrices - 1) * self.ffn + self.hidden
        return 4 * self.hidden + self.query_width + self.key_value_width + self.hidden + wide

    @property
    def parameters(self) -> float:
        """Number of parameters."""
        words = self.hidden * (self.vocab * (1 if self.tied else 2) + self.input_width)
        layers = self.dense_parameters + self.routed_parameters + self.layers * self.small_parameters
        return layers + words + self.extra_parameters + self.mtp_parameters

    @property
    def mtp_parameters(self) -> float:
        """Weights of layers that predict further words, each with a matrix over two inputs and three norms."""
        if not self.mtp_layers:
            return 0.0
        last = self.of_layer(self.layers - 1)
        layer = (last.dense_parameters + last.routed_parameters) / self.layers + self.small_parameters
        return self.mtp_layers * (layer + 2 * self.hidden**2 + 3 * self.hidden)

    @property
    def active_parameters(self) -> float:
        """Parameters used per token."""
        further = self.mtp_layers * self.of_layer(self.layers - 1).routed_parameters / self.layers
        routed = self.routed_parameters + further
        return self.parameters - routed * (1 - self.experts_per_token / max(1, self.experts))

    def forward_flops(self, sequences: float) -> float:
        """FLOPs of a forward pass, two per multiply-add; attention is not halved for causality."""
        tokens = sequences * self.seq
        scored = sequences * (self.scored_tokens or self.seq)
        layers = sum(count * view.layer_flops(tokens) for view, count in layer_kinds(self))
        words = 2 * self.hidden * scored * self.vocab
        last = self.of_layer(self.layers - 1)
        further = self.mtp_layers * (last.layer_flops(tokens) + 4 * tokens * self.hidden**2 + words)
        return layers + further + words + 2 * self.hidden * tokens * self.input_width

    def layer_flops(self, tokens: float) -> float:
        """FLOPs of the forward pass of a layer, where all are alike."""
        attention = 2 * tokens * self.seen_tokens * (self.query_width + self.context_width) * self.share("*")
        states = self.share("M")
        scan = tokens * self.state_space.scan_flops * states if states else 0.0
        return 2 * tokens * self.layer_parameters + attention + scan


@lru_cache(maxsize=64)
def layer_views(model: Transformer) -> tuple[Transformer, ...]:
    """Each layer of a model, as a model of such layers alone; layers that are alike are one object."""
    alike: dict[Transformer, Transformer] = {}
    views = (model.of_layer(layer) for layer in range(model.layers))
    return tuple(alike.setdefault(view, view) for view in views)


@cache
def layer_kinds(model: Transformer) -> tuple[tuple[Transformer, int], ...]:
    """The kinds of layers of a model, each as a model of such layers alone, and how many there are of each."""
    return tuple(Counter(layer_views(model)).items())
