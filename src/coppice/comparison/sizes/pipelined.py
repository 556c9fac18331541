"""What a pipeline over trees is likely to take, to choose numbers of trees and pieces that are worth a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, inf

from coppice.bounds.problem import Problem
from coppice.simulation.channels import transport_profiles
from coppice.simulation.models import Model

_MOST_LIKELY, _MOST_TRIED = 12, 2**22
"""Numbers of trees and pieces that are simulated for a size at most, and their messages all together."""


def likeliest(
    likely: Mapping[tuple[int, int], float],
    rows: int,
    *,
    most: int = _MOST_LIKELY,
    messages: int = _MOST_TRIED,
) -> list[tuple[int, int]]:
    """Numbers of trees and pieces that are simulated: the likeliest, more of them where messages are few.

    Args:
        likely: What each is likely to take.
        rows: Transfers of a tree in one piece.
        most: How many at most.
        messages: Messages of all together, but for the first.

    Examples:
        >>> likeliest({(2, 4): 9.0, (2, 8): 7.0, (1, 8): 8.0}, 10, messages=250)
        [(2, 8), (1, 8)]
    """
    found: list[tuple[int, int]] = []
    left = messages
    for trees, pieces in sorted(likely, key=lambda each: (likely[each], each))[:most]:
        left -= trees * pieces * rows
        if found and left < 0:
            break
        found.append((trees, pieces))
    return found


def pipelined_us(
    problem: Problem,
    model: Model,
    size_bytes: int,
    *,
    levels: int,
    inv_rate: float,
    pieces: int,
    messages: int,
) -> float:
    """What a pipeline is likely to take: a message for each level, and as many pieces as follow each other.

    Args:
        inv_rate: Time for a byte in ns, of links that are full.
        messages: Those that a rank sends, and as many that it receives.
    """
    handled_us = messages * (model.send_us + model.receive_us) / max(1, model.workers or messages)
    found = inf
    for profile in transport_profiles(model, problem.topology):
        protocol = profile.protocol
        start, message = (
            (0.0, model.overhead_us) if protocol is None else (protocol.start_us, protocol.network_us)
        )
        moving = size_bytes * inv_rate / 1000 / model.efficiency * float(profile.expansion)
        if protocol is not None:  # messages travel in whole lines
            lines = size_bytes / messages / protocol.data_bytes
            moving *= ceil(lines) / lines
        if profile.gpu_gb_per_s is not None:
            moving = max(moving, size_bytes / 1000 / float(profile.gpu_gb_per_s))
        filling = (levels - 1) / pieces * moving
        found = min(found, start + levels * message + max(moving, handled_us) + filling)
    return found
