"""Tasks of a step: passes of stages as rows of templates, each as one task or block by block; and the graph of them.

Equal tasks share a template, so that graphs of many micro-batches are built by table look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coppice.iteration.pipeline.order import StagePass, Work
from coppice.iteration.step.plan import (
    BACKWARD,
    FORWARD,
    PROCESSORS,
    RECOMPUTE,
    GroupExchange,
    LayerBlock,
    LayerPass,
    Message,
    Step,
    StepPlan,
)
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


KIND_OF_WORK = {
    Work.FORWARD: Kind("compute", "forward"),
    Work.BACKWARD: Kind("compute", "backward"),
    Work.INPUT: Kind("compute", "input gradient"),
    Work.WEIGHT: Kind("compute", "weight gradient"),
}
_HALVES = {Work.BACKWARD: "whole", Work.INPUT: "inputs", Work.WEIGHT: "weights"}
_PHASES = {
    Work.FORWARD: (FORWARD,),
    Work.BACKWARD: (RECOMPUTE, BACKWARD),
    Work.INPUT: (RECOMPUTE, BACKWARD),
    Work.WEIGHT: (),
}


def exchange_kind(part: str, each: GroupExchange) -> Kind:
    """Task kind of a collective."""
    return Kind(part, each.collective, each.group, each.link)


@dataclass
class Row:
    """Tasks of a pass, in order."""

    templates: list[int] = field(default_factory=list)  # Template of each
    words: list[str] = field(default_factory=list)  # What of the pass each is, for people
    begins: dict[int, int] = field(default_factory=dict)  # First task of each block, where blocks are apart
    ends: dict[int, int] = field(default_factory=dict)  # Last task of each block
    # First task of a block, and the template of the gather that it waits for
    gathers: list[tuple[int, int]] = field(default_factory=list)
    # Last task of a block, and the template of the scatter that follows
    scatters: list[tuple[int, int]] = field(default_factory=list)
    # Tasks that come after some tasks of the row, not after the one before them
    inputs: dict[int, list[int]] = field(default_factory=dict)

    def add(self, word: str, template: int) -> int:
        """Append a task; return its place."""
        self.templates.append(template)
        self.words.append(word)
        return len(self.templates) - 1


@dataclass(frozen=True)
class Rows:
    """Builder of task sequences."""

    step: Step  # The step
    plan: StepPlan  # Its plan
    template_table: TemplateTable  # Where templates are numbered
    one_stream: bool  # What blocks a device runs on its own stream, so that a bound counts it
    contention: float  # Share of a device that exchanges beside computation take from it

    def whole(self, stage: int, work: Work, device: int) -> Row:
        """A pass as one computation, then its collectives of each kind."""
        row = Row()
        blocks = self.step.stages[stage]
        row.add("", self._compute(work, device, sum(self._seconds(block, work) for block in blocks)))
        self._exchanges(row, "", self._inside(blocks, work), device)
        return row

    def by_block(self, stage: int, work: Work, device: int, *, starts: Iterable[int], last: bool) -> Row:
        """A pass block by block.

        Args:
            starts: Blocks before which a task stands that takes no time.
            last: It is the last of its kind, whose order the plan may choose.
        """
        row = Row()
        blocks, marked = self.step.stages[stage], set(starts)
        branched = work is Work.FORWARD and any(block.inputs is not None for block in blocks)
        numbers = range(len(blocks))
        turns = [
            LayerPass(work, number) for number in (numbers if work is Work.FORWARD else reversed(numbers))
        ]
        if work is Work.BACKWARD and last:
            turns = list(self.plan.backward.get(stage, turns))
        if branched:
            row.add("start", self.barrier("start", device))
        for part, number in turns:
            block, name = blocks[number], f"block {number}" if len(blocks) > 1 else ""
            first = row.begins[number] = len(row.templates)
            if number in marked:
                row.add(f"{name} starts".strip(), self.barrier("start", device))
            words = name if part is work else f"{name} {_HALVES[part]}".strip()
            row.add(words, self._compute(part, device, self._seconds(block, part)))
            self._exchanges(row, name, self._inside([block], part), device)
            row.ends[number] = len(row.templates) - 1
            if branched:
                before = (number - 1,) * (number > 0) if block.inputs is None else block.inputs
                row.inputs[first] = [row.ends[each] for each in before] or [0]
            if self.plan.gathers_ahead:
                self._ahead(row, block, part, device, first)
        if branched:
            row.inputs[row.add("end", self.barrier("end", device))] = list(row.ends.values())
        return row

    def barrier(self, name: str, device: int = 0) -> int:
        """Template of a task without time and stream."""
        return self.template_table.add("", Kind("barrier", name), device, 0.0)

    def updates(self, stage: int, device: int) -> dict[int, int]:
        """Templates of the optimizer step of each block of a stage."""
        blocks = self.step.stages[stage]
        every = sum(block.parameters for block in blocks)
        if not every or not self.step.optimizer:
            return {}
        return {
            number: self.template_table.add(
                f"device {device}",
                Kind("optimizer", "optimizer"),
                device,
                self.step.optimizer[stage] * block.parameters / every,
            )
            for number, block in enumerate(blocks)
            if block.parameters
        }

    def send(self, device: int, target: int, giving: StagePass | None = None) -> int:
        """Template of a send from one device to another; a plan may choose stream and priority by the pass."""
        each = self.step.send or GroupExchange(group="pp", collective="send", size_bytes=0.0, seconds=0.0)
        stream, priority = f"device {device}" if self._blocks_here else f"link {device} to {target}", 0
        if giving is not None and self.plan.send_stream is not None:
            stream, priority = self.plan.send_stream(giving)
        kind = exchange_kind("send", each)
        return self.template_table.add(stream, kind, device, each.seconds, each.loads, priority)

    def message(self, each: Message, device: int) -> int:
        """Template of a message."""
        return self.overlapped(each.stream, each.exchange, device, each.priority)

    @cached_property
    def _shares_processors(self) -> bool:
        """Whether exchanges say themselves what they take of the processors of a device."""
        inside = (each.loads for stage in self.step.stages for block in stage for each in block.exchanges)
        return any(PROCESSORS in loads for loads in (*(each.loads for each in self.plan.messages), *inside))

    @property
    def _blocks_here(self) -> bool:
        return self.one_stream and self.plan.sends_block

    def overlapped(self, stream: str, each: GroupExchange, device: int, priority: int = 0) -> int:
        """Task template of an exchange overlapped with computation."""
        loads = {**each.loads, PROCESSORS: self.contention} if self.contention else each.loads
        return self.template_table.add(
            f"{stream} {device}", exchange_kind("message", each), device, each.seconds, loads, priority
        )

    def _ahead(self, row: Row, block: LayerBlock, work: Work, device: int, first: int) -> None:
        """Collectives of replicas about a block outside of the pass."""
        for each in block.exchanges:
            if each.group != "dp" or not each.seconds:
                continue
            gathers = each.collective == "all_gather"
            if gathers and each.when in _PHASES[work]:
                row.gathers.append((first, self.overlapped("gathers", each, device)))
            if not gathers and work in (Work.BACKWARD, Work.WEIGHT):
                row.scatters.append((len(row.templates) - 1, self.overlapped("network", each, device)))

    def _seconds(self, block: LayerBlock, work: Work) -> float:
        """Compute time of a pass over a block."""
        if work is Work.FORWARD:
            return block.forward
        inputs, weights = block.recompute + block.input_gradient, block.weight_gradient
        return {Work.BACKWARD: inputs + weights, Work.INPUT: inputs, Work.WEIGHT: weights}[work]

    def _compute(self, work: Work, device: int, seconds: float) -> int:
        loads = {PROCESSORS: 1.0} if self.contention or self._shares_processors else None
        return self.template_table.add(f"device {device}", KIND_OF_WORK[work], device, seconds, loads)

    def _inside(self, blocks: Sequence[LayerBlock], work: Work) -> Iterator[GroupExchange]:
        """Exposed collectives inside a pass."""
        for block in blocks:
            for each in block.exchanges:
                scatters = each.group == "dp" and each.collective != "all_gather"
                if self.plan.gathers_ahead and each.group == "dp":
                    continue
                if scatters:  # with the gradients of weights
                    if work in (Work.BACKWARD, Work.WEIGHT):
                        yield each
                elif each.when in _PHASES[work]:
                    yield each

    def _exchanges(self, row: Row, name: str, exchanges: Iterable[GroupExchange], device: int) -> None:
        """Append collectives, those of a kind merged."""
        seconds: dict[Kind, float] = {}
        taken: dict[Kind, dict[str, float]] = {}
        for each in exchanges:
            if each.seconds:
                kind = exchange_kind("exchange", each)
                seconds[kind] = seconds.get(kind, 0.0) + each.seconds
                links = taken.setdefault(kind, {})
                for link, share in each.loads.items():
                    links[link] = links.get(link, 0.0) + share * each.seconds
        stream = f"device {device}" if self.one_stream else f"exchanges {device}"
        for kind, total in seconds.items():
            loads = {link: busy / total for link, busy in taken[kind].items()}
            row.add(f"{name} {kind}".strip(), self.template_table.add(stream, kind, device, total, loads))


@dataclass(frozen=True, eq=False, kw_only=True)
class StepGraph:
    """Task graph of consecutive iterations of a step."""

    graph: TaskGraph  # The tasks, iteration after iteration
    count: int  # Number of iterations
    device: NDArray[np.int32]  # Pipeline device of each task of an iteration
    kind: NDArray[np.int32]  # What it is, as a number into `kinds`
    kinds: tuple[Kind, ...]  # What tasks are
    program: NDArray[np.bool_]  # Whether it is of the program of its device: one after the other
    mark: int  # The task of an iteration at whose end the next one begins
    first: Sequence[int]  # For each iteration, the task whose start begins it
    # For each iteration the tasks with whose ends it is over: the last passes of stages, then the messages
    last: Sequence[Sequence[int]]

    @property
    def size(self) -> int:
        """Tasks per iteration."""
        return len(self.device)

    def marks(self) -> _Ints:
        """Last task of each iteration."""
        return self.mark + self.size * np.arange(self.count, dtype=np.int64)


class StepTaskNames(Sequence[str]):
    """Names of tasks, made on demand.

    Args:
        passes: Names of the tasks of passes.
        rest: Names of the tasks after those of passes, section by section, and how many there are.
    """

    def __init__(
        self,
        passes: Callable[[int], str],
        count: int,
        rest: Sequence[tuple[Callable[[int], str], int]],
        times: int,
        *,
        numbered: bool,
    ) -> None:
        self._numbered = numbered
        self._words = [passes, *(words for words, _ in rest)]
        self._first = np.cumsum([0, count, *(count for _, count in rest)])
        self._size, self._times = int(self._first[-1]), times

    def __len__(self) -> int:
        return self._size * self._times

    def __getitem__(self, task: int | slice) -> str | Sequence[str]:  # type: ignore[override]
        if isinstance(task, slice):
            return [str(self[each]) for each in range(*task.indices(len(self)))]
        if not 0 <= task < len(self):
            raise IndexError(task)
        iteration, own = divmod(int(task), self._size)
        section = int(np.searchsorted(self._first, own, side="right")) - 1
        name = self._words[section](own - int(self._first[section]))
        return f"{name} of {iteration}" if self._numbered else name


class Dependencies:
    """Pairs of tasks, the first after the second's end."""

    def __init__(self) -> None:
        self._columns: list[tuple[_Ints, _Ints]] = []
        self._task: list[int] = []
        self._after: list[int] = []

    def pair(self, task: int, after: int) -> None:
        """Add a dependency."""
        self._task.append(task)
        self._after.append(after)

    def add(self, task: _Ints | int, after: _Ints | int) -> None:
        """Add dependencies pair by pair; a single number pairs with all."""
        first, second = np.broadcast_arrays(np.asarray(task, np.int64), np.asarray(after, np.int64))
        self._columns.append((first.ravel(), second.ravel()))

    def columns(self) -> tuple[_Ints, _Ints]:
        """All pairs as columns."""
        pairs = np.asarray(self._task, dtype=np.int64), np.asarray(self._after, dtype=np.int64)
        task, after = zip(*self._columns, pairs, strict=True)
        return np.concatenate(task), np.concatenate(after)


