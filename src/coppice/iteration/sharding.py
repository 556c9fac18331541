"""What replicas exchange: gradient all-reduces, and parameters and gradients that they shard (ZeRO, FSDP).

Groups of replicas next to each other may shard, and all groups hold the same (hybrid sharding: HSDP of PyTorch; MiCS,
Zhang et al., VLDB 2022): parameters are gathered and gradients scattered in a group, whose shares of gradients are then
summed across groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from coppice.iteration.costs.group import RankGroup
from coppice.iteration.machine import Cluster
from coppice.iteration.transformer import Layout, Recompute, Shard, Transformer

_HALF = 2  # bytes of a parameter, and of its gradient
_COPIES = 4  # passes over what is gathered into a list of parts and put together from them


def tensors_of(model: Transformer) -> int:
    """Number of parameter tensors of a layer: four matrices and the gains of two norms, each with or without a bias."""
    return 12 if model.biases else 6


@dataclass(frozen=True, kw_only=True)
class ShardedExchange:
    """An exchange of replicas for a layer whose parameters they shard."""

    backward: bool  # In the backward pass
    collective: str  # `all_gather`, `reduce_scatter` or `all_reduce`
    size_bytes: float  # Bytes of the whole buffer of a rank
    group: RankGroup  # Whose ranks take part
    seconds: float  # Time that it takes


def sharded_exchanges(model: Transformer, layout: Layout, cluster: Cluster) -> list[ShardedExchange]:
    """ZeRO-3 of a layer, where all are alike: parameters gathered in both passes, and gradients scattered.

    With groups of replicas that shard, which all hold the same, shares of gradients are summed across groups after
    that. With a second copy of parameters (hpZ of ZeRO++; Wang et al., arXiv 2306.10209) the backward pass gathers it
    in its group.
    """
    if layout.shard is not Shard.ZERO3 or layout.replicas == 1:
        return []
    found: list[ShardedExchange] = []
    framework, tensor, again = cluster.framework, layout.tensor, layout.recompute is Recompute.FULL
    messages = tensors_of(model) if framework.by_tensor else 4
    dense = _HALF * model.dense_parameters / model.layers / tensor
    routed = _HALF * model.routed_parameters / model.layers / tensor
    parts = [(dense + routed, layout.sharing, layout.replicas, tensor)]
    if layout.expert > 1 and routed:
        few = layout.replicas // layout.expert
        parts = [(dense, layout.sharing, layout.replicas, tensor)]
        parts.append((routed / layout.expert, layout.sharing_experts, few, tensor * layout.expert))

    def add(collective: str, size: float, group: RankGroup, times: int, *, backward: bool) -> None:
        if group.ranks == 1:
            return
        rounds = 2 if collective == "all_reduce" else 1
        once = messages * cluster.ring_seconds(
            size / messages, group.ranks, group.stride, rounds=rounds, share=cluster.gradient_share
        )
        copied = _COPIES * size / cluster.memory_rate if framework.regathers else 0.0
        found.append(
            ShardedExchange(
                backward=backward,
                collective=collective,
                size_bytes=size,
                group=group,
                seconds=times * (once + copied),
            )
        )

    for size, sharing, same, stride in parts:
        group = RankGroup(sharing, stride)
        near = RankGroup(min(sharing, layout.secondary_ranks or sharing), stride)
        add("all_gather", size, group, 1, backward=False)
        add("all_gather", size, near, 1 + (framework.regathers and again), backward=True)
        add("reduce_scatter", size, group, 1 + framework.regathers, backward=True)
        across = RankGroup(same // sharing, stride * sharing)
        add("all_reduce", size / sharing, across, 1, backward=True)
    return found


def gathering_seconds(model: Transformer, layout: Layout, cluster: Cluster) -> float:
    """Exposed ZeRO-3 time of a layer: parameter all-gather and gradient reduce-scatter."""
    return sum(each.seconds for each in sharded_exchanges(model, layout, cluster))
