"""Fuse a receive with the send that forwards its data.

A receive that copies and sends on becomes ``rcs``. One that adds and sends on becomes ``rrcs``, or ``rrs`` where nobody
else reads the sum before it is overwritten, and the collective does not want it there. Of several sends of one value
the one with the longest way still to go is joined; the others stay.
"""

from __future__ import annotations

from collections.abc import Collection

from coppice.program.dialects.thread_blocks.operations.instructions import Instruction, InstructionGraph
from coppice.program.dialects.thread_blocks.program import NOWHERE, StepOp
from coppice.program.memory import ProgramMemory


def depths_of(graph: InstructionGraph) -> list[int]:
    """Longest path from the start to each instruction."""
    depth = [0] * len(graph.instructions)
    for number in graph.present():
        depth[number] = max((depth[earlier] + 1 for earlier in graph.waits_for(number)), default=0)
    return depth


def heights_of(graph: InstructionGraph) -> list[int]:
    """Longest path from each instruction to an end."""
    height = [0] * len(graph.instructions)
    for number in reversed(graph.present()):
        for earlier in graph.waits_for(number):
            height[earlier] = max(height[earlier], height[number] + 1)
    return height


def fuse(graph: InstructionGraph, memory: ProgramMemory, *, apart: Collection[int] = ()) -> None:
    """Fuse in place where possible.

    Args:
        graph: Instructions as :func:`instructions_of` makes them.
        apart: Messages that are not to be passed on in the step that receives them.
    """
    height = heights_of(graph)
    joined: dict[int, int] = {}
    channel = [message.channel for message in graph.messages]
    for number in graph.present():
        taking = graph.instructions[number]
        if taking is None or taking.received < 0 or taking.received in apart:
            continue
        found = [
            send
            for send in _passing_on(graph, number, taking, memory)
            if _agree(graph, taking, send, channel)
        ]
        if not found:
            continue
        best = max(found, key=lambda send: (height[send], -send))
        _join(graph, taking, best)
        joined[best] = number
        both = channel[taking.received], channel[taking.sent]
        channel[taking.sent] = both[0] if both[1] is None else both[1]
    for number in graph.present():
        each = graph.at(number)
        each.before = {joined.get(earlier, earlier) for earlier in each.before} - {number}
    for message in graph.messages:
        message.send = joined.get(message.send, message.send)


def _passing_on(
    graph: InstructionGraph, number: int, taking: Instruction, memory: ProgramMemory
) -> list[int]:
    """Sends of just what an instruction receives."""
    first = int(memory.base[taking.dst[0], taking.rank]) + taking.dst[1]
    found = []
    for reader in taking.readers[0]:
        send = graph.instructions[reader]
        if send is None or send.op is not StepOp.SEND or send.count != taking.count:
            continue
        if int(memory.base[send.src[0], send.rank]) + send.src[1] == first and send.before == {number}:
            found.append(reader)
    return found


def _agree(graph: InstructionGraph, taking: Instruction, send: int, channel: list[int | None]) -> bool:
    """Whether nothing that is asked for keeps the two apart."""
    other = graph.at(send)
    one, two = channel[taking.received], channel[other.sent]
    return (
        (one is None or two is None or one == two)
        and (taking.block is None or other.block is None or taking.block == other.block)
        and taking.step == other.step
    )


def _join(graph: InstructionGraph, taking: Instruction, send: int) -> None:
    other = graph.at(send)
    taking.sent = other.sent
    taking.block = other.block if taking.block is None else taking.block
    if taking.op is StepOp.RECV:
        taking.op = StepOp.RECV_COPY_SEND
    elif any(taking.kept) or any(set(readers) != {send} for readers in taking.readers):
        taking.op = StepOp.RECV_REDUCE_COPY_SEND
    else:
        taking.op, taking.dst = StepOp.RECV_REDUCE_SEND, NOWHERE
    graph.instructions[send] = None
