"""Plays NCCL's side of a network library, as several nodes: processes that load it and exchange handles over pipes.

``python collnet_nodes.py JOB`` with a job in JSON: the library, the newest version that the core knows, the number of
nodes and what they do. Prints a JSON record: what each node has to tell.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from collnet_tables import COLLNET, LOGGER, MAXIMUM, MINIMUM, NET, PRODUCT, SUM, Piece, encoded, negotiated

PATIENCE_S = 300

Flight = tuple[Any, Callable[[], np.ndarray]]
"""A call in flight, with all that has to stay where it is, and what checks its result."""


class Node:
    """One node: its plugin, its communicator, and pipes to the others."""

    def __init__(self, job: dict[str, Any], rank: int, inbox: int, outbox: int) -> None:
        self.job, self.rank, self.nodes = job, rank, job["nodes"]
        self.inbox, self.outbox = os.fdopen(inbox, "rb"), os.fdopen(outbox, "wb")
        self.log: list[tuple[int, str]] = []
        self.logger = LOGGER(lambda level, _t, _f, _l, _w, text: self.log.append((level, text.decode())))
        self.library = ctypes.CDLL(job["library"])
        if "forest" in job:
            os.environ["COPPICE_COLLNET_FOREST"] = job["forest"]
        os.environ.update(job.get("settings", {}))
        self.random = random.Random(job["seed"])
        self.own = random.Random(job["seed"] * 1000 + rank)

    def exchange(self, words: bytes) -> list[bytes]:
        """Everybody's words; all of the same length."""
        self.outbox.write(words)
        self.outbox.flush()
        return [self.inbox.read(len(words)) for _ in range(self.nodes)]

    def nap(self) -> None:
        """Be late, sometimes."""
        if self.own.random() < 0.3:
            time.sleep(self.own.random() * 0.004)

    def open(self, newest: int) -> int:
        """Initialise, listen and connect; the code of connect."""
        self.table = table = negotiated(self.library, "CollNet", COLLNET, newest)
        context = ctypes.c_void_p()
        if table.version >= 11:
            assert table("init", ctypes.byref(context), ctypes.c_uint64(9), self.logger) == 0
        else:
            assert table("init", self.logger) == 0
        count = ctypes.c_int()
        assert table("devices", ctypes.byref(count)) == 0
        assert count.value >= 1
        properties = (ctypes.c_uint64 * 64)()
        assert table("getProperties", ctypes.c_int(0), ctypes.byref(properties)) == 0
        pointers = ctypes.cast(properties, ctypes.POINTER(ctypes.c_int))[6]
        assert pointers == 1, "host memory only"
        assert table("getProperties", count, ctypes.byref(properties)) == 4, "no such device"
        handle = ctypes.create_string_buffer(128)
        listener = ctypes.c_void_p()
        first = (context,) if table.version >= 11 else ()
        assert table("listen", *first, ctypes.c_int(0), handle, ctypes.byref(listener)) == 0
        handles = [ctypes.create_string_buffer(each, 128) for each in self.exchange(handle.raw)]
        pointers = (ctypes.c_void_p * self.nodes)(*(ctypes.addressof(each) for each in handles))
        self.comm = ctypes.c_void_p()
        code = table(
            "connect",
            pointers,
            ctypes.c_int(self.nodes),
            ctypes.c_int(self.rank),
            listener,
            ctypes.byref(self.comm),
        )
        if code == 0:
            assert table("closeListen", listener) == 0
        return code

    def registered(self, array: np.ndarray) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        """Address and registration of an array."""
        address, memory = ctypes.c_void_p(array.ctypes.data), ctypes.c_void_p()
        size = ctypes.c_size_t(array.nbytes)
        assert self.table("regMr", self.comm, address, size, ctypes.c_int(2), ctypes.byref(memory)) == 4
        assert self.table("regMr", self.comm, address, size, ctypes.c_int(1), ctypes.byref(memory)) == 0
        return address, memory

    def issue(self, name: str, *given: Any) -> tuple[int, ctypes.c_void_p]:
        """Start a call, again as long as the answer is "later"."""
        request = ctypes.c_void_p()
        while True:
            code = self.table(name, self.comm, *given, ctypes.byref(request))
            if code or request.value:
                return code, request

    def test(self, request: ctypes.c_void_p) -> tuple[int, bool]:
        """The code, and whether the call has ended."""
        done, size = ctypes.c_int(), ctypes.c_int()
        code = self.table("test", request, ctypes.byref(done), ctypes.byref(size))
        return code, bool(done.value)

    def wait(self, request: ctypes.c_void_p) -> int:
        """The code with which a call ends."""
        while True:
            code, done = self.test(request)
            if code or done:
                return code
            time.sleep(0.0002)  # the library works meanwhile, also on two cores

    def count(self, number: int) -> Any:
        """A count of elements as the version takes it."""
        return ctypes.c_int(number) if self.table.version == 8 else ctypes.c_size_t(number)

    def all_reduce(
        self, kind: int, operation: int, count: int, in_place: bool
    ) -> tuple[Any, Callable[[], np.ndarray]]:
        """Start an all-reduce; what checks its result later."""
        exact = kind not in (7, 8)
        every = [self.values(kind, operation, count, exact) for _ in range(self.nodes)]
        send = encoded(every[self.rank], kind)
        receive = send if in_place else np.zeros_like(send)
        (a, am), (b, bm) = self.registered(send), self.registered(receive)
        code, request = self.issue(
            "iallreduce", a, b, self.count(count), ctypes.c_int(kind), ctypes.c_int(operation), am, bm
        )
        assert code == 0, code

        def check() -> np.ndarray:
            reduction = (np.add, np.multiply, np.maximum, np.minimum)[operation]
            expected = reduction.reduce(np.array(every), axis=0)
            if exact:
                assert (receive == encoded(expected, kind)).all(), (kind, operation, count)
            else:
                assert np.allclose(receive, expected, rtol=1e-5, atol=1e-5)
            return receive

        return (request, send, receive), check

    def values(self, kind: int, operation: int, count: int, exact: bool) -> np.ndarray:
        """The same numbers on all nodes: such that no order of additions rounds, where that is asked."""
        source = np.random.default_rng(self.random.getrandbits(32))
        if not exact:
            return source.standard_normal(count)
        low = 0 if kind in (1, 3, 5) else -1
        return (
            source.integers(low, 2, count)
            if operation == SUM
            else source.integers(1, 2, count)
            * (1 if operation == PRODUCT else source.integers(low, 9, count))
        )

    def windowed(
        self, name: str, elements: int, begin: int, count: int, parts: int
    ) -> tuple[Any, Callable[[], np.ndarray]]:
        """Start an all-gather or a reduce-scatter of int32 for a window of the whole array, in parts."""
        source = np.random.default_rng(self.random.getrandbits(32))
        size = 4
        own = (max(self.rank * elements, begin), min((self.rank + 1) * elements, begin + count))
        own = own if own[0] < own[1] else (begin, begin)
        cuts = sorted(self.random.choices(range(count + 1), k=parts - 1)) if parts > 1 else []
        spans = list(itertools.pairwise((0, *cuts, count)))
        if name == "iallgather":
            every = source.integers(-99, 99, elements * self.nodes).astype(np.int32)
            send, receive = every[own[0] : own[1]].copy(), np.zeros(count, dtype=np.int32)
            expected, window = every[begin : begin + count], receive
        else:
            each = source.integers(-99, 99, (self.nodes, elements * self.nodes)).astype(np.int32)
            send, receive = (
                each[self.rank, begin : begin + count].copy(),
                np.zeros(own[1] - own[0], dtype=np.int32),
            )
            expected, window = each.sum(axis=0, dtype=np.int32)[own[0] : own[1]], send
        base, memory = self.registered(window)
        pieces = (Piece * len(spans))(
            *(Piece(memory, window.ctypes.data + a * size, (b - a) * size) for a, b in spans)
        )
        numbers = [ctypes.c_size_t(number * size) for number in (elements, begin, count)]
        if name == "iallgather":
            address, memory = self.registered(send)
            code, request = self.issue(name, address, ctypes.c_int(len(spans)), pieces, *numbers, memory)
        else:
            address, memory = self.registered(receive)
            code, request = self.issue(
                name,
                ctypes.c_int(len(spans)),
                pieces,
                address,
                *numbers,
                ctypes.c_int(2),
                ctypes.c_int(SUM),
                memory,
            )
        assert code == 0, code

        def check() -> np.ndarray:
            assert (receive == expected).all(), (name, elements, begin, count, base)
            return np.zeros(0)

        return (request, send, receive, pieces), check

    def close(self) -> None:
        """End the communicator, and the plugin where the version can."""
        assert self.table("closeColl", self.comm) == 0
        if self.table.version >= 11:
            assert self.table("finalize", ctypes.c_void_p()) == 0


