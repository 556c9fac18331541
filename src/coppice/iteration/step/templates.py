"""Task templates: equal tasks of a step share one, so that graphs are built by table look-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coppice.iteration.tasks import TaskGraph
from coppice.rows import offsets, ranges

_Ints = NDArray[np.int64]


class Kind(NamedTuple):
    """Kind of a task."""

    part: str  # `compute`, `exchange`, `send`, `message`, `optimizer` or `barrier`
    name: str  # The pass of a computation, the collective of anything else
    group: str = ""  # Ranks that exchange; empty: none
    link: str = ""  # The link that limits it; empty: none is known

    def __str__(self) -> str:
        return f"{self.group} {self.name}" if self.group else self.name


class TaskTemplate(NamedTuple):
    """Attributes shared by all tasks of a template."""

    stream: str  # Name of the stream; empty: none
    kind: Kind  # What it is
    device: int  # The pipeline device
    seconds: float  # Time alone
    loads: tuple[tuple[str, float], ...] = ()  # Names of links and the shares that it takes
    priority: int = 0  # A free stream takes the least


@dataclass
class TemplateTable:
    """Task templates by number, each once."""

    templates: dict[TaskTemplate, int] = field(default_factory=dict)

    def add(
        self,
        stream: str,
        kind: Kind,
        device: int,
        seconds: float,
        loads: Mapping[str, float] | None = None,
        priority: int = 0,
    ) -> int:
        """Number of a template; links belong to the device."""
        own = tuple((f"{link} of device {device}", share) for link, share in (loads or {}).items())
        template = TaskTemplate(stream, kind, device, seconds, own, priority)
        return self.templates.setdefault(template, len(self.templates))


def _numbered(names: Sequence[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    """Distinct names in order of first occurrence."""
    number = {name: k for k, name in enumerate(dict.fromkeys(name for name in names if name))}
    return tuple(number), number


def graph_of_templates(
    table: TemplateTable, template: NDArray[np.int32], task: _Ints, after: _Ints, names: Sequence[str]
) -> TaskGraph:
    """Task graph from the templates of its tasks.

    Args:
        task: Tasks that come after others, in any order.
        after: What each of them comes after.
    """
    templates = list(table.templates)
    streams, stream_number = _numbered([each.stream for each in templates])
    links, link_number = _numbered([link for each in templates for link, _ in each.loads])
    kinds = list(dict.fromkeys(each.kind for each in templates))
    kind_names, name_number = _numbered([str(kind) for kind in kinds])
    loads = np.asarray([len(each.loads) for each in templates], dtype=np.int64)
    first = offsets(loads)
    rows = ranges(first[:-1][template], loads[template])
    order = np.argsort(task, kind="stable")
    return TaskGraph(
        names=names,
        kinds=np.asarray([name_number[str(each.kind)] for each in templates], dtype=np.int32)[template],
        kind_names=kind_names,
        streams=streams,
        stream=np.asarray([stream_number.get(each.stream, -1) for each in templates], dtype=np.int32)[
            template
        ],
        seconds=np.asarray([each.seconds for each in templates], dtype=np.float64)[template],
        priority=np.asarray([each.priority for each in templates], dtype=np.int64)[template],
        after_start=offsets(np.bincount(task, minlength=len(template))),
        after=after[order].astype(np.int32),
        links=links,
        load_start=offsets(loads[template]),
        load_link=np.asarray(
            [link_number[link] for each in templates for link, _ in each.loads], dtype=np.int32
        )[rows],
        load=np.asarray([share for each in templates for _, share in each.loads], dtype=np.float64)[rows],
    )
