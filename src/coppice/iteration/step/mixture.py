"""What experts add to the block of a layer: all-to-alls between the ranks that share them out, and their weights.

A token goes to its experts and comes back: two all-to-alls a pass (GShard; Lepikhin et al., ICLR 2021). Tokens are
taken to be dealt evenly, up to the capacity of experts.
"""

from __future__ import annotations

from coppice.iteration.estimate import Cluster, routing_seconds
from coppice.iteration.step.block import BACKWARD, FORWARD, RECOMPUTE, GroupExchange
from coppice.iteration.transformer import Layout, Recompute, Transformer

_HALF = 2  # bytes of a value
_LARGE = 1e10  # bytes of a message beside which waiting does not count


def expert_exchanges(model: Transformer, layout: Layout, cluster: Cluster) -> list[GroupExchange]:
    """The all-to-alls of a layer with experts; none where every rank has all of them.

    Args:
        layout: How the job lies on the GPUs.
    """
    if not model.experts or layout.expert == 1:
        return []
    tokens = layout.micro_batch * model.seq / layout.context
    size = _HALF * tokens * model.routed_share * model.hidden / layout.tensor
    seconds = routing_seconds(model, layout, cluster)
    device = cluster.device
    inside = min(layout.expert, max(1, device.box // layout.tensor))
    near = size * (inside - 1) / layout.expert / device.link_bytes_per_second / seconds
    far = (
        size * (layout.expert - inside) / layout.expert * device.box / cluster.nic_bytes_per_second / seconds
    )
    loads = {name: min(1.0, share) for name, share in (("NVLink", near), ("NIC", far)) if share > 0}
    passes = [FORWARD, BACKWARD, *([RECOMPUTE] if layout.recompute is Recompute.FULL else [])]
    return [
        GroupExchange(
            group="ep", collective="all_to_all", size_bytes=size, when=when, seconds=seconds, loads=loads
        )
        for when in passes
        for _ in range(2)
    ]


def expert_weights(model: Transformer, layout: Layout, cluster: Cluster) -> tuple[float, float]:
    """Weights of experts on a GPU for each layer that has them: as they are, and as messages between replicas count.

    Only every `ep`-th replica has the same experts, and these are further apart: their bytes count as many as take a
    ring of all replicas as long as they take a ring of theirs.

    Args:
        layout: How the job lies on the GPUs.
    """
    if not model.experts:
        return 0.0, 0.0
    own = model.experts * model.expert_parameters / layout.tensor / layout.expert
    if layout.replicas == 1 or layout.expert == 1:
        return own, own
    groups = (
        (layout.replicas // layout.expert, layout.tensor * layout.expert),
        (layout.replicas, layout.tensor),
    )
    share = cluster.calibration.gradient_share
    few, all_ = (
        cluster.ring_seconds(_LARGE, ranks, stride, share=share) - cluster.ring_seconds(0.0, ranks, stride)
        for ranks, stride in groups
    )
    return own, own * few / all_
