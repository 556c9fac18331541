"""Parameter server: hold slices of parameters, add the gradients of all workers, update, and send values.

A slice is a parameter of an optimizer of the server's own, of the class that the workers have. When the gradients of
all workers are there they are added in the order of the workers and the slice is stepped, alone; its values go to each
worker by priority, at once where its push asked for them (P3), else when it pulls (TicTac).

Workers and servers send each other frames over TCP, each a header and bytes. Numbers, names and settings go as
MessagePack, values as they lie in memory. Nothing that is received is run.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from queue import PriorityQueue, SimpleQueue
from typing import Any

import msgspec
import torch

from coppice.arguments import checked
from coppice.decoding import decodable
from coppice.errors import CheckError, CoppiceError, InputError
from coppice.training.torch.core.agree import reason_of

_HEADER = struct.Struct("<BIiQ")
_MOST_BYTES = 2**40


class FrameKind(IntEnum):
    """Kind of a frame."""

    HELLO = 1  # worker: who it is, slices, optimizer
    TAKE = 2  # worker 0: values of a slice, and what the optimizer has of it
    SETTINGS = 3  # worker 0: of groups, for the steps that follow
    PUSH = 4  # worker: gradient of a slice
    PUSH_ANSWERED = 5  # the same, values wanted as soon as they are there
    PULL = 6  # worker: values wanted when they are there
    VALUES = 7  # server
    ASK = 8  # worker: what the optimizer has of a slice
    STATE = 9  # server
    END = 10  # worker
    FAILED = 11  # server: a sentence


def address_of(given: str) -> tuple[str, int]:
    """Parse ``host:port``.

    Examples:
        >>> address_of("10.0.0.5:7000")
        ('10.0.0.5', 7000)
    """
    host, colon, port = given.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"expected an address like 10.0.0.5:7000, found {given!r}.")
    return host.strip("[]"), int(port)


def raw(tensor: torch.Tensor) -> memoryview:
    """View a contiguous host tensor as bytes; it must outlive them."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * size).from_address(tensor.data_ptr())).cast("B")


def packed(entries: Mapping[str, Any]) -> bytes:
    """Encode tensors and numbers by name."""
    found: dict[str, Any] = {}
    for name, entry in entries.items():
        if isinstance(entry, torch.Tensor):
            here = entry.detach().cpu().contiguous()
            found[name] = {
                "kind": str(here.dtype).removeprefix("torch."),
                "shape": list(here.shape),
                "raw": bytes(raw(here)),
            }
        else:
            found[name] = entry
    return msgspec.msgpack.encode(found)


def unpacked(given: bytes) -> dict[str, Any]:
    """Decode :func:`packed`.

    Examples:
        >>> unpacked(packed({"step": torch.tensor(3.0), "rate": 0.5}))
        {'step': tensor(3.), 'rate': 0.5}
    """
    found = msgspec.msgpack.decode(given)
    for name, entry in found.items():
        if isinstance(entry, dict) and "raw" in entry:
            made = torch.empty(entry["shape"], dtype=getattr(torch, entry["kind"]))
            raw(made)[:] = entry["raw"]
            found[name] = made
    return dict(found)


