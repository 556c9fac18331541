"""Ranks of collective phases: the ranks of a group by boxes, and a process group per channel and rank set.

A phase of a collective is done by all ranks of the group, by those of one box, or by those at the same place of every
box. Collectives of one process group wait for each other, so every channel has groups of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist

from coppice.errors import InputError

ALL, INSIDE, BETWEEN = "all", "inside", "between"
"""Who does a phase: all ranks, those of a box, those at the same place of every box."""


@dataclass(frozen=True)
class RankGrid:
    """Ranks of a collective, one row per box.

    Examples:
        >>> grid = RankGrid.of([0, 1, 2, 3, 6, 7, 8, 9], ranks_of_box=4)
        >>> grid.rows  # boxes of unequal numbers: as if every rank had a box of its own
        ((0,), (1,), (2,), (3,), (6,), (7,), (8,), (9,))
        >>> grid = RankGrid.of([0, 1, 4, 5], ranks_of_box=4)
        >>> grid.nodes, grid.ranks_of_node, grid.part(5, "inside"), grid.part(5, "between")
        (2, 2, (4, 5), (1, 5))
    """

    rows: tuple[tuple[int, ...], ...]  # Global ranks; rows are equally long

    @classmethod
    def of(cls, ranks: Sequence[int], *, ranks_of_box: int) -> RankGrid:
        """Grid of some global ranks, which fill boxes in order."""
        if ranks_of_box < 1:
            raise InputError(f"expected a rank or more in a box, found `ranks_of_box={ranks_of_box}`.")
        boxes: dict[int, list[int]] = {}
        for rank in sorted(ranks):
            boxes.setdefault(rank // ranks_of_box, []).append(rank)
        rows = tuple(tuple(row) for row in boxes.values())
        if len({len(row) for row in rows}) > 1:
            rows = tuple((rank,) for row in rows for rank in row)
        return cls(rows)

    @property
    def nodes(self) -> int:
        """Number of boxes."""
        return len(self.rows)

    @property
    def ranks_of_node(self) -> int:
        """Number of ranks per box."""
        return len(self.rows[0])

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks in box order, which is that of their process group."""
        return tuple(rank for row in self.rows for rank in row)

    def place(self, rank: int) -> tuple[int, int]:
        """Box of a global rank, and its index in it."""
        return divmod(self.ranks.index(rank), self.ranks_of_node)

    def part(self, rank: int, role: str) -> tuple[int, ...]:
        """Ranks that take part in a phase with a given one."""
        box, own = self.place(rank)
        if role == INSIDE:
            return self.rows[box]
        return tuple(row[own] for row in self.rows) if role == BETWEEN else self.ranks


class PhaseGroups:
    """Process groups per channel, created on demand; its ranks must demand them in the same order.

    Args:
        group: The ranks that work together; None: all.
        ranks_of_box: How many ranks each box has; ranks fill boxes one after the other. None: one box for all.

    Raises:
        InputError: If boxes have no ranks.

    Examples:
        >>> store = dist.HashStore()
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=store)
        >>> PhaseGroups().grid.rows
        ((0,),)
        >>> dist.destroy_process_group()
    """

    def __init__(self, group: dist.ProcessGroup | None = None, *, ranks_of_box: int | None = None) -> None:
        self.parent = group  # The ranks that work together; None: all
        world = dist.get_world_size()
        ranks = range(world) if group is None else dist.get_process_group_ranks(group)
        self.ranks_of_box = world if ranks_of_box is None else ranks_of_box
        self.rank = dist.get_rank()  # Global rank of this process
        self.grid = RankGrid.of(ranks, ranks_of_box=self.ranks_of_box)  # All ranks
        self._groups: dict[tuple[str, tuple[int, ...]], dist.ProcessGroup] = {}

    def of(self, group: dist.ProcessGroup | None) -> RankGrid:
        """Grid of the ranks of another process group; None: all ranks."""
        if group is None:
            return self.grid
        return RankGrid.of(dist.get_process_group_ranks(group), ranks_of_box=self.ranks_of_box)

    def group(self, channel: str, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        """Process group of some ranks on a channel."""
        key = channel, ranks
        if key not in self._groups:
            self._groups[key] = dist.new_group(
                list(ranks),
                backend=dist.get_backend(self.parent),
                use_local_synchronization=len(ranks) < dist.get_world_size(),
            )
        return self._groups[key]
