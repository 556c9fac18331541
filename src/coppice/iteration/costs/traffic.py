"""Collectives of all groups of a training job per iteration, for the bound on running them concurrently.

Counted are activation all-reduces of tensor parallelism, sends between stages, tokens that go to experts, and gradients
and parameters of replicas. A reduce-scatter and an all-gather of the same size are one all-reduce. Left out, so that
the bound stays one: context parallelism, sums in the loss, and the way back from the last stage to the first where
devices have several chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.together.demands import GroupDemand
from coppice.errors import InputError
from coppice.iteration.costs.group import RankGroup
from coppice.iteration.layout import Layout, Shard, kinds_of, repeats_routing, sums_of
from coppice.iteration.transformer import Transformer
from coppice.iteration.workload.nets import LayeredModel

_HALF = 2  # bytes of an element of activations, parameters and gradients


def axis_groups(
    tensor: int = 1, context: int = 1, data: int = 1, pipeline: int = 1, expert: int = 1
) -> dict[str, RankGroup]:
    """Rank groups of each axis: tensor ranks adjacent, then context, data, pipeline.

    Examples:
        >>> axis_groups(tensor=8, data=4, pipeline=2)["pp"]
        RankGroup(ranks=2, stride=32)
    """
    return {
        "tp": RankGroup(tensor, 1),
        "cp": RankGroup(context, tensor),
        "ep": RankGroup(expert, tensor),
        "dp": RankGroup(data, tensor * context),
        "pp": RankGroup(pipeline, tensor * context * data),
    }


def degree_demands(
    degrees: Mapping[str, int], collective: str, size_bytes: int, ranks: int
) -> list[GroupDemand]:
    """A collective of one size in all groups of some axes; pipeline stages send point-to-point.

    Args:
        degrees: ``tp``, ``cp``, ``dp``, ``pp`` and ``ep``.
    """
    names = {"tp": "tensor", "cp": "context", "dp": "data", "pp": "pipeline", "ep": "expert"}
    unknown = next((name for name in degrees if name not in names), None)
    if unknown is not None:
        raise InputError(
            f"expected degrees of {', '.join(names)} without a workload, found {unknown}: leave it out."
        )
    product = 1
    for name, degree in degrees.items():
        product *= degree if name != "ep" else 1
    replicas = degrees.get("dp", 1) * degrees.get("cp", 1)
    if product != ranks or replicas % degrees.get("ep", 1):
        raise InputError(
            f"expected degrees whose product is the {ranks} GPUs, and ep that divides dp x cp, found "
            f"{','.join(f'{name}={degree}' for name, degree in degrees.items())}: change `groups`."
        )
    every = axis_groups(**{names[name]: degree for name, degree in degrees.items()})
    return [
        _demand(name, "send" if name == "pp" else collective, _members(group, ranks), size_bytes)
        for name, group in every.items()
        if group.ranks > 1
    ]


def job_demands(model: Transformer | LayeredModel, layout: Layout) -> list[GroupDemand]:
    """Collectives of each kind of group per iteration.

    Args:
        layout: How it lies on the GPUs.

    Examples:
        >>> from coppice.iteration.models import MODELS
        >>> layout = Layout(tensor=8, pipeline=16, data=4, global_batch=512, sequence_parallel=True)
        >>> [(each.name, each.collective, len(each.groups)) for each in job_demands(MODELS["gpt-175b"], layout)]
        ... # doctest: +NORMALIZE_WHITESPACE
        [('tp', 'all_reduce', 64), ('pp forward', 'send', 32), ('pp backward', 'send', 32), ('dp', 'all_reduce', 128)]
    """
    if isinstance(model, LayeredModel):
        return _layered(model, layout)
    ranks, count = layout.gpus, layout.micro_batches
    groups = axis_groups(
        tensor=layout.tensor,
        context=layout.context,
        data=layout.data,
        pipeline=layout.pipeline,
        expert=layout.expert,
    )
    tokens = layout.micro_batch * model.seq / layout.context
    activations = _HALF * tokens * model.hidden
    kinds = kinds_of(model, layout)
    found = []
    if layout.tensor > 1:
        sums = sum(number * sums_of(view, own) for view, own, number in kinds)
        summed = sums / layout.pipeline * count * activations
        found.append(_demand("tp", "all_reduce", _members(groups["tp"], ranks), summed))
    if layout.pipeline > 1:
        sent = layout.chunks * count * activations / layout.tensor
        stages = _members(groups["pp"], ranks)
        found.append(_demand("pp forward", "send", stages, sent))
        found.append(_demand("pp backward", "send", stages[:, ::-1], sent))
    if layout.expert > 1 and model.experts:
        routed = activations / layout.tensor * model.experts_per_token
        times = sum(number * (4 + 2 * repeats_routing(own)) for view, own, number in kinds if view.experts)
        routed *= times * count / layout.pipeline
        found.append(_demand("ep", "all_to_all", _members(groups["ep"], ranks), routed))
    return found + _gradients(model, layout)


def _gradients(model: Transformer, layout: Layout) -> list[GroupDemand]:
    """Gradients and parameters of data-parallel replicas; those of experts among ranks with the same experts."""
    dense = model.dense_parameters / layout.pipeline / layout.tensor
    experts = model.routed_parameters / layout.pipeline / layout.tensor / layout.expert
    words = model.vocab * model.hidden / layout.tensor
    found = []
    parts = [("dp", RankGroup(layout.replicas, layout.tensor), layout.sharing, dense, words)]
    if experts:
        group = RankGroup(layout.replicas // layout.expert, layout.tensor * layout.expert)
        parts.append(("dp of experts", group, layout.sharing_experts, experts, 0.0))
    for name, group, sharing, parameters, ends in parts:
        if group.ranks == 1:
            continue
        if layout.shard is Shard.ZERO3:  # gathered twice and scattered once for each micro-batch
            size = layout.micro_batches * _HALF * parameters
            across = RankGroup(group.ranks // sharing, group.stride * sharing)
            near = min(sharing, layout.secondary_ranks or sharing)
            demands = (
                ("gradients", "all_reduce", sharing, group.stride, size),  # and the first gather
                ("parameters", "all_gather", near, group.stride, size),
                ("gradients across groups", "all_reduce", across.ranks, across.stride, size / sharing),
            )
            for what, collective, ranks, stride, each in demands:
                if ranks > 1:
                    members = _members(RankGroup(ranks, stride), layout.gpus)
                    found.append(_demand(f"{name} {what}", collective, members, each))
            continue
        members = _members(group, layout.gpus)
        stage = members[:, 0] // (layout.gpus // layout.pipeline)
        at_end = (stage == 0) | (stage == layout.pipeline - 1)
        sizes = [Fraction(round(_HALF * (parameters + ends * end))) for end in at_end.tolist()]
        found.append(GroupDemand(name, "all_reduce", members, sizes))
    return found


def _layered(model: LayeredModel, layout: Layout) -> list[GroupDemand]:
    """Gradient all-reduces of a sequential model's replicas, and all-to-alls of rows of its embedding tables."""
    members = _members(RankGroup(layout.data, 1), layout.gpus)
    copied = model.parameters - model.table_parameters
    found = [_demand("dp", "all_reduce", members, model.gradient_bytes * copied)]
    exchanged = (
        2 * layout.micro_batches * layout.micro_batch * sum(each.exchanged_bytes for each in model.row)
    )
    return found + ([_demand("tables", "all_to_all", members, exchanged)] if exchanged else [])


def _members(group: RankGroup, ranks: int) -> NDArray[np.int64]:
    return np.array(group.members(ranks), dtype=np.int64)


def _demand(name: str, collective: str, members: NDArray[np.int64], size_bytes: float) -> GroupDemand:
    return GroupDemand(name, collective, members, [Fraction(round(size_bytes))] * len(members))
