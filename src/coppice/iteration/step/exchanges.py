"""Collectives of a transformer's layers, between its stages and between its replicas, with their times on a cluster.

* Tensor parallelism sums the activations of a layer over its ranks twice in each pass, and again where the backward
  pass repeats them; with sequence parallelism a sum is a reduce-scatter and an all-gather.
* Context parallelism gathers keys and values before a pass and scatters their gradients after it, or sends blocks of
  them around a ring while attention to the block before is computed (Liu et al., arXiv 2310.01889), sequences split so
  that each rank has as many scores: what takes longer than that is waited for.
* Layers with experts exchange tokens all-to-all between the ranks that share them out: a token goes to its experts and
  comes back, two all-to-alls a pass (GShard; Lepikhin et al., ICLR 2021). Tokens are taken to be dealt evenly, up to
  the capacity of experts. Shared experts, which have all tokens where they are, may be computed meanwhile: their first
  product while tokens go, their second while they come back (DeepSeek-V3, arXiv 2412.19437, section 3.2.1, for the
  idea); what takes longer than that is waited for.
* ZeRO-3 gathers the parameters of a layer in both passes and scatters its gradients (Rajbhandari et al., SC 2020).
  Groups of replicas next to each other may shard, and all groups hold the same (hybrid sharding: HSDP of PyTorch; MiCS,
  Zhang et al., VLDB 2022): shares of gradients are then summed across groups. With a second copy of parameters (hpZ of
  ZeRO++; Wang et al., arXiv 2306.10209) the backward pass gathers it in its group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from coppice.iteration.costs.group import RankGroup
from coppice.iteration.layout import Layout, Recompute, Shard, repeated_sums, repeats_routing
from coppice.iteration.machine import ROUNDS, Cluster
from coppice.iteration.step.plan import BACKWARD, FORWARD, RECOMPUTE, GroupExchange
from coppice.iteration.transformer import Transformer
from coppice.iteration.workload.times import PassSeconds

_HALF = 2  # bytes of a value
_COPIES = 4  # passes over what is gathered into a list of parts and put together from them


def layer_exchanges(
    model: Transformer,
    layout: Layout,
    cluster: Cluster,
    attention: PassSeconds,
    shared: tuple[PassSeconds, PassSeconds],
) -> tuple[GroupExchange, ...]:
    """Collectives inside the passes of a layer, where all are alike, in their order.

    Args:
        layout: How the job lies on the GPUs.
        attention: What attention takes on this GPU, beside which keys and values may be sent.
        shared: What the two products of shared experts take, beside which tokens may be sent to others and come back.
    """
    return (
        *_sums(model, layout, cluster),
        *_keys_and_values(model, layout, cluster, attention),
        *_routing(model, layout, cluster, shared),
        *_parameters(model, layout, cluster),
    )


def exchange_seconds(exchanges: Iterable[GroupExchange], *groups: str) -> float:
    """Time of the collectives of some groups."""
    return sum(each.seconds for each in exchanges if each.group in groups)


def micro_batch_bytes(model: Transformer, layout: Layout) -> float:
    """Bytes of the activations between two layers for a micro-batch, of all tensor-parallel ranks."""
    return _HALF * layout.micro_batch * model.seq / layout.context * model.hidden


def _sums(model: Transformer, layout: Layout, cluster: Cluster) -> list[GroupExchange]:
    """Activation all-reduces of tensor parallelism."""
    if layout.tensor == 1:
        return []
    size, split = micro_batch_bytes(model, layout), layout.sequence_parallel
    whole = cluster.sum_seconds(size, layout.tensor, split=split)
    loads = cluster.link_loads("all_reduce", size, RankGroup(layout.tensor, 1), whole)
    kinds = ("all_gather", "reduce_scatter") if split else ("all_reduce",)
    row = [(when, kind) for when in (FORWARD, BACKWARD) for kind in model.sums * kinds]
    row += [(RECOMPUTE, kind) for kind in repeated_sums(model, layout)]
    return [
        GroupExchange(
            group="tp", collective=kind, size_bytes=size, when=when, seconds=whole / len(kinds), loads=loads
        )
        for when, kind in row
    ]


def _keys_and_values(
    model: Transformer, layout: Layout, cluster: Cluster, attention: PassSeconds
) -> list[GroupExchange]:
    """Keys and values that context-parallel ranks wait for, and their gradients."""
    if layout.context == 1 or not model.share("*"):
        return []
    size = _HALF * layout.micro_batch * model.seq * model.key_value_width / layout.tensor
    group = RankGroup(layout.context, layout.tensor)
    whole = cluster.ring_seconds(size, group.ranks, group.stride, rounds=1)
    if layout.context_ring:
        hops = layout.context - 1
        hidden = [each / layout.context for each in (attention.forward, attention.backward)]
        kinds = [
            (when, "send", hops * max(0.0, times * whole / hops - beside))
            for when, times, beside in ((FORWARD, 1, hidden[0]), (BACKWARD, 2, hidden[1]))
        ]
    else:
        kinds = [(FORWARD, "all_gather", whole), (BACKWARD, "all_gather", whole)]
        kinds.append((BACKWARD, "reduce_scatter", whole))
    if layout.recompute is Recompute.FULL:
        kinds.append((RECOMPUTE, *kinds[0][1:]))
    return [
        GroupExchange(
            group="cp",
            collective=kind,
            size_bytes=size,
            when=when,
            seconds=seconds,
            loads=cluster.link_loads("all_gather", size, group, seconds),
        )
        for when, kind, seconds in kinds
        if seconds
    ]


def _routing(
    model: Transformer, layout: Layout, cluster: Cluster, shared: tuple[PassSeconds, PassSeconds]
) -> list[GroupExchange]:
    """All-to-alls of a layer with experts as far as they are waited for; none where every rank holds all experts."""
    if not model.experts or layout.expert == 1:
        return []
    share = model.routed_share / model.busiest_experts * model.busiest_exchange
    size = micro_batch_bytes(model, layout) * share / layout.tensor
    once = crossing_share(model, layout, cluster.device.box) if layout.deduplicated else None
    seconds = cluster.exchange_seconds(size, layout.expert, layout.tensor, once=once)
    loads = cluster.link_loads(
        "all_to_all", size, RankGroup(layout.expert, layout.tensor), seconds, once=once
    )
    # Gradients go the other way; those of weights may be left for later, and hide nothing.
    beside = {
        FORWARD: [each.forward for each in shared],
        BACKWARD: [each.input_gradient for each in reversed(shared)],
    }
    if repeats_routing(layout):  # and with it shared experts
        beside[RECOMPUTE] = beside[FORWARD]
    return [
        GroupExchange(
            group="ep",
            collective="all_to_all",
            size_bytes=size,
            when=when,
            seconds=max(0.0, seconds - hidden),
            loads=loads,
        )
        for when, both in beside.items()
        for hidden in both
    ]


def crossing_share(model: Transformer, layout: Layout, box: int) -> float:
    """Share of what experts in other boxes take of tokens that is left if a token goes to each box once.

    A token has its experts drawn from all, without replacement, as a router does that is balanced.

    Examples:
        Of 8 experts out of 128 on two boxes 4 are in the other one, to which a token goes once, if at all:

        >>> from coppice.iteration.models import model_named
        >>> layout = Layout(data=16, expert=16, global_batch=16)
        >>> round(crossing_share(model_named("qwen3-30b-a3b"), layout, 8), 4)
        0.2492
    """
    inside = min(layout.expert, max(1, box // layout.tensor))
    boxes = layout.expert // inside
    if not model.experts:
        return 1.0
    others = model.experts - model.experts / boxes
    chosen = range(model.experts_per_token)
    missed = math.prod(max(0.0, others - each) / (model.experts - each) for each in chosen)
    return min(1.0, boxes * (1 - missed) / model.experts_per_token)


def tensors_of(model: Transformer) -> int:
    """Number of parameter tensors of a layer: four matrices and the gains of two norms, each with or without a bias."""
    return 12 if model.biases else 6


def _parameters(model: Transformer, layout: Layout, cluster: Cluster) -> list[GroupExchange]:
    """ZeRO-3: parameters gathered in both passes, and gradients scattered."""
    if layout.shard is not Shard.ZERO3 or layout.replicas == 1:
        return []
    found: list[GroupExchange] = []
    framework, tensor, again = cluster.framework, layout.tensor, layout.recompute is Recompute.FULL
    messages = tensors_of(model) if framework.by_tensor else 4
    dense = _HALF * model.dense_parameters / model.layers / tensor
    routed = _HALF * model.routed_parameters / model.layers / tensor
    parts = [(dense + routed, layout.sharing, layout.replicas, tensor)]
    if layout.expert > 1 and routed:
        few = layout.replicas // layout.expert
        parts = [(dense, layout.sharing, layout.replicas, tensor)]
        parts.append((routed / layout.expert, layout.sharing_experts, few, tensor * layout.expert))

    def add(when: str, collective: str, size: float, group: RankGroup, times: int = 1) -> None:
        if group.ranks == 1:
            return
        once = messages * cluster.ring_seconds(
            size / messages,
            group.ranks,
            group.stride,
            rounds=ROUNDS[collective],
            share=cluster.gradient_share,
        )
        copied = _COPIES * size / cluster.memory_rate if framework.regathers else 0.0
        seconds = times * (once + copied)
        found.append(
            GroupExchange(
                group="dp",
                collective=collective,
                size_bytes=size,
                when=when,
                seconds=seconds,
                loads=cluster.link_loads(collective, size, group, seconds),
            )
        )

    for size, sharing, same, stride in parts:
        group = RankGroup(sharing, stride)
        near = RankGroup(min(sharing, layout.secondary_ranks or sharing), stride)
        add(FORWARD, "all_gather", size, group)
        add(BACKWARD, "all_gather", size, near, 1 + (framework.regathers and again))
        add(BACKWARD, "reduce_scatter", size, group, 1 + framework.regathers)
        add(BACKWARD, "all_reduce", size / sharing, RankGroup(same // sharing, stride * sharing))
    return found


def stage_send(model: Transformer, layout: Layout, cluster: Cluster) -> GroupExchange:
    """Send of a micro-batch's activations to the next stage, a share by every tensor-parallel rank.

    Without sequence parallelism ranks gather the whole after that (scatter and gather of Narayanan et al., SC 2021,
    section 4.1), which counts in the time and not as load.
    """
    size = micro_batch_bytes(model, layout)
    stride = layout.tensor * layout.data * layout.context
    gathered = 0.0 if layout.sequence_parallel else cluster.ring_seconds(size, layout.tensor, 1, rounds=1)
    size /= layout.tensor
    seconds = cluster.send_seconds(size, stride, layout.pipeline) + gathered
    loads = cluster.link_loads("send", size, RankGroup(layout.pipeline, stride), seconds)
    return GroupExchange(group="pp", collective="send", size_bytes=size, seconds=seconds, loads=loads)


def replica_messages(
    layout: Layout, cluster: Cluster, tensor_bytes: float = math.inf
) -> Callable[[str, float], GroupExchange]:
    """What a collective between replicas costs, by its name and the bytes of the whole buffer of a rank.

    Args:
        tensor_bytes: Bytes of a message at most.
    """

    def message(collective: str, size_bytes: float) -> GroupExchange:
        count = max(1.0, size_bytes / tensor_bytes)
        seconds = count * cluster.replicas_seconds(
            size_bytes / count, layout.replicas, layout.sharing, layout.tensor, collective=collective
        )
        ranks = layout.sharing if collective == "all_gather" else layout.replicas
        loads = cluster.link_loads(collective, size_bytes, RankGroup(ranks, layout.tensor), seconds)
        return GroupExchange(
            group="dp", collective=collective, size_bytes=size_bytes, seconds=seconds, loads=loads
        )

    return message
