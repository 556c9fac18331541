"""Parameter servers as frameworks had them before anybody scheduled: a baseline whose every habit is an option.

A worker pushes the gradients of a tensor when they are made; servers, among which it is split, add those of all
workers; when they have answered, the worker pulls it again. On a worker a tensor goes through up to five stages, each
one tensor at a time: out of the GPU's memory (`copy_bytes_per_second`), up the link, through the adders of the servers
(`sum_bytes_per_second`), down the link, and into the GPU's memory. A whole tensor waits for itself in each of them;
slices do not, as one is pushed while the one before it is added and the one before that pulled. So cutting gains even
without an order, and most where a tensor is most of the model (VGG).

What systems do otherwise: MXNet's store (ps-lite) pulls a tensor when its push is answered (`pull="key"`),
TensorFlow's when all servers have stepped (`pull="step"`), in an order that is arbitrary and another one each time
(`order="random"`; TicTac, MLSys 2019, section 2). P3 (MLSys 2019) cuts into slices, orders both ways by next use, and
its servers send back without being asked (`trips=0`). Servers on the machines of workers share their NICs
(`shared`), so that a push and a pull at the same time are half as quick.

With `order="next"`, slices, and nothing else, this is :mod:`~coppice.iteration.policies.data_parallel.p3`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.order import Work
from coppice.iteration.policies.data_parallel.ooo import OutOfOrder
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy, UpdateScope
from coppice.iteration.policies.data_parallel.priority import cut
from coppice.iteration.policies.policy import Bytes, Count
from coppice.iteration.step.plan import LayerPass, Message

_NIC = {"NIC": 1.0}


class ServerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Habits of parameter servers and of their clients."""

    # As gradients come (`ready`), what the next forward pass needs first (`next`), or at random (`random`, pulls only)
    order: Literal["ready", "next", "random"] = "ready"
    seed: int = 0  # Of the random order
    pull: Literal["key", "step"] = "key"  # When a tensor is pulled: after its own push, or after all
    slice_elements: Count | None = None  # Elements of a slice at most; None: tensors are not cut
    overlaps: bool = True  # Pushes begin beside the backward pass
    barrier: bool = False  # The next forward pass begins when all pulls are done (sessions of TensorFlow)
    # Round trips between the end of a push and the beginning of its pull, of `round_trip_seconds` of the workload each
    trips: Annotated[int, msgspec.Meta(ge=0)] = 1
    shared: bool = False  # Servers share the NICs of workers
    copy_bytes_per_second: Bytes = 0.0  # Between the memories of GPU and host; 0: no time
    sum_bytes_per_second: Bytes = 0.0  # At which servers add what workers push; 0: no time
    credit_bytes: Bytes = 0.0  # Bytes pushed and not yet acknowledged, at most; 0: no limit
    k: Annotated[int, msgspec.Meta(ge=0)] = 0  # Layers whose gradients of weights are delayed (out of order)


