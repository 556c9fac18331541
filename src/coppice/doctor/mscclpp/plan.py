"""Execution plan of MSCCL++ under examination, tolerant of invalid values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from coppice.doctor.framework import Path, Place, Rulebook, Subject
from coppice.export.mscclpp.document import JsonText, line_of, path_text
from coppice.export.mscclpp.limits import PreloadSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanObject:
    """An object of the file with its ancestors."""

    path: Path  # Where it is
    gpu: dict[str, Any]  # Its GPU
    block: dict[str, Any]  # Its thread block; empty above thread blocks
    op: dict[str, Any]  # The operation; empty above operations
    loop: dict[str, Any]  # The pipeline that the operation is in; empty outside
    rank: int  # Place of its GPU

    @property
    def name(self) -> Any:
        """Name of the operation."""
        return self.op.get("name")


@dataclass(frozen=True, eq=False, kw_only=True)
class MscclppPlan(Subject):
    """An execution plan under examination."""

    document: JsonText  # The file
    ranks: int | None  # Ranks of the communicator, or None if not known
    # Communicators that the preloaded NCCL API library takes a file of its name for, None for other names
    slot: PreloadSlot | None = None
    preloaded: bool = False  # It has such a name, or lies where that library looks
    # Other plans that the library reads beside it, by the name of the file
    neighbours: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def locate(self, place: Place) -> tuple[int, str]:
        """Line and JSON path of a value."""
        return (
            super().locate(place)
            if isinstance(place, int)
            else (line_of(self.document.text, place), path_text(place))
        )

    @property
    def top(self) -> dict[str, Any]:
        """Top-level object."""
        return self.document.tree if isinstance(self.document.tree, dict) else {}

    @cached_property
    def gpus(self) -> tuple[PlanObject, ...]:
        """All GPUs."""
        return tuple(
            PlanObject(path=("gpus", rank), gpu=gpu, block={}, op={}, loop={}, rank=rank)
            for rank, gpu in entries(self.top.get("gpus"))
        )

    @cached_property
    def blocks(self) -> tuple[PlanObject, ...]:
        """All thread blocks."""
        return tuple(
            PlanObject(
                path=(*here.path, "threadblocks", place),
                gpu=here.gpu,
                block=block,
                op={},
                loop={},
                rank=here.rank,
            )
            for here in self.gpus
            for place, block in entries(here.gpu.get("threadblocks"))
        )

    @cached_property
    def operations(self) -> tuple[PlanObject, ...]:
        """All operations; those in pipelines follow their pipeline."""
        found = []
        for here in self.blocks:
            for place, op in entries(here.block.get("ops")):
                path = (*here.path, "ops", place)
                within = [
                    (path, op, {}),
                    *(((*path, "ops", k), each, op) for k, each in entries(op.get("ops"))),
                ]
                found += [
                    PlanObject(path=where, gpu=here.gpu, block=here.block, op=each, loop=loop, rank=here.rank)
                    for where, each, loop in within
                ]
        return tuple(found)

    def named(self, *names: str, by: str | None = None) -> Iterator[PlanObject]:
        """Operations by name, for one type of channel if ``by`` is given."""
        for here in self.operations:
            if here.name in names and by in (None, here.op.get("channel_type")):
                yield here


RULES = Rulebook[MscclppPlan]()
"""Rules about execution plans."""


def listed(value: Any) -> list[Any]:
    """Elements of a list; none where it is no list."""
    return value if isinstance(value, list) else []


def entries(value: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """(place, object) of the objects of a list."""
    for place, each in enumerate(listed(value)):
        if isinstance(each, dict):
            yield place, each


def number(value: Any) -> int | None:
    """An integer, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def slots(here: PlanObject) -> Iterator[tuple[Path, dict[str, Any]]]:
    """(path, object) of the chunks that an operation reads and writes."""
    for key in ("src_buff", "dst_buff"):
        for place, each in entries(here.op.get(key)):
            yield (*here.path, key, place), each
