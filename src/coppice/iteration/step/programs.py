"""Device programs and stage passes as sequences of tasks: each pass as one task or block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coppice.iteration.pipeline.order import PipelineOrder, StagePass, Work
from coppice.iteration.step.block import BACKWARD, FORWARD, RECOMPUTE, GroupExchange, LayerBlock, Step
from coppice.iteration.step.overlap import Overlap
from coppice.iteration.step.templates import Kind, TemplateTable
from coppice.rows import offsets, ranges

KIND_OF_WORK = {
    Work.FORWARD: Kind("compute", "forward"),
    Work.BACKWARD: Kind("compute", "backward"),
    Work.INPUT: Kind("compute", "input gradient"),
    Work.WEIGHT: Kind("compute", "weight gradient"),
}
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

    templates: list[int] = field(default_factory=list)  # TaskTemplate of each
    begins: dict[int, int] = field(default_factory=dict)  # First task of each block, where blocks are apart
    ends: dict[int, int] = field(default_factory=dict)  # Last task of each block
    # First task of a block, and the template of the gather that it waits for
    gathers: list[tuple[int, int]] = field(default_factory=list)
    # Last task of a block, and the template of the scatter that follows
    scatters: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Rows:
    """Builder of task sequences."""

    step: Step  # The step
    overlap: Overlap  # What runs beside computation
    template_table: TemplateTable  # Where templates are numbered
    one_stream: bool  # What blocks a device runs on its own stream, so that a bound counts it
    contention: float  # Share of a device that exchanges beside computation take from it

    def whole(self, stage: int, work: Work, device: int) -> Row:
        """A pass as one computation, then its collectives of each kind."""
        row = Row()
        blocks = self.step.stages[stage]
        row.templates.append(self._compute(work, device, sum(self._seconds(block, work) for block in blocks)))
        row.templates += self._exchanges(self._inside(blocks, work), device)
        return row

    def by_block(self, stage: int, work: Work, device: int, *, starts: Iterable[int], last: bool) -> Row:
        """A pass block by block.

        Args:
            starts: Blocks before which a task stands that takes no time.
            last: It is the last of its kind, whose order the overlap may choose.
        """
        row = Row()
        blocks, marked = self.step.stages[stage], set(starts)
        numbers = range(len(blocks))
        turns = [(work, number) for number in (numbers if work is Work.FORWARD else reversed(numbers))]
        if work is Work.BACKWARD and last:
            turns = list(self.overlap.backward.get(stage, turns))
        for part, number in turns:
            block = blocks[number]
            first = row.begins[number] = len(row.templates)
            if number in marked:
                row.templates.append(self.template_table.add("", Kind("barrier", "start"), device, 0.0))
            row.templates.append(self._compute(part, device, self._seconds(block, part)))
            row.templates += self._exchanges(self._inside([block], part), device)
            row.ends[number] = len(row.templates) - 1
            if self.overlap.gathers_ahead:
                self._ahead(row, block, part, device, first)
        return row

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

    def send(self, device: int, target: int) -> int:
        """Template of a send from one device to another."""
        each = self.step.send or GroupExchange(group="pp", collective="send", size_bytes=0.0, seconds=0.0)
        stream = f"device {device}" if self._blocks_here else f"link {device} to {target}"
        return self.template_table.add(stream, exchange_kind("send", each), device, each.seconds, each.loads)

    @property
    def _blocks_here(self) -> bool:
        return self.one_stream and self.overlap.sends_block

    def overlapped(self, stream: str, each: GroupExchange, device: int, priority: int = 0) -> int:
        """Task template of an exchange overlapped with computation."""
        loads = {**each.loads, "SMs": self.contention} if self.contention else each.loads
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
        loads = {"SMs": 1.0} if self.contention else None
        return self.template_table.add(f"device {device}", KIND_OF_WORK[work], device, seconds, loads)

    def _inside(self, blocks: Sequence[LayerBlock], work: Work) -> Iterator[GroupExchange]:
        """Exposed collectives inside a pass."""
        for block in blocks:
            for each in block.exchanges:
                scatters = each.group == "dp" and each.collective == "reduce_scatter"
                if self.overlap.gathers_ahead and each.group == "dp":
                    continue
                if scatters:  # with the gradients of weights
                    if work in (Work.BACKWARD, Work.WEIGHT):
                        yield each
                elif each.when in _PHASES[work]:
                    yield each

    def _exchanges(self, exchanges: Iterable[GroupExchange], device: int) -> list[int]:
        """Templates of collectives, those of a kind merged."""
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
        return [
            self.template_table.add(
                stream, kind, device, total, {link: busy / total for link, busy in taken[kind].items()}
            )
            for kind, total in seconds.items()
        ]


_Ints = NDArray[np.int64]
_WORKS = tuple(Work)
CODE = {work: code for code, work in enumerate(_WORKS)}
"""Number of each kind of pass."""


class PassNames(Sequence[str]):
    """Names of tasks, made on demand."""

    def __init__(
        self,
        passes: Sequence[StagePass],
        start: _Ints,
        rest: Sequence[tuple[str, int]],
        size: int,
        times: int,
    ) -> None:
        self._passes, self._start, self._rest, self._size, self._times = passes, start, rest, size, times
        self._first = np.cumsum([0, *(count for _, count in rest)]) + int(start[-1])

    def __len__(self) -> int:
        return self._size * self._times

    def __getitem__(self, task: int | slice) -> str | Sequence[str]:  # type: ignore[override]
        if isinstance(task, slice):
            return [str(self[each]) for each in range(*task.indices(len(self)))]
        if not 0 <= task < len(self):
            raise IndexError(task)
        iteration, own = divmod(int(task), self._size)
        if own < self._start[-1]:
            number = int(np.searchsorted(self._start, own, side="right")) - 1
            words = f"{self._passes[number]} part {own - int(self._start[number])}"
        else:
            section = int(np.searchsorted(self._first, own, side="right")) - 1
            words = f"{self._rest[section][0]} {own - int(self._first[section])}"
        return f"{words} of {iteration}"


@dataclass
class Dependencies:
    """Pairs of tasks, the second after the first's end."""

    task: list[_Ints] = field(default_factory=list)
    after: list[_Ints] = field(default_factory=list)

    def add(self, task: _Ints | int, after: _Ints | int) -> None:
        """Add dependencies pair by pair; a single number pairs with all."""
        first, second = np.broadcast_arrays(np.asarray(task, np.int64), np.asarray(after, np.int64))
        self.task.append(first.ravel())
        self.after.append(second.ravel())

    def columns(self) -> tuple[_Ints, _Ints]:
        """All pairs as columns."""
        empty = np.empty(0, dtype=np.int64)
        return np.concatenate([empty, *self.task]), np.concatenate([empty, *self.after])


