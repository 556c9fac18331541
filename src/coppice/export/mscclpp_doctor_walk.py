"""Walks through an execution plan as it stands, past everything that is not what it should be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from coppice.export.mscclpp_doctor import Path, PlanCase

__all__ = ["Here", "blocks", "entries", "gpus", "number", "operations", "slots"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """An object of the file and those that it is in.

    Attributes:
        path: Where it is.
        gpu: Its GPU.
        block: Its thread block; empty above thread blocks.
        op: The operation; empty above operations.
        loop: The pipeline that the operation is in; empty outside.
        rank: Place of its GPU.
    """

    path: Path
    gpu: dict[str, Any]
    block: dict[str, Any]
    op: dict[str, Any]
    loop: dict[str, Any]
    rank: int

    @property
    def name(self) -> Any:
        """Name of the operation."""
        return self.op.get("name")


def entries(value: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """(place, object) of the objects in a list."""
    for place, each in enumerate(value if isinstance(value, list) else []):
        if isinstance(each, dict):
            yield place, each


def number(value: Any) -> int | None:
    """An integer, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def gpus(case: PlanCase) -> Iterator[Here]:
    """All GPUs."""
    for rank, gpu in entries(case.top.get("gpus")):
        yield Here(path=("gpus", rank), gpu=gpu, block={}, op={}, loop={}, rank=rank)


def blocks(case: PlanCase) -> Iterator[Here]:
    """All thread blocks."""
    for here in gpus(case):
        for place, block in entries(here.gpu.get("threadblocks")):
            path = (*here.path, "threadblocks", place)
            yield Here(path=path, gpu=here.gpu, block=block, op={}, loop={}, rank=here.rank)


def operations(case: PlanCase) -> Iterator[Here]:
    """All operations, those in pipelines after their pipeline."""
    for here in blocks(case):
        for place, op in entries(here.block.get("ops")):
            path = (*here.path, "ops", place)
            yield Here(path=path, gpu=here.gpu, block=here.block, op=op, loop={}, rank=here.rank)
            for inner, each in entries(op.get("ops")):
                yield Here(
                    path=(*path, "ops", inner),
                    gpu=here.gpu,
                    block=here.block,
                    op=each,
                    loop=op,
                    rank=here.rank,
                )


def slots(here: Here) -> Iterator[tuple[Path, dict[str, Any]]]:
    """(path, object) of what an operation reads and writes."""
    for key in ("src_buff", "dst_buff"):
        for place, each in entries(here.op.get(key)):
            yield (*here.path, key, place), each
