"""Parts into which a runtime cuts the steps.

A runtime sends as many slots in one message as fit into its buffers. A step of more slots becomes several messages,
one after the other, and takes that much more room on its connection; a step that receives and sends does so part by
part. Another step that depends on it waits for the last of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.program.two_sided.program import Program
from coppice.program.two_sided.structure import MessagePairs
from coppice.rows import nth_in_run, offsets, ranges

_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class StepParts(Brief):
    """Parts of steps, with dependencies."""

    step: _Ints  # Step that each part is of (int64)
    block_start: _Ints  # First part of each thread block, and the number of all parts (int64)
    # Part p waits for the parts in rows `dep_start[p] .. dep_start[p + 1] - 1` of the next column (int64).
    dep_start: _Ints
    dep_target: _Ints  # Part that is waited for (int64)
    send: _Ints  # Part that sends each message, by (connection, place on it) (int64)
    recv: _Ints  # Part that receives it (int64)
    place: _Ints  # Place on its connection, from 0 (int64)

    @property
    def number(self) -> int:
        """Number of parts."""
        return len(self.step)


def parts_of(program: Program, messages: MessagePairs, *, together: int | None = None) -> StepParts:
    """Parts of all steps.

    Args:
        together: Slots that fit into one message; None: all of a step.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.planning import plan
        >>> from coppice.program.two_sided.lower import lower_to_program
        >>> from coppice.program.two_sided.structure import message_pairs
        >>> from coppice.schedule.verification.report import Findings
        >>> from coppice.topology.presets import preset
        >>> made = plan(Problem(topology=preset("star", gpus=3), collective=Collective.BROADCAST, root=0)).plan
        >>> program = lower_to_program(made.body, channels=1)
        >>> pairs = message_pairs(program, Findings())
        >>> parts_of(program, pairs).number == program.num_steps
        True
    """
    if together is None or together >= int(program.count.max(initial=1)):
        return StepParts(
            np.arange(program.num_steps),
            program.step_start,
            program.dep_start,
            program.dep_target,
            messages.send,
            messages.recv,
            messages.place,
        )
    number = -(-program.count.astype(np.int64) // together)
    number[~(program.sends | program.receives)] = 1
    start = offsets(number)
    pieces = number[messages.send]
    connection = np.repeat(np.cumsum(messages.place == 0), pieces)
    waits = np.zeros(int(start[-1]), dtype=np.int64)
    waits[start[:-1]] = np.diff(
        program.dep_start
    )  # the first part of a step waits for all that the step waits for
    return StepParts(
        np.repeat(np.arange(program.num_steps), number),
        start[program.step_start],
        offsets(waits),
        start[program.dep_target + 1] - 1,
        ranges(start[messages.send], pieces),
        ranges(start[messages.recv], pieces),
        nth_in_run(connection),
    )
