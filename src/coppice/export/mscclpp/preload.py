"""Files that the preloaded NCCL API library of MSCCL++ 0.9 loads by itself.

It opens four names in one directory and takes for which communicators each is from its own table
(``buildDefaultDslAlgorithms`` in src/ext/collectives/algorithm_collection_builder.cc); the collective, the sizes and
whether calls are in place are what the file tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coppice.program.dialects.puts.program import OneSidedProgram

PRELOAD_DIRECTORY = "default"
"""Name of the directory, below the one that ``MSCCLPP_CACHE_DIR`` names (~/.cache/mscclpp)."""


@dataclass(frozen=True, slots=True)
class PreloadSlot:
    """Communicators that a file applies to."""

    ranks: int  # Their ranks
    ranks_per_node: int  # Ranks of a node

    def __str__(self) -> str:
        return f"{self.ranks} ranks, {self.ranks_per_node} a node"


PRELOAD_SLOTS: Mapping[str, PreloadSlot] = {
    "allreduce_2nodes_1K_64K.json": PreloadSlot(16, 8),
    "allreduce_2nodes_128K_2M.json": PreloadSlot(16, 8),
    "allreduce_4nodes_1K_64K.json": PreloadSlot(32, 8),
    "allreduce_4nodes_128K_2M.json": PreloadSlot(64, 4),
}
"""Communicators by the name of the file; no other file is read."""


def slots_for(program: OneSidedProgram) -> tuple[str, ...]:
    """File names under which a program is loaded for its ranks, with the nodes its memory channels allow.

    Examples:
        >>> from coppice.export.mscclpp.program import one_sided_for
        >>> from coppice.planners.planning import plan
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.collectives import Collective
        >>> from coppice.topology.presets import preset
        >>> made = plan(Problem(topology=preset("dgx-a100", boxes=2), collective=Collective.ALL_REDUCE)).plan
        >>> slots_for(one_sided_for(made.body))
        ('allreduce_2nodes_1K_64K.json', 'allreduce_2nodes_128K_2M.json')
    """
    local = [(end.rank, end.peer) for end in program.channels if not end.port]
    return tuple(
        name
        for name, slot in PRELOAD_SLOTS.items()
        if slot.ranks == program.num_ranks
        and all(rank // slot.ranks_per_node == peer // slot.ranks_per_node for rank, peer in local)
    )
