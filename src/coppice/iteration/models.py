"""Transformers of published papers by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coppice.errors import InputError
from coppice.iteration.transformer import Transformer
from coppice.iteration.workload.nets import LAYERED_MODELS, LayeredModel
from coppice.text import suggestion


def _gpt(layers: int, hidden: int, heads: int, *, seq: int = 2048, vocab: int = 51200) -> Transformer:
    """Model of Megatron-LM's tables: learned positions, biases, a final norm."""
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=4 * hidden,
        seq=seq,
        vocab=vocab,
        biases=True,
        extra_parameters=seq * hidden + 2 * hidden,
    )


def _llama(
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    *,
    kv_heads: int = 8,
    seq: int = 8192,
    vocab: int = 128256,
    **others: Any,
) -> Transformer:
    """Model like Llama: gated MLP, no biases, an untied output layer; others of its dimensions as given."""
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        mlp_matrices=3,
        seq=seq,
        vocab=vocab,
        tied=False,
        extra_parameters=hidden,
        **others,
    )


def _bert(layers: int, hidden: int, heads: int) -> Transformer:
    """Encoder: learned positions, two token types, a norm after the embedding, and a pooling layer."""
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=4 * hidden,
        seq=512,
        vocab=30522,
        causal=False,
        biases=True,
        extra_parameters=(512 + 2 + 2) * hidden + hidden * hidden + hidden,
    )


def _vit(layers: int, hidden: int, heads: int, patch: int) -> Transformer:
    """Vision transformer on images of 224 x 224, with a class token and 1,000 classes."""
    seq, classes = (224 // patch) ** 2 + 1, 1000
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=4 * hidden,
        seq=seq,
        vocab=classes,
        input_width=3 * patch * patch,
        causal=False,
        scored_tokens=1,
        biases=True,
        extra_parameters=(seq + 1 + 1 + 2) * hidden + classes,
    )


def _switch(layers: int, hidden: int, heads: int, ffn: int, experts: int) -> Transformer:
    """Decoder with experts as in Switch Transformers: top-1 routing, in every other layer."""
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=ffn,
        seq=512,
        vocab=32128,
        experts=experts,
        expert_every=2,
        capacity_factor=1.25,
    )


def _qwen(layers: int, hidden: int, heads: int, expert_ffn: int) -> Transformer:
    """Mixture of 128 experts, 8 for each token; heads of 128 with norms of queries and keys."""
    sizes = {"head_width": 128, "experts": 128, "experts_per_token": 8}
    made = _llama(layers, hidden, heads, expert_ffn, kv_heads=4, seq=4096, vocab=151936, **sizes)
    return replace(made, extra_parameters=hidden + 2 * 128 * layers)


def _gpt_oss(layers: int, experts: int) -> Transformer:
    """Mixture whose layers see 128 tokens and all tokens in turn; biases, and a learned score of no token a head."""
    hidden, heads = 2880, 64
    sizes = {"head_width": 64, "experts": experts, "experts_per_token": 4, "window": 128, "full_every": 2}
    biases = heads * 64 + 2 * 8 * 64 + hidden + heads + experts * (3 * hidden + 1)
    made = _llama(layers, hidden, heads, hidden, seq=4096, vocab=201088, **sizes)
    return replace(made, extra_parameters=hidden + layers * biases)


_LATENT = {"head_width": 192, "value_width": 128, "rope_width": 64, "kv_rank": 512, "query_rank": 1536}
"""Attention of DeepSeek-V2 and V3."""

