"""Bandwidth bounds of the topology for each measured collective, shape and size."""

from __future__ import annotations

from collections.abc import Iterable

from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.topology.model import Topology
from coppice.tuning.records import CallShape, TimedRun

__all__ = ["bounds_us"]


def bounds_us(runs: Iterable[TimedRun], topology: Topology) -> dict[tuple[CallShape, int], float]:
    """Least times of the measured shapes that use all ranks of a topology.

    Args:
        runs: The measurements.
        topology: Where they were made.

    Returns:
        Microseconds by shape and size; shapes of fewer ranks are left out, since nothing says which ranks they are.

    Raises:
        InputError: If no shape has as many ranks as the topology.

    Examples:
        >>> from coppice.tuning.records import LibraryChoice
        >>> from coppice.topology.presets import preset
        >>> run = TimedRun(library="mpich", collective=Collective.ALL_GATHER, nodes=1, ranks=4, size_bytes=8_000_000,
        ...           choice=LibraryChoice("ring"), default_us=(1.0,), time_us=(1.0,))
        >>> bounds_us([run], preset("ring", gpus=4, gb_per_s=1))
        {(CallShape(collective=<Collective.ALL_GATHER: 'all_gather'>, nodes=1, ranks=4), 8000000): 3000.0}
    """
    found: dict[tuple[CallShape, int], float] = {}
    rates: dict[Collective, float] = {}
    counts = set()
    for run in runs:
        counts.add(run.ranks)
        if run.ranks != topology.num_ranks or run.collective is Collective.BARRIER:
            continue
        if run.collective not in rates:
            root = 0 if run.collective.rooted else None
            limit = bound(Problem(topology=topology, collective=run.collective, root=root))
            rates[run.collective] = float(limit.algbw_gb_per_s)
        if rates[run.collective]:
            found[run.shape, run.size_bytes] = run.size_bytes / rates[run.collective] / 1e3
    if topology.num_ranks not in counts:
        words = ", ".join(map(str, sorted(counts)))
        msg = f"expected the topology of a measured communicator ({words} ranks), found {topology.num_ranks} ranks."
        raise InputError(msg)
    return found
