"""Compare algorithms over sizes: which wins where, why, and how far from the bound."""

from __future__ import annotations

from coppice.comparison.outcome import Comparison
from coppice.comparison.sweep import compare

__all__ = ["Comparison", "compare"]
