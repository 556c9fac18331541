"""Engine over MPI, and MPI's own collectives: messages are persistent requests of mpi4py.

Engine over MPI: messages are persistent requests of mpi4py. Requests are made once for a program and its buffers, when
they are first started, so that a later run of the same is no more than starting them. Between runs they know addresses
only: whoever frees a buffer frees its memory, and memory that comes back at the same address finds its requests again.
Ranks that give up tell the others by a message on a communicator of their own; nobody waits for a rank that is gone.

MPI's own collectives on memory as programs use it.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError, MissingExtraError
from coppice.program.dialects.rank.program import RankProgram, RowKind
from coppice.rows import first_rows
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.engine import BaseEngine
from coppice.run.engines.interpreter import RankMemory
from coppice.run.engines.progress import ExecutionOrder, carry_out
from coppice.run.errors import PeerLost, RunError, TimedOut


def run_native(
    mpi: Any,  # The module `mpi4py.MPI`
    communicator: Any,
    collective: Collective,
    given: NDArray[Any] | None,  # INPUT, or None
    output: NDArray[Any],
    *,
    op: ReduceOp,  # The reduction; an average is a sum that is divided afterwards
    root: int,  # Root rank, or -1
) -> None:
    """Run MPI's collective; in place if no input is given."""
    source = mpi.IN_PLACE if given is None else given
    rank, ranks = communicator.Get_rank(), communicator.Get_size()
    names = {ReduceOp.AVG: "SUM", ReduceOp.PRODUCT: "PROD"}
    operation = getattr(mpi, names.get(op, op.name))
    match collective:
        case Collective.ALL_REDUCE:
            communicator.Allreduce(source, output, op=operation)
        case Collective.ALL_GATHER:
            communicator.Allgather(source, output)
        case Collective.REDUCE_SCATTER:
            communicator.Reduce_scatter_block(source, output, op=operation)
        case Collective.BROADCAST:
            communicator.Bcast(output, root=root)
        case Collective.REDUCE:
            # Programs reduce in place; elsewhere than at the root, MPI calls that memory the send buffer.
            at_root = rank == root
            communicator.Reduce(
                mpi.IN_PLACE if at_root else output, output if at_root else None, operation, root
            )
        case Collective.ALL_TO_ALL:
            communicator.Alltoall(source, output)
        case Collective.GATHER if given is None and rank != root:
            communicator.Gather(output, None, root=root)
        case Collective.GATHER:
            communicator.Gather(source, output, root=root)
        case Collective.SCATTER if given is None and rank != root:
            communicator.Scatter(None, output, root=root)
        case Collective.SCATTER if given is None:
            communicator.Scatter(output, mpi.IN_PLACE, root=root)
        case Collective.SCATTER:
            communicator.Scatter(source, output, root=root)
        case Collective.BARRIER:
            communicator.Barrier()
    if op is ReduceOp.AVG and collective.reduces and (collective is not Collective.REDUCE or rank == root):
        output /= ranks


_KEPT = 32
"""Programs with their buffers whose requests are kept."""

_FAILED, _CLOSED = 1, 2
_POLL_S = 200e-6
_GRACE_S = 1.0


