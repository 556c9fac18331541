"""A training step: its blocks with their collectives; and its plan: the order of passes, messages, and what waits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from coppice.errors import InputError
from coppice.iteration.pipeline.order import PipelineOrder, StagePass, Work

FORWARD, BACKWARD, RECOMPUTE = "forward", "backward", "recompute"
NO_LOADS: Mapping[str, float] = {}
PROCESSORS = "SMs"
"""What loads the processors of a device, not a link: all of them a computation, some an exchange beside it."""


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
        links = (name for name in self.loads if name != PROCESSORS)
        return max(links, key=lambda name: self.loads[name], default="")


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A message about gradients or parameters between replicas, numbered within its iteration.

    Those of a stream that are ready go by priority, the least first, of equal ones the least number.
    """

    name: str  # Its name
    seconds: float  # Time that it takes alone
    size_bytes: float = 0.0  # Bytes of gradients (or of what stands for them) that it carries
    # `all_reduce`, `reduce_scatter`, `all_gather`, `push`, `pull` or `factors`
    collective: str = "all_reduce"
    # Share of each link that it takes
    loads: Mapping[str, float] = field(default_factory=lambda: NO_LOADS, hash=False)
    stage: int | None = 0  # Stage that it is about; None: all of its device, when that has run its passes
    device: int | None = None  # Pipeline device on whose network it is; None: that of its stage
    # Layers of the stage whose gradients are there before it starts; after the optimizer: which are updated
    layers: tuple[int, ...] = ()
    # Layers whose gradients it carries, or parts of them; empty: those of `layers`
    carries: tuple[int, ...] = ()
    offset_bytes: float = 0.0  # Where in the gradients that it carries, laid in a row, its bytes begin
    after: tuple[int, ...] = ()  # Numbers of messages that end before it starts
    after_step: bool = False  # It comes after the optimizer
    # Layer whose forward pass of the next iteration has started before it starts
    after_forward: int | None = None
    forward_stage: int | None = None  # Stage of that layer; None: its own
    needed_by: tuple[int, ...] = ()  # Layers of the stage whose next forward pass waits for it
    after_passes: tuple[StagePass, ...] = ()  # Further passes that end before it starts
    before_passes: tuple[StagePass, ...] = ()  # Passes of the same iteration that wait for it
    # What carries it: `network`, `up` and `down` of parameter servers, or `replicas` with a number, for some of them
    stream: str = "network"
    priority: int = 0  # The least first
    # Bytes that its stream takes on before they are acknowledged; one more message is taken on while there is
    # any credit. None: no limit. All messages of a stream have the same.
    credit_bytes: float | None = None
    acknowledgement_seconds: float = 0.0  # Time from its end until its credit is back

    @property
    def gradients(self) -> tuple[int, ...]:
        """Layers in the message."""
        return self.carries or self.layers

    @property
    def exchange(self) -> GroupExchange:
        """The collective of the replicas."""
        return GroupExchange(
            group="dp",
            collective=self.collective,
            size_bytes=self.size_bytes,
            seconds=self.seconds,
            loads=self.loads,
        )

    @classmethod
    def of(cls, exchange: GroupExchange, **others: Any) -> Self:
        """A message that takes what a collective of the replicas takes."""
        return cls(
            seconds=exchange.seconds,
            size_bytes=exchange.size_bytes,
            collective=exchange.collective,
            loads=exchange.loads,
            **others,
        )


class LayerPass(NamedTuple):
    """Pass over a layer: a whole backward pass, or the half that makes gradients of inputs or weights."""

    work: Work
    layer: int


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """What policies decide about a step."""

    order: PipelineOrder  # Programs of the devices
    messages: tuple[Message, ...] = ()  # Messages about gradients and parameters
    name: str = ""  # What runs beside computation, for people
    sends_block: bool = False  # A device waits until what it sends to another stage has arrived
    gathers_ahead: bool = False  # Exchanges between replicas inside passes run beside computation
    # The optimizer steps everywhere at once; otherwise a block is updated before its next forward pass, when
    # its messages are there
    synchronous_step: bool = True
    # For stages whose last backward pass is not taken from the last block to the first: its passes in order
    backward: Mapping[int, Sequence[LayerPass]] = field(default_factory=dict)
    numbered: bool = True  # Names of tasks end with the number of their iteration
    # Stream and priority of what a pass sends; None: a link for each pair of devices, first come, first served
    send_stream: Callable[[StagePass], tuple[str, int]] | None = None

    @property
    def crosses(self) -> bool:
        """Whether messages overlap with the next iteration."""
        return not self.synchronous_step or any(message.after_step for message in self.messages)

    def check(self, step: Step) -> None:
        """Refuse a plan of another step: other stages or micro-batches, layers or messages that there are not."""
        order, messages = self.order, self.messages
        if (order.stages, order.micro_batches) != (len(step.stages), step.micro_batches):
            raise InputError(
                f"expected an order of {len(step.stages)} stages and {step.micro_batches} micro-batches, found "
                f"{order.stages} and {order.micro_batches}."
            )
        for number, passes in self.backward.items():
            blocks = len(step.stages[number])
            made = sorted(each.layer for each in passes if each.work in (Work.BACKWARD, Work.WEIGHT))
            if made != list(range(blocks)):
                raise InputError(
                    f"expected backward passes that make gradients of each of {blocks} layers once, found {made}."
                )
        credit: dict[tuple[int | None, str], float | None] = {}
        for message in messages:
            stream = message.stage, message.stream
            if credit.setdefault(stream, message.credit_bytes) != message.credit_bytes:
                raise InputError(f"expected one credit for all messages on {message.stream}, found others.")
            own = [*message.layers, *message.carries, *message.needed_by]
            gate = [] if message.after_forward is None else [message.after_forward]
            there = message.stage if message.forward_stage is None else message.forward_stage
            for stage, layers in ((message.stage, own), (there, gate)):
                if stage is None or not layers:
                    continue
                blocks = len(step.stages[stage])
                wrong = [layer for layer in layers if not 0 <= layer < blocks]
                if wrong:
                    raise InputError(
                        f"expected layers 0 to {blocks - 1} in {message.name}, found {wrong[0]}."
                    )
            for number in message.after:
                if not 0 <= number < len(messages):
                    raise InputError(
                        f"expected {message.name} after messages 0 to {len(messages) - 1}, found {number}."
                    )
