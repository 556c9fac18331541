"""Placements: mappings of parallel axes to the devices of a hierarchy.

A hierarchy has levels from the outside in, such as 4 nodes of 8 GPUs. A placement is a matrix of whole numbers with a
row for each axis and a column for each level: the product of a row is the size of its axis, the product of a column
the cardinality of its level (N. Xie et al., MLSys 2022). Within a level the first axis varies slowest.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError

_MOST = 100_000

_NAME = re.compile(r"[^\s=,+;]{1,40}")


def parse_counts(given: str | Mapping[str, int], *, option: str) -> dict[str, int]:
    """Parse positive integers by name, from text such as ``dp=4,tp=8`` or a mapping.

    Args:
        option: The option that it is the value of, for the message.

    Examples:
        >>> parse_counts("dp=4,tp=8", option="axes")
        {'dp': 4, 'tp': 8}
    """
    if isinstance(given, str):
        parts = [part.partition("=") for part in given.split(",")]
        pairs = [(name.strip(), number.strip()) for name, _, number in parts]
    else:
        pairs = [(str(name), str(number)) for name, number in given.items()]
    found: dict[str, int] = {}
    for name, number in pairs or [("", "")]:
        if not _NAME.fullmatch(name) or not number.isdecimal() or len(number) > 6 or int(number) < 1:
            each = f"{name}={number}"[:40]
            raise InputError(
                f"expected names with numbers of 1 or more as `{option}`, such as dp=4,tp=8, found {each!r}."
            )
        if name in found:
            raise InputError(f"expected different names as `{option}`, found {name[:40]} twice: rename one.")
        found[name] = int(number)
    return found


@dataclass(frozen=True, kw_only=True)
class AxisPlacement:
    """Mapping of parallel axes to the levels of a hierarchy, as a matrix."""

    axes: tuple[str, ...]  # Names of the axes
    levels: tuple[str, ...]  # Names of the levels, from the outside in
    matrix: tuple[tuple[int, ...], ...]  # For each axis how often it is cut at each level

    def __str__(self) -> str:
        """Every axis with what it is cut into.

        >>> str(AxisPlacement(axes=("dp", "tp"), levels=("node", "gpu"), matrix=((4, 1), (1, 8))))
        'dp: node 4, tp: gpu 8'
        """
        rows = []
        for axis, row in zip(self.axes, self.matrix, strict=True):
            cuts = [f"{level} {n}" for level, n in zip(self.levels, row, strict=True) if n > 1]
            rows.append(f"{axis}: {' x '.join(cuts) or '1'}")
        return ", ".join(rows)

    @property
    def devices(self) -> int:
        """Number of devices."""
        return prod(prod(row) for row in self.matrix)

    def shape(self, reduced: Collection[str]) -> tuple[tuple[str, int], ...]:
        """Levels that groups of some axes span, with the number of parts."""
        rows = [row for axis, row in zip(self.axes, self.matrix, strict=True) if axis in reduced]
        sizes = [prod(row[j] for row in rows) for j in range(len(self.levels))]
        return tuple((level, n) for level, n in zip(self.levels, sizes, strict=True) if n > 1)

    def coordinates(self) -> NDArray[np.int64]:
        """Coordinates of each device on the axes.

        Returns:
            ``(devices, axes)`` whole numbers; devices are numbered along the levels, the innermost fastest.

        Examples:
            >>> AxisPlacement(axes=("dp", "tp"), levels=("node", "gpu"), matrix=((2, 1), (1, 2))).coordinates().tolist()
            [[0, 0], [0, 1], [1, 0], [1, 1]]
        """
        found = np.zeros((self.devices, len(self.axes)), dtype=np.int64)
        for number, (axis, size) in enumerate(self._digits()):
            found[:, axis] = found[:, axis] * size + self._digit(number)
        return found

    def groups(self, reduced: Collection[str]) -> NDArray[np.int64]:
        """Reduction groups: devices that agree on all axes but the reduced ones.

        Returns:
            ``(groups, members)`` device numbers; members vary along the levels, the innermost fastest.
        """
        for name in reduced:
            if name not in self.axes:
                raise InputError(
                    f"expected axes to reduce of {', '.join(self.axes)}, found {name[:40]!r}: name one of these."
                )
        inside = np.zeros(self.devices, dtype=np.int64)
        outside = np.zeros(self.devices, dtype=np.int64)
        for number, (axis, size) in enumerate(self._digits()):
            if self.axes[axis] in reduced:
                inside = inside * size + self._digit(number)
            else:
                outside = outside * size + self._digit(number)
        members = int(inside.max(initial=0)) + 1
        return np.lexsort((inside, outside)).reshape(-1, members)

    def _digits(self) -> list[tuple[int, int]]:
        """Axis and size of each digit of a device's number, the slowest first."""
        return [
            (axis, self.matrix[axis][level])
            for level in range(len(self.levels))
            for axis in range(len(self.axes))
        ]

    def _digit(self, number: int) -> NDArray[np.int64]:
        sizes = [size for _, size in self._digits()]
        faster = prod(sizes[number + 1 :])
        return np.arange(self.devices) // faster % sizes[number]


