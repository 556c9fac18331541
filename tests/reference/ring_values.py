"""What the ranks of a decomposed product compute, with NumPy: the three cases, and where order changes rounding.

Source: Wang et al. (ASPLOS 2023), section 4. A collective runs along a dimension of the product, written as in
``numpy.einsum``. Where a gather feeds it, the dimension is

* only in the gathered operand and the result: each product is a slice of the result;
* in both operands and not in the result (it is summed over): each product, with its slice of the other operand, is a
  term of the result;
* in both operands and the result (a batch): each product, with its slice of the other operand, is a slice of it.

Where a scatter takes the result, it is in the result, and a part is the product of the slices of those operands that
have it. Sums are in the order of the ring, another one on each rank, so that floats may differ in their last places
from an all-reduce in a fixed order; whole numbers do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError

_Array = NDArray[np.float64]


def gathered_products(
    spec: str, along: str, shards: Sequence[_Array], others: Sequence[_Array]
) -> list[_Array]:
    """The product of every rank, whose first operand is gathered shard by shard.

    Args:
        spec: The product, such as ``"mk,kn->mn"``.
        along: Dimension of the first operand that ranks have shards of.
        shards: The shard of each rank; they may differ in size.
        others: The second operand of each rank, whole.

    Raises:
        InputError: If the first operand has no such dimension, or it is in no other place.

    Examples:
        >>> shards = [np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])]
        >>> weights = [np.array([[1.0], [10.0]]), np.array([[1.0], [0.0]])]
        >>> [result.ravel().tolist() for result in gathered_products("mk,kn->mn", "m", shards, weights)]
        [[21.0, 43.0], [1.0, 3.0]]
    """
    left, right, out = _dimensions(spec)
    if along not in left or along not in right + out:
        raise InputError(
            f"expected a dimension of the first operand and of another in {spec}, found {along!r}."
        )
    ranks = len(shards)
    places = _places(shards, left.index(along))
    results = []
    for rank in range(ranks):
        result: _Array | None = None
        slices: dict[int, _Array] = {}
        for step in range(ranks):
            owner = (rank + step) % ranks
            other = _cut(others[rank], right, along, places[owner])
            product = np.einsum(spec, shards[owner], other)
            if along in out:
                slices[owner] = product
            else:
                result = product if result is None else result + product
        if result is None:
            result = np.concatenate([slices[owner] for owner in range(ranks)], axis=out.index(along))
        results.append(result)
    return results


def scattered_products(
    spec: str, along: str, lefts: Sequence[_Array], rights: Sequence[_Array], sizes: Sequence[int]
) -> list[_Array]:
    """The shard of each rank of the sum of all ranks' products.

    Args:
        spec: The product, such as ``"mk,kn->mn"``.
        along: Dimension of the result that ranks get shards of.
        lefts: The first operand of each rank.
        rights: The second operand of each rank.
        sizes: Size of each rank's shard.

    Raises:
        InputError: If the result has no such dimension.
    """
    left, right, out = _dimensions(spec)
    if along not in out:
        raise InputError(f"expected a dimension of the result of {spec}, found {along!r}.")
    ranks = len(lefts)
    ends = list(accumulate(sizes))
    places = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    results = []
    for owner in range(ranks):
        total: _Array | None = None
        for step in range(ranks):
            rank = (owner - 1 - step) % ranks  # the sum starts at the next but N - 1 and ends here
            part = np.einsum(
                spec,
                _cut(lefts[rank], left, along, places[owner]),
                _cut(rights[rank], right, along, places[owner]),
            )
            total = part if total is None else total + part
        if total is not None:
            results.append(total)
    return results


def _dimensions(spec: str) -> tuple[str, str, str]:
    """Of both operands and the result."""
    operands, _, out = spec.partition("->")
    left, _, right = operands.partition(",")
    return left, right, out


def _places(shards: Sequence[_Array], axis: int) -> list[slice]:
    """Where each shard lies in the whole."""
    ends = list(accumulate(shard.shape[axis] for shard in shards))
    return [slice(end - shard.shape[axis], end) for end, shard in zip(ends, shards, strict=True)]


def _cut(whole: _Array, names: str, along: str, place: slice) -> _Array:
    """The slice of an operand, or all of it if it has no such dimension."""
    if along not in names:
        return whole
    return whole[tuple(place if name == along else slice(None) for name in names)]
