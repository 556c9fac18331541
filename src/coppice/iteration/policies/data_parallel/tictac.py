"""TicTac (Hashemi et al., MLSys 2019): the order in which workers get parameters from servers.

A worker pushes gradients as they are made; when all servers have stepped, it gets all parameters again, and its forward
pass waits for each. Any fixed order spares the variance of random ones; TIC and TAC (`transfer_order`) choose it from
the graph of operations, once before training. On a chain TAC is the order of the layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.data_parallel.fusion import communication_end
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy, UpdateScope
from coppice.iteration.policies.data_parallel.transfer_order import TransferGraph, tac_order, tic_priorities
from coppice.iteration.policies.messages import Message


def forward_graph(workload: LayerWorkload) -> TransferGraph:
    """The forward pass of a workload, each layer that has parameters after a receive of them."""
    layers = range(workload.layers)
    place = {layer: place for place, layer in enumerate(_received(workload))}
    return TransferGraph(
        receives=tuple(workload.message(workload.bytes[layer]) for layer in place),
        operations=workload.forward,
        needs_receives=tuple((place[layer],) if layer in place else () for layer in layers),
        needs_operations=tuple(workload.inputs_of(layer) for layer in layers),
    )


def _received(workload: LayerWorkload) -> list[int]:
    """Layers that have parameters."""
    return [layer for layer, size in enumerate(workload.bytes) if size]


class OrderOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The order."""

    # `tac` by times, `tic` by structure, `backward` as gradients were pushed
    order: Literal["tac", "tic", "backward"] = "tac"


class TicTac(DataParallelPolicy):
    """Parameters in an order that lets the forward pass begin soon."""

    name = "tictac"
    about = "parameters fetched in an order chosen from the graph (TicTac, MLSys'19)"
    assumes = "parameter servers on duplex links that step once; known times for TAC"
    options: ClassVar[type[msgspec.Struct]] = OrderOptions
    update_scope: UpdateScope = UpdateScope.GROUP  # servers have stepped before the first pull

    def priorities(self, workload: LayerWorkload) -> list[int]:
        """Priority of the parameters of each layer."""
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
        """Pushes as gradients are made; after the last one pulls, as chosen."""
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
        """What no order of the pulls can beat: on a chain, the time of TAC.

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
        """Values that servers keep, each node a share, as much as one copy in all."""
        return sum(workload.bytes) / workload.workers

    def choices(self, workload: LayerWorkload) -> Sequence[Mapping[str, Any]]:
        """Both orders."""
        del workload
        return [{"order": "tac"}, {"order": "tic"}]
