"""A step rank by rank: what one GPU of each kind does, done by all of them, on streams and links of their own.

Symmetric ranks are folded where a step is simulated. This is the other way round, for whoever doubts it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.iteration.step.passes import StepGraph
from coppice.iteration.tasks import TaskGraph
from coppice.rows import offsets


def unfolded(made: StepGraph, groups: Mapping[str, NDArray[np.int64]], box: int) -> TaskGraph:
    """The tasks of all ranks.

    Every rank has its own streams and NVLinks; the NICs of a box are one link that its ranks share. A rank enters an
    exchange of its group when all ranks of the group have come so far.

    Args:
        made: The tasks of one rank of each pipeline device.
        groups: For each kind of group, the number of the group of every rank of a pipeline device.
        box: Ranks of a box.

    Returns:
        The tasks; that of rank r of a device is ``task * ranks + r``.

    Raises:
        InputError: If a box has ranks of several pipeline devices.
    """
    graph = made.graph
    ranks = len(next(iter(groups.values())))
    if ranks % box:
        raise InputError(f"expected pipeline devices of whole boxes of {box} ranks, found {ranks} ranks.")
    every = np.arange(ranks, dtype=np.int64)
    task = np.repeat(np.arange(len(graph), dtype=np.int64), np.diff(graph.after_start))
    after = graph.after.astype(np.int64)
    kind = np.tile(made.kind, made.count)
    columns = [((task[:, None] * ranks + every).ravel(), (after[:, None] * ranks + every).ravel())]
    for name, group in groups.items():
        own = [k for k, each in enumerate(made.kinds) if each.group == name and each.part != "send"]
        meets = np.isin(kind[task], own)
        first, second = np.nonzero((group[:, None] == group[None, :]) & (every[:, None] != every[None, :]))
        columns.append(
            ((task[meets][:, None] * ranks + first).ravel(), (after[meets][:, None] * ranks + second).ravel())
        )
    own_task, own_after = (np.concatenate([each[k] for each in columns]) for k in (0, 1))
    order = np.argsort(own_task, kind="stable")
    loads = np.diff(graph.load_start)
    on = np.repeat(np.arange(len(graph), dtype=np.int64), loads)
    nic = np.asarray([name.startswith("NIC") for name in graph.links], dtype=np.bool_)[graph.load_link]
    # Loads task by task, rank by rank, link by link.
    who = (on[:, None] * ranks + every).ravel()
    link = graph.load_link.astype(np.int64)[:, None] * ranks + np.where(
        nic[:, None], every // box * box, every
    )
    share = np.where(nic, graph.load / box, graph.load)
    by_task = np.argsort(who, kind="stable")
    return TaskGraph(
        names=tuple(f"{name} of rank {rank}" for name in graph.names for rank in range(ranks)),
        kinds=np.repeat(graph.kinds, ranks),
        kind_names=graph.kind_names,
        streams=tuple(f"{name} of rank {rank}" for name in graph.streams for rank in range(ranks)),
        stream=np.where(graph.stream[:, None] < 0, -1, graph.stream[:, None] * ranks + every)
        .ravel()
        .astype(np.int32),
        seconds=np.repeat(graph.seconds, ranks),
        priority=np.repeat(graph.priority, ranks),
        after_start=offsets(np.bincount(own_task, minlength=len(graph) * ranks)),
        after=own_after[order].astype(np.int32),
        links=tuple(f"{name} of rank {rank}" for name in graph.links for rank in range(ranks)),
        load_start=offsets(np.repeat(loads, ranks)),
        load_link=link.ravel()[by_task].astype(np.int32),
        load=np.repeat(share, ranks)[by_task],
    )
