"""Carries out the nodes of Chakra traces with sets of contributors as payloads.

What a send carries is what its rank has by the nodes that the send waits for, directly or not, and by nothing else:
so that a wait that is missing shows however lucky the order is.
"""

from __future__ import annotations

import random
from collections import Counter

from export.chakra_reader import COMM_RECV, COMM_SEND, COMP, Node

Value = Counter[int]


class Replay:
    """Traces of all ranks, and what their chunks hold at first."""

    def __init__(self, traces: list[list[Node]], initial: dict[tuple[int, int], Value]) -> None:
        self.traces = traces
        self.initial = initial
        self.before = [self._ancestors(nodes) for nodes in traces]
        self.received: list[dict[int, dict[int, Value]]] = [{} for _ in traces]

    def run(self, seed: int, *, serial: bool = False) -> bool:
        """Carry out nodes in a random order, or those of a rank one by one in file order; False if they get stuck."""
        choose = random.Random(seed)
        sent: dict[tuple[int, int, int], dict[int, Value]] = {}
        left = [dict.fromkeys(range(len(nodes))) for nodes in self.traces]
        done = [0] * len(self.traces)
        while any(left):
            ready = [
                (rank, place)
                for rank, places in enumerate(left)
                for place in ([next(iter(places))] if serial and places else places)
                if self._ready(rank, place, done[rank], sent)
            ]
            if not ready:
                return False
            for rank, place in choose.sample(ready, k=max(1, len(ready) // 2)):
                self._do(rank, self.traces[rank][place], sent)
                done[rank] |= 1 << place
                del left[rank][place]
        return True

    def held(self, rank: int, chunk: int) -> Value | None:
        """What a rank holds of a chunk in the end."""
        return self._value(rank, chunk, (1 << len(self.traces[rank])) - 1)

    def _ready(
        self, rank: int, place: int, done: int, sent: dict[tuple[int, int, int], dict[int, Value]]
    ) -> bool:
        node = self.traces[rank][place]
        if any(not done >> (each - 1) & 1 for each in node.waits):
            return False
        return node.type != COMM_RECV or _key(node) in sent

    def _do(self, rank: int, node: Node, sent: dict[tuple[int, int, int], dict[int, Value]]) -> None:
        if node.type == COMM_SEND:
            assert _key(node) not in sent
            payload = {}
            for chunk in node.chunks:
                value = self._value(rank, chunk, self.before[rank][node.id - 1])
                assert value is not None, f"rank {rank} sends chunk {chunk} before it has it"
                payload[chunk] = value
            sent[_key(node)] = payload
        elif node.type == COMM_RECV:
            self.received[rank][node.id] = sent.pop(_key(node))
            assert list(self.received[rank][node.id]) == node.chunks

    def _value(self, rank: int, chunk: int, within: int) -> Value | None:
        """What nodes of the set ``within`` leave in a chunk; those that touch it must have one order."""
        value = self.initial.get((rank, chunk))
        touched: list[tuple[int, bool]] = []
        for place, node in enumerate(self.traces[rank]):
            if not within >> place & 1 or chunk not in node.chunks:
                continue
            if node.type == COMP:
                (receipt,) = node.waits
                add = self.received[rank][receipt][chunk]
                assert value is not None
                value = value + add
            elif node.type == COMM_RECV and not self._added_later(rank, node, chunk):
                value = self.received[rank][node.id][chunk]
            else:
                continue
            adds = node.type == COMP
            for other, added in touched:
                commute = adds and added
                assert commute or self.before[rank][place] >> other & 1, "two writings without an order"
            touched.append((place, adds))
        return value

    def _added_later(self, rank: int, receipt: Node, chunk: int) -> bool:
        return any(
            node.type == COMP and node.waits == [receipt.id] and chunk in node.chunks
            for node in self.traces[rank]
        )

    @staticmethod
    def _ancestors(nodes: list[Node]) -> list[int]:
        found: list[int] = []
        for place, node in enumerate(nodes):
            assert node.id == place + 1
            bits = 0
            for each in node.waits:
                assert 0 < each < node.id
                bits |= found[each - 1] | 1 << (each - 1)
            found.append(bits)
        return found


def _key(node: Node) -> tuple[int, int, int]:
    return node.number("comm_src"), node.number("comm_dst"), node.number("comm_tag")
