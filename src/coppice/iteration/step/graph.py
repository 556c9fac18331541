"""Task graph of a training step: device programs in a pipeline order, sends, and messages.

A device runs its passes in order. Where something runs beside computation, the last backward pass of a stage, whose
gradients messages wait for, and the first forward pass, which waits for messages, are taken block by block; all others
are one computation and their exchanges behind it. Micro-batches are alike, so that columns of tasks are looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.iteration.pipeline.order import NEEDS, PipelineOrder, Work
from coppice.iteration.step.block import Step
from coppice.iteration.step.overlap import Overlap
from coppice.iteration.step.programs import CODE, Dependencies, PassNames, Programs
from coppice.iteration.step.templates import Kind, graph_of_templates
from coppice.iteration.tasks import TaskGraph

_Ints = NDArray[np.int64]


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

    @property
    def size(self) -> int:
        """Tasks per iteration."""
        return len(self.device)

    def marks(self) -> _Ints:
        """Last task of each iteration."""
        return self.mark + self.size * np.arange(self.count, dtype=np.int64)


def step_graph(
    step: Step,
    order: PipelineOrder,
    overlap: Overlap,
    *,
    count: int = 1,
    # Devices keep the order of their programs; otherwise they run what is ready, and what holds a device up
    # is on its own stream: the graph whose bounds hold for every order
    in_order: bool = True,
    # Share of a device's speed for which exchanges beside computation compete with it
    contention: float = 0.0,
) -> StepGraph:
    """Build the task graph of a step."""
    if (order.stages, order.micro_batches) != (len(step.stages), step.micro_batches):
        raise InputError(
            f"expected an order of {len(step.stages)} stages and {step.micro_batches} micro-batches, found "
            f"{order.stages} and {order.micro_batches}."
        )
    return _Lowering(step, order, overlap, in_order=in_order, contention=contention).graph(count)


class _Lowering(Programs):
    """One iteration, and its dependencies on the previous one."""

    def graph(self, count: int) -> StepGraph:
        """Task graph of consecutive iterations."""
        self.gives_weights = np.isin(self.work, (CODE[Work.BACKWARD], CODE[Work.WEIGHT]))
        self.others: dict[int, _Ints] = {}  # backward passes of a stage but the last
        self.within, self.across, self.ahead = Dependencies(), Dependencies(), Dependencies()
        self._follow_programs()
        self._send()
        self._gather_ahead()
        ends = self._messages()
        mark = self._end(ends)
        task, after = self.within.columns()
        later, earlier = self.across.columns()
        step = self.size * np.arange(count, dtype=np.int64)[:, None]
        template = np.concatenate(self.templates)
        names = PassNames(self.passes, self.start, self.sections, self.size, count)
        own = np.concatenate([(task + step).ravel(), (later + step[1:]).ravel()])
        before = np.concatenate([(after + step).ravel(), (earlier + step[:-1]).ravel()])
        ahead, of_next = self.ahead.columns()
        own = np.concatenate([own, (ahead + step[:-1]).ravel()])
        before = np.concatenate([before, (of_next + step[1:]).ravel()])
        made = graph_of_templates(self.template_table, np.tile(template, count), own, before, names)
        if self.windows:
            made = self._with_windows(made, count)
        templates = list(self.template_table.templates)
        kinds = tuple(dict.fromkeys(each.kind for each in templates))
        number = {kind: k for k, kind in enumerate(kinds)}
        return StepGraph(
            graph=made,
            count=count,
            device=np.asarray([each.device for each in templates], dtype=np.int32)[template],
            kind=np.asarray([number[each.kind] for each in templates], dtype=np.int32)[template],
            kinds=kinds,
            program=np.arange(self.size) < self.program,
            mark=mark,
        )

    def _follow_programs(self) -> None:
        """Dependencies within passes, between passes of a device, and between stages."""
        tasks = np.arange(self.program, dtype=np.int64)
        inner = np.ones(self.program, dtype=np.bool_)
        inner[self.start[:-1]] = False
        self.within.add(tasks[inner], tasks[inner] - 1)
        turn = self.turn
        if self.in_order:
            first = np.flatnonzero(np.diff(turn, prepend=-1))
            last = np.append(first[1:], len(turn)) - 1
            later = np.flatnonzero(~np.isin(turn, turn[self.opening]))
            before = turn[later] - 1
            self.within.add(self.head[later], self.tail[last[before]])
            two = first[before] != last[before]
            self.within.add(self.head[later[two]], self.tail[first[before[two]]])
        else:
            for work, needed in NEEDS.items():
                own = np.flatnonzero(self.work == CODE[work])
                before = self.place[self.key(self.stage[own], CODE[needed], self.micro_batch[own])]
                self.within.add(self.head[own], self.tail[before])

    def _send(self) -> None:
        """Dependencies of passes on other stages, direct or by a message."""
        forward = self.work == CODE[Work.FORWARD]
        taking = np.flatnonzero(
            (forward & (self.stage > 0))
            | (~forward & (self.work != CODE[Work.WEIGHT]) & (self.stage < self.order.stages - 1))
        )
        to = self.stage[taking]
        going = self.work[taking] == CODE[Work.FORWARD]
        source = np.where(going, to - 1, to + 1)
        of = self.micro_batch[taking]
        whole = np.where(going, CODE[Work.FORWARD], CODE[Work.BACKWARD])
        giving = self.place[self.key(source, whole, of)]
        parts = self.place[self.key(source, np.full_like(source, CODE[Work.INPUT]), of)]
        giving = np.where(giving < 0, parts, giving)
        apart = self.device_of[source] != self.device_of[to]
        if self.step.send is None or self.overlap.sends_block or not self.step.send.seconds:
            apart[:] = False
        self.within.add(self.head[taking[~apart]], self.tail[giving[~apart]])
        # What runs at once gives when both are done.
        both = np.flatnonzero(self.partner[giving] != giving)
        pairs = self.device_of[source[apart]] * len(self.order.devices) + self.device_of[to[apart]]
        values, which = np.unique(pairs, return_inverse=True)
        sends = np.asarray(
            [self.rows.send(*divmod(int(each), len(self.order.devices))) for each in values], dtype=np.int32
        )
        made = self.append("send", sends[which])
        self.within.add(made, self.tail[giving[apart]])
        self.within.add(self.head[taking[apart]], made)
        waiting = self.head[taking].copy()
        waiting[apart] = made
        self.within.add(waiting[both], self.tail[self.partner[giving[both]]])

    def _gather_ahead(self) -> None:
        """Parameter all-gathers, at most two blocks ahead, and gradient reduce-scatters."""
        self.first_gathers = self.scatters = np.empty(0, dtype=np.int64)
        if not self.overlap.gathers_ahead:
            return
        columns: list[list[_Ints]] = [[], [], [], []]
        for number, row in enumerate(self.table):
            own = self.start[:-1][self.row_of == number]
            for entries, tasks, templates in ((row.gathers, 0, 1), (row.scatters, 2, 3)):
                for place, template in entries:
                    columns[tasks].append(own + place)
                    columns[templates].append(np.full(len(own), template, dtype=np.int64))
        empty = np.empty(0, dtype=np.int64)
        gated, gathers, done, scatters = (np.concatenate([empty, *each]) for each in columns)
        by_place = np.argsort(gated, kind="stable")
        gated, gathers = gated[by_place], gathers[by_place]
        made = self.append("gather", gathers)
        self.within.add(gated, made)
        device = np.searchsorted(self.start[self.first_pass[1:]], gated, side="right")
        fresh = np.ones(len(gated), dtype=np.bool_)
        fresh[1:] = device[1:] != device[:-1]
        second = np.zeros(len(gated), dtype=np.bool_)
        second[1:] = fresh[:-1] & ~fresh[1:]
        if self.in_order:
            later = np.flatnonzero(~fresh & ~second)
            self.within.add(made[later], gated[later - 1] - 1)
        self.first_gathers = made[fresh | second]
        self.gathering_device = device[fresh | second]
        sent = np.argsort(done, kind="stable")
        self.scatters = self.append("scatter", scatters[sent])
        self.within.add(self.scatters, done[sent])

    def _messages(self) -> _Ints:
        """Messages between replicas; return those that the end of the iteration waits for."""
        messages = self.overlap.messages
        templates = [
            self.rows.overlapped(each.stream, each.exchange, each.device, each.priority) for each in messages
        ]
        made = self.append("message", templates)
        self.late: list[int] = []
        waited = []
        for number, each in enumerate(messages):
            task = int(made[number])
            for before in each.after if self.in_order or not each.after_step else ():
                self.within.add(task, int(made[before]))
            if each.stage is None:
                passes = (
                    np.flatnonzero(self.device == each.device)
                    if not self.in_order
                    else self.last(each.device)
                )
                self.within.add(task, self.tail[passes])
            elif each.layers and not each.after_step:
                self._after_gradients(task, each.stage, each.layers)
            if each.after_step:
                self.late.append(task)
            if each.after_step or not self.overlap.synchronous_step:
                gated = self.begins(each.stage, each.needed_by)
                if self.in_order:
                    self.across.add(gated, task)
                elif each.after_step:
                    self.within.add(gated, task)  # of the step before
            if each.after_forward is not None and self.in_order:
                self.ahead.add(task, self.begins(each.stage, (each.after_forward,)))
            if not each.after_step and self.overlap.synchronous_step:
                waited.append(task)
        self._acknowledge(made)
        if not self.overlap.synchronous_step:
            self._update(made)
        return np.asarray(waited, dtype=np.int64)

    def _update(self, made: _Ints) -> None:
        """Optimizer step of every block, after its messages and the device's passes."""
        awaited: dict[tuple[int | None, int], list[int]] = {}
        follows: dict[tuple[int | None, int], list[int]] = {}  # what gathers a block's parameters
        for number, each in enumerate(self.overlap.messages):
            if each.after_step:
                for layer in each.layers:
                    follows.setdefault((each.stage, layer), []).append(int(made[number]))
                continue
            for layer in each.needed_by:
                awaited.setdefault((each.stage, layer), []).append(int(made[number]))
        for stage in range(self.order.stages):
            templates = self.rows.updates(stage, int(self.device_of[stage]))
            done = self.append("optimizer", list(templates.values()))
            for layer, task in zip(templates, done.tolist(), strict=True):
                if self.in_order:
                    self.within.add(task, self.tail[self.last(int(self.device_of[stage]))])
                else:
                    self._after_gradients(task, stage, (layer,))
                for message in awaited.get((stage, layer), ()):
                    self.within.add(task, message)
                if self.in_order:
                    self.across.add(self.begins(stage, (layer,)), task)
                    for message in follows.get((stage, layer), ()):
                        self.within.add(message, task)

    def _acknowledge(self, made: _Ints) -> None:
        """Credit windows of the devices' streams, and when credit returns."""
        self.windows: dict[tuple[int, str], int] = {}
        self.credits: list[float] = []
        self.held: list[tuple[int, int, float, int]] = []
        for task, each in zip(made.tolist(), self.overlap.messages, strict=True):
            if each.credit_bytes is None:
                continue
            window = self.windows.setdefault((each.device, each.stream), len(self.windows))
            self.credits += [each.credit_bytes] * (window == len(self.credits))
            back = task
            if each.acknowledgement_seconds:
                kind = Kind("barrier", "acknowledgement")
                template = self.template_table.add("", kind, each.device, each.acknowledgement_seconds)
                back = int(self.append("acknowledgement", [template])[0])
                self.within.add(back, task)
            self.held.append((task, window, each.exchange.size_bytes, back))

    def _with_windows(self, made: TaskGraph, count: int) -> TaskGraph:
        """Graph with its credit windows."""
        window, taken = np.full(self.size, -1, dtype=np.int32), np.zeros(self.size)
        returns = np.full((count, self.size), -1, dtype=np.int32)
        for task, number, size_bytes, back in self.held:
            window[task], taken[task] = number, size_bytes
            returns[:, back] = task + self.size * np.arange(count)
        return replace(
            made,
            credit=np.asarray(self.credits, dtype=np.float64),
            window=np.tile(window, count),
            window_bytes=np.tile(taken, count),
            returns=returns.ravel(),
        )

    def _after_gradients(self, task: int, stage: int, layers: Sequence[int]) -> None:
        """Start a message after the last backward pass over its layers, and in free order after all others."""
        last = int(self.last_gradient[stage])
        row = self.table[int(self.row_of[last])]
        self.within.add(task, self.start[last] + np.asarray([row.ends[layer] for layer in layers]))
        if not self.in_order:
            if stage not in self.others:
                gives = np.flatnonzero(self.gives_weights & (self.stage == stage))
                self.others[stage] = self.append("others", [self._barrier("others")])
                self.within.add(self.others[stage], self.tail[gives[gives != last]])
            self.within.add(task, self.others[stage])

    def _end(self, waited: _Ints) -> int:
        """Optimizer step and dependencies of the next iteration; return the last task of this one."""
        devices = range(len(self.order.devices))
        if not self.overlap.synchronous_step:
            mark = self.append("mark", [self._barrier("mark")])
            self.within.add(mark, self.tail[self.last(0)])
            for device in devices:
                opening = self.opening[self.device[self.opening] == device]
                for each in self.last(device):
                    self.across.add(self.head[opening], int(self.tail[each]))
            return int(mark[0])
        over = self.append("step", [self._barrier("step")])
        every = self.tail if not self.in_order else self.tail[self.closing]
        self.within.add(over, np.concatenate([every, waited, self.scatters]))
        stepping = [0.0] * len(self.order.devices)
        for stage, seconds in enumerate(self.step.optimizer):
            stepping[int(self.device_of[stage])] += seconds
        kind = Kind("optimizer", "optimizer")
        templates = [
            self.template_table.add(f"device {k}", kind, k, seconds) for k, seconds in enumerate(stepping)
        ]
        made = self.append("optimizer", templates)
        self.within.add(made, over)
        mark = self.append("mark", [self._barrier("mark")])
        self.within.add(mark, made)
        if self.in_order:
            self.across.add(self.head[self.opening], made[self.device[self.opening]])
            if len(self.first_gathers):
                self.across.add(self.first_gathers, made[self.gathering_device])
            for task in self.late:
                self.within.add(task, made)
        return int(mark[0])

    def _barrier(self, name: str) -> int:
        return self.template_table.add("", Kind("barrier", name), 0, 0.0)
