"""Client of parameter servers on a worker: connections, slices, and ordered pushes and pulls."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from coppice.errors import CheckError, InputError
from coppice.iteration.policies.data_parallel.p3 import PriorityPropagation
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.data_parallel.tictac import TicTac
from coppice.iteration.step.plan import Message
from coppice.training.torch.core.streams import Streams
from coppice.training.torch.data_parallel.executors import MessageExecutor
from coppice.training.torch.data_parallel.recorder import LaunchPlan
from coppice.training.torch.data_parallel.server import (
    SERVED_OPTIMIZERS,
    FrameKind,
    ServerHello,
    ServerLink,
    ServerSlice,
    address_of,
    packed,
    raw,
    unpacked,
)

NOT_SUMMED = (
    "expected gradients to be left to servers, which have stepped with them, found a program that waits for them: call "
    "optimizer.step() first, or train without `servers`."
)


@dataclass(frozen=True)
class SlicePlace:
    """A slice of a parameter."""

    parameter: torch.nn.Parameter  # The parameter
    begin: int  # Its first element
    values: torch.Tensor  # Where its gradient, and then its values, lie
    server: int  # Number of the server that holds it

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Part of a tensor with the parameter's shape."""
        return tensor.detach().reshape(-1)[self.begin : self.begin + self.values.numel()]