class ServerLink:
    """A connection between worker and server; several threads may send."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, seconds in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            option = getattr(socket, name, None)
            if option is not None:  # a host that is gone without a word is noticed too
                connection.setsockopt(socket.IPPROTO_TCP, option, seconds)

    def send(
        self, kind: FrameKind, number: int = 0, priority: int = 0, body: bytes | memoryview = b""
    ) -> None:
        """Send a frame; on return its bytes may be changed."""
        with self._sending:
            self._connection.sendall(_HEADER.pack(kind, number, priority, len(body)))
            if len(body):
                self._connection.sendall(body)

    def receive(
        self, place: Callable[[FrameKind, int, int], memoryview | None]
    ) -> tuple[FrameKind, int, int, bytes]:
        """Receive a frame: kind, number, priority, and the body unless it is handled elsewhere.

        Args:
            place: Where the body of a frame goes, by kind, number and bytes; None: into bytes of its own.
        """
        kind, number, priority, size = _HEADER.unpack(self._filled(memoryview(bytearray(_HEADER.size))))
        if kind not in FrameKind.__members__.values() or size > _MOST_BYTES:
            raise CheckError(
                f"expected a frame of coppice, found kind {kind} with {size} bytes: is another program on this port?"
            )
        where = place(FrameKind(kind), number, size) if size else None
        if where is not None:
            self._filled(where)
            return FrameKind(kind), number, priority, b""
        return FrameKind(kind), number, priority, bytes(self._filled(memoryview(bytearray(size))))

    def close(self) -> None:
        """Close the connection, waking waiting threads."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _filled(self, buffer: memoryview) -> memoryview:
        done = 0
        while done < len(buffer):
            count = self._connection.recv_into(buffer[done:])
            if not count:
                raise CheckError("connection closed by the other side")
            done += count
        return buffer


SERVED_OPTIMIZERS = (
    "SGD Adam AdamW Adamax NAdam RAdam RMSprop Rprop Adagrad Adadelta".split()  # noqa: SIM905 (names, read as a line)
)
"""Classes of ``torch.optim`` that update each element by itself."""


class ServerSlice(msgspec.Struct, frozen=True):
    """A slice of a parameter."""

    number: int  # Its number among those of all servers
    elements: int  # Its elements
    kind: str  # Their type
    group: int  # Group of the optimizer that it belongs to


class ServerHello(msgspec.Struct, frozen=True):
    """First message of a worker."""

    worker: int  # Its number
    workers: int  # How many there are
    optimizer: str  # Class of the optimizer
    groups: list[dict[str, Any]]  # Settings of its groups
    slices: list[ServerSlice]  # What this server holds


_Outgoing = PriorityQueue[tuple[float, int, Callable[[ServerLink], None] | None]]


class _Served:
    """Slices of a server, and the gradients received for them."""

    def __init__(self, hello: ServerHello, queues: Sequence[_Outgoing]) -> None:
        self._workers, self._queues = hello.workers, queues
        self._slices = {
            each.number: torch.nn.Parameter(torch.zeros(each.elements, dtype=getattr(torch, each.kind)))
            for each in hello.slices
        }
        self._group = {each.number: each.group for each in hello.slices}
        self._settings = hello.groups
        made: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, hello.optimizer)
        self._optimizer = made(
            [
                {
                    **settings,
                    "params": [self._slices[each.number] for each in hello.slices if each.group == number],
                }
                for number, settings in enumerate(hello.groups)
            ]
        )
        self._lock = threading.Lock()
        self._parts: dict[int, dict[int, torch.Tensor]] = {number: {} for number in self._slices}
        self._pulls: dict[int, list[tuple[int, int]]] = {number: [] for number in self._slices}
        self._given: dict[int, dict[str, Any]] = {}
        self._turn = itertools.count()

    def gradient(self, number: int) -> torch.Tensor:
        """Receive buffer of a worker's gradient."""
        return torch.empty_like(self._slices[number], requires_grad=False)

    def elements(self, number: int) -> int:
        """Bytes of a slice; -1: not on this server."""
        own = self._slices.get(number)
        return -1 if own is None else own.numel() * own.element_size()

    def take(self, number: int, given: Mapping[str, Any]) -> None:
        """Initialise a slice's values, and its optimizer state if given.

        Not before: whoever tells them is ahead of others, who may still want the values of the last step.
        """
        with self._lock:
            self._given[number] = dict(given)

    def settle(self, groups: list[dict[str, Any]]) -> None:
        """Optimizer settings of the following steps."""
        self._settings = groups

    def push(
        self, worker: int, number: int, gradient: torch.Tensor, priority: int, *, answered: bool
    ) -> None:
        """Accept a worker's gradient; the last one steps the optimizer."""
        with self._lock:
            parts = self._parts[number]
            parts[worker] = gradient
            if answered:
                self._pulls[number].append((priority, worker))
            if len(parts) < self._workers:
                return
            self._parts[number] = {}
            self._step(number, [parts[each] for each in range(self._workers)])
            waiting, self._pulls[number] = self._pulls[number], []
        for wanted, other in sorted(waiting):
            self._answer(other, number, wanted)

    def pull(self, worker: int, number: int, priority: int) -> None:
        """Answer a worker with the values of the step that includes its last push."""
        with self._lock:
            if worker in self._parts[number]:
                self._pulls[number].append((priority, worker))
                return
        self._answer(worker, number, priority)

    def state(self, number: int) -> bytes:
        """Optimizer state of a slice."""
        with self._lock:
            return packed(self._optimizer.state.get(self._slices[number], {}))

    def _step(self, number: int, parts: list[torch.Tensor]) -> None:
        own = self._slices[number]
        if given := self._given.pop(number, None):
            with torch.no_grad():
                own.copy_(given.pop("values"))
            if given.pop("whole"):
                self._optimizer.state[own] = given
        total = parts[0]
        for other in parts[1:]:
            total.add_(other)
        own.grad = total
        groups, group = self._optimizer.param_groups, self._group[number]
        self._optimizer.param_groups = [{**groups[group], **self._settings[group], "params": [own]}]
        try:
            self._optimizer.step()
        finally:
            self._optimizer.param_groups = groups
        own.grad = None

    def _answer(self, worker: int, number: int, priority: int) -> None:
        """Send values without a copy: they do not change before this worker pushes again."""
        values = self._slices[number].detach()
        send = _sending(FrameKind.VALUES, number, lambda: raw(values))
        self._queues[worker].put((priority, next(self._turn), send))


