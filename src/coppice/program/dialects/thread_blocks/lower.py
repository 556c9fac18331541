"""Lower a schedule or a forest to a two-sided program: messages become steps of thread blocks.

Every thread block keeps to one order of all sends and receives (:mod:`coppice.program.lower`), and waits for other
thread blocks of its rank where it reads what they write, writes what they write, or overwrites what they read.

First all send and then all receive, which is quickest for small messages. A runtime cuts large ones, so that some
thread blocks may wait for each other with their sends half done; then thread blocks take turns instead, and steps that
receive and send stay in one piece only where they wait for nobody in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import InputError
from coppice.program.buffer_layout import BufferLayout, in_sub_chunks, refuse
from coppice.program.dialects.thread_blocks.channels import ChannelLimits, path_numbers, spread
from coppice.program.dialects.thread_blocks.cutting import fewest_together, within_safe_sizes
from coppice.program.dialects.thread_blocks.emit import Emitter
from coppice.program.dialects.thread_blocks.nics import Exits, Nics, exits_of
from coppice.program.dialects.thread_blocks.order import check_in_parts
from coppice.program.dialects.thread_blocks.program import Program
from coppice.program.dialects.thread_blocks.structure import message_pairs
from coppice.program.lower import MessageTable, Transfers, message_table, transfers_of
from coppice.program.order import Deadlock
from coppice.rows import first_rows, inverse
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.schedule import Schedule, in_parts
from coppice.schedule.verification.report import Findings

_ATTEMPTS = 8
_ALL = slice(None)

_LEAST_DEPTH = 2


def lower_to_program(
    plan: Schedule | Forest,  # A verified schedule, or a forest whose trees branch at ranks
    *,
    in_place: bool = True,  # Input and output share memory. An all-to-all can only run out of place.
    # Most channels. Trees that share a link are spread over as many as are allowed and fit.
    channels: int = 8,
    # Run so many copies of the plan at once, each on its part of the data, with channels and thread blocks of
    # its own
    instances: int = 1,
    # Transfers whose paths leave by a certain NIC take channels that lead there, as
    # :mod:`coppice.program.dialects.thread_blocks.nics` tells
    by_nic: bool = False,
    max_blocks: int | None = None,  # Most thread blocks of a rank
    max_peers: int | None = None,  # Most peers of a rank, each way, on one channel
    max_count: int | None = None,
    # Use operations that receive and send, or receive and reduce. Otherwise what is received to be added goes
    # by way of scratch memory.
    fused: bool = True,
    name: str = "program",
    protocol: str = "Simple",  # `Simple`, `LL` or `LL128`
    min_bytes: int = 0,  # Smallest M that it is meant for
    max_bytes: int | None = None,
) -> Program:
    """Lower a plan to a program.

    Returns:
        A program that verifies with connections of 2 messages or more. Its ``max_bytes`` is lowered to the largest size
        at which it does, where runtimes cut steps into messages.

    Examples:
        >>> from coppice.program.dialects.thread_blocks.verify import verify_program
        >>> from coppice.topology.presets import preset
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.planners.planning import plan
        >>> made = plan(Problem(topology=preset("ring", gpus=4), collective=Collective.ALL_GATHER)).plan
        >>> program = lower_to_program(made.body, channels=1)
        >>> verify_program(program).ok, program.num_chunks, program.most_blocks
        (True, 8, 2)
    """
    prepared = prepare(plan, in_place=in_place, instances=instances, by_nic=by_nic, max_count=max_count)
    limits = ChannelLimits(channels=channels, blocks=max_blocks, peers=max_peers)
    attributes: dict[str, Any] = {
        "name": name,
        "protocol": protocol,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
    }
    return emit(prepared, limits, fused=fused, **attributes)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Prepared(Brief):
    """A plan lowered as far as the number of channels is irrelevant."""

    placement: BufferLayout  # Where values lie
    rows: Transfers  # The transfers
    part: NDArray[np.int64]  # Instance of each
    stepped: bool  # They have steps
    max_count: int | None  # Most chunks in a message
    exits: Exits | None = None  # NICs by which they are to leave, where that depends on the channel


def prepare(
    plan: Schedule | Forest,
    *,
    in_place: bool,
    instances: int = 1,
    by_nic: bool = False,
    max_count: int | None = None,
) -> Prepared:
    """Part of :func:`lower_to_program` before channels are chosen, with the same arguments."""
    schedule = lower(plan) if isinstance(plan, Forest) else plan
    collective = schedule.collective
    if collective is Collective.BARRIER:
        raise InputError(
            "expected a collective that moves data, found a barrier: no runtime takes it as a program."
        )
    refuse(collective, in_place=in_place, instances=instances)
    schedule, part = replicated(schedule, instances)
    placement = BufferLayout(
        collective=collective,
        ranks=schedule.topology.num_ranks,
        root=schedule.root,
        in_place=in_place,
        units=in_sub_chunks(schedule, max_count=max_count),
    )
    rows = transfers_of(schedule, placement)
    exits = exits_of(schedule, Nics(schedule.topology)) if by_nic else None
    if exits is not None:
        exits = Exits(exits.turn[rows.path], exits.share[rows.path])  # path -1 is the last row
    if len(schedule.path_start) > 1:
        rows = replace(rows, path=np.where(rows.path < 0, -1, path_numbers(schedule)[rows.path]))
    return Prepared(
        placement=placement,
        rows=rows,
        part=np.repeat(part, np.diff(placement.units.start))[rows.run],
        stepped=bool(len(schedule.step) and int(schedule.step.min()) >= 0),
        max_count=max_count,
        exits=exits,
    )


def emit(
    prepared: Prepared, limits: ChannelLimits, *, fused: bool = True, any_size: bool = True, **attributes: Any
) -> Program:
    """Part of :func:`lower_to_program` that chooses channels and emits steps.

    Args:
        prepared: The plan.
        limits: What has to fit.
        fused: As in :func:`lower_to_program`.
        any_size: If it can be had, a program that comes to an end however a runtime cuts its steps; otherwise one whose
            ``max_bytes`` says up to which size it does.
        **attributes: Name, protocol and sizes of the program.
    """
    placement, rows = prepared.placement, prepared.rows
    color, blocks = spread(
        rows,
        prepared.part,
        len(placement.units.slot),
        limits,
        stepped=prepared.stepped,
        exits=prepared.exits,
    )
    in_order = partial(message_table, rows, color, placement, max_count=prepared.max_count)
    write = partial(Emitter, placement, blocks=blocks, fused=fused)
    emitter = write(in_order())
    program = emitter.program(**attributes)
    most = int(program.count.max(initial=1))
    if emitter.joins and _stuck(program, most):
        program = write(in_order(), apart=_ALL).program(**attributes)
    if any_size and most > 1 and _stuck(program, 1):
        taking_turns = in_order(actors=blocks.at_ends(rows.src, rows.dst, color))
        program = min(
            (_taken_apart(write, taking_turns, attributes), program),
            key=lambda each: (
                fewest_together(each, message_pairs(each, Findings()), depth=_LEAST_DEPTH)[0] or most
            ),
        )
    program = replace(program, in_place=placement.in_place, out_of_place=not placement.in_place)
    return within_safe_sizes(program) if any_size else program


def _taken_apart(write: Callable[..., Emitter], table: MessageTable, attributes: dict[str, Any]) -> Program:
    """A program whose steps that receive and send are taken apart where thread blocks wait in vain at them.

    Others may wait in vain then: they are taken apart as well, and in the end all of them.
    """
    apart = np.zeros(0, dtype=np.int64)
    for attempt in range(_ATTEMPTS):
        emitter = write(table, apart=apart)
        program = emitter.program(**attributes)
        stuck = _stuck(program, 1)
        if not stuck:
            return program
        more = emitter.joined_at(stuck)
        apart = np.union1d(apart, more)
        if not len(more) or attempt == _ATTEMPTS - 1:
            break
    return write(table, apart=_ALL).program(**attributes)


def _stuck(program: Program, together: int) -> Sequence[int]:
    """Steps at which thread blocks wait in vain where so many slots fit into a message."""
    try:
        check_in_parts(program, message_pairs(program, Findings()), depth=_LEAST_DEPTH, together=together)
    except Deadlock as circle:
        return circle.stuck
    return ()


def replicated(schedule: Schedule, instances: int) -> tuple[Schedule, NDArray[np.int64]]:
    """Replicate a schedule ``instances`` times, each on its part of every slot.

    Args:
        instances: N, 1 or more.

    Returns:
        The schedule, whose row ``i * N + q`` is row i of instance q; and the instance of each of its chunks.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.planners.planning import plan
        >>> from coppice.schedule.lower import lower
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(topology=preset("ring", gpus=3), collective=Collective.ALL_GATHER)
        >>> twice, part = replicated(lower(plan(problem, trees=1).plan.body), 2)
        >>> twice.num_transfers, part.tolist()
        (12, [0, 1, 0, 1, 0, 1])
    """
    if instances == 1:
        return schedule, np.zeros(schedule.num_chunks, dtype=np.int64)
    if schedule.collective is Collective.ALL_REDUCE:
        schedule = _in_one_slot(schedule)
    slot = schedule.chunk_slot.astype(np.int64)
    sizes = np.bincount(slot, minlength=len(schedule.slot_weight))
    starts = first_rows(sizes)
    within = np.arange(schedule.num_chunks) - starts[slot]
    parts = np.arange(instances)
    # Part q of every chunk of a slot comes before part q + 1 of any of them.
    number = ((starts[slot] * instances + within)[:, None] + parts * sizes[slot][:, None]).reshape(-1)
    chunk = inverse(number)
    cut = in_parts(schedule, instances)
    made = replace(
        cut,
        chunk_slot=cut.chunk_slot[chunk],
        chunk_share=cut.chunk_share[chunk],
        chunk=number[cut.chunk].astype(np.int32),
    )
    return made, chunk % instances


def _in_one_slot(schedule: Schedule) -> Schedule:
    """An all-reduce with all its data in slot 0, sized as before: parts of all slots then lie side by side."""
    weight = np.zeros_like(schedule.slot_weight)
    weight[0] = 1
    return replace(
        schedule,
        slot_weight=weight,
        chunk_slot=np.zeros_like(schedule.chunk_slot),
        chunk_share=in_sub_chunks(schedule).of_chunk,
    )