class MpiEngine(BaseEngine):
    """Endpoint of one rank in an MPI communicator.

    Args:
        communicator: An mpi4py communicator (default: ``COMM_WORLD``); it is duplicated, so that its own messages
            and collectives do not mix with ours.
        exchange_timeout_s: Longest time to wait in an exchange, in seconds.

    Raises:
        MissingExtraError: If mpi4py is not installed.
    """

    name = "mpi"

    def __init__(self, communicator: Any = None, *, exchange_timeout_s: float = 300.0) -> None:
        try:
            from mpi4py import MPI
        except ImportError:
            package = "mpi4py"
            raise MissingExtraError.of(package, extra="mpi") from None
        self.mpi = MPI
        given = MPI.COMM_WORLD if communicator is None else communicator
        self.data, self._notices = given.Dup(), given.Dup()
        super().__init__(given.Get_rank(), given.Get_size(), exchange_timeout_s)
        self._largest_tag = int(given.Get_attr(MPI.TAG_UB) or 32767)
        self._orders: OrderedDict[int, tuple[RankProgram, ExecutionOrder]] = OrderedDict()
        self._kept: OrderedDict[tuple[Any, ...], _Requests] = OrderedDict()
        self._under_way: _MpiTransport | None = None
        self._gone: dict[int, float] = {}
        self._sent: list[Any] = []

    def _carry_out(
        self, program: RankProgram, given: Any, wanted: Any, dtype: DataType, op: ReduceOp, timeout_s: float
    ) -> None:
        if len(program.tag) and int(program.tag.max()) > self._largest_tag:
            raise InputError(
                f"expected at most {self._largest_tag + 1} messages between two ranks, the tags of this MPI library, "
                f"found {int(program.tag.max()) + 1}: choose longer pieces."
            )
        memory = RankMemory(program, given, wanted, dtype=dtype, op=op)
        with self._telling_others(str(program.collective)):
            requests = self._requests(program, memory, dtype)
            self._under_way = _MpiTransport(self, requests, memory)
            carry_out(requests.order, memory, requests.staging, self._under_way, timeout_s=timeout_s)
            self._under_way = None

    def native(
        self,
        collective: Collective,
        given: NDArray[Any] | None,
        output: NDArray[Any],
        *,
        dtype: DataType,
        op: ReduceOp,
        root: int,
    ) -> None:
        """See :meth:`~coppice.run.bench.measuring.Native.native`: MPI's own collective, without a timeout."""
        if dtype in (DataType.BFLOAT16, DataType.FLOAT16):
            raise InputError(
                f"expected a type that MPI knows, found {dtype}: choose float32, or leave native out."
            )
        if given is None and collective is Collective.REDUCE_SCATTER:
            raise InputError(
                "MPI's reduce-scatter in place puts the result elsewhere: leave native or `in_place` out."
            )
        run_native(self.mpi, self.data, collective, given, output, op=op, root=root)

    def native_blocks(
        self,
        given: NDArray[Any],
        wanted: NDArray[Any],
        sent: Sequence[int],
        received: Sequence[int],
        *,
        dtype: DataType,
    ) -> None:
        """See :meth:`coppice.run.bench.skewed.NativeBlocks.native_blocks`: MPI's ``Alltoallv``, without a timeout."""
        self._check_open()
        buffers = []
        for memory, counts in ((given, sent), (wanted, received)):
            in_bytes = np.array(counts, dtype=np.int64) * dtype.itemsize
            places = (in_bytes.tolist(), first_rows(in_bytes).tolist())
            buffers.append([memory.view(np.uint8), places, self.mpi.BYTE])
        self.data.Alltoallv(*buffers)

    def stream(
        self,
        *,
        out: NDArray[np.uint8] | None,
        dst: int,
        into: NDArray[np.uint8] | None,
        src: int,
        timeout_s: float,
    ) -> NDArray[np.float64]:
        """See :meth:`coppice.run.engines.engine.StreamingEngine.stream`."""
        self._check_open()
        arrived = np.zeros(0 if into is None else len(into))
        with self._telling_others("a stream"):
            begin = time.perf_counter()
            requests = [self.data.Irecv(row, src) for row in (() if into is None else into)]
            requests += [self.data.Isend(row, dst) for row in (() if out is None else out)]
            peers = [*(() if into is None else (src,)), *(() if out is None else (dst,))]
            left = len(requests)
            try:
                while left:
                    done = self.mpi.Request.Testsome(requests) or ()
                    now = time.perf_counter() - begin
                    left -= len(done)
                    for place in done:
                        if place < len(arrived):
                            arrived[place] = now
                    if done:
                        continue
                    self.look_around(peers)
                    if now > timeout_s:
                        raise TimedOut(
                            f"rank {self.rank} waited {timeout_s:g} s in a stream for ranks {src} and {dst}: see what "
                            "they do, or allow more time."
                        )
                    time.sleep(_POLL_S)
            except BaseException:
                _keep_for_ever((requests, out, into))
                raise
        return arrived

    def exchange(self, data: bytes) -> list[bytes]:
        """See :meth:`coppice.run.engines.engine.Engine.exchange`."""
        self._check_open()
        with self._telling_others("an exchange"):
            lengths = np.empty(self.ranks, dtype=np.int64)
            own = np.array([len(data)], dtype=np.int64)
            self._finish(self.data.Iallgather(own, lengths), own, lengths)
            found = np.empty(int(lengths.sum()), dtype=np.uint8)
            mine = np.frombuffer(data, dtype=np.uint8)
            starts = first_rows(lengths)
            counts = (lengths.tolist(), starts.tolist())
            request = self.data.Iallgatherv([mine, self.mpi.BYTE], [found, counts, self.mpi.BYTE])
            self._finish(request, mine, found)
            ends = (starts + lengths).tolist()
            return [found[begin:end].tobytes() for begin, end in zip(starts.tolist(), ends, strict=True)]

    def subset(self, ranks: Sequence[int]) -> MpiEngine:
        """This rank's engine in the group of ``ranks``, in that order; collective over those ranks only.

        Raises:
            InputError: If they are not different ranks, or this one is not among them.
        """
        self._check_open()
        group = self.data.Get_group().Incl(self._members(ranks))
        try:
            made = self.data.Create_group(group, tag=min(ranks))
        finally:
            group.Free()
        try:
            return MpiEngine(made, exchange_timeout_s=self._exchange_timeout_s)
        finally:
            made.Free()

    def close(self) -> None:
        """Block until all ranks close, or one fails (:meth:`coppice.run.engines.engine.Engine.close`).

        It is a collective: ranks of several groups close these in the same order. A rank must not be told anything when
        it has left, for MPICH connects to it again and again, and never returns.
        """
        if self._closed:
            return
        self._closed = True
        if not self._closed_together():
            self._linger()
        _keep_for_ever(self._sent)
        while self._kept:
            self._kept.popitem()[1].free()

    def _closed_together(self) -> bool:
        """Wait until all ranks close their engines, and let those know that wait for this one; False if one failed."""
        self._hear()
        if self._lost is not None:
            return False
        barrier, begin, told = self._notices.Ibarrier(), time.monotonic(), False
        while not barrier.Test():
            self._hear()
            waited_s = time.monotonic() - begin
            late = waited_s > self._exchange_timeout_s
            if late and self._lost is None:
                self.notify_others(_FAILED, f"waited {waited_s:.0f} s for the others to close their engines")
            if late or self._lost is not None:
                _keep_for_ever(barrier)
                return False
            if waited_s > _GRACE_S and not told:
                self.notify_others(_CLOSED, "closed its engine")
                told = True
            time.sleep(_POLL_S)
        return True

    def _linger(self) -> None:
        """Answer ranks that tell of a failure at the same time."""
        end = time.monotonic() + _GRACE_S
        while time.monotonic() < end:
            self._hear()
            time.sleep(_POLL_S)

    @contextlib.contextmanager
    def _telling_others(self, what: str) -> Iterator[None]:
        """Tell the other ranks when the body raises; the engine is of no more use then."""
        try:
            yield
        except InputError:
            raise
        except BaseException as error:
            if self._under_way is not None:
                self._under_way.abandon()
            if self._lost is None:
                kind = type(error).__name__
                self.notify_others(_FAILED, f"failed in {what} with {kind}")
                self._lost = f"the group broke earlier: {error if isinstance(error, RunError) else kind}"
            raise

    def _requests(self, program: RankProgram, memory: RankMemory, dtype: DataType) -> _Requests:
        key = (id(program), dtype.itemsize, *memory.addresses)
        found = self._kept.get(key)
        if found is None:
            if id(program) not in self._orders:
                self._orders[id(program)] = (program, ExecutionOrder(program))
            order = self._orders[id(program)][1]
            found = self._kept[key] = _Requests(self.mpi, order, memory)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)[1].free()
            while len(self._orders) > _KEPT:
                self._orders.popitem(last=False)
        else:
            memory.use_scratch(found.scratch)
        self._kept.move_to_end(key)
        self._orders.move_to_end(id(program))
        return found

    def _finish(self, request: Any, *memory: NDArray[Any]) -> None:
        """Wait for one request, in naps."""
        end = time.monotonic() + self._exchange_timeout_s
        try:
            while not request.Test():
                self.look_around(range(self.ranks))
                if time.monotonic() > end:
                    raise TimedOut(
                        f"rank {self.rank} waited {self._exchange_timeout_s:g} s in an exchange for the other "
                        "ranks: see what they do, or allow more time."
                    )
                time.sleep(_POLL_S)
        except BaseException:
            _keep_for_ever((request, memory))
            raise

    def look_around(self, awaited: Iterable[int]) -> None:
        """Raise if a rank reported a failure, or one of ``awaited`` closed its engine."""
        self._hear()
        if self._lost is not None:
            raise PeerLost(self._lost)
        late = time.monotonic() - _GRACE_S
        for peer in awaited:
            # What it sent before it closed may still be on its way.
            if self._gone.get(peer, late) < late:
                raise PeerLost(
                    f"rank {peer} closed its engine while rank {self.rank} waited for it: see its output."
                )

    def _hear(self) -> None:
        """Take in what other ranks have told."""
        status = self.mpi.Status()
        while self._notices.Iprobe(source=self.mpi.ANY_SOURCE, tag=self.mpi.ANY_TAG, status=status):
            peer, tag = status.Get_source(), status.Get_tag()
            words = bytearray(status.Get_count(self.mpi.BYTE))
            self._notices.Recv([words, self.mpi.BYTE], source=peer, tag=tag)
            self._gone.setdefault(peer, time.monotonic())
            if tag == _FAILED and self._lost is None:
                self._lost = f"rank {peer} {words.decode(errors='replace')}: see the output of that rank."

    def notify_others(self, tag: int, words: str) -> None:
        """Notify all other ranks of a failure; ranks that do not wait never read it."""
        data = bytearray(words.encode()[:200])
        for peer in range(self.ranks):
            if peer != self.rank:
                with contextlib.suppress(self.mpi.Exception):
                    # So short a message leaves at once; the buffer is kept for a library that sends it later.
                    self._sent.append((data, self._notices.Isend([data, self.mpi.BYTE], dest=peer, tag=tag)))