def _sending(
    kind: FrameKind, number: int, body: Callable[[], bytes | memoryview]
) -> Callable[[ServerLink], None]:
    return lambda link: link.send(kind, number, 0, body())


class _Session:
    """Workers of a training, from the first to the last frame."""

    def __init__(self, links: Sequence[ServerLink], hello: ServerHello) -> None:
        self._links = links
        self._queues: list[_Outgoing] = [PriorityQueue() for _ in links]
        self._served = _Served(hello, self._queues)
        self._ended: SimpleQueue[tuple[int, BaseException | None]] = SimpleQueue()
        self._turn = itertools.count()

    def run(self) -> None:
        """Serve until all workers have ended."""
        for worker in range(len(self._links)):
            for work in (self._receive, self._send):
                threading.Thread(
                    target=work, args=(worker,), daemon=True, name=f"coppice worker {worker}"
                ).start()
        for _ in self._links:
            worker, error = self._ended.get()
            if error is not None:
                msg = (
                    f"expected all workers to send gradients, found worker {worker} gone ({reason_of(error)}): start "
                    "the training again from its last checkpoint."
                )
                fail(self._links, msg)
                raise CheckError(msg) from error
        for queue in self._queues:
            queue.put((float("inf"), next(self._turn), None))

    def _send(self, worker: int) -> None:
        try:
            while (send := self._queues[worker].get()[2]) is not None:
                send(self._links[worker])
        except OSError as error:
            self._ended.put((worker, error))

    def _receive(self, worker: int) -> None:
        link, served = self._links[worker], self._served
        gradient: list[torch.Tensor] = []

        def place(kind: FrameKind, number: int, size: int) -> memoryview | None:
            if kind not in (FrameKind.PUSH, FrameKind.PUSH_ANSWERED):
                return None
            if served.elements(number) != size:
                raise CheckError(f"expected a slice of this server, found number {number} with {size} bytes")
            gradient[:] = [served.gradient(number)]
            return raw(gradient[0])

        try:
            while True:
                kind, number, priority, body = link.receive(place)
                if kind in (FrameKind.PUSH, FrameKind.PUSH_ANSWERED):
                    answered = kind is FrameKind.PUSH_ANSWERED
                    served.push(worker, number, gradient.pop(), priority, answered=answered)
                elif kind is FrameKind.PULL:
                    served.pull(worker, number, priority)
                elif kind is FrameKind.TAKE:
                    served.take(number, unpacked(body))
                elif kind is FrameKind.SETTINGS:
                    served.settle(msgspec.msgpack.decode(body))
                elif kind is FrameKind.ASK:
                    state = served.state(number)
                    send = _sending(FrameKind.STATE, number, lambda state=state: state)  # type: ignore[misc]
                    self._queues[worker].put((float("inf"), next(self._turn), send))
                elif kind is FrameKind.END:
                    self._ended.put((worker, None))
                    return
        except BaseException as error:  # noqa: BLE001 (raised by the server, told to all workers)
            self._ended.put((worker, error))


