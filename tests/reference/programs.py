"""Small programs written by hand, and a way to change one of their columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from coppice.collectives import Collective
from coppice.program.memory import Buffer
from coppice.program.two_sided.builder import ProgramBuilder
from coppice.program.two_sided.program import Program, StepOp

IN, OUT, TMP = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH


def ring_all_gather(ranks: int = 4, *, protocol: str = "Simple") -> Program:
    """In place: send, receive-copy-send, .., receive, in one thread block a rank."""
    build = ProgramBuilder(ranks)
    for rank in range(ranks):
        block = build.block(rank, send=(rank + 1) % ranks, recv=(rank - 1) % ranks)
        build.step(block, StepOp.SEND, src=(OUT, rank))
        for hop in range(1, ranks):
            op = StepOp.RECV if hop == ranks - 1 else StepOp.RECV_COPY_SEND
            build.step(block, op, dst=(OUT, (rank - hop) % ranks))
    return build.program(
        collective=Collective.ALL_GATHER,
        num_chunks=ranks,
        in_place=True,
        out_of_place=False,
        input_chunks=[1] * ranks,
        output_chunks=[ranks] * ranks,
        protocol=protocol,
    )


def ring_all_reduce(ranks: int = 4) -> Program:
    """In place and out of place: the fused ring, which stands still where a connection holds one message."""
    build = ProgramBuilder(ranks)
    for rank in range(ranks):
        block = build.block(rank, send=(rank + 1) % ranks, recv=(rank - 1) % ranks)
        build.step(block, StepOp.SEND, src=(IN, rank))
        for hop in range(1, ranks):
            chunk = (rank - hop) % ranks
            last = hop == ranks - 1
            build.step(
                block,
                StepOp.RECV_REDUCE_COPY_SEND if last else StepOp.RECV_REDUCE_SEND,
                src=(IN, chunk),
                dst=(OUT, chunk) if last else (Buffer.NONE, -1),
            )
        for hop in range(ranks, 2 * ranks - 1):
            op = StepOp.RECV if hop == 2 * ranks - 2 else StepOp.RECV_COPY_SEND
            build.step(block, op, dst=(OUT, (rank - hop) % ranks))
    return build.program(
        collective=Collective.ALL_REDUCE,
        num_chunks=ranks,
        in_place=True,
        out_of_place=True,
        input_chunks=[ranks] * ranks,
        output_chunks=[ranks] * ranks,
    )


def pair_all_reduce() -> Program:
    """Out of place, two ranks: each sends from one thread block and adds up in another, by way of scratch."""
    build = ProgramBuilder(2)
    for rank in range(2):
        out = build.block(rank, send=1 - rank)
        into = build.block(rank, recv=1 - rank)
        build.step(out, StepOp.SEND, src=(IN, 0), count=2)
        build.step(into, StepOp.RECV, dst=(TMP, 0), count=2)
        build.step(into, StepOp.NOP, after=[(0, 0)])
        build.step(into, StepOp.COPY, src=(IN, 0), dst=(OUT, 0), count=2)
        build.step(into, StepOp.REDUCE, src=(TMP, 0), dst=(OUT, 0), count=2)
    return build.program(
        collective=Collective.ALL_REDUCE,
        num_chunks=2,
        in_place=True,
        out_of_place=True,
        input_chunks=[2, 2],
        output_chunks=[2, 2],
        scratch_chunks=[2, 2],
    )


def changed(program: Program, column: str, row: int, value: int) -> Program:
    """The same program with one entry of a column changed."""
    values = getattr(program, column).copy()
    values[row] = value
    return replace(program, **{column: values})


def with_columns(program: Program, **columns: Any) -> Program:
    """The same program with whole columns changed, given as lists."""
    return replace(
        program,
        **{name: np.array(values, dtype=getattr(program, name).dtype) for name, values in columns.items()},
    )
