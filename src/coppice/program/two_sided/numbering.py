"""Numbers of thread blocks: those that others wait for come first.

Loaders keep the number of a thread block that is waited for in few bits. Any numbering carries out the same program.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coppice.program.two_sided.program import Program

__all__ = ["waited_first"]


def waited_first(program: Program) -> Program:
    """The same program; at every rank, thread blocks that others wait for have the lowest numbers.

    Args:
        program: A program whose dependencies name thread blocks that exist.
    """
    blocks = program.num_blocks
    waiting = np.repeat(np.arange(program.num_steps), np.diff(program.dep_start))
    rank_start = program.rank_start.astype(np.int64)
    target = rank_start[program.block_rank[program.step_block[waiting]]] + program.dep_block
    idle = np.ones(blocks, dtype=np.bool_)
    idle[target] = False
    order = np.lexsort((idle, program.block_rank))
    place = np.empty(blocks, dtype=np.int64)
    place[order] = np.arange(blocks)
    lengths = np.diff(program.step_start)[order]
    step_start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    steps = np.repeat(program.step_start[order] - step_start[:-1], lengths) + np.arange(program.num_steps)
    waits = np.diff(program.dep_start)[steps]
    dep_start = np.concatenate([[0], np.cumsum(waits)]).astype(np.int64)
    deps = np.repeat(program.dep_start[steps] - dep_start[:-1], waits) + np.arange(len(waiting))
    return replace(
        program,
        block_send=program.block_send[order],
        block_recv=program.block_recv[order],
        block_channel=program.block_channel[order],
        step_start=step_start,
        op=program.op[steps],
        src_buffer=program.src_buffer[steps],
        src_offset=program.src_offset[steps],
        dst_buffer=program.dst_buffer[steps],
        dst_offset=program.dst_offset[steps],
        count=program.count[steps],
        dep_start=dep_start,
        dep_block=(place[target] - rank_start[program.block_rank[target]])[deps].astype(np.int32),
        dep_step=program.dep_step[deps],
    )