def fail(links: Sequence[ServerLink], sentence: str) -> None:
    """Notify all workers of a failure."""
    for link in links:
        try:
            link.send(FrameKind.FAILED, body=sentence.encode())
        except OSError:
            continue


@checked
def serve_parameters(
    address: str, *, ready: Callable[[str], object] | None = None, timeout_s: float = 600.0
) -> None:
    """Serve one training until its workers close their optimizers.

    Workers name this address: ``schedule(model, optimizer, "p3", servers=["10.0.0.5:7000", ...])``. They tell the
    server which slices it holds and how they are updated, so it needs no model. Whoever connects is trusted.

    Args:
        address: Host and port to listen on; port 0 is any that is free.
        ready: Called with the address when workers may connect.
        timeout_s: Longest wait for all workers, from the first one on.

    Raises:
        InputError: If it cannot listen there, or workers train different things.
        CheckError: If a worker is gone.

    Source: P3 (Jayarajan et al., MLSys 2019), section 4.
    """
    host, port = address_of(address)
    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        raise InputError(
            f"expected an address to listen on, found {address} ({error.strerror}): name another."
        ) from error
    links: list[ServerLink] = []
    try:
        if ready is not None:
            ready(f"{host}:{listening.getsockname()[1]}")
        hellos = _gathered(listening, links, timeout_s)
        listening.close()  # who comes now is of another training
        ordered = [links[place] for place in sorted(range(len(links)), key=lambda each: hellos[each].worker)]
        _Session(ordered, hellos[0]).run()
    except CoppiceError as error:
        fail(links, str(error))
        raise
    finally:
        listening.close()
        for link in links:
            link.close()


def _gathered(listening: socket.socket, links: list[ServerLink], timeout_s: float) -> list[ServerHello]:
    """Wait until all workers of a training have introduced themselves."""
    hellos: list[ServerHello] = []
    end: float | None = None
    while not hellos or len(hellos) < hellos[0].workers:
        listening.settimeout(None if end is None else max(end - time.monotonic(), 0.001))
        try:
            link = ServerLink(listening.accept()[0])
        except TimeoutError as error:
            raise CheckError(
                f"expected {hellos[0].workers} workers within {timeout_s:g} s, found {len(hellos)}: start them all "
                "with the same servers."
            ) from error
        end = end or time.monotonic() + timeout_s
        links.append(link)
        _, _, _, body = link.receive(lambda *_: None)
        try:
            hello = msgspec.msgpack.decode(body, type=decodable(ServerHello))
        except msgspec.ValidationError as error:
            raise InputError(
                f"expected a worker of this version of coppice, found another ({error})."
            ) from error
        first = hellos[0] if hellos else hello
        if msgspec.structs.replace(hello, worker=first.worker) != first:
            raise InputError(
                f"expected the same parameters and optimizer on all workers, found others on worker "
                f"{hello.worker}: start them all with the same model."
            )
        if hello.optimizer not in SERVED_OPTIMIZERS or hello.worker in [each.worker for each in hellos]:
            raise InputError(
                f"expected each worker once, found worker {hello.worker} again, or {hello.optimizer}: start anew."
            )
        hellos.append(hello)
    return hellos