def random_calls(node: Node) -> dict[str, Any]:
    """Every version in turn: calls of all kinds, several in flight, results as NumPy's, equal bits on all nodes."""
    seen = []
    for newest in node.job["newest"]:
        assert node.open(newest) == 0, node.log
        seen.append(node.table.version)
        supported = ctypes.c_int()
        for kind, operation in itertools.product(range(13), range(5)):
            assert (
                node.table(
                    "reduceSupport", ctypes.c_int(kind), ctypes.c_int(operation), ctypes.byref(supported)
                )
                == 0
            )
            assert bool(supported.value) == (kind < 12 and operation < 4)
        digest = hashlib.sha256()
        flying: list[Flight] = []
        for turn in range(node.job["calls"]):
            node.nap()
            name = ("iallreduce", "iallreduce", "iallgather", "ireducescatter")[node.random.randrange(4)]
            count = node.random.choice((0, 1, 2, 3, node.nodes, 1000, 5000, 40_001, node.job["largest"]))
            if node.random.random() < node.job.get("sums", 0):  # of floats
                kind, in_place = node.random.choice((6, 7, 9)), bool(node.random.randrange(2))
                flying.append(node.all_reduce(kind, SUM, count, in_place=in_place))
            elif name == "iallreduce":
                flying.append(
                    node.all_reduce(
                        turn % 12, node.random.randrange(4), count, in_place=bool(node.random.randrange(2))
                    )
                )
            else:
                elements = count // node.nodes
                begin = node.random.choice((0, node.random.randint(0, elements * node.nodes)))
                length = node.random.choice(
                    (elements * node.nodes - begin, node.random.randint(0, elements * node.nodes - begin))
                )
                flying.append(node.windowed(name, elements, begin, length, node.random.choice((1, 1, 3))))
            while len(flying) > node.job["flying"]:
                finish(node, flying, digest)
        while flying:
            finish(node, flying, digest)
        request = ctypes.c_void_p(1)
        nothing = ctypes.c_void_p()
        code = node.table("iflush", node.comm, nothing, ctypes.c_int(0), nothing, ctypes.byref(request))
        assert (code, request.value) == (0, None)
        assert len(set(node.exchange(digest.digest()))) == 1
        node.close()
    return {"versions": seen, "log": node.log}