class CreditWindows:
    """Bytes that streams take on before they are acknowledged."""

    def __init__(self) -> None:
        self._number: dict[tuple[int, str], int] = {}  # Of the window of a device's stream
        self._credit: list[float] = []
        self._held: list[tuple[int, int, float, int]] = []

    def hold(
        self, stream: tuple[int, str], credit_bytes: float, task: int, size_bytes: float, back: int
    ) -> None:
        """Let a task take credit of a device's stream, which another task, or it itself, gives back at its end."""
        number = self._number.setdefault(stream, len(self._number))
        self._credit += [credit_bytes] * (number == len(self._credit))
        self._held.append((task, number, size_bytes, back))

    def of(self, made: TaskGraph, size: int, count: int) -> TaskGraph:
        """A graph of iterations with its windows.

        Args:
            size: Tasks of an iteration.
            count: Iterations.
        """
        if not self._held:
            return made
        window, taken = np.full(size, -1, dtype=np.int32), np.zeros(size)
        returns = np.full((count, size), -1, dtype=np.int32)
        for task, number, size_bytes, back in self._held:
            window[task], taken[task] = number, size_bytes
            returns[:, back] = task + size * np.arange(count)
        return replace(
            made,
            credit=np.asarray(self._credit, dtype=np.float64),
            window=np.tile(window, count),
            window_bytes=np.tile(taken, count),
            returns=returns.ravel(),
        )
