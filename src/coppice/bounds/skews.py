"""Skews of an all-to-all by name: ``zipf:1.2``, ``hot:3``, or those of a file."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.demands import read_demands
from coppice.errors import InputError

_SEED = 0
_FORMS = "zipf:EXPONENT, hot:TIMES or a file"
_LARGEST_EXPONENT = 10
_RESOLUTION = 10**9


class Popularity(NamedTuple):
    """How unequal ranks or experts are."""

    kind: str  # `zipf`: the k-th most popular one gets 1 / k^strength; `hot`: one gets `strength` times what others get
    strength: float

    def shares(self, number: int) -> NDArray[np.float64]:
        """Share of each of ``number``, in an order that is drawn once and for all.

        Examples:
            >>> Popularity("hot", 3).shares(3).tolist()
            [0.2, 0.6, 0.2]
            >>> [round(float(each), 3) for each in sorted(Popularity("zipf", 1).shares(3))]
            [0.182, 0.273, 0.545]
        """
        if self.kind == "zipf":
            found = 1 / np.arange(1, number + 1, dtype=np.float64) ** self.strength
        else:
            found = np.ones(number)
            found[0] = self.strength
        order = np.random.default_rng(_SEED).permutation(number)
        shares: NDArray[np.float64] = (found / found.sum())[order]
        return shares


def parse_popularity(text: str, *, option: str) -> Popularity | None:
    """Popularity by name; None where the text names a file.

    Examples:
        >>> parse_popularity("zipf:1.2", option="skew")
        Popularity(kind='zipf', strength=1.2)
        >>> parse_popularity("counts.csv", option="skew") is None
        True
    """
    kind, colon, number = text.partition(":")
    if not colon or kind not in ("zipf", "hot"):
        return None
    try:
        strength = float(number)
    except ValueError:
        raise InputError(
            f"expected `{option}` {_FORMS}, found {text!r}: give a number behind the colon."
        ) from None
    least, most = (0, _LARGEST_EXPONENT) if kind == "zipf" else (1, _RESOLUTION)
    if not least <= strength <= most:
        raise InputError(
            f"expected a number of {least} to {most} behind `{option}` {kind}:, found {number}: give another one."
        )
    return Popularity(kind, strength)


def skewed_demands(text: str, ranks: int, *, option: str = "skew") -> NDArray[np.float64]:
    """What each rank sends to each, as shares of what an average rank sends; the diagonal is 0, of a file as well.

    What a rank has for itself is copied by all contenders alike and crosses no link, so that it is left out.

    Args:
        text: ``zipf:1.2``: the k-th most popular rank gets 1/k^1.2; ``hot:3``: one rank gets three times what another
            gets; otherwise a file of a matrix.
        option: What it is called in messages.

    Raises:
        InputError: If it is none of these, or nothing is sent.

    Examples:
        >>> skewed_demands("hot:4", 3).round(2).tolist()
        [[0.0, 1.0, 0.25], [0.25, 0.0, 0.25], [0.25, 1.0, 0.0]]
    """
    popular = parse_popularity(text, option=option)
    if popular is None:
        found = np.array(read_demands(text, ranks), dtype=np.float64)
        if found.shape != (ranks, ranks):
            raise InputError(
                f"expected demands of {ranks} ranks, found {len(found)} rows in {text}: give a row for each rank."
            )
    else:
        found = np.tile(popular.shares(ranks), (ranks, 1))
    np.fill_diagonal(found, 0)
    total = float(found.sum())
    if not total:
        raise InputError(f"expected a skew that sends something, found none in {text}: give other demands.")
    scaled: NDArray[np.float64] = found * (ranks / total)
    return scaled


def skewed_counts(shares: NDArray[np.float64], elements: int) -> NDArray[np.int64]:
    """Whole elements from each rank to each, for M = ``elements``: R ranks send R M together, none to itself.

    Examples:
        >>> skewed_counts(skewed_demands("zipf:0", 3), 66).tolist()
        [[0, 33, 33], [33, 0, 33], [33, 33, 0]]
        >>> int(skewed_counts(skewed_demands("zipf:1", 4), 100).sum())
        400
    """
    wanted = elements * len(shares)
    found: NDArray[np.int64] = np.floor(shares * (wanted / len(shares))).astype(np.int64)
    rest = wanted - int(found.sum())
    largest = np.argsort(-shares, axis=None, kind="stable")[: int(np.count_nonzero(shares))]
    np.add.at(found.reshape(-1), largest, rest // len(largest))
    np.add.at(found.reshape(-1), largest[: rest % len(largest)], 1)
    return found
