"""How much a plan for sizes looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much a plan for sizes looks at: counts, so that results do not depend on the machine."""

    catalogue: int  # Transfers of algorithms of the catalogue that are made
    ordering: int  # Transfers that are simulated to find an order, for each size
    growing: (
        int  # Ranks that trees of bounded height are grown to, with those of all roots and numbers of trees
    )
    matching: int  # Transfers that are matched with links over time, for each size
    reworking: int  # Looks at what links serve while schedules are improved, for each size


EFFORTS: Mapping[str, Effort] = {
    "quick": Effort(catalogue=0, ordering=0, growing=0, matching=0, reworking=0),
    "normal": Effort(catalogue=2**22, ordering=2**20, growing=2**10, matching=2**19, reworking=2**25),
    "high": Effort(catalogue=2**26, ordering=2**24, growing=2**17, matching=2**23, reworking=2**30),
}

MOST_RANKS = 128
"""Ranks for which schedules are made for one size, unless all are alike."""