class _Requests:
    """The requests of one program on one set of buffers.

    Attributes:
        order: Of the program.
    """

    def __init__(self, mpi: Any, order: ExecutionOrder, memory: RankMemory) -> None:
        self._mpi, self.order = mpi, order
        self.scratch = memory.scratch  # SCRATCH of every run
        # Memory for arrivals
        self.staging: NDArray[Any] = np.empty(order.staging_elements, dtype=memory.scratch.dtype)
        self.made: list[Any] = [None] * len(order.kind)  # The request of every row that was started once

    def free(self) -> None:
        """Give the requests back."""
        for request in self.made:
            if request is not None:
                with contextlib.suppress(self._mpi.Exception):
                    request.Free()
        self.made = []


class _MpiTransport:
    """One run of a program: the transport of :func:`carry_out`."""

    def __init__(self, engine: MpiEngine, requests: _Requests, memory: RankMemory) -> None:
        self.mpi, self._engine, self._requests, self._memory = engine.mpi, engine, requests, memory
        self._made, self._program = requests.made, requests.order.program
        self._active: list[Any] = []
        self._rows: list[int] = []

    def start(self, row: int) -> None:
        """Start the message of a row."""
        request = self._made[row]
        if request is None:
            request = self._made[row] = self._request(row)
        request.Start()
        self._active.append(request)
        self._rows.append(row)

    def _request(self, row: int) -> Any:
        order, data = self._requests.order, self._engine.data
        place = order.arrival(row, self._requests.staging) if order.staged[row] else self._memory.at(row)
        # Requests keep what they are given: with the array itself, buffers would outlive their last user.
        buffer = [self.mpi.buffer.fromaddress(place.ctypes.data, place.nbytes), self.mpi.BYTE]
        peer, tag = int(self._program.peer[row]), int(self._program.tag[row])
        if order.kind[row] == RowKind.SEND:
            return data.Send_init(buffer, dest=peer, tag=tag)
        return data.Recv_init(buffer, source=peer, tag=tag)

    def completed(self) -> list[int]:
        """Rows whose messages have completed since the last call."""
        try:
            found = self.mpi.Request.Testsome(self._active)
        except self.mpi.Exception as error:
            raise PeerLost(
                f"rank {self._engine.rank} lost another rank ({error}): see the output of the others."
            ) from None
        if not found:
            return []
        rows = [self._rows[place] for place in found]
        gone = set(found)
        keep = [place for place in range(len(self._rows)) if place not in gone]
        self._active = [self._active[place] for place in keep]
        self._rows = [self._rows[place] for place in keep]
        return rows

    def look_around(self) -> None:
        """Raise if another rank has given up."""
        peers = self._program.peer
        self._engine.look_around({int(peers[row]) for row in self._rows})

    def abandon(self) -> None:
        """Leave what is under way as it is: the group is of no more use."""
        self._requests.made = []
        _keep_for_ever(self)


def _keep_for_ever(what: Any) -> None:
    """Keep the memory of messages that may never complete: MPI is finalized after Python has let go of everything."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(what))
