"""Lower a schedule or a forest to a program: messages become the steps of thread blocks.

Every thread block keeps to one order of all sends and receives (:mod:`coppice.program.traffic`), and waits for other
thread blocks of its rank where it reads what they write, writes what they write, or overwrites what they read.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.program.order import Stuck, execution_order
from coppice.program.places import Places, in_units
from coppice.program.program import Program
from coppice.program.structure import messages_of
from coppice.program.thread_blocks import Blocks, blocks_of, colors_of, most_trees_together, paths_differ
from coppice.program.traffic import Rows, rows_of, traffic_of
from coppice.program.writing import Writer
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.report import Findings
from coppice.schedule.schedule import Schedule

__all__ = ["lower_to_program"]

_LEAST_DEPTH = 2


def lower_to_program(
    plan: Schedule | Forest,
    *,
    in_place: bool = True,
    channels: int = 8,
    max_blocks: int | None = None,
    max_count: int | None = None,
    fused: bool = True,
    name: str = "program",
    protocol: str = "Simple",
    min_bytes: int = 0,
    max_bytes: int | None = None,
) -> Program:
    """The program that carries out a plan.

    Args:
        plan: A verified schedule, or a forest whose trees branch at ranks.
        in_place: Input and output share memory. An all-to-all can only run out of place.
        channels: Most channels. Trees that share a link are spread over as many as are allowed and fit.
        max_blocks: Most thread blocks of a rank.
        max_count: Most chunks in a message.
        fused: Use operations that receive and send, or receive and reduce. Otherwise what is received to be
            added goes by way of scratch memory.
        name: Label.
        protocol: ``Simple``, ``LL`` or ``LL128``.
        min_bytes: Smallest M that it is meant for.
        max_bytes: Largest M.

    Returns:
        A program that verifies with connections of 2 messages or more.

    Raises:
        InputError: If the plan cannot be cut into equal chunks, or the collective cannot run so.
        CheckError: If it does not fit into ``max_blocks``.

    Examples:
        >>> from coppice.program.verify import verify_program
        >>> from coppice.topology.presets import preset
        >>> from coppice.bounds.result import Problem
        >>> from coppice.planners.planning import plan
        >>> made = plan(Problem(topology=preset("ring", gpus=4), collective=Collective.ALL_GATHER)).plan
        >>> program = lower_to_program(made.body, channels=1)
        >>> verify_program(program).ok, program.num_chunks, program.most_blocks
        (True, 8, 2)
    """
    schedule = lower(plan) if isinstance(plan, Forest) else plan
    collective = schedule.collective
    if collective is Collective.BARRIER:
        msg = "expected a collective that moves data, found a barrier: no runtime takes it as a program."
        raise InputError(msg)
    if collective is Collective.ALL_TO_ALL and in_place:
        msg = "expected an all-to-all out of place: in place, it would overwrite what is still to be sent."
        raise InputError(msg)
    if channels < 1:
        msg = f"expected 1 channel or more, found {channels}."
        raise InputError(msg)
    places = Places(
        collective=collective,
        ranks=schedule.topology.num_ranks,
        root=schedule.root,
        in_place=in_place,
        units=in_units(schedule, max_count=max_count),
    )
    rows = rows_of(schedule, places)
    color, blocks = _spread(rows, places, schedule, channels, max_blocks)
    traffic = traffic_of(rows, color, places, max_count=max_count)
    attributes = {"name": name, "protocol": protocol, "min_bytes": min_bytes, "max_bytes": max_bytes}
    writer = Writer(places, traffic, blocks, fused=fused)
    program = writer.program(**attributes)
    if writer.joins and not _comes_to_an_end(program):
        program = Writer(places, traffic, blocks, fused=fused, joined=False).program(**attributes)
    return replace(program, in_place=in_place, out_of_place=not in_place)


def _spread(
    rows: Rows, places: Places, schedule: Schedule, channels: int, max_blocks: int | None
) -> tuple[np.ndarray, Blocks]:
    """As many channels as are of use and fit.

    Raises:
        CheckError: If even one does not fit.
    """
    stepped = bool(len(schedule.step) and int(schedule.step.min()) >= 0)
    useful = paths_differ(rows) if stepped else most_trees_together(rows)
    tried = min(channels, max(useful, 1))
    runs = len(places.units.slot)
    while True:
        color = colors_of(rows, runs, tried)
        for tight in (False, True):
            blocks = blocks_of(rows, color, tight=tight)
            if max_blocks is None or blocks.most <= max_blocks:
                return color, blocks
        if tried == 1:
            msg = (
                f"expected at most {max_blocks} thread blocks a rank, found {blocks.most}, one for each peer: "
                "plan with fewer peers a rank."
            )
            raise CheckError(msg)
        tried -= 1 if len(rows.run) < 2**15 else (tried + 1) // 2


def _comes_to_an_end(program: Program) -> bool:
    """Whether joined steps leave every connection enough room."""
    try:
        execution_order(program, messages_of(program, Findings()), depth=_LEAST_DEPTH)
    except Stuck:
        return False
    return True
