"""Small programs written by hand, and a way to change one of their columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from coppice.collectives import Collective
from coppice.program.dialects.thread_blocks.program import Program, ProgramBuilder, StepOp
from coppice.program.memory import Buffer

IN, OUT, TMP = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH


def built(
    build: ProgramBuilder,
    collective: Collective,
    ranks: int,
    chunks: int,
    *,
    inputs: int | None = None,
    outputs: int | None = None,
    scratch: int | None = None,
    in_place: bool = True,
    out_of_place: bool = False,
    **attributes: Any,
) -> Program:
    """The program of a builder, in which all ranks have as many slots; inputs and outputs have one for each chunk."""
    return build.program(
        collective=collective,
        num_chunks=chunks,
        in_place=in_place,
        out_of_place=out_of_place,
        input_chunks=[chunks if inputs is None else inputs] * ranks,
        output_chunks=[chunks if outputs is None else outputs] * ranks,
        scratch_chunks=None if scratch is None else [scratch] * ranks,
        **attributes,
    )


def ring_all_gather(ranks: int = 4, *, protocol: str = "Simple") -> Program:
    """In place: send, receive-copy-send, .., receive, in one thread block a rank."""
    build = ProgramBuilder(ranks)
    for rank in range(ranks):
        block = build.block(rank, send=(rank + 1) % ranks, recv=(rank - 1) % ranks)
        build.step(block, StepOp.SEND, src=(OUT, rank))
        for hop in range(1, ranks):
            op = StepOp.RECV if hop == ranks - 1 else StepOp.RECV_COPY_SEND
            build.step(block, op, dst=(OUT, (rank - hop) % ranks))
    return built(build, Collective.ALL_GATHER, ranks, ranks, inputs=1, protocol=protocol)


def ring_all_reduce(ranks: int = 4) -> Program:
    """In place and out of place: the fused ring, which deadlocks where a connection holds one message."""
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
    return built(build, Collective.ALL_REDUCE, ranks, ranks, out_of_place=True)


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
    return built(build, Collective.ALL_REDUCE, 2, 2, scratch=2, out_of_place=True)


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
