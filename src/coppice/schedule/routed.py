"""Default routes for the transfers of a schedule that name no path."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coppice.schedule.schedule import Schedule
from coppice.topology.routing import Router

__all__ = ["routed"]


def routed(schedule: Schedule, *, relay_gpus: bool = False, seed: int = 0) -> Schedule:
    """The schedule with a path for every transfer; the same schedule where all have one.

    A transfer that names no path takes the topology's default route. All that two ranks exchange in steps takes one
    route, so that what is sent in a step stays one message. Without steps, the chunks of a slot count as channels of
    their pair of ranks, and spread over paths that are equally good.

    Args:
        schedule: A schedule with well-formed columns.
        relay_gpus: Where no path of switches and NICs exists, other ranks may pass data on.
        seed: Another choice among equally good routes, as another hash of the flows would make; 0 is the default.

    Raises:
        UnreachableError: If no such path leads from a sender to its receiver.
    """
    open_rows = np.flatnonzero(schedule.path < 0)
    if not len(open_rows):
        return schedule
    first_of_slot = np.searchsorted(schedule.chunk_slot, schedule.chunk_slot)
    channel = np.arange(schedule.num_chunks) - first_of_slot
    channel_of = np.where(schedule.step[open_rows] < 0, channel[schedule.chunk[open_rows]], 0)
    # Sorted by receiver, as the router searches once for each. Pairs are numbered, so that no key leaves 64 bits.
    ranks, channels = schedule.topology.num_ranks, int(channel.max()) + 1
    pair = schedule.dst[open_rows].astype(np.int64) * ranks + schedule.src[open_rows]
    pairs, pair_of = np.unique(pair, return_inverse=True)
    keys, row_of = np.unique(pair_of * channels + channel_of, return_inverse=True)
    receiver, sender = np.divmod(pairs[keys // channels], ranks)
    router = Router(schedule.topology, relay_gpus=relay_gpus, seed=seed)
    start, nodes = router.paths(sender, receiver, keys % channels)
    path = schedule.path.copy()
    path[open_rows] = len(schedule.path_start) - 1 + row_of.reshape(-1)
    return replace(
        schedule,
        path=path,
        path_start=np.concatenate([schedule.path_start, schedule.path_start[-1] + start[1:]]),
        path_nodes=np.concatenate([schedule.path_nodes, nodes]),
    )
