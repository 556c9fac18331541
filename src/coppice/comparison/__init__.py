"""Comparing algorithms: times over sizes, who wins where and why, and how far that is from the limit."""

from __future__ import annotations

from coppice.comparison.outcome import Comparison
from coppice.comparison.sweep import compare

__all__ = ["Comparison", "compare"]
