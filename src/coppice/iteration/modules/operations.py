"""What a traced training step of a module consists of: operations in the order in which one rank issues them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from coppice.errors import InputError
from coppice.iteration.totals import CollectiveTotal, collective_totals, group_text

__all__ = ["ModuleLayer", "ModuleOperation", "ModuleTrace", "TraceRequest", "TraceResult"]


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the tracing process is asked for.

    Attributes:
        file: File with the function.
        function: Its name.
        ranks: Ranks of the fake process group.
        mesh: Degrees by name, the slowest first, such as ``{"dp": 2, "tp": 8}``.
        shard: ``none``: replicas sum gradients in buckets; ``zero3``: parameters are shared out by ``fully_shard``.
        inputs: Shapes and types of the inputs, such as ``8x256`` or ``4x128:int64``; none: those of the function.
    """

    file: str
    function: str
    ranks: int
    mesh: dict[str, int]
    shard: str
    inputs: list[str]


class ModuleOperation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operation of one rank.

    Attributes:
        name: Name of the operator, such as ``aten.mm``.
        layer: Index of the layer that it belongs to; -1: none.
        backward: Whether it is of the backward pass.
        flops: Floating-point operations of matrix products, convolutions and attention.
        moved_bytes: Bytes that it reads and writes.
        element_bytes: Bytes of an element of its result.
        after: Operations that wrote what it reads, those that other streams run.
        collective: Name of the collective; empty: it computes.
        size_bytes: Bytes of the collective: the whole buffer of a rank, the larger one of what goes in and comes out.
        ranks: Ranks of its group.
        waits: It lets the computation wait for what it comes after, and does nothing itself.
    """

    name: str
    layer: int = -1
    backward: bool = False
    flops: int = 0
    moved_bytes: int = 0
    element_bytes: int = 2
    after: list[int] = []
    collective: str = ""
    size_bytes: int = 0
    ranks: list[int] = []
    waits: bool = False


class ModuleLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A module with parameters of its own, in the order in which forward passes first reach them.

    Attributes:
        name: Its qualified name.
        kind: Its class.
        parameters: Its parameters on this rank, before they are shared out over replicas.
        gradient_bytes: Bytes of their gradients.
    """

    name: str
    kind: str
    parameters: int
    gradient_bytes: int


class ModuleTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A forward and a backward pass of a module on one rank.

    Attributes:
        module: Class of the module.
        ranks: Ranks of the job.
        mesh: Degrees by name.
        layers: Layers.
        operations: Operations in the order in which they are issued.
        torch: Version of PyTorch.
    """

    module: str
    ranks: int
    mesh: dict[str, int]
    layers: list[ModuleLayer]
    operations: list[ModuleOperation]
    torch: str

    @property
    def parameters(self) -> int:
        """Parameters on this rank, before they are shared out over replicas."""
        return sum(layer.parameters for layer in self.layers)

    def collectives(self) -> list[CollectiveTotal]:
        """Collectives by kind and group, those of most bytes first."""
        return collective_totals(
            (each.collective, group_text(each.ranks), len(each.ranks), each.size_bytes)
            for each in self.operations
            if each.collective and len(each.ranks) > 1
        )

    def layer_sums(self, values: Mapping[int, float]) -> tuple[list[float], list[float]]:
        """Values by number of operation, added up for each layer: forward, backward.

        Operations that belong to no layer count for the last layer before them, or for the first one.
        """
        forward, backward = [0.0] * len(self.layers), [0.0] * len(self.layers)
        at = 0
        for number, each in enumerate(self.operations):
            at = each.layer if each.layer >= 0 else at
            if self.layers and number in values:
                (backward if each.backward else forward)[at] += values[number]
        return forward, backward

    def require_collectives(self) -> None:
        """Raise an error unless there is a collective of more than one rank.

        Raises:
            InputError: If there is none.
        """
        if not self.collectives():
            msg = (
                f"expected collectives in a step of {self.module} on {self.ranks} ranks, found none: share the job out "
                "with `parallel` (dp=16), or let the function take a `mesh` and parallelize with it."
            )
            raise InputError(msg)


class TraceResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the tracing process answers: a trace, or a sentence that says why there is none."""

    trace: ModuleTrace | None = None
    error: str = ""
