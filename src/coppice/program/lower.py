"""Lower a schedule or a forest to a program: messages become the steps of thread blocks.

Every thread block keeps to one order of all sends and receives (:mod:`coppice.program.traffic`), and waits for other
thread blocks of its rank where it reads what they write, writes what they write, or overwrites what they read.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.program.instances import replicated
from coppice.program.order import Stuck, execution_order
from coppice.program.places import Places, in_units
from coppice.program.program import Program
from coppice.program.structure import messages_of
from coppice.program.thread_blocks import (
    Blocks,
    blocks_of,
    colors_of,
    fewest_blocks,
    most_trees_together,
    paths_differ,
)
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
    instances: int = 1,
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
        instances: Run so many copies of the plan at once, each on its part of the data, with channels and thread
            blocks of its own.
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
        CheckError: If it does not fit into ``channels`` or ``max_blocks``.

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
    if min(channels, instances) < 1:
        msg = f"expected 1 channel or more and 1 instance or more, found {channels} and {instances}."
        raise InputError(msg)
    if instances > channels:
        msg = (
            f"expected at most {channels} instances, one channel each, found {instances}: use fewer, or more "
            "channels."
        )
        raise CheckError(msg)
    schedule, part = replicated(schedule, instances)
    places = Places(
        collective=collective,
        ranks=schedule.topology.num_ranks,
        root=schedule.root,
        in_place=in_place,
        units=in_units(schedule, max_count=max_count),
    )
    rows = rows_of(schedule, places)
    stepped = bool(len(schedule.step) and int(schedule.step.min()) >= 0)
    part = np.repeat(part, np.diff(places.units.start))[rows.run]
    color, blocks = _spread(
        rows, part, len(places.units.slot), stepped=stepped, channels=channels, max_blocks=max_blocks
    )
    traffic = traffic_of(rows, color, places, max_count=max_count)
    attributes = {"name": name, "protocol": protocol, "min_bytes": min_bytes, "max_bytes": max_bytes}
    writer = Writer(places, traffic, blocks, fused=fused)
    program = writer.program(**attributes)
    if writer.joins and not _comes_to_an_end(program):
        program = Writer(places, traffic, blocks, fused=fused, joined=False).program(**attributes)
    return replace(program, in_place=in_place, out_of_place=not in_place)


def _spread(
    rows: Rows, part: NDArray[np.int64], runs: int, *, stepped: bool, channels: int, max_blocks: int | None
) -> tuple[NDArray[np.int64], Blocks]:
    """As many channels as are of use and fit, every instance its own.

    Args:
        rows: The transfers; those of an instance are the same as those of any other, in the same order.
        part: Instance of each.
        runs: Number of runs.
        stepped: They have steps.
        channels: Most channels.
        max_blocks: Most thread blocks of a rank.

    Raises:
        CheckError: If even one channel for each instance does not fit.
    """
    instances = int(part.max(initial=0)) + 1
    one = rows if instances == 1 else _only(rows, part == 0)
    useful = paths_differ(one) if stepped else most_trees_together(one)
    tried = min(channels // instances, max(useful, 1))
    while True:
        color = colors_of(one, runs, tried)
        fewest = fewest_blocks(one, color) * instances
        for tight in (False, True) if max_blocks is None or fewest <= max_blocks else ():
            blocks = blocks_of(one, color, tight=tight)
            if max_blocks is None or blocks.most * instances <= max_blocks:
                if instances == 1:
                    return color, blocks
                spread = np.empty(len(part), dtype=np.int64)
                for each in range(instances):
                    spread[part == each] = color + each * tried
                return spread, blocks_of(rows, spread, tight=tight)
        if tried == 1:
            words = (
                "one for each peer"
                if instances == 1
                else f"one for each peer and each of {instances} instances"
            )
            msg = (
                f"expected at most {max_blocks} thread blocks a rank, found {fewest}, {words}: "
                f"{'plan with fewer peers a rank' if instances == 1 else 'use fewer instances'}."
            )
            raise CheckError(msg)
        tried -= 1 if len(one.run) < 2**15 else (tried + 1) // 2


def _only(rows: Rows, mask: NDArray[np.bool_]) -> Rows:
    """The rows of a mask."""
    columns = {each.name: getattr(rows, each.name)[mask] for each in fields(rows)}
    return Rows(**columns)


def _comes_to_an_end(program: Program) -> bool:
    """Whether joined steps leave every connection enough room."""
    try:
        execution_order(program, messages_of(program, Findings()), depth=_LEAST_DEPTH)
    except Stuck:
        return False
    return True