class ServerRoundTrips(DataParallelPolicy):
    """Push every tensor, and pull it when the servers have answered."""

    name = "servers"
    about = (
        "tensors pushed to servers and pulled again, with the habits of MXNet, TensorFlow or P3 by options"
    )
    assumes = "parameter servers"
    options: ClassVar[type[msgspec.Struct]] = ServerOptions
    update_scope: UpdateScope = UpdateScope.GROUP

    def parts(self, workload: LayerWorkload, size_bytes: float) -> Sequence[float]:
        """Slice sizes."""
        elements = self.settings.slice_elements
        return cut(size_bytes, elements and elements * workload.element_bytes)

    def backward(self, workload: LayerWorkload) -> Sequence[LayerPass]:
        """Order of the backward passes; with `k` out of order."""
        if not self.settings.k:
            return super().backward(workload)
        return OutOfOrder.of(k=self.settings.k).backward(workload)

    def messages(self, workload: LayerWorkload) -> Sequence[Message]:
        """Stages of all slices."""
        settings = self.settings
        # Whoever comes first is served first, so that delayed gradients are behind the others.
        made = [each.layer for each in self.backward(workload) if each.work is not Work.INPUT]
        sent = [layer for layer in made if workload.bytes[layer]]
        drawn = random.Random(settings.seed).sample(sent, len(sent))
        ranks = dict(zip(drawn, range(len(sent)), strict=True))
        found: list[Message] = []
        pulls: list[tuple[int, float, str, float]] = []
        for layer in sent:
            offset = 0.0
            for part, size in enumerate(self.parts(workload, workload.bytes[layer])):
                name = f"layer {layer} part {part}"
                pulls.append((layer, size, name, offset))
                self._push(found, workload, layer, size, name, offset)
                if settings.pull == "key":
                    self._pull(
                        found, workload, *pulls[-1], after=(len(found) - 1,), priority=self._rank(layer)
                    )
                offset += size
        if settings.pull == "step":
            last = tuple(number for number, each in enumerate(found) if each.collective == "pushed")
            for each in pulls:
                rank = ranks[each[0]] if settings.order == "random" else self._rank(each[0])
                self._pull(found, workload, *each, after=last[-1:], priority=rank)
        return found

    def _rank(self, layer: int) -> int:
        return layer if self.settings.order == "next" else 0

    def _push(
        self,
        found: list[Message],
        workload: LayerWorkload,
        layer: int,
        size: float,
        name: str,
        offset: float,
    ) -> None:
        settings = self.settings
        ready = (layer,) if settings.overlaps else tuple(range(workload.layers))
        stages = [
            (
                "copied",
                "out",
                size / settings.copy_bytes_per_second if settings.copy_bytes_per_second else 0.0,
            ),
            ("push", "up", workload.message(size)),
            (
                "pushed",
                "adders",
                size / settings.sum_bytes_per_second if settings.sum_bytes_per_second else 0.0,
            ),
        ]
        before: tuple[int, ...] = ()
        for kind, stream, seconds in stages:
            if not seconds and kind == "copied":
                continue
            push = kind == "push"
            found.append(
                Message(
                    name=f"{kind} {name}",
                    seconds=seconds,
                    size_bytes=size if push else 0.0,
                    layers=ready if not before else (),
                    carries=(layer,),
                    offset_bytes=offset,
                    after=before,
                    stream=stream,
                    # All pushes come before the pulls of a step, whatever their order.
                    priority=self._rank(layer) if settings.pull == "key" else 0,
                    collective=kind,
                    loads=_NIC if push and settings.shared else {},
                    credit_bytes=settings.credit_bytes or None if push else None,
                    acknowledgement_seconds=workload.round_trip_seconds if push else 0.0,
                )
            )
            before = (len(found) - 1,)

    def _pull(
        self,
        found: list[Message],
        workload: LayerWorkload,
        layer: int,
        size: float,
        name: str,
        offset: float,
        *,
        after: tuple[int, ...],
        priority: int,
    ) -> None:
        settings = self.settings
        stages = [
            ("answer", f"answer of {name}", settings.trips * workload.round_trip_seconds),
            ("pull", "down", workload.message(size)),
            (
                "arrived",
                "in",
                size / settings.copy_bytes_per_second if settings.copy_bytes_per_second else 0.0,
            ),
        ]
        kept = [each for each in stages if each[2] or each[0] == "pull"]
        awaited = workload.roots if settings.barrier else (layer,)
        for kind, stream, seconds in kept:
            pull = kind == "pull"
            found.append(
                Message(
                    name=f"{kind} {name}",
                    seconds=seconds,
                    size_bytes=size if pull else 0.0,
                    carries=(layer,),
                    offset_bytes=offset,
                    after=after,
                    stream=stream,
                    priority=priority,
                    collective=kind,
                    loads=_NIC if pull and settings.shared else {},
                    needed_by=awaited if kind == kept[-1][0] else (),
                )
            )
            after = (len(found) - 1,)

    def least_messages(self, workload: LayerWorkload) -> int:
        """Lower bound on the number of messages: pushes and pulls."""
        return 2 * super().least_messages(workload)

    def lower_bound_seconds(self, workload: LayerWorkload) -> float:
        """Lower bound: computation, and all pushes one after the other."""
        pushed = sum(workload.message(size) for size in workload.bytes if size)
        return max(workload.compute_seconds, pushed * (2 if self.settings.shared else 1))

    def extra_memory_bytes(self, workload: LayerWorkload) -> float:
        """Parameters held by the servers, one copy spread over the nodes."""
        return sum(workload.bytes) / workload.workers

    def choices(self, workload: LayerWorkload) -> Sequence[Mapping[str, Any]]:
        """Slices of the largest tensor where slices are cut, with room for some, and delays where some are."""
        settings = self.settings
        if settings.slice_elements is None:
            return []
        largest = max(workload.bytes) / workload.element_bytes
        sizes = sorted({max(1, round(largest / share)) for share in (1, 4, 16, 64, 256)})
        rooms = (1, 2, 4, 8) if settings.credit_bytes else (0,)
        delays = range(0, workload.layers, max(1, workload.layers // 8)) if settings.k else (0,)
        return [
            {"slice_elements": size, "credit_bytes": room * size * workload.element_bytes, "k": k}
            for size in sizes
            for room in rooms
            for k in delays
        ]