class ParameterServers:
    """Connections to all servers.

    Args:
        addresses: Host and port of each.
        worker: Number of this worker.
        workers: How many there are.
        optimizer: The optimizer, before it is scheduled.
        timeout_s: Longest wait for a server.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        worker: int,
        workers: int,
        optimizer: torch.optim.Optimizer,
        timeout_s: float,
    ) -> None:
        self.addresses = list(addresses)
        self.connected = False
        self._worker, self._workers, self._timeout_s = worker, workers, timeout_s
        self._optimizer, self._class = optimizer, type(optimizer).__name__
        self._slices: list[SlicePlace] = []
        self._links: list[ServerLink] = []
        self._received: Callable[[int], None] = lambda _: None
        self._failed: Callable[[BaseException], None] = lambda _: None
        self._error: BaseException | None = None
        self._states: dict[int, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._versions: dict[int, int] = {}
        self._stale = True
        self._sent: list[dict[str, Any]] = []
        self._closing = False

    def connect(
        self,
        slices: Sequence[SlicePlace],
        received: Callable[[int], None],  # Told the number of a slice whose values are there
        failed: Callable[[BaseException], None],
    ) -> None:
        """Transfer slices to the servers."""
        self._slices, self._received, self._failed = list(slices), received, failed
        groups = self._optimizer.param_groups
        group_of = {id(p): number for number, group in enumerate(groups) for p in group["params"]}
        settings = _settings(groups)
        for server, address in enumerate(self.addresses):
            link = ServerLink(self._open(address))
            self._links.append(link)
            hello = ServerHello(
                worker=self._worker,
                workers=self._workers,
                optimizer=self._class,
                groups=settings,
                slices=[
                    ServerSlice(
                        number=number,
                        elements=each.values.numel(),
                        kind=str(each.values.dtype).removeprefix("torch."),
                        group=group_of[id(each.parameter)],
                    )
                    for number, each in enumerate(slices)
                    if each.server == server
                ],
            )
            link.send(FrameKind.HELLO, body=msgspec.msgpack.encode(hello))
            threading.Thread(
                target=self._receive, args=(server,), name=f"coppice {address}", daemon=True
            ).start()
        self.connected = True

    def begin(self) -> None:
        """Start a backward pass: worker 0 sends settings, and values changed outside the servers."""
        self._sent = _settings(self._optimizer.param_groups)
        stale, self._stale = self._stale, False
        if self._worker:
            return
        changed = stale or any(
            self._versions.get(id(each.parameter)) != each.parameter._version  # noqa: SLF001 (no other way)
            for each in self._slices
        )
        for number, each in enumerate(self._slices if changed else ()):
            entries: dict[str, Any] = {"values": each.of(each.parameter), "whole": stale}
            if stale:
                entries |= self._state_of(each)
            self._links[each.server].send(FrameKind.TAKE, number, 0, packed(entries))
        for link in self._links:
            link.send(FrameKind.SETTINGS, body=msgspec.msgpack.encode(self._sent))

    def require_settings_sent(self) -> None:
        """Check that settings have not changed since the backward pass, when servers took them."""
        now = _settings(self._optimizer.param_groups)
        for told, group in zip(self._sent, now, strict=True):
            name = next((name for name in group if told.get(name) != group[name]), None)
            if name is not None:
                raise InputError(
                    f"expected settings of a step before its backward pass, found {name} changed from {told.get(name)} "
                    f"to {group[name]} behind it: servers update as soon as they have gradients."
                )

    def update(self, parameter: torch.Tensor, values: torch.Tensor) -> None:
        """Copy server values into a parameter."""
        with torch.inference_mode(mode=False), torch.no_grad():
            parameter.copy_(values)
        self._versions[id(parameter)] = parameter._version  # noqa: SLF001 (no other way)

    def loaded(self) -> None:
        """Called after the optimizer loaded a state, which servers take over."""
        self._stale = True

    def push(self, number: int, priority: int, *, answered: bool) -> None:
        """Send the gradient of a slice; returns when it is in flight.

        Args:
            answered: Values are wanted as soon as they are there.
        """
        each = self._slices[number]
        here = each.values.cpu()
        kind = FrameKind.PUSH_ANSWERED if answered else FrameKind.PUSH
        self._links[each.server].send(kind, number, priority, raw(here))

    def pull(self, number: int, priority: int) -> None:
        """Request the values of a slice."""
        self._links[self._slices[number].server].send(FrameKind.PULL, number, priority)

    def gather_state(self) -> None:
        """Fetch the optimizer state from the servers."""
        if not self.connected or self._stale:
            return
        with self._changed:
            self._states = {}
        for number, each in enumerate(self._slices):
            self._links[each.server].send(FrameKind.ASK, number)
        with self._changed:
            self._changed.wait_for(
                lambda: self._error is not None or len(self._states) == len(self._slices), self._timeout_s
            )
            if self._error is not None or len(self._states) < len(self._slices):
                raise CheckError(
                    f"expected servers to tell the state of the optimizer, found that one does not answer "
                    f"({self._error or f'{self._timeout_s:g} s'}): start again from the last checkpoint."
                )
            states = self._states
        for number, each in enumerate(self._slices):
            own = self._optimizer.state[each.parameter]
            for name, value in states[number].items():
                if isinstance(value, torch.Tensor) and value.shape == each.values.shape and value.dim() == 1:
                    if not isinstance(own.get(name), torch.Tensor) or own[name].shape != each.parameter.shape:
                        own[name] = torch.zeros_like(each.parameter, dtype=value.dtype, requires_grad=False)
                    each.of(own[name]).copy_(value)
                elif isinstance(value, torch.Tensor) and isinstance(own.get(name), torch.Tensor):
                    own[name].copy_(value)
                else:
                    own[name] = value

    def close(self) -> None:
        """Fetch the state, and end the session."""
        if self._error is None:
            self.gather_state()
        for link in self._links:
            try:
                if self._error is None:
                    link.send(FrameKind.END)
            finally:
                self._closing = True
                link.close()

    def _state_of(self, each: SlicePlace) -> dict[str, Any]:
        return {
            name: each.of(value)
            if isinstance(value, torch.Tensor) and value.shape == each.parameter.shape
            else value
            for name, value in self._optimizer.state.get(each.parameter, {}).items()
        }

    def _open(self, address: str) -> socket.socket:
        end = time.monotonic() + self._timeout_s
        while True:
            try:
                return socket.create_connection(address_of(address), timeout=max(end - time.monotonic(), 0.1))
            except OSError as error:
                if time.monotonic() > end:
                    raise CheckError(
                        f"expected a parameter server at {address} within {self._timeout_s:g} s, found none ({error}): "
                        "run serve_parameters there."
                    ) from error
                time.sleep(0.1)

    def _receive(self, server: int) -> None:
        link, direct = self._links[server], self._slices[0].values.device.type == "cpu"

        def place(kind: FrameKind, number: int, size: int) -> memoryview | None:
            if kind is not FrameKind.VALUES or not direct:
                return None
            where = raw(self._slices[number].values)
            if len(where) != size:
                raise CheckError(f"expected {len(where)} bytes of slice {number}, found {size}")
            return where

        try:
            while True:
                kind, number, _, body = link.receive(place)
                if kind is FrameKind.VALUES:
                    if not direct:
                        values = self._slices[number].values
                        here = torch.empty(values.shape, dtype=values.dtype)
                        raw(here)[:] = body
                        with torch.cuda.device(values.device):
                            values.copy_(here)
                            torch.cuda.current_stream().synchronize()
                    self._received(number)
                elif kind is FrameKind.STATE:
                    with self._changed:
                        self._states[number] = unpacked(body)
                        self._changed.notify_all()
                elif kind is FrameKind.FAILED:
                    raise CheckError(body.decode())
        except BaseException as error:  # noqa: BLE001 (raised where the training waits)
            if self._closing:
                return
            told = error
            if not isinstance(error, CheckError) or "connection closed" in str(error):
                told = CheckError(f"server {self.addresses[server]} is gone")
            with self._changed:
                self._error = self._error or told
                self._changed.notify_all()
            self._failed(told)
            for each in self._links:  # the other servers end too
                each.close()


def _settings(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Numeric settings of parameter groups, without those about devices."""
    return [
        {
            name: float(value)
            if isinstance(value, torch.Tensor)
            else list(value)
            if isinstance(value, tuple)
            else value
            for name, value in group.items()
            if name not in ("params", "capturable", "fused", "foreach", "param_names")
        }
        for group in groups
    ]


