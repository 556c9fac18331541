"""Lina in training: all-to-all before all-reduce, pipelined with the experts.

Source: Li et al., "Accelerating Distributed MoE Training and Inference with Lina" (USENIX ATC 2023).

In the backward pass of a mixture of experts the exchanges of tokens (all-to-all), for which computation waits, share
the network with gradient all-reduces, for which nothing waits yet. So sums are cut in micro-operations, and one starts
only where no exchange is running or ready: an exchange waits for one micro-operation at most. Exchanges are cut by
tokens as well, so that the experts compute one piece while the next is exchanged. With exchanges of a seconds each
way, f of experts and n pieces (2 or more, nothing else on the network, no cost of a start) a layer takes max(2 a, f +
2 a / n) instead of 2 a + f.

Experts are packed: while the experts of a device take less time for a piece than its exchange does, and memory allows,
each device gets twice as many experts, so that more tokens stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, ClassVar

import msgspec

from coppice.errors import InputError
from coppice.iteration.policies.whole.operations import (
    OperationChoice,
    OperationGraph,
    WholePlan,
    WholePolicy,
)

_EXCHANGE = "all_to_all"
_SUMS = frozenset({"all_reduce", "reduce_scatter", "all_gather"})
_TOKEN_PIECES = (1, 2, 4, 8)


class LinaOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Chunk sizes."""

    micro_bytes: Annotated[float, msgspec.Meta(gt=0)] = 30e6  # Gradient all-reduces are cut in as many bytes
    # Pieces of exchanges; 0: of 1, 2, 4 and 8 those with which the step takes least
    token_pieces: Annotated[int, msgspec.Meta(ge=0)] = 0


class Lina(WholePolicy):
    """Prioritise the all-to-alls of tokens."""

    name = "lina"
    about = "exchanges of tokens before sums, piece by piece with experts (Lina, ATC'23)"
    assumes = "exchanges and sums that share a network; what is under way is not interrupted"
    decides = frozenset({"experts", "gradients"})
    options: ClassVar[type[msgspec.Struct]] = LinaOptions

    def plan(self, graph: OperationGraph) -> WholePlan:
        """All-to-alls before all-reduces, all-reduces in micro-operations, all-to-alls in chunks with their experts."""
        choices: dict[str, OperationChoice] = {}
        ranks: dict[str, int] = {}
        exchanges = []
        for decision, operation in graph.decisions().items():
            own = [each for each in graph.operations if each.decision == decision]
            kinds = {phase.kind for each in own for phase in each.decompositions[0]}
            if _EXCHANGE in kinds:
                exchanges.append(decision)
            # What goes piece by piece with computation, as tensor-parallel collectives, is awaited at once.
            waits = _EXCHANGE in kinds or any(each.group for each in own) or not kinds & _SUMS
            ranks[decision] = 0 if waits else 1
            if not waits:
                pieces = math.ceil(operation.bytes / self.settings.micro_bytes)
                choices[decision] = OperationChoice(pieces=max(1, pieces))
        wanted = (self.settings.token_pieces,) if self.settings.token_pieces else _TOKEN_PIECES
        plans = [
            WholePlan(
                choices=choices | {each: OperationChoice(pieces=pieces) for each in exchanges if pieces > 1},
                ranks=ranks,
            )
            for pieces in (wanted if exchanges else wanted[:1])
        ]
        return plans[0] if len(plans) == 1 else min(plans, key=graph.seconds)


def remote_share(experts: int, of_device: int) -> float:
    """Share of tokens that leave a device which holds some of the experts, under uniform routing.

    Examples:
        >>> remote_share(8, 1), remote_share(8, 4), remote_share(8, 8)
        (0.875, 0.5, 0.0)
    """
    return 1 - of_device / experts


def packed_experts(
    experts: int,
    *,
    expert_seconds: Callable[[int], float],  # Time of the experts of a device for a piece, of how many it has
    exchange_seconds: Callable[[int], float],  # Time of the exchange of a piece, of the same
    # Says whether so many fit in the memory of a device; if not given, all do
    fits: Callable[[int], bool] | None = None,
) -> int:
    """Number of experts packed on each device.

    Doubled while the experts of a device take less time for a piece than its exchange, until all are on every device or
    memory is full.

    Examples:
        An exchange takes 8 times the share of tokens that leave a device, and an expert 1.5:

        >>> packed_experts(8, expert_seconds=lambda n: 1.5 * n, exchange_seconds=lambda n: 8 * remote_share(8, n))
        4
    """
    if experts < 1 or (fits is not None and not fits(1)):
        raise InputError(f"expected an expert or more, of which one fits a device, found {experts}.")
    count = 1
    while 2 * count <= experts and expert_seconds(count) < exchange_seconds(count):
        if fits is not None and not fits(2 * count):
            break
        count *= 2
    return count
