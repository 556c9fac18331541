"""Emulated put/signal device on CPUs: ranks share memory, and data arrives in random order, as late as allowed.

Each rank has a thread that carries out what its host issues, with no more order than the documents of the libraries
promise (``dialects.put_signal.program``): a put reads its source at any time before its call is over, its
data land at any time before its signal, also long after the call, and across peers and communicators in any order. What
comes next, and how long it is put off, is drawn from a seed. Threads and processes have a course of their own beside
it, so that one seed does not make one run: :mod:`coppice.program.dialects.put_signal.fuzzer` does that.

What a :class:`~coppice.run.engines.put_signal.emulated.EmulatedGraph` has recorded is carried out as CUDA graphs
of NCCL 2.30.3 are: signals are flags, apart from the counters of other calls and without any number that a host keeps;
a flag is raised when the one before was taken, and the call that raises it is over only then.

Data are written before the counters that signal them; other ranks see it so where stores keep their order (x86-64).

Graphs of the emulated device: calls captured once and replayed, as CUDA graphs are. A replay issues what was recorded
and nothing else: no window is made, nothing is exchanged between the hosts, and no number that a host keeps goes into
it. Every rank replays as often as all others.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import chain
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, cast

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.run.engines.datatype import DataType, ReduceOp, combine, divide, elements_of
from coppice.run.engines.put_signal.device import Awaited, Put, window_missing
from coppice.run.engines.put_signal.emulated_segment import (
    ABORTED,
    CLOSED,
    MOST_COMMUNICATORS,
    SIGNALS,
    EmulatedSegment,
)
from coppice.run.engines.put_signal.kernels import LocalCall
from coppice.run.errors import PeerLost, RunError, TimedOut


@dataclass(eq=False, slots=True)
class EmulatedCall:
    """An issued call."""

    blockers: int = 0
    left: int = 0
    over: bool = False
    captured: bool = False
    start: Callable[[], None] | None = None
    followers: list[EmulatedCall] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class EmulatedMessage:
    """A put or signal in flight."""

    put: Put
    communicator: int
    call: EmulatedCall
    data: NDArray[np.uint8] | None = None
    landed: bool = False


@dataclass(eq=False, slots=True)
class EmulatedWait:
    """Awaited signals: up to the ``number``-th of an eager counter, or a count of captured ones."""

    counter: tuple[int, int, int]
    number: int
    call: EmulatedCall


_READ, _LAND, _WORK = range(3)
_LOOK_AROUND_S = 0.05
"""How often the fate of peers is asked for while nothing happens."""
_SHORTEST_NAP_S, _LONGEST_NAP_S = 5e-5, 0.002
_MOST_DELAY = 24
"""Turns by which an action of the kind that a seed dislikes is put off."""


_Parameters = ParamSpec("_Parameters")


def _recorded(
    method: Callable[Concatenate[EmulatedDevice, _Parameters], None],
) -> Callable[Concatenate[EmulatedDevice, _Parameters], None]:
    """A method that is noted instead of carried out while calls are recorded."""

    @wraps(method)
    def called(self: EmulatedDevice, *given: _Parameters.args, **named: _Parameters.kwargs) -> None:
        if self.record is None:
            method(self, *given, **named)
        else:
            self.record.append(partial(method, self, *given, **named))

    return cast("Callable[Concatenate[EmulatedDevice, _Parameters], None]", called)


class EmulatedDevice:
    """One rank of the emulated device; see :class:`coppice.run.engines.put_signal.device.PutSignalDevice`.

    Args:
        rank: This rank.
        ranks: Number of ranks.
        exchange: Gives every rank the bytes of all, in rank order; used while windows are made.
        seed: What delays are drawn from; -1 for none, as fast as it goes.

    Raises:
        RunError: On every rank, if there is no memory that ranks could share.
    """

    name = "the emulated device"
    signals = SIGNALS
    single = False
    captures = True

    def __init__(
        self, rank: int, ranks: int, exchange: Callable[[bytes], list[bytes]], *, seed: int = -1
    ) -> None:
        self.rank, self.ranks = rank, ranks
        self._segment = EmulatedSegment(rank, ranks, exchange)
        self._generator = np.random.default_rng([max(seed, 0), rank])
        self._dislikes = -1 if seed < 0 else (_LAND, _READ, -1, _WORK)[seed % 4]
        self._slow = seed >= 0 and bool(self._generator.random() < 0.25)
        self._delayed = seed >= 0
        self._patience = 0
        self._num_bytes = -1
        self._changed = threading.Condition()
        self._last: dict[tuple[int, int], EmulatedCall] = {}
        self._open = 0
        self._enabled: list[tuple[int, Any]] = []
        self._lines: dict[tuple[int, int], deque[EmulatedMessage]] = defaultdict(deque)
        self._flying = 0
        self._expected: dict[tuple[int, int, int], int] = defaultdict(int)
        self._waiting: list[EmulatedWait] = []
        self._blocked: set[tuple[int, int]] = set()
        # Where calls are noted while they are recorded, otherwise None
        self.record: list[Callable[[], None]] | None = None
        self.replaying = False  # What is issued now is the part of a graph
        self._failure: RunError | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._carry_on, name=f"emulated-{rank}", daemon=True)
        self._thread.start()

    def recording(self) -> bool:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.recording`."""
        return self.record is not None

    def refusal(self, op: ReduceOp, dtype: DataType) -> str:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.refusal`: nothing."""
        del op, dtype
        return ""

    def elements(
        self, buffer: Any, dtype: DataType, elements: int, *, name: str, writable: bool = False
    ) -> Any:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.elements`."""
        return elements_of(buffer, dtype, elements, name=name, writable=writable)

    def prepare(self, num_bytes: int, *, communicators: int, streams: int) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.prepare`."""
        del streams
        if communicators > MOST_COMMUNICATORS:
            raise InputError(
                f"expected a program of {MOST_COMMUNICATORS} communicators or fewer, found {communicators}: use fewer "
                "communicators."
            )
        if num_bytes > self._num_bytes:
            if self.record is not None:
                raise window_missing(num_bytes)
            self._num_bytes = 1 << max(num_bytes - 1, 4095).bit_length()
            self._segment.grow(self._num_bytes)

    def begin(self) -> None:
        """No operation: the caller's data is in memory."""

    @_recorded
    def write(self, offset: int, values: Any) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.write`."""
        data = values.reshape(-1).view(np.uint8)
        self._own[offset : offset + len(data)] = data

    @_recorded
    def read(self, offset: int, into: Any) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.read`."""
        data = into.reshape(-1).view(np.uint8)
        data[:] = self._own[offset : offset + len(data)]

    @_recorded
    def divide(self, dtype: DataType, values: Any, ranks: int) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.divide`."""
        divide(dtype, values, ranks)

    @_recorded
    def transfer(self, communicator: int, stream: int, puts: Sequence[Put]) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.transfer`."""
        call = EmulatedCall(left=len(puts))
        messages = [EmulatedMessage(put, communicator, call) for put in puts]

        def start() -> None:
            lone = []
            for message in messages:
                self._lines[communicator, message.put.peer].append(message)
                self._flying += 1
                if message.put.num_bytes:
                    self._enabled.append((_READ, message))
                else:
                    lone.append(message)
            for message in lone:
                message.landed = True
                self._arrive(message)
                if not call.captured:
                    self._one_less(call)

        self._issue(call, start, stream, communicator)

    @_recorded
    def wait(self, communicator: int, stream: int, awaited: Sequence[Awaited]) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.wait`."""
        call = EmulatedCall(left=len(awaited))

        def start() -> None:
            for each in awaited:
                counter, number = (communicator, each.peer, each.signal), each.count
                if not call.captured:
                    number = self._expected[counter] = self._expected[counter] + number
                self._waiting.append(EmulatedWait(counter, number, call))

        self._issue(call, start, stream, communicator)

    @_recorded
    def copy(self, stream: int, source: int, target: int, num_bytes: int) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.copy`."""

        def work() -> None:
            self._own[target : target + num_bytes] = self._own[source : source + num_bytes].copy()

        self._local(stream, work)

    @_recorded
    def add(
        self,
        stream: int,
        source: int,
        addend: int,
        target: int,
        num_bytes: int,
        dtype: DataType,
        op: ReduceOp,
    ) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.add`."""

        def work() -> None:
            one, other, out = (
                self._own[at : at + num_bytes].view(dtype.numpy_name) for at in (source, addend, target)
            )
            combine(op, dtype, one, other, out)

        self._local(stream, work)

    def local(self, stream: int, call: LocalCall, dtype: DataType, op: ReduceOp) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.local`."""
        for each in chain.from_iterable(call.levels):
            if each.addend < 0:
                self.copy(stream, each.source, each.target, each.num_bytes)
            else:
                self.add(stream, each.source, each.addend, each.target, each.num_bytes, dtype, op)

    def finish(self, what: str, timeout_s: float) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.finish`."""
        end = time.monotonic() + timeout_s
        with self._changed:
            while self._open and self._failure is None:
                left = end - time.monotonic()
                if left <= 0:
                    missing = sorted(
                        {each.counter[1] for each in self._waiting} | {peer for _, peer in self._blocked}
                    )
                    whom = f"rank {missing[0]}" if missing else "its own copies"
                    msg = (
                        f"rank {self.rank} waited {timeout_s:g} s in {what} for {whom}: see what that rank does, or "
                        "allow more time."
                    )
                    self._fail(TimedOut(msg))
                    break
                self._changed.wait(left)
            if self._failure is not None:
                raise self._failure

    @_recorded
    def join(self, what: str, timeout_s: float, *, into: Any) -> None:
        """As :meth:`finish`, since the caller has no stream."""
        del into
        self.finish(what, timeout_s)

    def abort(self, reason: str) -> None:
        """See :meth:`coppice.run.engines.put_signal.device.PutSignalDevice.abort`."""
        with self._changed:
            self._fail(PeerLost(f"rank {self.rank} has given up: {reason}"))

    def close(self) -> None:
        """Deliver outstanding messages, and leave."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._segment.close()

    @property
    def _own(self) -> NDArray[np.uint8]:
        return self._segment.windows[self.rank]

    def _local(self, stream: int, work: Callable[[], None]) -> None:
        call = EmulatedCall(left=1)
        self._issue(call, lambda: self._enabled.append((_WORK, (work, call))), stream, -1)

    def _issue(self, call: EmulatedCall, start: Callable[[], None], stream: int, communicator: int) -> None:
        """Put a call into the queues of its stream and communicator."""
        with self._changed:
            call.start, call.captured = start, self.replaying
            self._open += 1
            queues = [(0, stream)] if communicator < 0 else [(0, stream), (1, communicator)]
            for queue in queues:
                before = self._last.get(queue)
                if before is not None and not before.over:
                    before.followers.append(call)
                    call.blockers += 1
                self._last[queue] = call
            if not call.blockers:
                start()
            self._changed.notify_all()

    def _one_less(self, call: EmulatedCall) -> None:
        """One operation of a call is over."""
        call.left -= 1
        if call.left:
            return
        call.over = True
        self._open -= 1
        for follower in call.followers:
            follower.blockers -= 1
            if not follower.blockers and follower.start is not None:
                follower.start()
        if not self._open:
            self._changed.notify_all()

    def _arrive(self, message: EmulatedMessage) -> None:
        """Signals of a communicator reach a peer in their order, each after the data before it."""
        self._arrive_in_turn((message.communicator, message.put.peer))

    def _arrive_in_turn(self, place: tuple[int, int]) -> bool:
        """Let signals of a communicator reach a peer as far as their data have landed; whether one did."""
        line, happened = self._lines[place], False
        self._blocked.discard(place)
        while line and line[0].landed:
            first = line[0]
            if not first.call.captured:
                self._segment.count(first.communicator, first.put.peer, first.put.signal)
            elif self._segment.offer(first.communicator, first.put.peer, first.put.signal):
                self._one_less(first.call)
            else:
                self._blocked.add(place)
                return happened
            line.popleft()
            self._flying -= 1
            happened = True
        return happened

    def _fail(self, error: RunError) -> None:
        if self._failure is None:
            self._failure = error
            self._segment.publish(ABORTED)
        self._changed.notify_all()

    def _carry_on(self) -> None:
        """What the rank's thread does until the end."""
        nap, looked = 0.0, time.monotonic()
        while True:
            with self._changed:
                if self._failure is not None or (self._closing and not self._flying):
                    self._segment.publish(CLOSED)
                    return
                try:
                    happened = self._look_for_signals()
                    happened |= self._act()
                except Exception as error:  # noqa: BLE001  (the host must hear of it)
                    self._fail(RunError(f"rank {self.rank} cannot go on: {type(error).__name__}: {error}."))
                    continue
                if not happened:
                    now = time.monotonic()
                    if (self._waiting or self._blocked) and now - looked > _LOOK_AROUND_S:
                        looked = now
                        self._look_for_the_lost()
                    idle = not (self._waiting or self._enabled or self._blocked)
                    longest = _SHORTEST_NAP_S if self._enabled else _LONGEST_NAP_S
                    nap = _LOOK_AROUND_S if idle else min(longest, nap + _SHORTEST_NAP_S)
                    self._changed.wait(nap)
                    continue
            nap = 0.0
            if self._slow and self._generator.random() < 0.1:
                time.sleep(5e-4)

    def _look_for_signals(self) -> bool:
        happened = [self._arrive_in_turn(place) for place in list(self._blocked)]
        over = [each for each in self._waiting if self._signalled(each)]
        if over:
            self._waiting = [each for each in self._waiting if each not in over]
        for each in over:
            self._one_less(each.call)
        return bool(over) or any(happened)

    def _signalled(self, wait: EmulatedWait) -> bool:
        """What a wait waits for is there; captured signals are taken one by one."""
        if not wait.call.captured:
            return self._segment.counted(*wait.counter) >= wait.number
        while wait.number and self._segment.take(*wait.counter):
            wait.number -= 1
        return not wait.number

    def _look_for_the_lost(self) -> None:
        missing = [each.counter[1] for each in self._waiting] + [peer for _, peer in self._blocked]
        fates = {peer: self._segment.fate(peer) for peer in missing}  # before a last look at signals
        self._look_for_signals()
        for peer in [each.counter[1] for each in self._waiting] + [peer for _, peer in self._blocked]:
            if fates.get(peer):
                msg = f"rank {peer} {fates[peer]} while rank {self.rank} waited for it: see the output of that rank."
                self._fail(PeerLost(msg))
                return

    def _act(self) -> bool:
        """Carry out one action that is allowed, if the seed does not put all of them off."""
        if not self._enabled:
            return False
        place = int(self._generator.integers(len(self._enabled))) if self._delayed else 0
        if self._dislikes >= 0:
            liked = [at for at, (kind, _) in enumerate(self._enabled) if kind != self._dislikes]
            if liked:
                place = liked[place % len(liked)]
            elif self._patience > 0:
                self._patience -= 1
                return False
            else:
                self._patience = int(self._generator.integers(_MOST_DELAY))
        kind, what = self._enabled[place]
        self._enabled[place] = self._enabled[-1]
        self._enabled.pop()
        if kind == _WORK:
            work, call = what
            work()
            self._one_less(call)
            return True
        put: Put = what.put
        if kind == _READ:
            what.data = self._own[put.source : put.source + put.num_bytes].copy()
            self._enabled.append((_LAND, what))
            if not what.call.captured:
                self._one_less(what.call)
            return True
        window = self._segment.windows[put.peer]
        window[put.target : put.target + put.num_bytes] = what.data
        what.data, what.landed = None, True
        self._arrive(what)
        return True


