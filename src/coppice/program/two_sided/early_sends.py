"""Sends that complete before all their threads have read, and their repair.

A thread block moves a message with hundreds of threads. When a step is done, its last thread stores a flag, which other
thread blocks wait for; in almost all steps a barrier of all threads comes before that. A send with LL has none at its
end in RCCL since ROCm 6.0 ("Use send instead of sendWithBarrier", November 2023): its flag says that the last thread
has read, not that all have. So what waits for such a send must not write what it sends. All later steps of the thread
block come after its reads: a send begins with a barrier, a step that waits has one behind the wait, and all others end
with one. Who receives the message comes after them, too, since it takes every value that was read.

In the same thread block, the step right behind the send needs a barrier of its own if it writes what was sent, unless
each thread writes just what it has read: a receive or copy into the very slots of the send. A reduction is shared out
among threads otherwise than a send.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coppice.program.memory import ProgramMemory
from coppice.program.two_sided.cutting import Buffers
from coppice.program.two_sided.program import Program, StepOp
from coppice.program.two_sided.structure import step_addresses

_Bools = NDArray[np.bool_]


def early_sends(program: Program, buffers: Buffers) -> _Bools:
    """Steps that complete before all their threads have read."""
    early: _Bools = (program.op == StepOp.SEND) & (program.protocol in buffers.early)
    return early


def overwritten_next(program: Program, memory: ProgramMemory, early: _Bools) -> _Bools:
    """Early sends whose slots are overwritten by other threads of the next step.

    Args:
        early: What :func:`early_sends` found.
    """
    found = np.zeros(program.num_steps, dtype=np.bool_)
    send = np.flatnonzero(early[:-1] & (program.step_block[:-1] == program.step_block[1:]))
    after = send + 1
    src, dst = step_addresses(program, memory)
    count = program.count.astype(np.int64)
    overlap = (dst[after] < src[send] + count[send]) & (src[send] < dst[after] + count[after])
    same = (dst[after] == src[send]) & (count[after] == count[send]) & (program.op[after] != StepOp.REDUCE)
    no_barrier = program.writes_dst[after] & ~program.sends[after] & (np.diff(program.dep_start)[after] == 0)
    found[send] = no_barrier & overlap & ~same
    return found
