"""What replicas that shard overlap with computation: Megatron's distributed optimizer, and ZeRO-3.

With *ZeRO-1* replicas shard the states of the optimizer: buckets of gradients are scattered beside the last backward
passes, and of parameters gathered beside the first forward passes of the next iteration. A bucket has 40 million
weights, or a million for each replica if that is more. Of gradients that take A to sum, A / 2 is left for each half of
the iteration.

With *ZeRO-3* they shard parameters and gradients as well. Parameters are gathered while the layer before computes, at
most two layers at a time, and gradients are scattered beside the backward pass, for every micro-batch.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC 2020); Zhao et
al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (VLDB 2023, section 3.3); Megatron-LM.
"""

from __future__ import annotations

from typing import ClassVar

from coppice.iteration.policies.policy import ConfiguredPolicy


class ShardedPolicy(ConfiguredPolicy):
    """Overlap of what replicas shard; it needs a job."""

    decides: ClassVar[frozenset[str]] = frozenset({"gradients", "weights"})


class DistributedOptimizer(ShardedPolicy):
    """Scatter gradients and gather parameters in buckets, concurrently with passes (Megatron-LM)."""

    name = "megatron"
    about = "buckets scattered in the backward, gathered in the forward pass (Megatron-LM)"
    assumes = "replicas that shard the optimizer (zero1, zero2)"
    stock = "Megatron-LM --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"


class FullyShardedData(ShardedPolicy):
    """Gather parameters two layers ahead, and scatter gradients during the backward pass (FSDP)."""

    name = "fsdp"
    about = "parameters gathered ahead, gradients scattered beside passes (FSDP, VLDB'23)"
    assumes = "replicas that shard parameters (zero3)"
    stock = "torch.distributed.fsdp.fully_shard(model)"
