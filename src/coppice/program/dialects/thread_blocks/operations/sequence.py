"""Total order of all instructions, from which thread blocks take their steps.

Instructions come in the order of their depth, those with the longest way still to go first, and every send before its
receive. Carried out in this order, no connection ever holds more messages than it has room for, and every connection
delivers them in the order of their sends. So thread blocks that keep to it cannot deadlock, with so much room.

An author may ask for another order in a thread block: its steps are then put in that order, and may deadlock.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable

from coppice.errors import CheckError, InputError
from coppice.program.dialects.thread_blocks.operations.connections import BlockTable, OpenBlock
from coppice.program.dialects.thread_blocks.operations.instructions import (
    InstructionGraph,
    depths_of,
    heights_of,
)


class Stuck(Exception):  # noqa: N818 (an outcome, caught by the lowering)
    """No order satisfies FIFO depth and connection order; ``messages`` are those that come too late."""

    def __init__(self, messages: list[int]) -> None:
        super().__init__("no order keeps to all connections")
        self.messages = messages


def sequence(graph: InstructionGraph, table: BlockTable, *, room: int) -> list[int]:
    """Order all instructions.

    Args:
        room: Messages that a connection holds, 1 or more.
    """
    depth, height = depths_of(graph), heights_of(graph)
    after: dict[int, list[int]] = defaultdict(list)
    left: dict[int, int] = {}
    for number in graph.present():
        waits = graph.waits_for(number)
        left[number] = len(waits)
        for earlier in waits:
            after[earlier].append(number)

    def connection(message: int) -> tuple[int, int, int]:
        each = graph.messages[message]
        return each.src, each.dst, table.channel[message]

    travelling: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
    waiting: dict[tuple[int, int, int], list[int]] = defaultdict(list)

    def key(number: int) -> tuple[int, int, int]:
        return depth[number], -height[number], number

    heap = [key(number) for number, count in left.items() if not count]
    heapq.heapify(heap)
    found: list[int] = []
    while heap:
        number = heapq.heappop(heap)[2]
        each = graph.at(number)
        into = connection(each.received) if each.received >= 0 else None
        outof = connection(each.sent) if each.sent >= 0 else None
        if into is not None and travelling[into][0] != each.received:
            waiting[into].append(number)
            continue
        if outof is not None and len(travelling[outof]) >= room:
            waiting[outof].append(number)
            continue
        found.append(number)
        if into is not None:
            travelling[into].popleft()
            for other in waiting.pop(into, ()):
                heapq.heappush(heap, key(other))
        if outof is not None:
            travelling[outof].append(each.sent)
        for later in after[number]:
            left[later] -= 1
            if not left[later]:
                heapq.heappush(heap, key(later))
    if len(found) < len(left):
        stuck = [number for numbers in waiting.values() for number in numbers]
        raise Stuck(
            sorted(
                message
                for number in stuck
                for message in (graph.at(number).received, graph.at(number).sent)
                if message >= 0
            )
        )
    return found


def block_lists(
    graph: InstructionGraph, table: BlockTable, order: list[int]
) -> tuple[list[OpenBlock], list[list[int]]]:
    """Thread blocks by rank, with their instructions in order.

    Args:
        table: Their channels and thread blocks; work within a rank may add some.
        order: One order of all of them.
    """
    lists: dict[int, list[int]] = {number: [] for number in table.blocks}
    at: dict[int, int] = {}
    for number in order:
        block = _block_of(graph, table, lists, at, number)
        lists.setdefault(block, []).append(number)
        at[number] = block
    for numbers in lists.values():
        _in_asked_order(graph, numbers)
    _check_connections(graph, table, lists)
    kept = sorted((block for block, numbers in lists.items() if numbers), key=_place(table))
    return [table.blocks[block] for block in kept], [lists[block] for block in kept]


def _place(table: BlockTable) -> Callable[[int], tuple[int, int, int, int, int]]:
    def place(number: int) -> tuple[int, int, int, int, int]:
        block = table.blocks[number]
        return block.rank, block.channel, block.send, block.recv, number

    return place


def _block_of(
    graph: InstructionGraph, table: BlockTable, lists: dict[int, list[int]], at: dict[int, int], number: int
) -> int:
    """The thread block of an instruction; for work within, that with least to do of those it waits for."""
    each = graph.at(number)
    if each.received >= 0:
        message = graph.messages[each.received]
        return table.end((False, message.src, message.dst, table.channel[each.received]))
    if each.sent >= 0:
        message = graph.messages[each.sent]
        return table.end((True, message.src, message.dst, table.channel[each.sent]))
    if each.block is not None:
        return table.labelled(each.rank, each.block)
    mine = sorted({at[earlier] for earlier in each.before})
    mine = mine or [block for block, found in table.blocks.items() if found.rank == each.rank]
    if not mine:
        return table.new(OpenBlock(each.rank))
    return min(mine, key=lambda block: len(lists.get(block, ())))


def _in_asked_order(graph: InstructionGraph, numbers: list[int]) -> None:
    """Put the steps of a thread block in the order that is asked for, if any is."""
    asked = [number for number in numbers if graph.at(number).step is not None]
    if not asked:
        return
    for number in numbers:
        each = graph.at(number)
        if each.step is None:
            raise InputError(
                f"{each.where}: expected a place (`send_step`, `recv_step`) for every operation of the thread block, "
                f"as {graph.at(asked[0]).where} has one, found none: give all of them one, or none."
            )
    numbers.sort(key=lambda number: graph.at(number).step or 0)


def _check_connections(graph: InstructionGraph, table: BlockTable, lists: dict[int, list[int]]) -> None:
    """Messages must be received in the order in which they are sent."""
    sent: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    received: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for numbers in lists.values():
        for number in numbers:
            each = graph.at(number)
            for message, into in ((each.sent, sent), (each.received, received)):
                if message >= 0:
                    ends = graph.messages[message]
                    into[ends.src, ends.dst, table.channel[message]].append(message)
    for (src, dst, channel), messages in sent.items():
        for first, other in zip(messages, received[src, dst, channel], strict=True):
            if first != other:
                one, two = (graph.at(graph.messages[message].recv).where for message in (first, other))
                raise CheckError(
                    f"{two}: rank {dst} receives this from rank {src} on channel {channel} before what {one} sends "
                    "first: a channel delivers messages in the order of their sends; receive them so, or use another "
                    "channel."
                )
