"""Task graph of a training step: device programs in a pipeline order, sends, and messages.

A device runs its passes in order. Where something runs beside computation, the last backward pass of a stage, whose
gradients messages wait for, and the first forward pass, which waits for messages, are taken block by block; all others
are one computation and their exchanges behind it. Micro-batches are alike, so that columns of tasks are looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from coppice.iteration.pipeline.order import NEEDS, StagePass, Work
from coppice.iteration.step.passes import (
    CreditWindows,
    Dependencies,
    Kind,
    Row,
    Rows,
    StepGraph,
    StepTaskNames,
    TemplateTable,
    graph_of_templates,
)
from coppice.iteration.step.plan import Message, Step, StepPlan
from coppice.rows import offsets, ranges

_Ints = NDArray[np.int64]


def lower(
    step: Step,
    plan: StepPlan,
    *,
    count: int = 1,
    # Devices keep the order of their programs; otherwise they run what is ready, and what holds a device up
    # is on its own stream: the graph whose bounds hold for every order
    in_order: bool = True,
    # Share of a device's speed for which exchanges beside computation compete with it
    contention: float = 0.0,
) -> StepGraph:
    """Task graph of consecutive iterations of a step under a plan.

    Raises:
        InputError: If the plan is of another step.

    Examples:
        >>> from coppice.iteration.pipeline.orders import gpipe
        >>> from coppice.iteration.step.plan import LayerBlock
        >>> one = LayerBlock(name="one", kind="layer", forward=1.0, input_gradient=1.0, weight_gradient=1.0)
        >>> made = lower(Step(stages=((one,), (one,)), micro_batches=2), StepPlan(order=gpipe(2, 2)))
        >>> [made.graph.names[task] for task in made.last[0]]
        ['0B1 of 0', '1B1 of 0']
    """
    plan.check(step)
    return _Lowering(step, plan, in_order=in_order, contention=contention).graph(count)


_WORKS = tuple(Work)
CODE = {work: code for code, work in enumerate(_WORKS)}
"""Number of each kind of pass."""


class _Lowering:
    """One iteration, and its dependencies on the previous one.

    Columns of passes go device by device in the order of the programs: stage, work (by :data:`CODE`), micro-batch and
    device; turn (co-scheduled passes share one), the partner of a co-scheduled pass (or itself), and its first and
    last task (head, tail). Devices begin with the opening passes and end with the closing ones.
    """

    def __init__(self, step: Step, plan: StepPlan, *, in_order: bool, contention: float) -> None:
        self.step, self.plan, self.order, self.in_order = step, plan, plan.order, in_order
        order = plan.order
        self.template_table = TemplateTable()
        self.rows = Rows(step, plan, self.template_table, not in_order and not order.co_scheduled, contention)
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
        self.sections: list[tuple[Callable[[int], str], int]] = []
        self._lay_out()

    def key(self, stage: _Ints, work: _Ints | int, micro_batch: _Ints) -> _Ints:
        """Index of a pass by stage, kind and micro-batch."""
        return (stage * len(_WORKS) + work) * self.order.micro_batches + micro_batch

    def _lay_out(self) -> None:
        """Choose the tasks of every pass, and number them."""
        messages, order = self.plan.messages, self.order
        updates = not self.plan.synchronous_step
        about = {each.stage for each in messages if each.layers}
        awaited = {each.stage for each in messages if each.after_step}
        starts: dict[int | None, list[int]] = {}
        for each in messages:
            if each.after_forward is not None:
                starts.setdefault(_forward_stage(each), []).append(each.after_forward)
        first = self._extreme(Work.FORWARD, last=False)
        self.last_gradient = np.maximum(
            self._extreme(Work.BACKWARD, last=True), self._extreme(Work.WEIGHT, last=True)
        )
        self.first_forward = first
        rows: list[Row] = []
        special = np.zeros(len(self.passes), dtype=np.bool_)
        if self.plan.gathers_ahead or self.order.co_scheduled:
            special[:] = True
        stages = range(self.order.stages)
        opened = [stage for stage in stages if updates or stage in awaited or stage in starts]
        special[first[np.asarray(opened, dtype=np.int64)]] = True
        closed = [stage for stage in stages if updates or stage in about]
        special[self.last_gradient[np.asarray(closed, dtype=np.int64)]] = True
        opening = np.zeros(len(self.passes), dtype=np.bool_)
        opening[first] = True
        # Passes of a stage that are alike have one row.
        forms = (order.stages, len(_WORKS), 2, 2)
        form = np.ravel_multi_index((self.stage, self.work, special, opening & special), forms)
        values, self.row_of = np.unique(form, return_inverse=True)
        for stage, code, apart, opens in zip(
            *(each.tolist() for each in np.unravel_index(values, forms)), strict=True
        ):
            device, work = int(self.device_of[stage]), _WORKS[code]
            if apart:
                row = self.rows.by_block(
                    stage,
                    work,
                    device,
                    starts=starts.get(stage, ()) if opens else (),
                    last=not (self.plan.gathers_ahead or self.order.co_scheduled),
                )
            else:
                row = self.rows.whole(stage, work, device)
            target = self._target(stage, work)
            if target is not None and self.plan.sends_block:
                row.add("sent", self.rows.send(device, target))
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

    def append(self, name: str | Callable[[int], str], templates: Sequence[int] | NDArray[np.int32]) -> _Ints:
        """Append tasks of a name, or named by their places; return their numbers."""
        made = np.asarray(templates, dtype=np.int32)
        self.templates.append(made)
        words = (lambda number: f"{name} {number}") if isinstance(name, str) else name
        self.sections.append((words, len(made)))
        self.size += len(made)
        return np.arange(self.size - len(made), self.size, dtype=np.int64)

    def _turns(self) -> _Ints:
        """Position in the device's program; co-scheduled passes share one."""
        if not self.order.co_scheduled:
            return np.arange(len(self.passes))
        alone = np.ones(len(self.passes), dtype=np.int64)
        for device, program in enumerate(self.order.devices):
            places = {each: number for number, each in enumerate(program, start=int(self.first_pass[device]))}
            alone[[places[second] for _, second in self.order.co_scheduled if second in places]] = 0
        return np.cumsum(alone) - 1

    def last(self, device: int) -> list[int]:
        """Last tasks of the program of a device."""
        found: list[int] = self.tail[self.closing[self.device[self.closing] == device]].tolist()
        return found

    def begins(self, stage: int | None, layers: Sequence[int]) -> list[int]:
        """First tasks of layers in a stage's first forward pass."""
        if stage is None or not layers:
            return []
        opening = self.first_forward[stage]
        row, first = self.table[self.row_of[opening]], int(self.start[opening])
        return [first + row.begins[layer] for layer in layers]

    def graph(self, count: int) -> StepGraph:
        """Task graph of consecutive iterations."""
        self.gives_weights = (self.work == CODE[Work.BACKWARD]) | (self.work == CODE[Work.WEIGHT])
        self.others: dict[int, int] = {}  # backward passes of a stage but the last
        self.within, self.across, self.ahead = Dependencies(), Dependencies(), Dependencies()
        self.windows = CreditWindows()
        self._follow_programs()
        if self.order.stages > 1:
            self._send()
        self._gather_ahead()
        messages = self._messages()
        mark = self._end()
        task, after = self.within.columns()
        later, earlier = self.across.columns()
        step = self.size * np.arange(count, dtype=np.int64)[:, None]
        template = np.concatenate(self.templates)
        names = StepTaskNames(self._name, self.program, self.sections, count, numbered=self.plan.numbered)
        own = np.concatenate([(task + step).ravel(), (later + step[1:]).ravel()])
        before = np.concatenate([(after + step).ravel(), (earlier + step[:-1]).ravel()])
        ahead, of_next = self.ahead.columns()
        own = np.concatenate([own, (ahead + step[:-1]).ravel()])
        before = np.concatenate([before, (of_next + step[1:]).ravel()])
        made = graph_of_templates(self.template_table, np.tile(template, count), own, before, names)
        made = self.windows.of(made, self.size, count)
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
            first=(self._first() + step.ravel()).tolist(),
            last=(np.concatenate([self.tail[self.last_gradient], messages]) + step).tolist(),
        )

    def _name(self, task: int) -> str:
        """Name of a task of a pass."""
        number = int(np.searchsorted(self.start, task, side="right")) - 1
        words = self.table[int(self.row_of[number])].words[task - int(self.start[number])]
        return f"{self.passes[number]} {words}" if words else str(self.passes[number])

    def _first(self) -> int:
        """First computation of the first device."""
        templates = list(self.template_table.templates)
        row = self.table[int(self.row_of[0])].templates
        return next(place for place, template in enumerate(row) if templates[template].kind.part == "compute")

    def _follow_programs(self) -> None:
        """Dependencies within passes, between passes of a device, and between stages."""
        tasks = np.arange(self.program, dtype=np.int64)
        inner = np.ones(self.program, dtype=np.bool_)
        inner[self.start[:-1]] = False
        for number, row in enumerate(self.table):
            starts = self.start[:-1][self.row_of == number]
            for place, inputs in row.inputs.items():
                inner[starts + place] = False
                for each in inputs:
                    self.within.add(starts + place, starts + each)
        self.within.add(tasks[inner], tasks[inner] - 1)
        turn = self.turn
        if self.in_order:
            first = np.flatnonzero(np.diff(turn, prepend=-1))
            last = np.append(first[1:], len(turn)) - 1
            opens = np.zeros(len(turn), dtype=np.bool_)
            opens[self.opening] = True
            later = np.flatnonzero(~opens)
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
        if self.step.send is None or self.plan.sends_block or not self.step.send.seconds:
            apart[:] = False
        self.within.add(self.head[taking[~apart]], self.tail[giving[~apart]])
        # What runs at once gives when both are done.
        both = np.flatnonzero(self.partner[giving] != giving)
        pairs = self.device_of[source[apart]] * len(self.order.devices) + self.device_of[to[apart]]
        values, which = np.unique(pairs, return_inverse=True)
        if self.plan.send_stream is None:
            sends = np.asarray(
                [self.rows.send(*divmod(int(each), len(self.order.devices))) for each in values],
                dtype=np.int32,
            )[which]
        else:
            ends = zip(self.device_of[source[apart]], self.device_of[to[apart]], giving[apart], strict=True)
            sends = np.asarray([self.rows.send(int(a), int(b), self.passes[c]) for a, b, c in ends], np.int32)
        sent = giving[apart]
        made = self.append(lambda number: f"{self.passes[sent[number]]} sent", sends)
        self.within.add(made, self.tail[giving[apart]])
        self.within.add(self.head[taking[apart]], made)
        waiting = self.head[taking].copy()
        waiting[apart] = made
        self.within.add(waiting[both], self.tail[self.partner[giving[both]]])

    def _gather_ahead(self) -> None:
        """Parameter all-gathers, at most two blocks ahead, and gradient reduce-scatters."""
        self.first_gathers = self.scatters = np.empty(0, dtype=np.int64)
        if not self.plan.gathers_ahead:
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
        """Messages between replicas; return their tasks."""
        messages = self.plan.messages
        self.message_device = [_device(each, self.device_of) for each in messages]
        templates = list(map(self.rows.message, messages, self.message_device))
        made = self.append(lambda number: messages[number].name, templates)
        self.late: list[int] = []
        waited: list[int] = []
        for number, each in enumerate(messages):
            task, device = int(made[number]), self.message_device[number]
            for before in each.after if self.in_order or not each.after_step else ():
                self.within.pair(task, int(made[before]))
            if each.stage is None:
                own = self.last(device) if self.in_order else self.tail[self.device == device].tolist()
                for before in own:
                    self.within.pair(task, before)
            elif each.layers and not each.after_step:
                self._after_gradients(task, each.stage, each.layers)
            if each.after_step:
                self.late.append(task)
            if each.after_step or not self.plan.synchronous_step:
                for gated in self.begins(each.stage, each.needed_by):
                    if self.in_order:
                        self.across.pair(gated, task)
                    elif each.after_step:
                        self.within.pair(gated, task)  # of the step before
            if each.after_forward is not None and self.in_order:
                (start,) = self.begins(_forward_stage(each), (each.after_forward,))
                self.ahead.pair(task, start)
            if each.after_passes:
                self.within.add(task, self.tail[self._places(each.after_passes)])
            if each.before_passes:
                self.within.add(self.head[self._places(each.before_passes)], task)
            if not each.after_step and self.plan.synchronous_step:
                waited.append(task)
        self.waited = np.asarray(waited, dtype=np.int64)
        self._acknowledge(made)
        if not self.plan.synchronous_step:
            self._update(made)
        return made

    def _places(self, passes: Sequence[StagePass]) -> _Ints:
        """Numbers of passes."""
        columns = np.asarray(
            [(each.stage, CODE[each.work], each.micro_batch) for each in passes], dtype=np.int64
        )
        found: _Ints = self.place[self.key(*columns.T)]
        return found

    def _update(self, made: _Ints) -> None:
        """Optimizer step of every block, after its messages and the device's passes."""
        awaited: dict[tuple[int | None, int], list[int]] = {}
        follows: dict[tuple[int | None, int], list[int]] = {}  # what gathers a block's parameters
        for number, each in enumerate(self.plan.messages):
            if each.after_step:
                for layer in each.layers:
                    follows.setdefault((each.stage, layer), []).append(int(made[number]))
                continue
            for layer in each.needed_by:
                awaited.setdefault((each.stage, layer), []).append(int(made[number]))
        for stage in range(self.order.stages if self.step.optimizer else 0):
            templates = self.rows.updates(stage, int(self.device_of[stage]))
            done = self.append("optimizer", list(templates.values()))
            for layer, task in zip(templates, done.tolist(), strict=True):
                if self.in_order:
                    for before in self.last(int(self.device_of[stage])):
                        self.within.pair(task, before)
                else:
                    self._after_gradients(task, stage, (layer,))
                for message in awaited.get((stage, layer), ()):
                    self.within.pair(task, message)
                if self.in_order:
                    (start,) = self.begins(stage, (layer,))
                    self.across.pair(start, task)
                    for message in follows.get((stage, layer), ()):
                        self.within.pair(message, task)

    def _acknowledge(self, made: _Ints) -> None:
        """Hold the credit of streams until messages are acknowledged."""
        for task, device, each in zip(made.tolist(), self.message_device, self.plan.messages, strict=True):
            if each.credit_bytes is None:
                continue
            back = task
            if each.acknowledgement_seconds:
                kind = Kind("barrier", "acknowledgement")
                template = self.template_table.add("", kind, device, each.acknowledgement_seconds)
                back = int(self.append(partial("{} is acknowledged".format, each.name), [template])[0])
                self.within.pair(back, task)
            self.windows.hold((device, each.stream), each.credit_bytes, task, each.size_bytes, back)

    def _after_gradients(self, task: int, stage: int, layers: Sequence[int]) -> None:
        """Start a message after the last backward pass over its layers, and in free order after all others."""
        last = int(self.last_gradient[stage])
        row = self.table[int(self.row_of[last])]
        # Tasks of a backward pass follow each other.
        self.within.pair(task, int(self.start[last]) + max(row.ends[layer] for layer in layers))
        if not self.in_order:
            if stage not in self.others:
                gives = np.flatnonzero(self.gives_weights & (self.stage == stage))
                self.others[stage] = int(self.append("others", [self.rows.barrier("others")])[0])
                self.within.add(self.others[stage], self.tail[gives[gives != last]])
            self.within.pair(task, self.others[stage])

    def _end(self) -> int:
        """Optimizer step and dependencies of the next iteration; return the last task of this one."""
        devices = range(len(self.order.devices))
        if not self.plan.synchronous_step:
            mark = self.append("mark", [self.rows.barrier("mark")])
            for device in devices:
                opening = self.head[self.opening[self.device[self.opening] == device]].tolist()
                for before in self.last(device):
                    for first in opening:
                        self.across.pair(first, before)
                    if not device:
                        self.within.pair(int(mark[0]), before)
            return int(mark[0])
        over = self.append("step", [self.rows.barrier("step")])
        every = self.tail if not self.in_order else self.tail[self.closing]
        self.within.add(over, np.concatenate([every, self.waited, self.scatters]))
        stepped = np.repeat(over, len(devices))
        if self.step.optimizer:
            seconds = [0.0] * len(devices)
            for stage, each in enumerate(self.step.optimizer):
                seconds[int(self.device_of[stage])] += each
            kind = Kind("optimizer", "optimizer")
            stepped = self.append(
                "optimizer",
                [self.template_table.add(f"device {k}", kind, k, each) for k, each in enumerate(seconds)],
            )
            self.within.add(stepped, over)
        mark = self.append("mark", [self.rows.barrier("mark")])
        self.within.add(mark, stepped)
        if self.in_order:
            self.across.add(self.head[self.opening], stepped[self.device[self.opening]])
            if len(self.first_gathers):
                self.across.add(self.first_gathers, stepped[self.gathering_device])
            for task in self.late:
                self.within.add(task, stepped)
        return int(mark[0])


def _device(each: Message, device_of: _Ints) -> int:
    """Device on whose network a message is."""
    if each.device is not None:
        return each.device
    assert each.stage is not None, each.name
    return int(device_of[each.stage])


def _forward_stage(each: Message) -> int | None:
    """Stage with whose next forward pass a message starts."""
    return each.stage if each.forward_stage is None else each.forward_stage
