"""Reference engine: ranks are threads of one process with message queues.

It is for tests and for trying things out, not for speed. It looks at nothing but the program, and reports what goes
wrong as engines must: a rank that closes its engine, or raises, is lost to all that still wait for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.program.dialects.rank.program import RankProgram, RowKind
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.engine import BaseEngine
from coppice.run.engines.interpreter import RankMemory
from coppice.run.errors import Mismatch, PeerLost, TimedOut

_Result = TypeVar("_Result")
_Message = tuple[int, NDArray[Any]]


@dataclass
class _Hub:
    """What the ranks of a group share; everything is touched with ``changed`` held."""

    ranks: int
    changed: threading.Condition = field(default_factory=threading.Condition)
    queues: dict[tuple[int, int], deque[_Message]] = field(default_factory=dict)
    rounds: dict[int, dict[int, bytes]] = field(default_factory=dict)
    gone: dict[int, str] = field(default_factory=dict)
    failed: str = ""
    groups: dict[tuple[int, tuple[int, ...]], _Hub] = field(default_factory=dict)


def numpy_engines(ranks: int, *, exchange_timeout_s: float = 300.0) -> list[NumpyEngine]:
    """Engines of a new group, one per rank, each for one thread.

    Args:
        ranks: Number of ranks, 1 or more.
        exchange_timeout_s: Longest time to wait in an exchange, in seconds.

    Raises:
        InputError: If there is no rank.
    """
    if ranks < 1:
        raise InputError(f"expected 1 rank or more, found {ranks}.")
    hub = _Hub(ranks)
    return [NumpyEngine(hub, rank, exchange_timeout_s) for rank in range(ranks)]


class NumpyEngine(BaseEngine):
    """Endpoint of one rank in a group of threads; made by :func:`numpy_engines`."""

    name = "numpy"

    def __init__(self, hub: _Hub, rank: int, exchange_timeout_s: float) -> None:
        super().__init__(rank, hub.ranks, exchange_timeout_s)
        self._hub, self._rounds = hub, 0

    def _carry_out(
        self, program: RankProgram, given: Any, wanted: Any, dtype: DataType, op: ReduceOp, timeout_s: float
    ) -> None:
        memory = RankMemory(program, given, wanted, dtype=dtype, op=op)
        with self._failing_together(f"{program.collective} of rank {self.rank}"):
            for begin, end in pairwise(program.step_start.tolist()):
                self._step(memory, range(begin, end), timeout_s)
            memory.finish()

    def _step(self, memory: RankMemory, rows: range, timeout_s: float) -> None:
        program = memory.program
        for row in rows:
            if program.kind[row] == RowKind.SEND:
                self._put(int(program.peer[row]), (int(program.tag[row]), memory.at(row).copy()))
        for row in rows:
            match int(program.kind[row]):
                case RowKind.COPY:
                    memory.copy(row)
                case RowKind.RECV:
                    memory.at(row)[:] = self._get(program, row, timeout_s)
                case RowKind.RECV_REDUCE:
                    memory.add(row, self._get(program, row, timeout_s))

    def _put(self, peer: int, message: _Message) -> None:
        hub = self._hub
        with hub.changed:
            hub.queues.setdefault((self.rank, peer), deque()).append(message)
            hub.changed.notify_all()

    def _get(self, program: RankProgram, row: int, timeout_s: float) -> NDArray[Any]:
        peer, tag, length = int(program.peer[row]), int(program.tag[row]), int(program.length[row])
        hub = self._hub
        with hub.changed:
            queue = hub.queues.setdefault((peer, self.rank), deque())
            self._wait(lambda: bool(queue), peer, str(program.collective), timeout_s)
            found, data = queue.popleft()
        if found != tag or len(data) != length:
            raise Mismatch(
                f"expected message {tag} of {length} elements from rank {peer} in {program.collective} at rank "
                f"{self.rank}, found message {found} of {len(data)}: run the same collective on all ranks."
            )
        return data

    def exchange(self, data: bytes) -> list[bytes]:
        """See :meth:`coppice.run.engines.engine.Engine.exchange`."""
        hub, number = self._hub, self._rounds
        self._rounds += 1
        with self._failing_together(f"an exchange of rank {self.rank}"), hub.changed:
            here = hub.rounds.setdefault(number, {})
            here[self.rank] = bytes(data)
            hub.changed.notify_all()
            for peer in range(self.ranks):
                self._wait(lambda peer=peer: peer in here, peer, "an exchange", self._exchange_timeout_s)  # type: ignore[misc]
            hub.rounds.pop(number - 1, None)  # every rank has answered this round, so has left the one before
            return [here[rank] for rank in range(self.ranks)]

    def subset(self, ranks: Sequence[int]) -> NumpyEngine:
        """See :meth:`coppice.run.engines.engine.GroupingEngine.subset`."""
        members = tuple(self._members(ranks))
        hub = self._hub
        with hub.changed:
            group = hub.groups.setdefault((len(self._groups), members), _Hub(len(members)))
        engine = NumpyEngine(group, members.index(self.rank), self._exchange_timeout_s)
        self._groups.append(engine)
        return engine

    def close(self) -> None:
        """See :meth:`coppice.run.engines.engine.Engine.close`."""
        super().close()
        with self._hub.changed:
            self._hub.gone.setdefault(self.rank, "closed its engine")
            self._hub.changed.notify_all()

    def _wait(self, arrived: Callable[[], bool], peer: int, what: str, timeout_s: float) -> None:
        """Wait, with the condition held, until something has arrived from ``peer``."""
        hub, end = self._hub, time.monotonic() + timeout_s
        while not arrived():
            if peer in hub.gone:
                raise PeerLost(
                    f"rank {peer} {hub.gone[peer]} while rank {self.rank} waited for it in {what}: see its output."
                )
            if hub.failed:
                raise PeerLost(
                    f"rank {self.rank} gave up {what}, because {hub.failed}: see the output of that rank."
                )
            if self.rank in hub.gone:
                raise self.closed_error
            left = end - time.monotonic()
            if left <= 0:
                raise TimedOut(
                    f"rank {self.rank} waited {timeout_s:g} s in {what} for rank {peer}: see what that rank does, or "
                    "allow more time."
                )
            hub.changed.wait(left)

    @contextmanager
    def _failing_together(self, what: str) -> Iterator[None]:
        """Tell the other ranks of the group when the body raises; the first failure counts."""
        try:
            yield
        except BaseException as error:
            with self._hub.changed:
                self._hub.failed = self._hub.failed or f"{what} failed with {type(error).__name__}"
                self._hub.changed.notify_all()
            raise


def run_ranks(
    ranks: int, work: Callable[[NumpyEngine], _Result], **options: float
) -> list[_Result | BaseException]:
    """Run ``work`` for every rank in a thread, and join them.

    A rank that raises has its engine closed, so that the others do not wait for it; what it raised takes the place of
    its result.

    Args:
        ranks: Number of ranks.
        work: Called with the engine of each rank.
        options: As for :func:`numpy_engines`.

    Examples:
        >>> [answer[1] for answer in run_ranks(2, lambda engine: engine.exchange(b"%d" % engine.rank))]
        [b'1', b'1']
    """
    results: list[_Result | BaseException] = [InputError("not started")] * ranks

    def serve(engine: NumpyEngine) -> None:
        try:
            results[engine.rank] = work(engine)
        except BaseException as error:  # noqa: BLE001  (it is the result)
            results[engine.rank] = error
        finally:
            engine.close()

    threads = [
        threading.Thread(target=serve, args=(engine,), daemon=True)
        for engine in numpy_engines(ranks, **options)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
