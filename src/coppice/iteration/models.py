"""Models by the names that papers give them."""

from __future__ import annotations

from coppice.errors import InputError
from coppice.iteration.transformer import Transformer

__all__ = ["MODELS", "model_named"]


def _gpt(layers: int, hidden: int, heads: int) -> Transformer:
    """A model of Megatron-LM's tables."""
    return Transformer(layers=layers, hidden=hidden, heads=heads, ffn=4 * hidden, seq=2048, vocab=51200)


def _llama(layers: int, hidden: int, heads: int, ffn: int) -> Transformer:
    """A model of the Llama 3 herd."""
    return Transformer(
        layers=layers, hidden=hidden, heads=heads, kv_heads=8, ffn=ffn, mlp_matrices=3, seq=8192, vocab=128256
    )


MODELS = {
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
    "llama3-8b": _llama(32, 4096, 32, 14336),
    "llama3-70b": _llama(80, 8192, 64, 28672),
    "llama3-405b": _llama(126, 16384, 128, 53248),
}
"""Sizes of Megatron-LM (Narayanan et al., SC 2021; Korthikanti et al., MLSys 2023) and of Llama 3 (Dubey et al., arXiv
2407.21783)."""


def model_named(name: str) -> Transformer:
    """The model of a name.

    Raises:
        InputError: If there is none.
    """
    if name not in MODELS:
        msg = f"expected a model ({', '.join(MODELS)}), found {name!r}."
        raise InputError(msg)
    return MODELS[name]
