"""Small programs and files for the tests of MSCCL XML."""

from __future__ import annotations

from coppice.collectives import Collective
from coppice.program.dialects.thread_blocks.program import Program, ProgramBuilder, StepOp
from coppice.program.memory import Buffer
from reference.programs import built

GATHER_XML = """<!-- two ranks -->
<algo name="pair" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="allgather" inplace="1" \
outofplace="0" minBytes="0" maxBytes="0">
  <gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="1" recv="1" chan="0">
      <step s="0" type="s" srcbuf="o" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="r" srcbuf="o" srcoff="1" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="0" recv="0" chan="0">
      <step s="0" type="s" srcbuf="o" srcoff="1" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="r" srcbuf="o" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"""
"""An all-gather of two ranks in place, that every loader takes."""


def gather(ranks: int, *, in_place: bool = True) -> Program:
    """Everybody sends its block to everybody, a thread block per peer; out of place each rank copies its own."""
    build = ProgramBuilder(ranks)
    for rank in range(ranks):
        for other in range(ranks):
            if other == rank:
                continue
            block = build.block(rank, send=other, recv=other)
            source = (Buffer.OUTPUT, rank) if in_place else (Buffer.INPUT, 0)
            build.step(block, StepOp.SEND, src=source)
            build.step(block, StepOp.RECV, dst=(Buffer.OUTPUT, other))
        if not in_place:
            build.step(build.block(rank), StepOp.COPY, src=(Buffer.INPUT, 0), dst=(Buffer.OUTPUT, rank))
    return built(
        build,
        Collective.ALL_GATHER,
        ranks,
        ranks,
        inputs=1,
        in_place=in_place,
        out_of_place=not in_place,
        name=f"gather of {ranks}",
    )


def all_pairs(ranks: int) -> Program:
    """All-reduce in place without fused steps: shares go to their reducer's scratch, sums come back.

    Thread block ``i`` of a rank talks to its i-th peer; the last one adds up, and waits for all the others.
    """
    build = ProgramBuilder(ranks)
    for rank in range(ranks):
        peers = [other for other in range(ranks) if other != rank]
        for place, other in enumerate(peers):
            block = build.block(rank, send=other, recv=other)
            build.step(block, StepOp.SEND, src=(Buffer.INPUT, other))
            build.step(block, StepOp.RECV, dst=(Buffer.SCRATCH, place))
            build.step(block, StepOp.SEND, src=(Buffer.INPUT, rank), after=[(len(peers), len(peers) - 1)])
            build.step(block, StepOp.RECV, dst=(Buffer.INPUT, other))
        adder = build.block(rank)
        for place in range(len(peers)):
            waits = [(each, 1) for each in range(len(peers))] if place == 0 else []
            build.step(
                adder, StepOp.REDUCE, src=(Buffer.SCRATCH, place), dst=(Buffer.INPUT, rank), after=waits
            )
    return built(build, Collective.ALL_REDUCE, ranks, ranks, outputs=0, scratch=ranks - 1, name="all pairs")


def ring_all_reduce(ranks: int) -> Program:
    """The ring of fused steps: s, rrs ..., rrcs, rcs ..., r on one thread block a rank."""
    build = ProgramBuilder(ranks)
    for rank in range(ranks):
        block = build.block(rank, send=(rank + 1) % ranks, recv=(rank - 1) % ranks)
        build.step(block, StepOp.SEND, src=(Buffer.INPUT, rank))
        for back in range(1, ranks):
            chunk = (Buffer.INPUT, (rank - back) % ranks)
            last = back == ranks - 1
            op = StepOp.RECV_REDUCE_COPY_SEND if last else StepOp.RECV_REDUCE_SEND
            build.step(block, op, src=chunk, dst=chunk if last else (Buffer.NONE, -1))
        for back in range(ranks - 2):
            build.step(block, StepOp.RECV_COPY_SEND, dst=(Buffer.INPUT, (rank - back) % ranks))
        build.step(block, StepOp.RECV, dst=(Buffer.INPUT, (rank + 2) % ranks))
    return built(build, Collective.ALL_REDUCE, ranks, ranks, name="ring")
