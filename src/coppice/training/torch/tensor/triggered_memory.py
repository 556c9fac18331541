"""Memory of a rank that tracks tiles: it reduces stores, counts them, and forwards complete tiles.

Source: the tracker, near-memory reduction and triggered transfers of T3 (Pati et al., ASPLOS 2024), here in software: a
thread of its own is the only one that adds to a rank's sums. Updates are announced to it: stores of the rank's own
product, which lie in its staging area, and those of the next rank, which lie in its landing area, in memory that ranks
share. They are told through sockets, which also tell when a process has ended.

A tile of B blocks is complete with 2 B updates: B of this rank's product, B from the next rank. Blocks of the first
chunk are not tracked here: they go to the memory of the rank before as they are stored.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections import Counter, deque
from dataclasses import dataclass

import torch

from coppice.errors import CheckError

_MESSAGE = struct.Struct("<5i")  # kind, buffer, chunk, tile, block (-1: all blocks)
_UPDATE, _GONE, _GOODBYE = range(3)  # _GONE: the rank follows; _GOODBYE: the number of its products follows
Event = tuple[str, int, int, int]


def expected_updates(blocks: int) -> int:
    """Number of updates of a tile: from this rank's product, and from the next rank."""
    return 2 * blocks


@dataclass(frozen=True)
class TileGrid:
    """Division of a product into tiles and blocks."""

    chunks: tuple[int, ...]  # First row of the part of each rank, and behind the last one
    columns: int  # Columns
    tile_rows: int  # Rows of a tile
    block_columns: int  # Columns of a block, as many rows as its tile

    @property
    def blocks(self) -> int:
        """Blocks of a tile."""
        return -(-self.columns // self.block_columns)

    def tiles(self, chunk: int) -> int:
        """Tiles of a chunk."""
        return -(-(self.chunks[chunk + 1] - self.chunks[chunk]) // self.tile_rows)

    def region(self, chunk: int, tile: int, block: int = -1) -> tuple[slice, slice]:
        """Rows and columns of a block, or of a whole tile."""
        first = self.chunks[chunk] + tile * self.tile_rows
        rows = slice(first, min(first + self.tile_rows, self.chunks[chunk + 1]))
        if block < 0:
            return rows, slice(0, self.columns)
        return rows, slice(block * self.block_columns, min((block + 1) * self.block_columns, self.columns))


class TrackedMemory:
    """Memory of one rank, with the thread that serves it.

    Args:
        rank: This rank.
        grid: How products are cut.
        staging: What this rank's product stores, for each of two products in turns.
        landing: For each of two products in turns and each rank, what the next rank sends to it; shared.
        sums: The same, what is added up; shared.
        before: Socket to the rank before.
        behind: Socket from the next rank.
    """

    def __init__(
        self,
        rank: int,
        grid: TileGrid,
        *,
        staging: torch.Tensor,
        landing: torch.Tensor,
        sums: torch.Tensor,
        before: socket.socket,
        behind: socket.socket,
    ) -> None:
        # What happened in the last product that was waited for: what, step, tile, block (-1: all); the step
        # is that of the ring in which this rank computes the chunk
        self.record: list[Event] = []
        self._rank, self._ranks, self._grid = rank, len(grid.chunks) - 1, grid
        self._staging, self._landing, self._sums = staging, landing, sums
        self._before, self._behind = before, behind
        self._store, self._stored = socket.socketpair()
        self._to_send: deque[bytes] = deque()
        self._counts: Counter[tuple[int, int, int]] = Counter()
        self._there: set[tuple[int, int, int, int]] = set()
        """Blocks that one of their two updates has reached."""
        self._passed = [0, 0]
        """Tiles that are complete, or stores of the first chunk that have gone on, for both buffers."""
        self._changed = threading.Condition()
        self._gone: int | None = None
        self._failure: Exception | None = None
        self._records: list[list[Event]] = [[], []]
        self._products = 0
        self._left_after: int | None = None
        """Products after which the next rank has left."""
        before.setblocking(False)  # noqa: FBT003 (its only parameter)
        self._thread = threading.Thread(target=self._serve, name="coppice tracked memory", daemon=True)
        self._thread.start()

    def begin(self) -> int:
        """Start a product; return its buffer."""
        self._require()
        self._products += 1
        if self._left_after is not None and self._products > self._left_after:
            self._store.sendall(_MESSAGE.pack(_GONE, (self._rank + 1) % self._ranks, 0, 0, 0))
            with self._changed:
                self._changed.wait_for(lambda: self._gone is not None or self._failure is not None)
        self._require()
        return (self._products - 1) % 2

    def store(self, buffer: int, chunk: int, tile: int, block: int, values: torch.Tensor) -> None:
        """Store a block of this rank's product."""
        self._require()
        self._records[buffer].append(("product", self._step_of(chunk), tile, block))
        self._staging[buffer][self._grid.region(chunk, tile, block)] = values
        try:
            self._store.sendall(_MESSAGE.pack(_UPDATE, buffer, chunk, tile, block))
        except OSError:
            self._require()
            raise

    def wait(self, buffer: int, timeout_s: float) -> None:
        """Wait until all tiles are forwarded, and those of this rank's chunk complete."""
        grid = self._grid
        tiles = sum(grid.tiles(chunk) for chunk in range(self._ranks))
        first = grid.tiles((self._rank + 1) % self._ranks)
        whole = tiles - first + first * grid.blocks

        def over() -> bool:
            return self._gone is not None or self._failure is not None or self._passed[buffer] >= whole

        with self._changed:
            if not self._changed.wait_for(over, timeout_s):
                raise CheckError(
                    f"expected all updates of a product within {timeout_s:g} s, found that {self._passed[buffer]} of "
                    f"{whole} transfers were triggered: start the training again from its last checkpoint."
                )
            if self._passed[buffer] < whole:
                self._require()
            self._passed[buffer] = 0
            self.record, self._records[buffer] = self._records[buffer], []

    def close(self) -> None:
        """Forward what is left, and stop."""
        self._store.close()
        self._thread.join()
        self._behind.close()

    def _require(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._gone is not None:
            raise CheckError(
                f"expected all ranks of a tracked product, found that rank {self._gone} of its group has ended: start "
                "the training again from its last checkpoint."
            )

    def _serve(self) -> None:
        """Thread of the memory."""
        try:
            while self._step():
                pass
        except Exception as error:  # noqa: BLE001 (raised where this thread is waited for)
            self._failure = error
        self._before.close()  # the one behind stays: its rank is told by the others who has ended
        self._stored.close()
        with self._changed:
            self._changed.notify_all()

    def _step(self) -> bool:
        """Serve pending updates; return whether to continue."""
        if self._gone is not None and not self._to_send:
            return False
        sources = [self._stored] if self._left_after is not None else [self._stored, self._behind]
        reading = sources if self._gone is None else []
        readable, writable, _ = select.select(reading, [self._before] if self._to_send else [], [])
        if writable:
            self._send()
        for source in readable:
            message = _exactly(source, _MESSAGE.size)
            if source is self._behind:
                self._comes(message)
            elif message is None:
                return self._flush()
            else:
                kind, *what = _MESSAGE.unpack(message)
                if kind == _GONE:
                    self._lost(what[0])
                else:
                    self._stores(*what)
        return True

    def _stores(self, buffer: int, chunk: int, tile: int, block: int) -> None:
        """Handle a store of this rank's product."""
        step = self._step_of(chunk)
        region = self._grid.region(chunk, tile, block)
        if step == 0:
            self._landing[buffer][self._rank - 1][region] = self._staging[buffer][region]
            self._pass_on("remote store", buffer, chunk, tile, block)
            return
        self._add(buffer, chunk, tile, block, self._staging[buffer])
        self._records[buffer].append(("store", step, tile, block))
        self._count(buffer, chunk, tile, 1)

    def _comes(self, message: bytes | None) -> None:
        """Handle an update from the next rank, or its end."""
        following = (self._rank + 1) % self._ranks
        kind, *what = _MESSAGE.unpack(message) if message is not None else (_GONE, following)
        if kind == _GONE:
            self._lost(what[0])
            return
        if kind == _GOODBYE:
            self._left_after = what[0]
            if self._products > what[0]:
                self._lost(following)
            return
        buffer, chunk, tile, block = what
        blocks = range(self._grid.blocks) if block < 0 else (block,)
        for each in blocks:
            self._add(buffer, chunk, tile, each, self._landing[buffer][self._rank])
        self._records[buffer].append(("update", self._step_of(chunk), tile, block))
        self._count(buffer, chunk, tile, len(blocks))

    def _add(self, buffer: int, chunk: int, tile: int, block: int, values: torch.Tensor) -> None:
        """Add an update to a block; the first one is stored."""
        region = self._grid.region(chunk, tile, block)
        place = (buffer, chunk, tile, block)
        if place in self._there:
            self._there.remove(place)
            self._sums[buffer][self._rank][region] += values[region]
        else:
            self._there.add(place)
            self._sums[buffer][self._rank][region] = values[region]

    def _count(self, buffer: int, chunk: int, tile: int, updates: int) -> None:
        """Count updates of a tile; the last one triggers its transfer."""
        key = (buffer, chunk, tile)
        self._counts[key] += updates
        if self._counts[key] < expected_updates(self._grid.blocks):
            return
        del self._counts[key]
        if chunk == self._rank:
            self._complete("sum", buffer, chunk, tile, -1)
            return
        region = self._grid.region(chunk, tile)
        self._landing[buffer][self._rank - 1][region] = self._sums[buffer][self._rank][region]
        self._pass_on("hop", buffer, chunk, tile, -1)

    def _pass_on(self, what: str, buffer: int, chunk: int, tile: int, block: int) -> None:
        """Notify the previous rank of its receive buffer's content."""
        self._to_send.append(_MESSAGE.pack(_UPDATE, buffer, chunk, tile, block))
        self._complete(what, buffer, chunk, tile, block)

    def _complete(self, what: str, buffer: int, chunk: int, tile: int, block: int) -> None:
        self._records[buffer].append((what, self._step_of(chunk), tile, block))
        with self._changed:
            self._passed[buffer] += 1
            self._changed.notify_all()

    def _step_of(self, chunk: int) -> int:
        """Ring step in which this rank computes a chunk."""
        return (chunk - self._rank - 1) % self._ranks

    def _lost(self, gone: int) -> None:
        """Handle the end of a rank: notify the previous rank and waiting callers."""
        self._to_send.append(_MESSAGE.pack(_GONE, gone, 0, 0, 0))
        with self._changed:
            self._gone = gone
            self._changed.notify_all()

    def _send(self) -> None:
        try:
            sent = self._before.send(self._to_send[0])
        except BlockingIOError:
            return
        except OSError:
            self._to_send.clear()
            if self._gone is None:
                self._lost((self._rank - 1) % self._ranks)
                self._to_send.clear()
            return
        rest = self._to_send.popleft()[sent:]
        if rest:
            self._to_send.appendleft(rest)

    def _flush(self) -> bool:
        """Send the remainder, and this rank's end."""
        self._to_send.append(_MESSAGE.pack(_GOODBYE, self._products, 0, 0, 0))
        while self._to_send:
            select.select([], [self._before], [])
            self._send()
        return False


def _exactly(source: socket.socket, size: int) -> bytes | None:
    """Receive a message; None at the end."""
    found = b""
    while len(found) < size:
        try:
            part = source.recv(size - len(found))
        except OSError:
            return None
        if not part:
            return None
        found += part
    return found
