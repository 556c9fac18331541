"""Graphs of the emulated device: calls captured once and replayed, as CUDA graphs are.

A replay issues what was recorded and nothing else: no window is made, nothing is exchanged between the hosts, and no
number that a host keeps goes into it. Every rank replays as often as all others.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from coppice.errors import InputError
from coppice.run.engines.put_signal.emulated import EmulatedDevice


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
