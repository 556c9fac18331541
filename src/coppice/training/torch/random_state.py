"""The random numbers that training draws: Python's, NumPy's, torch's on the CPU and on every GPU."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

__all__ = ["preserved_random_state", "random_state", "set_random_state"]

_cuda: Any = torch.cuda  # is_initialized has no types


def random_state() -> dict[str, Any]:
    """The state of all global generators, as plain values and CPU tensors."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 (the global one is meant)
    return {
        "python": (version, tuple(words), gauss),
        "numpy": (
            str(name),
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            position,
            has_gauss,
            cached,
        ),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if _cuda.is_initialized() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Put all global generators back to a state that :func:`random_state` returned."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Random numbers drawn inside are not missed outside."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)
