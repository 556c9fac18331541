"""Model of a training step: blocks of a GPU per micro-batch, collectives inside passes, messages of stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coppice.errors import InputError

FORWARD, BACKWARD, RECOMPUTE = "forward", "backward", "recompute"
NO_LOADS: Mapping[str, float] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupExchange:
    """A collective of a rank group, or a point-to-point message."""

    group: str  # Whose ranks take part: `tp`, `ep`, `cp`, `dp` or `pp`
    collective: str  # `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all` or `send`
    size_bytes: float  # Bytes of the whole buffer of a rank
    seconds: float  # Time that it takes alone
    when: str = ""  # The pass in which it is: `forward`, `backward` or `recompute`; empty: outside of passes
    # Share of each link, by name, that it takes meanwhile
    loads: Mapping[str, float] = field(default_factory=lambda: NO_LOADS)

    @property
    def link(self) -> str:
        """Bottleneck link; empty where none is known."""
        return max(self.loads, key=lambda name: self.loads[name], default="")


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerBlock:
    """A layer as one GPU of the layout runs it for one micro-batch; times are compute seconds.

    Raises:
        InputError: If a time is negative or no number.
    """

    name: str  # Its name
    kind: str  # Its kind: `layer`, `embedding`, `head` or another word of the model
    forward: float = 0.0  # Forward pass
    input_gradient: float = 0.0  # Gradients of its inputs
    weight_gradient: float = 0.0  # Gradients of its weights
    recompute: float = 0.0  # What is computed again in the backward pass
    parameters: float = 0.0  # Weights on this GPU
    activation_bytes: float = 0.0  # Bytes that it keeps of the micro-batch until its backward pass
    exchanges: tuple[GroupExchange, ...] = ()  # What it exchanges inside its passes, in their order
    # Blocks of its stage that it takes its input from; None: the one before it
    inputs: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        times = (self.forward, self.input_gradient, self.weight_gradient, self.recompute)
        for seconds in (*times, *(each.seconds for each in self.exchanges)):
            if not (math.isfinite(seconds) and seconds >= 0):
                raise InputError(f"expected 0 or more seconds in block {self.name}, found {seconds}.")

    @property
    def compute(self) -> float:
        """Compute time of all passes."""
        return self.forward + self.input_gradient + self.weight_gradient + self.recompute


@dataclass(frozen=True, kw_only=True)
class Step:
    """Training step of a job, as one GPU of each pipeline device runs it.

    Ranks of a tensor-parallel group, and replicas, do the same at the same time: one of each kind stands for all.
    """

    # Blocks of each stage; which device has a stage is for the order of the pipeline to say
    stages: tuple[tuple[LayerBlock, ...], ...]
    micro_batches: int  # Micro-batches of a replica
    replicas: int = 1  # Ranks that sum gradients
    gradient_bytes: float = 2.0  # Bytes of the gradient of a weight
    # What a stage sends to the next for a micro-batch, and back; None: nothing
    send: GroupExchange | None = None
    optimizer: tuple[float, ...] = ()  # Seconds of the optimizer for each stage
    shares_optimizer: bool = False  # Replicas shard its states
    # The exchange of a collective (`all_reduce`, `reduce_scatter`, `all_gather`) of so many bytes between
    # replicas
    between_replicas: Callable[[str, float], GroupExchange] | None = None
    flops: float = 0.0  # Operations of a forward and backward pass of all GPUs, nothing recomputed
    peak: float = 0.0  # Operations a second of all GPUs, by the data sheet

    def __post_init__(self) -> None:
        if not self.stages or not all(self.stages):
            raise InputError(
                f"expected stages of 1 block or more, found {[len(stage) for stage in self.stages]} blocks."
            )
        if self.micro_batches < 1:
            raise InputError(f"expected 1 micro-batch or more, found {self.micro_batches}.")
        if self.replicas > 1 and self.between_replicas is None:
            raise InputError(f"expected what exchanges between {self.replicas} replicas cost, found nothing.")
        if self.optimizer and len(self.optimizer) != len(self.stages):
            raise InputError(
                f"expected an optimizer for each of {len(self.stages)} stages, found {len(self.optimizer)}."
            )

    def message(self, collective: str, size_bytes: float) -> GroupExchange:
        """Time of a collective between replicas."""
        if self.between_replicas is None or not size_bytes:
            return GroupExchange(group="dp", collective=collective, size_bytes=size_bytes, seconds=0.0)
        return self.between_replicas(collective, size_bytes)