def parameter_servers(
    policy: DataParallelPolicy,
    servers: Sequence[str],
    optimizer: torch.optim.Optimizer,
    *,
    ranks: tuple[int, int],  # Number of this worker and of all
    tunes: bool,
    unused: bool,
    timeout_s: float,
) -> ParameterServers:
    """Parameter servers of a training."""
    kind = type(optimizer)
    served = isinstance(policy, TicTac) or (
        isinstance(policy, PriorityPropagation) and policy.settings.transport == "server"
    )
    found = ""
    if isinstance(servers, str) or not servers or len(set(servers)) < len(servers):
        found = f"{servers!r} where one or more different addresses were expected"
    elif not served:
        found = f'policy {policy.name}, which is not p3 (with `transport="server"`) or tictac'
    elif kind.__name__ not in SERVED_OPTIMIZERS or kind is not getattr(torch.optim, kind.__name__):
        found = f"{kind.__name__}, which is none of {', '.join(SERVED_OPTIMIZERS)}"
    elif tunes:
        found = '`tune` in training, where slices stay with their servers: take `tune="simulation"`'
    elif unused:
        found = "`unused=True`, where servers wait for the gradients of all workers"
    if found:
        raise InputError(f"expected `servers` with a training that they can serve, found {found}.")
    for address in servers:
        address_of(address)
    return ParameterServers(servers, *ranks, optimizer, timeout_s)


class _PulledValues:
    """Outstanding values of a slice."""

    def __init__(self) -> None:
        self._there = threading.Event()
        self._error: BaseException | None = None

    def wait(self) -> None:
        """Wait for the values."""
        self._there.wait()
        if self._error is not None:
            raise self._error

    def end(self, error: BaseException | None = None) -> None:
        """Mark the values as received, or as failed."""
        self._error = error
        self._there.set()


class ServerExecutor(MessageExecutor):
    """Push gradient slices and pull values; buckets end up with parameter values.

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
        """See :meth:`MessageExecutor.begin`."""
        self._values = [_PulledValues() for _ in self._number]
        self._parameter_servers.begin()
        super().begin()

    def _of(self, message: Message) -> int | None:
        """Slice index of a message; None: it is empty."""
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
