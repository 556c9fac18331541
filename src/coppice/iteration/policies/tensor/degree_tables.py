"""Tables of a transformer's block times per tensor-parallel degree, for the planner of degrees.

A group of N GPUs runs a micro-batch. With degree d a block lies on d of them, and N / d replicas inside the group share
the micro-batch out: products are as large, sums carry d / N of the activations over fewer ranks, and each GPU holds
N / d times the parameters. Attention and MLP of a layer are a block each, taken to be alike. Times are those of a step
with half of the micro-batch, so that products of halves reach less of the peak; gradient all-reduces between replicas
inside the group are left out, as in the source. Bytes: what a block keeps of the micro-batch, and 16 for each
parameter, states of mixed-precision Adam included (Rajbhandari et al., SC 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coppice.errors import InputError
from coppice.iteration.machine import Cluster
from coppice.iteration.policies.tensor.degrees import DegreeProblem
from coppice.iteration.policies.tensor.policy import tensor_exchanges
from coppice.iteration.step.block import FORWARD, LayerBlock
from coppice.iteration.step.blocks import transformer_blocks
from coppice.iteration.transformer import Layout, Transformer

_STATES = 16  # bytes of a parameter, its gradient and the states of Adam


def degree_problem(
    model: Transformer, layout: Layout, cluster: Cluster, degrees: Sequence[int]
) -> DegreeProblem:
    """Blocks of a transformer on a tensor-parallel group, with the times of each degree.

    Args:
        layout: How the job lies on the GPUs; ``tensor`` is the size of the group.

    Examples:
        >>> from coppice.iteration.cluster import cluster_of
        >>> from coppice.iteration.models import model_named
        >>> from coppice.topology.presets import preset
        >>> from coppice.iteration.transformer import Recompute
        >>> layout = Layout(tensor=8, micro_batch=16, global_batch=16, recompute=Recompute.FULL)
        >>> cluster = cluster_of(preset("dgx-a100"))
        >>> plan = degree_problem(model_named("gpt-18b"), layout, cluster, (2, 4, 8)).solve()
        >>> {degree: plan.degrees.count(degree) for degree in (2, 4, 8)}
        {2: 0, 4: 67, 8: 13}
    """
    tables = [_halved(model, layout, cluster, degree) for degree in degrees]
    blocks = 2 * model.layers  # two blocks a layer, of which each runs in halves

    def rows(column: Sequence[float]) -> list[list[float]]:
        return [list(column)] * blocks

    sums = [
        sum(each.seconds for each in tensor_exchanges(half, FORWARD)) / 2 if degree > 1 else 0.0
        for half, degree in zip(tables, degrees, strict=True)
    ]
    sizes = [round((2 * half.activation_bytes + _STATES * half.parameters) / 2) for half in tables]
    return DegreeProblem(
        degrees=degrees,
        forward=rows([half.forward / 2 for half in tables]),
        backward=rows([(half.input_gradient + half.weight_gradient) / 2 for half in tables]),
        recompute=rows([half.recompute / 2 for half in tables]),
        sums=rows(sums),
        memory=[sizes] * blocks,
        device_bytes=int(cluster.device.memory_bytes),
    )


def _halved(model: Transformer, layout: Layout, cluster: Cluster, degree: int) -> LayerBlock:
    """Layer on half of the micro-batch of a replica inside the group."""
    if degree < 1 or layout.tensor % degree:
        raise InputError(f"expected degrees that divide a group of {layout.tensor} GPUs, found {degree}.")
    sequences, left = divmod(layout.micro_batch * degree, 2 * layout.tensor)
    if left or not sequences:
        needed = f"a multiple of {2 * layout.tensor // degree} sequences for degree {degree}"
        raise InputError(f"expected a micro-batch of {needed}, found {layout.micro_batch}.")
    replicas = layout.data * layout.tensor // degree
    own = replace(
        layout, tensor=degree, data=replicas, micro_batch=sequences, global_batch=sequences * replicas
    )
    return transformer_blocks(model, own, cluster)[1]