class Programs:
    """Passes of an iteration with their tasks.

    Attributes:
        stage: Stage of each pass, device by device in the order of the programs.
        work: Its kind, by :data:`CODE`.
        micro_batch: Its micro-batch.
        device: Its device.
        turn: Its turn; passes that run at once have the same.
        partner: The pass that it runs at once with, or itself.
        head: Its first task.
        tail: Its last one.
        opening: Passes with which devices begin.
        closing: Passes with which they end.
    """

    def __init__(
        self, step: Step, order: PipelineOrder, overlap: Overlap, *, in_order: bool, contention: float
    ) -> None:
        self.step, self.order, self.overlap, self.in_order = step, order, overlap, in_order
        self.template_table = TemplateTable()
        self.rows = Rows(
            step, overlap, self.template_table, not in_order and not order.co_scheduled, contention
        )
        self.passes = order.passes()
        table = np.fromiter(
            (value for each in self.passes for value in (each.stage, CODE[each.work], each.micro_batch)),
            dtype=np.int64,
            count=3 * len(self.passes),
        ).reshape(-1, 3)
        self.stage, self.work, self.micro_batch = table.T
        devices = order.device_of()
        self.device_of = np.asarray([devices[stage] for stage in range(order.stages)], dtype=np.int64)
        self.place = np.full(order.stages * len(_WORKS) * order.micro_batches, -1, dtype=np.int64)
        self.place[self.key(self.stage, self.work, self.micro_batch)] = np.arange(len(self.passes))
        self.sections: list[tuple[str, int]] = []
        self._lay_out()

    def key(self, stage: _Ints, work: _Ints | int, micro_batch: _Ints) -> _Ints:
        """Index of a pass by stage, kind and micro-batch."""
        return (stage * len(_WORKS) + work) * self.order.micro_batches + micro_batch

    def _lay_out(self) -> None:
        """Choose the tasks of every pass, and number them."""
        messages = self.overlap.messages
        updates = not self.overlap.synchronous_step
        about = {each.stage for each in messages if each.layers}
        awaited = {
            each.stage
            for each in messages
            if (updates and each.needed_by) or each.after_step or each.after_forward is not None
        }
        starts: dict[int | None, list[int]] = {}
        for each in messages:
            if each.after_forward is not None:
                starts.setdefault(each.stage, []).append(each.after_forward)
        first = self._extreme(Work.FORWARD, last=False)
        self.last_gradient = np.maximum(
            self._extreme(Work.BACKWARD, last=True), self._extreme(Work.WEIGHT, last=True)
        )
        self.first_forward = first
        rows: list[Row] = []
        special = np.zeros(len(self.passes), dtype=np.bool_)
        if self.overlap.gathers_ahead or self.order.co_scheduled:
            special[:] = True
        stages = range(self.order.stages)
        opened = [stage for stage in stages if updates or stage in awaited]
        special[first[np.asarray(opened, dtype=np.int64)]] = True
        closed = [stage for stage in stages if updates or stage in about]
        special[self.last_gradient[np.asarray(closed, dtype=np.int64)]] = True
        is_first = np.zeros(len(self.passes), dtype=np.bool_)
        is_first[first] = True
        template = self.stage * 16 + self.work * 4 + special * 2 + (is_first & special)
        values, self.row_of = np.unique(template, return_inverse=True)
        for value in values.tolist():
            stage, work = value // 16, _WORKS[value // 4 % 4]
            device = int(self.device_of[stage])
            if value & 2:
                opening = bool(value & 1)
                row = self.rows.by_block(
                    stage,
                    work,
                    device,
                    starts=starts.get(stage, ()) if opening else (),
                    last=not (self.overlap.gathers_ahead or self.order.co_scheduled),
                )
            else:
                row = self.rows.whole(stage, work, device)
            target = self._target(stage, work)
            if target is not None and self.overlap.sends_block:
                row.templates.append(self.rows.send(device, target))
            rows.append(row)
        self.table = rows
        lengths = np.asarray([len(row.templates) for row in rows], dtype=np.int64)
        self.start = offsets(lengths[self.row_of])
        flat = np.asarray([each for row in rows for each in row.templates], dtype=np.int32)
        self.templates = [flat[ranges(offsets(lengths)[:-1][self.row_of], lengths[self.row_of])]]
        self.size = int(self.start[-1])
        self.program = self.size
        self.head, self.tail = self.start[:-1], self.start[1:] - 1
        lengths_of = np.asarray([len(program) for program in self.order.devices], dtype=np.int64)
        self.first_pass = offsets(lengths_of)
        self.device = np.repeat(np.arange(len(lengths_of)), lengths_of)
        self.turn = self._turns()
        self.partner = np.arange(len(self.passes))
        second = np.flatnonzero(np.diff(self.turn, prepend=-1) == 0)
        self.partner[second], self.partner[second - 1] = second - 1, second
        self.opening = np.flatnonzero(self.turn == self.turn[self.first_pass[:-1]][self.device])
        self.closing = np.flatnonzero(self.turn == self.turn[self.first_pass[1:] - 1][self.device])

    def _extreme(self, work: Work, *, last: bool) -> _Ints:
        """First or last pass of each stage, by position in the programs; -1: none."""
        found = np.full(self.order.stages, -1, dtype=np.int64)
        own = np.flatnonzero(self.work == CODE[work])
        if last:
            found[self.stage[own]] = own
        else:
            found[self.stage[own[::-1]]] = own[::-1]
        return found

    def _target(self, stage: int, work: Work) -> int | None:
        """Device that receives a pass's output, if it is another one."""
        to = {Work.FORWARD: stage + 1, Work.WEIGHT: -1}.get(work, stage - 1)
        if self.step.send is None or not 0 <= to < self.order.stages:
            return None
        target = int(self.device_of[to])
        return target if target != self.device_of[stage] else None

    def append(self, name: str, templates: Sequence[int] | NDArray[np.int32]) -> _Ints:
        """Append tasks; return their numbers."""
        made = np.asarray(templates, dtype=np.int32)
        self.templates.append(made)
        self.sections.append((name, len(made)))
        self.size += len(made)
        return np.arange(self.size - len(made), self.size, dtype=np.int64)

    def _turns(self) -> _Ints:
        """Position in the device's program; co-scheduled passes share one."""
        alone = np.ones(len(self.passes), dtype=np.int64)
        for device, program in enumerate(self.order.devices):
            places = {each: number for number, each in enumerate(program, start=int(self.first_pass[device]))}
            alone[[places[second] for _, second in self.order.co_scheduled if second in places]] = 0
        return np.cumsum(alone) - 1

    def last(self, device: int) -> _Ints:
        """Last passes of a device."""
        own: _Ints = self.closing[self.device[self.closing] == device]
        return own

    def begins(self, stage: int | None, layers: Sequence[int]) -> _Ints:
        """First tasks of layers in a stage's first forward pass."""
        if stage is None or not layers:
            return np.empty(0, dtype=np.int64)
        opening = int(self.first_forward[stage])
        row = self.table[int(self.row_of[opening])]
        begins: _Ints = self.start[opening] + np.asarray(
            [row.begins[layer] for layer in layers], dtype=np.int64
        )
        return begins