class EmulatedGraph:
    """Captured calls of one rank; calls within ``with`` are captured instead of executed.

    Args:
        device: The rank's device.

    Examples:
        >>> from coppice.run.engines.numpy import numpy_engines
        >>> [below] = numpy_engines(1)
        >>> device = EmulatedDevice(0, 1, below.exchange)
        >>> device.prepare(4096, communicators=1, streams=1)
        >>> with EmulatedGraph(device) as graph:
        ...     device.copy(0, 0, 8, 8)
        >>> graph.calls
        1
        >>> graph.replay(timeout_s=10)
        >>> device.close()
    """

    def __init__(self, device: EmulatedDevice) -> None:
        self._device = device
        self._record: list[Callable[[], None]] = []

    @property
    def calls(self) -> int:
        """Number of captured calls."""
        return len(self._record)

    def __enter__(self) -> EmulatedGraph:
        if self._device.record is not None or self._record:
            raise InputError(
                "expected a new graph, and no other that is recorded: make one graph after the other."
            )
        self._device.record = self._record
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._device.record = None

    def replay(self, *, timeout_s: float = 300.0) -> None:
        """Execute the calls; collective over the ranks.

        Args:
            timeout_s: Longest wait for what comes last.
        """
        self._device.replaying = True
        try:
            for call in self._record:
                call()
        finally:
            self._device.replaying = False
        self._device.finish("a replay", timeout_s)
