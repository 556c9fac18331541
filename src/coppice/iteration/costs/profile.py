"""Collective costs as a profile for torch's overlap scheduler.

The file is a trace of ``torch.profiler`` as far as ``torch._inductor.fx_passes.profile_guided_estimation`` reads it
(torch 2.13): kernels with the collective, its ranks, the type of its elements, and the elements of its output. Between
sizes torch interpolates logarithms, below and beyond them it goes on in a straight line, so that sizes go from one
element to more than a GPU has, each twice the one before. A group stands for all of as many ranks at the same distance.
"""

from __future__ import annotations

from typing import Any

from coppice.iteration.costs.group import CollectiveCosts, RankGroup
from coppice.iteration.layout import Layout

PROFILED = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
"""Collectives whose times torch looks up."""
_TYPES = {"Float": 4, "BFloat16": 2, "Half": 2, "Long": 8}
_SIZES = tuple(2**power for power in range(34))


def groups_of(layout: Layout) -> dict[RankGroup, bool]:
    """Rank groups of a layout, and whether they reduce gradients.

    Examples:
        >>> groups_of(Layout(tensor=8, pipeline=2, data=4, global_batch=8))
        {RankGroup(ranks=8, stride=1): False, RankGroup(ranks=4, stride=8): True}
    """
    expert = layout.expert
    found = {
        RankGroup(layout.tensor, 1): False,
        RankGroup(layout.context, layout.tensor): False,
        RankGroup(expert, layout.tensor): False,
        RankGroup(layout.data, layout.tensor * layout.context): True,
        RankGroup(layout.replicas, layout.tensor): True,
        RankGroup(max(1, layout.replicas // expert), layout.tensor * expert): True,
    }
    return {group: gradients for group, gradients in found.items() if group.ranks > 1}


def collective_seconds(
    costs: CollectiveCosts, collective: str, out_bytes: float, group: RankGroup, *, gradients: bool = False
) -> float:
    """Time of a collective by output bytes per rank.

    Args:
        collective: One of :data:`PROFILED`.
        out_bytes: Bytes of the output; of a reduce-scatter they are a rank's share of M.
        gradients: As :meth:`coppice.iteration.costs.group.CollectiveCosts.cost` takes it.
    """
    whole = out_bytes * (group.ranks if collective == "reduce_scatter" else 1)
    return costs.cost(collective, whole, group, gradients=gradients and collective != "all_to_all").seconds


def torch_profile(costs: CollectiveCosts, layout: Layout) -> dict[str, Any]:
    """Profile as JSON values.

    Args:
        layout: How a job lies on the GPUs.

    Examples:
        >>> from coppice.iteration.machine import cluster_of
        >>> from coppice.iteration.costs.calibrated import costs_of
        >>> from coppice.topology.presets import preset
        >>> made = torch_profile(costs_of(cluster_of(preset("dgx-a100"))), Layout(tensor=8))
        >>> made["traceEvents"][24]["args"]["Out msg nelems"], round(made["traceEvents"][24]["dur"])
        (16777216, 333)
    """
    events = []
    for group, gradients in groups_of(layout).items():
        ranks = str([place * group.stride for place in range(group.ranks)])
        for collective in PROFILED:
            seconds = {
                size: collective_seconds(costs, collective, size, group, gradients=gradients)
                for size in (*_SIZES, *(_SIZES[-1] * factor for factor in (2, 4, 8)))
            }
            events += [
                {
                    "cat": "kernel",
                    "name": collective,
                    "ts": 0.0,
                    "dur": 1e6 * seconds[size * width],
                    "args": {
                        "Collective name": collective,
                        "dtype": name,
                        "Out msg nelems": size,
                        "Group size": group.ranks,
                        "Process Group Ranks": ranks,
                    },
                }
                for name, width in _TYPES.items()
                for size in _SIZES
            ]
    return {"schemaVersion": 1, "traceEvents": events}
