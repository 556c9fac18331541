"""What a training step is: blocks that a GPU runs for a micro-batch, exchanges inside passes, and what stages send."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coppice.errors import InputError

__all__ = ["BACKWARD", "FORWARD", "RECOMPUTE", "GroupExchange", "LayerBlock", "Step"]

FORWARD, BACKWARD, RECOMPUTE = "forward", "backward", "recompute"
_NO_LOADS: Mapping[str, float] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupExchange:
    """A collective of a group of ranks, or a message to one other.

    Attributes:
        group: Whose ranks take part: ``tp``, ``ep``, ``cp``, ``dp`` or ``pp``.
        collective: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all`` or ``send``.
        size_bytes: Bytes of the whole buffer of a rank.
        when: The pass in which it is: ``forward``, ``backward`` or ``recompute``; empty: outside of passes.
        seconds: Time that it takes alone.
        loads: Share of each link, by name, that it takes meanwhile.
    """

    group: str
    collective: str
    size_bytes: float
    seconds: float
    when: str = ""
    loads: Mapping[str, float] = field(default_factory=lambda: _NO_LOADS)

    @property
    def link(self) -> str:
        """The link that it loads most, which limits it; empty: none is known."""
        return max(self.loads, key=lambda name: self.loads[name], default="")


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerBlock:
    """A layer as one GPU of the layout runs it for one micro-batch; times are seconds of computation.

    Attributes:
        name: Its name.
        kind: Its kind: ``layer``, ``embedding``, ``head`` or another word of the model.
        forward: Forward pass.
        input_gradient: Gradients of its inputs.
        weight_gradient: Gradients of its weights.
        recompute: What is computed again in the backward pass.
        parameters: Weights on this GPU.
        kept_bytes: Bytes that it keeps of the micro-batch until its backward pass.
        exchanges: What it exchanges inside its passes, in their order.

    Raises:
        InputError: If a time is negative or no number.
    """

    name: str
    kind: str
    forward: float = 0.0
    input_gradient: float = 0.0
    weight_gradient: float = 0.0
    recompute: float = 0.0
    parameters: float = 0.0
    kept_bytes: float = 0.0
    exchanges: tuple[GroupExchange, ...] = ()

    def __post_init__(self) -> None:
        times = (self.forward, self.input_gradient, self.weight_gradient, self.recompute)
        for seconds in (*times, *(each.seconds for each in self.exchanges)):
            if not (math.isfinite(seconds) and seconds >= 0):
                msg = f"expected 0 or more seconds in block {self.name}, found {seconds}."
                raise InputError(msg)

    @property
    def compute(self) -> float:
        """Computation of all its passes."""
        return self.forward + self.input_gradient + self.weight_gradient + self.recompute


@dataclass(frozen=True, kw_only=True)
class Step:
    """A training step of a job, as one GPU of each pipeline device runs it.

    Ranks of a tensor-parallel group, and replicas, do the same at the same time: one of each kind stands for all.

    Attributes:
        stages: Blocks of each stage; which device has a stage is for the order of the pipeline to say.
        micro_batches: Micro-batches of a replica.
        replicas: Ranks that sum gradients.
        gradient_bytes: Bytes of the gradient of a weight.
        send: What a stage sends to the next for a micro-batch, and back; None: nothing.
        optimizer: Seconds of the optimizer for each stage.
        shares_optimizer: Replicas share out its states.
        between_replicas: The exchange of a collective (``all_reduce``, ``reduce_scatter``, ``all_gather``) of so many
            bytes between replicas.
        flops: Operations of a forward and backward pass of all GPUs, nothing recomputed.
        peak: Operations a second of all GPUs, by the data sheet.
    """

    stages: tuple[tuple[LayerBlock, ...], ...]
    micro_batches: int
    replicas: int = 1
    gradient_bytes: float = 2.0
    send: GroupExchange | None = None
    optimizer: tuple[float, ...] = ()
    shares_optimizer: bool = False
    between_replicas: Callable[[str, float], GroupExchange] | None = None
    flops: float = 0.0
    peak: float = 0.0

    def __post_init__(self) -> None:
        if not self.stages or not all(self.stages):
            msg = f"expected stages of 1 block or more, found {[len(stage) for stage in self.stages]} blocks."
            raise InputError(msg)
        if self.micro_batches < 1:
            msg = f"expected 1 micro-batch or more, found {self.micro_batches}."
            raise InputError(msg)
        if self.replicas > 1 and self.between_replicas is None:
            msg = f"expected what exchanges between {self.replicas} replicas cost, found nothing."
            raise InputError(msg)
        if self.optimizer and len(self.optimizer) != len(self.stages):
            msg = f"expected an optimizer for each of {len(self.stages)} stages, found {len(self.optimizer)}."
            raise InputError(msg)

    def message(self, collective: str, size_bytes: float) -> GroupExchange:
        """What a collective between replicas takes."""
        if self.between_replicas is None or not size_bytes:
            return GroupExchange(group="dp", collective=collective, size_bytes=size_bytes, seconds=0.0)
        return self.between_replicas(collective, size_bytes)
