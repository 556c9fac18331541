"""Pushes and pulls of a plan carried to parameter servers, in the order of simulation."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from coppice.iteration.policies.messages import Message
from coppice.training.torch.overlap.carrier import Carrier
from coppice.training.torch.overlap.planning import LaunchPlan
from coppice.training.torch.overlap.streams import Streams
from coppice.training.torch.servers.client import ParameterServers, SlicePlace


class _PulledValues:
    """Values of a slice on their way."""

    def __init__(self) -> None:
        self._there = threading.Event()
        self._error: BaseException | None = None

    def wait(self) -> None:
        """They are there."""
        self._there.wait()
        if self._error is not None:
            raise self._error

    def end(self, error: BaseException | None = None) -> None:
        """They are there, or never will be."""
        self._error = error
        self._there.set()


class ServerCarrier(Carrier):
    """Carries slices to servers and back; what is in a pool at the end are values of parameters.

    Args:
        plan: Messages and their order: pushes, and pulls behind them.
        tensors: The tensor of each layer.
        streams: The workers.
        timeout_s: Longest wait for a message.
        servers: The servers.
    """

    collective = False

    def __init__(
        self,
        plan: LaunchPlan,
        tensors: Sequence[torch.nn.Parameter],
        streams: Streams,
        timeout_s: float,
        *,
        servers: ParameterServers,
    ) -> None:
        super().__init__(plan, tensors, streams, timeout_s)
        self._parameter_servers = servers
        self._number: dict[tuple[tuple[int, ...], float], int] = {}
        places: list[SlicePlace] = []
        pushes: dict[int, int] = {}
        for turn, message in enumerate(plan.messages):
            parts = self._slices(message) if message.collective == "push" else []
            if parts:  # cuts are at whole elements, and a slice may be less than one
                (layer,) = message.gradients
                begin = int(parts[0].storage_offset() - self.views[layer][0].storage_offset())
                number = len(places)
                pushes[turn] = self._number[message.gradients, message.offset_bytes] = number
                places.append(SlicePlace(tensors[layer], begin, parts[0], number % len(servers.addresses)))
        pulls = [each for each in plan.messages if each.collective == "pull"]
        self._answered = all(
            self._of(each) is None or [pushes.get(turn) for turn in each.after] == [self._of(each)]
            for each in pulls
        )
        self._values: list[_PulledValues] = []
        servers.connect(places, self._received, self._lost)

    def begin(self) -> None:
        """See :meth:`Carrier.begin`."""
        self._values = [_PulledValues() for _ in self._number]
        self._parameter_servers.begin()
        super().begin()

    def _of(self, message: Message) -> int | None:
        """Number of the slice of a message; None: it has no element."""
        return self._number.get((message.gradients, message.offset_bytes))

    def _push(self, message: Message, group: Any) -> list[Any]:
        del group
        number = self._of(message)
        if number is not None:
            self._parameter_servers.push(number, message.priority, answered=self._answered)
        return []

    def _pull(self, message: Message, group: Any) -> list[Any]:
        del group
        number = self._of(message)
        if number is None:
            return []
        if not self._answered:
            self._parameter_servers.pull(number, message.priority)
        return [self._values[number]]

    def _received(self, number: int) -> None:
        self._values[number].end()

    def _lost(self, error: BaseException) -> None:
        self._fail(error)
        for each in self._values:
            each.end(error)
