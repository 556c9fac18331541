"""Interface of all engines.

An engine belongs to one rank of a group. Its calls are collective: every rank of the group makes the same calls in
the same order. When one rank raises, all others raise :class:`~coppice.run.errors.PeerLost` or
:class:`~coppice.run.errors.TimedOut` within the timeout, and the engine is of no more use then but to be closed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.dialects.rank.program import RankProgram
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.errors import PeerLost
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule


@runtime_checkable
class Engine(Protocol):
    """Endpoint of one rank in a group that executes programs."""

    # Short name of the kind of engine, as users choose it: `numpy`, `shm`, `torch`, `mpi`, `put-signal`
    name: str
    rank: int  # This rank, 0 .. ranks - 1.
    ranks: int  # Number of ranks of the group

    def run(
        self,
        program: RankProgram,
        input: Any,  # noqa: A002  (the word that everybody uses)
        output: Any,
        *,
        dtype: DataType,
        op: ReduceOp,
        timeout_s: float,
    ) -> None:
        """Execute this rank's program; on return the result is in ``output`` and ``input`` may change.

        Args:
            program: The program of this rank, of the same lowering as those of all other ranks.
            input: ``program.input_elements`` elements or more: contiguous memory with the buffer protocol or
                ``__array_interface__``, of ``dtype`` or of bytes. Not looked at where the program is in place.
            output: ``program.output_elements`` elements or more, writable, likewise.
            dtype: Type of the elements.
            op: The reduction. After the last step of an ``avg``, the elements of the result
                (``program.result_offset``, ``program.result_elements``, in OUTPUT) are divided by the number of ranks.
            timeout_s: Longest time to wait for another rank, in seconds.

        Raises:
            InputError: If a buffer is too short, not contiguous, of another type or not writable; nothing was sent.
            RunError: If the collective did not complete.
        """

    def exchange(self, data: bytes) -> list[bytes]:
        """All-gather ``data`` in rank order: a few bytes, which may differ in length.

        Raises:
            RunError: If a rank is gone or does not answer.
        """

    def close(self) -> None:
        """Release everything; ranks that still wait raise. May block until they close. Idempotent."""


@runtime_checkable
class DirectEngine(Engine, Protocol):
    """Engine that executes collectives without a program, since its ranks share memory."""

    def prefers_direct(self, collective: Collective, size_bytes: int) -> bool:
        """Whether :meth:`run_direct` is fastest for M = ``size_bytes``; equal on all ranks."""

    def run_direct(
        self,
        collective: Collective,
        input: Any,  # noqa: A002
        output: Any,
        *,
        count: int,
        dtype: DataType,
        timeout_s: float,
        op: ReduceOp = ReduceOp.SUM,
        root: int = -1,
        in_place: bool = False,
    ) -> None:
        """Execute a collective of ``count`` elements; memory as in :mod:`coppice.program.dialects.rank.program`."""


@runtime_checkable
class GroupingEngine(Engine, Protocol):
    """Engine that can create subgroups."""

    def subset(self, ranks: Sequence[int]) -> Engine:
        """This rank's engine in the group of ``ranks``, in that order; collective over the engine's ranks.

        Ranks of different groups make their groups at the same time, each with its own list.
        """


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """Engine that times single flows."""

    def stream(
        self,
        *,
        out: NDArray[np.uint8] | None,
        dst: int,
        into: NDArray[np.uint8] | None,
        src: int,
        timeout_s: float,
    ) -> NDArray[np.float64]:
        """Send the rows of a matrix to one rank and receive those of another from one, both at once.

        Ranks that neither send nor receive do not call it.

        Args:
            out: Pieces to send, a row each; None sends nothing.
            dst: Rank that receives them.
            into: Memory for the pieces that arrive; None receives nothing.
            src: Rank that sends them.
            timeout_s: Longest time to wait for all of it, in seconds.

        Returns:
            Seconds from the start of the call until each piece had arrived.

        Raises:
            RunError: If the other rank is gone or does not answer in time.
        """


@runtime_checkable
class LearningEngine(Engine, Protocol):
    """Engine that compiles programs of its own from schedules."""

    def learn(self, program: RankProgram, body: Schedule | Forest) -> None:
        """Register the schedule that a program was lowered from, before it runs; collective over the ranks."""


@runtime_checkable
class ExchangingEngine(Engine, Protocol):
    """Engine that writes into other ranks' memory, for which it must know where blocks lie there."""

    def learn_exchange(self, program: RankProgram, programs: Sequence[RankProgram]) -> None:
        """Register the programs of all ranks of an all-to-all of unequal blocks, before this rank's runs."""


@runtime_checkable
class DeviceMemory(Protocol):
    """Memory of a device."""

    def to_device(self, array: NDArray[Any]) -> Any:
        """Allocate device memory with the elements of an array."""

    def upload(self, array: NDArray[Any], buffer: Any) -> None:
        """Copy elements to device memory."""

    def download(self, buffer: Any, array: NDArray[Any]) -> None:
        """Copy elements to the host."""

    def settle(self) -> None:
        """Synchronise with the device."""


class BaseEngine(Engine):
    """Common base of the engines: rank, size, and checks of programs.

    Args:
        rank: This rank.
        ranks: Number of ranks.
        exchange_timeout_s: Longest time to wait for another rank in an exchange, in seconds.
    """

    def __init__(self, rank: int, ranks: int, exchange_timeout_s: float) -> None:
        self.rank, self.ranks = rank, ranks
        self._exchange_timeout_s = exchange_timeout_s
        self._groups: list[BaseEngine] = []
        self._closed = False
        self._lost: str | None = None

    def run(
        self,
        program: RankProgram,
        input: Any,  # noqa: A002
        output: Any,
        *,
        dtype: DataType,
        op: ReduceOp,
        timeout_s: float,
    ) -> None:
        """See :meth:`Engine.run`."""
        self._check_open()
        if (program.rank, program.ranks) != (self.rank, self.ranks):
            raise InputError(
                f"expected a program of rank {self.rank} of {self.ranks}, found one of rank {program.rank} of "
                f"{program.ranks}: lower the schedule for this group."
            )
        self._carry_out(program, input, output, dtype, op, timeout_s)

    @abstractmethod
    def _carry_out(
        self, program: RankProgram, given: Any, wanted: Any, dtype: DataType, op: ReduceOp, timeout_s: float
    ) -> None:
        """Carry out a program of this rank, as :meth:`Engine.run` says."""

    def close(self) -> None:
        """See :meth:`Engine.close`; subgroups are closed first."""
        while self._groups:
            self._groups.pop(0).close()
        self._closed = True

    def _check_open(self) -> None:
        """Refuse to go on after a failure, or once the engine is closed."""
        if self._lost is not None:
            raise PeerLost(self._lost)
        if self._closed:
            raise self.closed_error

    @property
    def closed_error(self) -> InputError:
        """Error of calls on a closed engine."""
        return InputError(f"the engine of rank {self.rank} is closed: make a new group.")

    def _members(self, ranks: Sequence[int]) -> list[int]:
        """The ranks of a group that this one is to be in."""
        members = list(ranks)
        distinct = set(members)
        if (
            self.rank not in distinct
            or len(distinct) < len(members)
            or not distinct <= set(range(self.ranks))
        ):
            raise InputError(
                f"expected a list of distinct ranks below {self.ranks} with rank {self.rank} in it once, found "
                f"{members}."
            )
        return members


def check_rank(rank: int, ranks: int) -> None:
    """Refuse a rank outside the group."""
    if not 0 <= rank < ranks:
        raise InputError(f"expected a rank of 0 to {ranks - 1}, found {rank}.")