MODELS = {
    "gpt2-xl": _gpt(48, 1600, 25, seq=1024, vocab=50257),
    "gpt-1.7b": _gpt(24, 2304, 24),
    "gpt-3.6b": _gpt(30, 3072, 32),
    "gpt-7.5b": _gpt(36, 4096, 32),
    "gpt-18b": _gpt(40, 6144, 48),
    "gpt-22b": _gpt(48, 6144, 64),
    "gpt-39b": _gpt(48, 8192, 64),
    "gpt-76b": _gpt(60, 10240, 80),
    "gpt-145b": _gpt(80, 12288, 96),
    "gpt-175b": _gpt(96, 12288, 96),
    "gpt-530b": _gpt(105, 20480, 128),
    "gpt-1t": _gpt(128, 25600, 160),
    "llama2-7b": _llama(32, 4096, 32, 11008, kv_heads=32, seq=4096, vocab=32000),
    "llama3-8b": _llama(32, 4096, 32, 14336),
    "llama3-70b": _llama(80, 8192, 64, 28672),
    "llama3-405b": _llama(126, 16384, 128, 53248),
    "mixtral-8x7b": _llama(32, 4096, 32, 14336, seq=4096, vocab=32000, experts=8, experts_per_token=2),
    "mixtral-8x22b": _llama(56, 6144, 48, 16384, seq=4096, vocab=32768, experts=8, experts_per_token=2),
    "deepseek-moe-16b": _llama(
        28,
        2048,
        16,
        10944,
        kv_heads=16,
        seq=4096,
        vocab=102400,
        experts=64,
        experts_per_token=6,
        expert_ffn=1408,
        shared_ffn=2816,
        first_dense=1,
    ),
    "deepseek-v2": _llama(
        60,
        5120,
        128,
        12288,
        kv_heads=0,
        seq=4096,
        vocab=102400,
        experts=160,
        experts_per_token=6,
        expert_ffn=1536,
        shared_ffn=2 * 1536,
        first_dense=1,
        **_LATENT,
    ),
    "deepseek-v3": _llama(
        61,
        7168,
        128,
        18432,
        kv_heads=0,
        seq=4096,
        vocab=129280,
        experts=256,
        experts_per_token=8,
        expert_ffn=2048,
        shared_ffn=2048,
        first_dense=3,
        mtp_layers=1,
        **_LATENT,
    ),
    "qwen3-30b-a3b": _qwen(48, 2048, 32, 768),
    "qwen3-235b-a22b": _qwen(94, 4096, 64, 1536),
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
    "nemotron-h-8b": Transformer(
        layers=52,
        hidden=4096,
        heads=32,
        kv_heads=8,
        ffn=21504,
        seq=8192,
        vocab=131072,
        tied=False,
        extra_parameters=4096,
        pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        state_width=128,
        state_heads=128,
        state_head_width=64,
        state_groups=8,
    ),
    "jamba-52b": _llama(
        64,
        4096,
        32,
        14336,
        seq=4096,
        vocab=65536,
        experts=16,
        experts_per_token=2,
        pattern="M-MEM-ME*-MEM-ME",
        state_width=16,
        state_heads=8192,
        state_head_width=1,
        step_rank=256,
    ),
    "switch-base-128": _switch(12, 768, 12, 3072, 128),
    "switch-large-128": _switch(24, 1024, 16, 4096, 128),
    "bert-base": _bert(12, 768, 12),
    "bert-large": _bert(24, 1024, 16),
    "vit-b16": _vit(12, 768, 12, 16),
    "vit-l16": _vit(24, 1024, 16, 16),
    "vit-h14": _vit(32, 1280, 16, 14),
}
"""Sizes of GPT-2 (Radford et al., 2019), Megatron-LM (Narayanan et al., SC 2021; Korthikanti et al., MLSys 2023),
Llama 2 and 3 (Touvron et al., arXiv 2307.09288; Dubey et al., arXiv 2407.21783), Mixtral (Jiang et al., arXiv
2401.04088), DeepSeekMoE (Dai et al., arXiv 2401.06066), DeepSeek-V2 and V3 (arXiv 2405.04434, 2412.19437), Qwen3
(arXiv 2505.09388), gpt-oss (arXiv 2508.10925), Nemotron-H (arXiv 2504.03624), Jamba
(arXiv 2403.19887; a layer of it is two here), decoders like Switch Transformers (Fedus et al., JMLR 2022),
BERT (Devlin et al., NAACL 2019), and ViT (Dosovitskiy et al., ICLR 2021)."""


def model_named(name: str) -> Transformer:
    """Look up a model by name."""
    if name not in MODELS:
        raise InputError(f"expected a model, found {name!r}: {suggestion(name, MODELS)}")
    return MODELS[name]


def any_model(name: str) -> Transformer | LayeredModel:
    """Look up a model by name.

    Examples:
        >>> [round(any_model(name).parameters) for name in ("vgg-16", "bert-large")]
        [138357544, 335141888]
    """
    if name in LAYERED_MODELS:
        return LAYERED_MODELS[name]()
    if name in MODELS:
        return MODELS[name]
    raise InputError(f"expected a model, found {name!r}: {suggestion(name, [*MODELS, *LAYERED_MODELS])}")
