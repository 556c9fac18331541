"""Engine for ranks of one host: a shared-memory segment, served by the native core.

Set up the shared-memory segment of the ranks of one host, and raise its faults. All that the caller brings is a way to
exchange a few bytes: ``exchange(data)`` gives every rank the ``data`` of all, in rank order, whatever does it: MPI's
``comm.allgather``, a store of torch (:func:`store_exchange`), or a directory that all ranks see
(:func:`directory_exchange`).

The segment is an anonymous file, which cannot be left behind. Where the others cannot reach rank 0's files (another
process namespace) or there are no such files (outside Linux), it is a file in a directory of memory, whose name is
removed as soon as all ranks have opened it.

Engine for ranks of one host: a shared-memory segment, served by the native core. Programs run over a channel for every
pair of ranks that talks. Beyond programs, the engine knows direct collectives: every rank puts its data where all
others read it, which no tree of messages between private memories can beat, since each byte is copied in once and out
once. A communicator that finds ``run_direct`` on its engine may use it wherever ``prefers_direct`` says so; it needs no
plan then.

A rank that dies, hangs, closes its engine, or runs something else, is named in the error that every other rank raises
within the timeout (death and closing are noticed at once). Nothing is left behind in the file system.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.decoding import decodable
from coppice.errors import CoppiceError, InputError
from coppice.files import write_atomically
from coppice.native import _run
from coppice.program.dialects.rank.program import RankProgram, block_bounds, buffer_elements
from coppice.rows import offsets
from coppice.run.engines.datatype import DataType, ReduceOp, check_reduction, elements_of
from coppice.run.engines.engine import BaseEngine, check_rank
from coppice.run.errors import Mismatch, PeerLost, RunError, TimedOut

Exchange = Callable[[bytes], list[bytes]]
_PREFIX = "coppice-"
_STALE_AFTER_S = 60.0
_POLL_S = 0.002


def store_exchange(store: Any, rank: int, ranks: int, *, prefix: str = "coppice-shm") -> Exchange:
    """Exchange over a store with ``set(key, bytes)`` and a blocking ``get(key)``, such as torch's.

    Args:
        store: The store. Its own timeout says how long to wait for other ranks.
        prefix: What keys begin with; every group needs another one.
    """
    rounds = 0

    def exchange(data: bytes) -> list[bytes]:
        nonlocal rounds
        rounds += 1
        store.set(f"{prefix}/{rounds}/{rank}", data)
        return [bytes(store.get(f"{prefix}/{rounds}/{peer}")) for peer in range(ranks)]

    return exchange


def directory_exchange(
    directory: str | os.PathLike[str], rank: int, ranks: int, *, timeout_s: float = 300.0
) -> Exchange:
    """Exchange over files in a fresh directory that all ranks see.

    Args:
        directory: The directory; made if it is not there.
        timeout_s: Longest time to wait for another rank, in seconds.
    """
    folder, rounds = Path(directory), 0

    def exchange(data: bytes) -> list[bytes]:
        nonlocal rounds
        rounds += 1
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"{rounds}.{rank}", data)
        end = time.monotonic() + timeout_s
        paths = [folder / f"{rounds}.{peer}" for peer in range(ranks)]
        for peer, path in enumerate(paths):
            while not path.exists():
                if time.monotonic() > end:
                    raise TimedOut(
                        f"rank {peer} did not come to {folder} within {timeout_s:g} s: start it, or see its output."
                    )
                time.sleep(_POLL_S)
        return [path.read_bytes() for path in paths]

    return exchange


class _SegmentCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank says of itself before anything is shared."""

    version: str
    layout: int
    host: str
    rank: int
    ranks: int


