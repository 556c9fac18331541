"""Engine for ranks of one host: a shared-memory segment, served by the native core.

Programs run over a channel for every pair of ranks that talks. Beyond programs, the engine knows direct collectives:
every rank puts its data where all others read it, which no tree of messages between private memories can beat, since
each byte is copied in once and out once. A communicator that finds ``run_direct`` on its engine may use it wherever
``prefers_direct`` says so; it needs no plan then.

A rank that dies, hangs, closes its engine, or runs something else, is named in the error that every other rank raises
within the timeout (death and closing are noticed at once). Nothing is left behind in the file system.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.native import _run
from coppice.program.dialects.rank.program import RankProgram, block_bounds, buffer_elements
from coppice.rows import offsets
from coppice.run.engines.datatype import DataType, ReduceOp, check_reduction, elements_of
from coppice.run.engines.engine import BaseEngine
from coppice.run.engines.shared_memory.setup import Exchange, join, raise_fault, usual_places

# As in the native core.
_KINDS = {dtype: np.dtype(dtype.numpy_name) for dtype in DataType}
_TYPES = {dtype: number for number, dtype in enumerate(DataType)}
_OPS = {op: number for number, op in enumerate(ReduceOp)}
_COLLECTIVES = {
    name: number
    for number, name in enumerate(
        (
            *(Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE),
            *(Collective.BROADCAST, Collective.REDUCE, Collective.ALL_TO_ALL, Collective.GATHER),
            *(Collective.SCATTER, Collective.BARRIER),
        )
    )
}
_DirectCall = tuple[NDArray[np.int64], int, int, tuple[int, int, int]]
"""Bounds of the blocks, elements of input and output, and what the native core calls collective, type and operation."""

_SIZES = (256 * 1024, 4, 1024 * 1024)
"""Bytes of a staging slot, slots per rank, bytes of a ring."""


def shm_engines(ranks: int, *, exchange_timeout_s: float = 300.0) -> list[ShmEngine]:
    """Engines of a new group of threads, one per rank.

    Args:
        ranks: Number of ranks, 1 or more.
        exchange_timeout_s: Longest time to wait for another rank in an exchange, in seconds.

    Raises:
        InputError: If there is no rank.

    Examples:
        >>> [engine] = shm_engines(1)
        >>> engine.exchange(b"hello")
        [b'hello']
        >>> engine.close()
    """
    if ranks < 1:
        raise InputError(f"expected 1 rank or more, found {ranks}.")
    ends = _run.shm_threads(ranks, *_SIZES)
    return [
        ShmEngine(end, rank, ranks, exchange_timeout_s=exchange_timeout_s) for rank, end in enumerate(ends)
    ]


class ShmEngine(BaseEngine):
    """Endpoint of one rank on one host; made by :meth:`connect`, or by :func:`shm_engines` for threads."""

    name = "shm"

    def __init__(self, end: _run.ShmRank, rank: int, ranks: int, *, exchange_timeout_s: float) -> None:
        super().__init__(rank, ranks, exchange_timeout_s)
        self._end: _run.ShmRank | None = end
        self._programs: WeakKeyDictionary[RankProgram, _run.ShmProgram] = WeakKeyDictionary()
        # Of the last direct collective: small ones take no longer than these checks do.
        self._asked: tuple[object, ...] | None = None
        self._call: _DirectCall

    @classmethod
    def connect(
        cls,
        rank: int,
        ranks: int,
        exchange: Exchange,
        *,
        directory: str | None = None,
        exchange_timeout_s: float = 300.0,
    ) -> ShmEngine:
        """Join a group of processes on this host; collective over the ranks.

        Args:
            rank: This rank.
            ranks: Number of ranks.
            exchange: Gives every rank the bytes of all, in rank order: ``comm.allgather`` of mpi4py, or what
                :func:`~coppice.run.engines.shared_memory.setup.store_exchange` or
                :func:`~coppice.run.engines.shared_memory.setup.directory_exchange` makes. It is not used any more
                afterwards.
            directory: Where the segment's file is made; the default is ``$COPPICE_SHM_DIR``, or an
                anonymous file, which needs no room in ``/dev/shm`` and cannot be left behind.
            exchange_timeout_s: Longest time to wait for another rank in :meth:`exchange`, in seconds.

        Raises:
            Mismatch: On every rank, if they are not the ranks of one group, host and version.
            RunError: On every rank, if some rank cannot have the memory.
        """
        places = [directory] if directory else usual_places()
        end = join(rank, ranks, exchange, places=places, sizes=_SIZES)
        return cls(end, rank, ranks, exchange_timeout_s=exchange_timeout_s)

    def _carry_out(
        self, program: RankProgram, given: Any, wanted: Any, dtype: DataType, op: ReduceOp, timeout_s: float
    ) -> None:
        end = self._open()
        op = op if program.collective.reduces else ReduceOp.SUM
        check_reduction(op, dtype)
        _read, source = _memory(given, dtype, program.input_elements, "input")
        _written, target = _memory(wanted, dtype, program.output_elements, "output")
        fault = end.run_program(
            self._native(program),
            source,
            target,
            program.scratch_elements * dtype.itemsize,
            program.result_offset,
            program.result_elements,
            _TYPES[dtype],
            _OPS[op],
            _signature(program.collective, program.count, program.root, dtype, op),
            timeout_s,
        )
        raise_fault(fault, self.rank, str(program.collective), timeout_s)

    def prefers_direct(self, collective: Collective, size_bytes: int) -> bool:  # noqa: ARG002
        """Whether :meth:`run_direct` is fastest for a collective of M = ``size_bytes``.

        All ranks share the memory, so it is for every collective and size; the answer is the same on all ranks.
        """
        return collective in _COLLECTIVES

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
        bounds: Sequence[int] | None = None,
        in_place: bool = False,
    ) -> None:
        """Execute a collective without a program; collective over the ranks.

        Sums go from rank 0 upwards on every rank and path, so results are equal bit by bit on all ranks and in all
        calls. Those of 16-bit floats are kept in float32 and rounded once.

        Args:
            collective: The collective.
            input: This rank's input, as long as its program (``rank.program``) says. Not looked at in place.
            output: This rank's output, likewise, or in place the one memory.
            count: M in elements.
            dtype: Type of the elements.
            timeout_s: Longest time to wait for other ranks, in seconds.
            op: The reduction.
            root: Root rank of a rooted collective.
            bounds: First element of each rank's block in the M elements, and M; the default cuts at floor(M r / R).
            in_place: Input and output are one memory.

        Raises:
            InputError: If a buffer or argument does not fit; nothing was sent.
            RunError: If the collective did not complete.
        """
        end = self._open()
        asked = (collective, count, dtype, op, root, in_place)
        if bounds is not None or asked != self._asked:
            self._call = self._direct_call(collective, count, dtype, op, root, bounds)
            self._asked = asked if bounds is None else None
        edges, given, wanted, numbers = self._call
        if in_place:
            first = int(edges[self.rank])
            holds_all = self.rank == root or not collective.rooted
            blocks = collective.sharded and collective is not Collective.ALL_TO_ALL and holds_all
            _held, target = _memory(output, dtype, count if blocks else max(given, wanted), "output")
            gathers = collective in (Collective.ALL_GATHER, Collective.GATHER)
            own = target + first * dtype.itemsize if blocks else target
            source, target = (own, target) if gathers else (target, own)
        else:
            _held, source = _memory(input, dtype, given, "input")
            _written, target = _memory(output, dtype, wanted, "output")
        collective_number, type_number, op_number = numbers
        fault = end.run_direct(
            collective_number, source, target, edges, type_number, op_number, max(root, 0), timeout_s
        )
        if fault is not None:
            raise_fault(fault, self.rank, str(collective), timeout_s)

    def exchange(self, data: bytes) -> list[bytes]:
        """See :meth:`coppice.run.engines.engine.Engine.exchange`."""
        lengths = np.zeros(self.ranks, dtype=np.int64)
        self._gather(
            np.array([len(data)], dtype=np.int64), lengths, np.arange(self.ranks + 1), DataType.INT64
        )
        edges = offsets(lengths)
        whole = np.zeros(int(edges[-1]), dtype=np.uint8)
        self._gather(np.frombuffer(data, dtype=np.uint8), whole, edges, DataType.UINT8)
        return [whole[edges[rank] : edges[rank + 1]].tobytes() for rank in range(self.ranks)]

    def subset(self, ranks: Sequence[int]) -> ShmEngine:
        """See :meth:`coppice.run.engines.engine.GroupingEngine.subset`; the subgroup has its own segment."""
        members = self._members(ranks)
        path = Path(self._open().path)
        place = str(path.parent) if path.is_absolute() and path.parts[1] != "proc" else ""

        def exchange(data: bytes) -> list[bytes]:
            found = self.exchange(data)
            return [found[rank] for rank in members]

        # One place, so that all groups exchange equally often.
        end = join(members.index(self.rank), len(members), exchange, places=[place], sizes=_SIZES)
        timeout_s = self._exchange_timeout_s
        group = ShmEngine(end, members.index(self.rank), len(members), exchange_timeout_s=timeout_s)
        self._groups.append(group)
        return group

    def close(self) -> None:
        """See :meth:`coppice.run.engines.engine.Engine.close`."""
        super().close()
        if self._end is not None:
            self._end.leave()
            self._end = None

    def _gather(
        self, block: NDArray[Any], whole: NDArray[Any], edges: NDArray[np.int64], dtype: DataType
    ) -> None:
        timeout_s = self._exchange_timeout_s
        number = _COLLECTIVES[Collective.ALL_GATHER]
        fault = self._open().run_direct(
            number, block.ctypes.data, whole.ctypes.data, edges, _TYPES[dtype], 0, 0, timeout_s
        )
        raise_fault(fault, self.rank, "an exchange", timeout_s)

    def _open(self) -> _run.ShmRank:
        if self._end is None:
            raise self.closed_error
        return self._end

    def _direct_call(
        self,
        collective: Collective,
        count: int,
        dtype: DataType,
        op: ReduceOp,
        root: int,
        bounds: Sequence[int] | None,
    ) -> _DirectCall:
        """What of a direct collective does not depend on its buffers, checked."""
        op = op if collective.reduces else ReduceOp.SUM
        check_reduction(op, dtype)
        edges = self._edges(count, bounds)
        block = int(edges[self.rank + 1] - edges[self.rank])
        if collective.rooted and not 0 <= root < self.ranks:
            raise InputError(f"expected a root of 0 to {self.ranks - 1} for {collective}, found {root}.")
        numbers = (_COLLECTIVES[collective], _TYPES[dtype], _OPS[op])
        if collective is Collective.ALL_TO_ALL:
            return (edges, count, block * self.ranks, numbers)
        return (edges, *buffer_elements(collective, count, block, at_root=self.rank == root), numbers)

    def _edges(self, count: int, bounds: Sequence[int] | None) -> NDArray[np.int64]:
        if count < 0:
            raise InputError(f"expected a count of 0 or more, found {count}.")
        if bounds is None:
            return np.array(block_bounds(count, self.ranks), dtype=np.int64)
        edges = np.asarray(bounds, dtype=np.int64)
        if len(edges) != self.ranks + 1 or edges[0] != 0 or edges[-1] != count or (np.diff(edges) < 0).any():
            raise InputError(
                f"expected {self.ranks + 1} ascending bounds from 0 to {count}, found {edges.tolist()}."
            )
        return edges

    def _native(self, program: RankProgram) -> _run.ShmProgram:
        found = self._programs.get(program)
        if found is None:
            try:
                found = _run.ShmProgram(
                    program.rank,
                    program.ranks,
                    program.input_elements,
                    program.output_elements,
                    program.scratch_elements,
                    program.kind,
                    program.peer,
                    program.tag,
                    program.buffer,
                    program.offset,
                    program.length,
                    program.source,
                    program.source_offset,
                    program.predecessors_start,
                    program.predecessors,
                )
            except ValueError as error:
                raise InputError(
                    f"expected a well-formed program of rank {self.rank} for {program.collective}, found {error}."
                ) from error
            self._programs[program] = found
        return found


def _memory(given: Any, dtype: DataType, elements: int, name: str) -> tuple[NDArray[Any], int]:
    """The first ``elements`` elements of a buffer, where the native core can work on them, and their address.

    The address is good as long as the array lives.
    """
    plain = type(given) is np.ndarray and given.dtype is _KINDS[dtype] and given.size >= elements > 0
    if plain and given.flags.c_contiguous and given.flags.writeable:
        array = given
    else:
        array = elements_of(given, dtype, elements, name=f"the {name}", writable=name == "output")
    address: int = array.__array_interface__["data"][0]
    if elements and address % array.itemsize:
        raise InputError(
            f"expected the {name} at a multiple of {dtype.itemsize} bytes, found address {address:#x}: copy it."
        )
    return array, address


def _signature(collective: Collective, count: int, root: int, dtype: DataType, op: ReduceOp) -> int:
    """A number that differs for different collectives; ranks compare it."""
    text = f"{collective} {count} {root} {dtype} {op}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
