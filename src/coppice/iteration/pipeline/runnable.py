"""Check that PyTorch's pipeline runtime terminates with an order, and trains correctly.

That every stage has all its passes, forward before backward ones, holds of any
:class:`~coppice.iteration.pipeline.order.PipelineOrder`. Here are the demands on devices together.
"""

from __future__ import annotations

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