class _Word(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank says at one attempt: where the segment is, or why there is none."""

    path: str = ""
    error: str = ""


def join(
    rank: int, ranks: int, exchange: Exchange, *, places: Sequence[str], sizes: tuple[int, int, int]
) -> _run.ShmRank:
    """Map the segment shared by all ranks; collective over the ranks.

    Args:
        exchange: Gives every rank what all ranks give.
        places: Directories to make the segment's file in, tried in turn; an empty one stands for an anonymous file.
        sizes: Bytes of a staging slot, number of slots, bytes of a ring.
    """
    from coppice.version import __version__

    check_rank(rank, ranks)
    host = _host()
    card = _SegmentCard(version=__version__, layout=_run.SHM_LAYOUT, host=host, rank=rank, ranks=ranks)
    _compare(card, exchange(msgspec.json.encode(card)))
    number = int.from_bytes(hashlib.blake2b(host.encode(), digest_size=8).digest(), "little")
    told: list[str] = []
    for place in places:
        end, errors = _attempt(place, rank, ranks, exchange, number, sizes)
        if end is not None:
            return end
        told.append(f"{place or 'an anonymous file'} ({'; '.join(errors)})")
    raise RunError(
        f"expected shared memory for {ranks} ranks of this host, found none: {', then '.join(told)}: make room "
        "there, or name another directory in memory with COPPICE_SHM_DIR."
    )


def usual_places() -> list[str]:
    """Default directories of segments."""
    if directory := os.environ.get("COPPICE_SHM_DIR"):
        return [directory]
    return ["", "/dev/shm"] if sys.platform == "linux" else [tempfile.gettempdir()]


def _host() -> str:
    """What only processes of one boot of one host have in common."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return os.uname().nodename


def _compare(own: _SegmentCard, found: list[bytes]) -> None:
    """Every rank must be of the same group, version and host."""
    for peer, data in enumerate(found):
        try:
            card = msgspec.json.decode(data, type=decodable(_SegmentCard))
        except msgspec.MsgspecError as error:
            raise Mismatch(
                f"expected the card of rank {peer} of a shared memory group, found something else: {error}."
            ) from error
        for name in ("version", "layout", "host", "ranks"):
            if getattr(card, name) != getattr(own, name):
                raise Mismatch(
                    f"expected {name} {getattr(own, name)} on rank {peer} as on rank {own.rank}, found "
                    f"{getattr(card, name)}: shared memory joins ranks of one host and one version of Coppice."
                )
        if card.rank != peer:
            raise Mismatch(
                f"expected rank {peer} at place {peer} of the exchange, found rank {card.rank}: give each its own."
            )
    if len(found) != own.ranks:
        raise Mismatch(
            f"expected {own.ranks} ranks in the exchange, found {len(found)}: use one of the same group."
        )


def _attempt(
    place: str, rank: int, ranks: int, exchange: Exchange, host: int, sizes: tuple[int, int, int]
) -> tuple[_run.ShmRank | None, list[str]]:
    """The segment in one place, or what ranks say against it: the same answer on all ranks."""
    end: _run.ShmRank | None = None
    word = _Word()
    if rank == 0:
        path = ""
        if place:
            _sweep(Path(place))
            path = str(Path(place) / f"{_PREFIX}{secrets.token_hex(8)}")
        try:
            end = _run.shm_create(path, ranks, host, *sizes)
            word = _Word(path=end.path)
        except CoppiceError as error:
            word = _Word(error=str(error))
    try:
        offer = msgspec.json.decode(exchange(msgspec.json.encode(word))[0], type=decodable(_Word))
        word = offer
        if rank != 0 and not offer.error:
            try:
                end = _run.shm_open(offer.path, rank, ranks, host)
            except CoppiceError as error:
                word = _Word(error=str(error))
        words = [
            msgspec.json.decode(data, type=decodable(_Word)) for data in exchange(msgspec.json.encode(word))
        ]
    finally:
        if rank == 0 and end is not None:
            end.unlink()
    errors = sorted({f"rank {peer}: {each.error}" for peer, each in enumerate(words) if each.error})
    if offer.error:
        errors = [f"rank 0: {offer.error}"]
    return (None, errors) if errors else (end, [])


def _sweep(directory: Path) -> None:
    """Remove segments that a killed rank 0 has left: old ones on which no process holds a lock."""
    with contextlib.suppress(OSError):
        for path in directory.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError), path.open("r+b") as file:
                if time.time() - path.stat().st_mtime > _STALE_AFTER_S:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()


Fault = tuple[int, int, int]
"""Kind as in the native core, the rank at fault, and the rank that found it."""

_LOST, _LEFT, _TIMED_OUT, _MISMATCH, _FULL, _INTERRUPTED = range(1, 7)

_REASONS = {_LOST: "has ended", _LEFT: "has closed its engine", _INTERRUPTED: "has given up"}


def raise_fault(fault: Fault | None, rank: int, what: str, timeout_s: float) -> None:
    """Raise the segment's fault, if any.

    Args:
        fault: What the native core says, None if all is well.
        timeout_s: How long it was ready to wait, in seconds.

    Examples:
        >>> raise_fault(None, 0, "all_reduce", 60)
        >>> raise_fault((1, 2, 0), 0, "a barrier", 60)
        Traceback (most recent call last):
        coppice.run.errors.PeerLost: rank 2 has ended while rank 0 needed it for a barrier: see the output of that rank.
    """
    if fault is None:
        return
    kind, culprit, by = fault
    if kind == _TIMED_OUT:
        if culprit == rank:
            msg = f"rank {rank} came too late to {what}: the other ranks have given up waiting."
        else:
            msg = (
                f"rank {culprit} did not do its part of {what} within {timeout_s:g} s: see what that rank does, "
                "or allow more time."
            )
        raise TimedOut(msg)
    if kind == _MISMATCH:
        raise Mismatch(
            f"expected the same {what} on all ranks, found that rank {by} and rank {culprit} differ in the "
            "collective, its size, type, operation or root: make the same calls on all ranks."
        )
    if kind == _FULL:
        raise RunError(
            f"expected memory for the data of {what}, found none left for rank {culprit}: make room where the "
            "segment lies, or name another directory in memory with COPPICE_SHM_DIR."
        )
    raise PeerLost(
        f"rank {culprit} {_REASONS[kind]} while rank {rank} needed it for {what}: see the output of that rank."
    )


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
                :func:`~coppice.run.engines.shared_memory.store_exchange` or
                :func:`~coppice.run.engines.shared_memory.directory_exchange` makes. It is not used any more
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
