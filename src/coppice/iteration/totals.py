"""Totals of an iteration's collectives by kind and group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

ELEMENT_BYTES = {
    "float": 4,
    "half": 2,
    "bfloat16": 2,
    "double": 8,
    "long": 8,
    "int": 4,
    "short": 2,
    "byte": 1,
    "char": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
"""Bytes of an element, by the lower-case names of PyTorch."""
_STANDARD = (
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("allreduce", "all_reduce"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    ("send", "send"),
    ("recv", "recv"),
)


class CollectiveTotal(msgspec.Struct, frozen=True, kw_only=True):
    """All collectives of one kind in groups of one name."""

    collective: str  # The collective, or `send` or `recv`
    group: str  # The group, for people
    ranks: int  # Ranks of a group; 0: the trace does not say
    count: int  # How many there are
    # Bytes of all of them: whole buffers of a rank, the larger one of what goes in and comes out
    size_bytes: int


def collective_totals(rows: Iterable[tuple[str, str, int, int]]) -> list[CollectiveTotal]:
    """Total collectives, group, ranks of the group and bytes, the most bytes first.

    Examples:
        >>> found = collective_totals([("all_reduce", "dp", 4, 100), ("all_reduce", "dp", 4, 50)])
        >>> found[0].count, found[0].size_bytes
        (2, 150)
    """
    sums: dict[tuple[str, str, int], list[int]] = {}
    for collective, group, ranks, size in rows:
        found = sums.setdefault((collective, group, ranks), [0, 0])
        found[0] += 1
        found[1] += size
    totals = [
        CollectiveTotal(collective=collective, group=group, ranks=ranks, count=count, size_bytes=size)
        for (collective, group, ranks), (count, size) in sums.items()
    ]
    return sorted(totals, key=lambda each: (-each.size_bytes, each.collective, each.group))


def group_text(ranks: Sequence[int]) -> str:
    """Short text of a group's ranks.

    Examples:
        >>> group_text([0, 1, 2, 3]), group_text([0, 8, 16]), group_text([0, 1, 5])
        ('0-3', '0-16 by 8', '0,1,5')
    """
    steps = {b - a for a, b in pairwise(ranks)}
    if len(ranks) > 2 and len(steps) == 1:
        step = steps.pop()
        return f"{ranks[0]}-{ranks[-1]}" + (f" by {step}" if step != 1 else "")
    return ",".join(map(str, ranks))


def standard_collective(name: str) -> str:
    """Collective for a name of PyTorch, NCCL or Chakra; empty: none.

    Examples:
        >>> standard_collective("c10d::_allgather_base_"), standard_collective("ncclDevKernel_ReduceScatter_Sum_bf16")
        ('all_gather', 'reduce_scatter')
        >>> standard_collective("_reduce_scatter_base"), standard_collective("wait")
        ('reduce_scatter', '')
    """
    plain = name.lower().replace("_", "").replace("-", "").replace(" ", "")
    return next((standard for word, standard in _STANDARD if word in plain), "")
