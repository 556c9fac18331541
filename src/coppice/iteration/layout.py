"""Layout of a job on GPUs: parallel degrees, what replicas shard, and what backward passes compute again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from coppice.errors import InputError
from coppice.text import suggestion

_COUNTS = (
    *("tensor", "pipeline", "data", "context", "expert", "chunks", "micro_batch", "global_batch"),
    "recompute_every",
)
MODULES = ("core_attn", "mlp", "layernorm", "moe", "moe_act", "shared_experts", "mla_up_proj")
"""Modules that selective recomputation computes again, as Megatron-LM's `--recompute-modules` calls them."""


class Recompute(StrEnum):
    """Activation recomputation in the backward pass."""

    NONE = "none"
    SELECTIVE = "selective"
    """Scores, softmax and context of attention (Korthikanti et al., MLSys 2023)."""
    OPERATORS = "operators"
    """What is not costly to keep: every second product, norms and activations (torchtitan)."""
    FULL = "full"
    """The whole forward pass of every layer."""


class Shard(StrEnum):
    """What data-parallel replicas shard (Rajbhandari et al., SC 2020); `fsdp` is ZeRO-3.

    Examples:
        >>> Shard("fsdp") is Shard.ZERO3, Shard("zero0") is Shard.NONE
        (True, True)
    """

    NONE = "none"
    ZERO1 = "zero1"
    """States of the optimizer."""
    ZERO2 = "zero2"
    """Gradients as well."""
    ZERO3 = "zero3"
    """Parameters as well: they are gathered layer by layer."""

    @classmethod
    def _missing_(cls, value: object) -> Shard | None:
        return {"fsdp": cls.ZERO3, "zero0": cls.NONE}.get(str(value))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Parallel degrees of a job; ranks are ordered by tensor, then context, data, and pipeline.

    Raises:
        InputError: If a number is out of range, or the batch is no multiple of the micro-batches of all replicas.
    """

    tensor: int = 1  # Degree of tensor parallelism
    pipeline: int = 1  # Stages in a row
    data: int = 1  # Replicas
    context: int = 1  # Ranks that shard the tokens of a sequence
    # Blocks of keys and values go around a ring of these while attention is computed; otherwise they are gathered
    context_ring: bool = False
    expert: int = 1  # Ranks that shard the experts of a layer, out of replicas and ranks of context
    chunks: int = 1  # Chunks of the model on each pipeline device
    micro_batch: int = 1  # Sequences of a micro-batch
    global_batch: int = 1  # Sequences of an iteration, over all replicas
    recompute: Recompute = Recompute.NONE  # What is computed again
    recompute_every: int = 1  # In every so many layers
    recompute_layers: int = 0  # In the first so many layers of each stage; 0: in all
    # Modules of a layer that selective recomputation computes again; none: scores, softmax and context of attention
    recompute_modules: tuple[str, ...] = ()
    sequence_parallel: bool = False  # What tensor parallelism replicates is sharded along the sequence
    # Scores stay on the chip (FlashAttention), so that none are kept or computed again
    fused_attention: bool = False
    shard: Shard = Shard.NONE  # What replicas shard
    # Replicas next to each other that shard it, of which all such groups hold the same (hybrid sharding); 0: all do
    shard_ranks: int = 0
    # Replicas that shard a second copy of parameters, which backward passes gather (hpZ); 0: there is none
    secondary_ranks: int = 0
    # Tokens cross to a box once for all experts that they have there, and fan out inside
    deduplicated: bool = False

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise InputError(f"expected `{name}` of 1 or more, found {getattr(self, name)}.")
        for name in ("recompute_layers", "shard_ranks", "secondary_ranks"):
            if getattr(self, name) < 0:
                raise InputError(f"expected `{name}` of 0 or more, found {getattr(self, name)}.")
        self._check_recomputation()
        if self.global_batch % (self.micro_batch * self.data):
            raise InputError(
                f"expected a global batch that is a multiple of {self.micro_batch} sequences x {self.data} replicas, "
                f"found {self.global_batch}."
            )
        if self.replicas % self.expert:
            raise InputError(
                f"expected ep that divides {self.replicas} replicas (dp x cp), found {self.expert}."
            )
        self._check_shards()

    def _check_recomputation(self) -> None:
        """Check what is computed again, and where."""
        where = (
            "recompute_every"
            if self.recompute_every > 1
            else "recompute_layers" * (self.recompute_layers > 0)
        )
        if where and self.recompute is Recompute.NONE:
            raise InputError(
                f"expected what is computed again beside `{where}`, found `recompute` none: give it, or leave {where} "
                "out."
            )
        if self.recompute_every > 1 and self.recompute_layers:
            raise InputError(
                "expected every so many layers or the first of a stage, found `recompute_every` "
                f"{self.recompute_every} and `recompute_layers` {self.recompute_layers}: leave one out."
            )
        if self.recompute_modules and self.recompute is not Recompute.SELECTIVE:
            raise InputError(
                f"expected `recompute` selective beside `recompute_modules`, found {self.recompute.value}: change one."
            )
        for each in self.recompute_modules:
            if each not in MODULES:
                raise InputError(
                    f"expected `recompute_modules` out of {', '.join(MODULES)}, found {each!r}: "
                    f"{suggestion(each, MODULES)}"
                )

    def _check_shards(self) -> None:
        """Check groups of replicas that shard."""
        for name in ("shard_ranks", "secondary_ranks"):
            group = getattr(self, name)
            if not group:
                continue
            if self.replicas % group:
                raise InputError(
                    f"expected `{name}` that divides {self.replicas} replicas (dp x cp), found {group}."
                )
            if self.shard is Shard.NONE:
                raise InputError(
                    f"expected something that replicas shard beside `{name}` {group}, found `shard` none: give it, or "
                    f"leave {name} out."
                )
        if self.shard_ranks and self.shard_ranks % self.expert and self.expert % self.shard_ranks:
            raise InputError(
                f"expected `shard_ranks` and ep of which one divides the other, found {self.shard_ranks} and "
                f"{self.expert}."
            )
        if self.secondary_ranks and self.shard is not Shard.ZERO3:
            raise InputError(
                f"expected `shard` zero3 beside `secondary_ranks`, found {self.shard.value}: backward passes gather "
                "parameters there alone."
            )
        if self.secondary_ranks > self.sharing:
            raise InputError(
                f"expected `secondary_ranks` of at most the {self.sharing} replicas that shard, found "
                f"{self.secondary_ranks}."
            )

    @property
    def sharing(self) -> int:
        """Replicas that shard states together; other groups of them hold the same."""
        return self.shard_ranks or self.replicas

    @property
    def sharing_experts(self) -> int:
        """Of the replicas with the same experts, those that shard what is kept for them."""
        return max(1, self.sharing // self.expert)

    @property
    def replicas(self) -> int:
        """Ranks that hold the same weights of layers without experts: data-parallel and context-parallel ones."""
        return self.data * self.context

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def micro_batches(self) -> int:
        """Micro-batches per replica and iteration."""
        return self.global_batch // (self.micro_batch * self.data)


def dealt_layers(layers: int, stages: int, head: float | None = None, layer: float = 1.0) -> list[int]:
    """Layers of each stage.

    Where stages do not divide the layers, the last ones before the head, and the first with the embedding, have fewer.

    Args:
        head: Seconds of the output layer, with which the last stage is to be no slower than the others; None: stages
            get as many layers each.
        layer: Seconds of a layer.

    Examples:
        >>> dealt_layers(12, 4), dealt_layers(10, 4), dealt_layers(61, 16)[-3:]
        ([3, 3, 3, 3], [2, 3, 3, 2], [4, 3, 3])
        >>> dealt_layers(32, 4, head=4.0)
        [9, 9, 9, 5]
    """
    if stages == 1:
        return [layers]
    last = layers // stages
    if head is not None:
        last = min(
            range(layers - stages + 2),
            key=lambda few: max(few * layer + head, -(-(layers - few) // (stages - 1)) * layer),
        )
    elif not layers % stages:
        return [last] * stages
    each, more = divmod(layers - last, stages - 1)
    # The first stage has the embedding, so that it is the last to get one more.
    return [each, *(each + (place <= more) for place in range(1, stages - 1)), last]
