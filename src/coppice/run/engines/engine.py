"""The one interface of all engines: what carries out the programs of ranks.

An engine belongs to one rank of a group. Its calls are collective: every rank of the group makes the same calls in
the same order. When one rank raises, all others raise :class:`~coppice.run.errors.PeerLost` or
:class:`~coppice.run.errors.TimedOut` within the timeout, and the engine is of no more use then but to be closed.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from coppice.collectives import Collective
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.programs.rank_program import RankProgram

__all__ = ["DirectEngine", "Engine"]


@runtime_checkable
class Engine(Protocol):
    """One rank's end of a group that carries out programs.

    Attributes:
        name: Short name of the kind of engine, as users choose it: ``numpy``, ``shm``, ``torch``, ``mpi``.
        rank: This rank, 0 .. ranks - 1.
        ranks: Number of ranks of the group.
    """

    name: str
    rank: int
    ranks: int

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
        """Carry out this rank's program, and return when the result is in ``output`` and ``input`` may change.

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
        """All ranks' ``data`` in rank order: a small all-gather of bytes, which may differ in length.

        Raises:
            RunError: If a rank is gone or does not answer.
        """

    def close(self) -> None:
        """Let go of everything; other ranks that still wait raise. May wait for them to close. Twice is allowed."""


@runtime_checkable
class DirectEngine(Engine, Protocol):
    """An engine that can carry out collectives by itself, without a program: its ranks share memory."""

    def prefers_direct(self, collective: Collective, size_bytes: int) -> bool:
        """Whether :meth:`run_direct` is faster than any program for M = ``size_bytes``; equal on all ranks."""

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
        """Carry out a collective of M = ``count`` elements on memory as :mod:`coppice.run.programs.rank_program` says.

        Raises:
            InputError: If a buffer or argument does not fit; nothing was sent.
            RunError: If the collective did not complete.
        """