def finish(node: Node, flying: list[Flight], digest: Any) -> None:
    """Wait for one of the calls in flight, not always the first, and check it; then those before it."""
    some = flying[node.own.randrange(len(flying))]
    assert node.wait(some[0][0]) == 0
    while flying:
        (request, *_), check = each = flying.pop(0)
        if each is not some:
            assert node.wait(request) == 0
        digest.update(check().tobytes())
        if each is some:
            break


def killed(node: Node) -> dict[str, Any]:
    """One node dies in the middle, or kills a process; others are told, by calls in flight and by the next one."""
    assert node.open(node.job["newest"][0]) == 0, node.log
    codes: list[int] = []
    array = np.ones(node.job["largest"], dtype=np.float32)
    address, memory = node.registered(array)
    for turn in itertools.count():
        if node.rank == node.job["victim"] and turn == node.job["dies_at"]:
            os.kill(node.job.get("process", os.getpid()), signal.SIGKILL)
        given = (
            address,
            address,
            node.count(array.size),
            ctypes.c_int(7),
            ctypes.c_int(node.job.get("operation", MAXIMUM)),
            memory,
            memory,
        )
        code, request = node.issue("iallreduce", *given)
        codes.append(code or node.wait(request))
        if codes[-1]:
            codes.append(node.issue("iallreduce", *given)[0])
            break
    node.close()
    return {"codes": codes[-2:], "warnings": [text for level, text in node.log if level == 2]}


def silent_kill(node: Node) -> dict[str, Any]:
    """As `killed`, with a node that dies while others are only waiting for it."""
    if node.rank == node.job["victim"]:
        assert node.open(node.job["newest"][0]) == 0, node.log
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    return killed(node)


def out_of_order(node: Node) -> dict[str, Any]:
    """Node 0 makes another call than the rest, or one of fewer elements."""
    assert node.open(node.job["newest"][0]) == 0, node.log
    array = np.ones(1000, dtype=np.float32)
    address, memory = node.registered(array)
    operation = ctypes.c_int(MINIMUM if node.rank == 0 and not node.job.get("fewer") else SUM)
    count = array.size - (node.job.get("fewer", 0) if node.rank == 0 else 0)
    code, request = node.issue(
        "iallreduce", address, address, node.count(count), ctypes.c_int(7), operation, memory, memory
    )
    code = code or node.wait(request)
    node.close()
    return {"code": code, "warnings": [text for level, text in node.log if level == 2]}


def joined(node: Node) -> dict[str, Any]:
    """Only connect, each node with the environment of its own."""
    os.environ.update(node.job["environment"][node.rank])
    code = node.open(node.job["newest"][0])
    node.exchange(b"x")
    if code == 0:
        node.close()
    return {"code": code, "log": node.log}


def refused(node: Node) -> dict[str, Any]:
    """Only initialise, with a file that cannot be used."""
    table = negotiated(node.library, "CollNet", COLLNET, node.job["newest"][0])
    context = ctypes.c_void_p()
    return {"code": table("init", ctypes.byref(context), ctypes.c_uint64(9), node.logger), "log": node.log}


