"""Groups of ranks that communicate: axes of a parallel job, or lists of ranks.

An axis is written ``name=size`` or ``name=size:weight``, the fastest one first: ``tp=8,dp=4`` are 32 ranks of which
0..7 form a tensor group and 0, 8, 16, 24 a data group. Lists are written ``0-3;4-7``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from coppice.errors import InputError

__all__ = ["Group", "all_ranks", "read_groups"]

_AXIS = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)=([0-9]{1,7})(?::([0-9]{1,6}))?")
_SPAN = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")


@dataclass(frozen=True, kw_only=True)
class Group:
    """Ranks that communicate with each other, ascending.

    Attributes:
        name: Axis that it belongs to.
        ranks: The ranks.
        weight: How much a link that it crosses counts.
    """

    name: str
    ranks: tuple[int, ...]
    weight: int = 1


def all_ranks(ranks: int) -> tuple[Group, ...]:
    """One group of everybody."""
    return (Group(name="all", ranks=tuple(range(ranks))),)


def read_groups(text: str, ranks: int) -> tuple[Group, ...]:
    """Groups from text.

    Args:
        text: Axes whose sizes multiply to ``ranks``, or lists of ranks.
        ranks: Number of ranks of the job.

    Raises:
        InputError: If it is neither, the sizes do not multiply to the ranks, or a rank does not exist.

    Examples:
        >>> [group.ranks for group in read_groups("tp=2,dp=2", 4)]
        [(0, 1), (2, 3), (0, 2), (1, 3)]
        >>> [group.ranks for group in read_groups("0-1;3,2", 4)]
        [(0, 1), (2, 3)]
    """
    if "=" in text:
        return _axes(text, ranks)
    return tuple(_listed(part, number, ranks) for number, part in enumerate(text.split(";")))


def _axes(text: str, ranks: int) -> tuple[Group, ...]:
    axes: list[tuple[str, int, int]] = []
    for part in text.split(","):
        match = _AXIS.fullmatch(part.strip())
        if match is None or int(match[2]) < 1 or (match[3] is not None and int(match[3]) < 1):
            msg = (
                f"expected axes such as tp=8,dp=4 or tp=8:16,dp=4 (a weight after the size), found {part!r}."
            )
            raise InputError(msg)
        axes.append((match[1], int(match[2]), int(match[3] or 1)))
    product = 1
    for _, size, _ in axes:
        product *= size
    if product != ranks:
        msg = f"expected axes whose sizes multiply to {ranks} ranks, found {text} = {product}: mend a size."
        raise InputError(msg)
    found: list[Group] = []
    stride = 1
    for name, size, weight in axes:
        if size > 1:
            found += [
                Group(
                    name=name,
                    ranks=tuple(range(first, first + stride * size, stride)),
                    weight=weight,
                )
                for block in range(0, ranks, stride * size)
                for first in range(block, block + stride)
            ]
        stride *= size
    return tuple(found) or all_ranks(ranks)


def _listed(text: str, number: int, ranks: int) -> Group:
    found: list[int] = []
    for part in text.split(","):
        match = _SPAN.fullmatch(part.strip())
        last = 0 if match is None else int(match[2] or match[1])
        if match is None or int(match[1]) > last or last >= ranks:
            msg = f"expected groups such as 0-3;4-7 of ranks 0 .. {ranks - 1}, found {part.strip()!r}."
            raise InputError(msg)
        found += range(int(match[1]), last + 1)
    if len(set(found)) != len(found):
        msg = f"expected each rank once in a group, found one twice in {text!r}: leave it out."
        raise InputError(msg)
    return Group(name=f"group {number}", ranks=tuple(sorted(found)))
