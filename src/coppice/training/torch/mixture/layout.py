"""Which ranks have which experts, and which exchange tokens with each other.

With E experts on P ranks every rank has E / P of them, or every expert is on P / E ranks. Packing doubles the experts
of a rank: it takes over those of its partner, so nothing that a rank has is given away. Ranks that have all experts
between them are a *token group*, within which tokens are exchanged; ranks with the same experts are *replicas*, which
sum the gradients of these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coppice.arguments import checked
from coppice.errors import InputError


@dataclass(frozen=True)
class ExpertLayout:
    """Experts on ranks.

    Raises:
        InputError: If experts cannot be dealt evenly.

    Examples:
        >>> plain = ExpertLayout(experts=4, ranks=4)
        >>> packed = plain.doubled()
        >>> [list(packed.own(rank)) for rank in range(4)]
        [[0, 1], [0, 1], [2, 3], [2, 3]]
        >>> packed.token_group(0), packed.replicas(0)
        ([0, 2], [0, 1])
    """

    experts: int  # Experts of a layer
    ranks: int  # Ranks
    of_rank: int = 0  # Experts that each rank has; 0: as few as there can be

    def __post_init__(self) -> None:
        if self.experts < 1 or self.ranks < 1 or (self.experts % self.ranks and self.ranks % self.experts):
            raise InputError(
                f"expected experts of which every rank has as many, or each expert as many ranks, found {self.experts} "
                f"experts on {self.ranks} ranks."
            )
        if not self.of_rank:
            object.__setattr__(self, "of_rank", self._least)
        copies = self.of_rank // self._least
        if self.of_rank % self._least or copies & (copies - 1) or copies < 1 or self._span % copies:
            raise InputError(
                f"expected {self._least} experts on a rank, or that doubled while the ranks of a group can be halved, "
                f"found {self.of_rank}."
            )

    @property
    def _least(self) -> int:
        return max(1, self.experts // self.ranks)

    @property
    def _span(self) -> int:
        """Ranks in a row that have all experts between them when nothing is packed."""
        return self.experts // self._least

    @property
    def _copies(self) -> int:
        """Consecutive ranks that hold the same experts after packing."""
        return self.of_rank // self._least

    def position(self, rank: int) -> int:
        """Place of a rank in its token group."""
        return rank % self._span // self._copies

    def own(self, rank: int) -> range:
        """Experts of a rank."""
        first = self.position(rank) * self.of_rank
        return range(first, first + self.of_rank)

    def token_group(self, rank: int) -> list[int]:
        """Ranks that exchange tokens with a rank, by their position."""
        first = rank - rank % self._span + rank % self._copies
        return list(range(first, first + self._span, self._copies))

    def replicas(self, rank: int) -> list[int]:
        """Ranks with the experts of a rank."""
        return [other for other in range(self.ranks) if self.position(other) == self.position(rank)]

    def home(self, expert: int, rank: int) -> int:
        """Rank of the token group of a rank that has an expert."""
        return self.token_group(rank)[expert // self.of_rank]

    @checked
    def doubled(self) -> ExpertLayout | None:
        """With twice as many experts on every rank; None: there are no more, or ranks cannot be paired."""
        group = self._span // self._copies
        return None if group % 2 else replace(self, of_rank=2 * self.of_rank)

    def partner(self, rank: int) -> int:
        """The rank with which a rank shares experts when they are doubled."""
        first = rank - rank % self._span
        return first + (rank % self._span ^ self._copies)