def messages(node: Node) -> dict[str, Any]:
    """The plain network: node 0 sends to node 1, in every version."""
    for newest in node.job["newest"]:
        table = negotiated(node.library, "Net", NET, newest)
        pointer, none, zero = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int(0)
        version = table.version
        context = ctypes.c_void_p()
        if version >= 11:
            assert table("init", ctypes.byref(context), ctypes.c_uint64(1), none, node.logger, none) == 0
        else:
            assert table("init", node.logger, *((none,) if version == 10 else ())) == 0
        handle, listener = ctypes.create_string_buffer(128), ctypes.c_void_p()
        first = (context,) if version >= 11 else ()
        assert table("listen", *first, zero, handle, ctypes.byref(listener)) == 0
        handles = node.exchange(handle.raw)
        sizes = [node.random.choice((0, 1, 100, 300_000)) for _ in range(node.job["calls"])]
        buffers = [np.full(size, turn, dtype=np.uint8) for turn, size in enumerate(sizes)]
        wide = ctypes.c_int if version == 8 else ctypes.c_size_t
        tail = (none,) if version >= 10 else ()
        tails = (ctypes.byref(none),) if version >= 10 else ()
        offload, flying = ctypes.c_void_p(), []
        if node.rank == 0:
            target = ctypes.create_string_buffer(handles[1], 128)
            middle = (zero, none, target) if version == 10 else (*first, zero, target)
            while not pointer.value:
                assert table("connect", *middle, ctypes.byref(pointer), ctypes.byref(offload)) == 0
        else:
            while not pointer.value:
                assert table("accept", listener, ctypes.byref(pointer), ctypes.byref(offload)) == 0
        for turn, buffer in enumerate(buffers):
            node.nap()
            request, address = ctypes.c_void_p(), ctypes.c_void_p(buffer.ctypes.data)
            tag = ctypes.c_int(turn)
            if node.rank:
                buffer[:] = 255
            while not request.value:
                if node.rank == 0:
                    code = table(
                        "isend", pointer, address, wide(buffer.size), tag, none, *tail, ctypes.byref(request)
                    )
                else:
                    one = (
                        ctypes.byref(address),
                        ctypes.byref(wide(buffer.size)),
                        ctypes.byref(tag),
                        ctypes.byref(none),
                    )
                    code = table("irecv", pointer, ctypes.c_int(1), *one, *tails, ctypes.byref(request))
                assert code == 0
            flying.append(request)
        for turn, request in enumerate(flying):
            done, size = ctypes.c_int(), ctypes.c_int()
            while not done.value:
                assert table("test", request, ctypes.byref(done), ctypes.byref(size)) == 0
            assert size.value == sizes[turn]
            assert (buffers[turn] == turn % 256).all()
        node.exchange(b"x")
        assert table("closeRecv" if node.rank else "closeSend", pointer) == 0
        assert table("closeListen", listener) == 0
        if version >= 11:
            assert table("finalize", context) == 0
    return {}


JOBS = {
    "random": random_calls,
    "killed": killed,
    "silent": silent_kill,
    "out_of_order": out_of_order,
    "joined": joined,
    "messages": messages,
    "refused": refused,
}


def main() -> None:
    """Fork the nodes, carry their words, and print what they tell."""
    job = json.loads(sys.argv[1])
    children, results = [], []
    sys.stdout.flush()
    for rank in range(job["nodes"]):
        down, up, told = os.pipe(), os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(PATIENCE_S)
            for ends in children:
                for end in ends[1:]:
                    os.close(end)
            os.close(down[1]), os.close(up[0]), os.close(told[0])
            record = JOBS[job["job"]](Node(job, rank, down[0], up[1]))
            os.write(told[1], json.dumps(record).encode())
            os._exit(0)
        os.close(down[0]), os.close(up[1]), os.close(told[1])
        children.append((child, down[1], up[0], told[0]))
    carry(children)
    for child, _, _, told in children:
        text = b"".join(iter(lambda told=told: os.read(told, 65536), b""))
        _, status = os.waitpid(child, 0)
        results.append(json.loads(text) if text else {"status": os.waitstatus_to_exitcode(status)})
    print(json.dumps(results))


def carry(children: list[tuple[int, int, int, int]]) -> None:
    """Give everybody's words to everybody, round by round, until one has ended."""
    while True:
        rounds = []
        for _, _, up, _ in children:
            words = os.read(up, 4096)
            if not words:
                return
            rounds.append(words)
        for _, down, _, _ in children:
            os.write(down, b"".join(rounds))


if __name__ == "__main__":
    main()
