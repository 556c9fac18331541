"""Lina in inference: replicate popular experts, predicted by the experts of earlier layers.

Source: Li et al., "Accelerating Distributed MoE Training and Inference with Lina" (USENIX ATC 2023).

Which expert a token takes in the next layer depends on those it took in the last ones, its *path*. A table from paths
of up to `l` layers (3, unless told otherwise) to the experts that followed, gathered beforehand, estimates how popular
each expert of the next layer will be. Placement has two phases. As soon as the gate of a layer is known, experts of
the next one get devices in proportion to their estimated popularity (largest remainders, one at least), replicas share
the tokens of an expert evenly, and unpopular experts are packed together, first fit. When the true gate is known and
its most popular experts are not the estimated ones, placement is done again with what is true.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from coppice.errors import InputError

_ROUNDS = 20


@dataclass
class PathPopularity:
    """Statistics of the next expert by path of earlier experts.

    Examples:
        >>> table = PathPopularity(experts=2, length=1)
        >>> table.observe([0, 1, 1])
        >>> table.estimate([[0], [0], [1]])
        [Fraction(0, 1), Fraction(3, 1)]
    """

    experts: int  # Experts of a layer
    length: int = 3  # Layers of a path, at most
    _followed: dict[tuple[int, ...], Counter[int]] = field(default_factory=lambda: defaultdict(Counter))

    def observe(self, taken: Sequence[int]) -> None:
        """Learn from a token's experts, layer by layer."""
        for layer in range(1, len(taken)):
            for length in range(min(self.length, layer) + 1):
                self._followed[tuple(taken[layer - length : layer])][taken[layer]] += 1

    def estimate(self, paths: Iterable[Sequence[int]]) -> list[Fraction]:
        """Expected tokens of each expert of the next layer, one path per token.

        A path that has not been seen counts as its end that has, and one without any as spread evenly.
        """
        found = [Fraction(0)] * self.experts
        for path in paths:
            for start in range(max(0, len(path) - self.length), len(path) + 1):
                followed = self._followed.get(tuple(path[start:]))
                if followed:
                    total = sum(followed.values())
                    for expert, count in followed.items():
                        found[expert] += Fraction(count, total)
                    break
            else:
                found = [each + Fraction(1, self.experts) for each in found]
        return found


@dataclass(frozen=True, kw_only=True)
class ExpertPlacement:
    """Assignment of experts to devices."""

    replicas: tuple[int, ...]  # Replicas of each expert, which share its tokens evenly
    devices: tuple[tuple[int, ...], ...]  # For each device its experts, one for each replica
    popularity: tuple[Fraction, ...]  # What it was made for

    def loads(self, popularity: Sequence[Fraction | int | float]) -> list[Fraction]:
        """Load of each device under a popularity."""
        return [
            sum((Fraction(popularity[each]) / self.replicas[each] for each in own), Fraction(0))
            for own in self.devices
        ]

    def imbalance(self, popularity: Sequence[Fraction | int | float]) -> Fraction:
        """Load of the busiest device over the mean; 1 without load."""
        loads = self.loads(popularity)
        total = sum(loads, Fraction(0))
        return max(loads) * len(loads) / total if total else Fraction(1)


def place_experts(popularity: Sequence[Fraction | int | float], devices: int) -> ExpertPlacement:
    """First phase: replicas in proportion to popularity, packed on devices.

    Expert e gets the larger of 1 and its share of the devices, rounded by largest remainders. Replicas, those with most
    tokens first, go on the first device that they fit on; the size of devices is the least at which all fit, found by
    bisection.

    Args:
        popularity: Tokens of each expert, or any multiple.

    Examples:
        >>> place_experts([6, 1, 1], 4).devices
        ((0,), (0,), (0,), (1, 2))
    """
    if not popularity or devices < 1 or min(popularity) < 0:
        raise InputError(
            f"expected experts of popularity 0 or more and a device, found {list(popularity)} and {devices}."
        )
    wanted = tuple(Fraction(each) for each in popularity)
    total = sum(wanted, Fraction(0))
    even = [Fraction(1)] * len(wanted)
    shares = [devices * each / total for each in wanted] if total else even
    replicas = [max(1, count) for count in _largest_remainders(shares, devices if total else len(wanted))]
    pieces = sorted(
        (
            (share / count, -expert)
            for expert, (share, count) in enumerate(zip(shares, replicas, strict=True))
        ),
        reverse=True,
    )
    items = [(load, -expert) for load, expert in pieces for _ in range(replicas[-expert])]
    most = max(items[0][0], sum((load for load, _ in items), Fraction(0)) / devices)
    low, high = most, 2 * most
    best = _first_fit(items, devices, high)
    assert best is not None  # as there is room for twice the mean and twice the largest replica
    for turn in range(_ROUNDS):
        found = _first_fit(items, devices, (low + high) / 2 if turn else low)
        if found is None:
            low = (low + high) / 2 if turn else low
        else:
            best, high = found, max(sum((load for load, _ in own), Fraction(0)) for own in found)
        if high <= low:
            break
    return ExpertPlacement(
        replicas=tuple(replicas),
        devices=tuple(tuple(expert for _, expert in own) for own in best),
        popularity=wanted,
    )


def second_phase(
    placement: ExpertPlacement, popularity: Sequence[Fraction | int | float], *, most: int
) -> ExpertPlacement:
    """Second phase: keep the placement, or replace it where the most popular experts differ from the estimate.

    Args:
        most: How many of the most popular experts must be the same ones.

    Examples:
        >>> first = place_experts([6, 1, 1], 4)
        >>> second_phase(first, [5, 2, 1], most=1) is first
        True
        >>> second_phase(first, [1, 6, 1], most=1).replicas
        (1, 3, 1)
    """
    same = _popular(placement.popularity, most) == _popular(popularity, most)
    return placement if same else place_experts(popularity, len(placement.devices))


def _popular(popularity: Sequence[Fraction | int | float], most: int) -> frozenset[int]:
    order = sorted(range(len(popularity)), key=lambda expert: (-popularity[expert], expert))
    return frozenset(order[:most])


def _largest_remainders(shares: Sequence[Fraction], total: int) -> list[int]:
    """Round shares to integers with the same sum."""
    found = [int(each) for each in shares]
    order = sorted(range(len(shares)), key=lambda number: (found[number] - shares[number], number))
    for number in order[: total - sum(found)]:
        found[number] += 1
    return found


def _first_fit(
    items: Sequence[tuple[Fraction, int]], devices: int, size: Fraction
) -> list[list[tuple[Fraction, int]]] | None:
    """First-fit packing of items on devices; None where they do not fit."""
    own: list[list[tuple[Fraction, int]]] = [[] for _ in range(devices)]
    room = [size] * devices
    for load, expert in items:
        for device in range(devices):
            if load <= room[device]:
                own[device].append((load, expert))
                room[device] -= load
                break
        else:
            return None
    return own
