"""Interface of put/signal devices: a memory window, and streams of calls.

All of it is asynchronous, as on a GPU: calls return when they are issued, and :meth:`PutSignalDevice.finish` waits.
Windows are alike on all ranks, so that an offset at a peer is one into the caller's own window, in bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from coppice.errors import InputError
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.put_signal.kernels import LocalCall


@dataclass(frozen=True, slots=True)
class Put:
    """A put with its signal, or a signal alone."""

    peer: int  # Rank that it goes to
    source: int  # First byte in the own window
    target: int  # First byte in the window of the peer
    num_bytes: int  # How many; 0 for a signal alone
    signal: int  # Signal index
    context: int  # Context


@dataclass(frozen=True, slots=True)
class Awaited:
    """Signals that a wait consumes."""

    peer: int  # Rank that they come from
    count: int  # How many, 1 or more
    signal: int  # Signal index
    context: int  # Context


class PutSignalDevice(Protocol):
    """Endpoint of one rank in a library with puts and signals."""

    name: str  # What it is called in messages
    rank: int  # This rank
    ranks: int  # Number of ranks
    signals: int  # Signal indices of a pair that it offers
    # A counter holds one signal at most, as in CUDA graphs: only programs that may be captured run on it
    single: bool
    captures: bool  # Its calls can be recorded and replayed, as in CUDA graphs

    def recording(self) -> bool:
        """Whether calls are being captured instead of executed."""

    def refusal(self, op: ReduceOp, dtype: DataType) -> str:
        """Why it cannot reduce elements of a type, or nothing; the same on all ranks."""

    def elements(
        self, buffer: Any, dtype: DataType, elements: int, *, name: str, writable: bool = False
    ) -> Any:
        """First elements of the caller's buffer, flat and without a copy."""

    def prepare(self, num_bytes: int, *, communicators: int, streams: int) -> None:
        """Ensure a window of ``num_bytes``, communicators and streams; collective over the ranks.

        What the window held is gone where it grows. It goes before every run, and orders it after the one before.
        """

    def begin(self) -> None:
        """Make all streams wait for the caller's issued work."""

    def write(self, offset: int, values: Any) -> None:
        """Copy contiguous values into the own window, before :meth:`begin`."""

    def read(self, offset: int, into: Any) -> None:
        """Copy values out of the own window, after :meth:`join` or :meth:`finish`."""

    def divide(self, dtype: DataType, values: Any, ranks: int) -> None:
        """Divide the caller's values, after :meth:`read`."""

    def transfer(self, communicator: int, stream: int, puts: Sequence[Put]) -> None:
        """Put and signal, as one group."""

    def wait(self, communicator: int, stream: int, awaited: Sequence[Awaited]) -> None:
        """Make the stream wait for signals."""

    def copy(self, stream: int, source: int, target: int, num_bytes: int) -> None:
        """Copy within the own window."""

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
        """``target = source (op) addend`` within the own window; the target may be either of them."""

    def local(self, stream: int, call: LocalCall, dtype: DataType, op: ReduceOp) -> None:
        """Copy and reduce."""

    def finish(self, what: str, timeout_s: float) -> None:
        """Synchronise with all streams."""

    def join(self, what: str, timeout_s: float, *, into: Any) -> None:
        """Make the caller's next work wait for all streams.

        A caller without a stream of its own, or whose ``into`` is memory of the host, waits here. Otherwise nobody
        does, and a run that fails or takes longer than ``timeout_s`` makes the next :meth:`prepare` raise.
        """

    def abort(self, reason: str) -> None:
        """Abort, and notify the other ranks where possible."""

    def close(self) -> None:
        """Release everything; idempotent."""


def window_missing(num_bytes: int) -> InputError:
    """Error for a window that would have to grow during capture."""
    return InputError(
        f"expected a window of {num_bytes} bytes before calls are recorded, found a smaller one: make the same call "
        "once before."
    )
