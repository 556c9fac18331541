"""T3 in software: a matrix product whose stores trigger its reduce-scatter, in shared memory of one host.

The order is that of the simulated ring: rank r computes the chunk of rank r + 1 first and its own last
(:class:`~coppice.iteration.policies.tensor.triggered.TriggeredProduct`), tile by tile and block by block. Who computes
starts no transfer and waits for none: memories do, see :mod:`~coppice.training.torch.tensor.triggered_memory`. The
all-gather of a sum comes behind, as in T3.

This is what T3 does, for study and for checking it; it says nothing of the speed of its hardware.
"""

from __future__ import annotations

import mmap
import os
import shutil
import socket
import tempfile
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.iteration.policies.tensor.ring_products import RingStep, shard_sizes
from coppice.iteration.policies.tensor.triggered import TriggeredProduct
from coppice.training.torch.core.agree import broadcast_from_first, gathered, lost_rank
from coppice.training.torch.tensor.triggered_memory import Event, TileGrid, TrackedMemory

_BUFFERS = 2  # products take turns: when one begins no rank is in the one before the last any more


class TrackedProduct:
    """Products of one shape, reduce-scattered by their own stores.

    Every rank makes one, and calls its methods in the same order.

    Args:
        rows: Rows of the result, which are scattered: as many for each rank, fewer for the last ones.
        columns: Columns of the result.
        dtype: Type of the result.
        group: The ranks, of one host; None: all.
        tile_rows: Rows of a tile, which is tracked by one counter.
        block_columns: Columns that are stored at a time.
        timeout_s: Seconds to wait for the last update.

    Raises:
        InputError: If a size is not positive, or ranks are on several hosts.

    Examples:
        >>> with TrackedProduct(4, 2) as product:
        ...     product.reduce_scatter(torch.eye(4), torch.ones(4, 2)).shape
        torch.Size([4, 2])
    """

    @checked
    def __init__(
        self,
        rows: int,
        columns: int,
        *,
        dtype: Any = torch.float32,
        group: Any = None,
        tile_rows: int = 64,
        block_columns: int = 256,
        timeout_s: float = 60.0,
    ) -> None:
        if min(rows, columns, tile_rows, block_columns) < 1 or timeout_s <= 0:
            raise InputError(
                "expected 1 or more rows and columns of products, tiles and blocks, and a timeout above 0 s, found "
                f"{rows} x {columns}, {tile_rows}, {block_columns} and {timeout_s:g} s."
            )
        joined = dist.is_available() and dist.is_initialized()
        self._group = group
        self._ranks, self._rank = (dist.get_world_size(group), dist.get_rank(group)) if joined else (1, 0)
        sizes = shard_sizes(rows, self._ranks)
        if min(sizes) == 0:
            raise InputError(
                f"expected rows for each of {self._ranks} ranks, found {rows}, which are {sizes} for them."
            )
        ends = accumulate(sizes, initial=0)
        self.grid = TileGrid(tuple(ends), columns, tile_rows, block_columns)
        # The tasks of a rank in simulation
        self.steps: tuple[RingStep, ...] = TriggeredProduct(
            ranks=self._ranks, product=1.0, hop=1.0
        ).arbitrated.steps()
        self._dtype, self._timeout_s = dtype, timeout_s
        self._buffer = 0
        self._memory: TrackedMemory | None = None
        self._sums: torch.Tensor | None = None
        if self._ranks > 1:
            self._connect(rows, columns)

    @property
    def record(self) -> list[Event]:
        """See the class."""
        return [] if self._memory is None else self._memory.record

    def reduce_scatter(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """This rank's rows of the sum over ranks of ``a @ b``.

        Args:
            a: This rank's first operand, of as many rows as the result.
            b: Its second, of as many columns.

        Raises:
            InputError: If shapes or types are others, or tensors are not in the memory of the host.
            CheckError: If a rank has ended, or does not go on.
        """
        own = slice(*self.grid.chunks[self._rank : self._rank + 2])
        self._check(a, b)
        with torch.no_grad():
            if self._memory is None or self._sums is None:
                return a @ b
            buffer = self._buffer = self._memory.begin()
            self._produce(self._memory, buffer, a, b)
            self._memory.wait(buffer, self._timeout_s)
            return self._sums[buffer][self._rank][own].clone()

    def all_reduce(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Sum over ranks of ``a @ b``: reduce-scatter, then all-gather.

        Raises:
            InputError: If shapes or types are others, or tensors are not in the memory of the host.
            CheckError: If a rank has ended, or does not go on.
        """
        own = self.reduce_scatter(a, b)
        if self._memory is None or self._sums is None:
            return own
        try:
            dist.barrier(self._group)
        except RuntimeError as error:
            raise lost_rank(error, "gather a sum") from error
        sums = self._sums[self._buffer]
        chunks = [slice(*self.grid.chunks[rank : rank + 2]) for rank in range(self._ranks)]
        return torch.cat([sums[rank][rows] for rank, rows in enumerate(chunks)])

    def close(self) -> None:
        """Close; ranks that wait for this one get an error."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _produce(self, memory: TrackedMemory, buffer: int, a: torch.Tensor, b: torch.Tensor) -> None:
        """Compute and store blocks in ring order."""
        for step in self.steps:
            if step.kind != "product":
                continue
            chunk = (self._rank + step.offset) % self._ranks
            for tile in range(self.grid.tiles(chunk)):
                for block in range(self.grid.blocks):
                    rows, columns = self.grid.region(chunk, tile, block)
                    memory.store(buffer, chunk, tile, block, a[rows] @ b[:, columns])

    def _check(self, a: torch.Tensor, b: torch.Tensor) -> None:
        """Check the operands."""
        expected = (self.grid.chunks[-1], self.grid.columns)
        found = (a.shape[0], b.shape[-1]) if a.dim() == b.dim() == 2 else ()
        if (
            found != expected
            or a.dtype != self._dtype
            or b.dtype != self._dtype
            or {a.device.type, b.device.type} != {"cpu"}
        ):
            raise InputError(
                f"expected operands of a {expected[0]} x {expected[1]} product of {self._dtype} in the memory of the "
                f"host, found {tuple(a.shape)} and {tuple(b.shape)} of {a.dtype} and {b.dtype} on {a.device}."
            )

    def _connect(self, rows: int, columns: int) -> None:
        """Share memory with the neighbours in the ring."""
        place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        folder = Path(
            broadcast_from_first(
                lambda: tempfile.mkdtemp(prefix="coppice-tracked-", dir=place),
                first=dist.get_process_group_ranks(self._group)[0] if self._group is not None else 0,
                group=self._group,
            )
        )
        shape = (2, _BUFFERS, self._ranks, rows, columns)
        try:
            self._require_one_host(folder)
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listening.bind(str(folder / str(self._rank)))
            listening.listen(1)
            file = folder / "memory"
            size = 2 * _BUFFERS * self._ranks * rows * columns * self._dtype.itemsize
            if self._rank == 0:
                with file.open("wb") as made:
                    made.truncate(size)
            dist.barrier(self._group)
            with file.open("r+b") as opened:
                shared = torch.frombuffer(mmap.mmap(opened.fileno(), size), dtype=self._dtype).view(shape)
            before = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            before.connect(str(folder / str((self._rank - 1) % self._ranks)))
            behind, _ = listening.accept()
            listening.close()
            dist.barrier(self._group)
        finally:
            if self._rank == 0:
                shutil.rmtree(folder, ignore_errors=True)
        self._sums = shared[1]
        self._memory = TrackedMemory(
            self._rank,
            self.grid,
            staging=torch.empty(_BUFFERS, rows, columns, dtype=self._dtype),
            landing=shared[0],
            sums=shared[1],
            before=before,
            behind=behind,
        )

    def _require_one_host(self, folder: Path) -> None:
        """Check that all ranks see the folder."""
        seen = gathered(folder.is_dir(), self._group)
        if not all(seen):
            raise InputError(
                f"expected ranks of one host, which share memory, found that rank {seen.index(False)} is on another."
            )
