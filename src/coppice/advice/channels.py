"""Channels of NCCL: what a limit on them costs a collective, and what they take from overlapped computation.

A channel is a thread block of NCCL's kernel and occupies a multiprocessor, which computes nothing else meanwhile. The
cost model of NCCL does not know the limits that a user sets: it picks as if there were none. Fewer channels move less
in proportion, unless it is links that limit all of them: a channel carries what the simulator's profile of the protocol
says (:func:`coppice.simulation.channels.transport_profile`), which NCCL states for a channel of its search: two of its
kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coppice.collectives import Collective
from coppice.selection.nccl.costs import CostCell, NcclCommunicator
from coppice.selection.nccl.kernel import kernel_of
from coppice.simulation.channels import transport_profile
from coppice.topology.model import Topology

LIMIT = "NCCL_MAX_CTAS"
"""Variable that limits the channels of all communicators."""

LIMITS = (LIMIT, "NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS")
"""It and its former names."""

_REPEATED = 2
"""Channels of a kernel for one of the search; four where these are few and faster than two could carry."""

BUDGETS = (1, 2, 4, 6, 8, 12, 16, 24, 32)
"""Limits that are looked at."""


def most_channels(environment: Mapping[str, str]) -> int | None:
    """Limit on channels that variables set, None where they set none.

    Examples:
        >>> most_channels({"NCCL_MAX_NCHANNELS": "8", "NCCL_MAX_CTAS": "4"}), most_channels({"NCCL_MAX_CTAS": "all"})
        (4, None)
    """
    found = [int(text) for name in LIMITS if (text := environment.get(name, "").strip()).isdigit()]
    return min((each for each in found if each > 0), default=None)


def channels_of_call(
    comm: NcclCommunicator, collective: Collective, cell: CostCell, size_bytes: int, most: int | None
) -> int:
    """Channels that a call takes, under a limit or None.

    Args:
        size_bytes: M (see :mod:`coppice.collectives`).
    """
    channels = kernel_of(comm, collective, cell.algorithm, cell.protocol, size_bytes).channels
    return channels if most is None else min(channels, most)


def limited(
    topology: Topology,
    comm: NcclCommunicator,
    collective: Collective,
    cell: CostCell,
    size_bytes: int,
    most: int,
) -> CostCell:
    """The cell with the time that it takes under a limit on channels, and the one by which NCCL still picks.

    Args:
        topology: Where the communicator is.
        size_bytes: M (see :mod:`coppice.collectives`).
        most: Channels that a call takes at most.

    Examples:
        A ring over one NIC of 50 GB/s needs three of its four channels.

        >>> from coppice.topology.operations import subset
        >>> from coppice.topology.presets import preset
        >>> from coppice.advice.nccl import NcclState
        >>> pair = subset(preset("dgx-h100", boxes=2), [0, 8])
        >>> comm, _ = NcclState(topology=pair).communicator()
        >>> ring = CostCell(algorithm="Ring", protocol="Simple", time_us=1100.0, latency_us=100.0, gb_per_s=48.0)
        >>> found = [limited(pair, comm, Collective.ALL_REDUCE, ring, 48 * 10**6, most) for most in (3, 1)]
        >>> comm.channels, [round(each.time_us) for each in found], found[1].model_us
        (4, [1100, 2419], 1100.0)
    """
    if cell.time_us is None:
        return cell
    all_of_them = channels_of_call(comm, collective, cell, size_bytes, None)
    if most >= all_of_them:
        return cell
    share = most / all_of_them
    if cell.algorithm in ("Ring", "Tree") and cell.protocol != "LL":
        profile = transport_profile(
            topology, protocol_name=cell.protocol, channels=1, generation=comm.generation
        )
        sent = cell.gb_per_s / _algorithm_share(collective, cell.algorithm, comm.ranks)
        each = float(profile.gpu_gb_per_s or 0) / _REPEATED
        share = max(share, most * each / sent)
    if share >= 1:
        return cell
    rate = cell.gb_per_s * share
    slowed = cell.latency_us + size_bytes / (1000 * rate)
    return replace(
        cell,
        time_us=max(cell.time_us, slowed),
        gb_per_s=rate,
        promised_us=cell.model_us,
        terms=(*cell.terms, f"{most} of {all_of_them} channels carry {rate:.6g} GB/s"),
    )


def _algorithm_share(collective: Collective, algorithm: str, ranks: int) -> float:
    """Algorithm bandwidth over what a GPU sends."""
    if algorithm == "Tree":
        return 0.5
    if collective is Collective.ALL_REDUCE:
        return ranks / (2 * (ranks - 1))
    return ranks / (ranks - 1) if collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER) else 1.0


def contention_of(channels: int, processors: int) -> float:
    """Share of their time by which computation and an overlapping exchange take longer.

    What is left of a device with S processors next to k channels computes (S - k) / S of what it did.

    Examples:
        >>> contention_of(33, 132), contention_of(4, 0)
        (0.3333333333333333, 0.0)
    """
    return channels / (processors - channels) if processors > channels else 0.0
