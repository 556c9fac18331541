"""Record the costs of recomputed blocks, and schedule their recomputation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from coppice.errors import InputError
from coppice.iteration.policies.tensor.lynx import WindowedRecompute
from coppice.iteration.policies.tensor.recompute_windows import KEPT, LayerWindows, RecomputedOp, least_bytes
from coppice.iteration.policies.tensor.stage_windows import stage_bytes


@dataclass(frozen=True, kw_only=True)
class RecordedBlock:
    """Recorded costs of a block."""

    windows: LayerWindows  # Operations of a block and the sums beside which there is time
    # What a block keeps of a micro-batch in any case: what enters its parts, and what is saved between a sum
    # and there
    fixed_bytes: int


@dataclass(frozen=True, kw_only=True)
class RecomputeSchedule:
    """Choice of the policy for sequential blocks."""

    # For each block and operation -1 (kept), the number of a window, or a larger one (on demand), as of
    # `plan_stage`
    places: tuple[tuple[int, ...], ...]
    kept_bytes: int  # What all blocks keep of a micro-batch between its passes
    peak_bytes: int  # The most that all micro-batches in flight take, with what is computed again

    @classmethod
    def of(
        cls, policy: WindowedRecompute, block: RecordedBlock, *, blocks: int, in_flight: int
    ) -> RecomputeSchedule:
        """Schedule of a policy.

        Where one micro-batch is in flight there is nothing to compute again in its forward pass. Windows of forward
        passes are of no length then; what is for them is done in the first window of the backward pass, or on demand.
        """
        limit = int(policy.settings.limit_bytes) or None
        windows = block.windows
        if in_flight == 1:
            windows = LayerWindows(
                ops=windows.ops,
                backward=windows.backward,
                forward=(0.0,) * len(windows.backward),
                compute=windows.compute,
            )
        fixed = in_flight * blocks * block.fixed_bytes
        least = fixed + least_bytes(windows)
        if limit is not None and limit < least:
            raise InputError(
                f"expected `limit_bytes` of {least} or more, of which {fixed} are for what enters the parts of "
                f"{blocks} blocks and the rest for one block that is computed again, found {limit}."
            )
        left = None if limit is None else limit - fixed
        found = policy.planned(windows, layers=blocks, in_flight=in_flight, limit_bytes=left)
        if in_flight == 1:
            first = len(windows.forward)
            found = tuple(tuple(at if at == KEPT else max(at, first) for at in each) for each in found)
        kept = sum(
            op.size_bytes for each in found for op, at in zip(windows.ops, each, strict=True) if at == KEPT
        )
        return cls(
            places=found,
            kept_bytes=blocks * block.fixed_bytes + kept,
            peak_bytes=fixed + stage_bytes(windows, found, in_flight),
        )


class RecomputeRecorder:
    """Times and sizes of passes that recompute everything on demand.

    Args:
        device: Where they run.
        names: Operations of each block.
        windows: Windows of a pass of a block.
    """

    def __init__(self, device: torch.device, names: Sequence[Sequence[str]], windows: int) -> None:
        self._names = names
        self._windows = windows
        self._device = device
        self._seconds: dict[tuple[object, ...], list[float]] = {}
        self._sizes: dict[tuple[int, int], int] = {}
        self._fixed = 0
        self._begun = 0

    def begin(self) -> None:
        """Start a forward pass; the first one's times are dropped if there are others."""
        self._begun += 1
        if self._begun == 2:
            self._seconds.clear()

    def size(self, block: int, op: int, size_bytes: int) -> None:
        """Record the bytes of an operation."""
        self._sizes[block, op] = max(size_bytes, self._sizes.get((block, op), 0))

    def fixed(self, size_bytes: int) -> None:
        """Record the other activation bytes of a block."""
        self._fixed = max(size_bytes, self._fixed)

    @contextmanager
    def timed(self, *what: object) -> Iterator[None]:
        """Time an operation (``"again"``, block, operation) or a window (pass, number)."""
        begin = self._now()
        yield
        self._seconds.setdefault(what, []).append(self._now() - begin)

    def _now(self) -> float:
        if self._device.type != "cpu":
            torch.get_device_module(self._device).synchronize(self._device)
        return time.perf_counter()

    def agreed(self, group: dist.ProcessGroup | None, *, ranks: int) -> RecordedBlock:
        """Recorded blocks: times of the first rank, the largest sizes of all."""
        own = (self._names[0], self._alike(), self._medians(), self._fixed)
        everyone: list[Any] = [own]
        if ranks > 1:
            everyone = [None] * ranks
            dist.all_gather_object(everyone, own, group=group)
        names, _, (again, windows), _ = everyone[0]
        sizes = [max(each) for each in zip(*(told[1] for told in everyone), strict=True)]
        return RecordedBlock(
            windows=LayerWindows(
                ops=tuple(
                    RecomputedOp(
                        name=name, seconds=seconds, size_bytes=size, after=(number - 1,) if number else ()
                    )
                    for number, (name, seconds, size) in enumerate(zip(names, again, sizes, strict=True))
                ),
                backward=windows["B"],
                forward=windows["F"],
            ),
            fixed_bytes=max(told[3] for told in everyone),
        )

    def _alike(self) -> list[int]:
        """Bytes of each operation, the same in all blocks."""
        found = [
            [self._sizes[block, op] for op in range(len(names))] for block, names in enumerate(self._names)
        ]
        for number, each in enumerate(found):
            if each != found[0]:
                raise InputError(
                    f"expected blocks alike, found that operations of block 0 save {found[0]} bytes and those of "
                    f"block {number} {each}: run rows of blocks that are alike on their own."
                )
        return found[0]

    def _medians(self) -> tuple[list[float], dict[str, tuple[float, ...]]]:
        """Seconds of operations and windows; 0 of what has not run."""

        def median(*whats: tuple[object, ...]) -> float:
            seconds = [each for what in whats for each in self._seconds.get(what, ())]
            return statistics.median(seconds) if seconds else 0.0

        blocks = range(len(self._names))
        return (
            [median(*(("again", block, op) for block in blocks)) for op in range(len(self._names[0]))],
            {when: tuple(median((when, number)) for number in range(self._windows)) for when in ("F", "B")},
        )
