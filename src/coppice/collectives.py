"""Semantics of each collective, its names in other libraries, and its bus-bandwidth factor.

M is the size of the collective's large buffer in bytes: the all-gather output, the reduce-scatter input, the buffer
of all-reduce, broadcast and reduce, the send buffer of one rank in all-to-all, what the root of a gather receives and
the root of a scatter sends (its own block counted), nothing in a barrier. In an all-to-all with a matrix of demands M
is the sum of the matrix over the number of ranks: what a rank sends on average, its own block (the diagonal) counted as
the matrix has it, as nccl-tests counts it in equal blocks. ``time = inv_rate * shard`` with the shard of
:meth:`Collective.shards`, or of ``Problem.shards``, which knows the demands, and ``algbw = M / time``, as nccl-tests
reports it.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from coppice.arguments import shown
from coppice.errors import InputError
from coppice.text import suggestion


@dataclass(frozen=True, slots=True)
class Dialects:
    """Names of one collective in other libraries; None where a library does not have it."""

    nccl: str | None
    torch: str
    mpi: str
    nccl_tests: str | None
    msccl_xml: str | None
    rccl_xml: str | None
    mscclpp_json: str | None
    chakra: str


class Collective(enum.StrEnum):
    """The collectives that Coppice plans.

    >>> Collective.ALL_REDUCE.busbw_factor(8)
    Fraction(7, 4)
    """

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALL_TO_ALL = "all_to_all"
    GATHER = "gather"
    SCATTER = "scatter"
    BARRIER = "barrier"

    @classmethod
    def named(cls, name: object) -> Collective:
        """Look up a collective by its name here or in another library.

        Args:
            name: Such as ``all_gather``, ``all-gather``, ``AllGather``, ``ncclAllGather`` or ``MPI_Allgather``.

        Raises:
            InputError: If there is none of that name.

        Examples:
            >>> Collective.named("all-reduce"), Collective.named("MPI_Alltoall")
            (<Collective.ALL_REDUCE: 'all_reduce'>, <Collective.ALL_TO_ALL: 'all_to_all'>)
        """
        if isinstance(name, Collective):
            return name
        if not isinstance(name, str):
            raise InputError(
                f"expected the name of a collective ({', '.join(cls)}), found {shown(name)}: give one."
            )
        found = cls._missing_(name)
        if found is not None:
            return found
        hint = suggestion(name.lower(), cls, otherwise=f"choose one of {', '.join(cls)}.")
        raise InputError(f"there is no collective {name[:40]!r}: {hint}")

    @classmethod
    def _missing_(cls, value: object) -> Collective | None:
        """What another spelling means, so that files and calls take those that the command line takes."""
        plain = _plain(value) if isinstance(value, str) else ""
        for each in cls if plain else ():
            names = (each.value, each.dialects.nccl, each.dialects.mpi)
            if plain in [_plain(name) for name in names if name is not None]:
                return each
        return None

    @property
    def dialects(self) -> Dialects:
        """Names in other libraries."""
        return _DIALECTS[self]

    @property
    def rooted(self) -> bool:
        """Whether one rank is the root: broadcast, reduce, gather and scatter."""
        return self in (Collective.BROADCAST, Collective.REDUCE, Collective.GATHER, Collective.SCATTER)

    @property
    def reduces(self) -> bool:
        """Whether contributions are summed: reduce, reduce-scatter, all-reduce."""
        return self in (Collective.REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE)

    @property
    def made_of_trees(self) -> bool:
        """Whether spanning trees perform it (every block goes to, or comes from, all ranks).

        Not all-to-all, gather and scatter, whose blocks have one receiver each, and not the barrier.
        """
        return self in (
            Collective.ALL_GATHER,
            Collective.REDUCE_SCATTER,
            Collective.ALL_REDUCE,
            Collective.BROADCAST,
            Collective.REDUCE,
        )

    @property
    def sharded(self) -> bool:
        """A shard is M / N (or M / sum of the weights); otherwise it is M."""
        return self not in (
            Collective.ALL_REDUCE,
            Collective.BROADCAST,
            Collective.REDUCE,
            Collective.BARRIER,
        )

    def shards(self, ranks: int, weights: tuple[int, ...] | None = None) -> int:
        """Number of shards in M: N, the sum of the weights, or 1."""
        if not self.sharded:
            return 1
        return ranks if weights is None else sum(weights)

    def busbw_factor(self, ranks: int) -> Fraction:
        """Factor from algbw to busbw, as in PERFORMANCE.md of nccl-tests."""
        if self in (Collective.BROADCAST, Collective.REDUCE, Collective.BARRIER) or ranks < 1:
            return Fraction(1)
        if self is Collective.ALL_REDUCE:
            return Fraction(2 * (ranks - 1), ranks)
        return Fraction(ranks - 1, ranks)


def _plain(name: str) -> str:
    """A name without what tools write differently: case, dashes, underscores."""
    return re.sub(r"[-_ ]", "", name).lower()


_IN_CODE = """
all_gather      ncclAllGather      all_gather_into_tensor  MPI_Allgather             all_gather_perf
reduce_scatter  ncclReduceScatter  reduce_scatter_tensor   MPI_Reduce_scatter_block  reduce_scatter_perf
all_reduce      ncclAllReduce      all_reduce              MPI_Allreduce             all_reduce_perf
broadcast       ncclBroadcast      broadcast               MPI_Bcast                 broadcast_perf
reduce          ncclReduce         reduce                  MPI_Reduce                reduce_perf
all_to_all      ncclAlltoAll       all_to_all_single       MPI_Alltoall              alltoall_perf
gather          ncclGather         gather                  MPI_Gather                gather_perf
scatter         ncclScatter        scatter                 MPI_Scatter               scatter_perf
barrier         -                  barrier                 MPI_Barrier               -
"""
"""Functions of NCCL, torch.distributed and MPI, and programs of nccl-tests."""

_IN_FILES = """
all_gather      allgather       allgather      allgather      ALL_GATHER
reduce_scatter  reduce_scatter  reducescatter  reducescatter  REDUCE_SCATTER
all_reduce      allreduce       allreduce      allreduce      ALL_REDUCE
broadcast       broadcast       broadcast      -              BROADCAST
reduce          reduce          reduce         -              REDUCE
all_to_all      alltoall        alltoall       alltoall       ALL_TO_ALL
gather          -               gather         -              GATHER
scatter         -               scatter        -              SCATTER
barrier         -               -              -              BARRIER
"""
"""Names in MSCCL XML as MSCCL and as RCCL reads it, in MSCCL++ JSON, and in Chakra traces."""


def _names(table: str) -> dict[str, list[Any]]:
    """The names in each row of a table, by its first column; None where there is a dash."""
    rows = (line.split() for line in table.strip().splitlines())
    return {first: [None if name == "-" else name for name in names] for first, *names in rows}


_DIALECTS = {each: Dialects(*_names(_IN_CODE)[each], *_names(_IN_FILES)[each]) for each in Collective}
