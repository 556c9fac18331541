"""TicTac (Hashemi et al., MLSys 2019): order the pulls of parameters from servers.

A worker pushes gradients as they are made; when all servers have stepped, it gets all parameters again, and its forward
pass waits for each. Any fixed order spares the variance of random ones; TIC and TAC choose it from the graph of
operations, once before training. On a chain TAC is the order of the layers.

Some nodes of the graph receive parameters, the others compute. dep(op) are the receives that an operation waits for,
directly or not. Of the outstanding receives O,

    P(r)  = time of the operations that wait for r alone in O: what can be computed once r is there
    M+(r) = least time of the receives of an operation that waits for r and others in O

TIC takes all receives for alike (M = 1, operations 0), and sorts by M+. TAC picks one at a time: A goes before B if
min(P(B), M(A)) < min(P(A), M(B)), of equal ones the one of less M+; then P and M+ are computed anew. That comparison is
not transitive, so the first is found by going through the receives in their order and keeping the better of two; every
rank finds the same. Source: sections 3 and 4 of the paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, Literal

import msgspec

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.data_parallel.fusion import communication_end
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy, UpdateScope
from coppice.iteration.step.plan import Message


@dataclass(frozen=True, kw_only=True)
class TransferGraph:
    """Receives and the operations that depend on them.

    Raises:
        InputError: If an operation waits for what there is not, or for one after it.
    """

    receives: tuple[float, ...]  # Seconds of each receive
    operations: tuple[float, ...]  # Seconds of each operation
    needs_receives: tuple[tuple[int, ...], ...]  # Receives that each operation waits for, by number
    needs_operations: tuple[tuple[int, ...], ...]  # Operations that each waits for, all before it

    def __post_init__(self) -> None:
        columns = (len(self.operations), len(self.needs_receives), len(self.needs_operations))
        if len(set(columns)) != 1:
            raise InputError(
                f"expected what each of {columns[0]} operations needs, found {columns[1]} and {columns[2]}."
            )
        for number in range(columns[0]):
            found = [*self.needs_receives[number], *self.needs_operations[number]]
            late = [each for each in self.needs_operations[number] if each >= number]
            gone = [each for each in self.needs_receives[number] if each >= len(self.receives)]
            if late or gone or min(found, default=0) < 0:
                raise InputError(
                    f"expected operation {number} after receives and operations before it, found {found}."
                )

    def dependencies(self) -> list[frozenset[int]]:
        """Transitive receives of each operation."""
        found: list[frozenset[int]] = []
        for own, before in zip(self.needs_receives, self.needs_operations, strict=True):
            found.append(frozenset(own).union(*(found[each] for each in before)))
        return found


def _properties(
    needs: Sequence[frozenset[int]],
    outstanding: set[int],
    transfer: Sequence[float],
    compute: Sequence[float],
) -> tuple[dict[int, float], dict[int, float]]:
    """P and M+ of the outstanding receives."""
    unlocked = dict.fromkeys(outstanding, 0.0)
    together = dict.fromkeys(outstanding, inf)
    for own, seconds in zip(needs, compute, strict=True):
        waiting = own & outstanding
        if len(waiting) == 1:
            unlocked[next(iter(waiting))] += seconds
        elif waiting:
            whole = sum(transfer[each] for each in sorted(waiting))
            for each in waiting:
                together[each] = min(together[each], whole)
    return unlocked, together


def tic_priorities(graph: TransferGraph) -> list[int]:
    """Priorities of the receives by graph structure alone (TIC), lowest first; equivalent receives share one.

    Examples:
        >>> chain = TransferGraph(
        ...     receives=(1, 1, 1),
        ...     operations=(1, 1, 1),
        ...     needs_receives=((0,), (1,), (2,)),
        ...     needs_operations=((), (0,), (1,)),
        ... )
        >>> tic_priorities(chain)
        [0, 0, 1]
    """
    count = len(graph.receives)
    together = _properties(
        graph.dependencies(), set(range(count)), [1.0] * count, [0.0] * len(graph.operations)
    )[1]
    levels = sorted(set(together.values()))
    return [levels.index(together[each]) for each in range(count)]


def tac_order(graph: TransferGraph) -> list[int]:
    """Order of the receives by TAC.

    Examples:
        >>> two = TransferGraph(
        ...     receives=(1, 3), operations=(5, 1), needs_receives=((0,), (1,)), needs_operations=((), ())
        ... )
        >>> tac_order(two)
        [0, 1]
    """
    transfer = graph.receives
    needs = graph.dependencies()
    outstanding = set(range(len(transfer)))
    found: list[int] = []
    while outstanding:
        unlocked, together = _properties(needs, outstanding, transfer, graph.operations)
        first, *rest = sorted(outstanding)
        for each in rest:
            own, other = min(unlocked[first], transfer[each]), min(unlocked[each], transfer[first])
            if own < other or (own == other and together[each] < together[first]):
                first = each
        found.append(first)
        outstanding.remove(first)
    return found


def forward_graph(workload: LayerWorkload) -> TransferGraph:
    """Forward pass of a workload, each layer after a receive of its parameters."""
    layers = range(workload.layers)
    place = {layer: place for place, layer in enumerate(_received(workload))}
    return TransferGraph(
        receives=tuple(workload.message(workload.bytes[layer]) for layer in place),
        operations=workload.forward,
        needs_receives=tuple((place[layer],) if layer in place else () for layer in layers),
        needs_operations=tuple(workload.inputs_of(layer) for layer in layers),
    )


def _received(workload: LayerWorkload) -> list[int]:
    """Layers with parameters."""
    return [layer for layer, size in enumerate(workload.bytes) if size]


class OrderOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Ordering heuristic."""

    # `tac` by times, `tic` by structure, `backward` as gradients were pushed
    order: Literal["tac", "tic", "backward"] = "tac"


