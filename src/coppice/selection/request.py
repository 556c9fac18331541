"""A call of a collective, and what decision tables may ask about it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.selection.rules import Facts
from coppice.topology.model import Topology

__all__ = ["MOST_RANKS", "SelectionRequest", "box_sizes"]

MOST_RANKS = 2**31 - 1
"""Ranks of a communicator are counted by 32-bit integers."""


@dataclass(frozen=True, kw_only=True)
class SelectionRequest:
    """A call whose algorithm is asked for.

    Attributes:
        collective: What is performed.
        ranks: Number of ranks, P.
        size_bytes: M (see :mod:`coppice.collectives`).
        ranks_per_box: Ranks in each box, or None where nothing is known about boxes: all ranks share one then.
        even: All boxes have the same number of ranks; ``ranks_per_box`` is the largest otherwise.
        boxes: Number of boxes.
        commutative: The operation commutes.
        builtin: The operation is one of the library's own.
        element_bytes: Bytes of an element.
    """

    collective: Collective
    ranks: int
    size_bytes: int
    ranks_per_box: int | None = None
    even: bool = True
    boxes: int = 1
    commutative: bool = True
    builtin: bool = True
    element_bytes: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= MOST_RANKS:
            msg = f"expected 1 .. {MOST_RANKS:,} ranks, found {self.ranks:,}."
            raise InputError(msg)
        if not 0 <= self.size_bytes < 2**63:
            msg = f"expected a size of 0 .. 2^63 - 1 bytes, found {self.size_bytes:,}."
            raise InputError(msg)
        if self.element_bytes < 1:
            msg = f"expected elements of 1 byte or more, found {self.element_bytes}."
            raise InputError(msg)

    @property
    def block_bytes(self) -> int:
        """Bytes of the block of one rank; M itself where the buffer is not divided among the ranks."""
        return self.size_bytes // self.collective.shards(self.ranks)

    @property
    def per_box(self) -> int:
        """Ranks in a box; all where nothing is known about boxes."""
        return self.ranks if self.ranks_per_box is None else self.ranks_per_box

    def within(self, ranks: int, collective: Collective, size_bytes: int) -> SelectionRequest:
        """The call that one level of a composition makes: all ranks of it in one box, or each in its own."""
        alone = ranks == self.boxes and self.boxes > 1
        return replace(
            self,
            collective=collective,
            ranks=ranks,
            size_bytes=size_bytes,
            ranks_per_box=1 if alone else ranks,
            boxes=ranks if alone else 1,
        )

    def facts(self, measure: str) -> Facts:
        """The numbers and facts that tables may name.

        Args:
            measure: What the table calls ``m``: ``total`` (M) or ``block`` (the block of one rank).

        Examples:
            >>> request = SelectionRequest(collective=Collective.ALL_GATHER, ranks=12, size_bytes=4096)
            >>> facts = request.facts("block")
            >>> facts["m"], facts["total"], facts["P is a power of two"], facts["floor_pow"]
            (341, 4096, False, 8)
        """
        power = 1 << (self.ranks.bit_length() - 1)
        return {
            "P": self.ranks,
            "m": self.block_bytes if measure == "block" else self.size_bytes,
            "total": self.size_bytes,
            "block": self.block_bytes,
            "elements": self.size_bytes // self.element_bytes,
            "floor_pow": power,
            "others": self.ranks - 1,
            "segments_of_8_KiB": -(-self.size_bytes // 8192),
            "segments_of_512_KiB": -(-self.size_bytes // 524288),
            "boxes": self.boxes,
            "per_box": self.per_box,
            "P is a power of two": power == self.ranks,
            "P is even": self.ranks % 2 == 0,
            "commutative": self.commutative,
            "built in": self.builtin,
            "one box": self.boxes == 1,
            "one rank in each box": self.boxes == self.ranks and self.ranks > 1,
            "equal boxes": self.even,
        }


def box_sizes(topology: Topology) -> list[int] | None:
    """Ranks of each box, or None where the topology does not say which box a rank is in.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> box_sizes(preset("dgx-a100", boxes=2)), box_sizes(preset("star", gpus=4))
        ([8, 8], None)
    """
    hosts = topology.host[topology.rank_nodes]
    if (hosts < 0).any():
        return None
    return [int(count) for count in np.unique(hosts, return_counts=True)[1]]
