"""Blocks of seeds: the first of them are tested always, the others, which draw from the same, with the slow tests."""

from __future__ import annotations

from typing import Any

import pytest


def blocks(count: int, *, always: int) -> list[Any]:
    """Numbers of blocks as parameters of a test; all but the first few are slow."""
    return [
        block if block < always else pytest.param(block, marks=pytest.mark.slow) for block in range(count)
    ]