class TicTac(DataParallelPolicy):
    """Pull parameters in an order that starts the forward pass early."""

    name = "tictac"
    about = "parameters fetched in an order chosen from the graph (TicTac, MLSys'19)"
    assumes = "parameter servers on duplex links that step once; known times for TAC"
    options: ClassVar[type[msgspec.Struct]] = OrderOptions
    update_scope: UpdateScope = UpdateScope.GROUP  # servers have stepped before the first pull

    def priorities(self, workload: LayerWorkload) -> list[int]:
        """Priority of each layer's parameters."""
        if self.settings.order == "backward":
            return [-layer for layer in range(workload.layers)]
        graph = forward_graph(workload)
        if self.settings.order == "tic":
            found = tic_priorities(graph)
        else:
            rank = {receive: turn for turn, receive in enumerate(tac_order(graph))}
            found = [rank[receive] for receive in range(len(graph.receives))]
        of_layer = dict(zip(_received(workload), found, strict=True))
        return [of_layer.get(layer, 0) for layer in range(workload.layers)]

    def messages(self, workload: LayerWorkload) -> Sequence[Message]:
        """Pushes as gradients become ready; after the last one the pulls in order."""
        rank = self.priorities(workload)
        every = tuple(range(workload.layers))
        sent = [layer for layer in reversed(every) if workload.bytes[layer]]
        pushes = [
            Message(
                name=f"push of layer {layer}",
                seconds=workload.message(workload.bytes[layer]),
                size_bytes=workload.bytes[layer],
                layers=(layer,),
                stream="up",
                needed_by=workload.roots,
                collective="push",
            )
            for layer in sent
        ]
        pulls = [
            Message(
                name=f"pull of layer {layer}",
                seconds=workload.message(workload.bytes[layer]),
                size_bytes=workload.bytes[layer],
                layers=every,
                carries=(layer,),
                after=(len(sent) - 1,),
                stream="down",
                priority=rank[layer],
                needed_by=(layer,),
                collective="pull",
            )
            for layer in sent[::-1]
        ]
        return [*pushes, *pulls]

    def lower_bound_seconds(self, workload: LayerWorkload) -> float:
        """Lower bound over all orders of pulls: on a chain, the time of TAC.

        After the last push a layer waits for the parameters of all that it needs; then come its forward pass and those
        that need it.
        """
        pulls = [workload.message(size) if size else 0.0 for size in workload.bytes]
        pushed = communication_end(workload, [[layer] for layer in reversed(range(workload.layers))])
        waits = zip(workload.preceding(pulls), workload.following(workload.forward), strict=True)
        pulled = max(before + after for before, after in waits)
        longest = max(sum(workload.forward), sum(pulls), pulled)
        return max(sum(workload.backward), pushed) + longest

    def extra_memory_bytes(self, workload: LayerWorkload) -> float:
        """Parameters held by the servers, one copy spread over the nodes."""
        return sum(workload.bytes) / workload.workers

    def choices(self, workload: LayerWorkload) -> Sequence[Mapping[str, Any]]:
        """Both heuristics."""
        del workload
        return [{"order": "tac"}, {"order": "tic"}]
