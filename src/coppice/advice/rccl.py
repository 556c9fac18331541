"""What RCCL picks on a known board, by its own cost model and limits: what there is before a log is at hand."""

from __future__ import annotations

from collections.abc import Sequence

from coppice.advice.rows import AdviceRow
from coppice.collectives import Collective
from coppice.selection import select
from coppice.selection.selection import box_sizes
from coppice.topology.model import Topology


def rccl_rows(topology: Topology, collectives: Sequence[Collective], sizes: Sequence[int]) -> list[AdviceRow]:
    """Rows of RCCL's picks. Its model is not trusted with what would be better: that takes a log or times.

    Raises:
        InputError: If RCCL does not know the GPUs or the board.
    """
    found = []
    for collective in collectives:
        for size in sizes:
            pick = select("rccl", collective, size, topology=topology, root=0 if collective.rooted else None)
            cell = pick.cell
            time_us = None if cell is None else cell.time_us
            others = [each for each in pick.cells if each is not cell and each.time_us is not None]
            rival = min(others, key=lambda each: each.model_us, default=None)
            found.append(
                AdviceRow(
                    group="all",
                    collective=collective,
                    nodes=len(box_sizes(topology) or (0,)),
                    ranks=pick.ranks,
                    size_bytes=size,
                    picked=pick.algorithm,
                    best=pick.algorithm,
                    picked_us=time_us,
                    best_us=time_us,
                    model=pick.model_name or "none",
                    why="RCCL's limits of sizes and its cost model decide; a log or times say what would be better",
                    rival="" if rival is None else f"{rival.algorithm}/{rival.protocol}",
                    rival_us=None if rival is None else rival.time_us,
                    latency_us=None if cell is None else cell.latency_us,
                )
            )
    return found
