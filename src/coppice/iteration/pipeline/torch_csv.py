"""Pipeline orders in PyTorch's CSV format, and the check that its runtime ends with an order and trains correctly.

The format is that of ``torch.distributed.pipelining`` (``_load_csv`` and ``_dump_csv`` of its schedules, compute only):
stage, type (F, I, W, or B for both parts), micro-batch. An empty cell is a wait. ``(0F7;7B3)OVERLAP_F_B`` holds two
passes that run at once. What is written is checked for what the runtime does not: that devices
never all wait, and losses come in order.
"""

from __future__ import annotations

import csv
import io
import itertools
import re

from coppice.errors import InputError
from coppice.iteration.pipeline.order import PipelineOrder, StagePass, Work, source_of


def placement(order: PipelineOrder) -> str | None:
    """Stage placement of PyTorch's schedules: ``loop``, ``v``, or None for any other.

    In a loop stage s is on rank s mod p; in a V ranks are passed up and down in turn.

    Examples:
        >>> from coppice.iteration.pipeline.orders import breadth_first, dual_pipe_v
        >>> placement(breadth_first(2, 2, 2)), placement(dual_pipe_v(2, 4))
        ('loop', 'v')
    """
    device_of, devices = order.device_of(), len(order.devices)
    loop = {stage: stage % devices for stage in range(order.stages)}
    if device_of == loop:
        return "loop"
    turned = {stage: devices - 1 - place if stage // devices % 2 else place for stage, place in loop.items()}
    return "v" if device_of == turned else None


def turns(order: PipelineOrder) -> list[list[list[StagePass]]]:
    """Actions of each device in order: a pass, or several co-scheduled ones.

    Examples:
        >>> from coppice.iteration.pipeline.orders import dual_pipe_v
        >>> [len(turn) for turn in turns(dual_pipe_v(1, 2))[0]]
        [1, 1, 1, 1, 2, 1, 1, 1]
    """
    found: list[list[list[StagePass]]] = []
    for program in order.devices:
        own: list[list[StagePass]] = []
        for each in program:
            if own and (own[-1][-1], each) in order.co_scheduled:
                own[-1].append(each)
            else:
                own.append([each])
        found.append(own)
    return found


def check_runnable(order: PipelineOrder) -> None:
    r"""Refuse orders on which the runtime deadlocks or trains incorrectly.

    Devices run their programs in order; passes that run at once begin when both can. Losses are stored as forward
    passes of the last stage come and read by micro-batch, so that these have to go by number.

    Examples:
        >>> from coppice.iteration.pipeline.torch_csv import read_order_csv
        >>> check_runnable(read_order_csv("0F0,0B0,2F0,2B0\n1F0,3F0,3B0,1B0"))
        Traceback (most recent call last):
        coppice.errors.InputError: expected devices that never all wait, found device 0 at 0B0 and device 1 at 3F0.
    """
    last = order.stages - 1
    came = [each.micro_batch for each in order.passes() if each.stage == last and each.work is Work.FORWARD]
    for number, micro_batch in enumerate(came):
        if micro_batch != number:
            raise InputError(
                f"expected forward passes of the last stage in order of their micro-batches, as PyTorch stores losses "
                f"as they come, found {last}F{micro_batch} where {last}F{number} would be."
            )
    check_ends(order)


def check_ends(order: PipelineOrder) -> None:
    """Run all programs until they end or deadlock."""
    programs = turns(order)
    done: set[StagePass] = set()
    place = [0] * len(programs)
    moved = True
    while moved:
        moved = False
        for device, program in enumerate(programs):
            while place[device] < len(program) and all(
                _can_begin(each, done, order.stages) for each in program[place[device]]
            ):
                done.update(program[place[device]])
                place[device] += 1
                moved = True
    waiting = [
        f"device {device} at {' and '.join(map(str, program[place[device]]))}"
        for device, program in enumerate(programs)
        if place[device] < len(program)
    ]
    if waiting:
        raise InputError(f"expected devices that never all wait, found {' and '.join(waiting)}.")


def _can_begin(each: StagePass, done: set[StagePass], stages: int) -> bool:
    """Whether a pass's input from another stage is there; a split backward pass provides it early."""
    source = source_of(each, stages)
    if source is None or source in done:
        return True
    other = {Work.BACKWARD: Work.INPUT, Work.INPUT: Work.BACKWARD}.get(source.work)
    return other is not None and source._replace(work=other) in done


_CELL = re.compile(r"(\d{1,6})([FBIW])(\d{1,6})")
_BOTH = re.compile(r"\((.*)\)OVERLAP_F_B")


def order_csv(order: PipelineOrder) -> str:
    """Encode an order.

    Examples:
        >>> from coppice.iteration.pipeline.orders import gpipe
        >>> print(order_csv(gpipe(2, 2)), end="")
        0F0,0F1,0B0,0B1
        1F0,1F1,1B0,1B1

        Passes that run at once share a cell:

        >>> from coppice.iteration.pipeline.orders import dual_pipe_v
        >>> print(order_csv(dual_pipe_v(1, 2)), end="")
        0F0,1F0,0F1,1B0,(1F1;0B0)OVERLAP_F_B,1B1,0I1,0W1
    """
    check_runnable(order)
    text = io.StringIO()
    rows = [
        [f"({';'.join(map(str, turn))})OVERLAP_F_B" if len(turn) > 1 else str(turn[0]) for turn in program]
        for program in turns(order)
    ]
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def read_order_csv(text: str, *, file: str = "the pipeline order") -> PipelineOrder:
    """Decode an order.

    Examples:
        >>> read_order_csv("0F0,0F1,0B0,0B1").micro_batches
        2
    """
    devices: list[tuple[StagePass, ...]] = []
    co_scheduled: set[tuple[StagePass, StagePass]] = set()
    for line, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        program: list[StagePass] = []
        for column, cell in enumerate(row, start=1):
            both = _BOTH.fullmatch(cell.strip())
            words = both[1].split(";") if both else [cell.strip()]
            for word in words:
                if not word:
                    continue
                found = _CELL.fullmatch(word)
                if found is None:
                    raise InputError(
                        f"expected a pass such as 2F0 (stage, one of F, B, I and W, micro-batch), found {word!r} at "
                        f"{file}:{line}, cell {column}."
                    )
                program.append(StagePass(int(found[1]), Work(found[2]), int(found[3])))
            if both and len(words) > 1:
                co_scheduled.update(itertools.pairwise(program[-len(words) :]))
        devices.append(tuple(program))
    every = [each for program in devices for each in program]
    if not every:
        raise InputError(f"expected a row of passes for each device in {file}, found none.")
    try:
        return PipelineOrder(
            devices=tuple(devices),
            stages=1 + max(each.stage for each in every),
            micro_batches=1 + max(each.micro_batch for each in every),
            co_scheduled=frozenset(co_scheduled),
        )
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