def placements(axes: Mapping[str, int], levels: Mapping[str, int]) -> list[AxisPlacement]:
    """All placements of axes on a hierarchy, in lexical order of their matrices.

    Args:
        levels: Cardinality of each level, from the outside in.

    Examples:
        >>> [each.matrix for each in placements({"dp": 4, "tp": 8}, {"node": 4, "gpu": 8})]
        [((1, 4), (4, 2)), ((2, 2), (2, 4)), ((4, 1), (1, 8))]
    """
    wanted, there = prod(axes.values()), prod(levels.values())
    if wanted != there:
        raise InputError(
            f"expected axes whose sizes multiply to the {there} devices of {_counts(levels)}, found {wanted} of "
            f"{_counts(axes)}: change `axes` or `hierarchy`."
        )
    found: list[AxisPlacement] = []
    for rows in _matrices(list(axes.values()), list(levels.values())):
        found.append(AxisPlacement(axes=tuple(axes), levels=tuple(levels), matrix=rows))
        if len(found) > _MOST:
            raise InputError(
                f"expected at most {_MOST} placements, found more: use fewer axes, or fewer levels (`hierarchy`)."
            )
    return found


def _counts(named: Mapping[str, int]) -> str:
    return ",".join(f"{name}={n}" for name, n in named.items())


def _matrices(rows: list[int], columns: list[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All matrices of whole numbers with these products of rows and columns."""
    if not rows:
        if all(n == 1 for n in columns):
            yield ()
        return
    for first in _factored(rows[0], columns):
        rest = [n // taken for n, taken in zip(columns, first, strict=True)]
        for others in _matrices(rows[1:], rest):
            yield (first, *others)


def _factored(number: int, limits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to write ``number`` as a product of divisors of the limits."""
    choices = [
        [d for d in range(1, gcd(number, limit) + 1) if gcd(number, limit) % d == 0] for limit in limits
    ]
    for row in product(*choices):
        if prod(row) == number:
            yield row


def default_placement(axes: Mapping[str, int], levels: Mapping[str, int]) -> AxisPlacement | None:
    """Default placement of frameworks: a mesh over numbered devices, the last axis fastest.

    Returns:
        The placement, or None where an axis would begin inside a level without dividing it.

    Examples:
        >>> default_placement({"dp": 4, "tp": 8}, {"node": 4, "gpu": 8}).matrix
        ((4, 1), (1, 8))
        >>> default_placement({"dp": 2, "tp": 3, "pp": 2}, {"node": 2, "gpu": 6}).matrix
        ((2, 1), (1, 3), (1, 2))
        >>> default_placement({"dp": 3, "tp": 4}, {"node": 2, "gpu": 6}) is None
        True
    """
    left = list(levels.values())
    matrix = []
    for size in reversed(list(axes.values())):
        row = [1] * len(left)
        for level in reversed(range(len(left))):
            if size == 1:
                break
            taken = gcd(size, left[level])
            if taken not in (size, left[level]):
                return None
            row[level], left[level] = taken, left[level] // taken
            size //= taken
        if size != 1:
            return None
        matrix.append(tuple(row))
    return AxisPlacement(axes=tuple(axes), levels=tuple(levels), matrix=tuple(reversed(matrix)))
