"""Lower a schedule or a forest to a one-sided program: messages become puts, signals and waits.

Everything that a rank does with one value it does in one thread block, so that thread blocks of a rank need not wait
for each other. Values are dealt out to thread blocks by *colors*; a value that is only read at one end and only written
at the other may go with any color, and goes with others of the same distance between ranks. All thread blocks keep to
one order: in each round they put everything and then wait for everything, so that nothing deadlocks. A put never
waits, but for the first signal of its receiver, by which it knows that the receiver has begun.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.buffer_layout import BufferLayout, in_sub_chunks, refuse
from coppice.program.dialects.puts.emit import emit_program
from coppice.program.dialects.puts.program import OneSidedProgram
from coppice.program.dialects.puts.receive_buffers import ReceivedMessage, received_messages
from coppice.program.dialects.puts.structure import RUNS
from coppice.program.lower import Transfers, message_table, transfers_of
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.schedule import Schedule, in_parts
from coppice.topology.model import Topology


@dataclass(frozen=True, eq=False, kw_only=True)
class OneSidedLowering:
    """A plan cut into chunks, to be distributed over thread blocks."""

    schedule: Schedule  # The plan
    placement: BufferLayout  # Where values lie
    rows: Transfers  # Transfers of runs of chunks
    by_port: list[list[bool]]  # Whether messages from one rank (row) to another (column) go by a proxy

    @property
    def most_colors(self) -> int:
        """Largest useful number of colors."""
        return max(len(self.placement.units.slot), self.placement.ranks - 1, 1)

    def program(self, colors: int, **attributes: object) -> OneSidedProgram:
        """The program with at most ``colors`` thread blocks a rank.

        Args:
            colors: Groups of values, each with a thread block at every rank that handles some of them.
            **attributes: Further attributes of the program.
        """
        table = message_table(self.rows, self._colors(colors), self.placement)
        messages, scratch = received_messages(table, self.placement, self.by_port)
        _regroup(messages, colors, self.placement.ranks)
        return emit_program(messages, scratch, self.placement, **attributes)

    def _colors(self, colors: int) -> np.ndarray:
        """Color of each row: values that take the same ways next to each other, dealt out evenly."""
        runs = len(self.placement.units.slot)
        ways: list[set[tuple[int, int]]] = [set() for _ in range(runs)]
        load = [0] * runs
        for run, src, dst in zip(
            *(c.tolist() for c in (self.rows.run, self.rows.src, self.rows.dst)), strict=True
        ):
            ways[run].add((min(src, dst), max(src, dst)))
            load[run] += 1
        order = sorted(range(runs), key=lambda run: (sorted(ways[run]), run))
        color = np.zeros(max(runs, 1), dtype=np.int64)
        total, before = max(sum(load), 1), 0
        for run in order:
            color[run] = before * colors // total
            before += load[run]
        return color[self.rows.run]


def lower_one_sided(
    plan: Schedule | Forest, *, in_place: bool | None = None, instances: int = 1
) -> OneSidedLowering:
    """Cut a plan into chunks.

    Args:
        plan: A verified schedule, or a forest whose trees branch at ranks.
        in_place: Input and output share memory; None means yes wherever the collective can.
        instances: Every chunk is cut into this many, which go side by side.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.planners.planning import plan
        >>> from coppice.program.dialects.puts.verify import verify_one_sided
        >>> from coppice.topology.presets import preset
        >>> made = plan(Problem(topology=preset("ring", gpus=4), collective=Collective.ALL_GATHER)).plan
        >>> program = lower_one_sided(made.body).program(4)
        >>> verify_one_sided(program).ok, program.num_chunks, program.most_blocks
        (True, 8, 4)
    """
    if plan.collective not in RUNS:
        known = ", ".join(RUNS)
        raise InputError(
            f"expected a collective that one-sided runtimes run ({known}), found {plan.collective}: they divide by the "
            "chunks of every rank's input and output, of which some would have none."
        )
    refuse(plan.collective, in_place=bool(in_place), instances=instances)
    schedule = in_parts(lower(plan) if isinstance(plan, Forest) else plan, instances)
    placement = BufferLayout(
        collective=schedule.collective,
        ranks=schedule.topology.num_ranks,
        root=-1,
        in_place=plan.collective is not Collective.ALL_TO_ALL if in_place is None else in_place,
        units=in_sub_chunks(schedule),
    )
    return OneSidedLowering(
        schedule=schedule,
        placement=placement,
        rows=transfers_of(schedule, placement),
        by_port=_by_port(schedule.topology),
    )


def _by_port(topology: Topology) -> list[list[bool]]:
    """Whether two ranks are on different hosts, so that memory cannot be shared."""
    hosts = topology.host[topology.rank_nodes]
    return [[bool(one != two) for two in hosts] for one in hosts]


def _regroup(messages: list[ReceivedMessage], colors: int, ranks: int) -> None:
    """Give messages that are free at both ends to colors by their distance, so that each color has few peers."""
    free = [message for message in messages if message.sends_first and message.ends_here]
    load: Counter[int] = Counter(message.color for message in messages)
    load.subtract(Counter(message.color for message in free))
    distances = {(message.dst - message.src) % ranks for message in free}
    parts = max(1, colors // max(len(distances), 1))
    seen: Counter[tuple[int, int]] = Counter()  # by pair of ranks
    groups: dict[tuple[int, int], list[ReceivedMessage]] = defaultdict(list)
    for message in free:
        part = seen[message.src, message.dst] % parts
        seen[message.src, message.dst] += 1
        groups[(message.dst - message.src) % ranks, part].append(message)
    for group in groups.values():
        color = min(range(colors), key=lambda each: (load[each], each))
        load[color] += len(group)
        for message in group:
            message.color = color
