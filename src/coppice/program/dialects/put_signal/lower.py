"""Lower a schedule or a forest to a put/signal program.

Every chunk is cut into pieces that follow each other (:mod:`.rounds`); receive buffers and credits are decided round by
round (:mod:`.receive_buffers`). Values may be distributed over several *communicators*, each with a stream and a part
of the staging memory of its own: a communicator is one queue, so that only several overlap transfers with sums.

The work grows with the messages (transfers x pieces), and with messages x ranks for what ranks know of each other.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil

import numpy as np

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.buffer_layout import BufferLayout, in_sub_chunks
from coppice.program.dialects.put_signal.emit import emit
from coppice.program.dialects.put_signal.program import PutSignalProgram
from coppice.program.dialects.put_signal.receive_buffers import CommunicatorSteps, assign_buffers
from coppice.program.dialects.put_signal.rounds import in_pieces_of, pieces_for_rate, rounds_of
from coppice.program.lower import Transfers
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.schedule import Op, Schedule
from coppice.text import plural

MOST_STAGING = Fraction(1, 4)
"""Staging memory of a rank, as a part of M, up to which blocks are used again only where that needs no credit; 64 MiB
at 256 MiB."""

_MOST_PIECES = 128
_ROUNDS_KEPT = 3
"""Rounds from the one in which a message lands to the one in which its slots are written again."""
_USED_AGAIN_FROM = Fraction(3, 4)
"""Part of that memory from which on credits are spent: blocks of many sizes leave gaps."""
_MOST_ROWS = 2**18
"""Pieces are fewer where there would be more transfers than this."""


def lower_put_signal(
    plan: Schedule | Forest,  # A verified schedule, or a forest whose trees branch at ranks
    *,
    # Pieces of every chunk, which follow each other; None is the fewest, up to 128, with which the busiest
    # link is busy for 92% of the rounds and staging memory stays within a quarter of M, and fewer where there
    # would be more than 2^18 transfers
    pieces: int | None = None,
    communicators: int = 1,  # Communicators and streams that values are dealt out to
    # Groups of communicators: chunks go round-robin to groups, and their pieces to the communicators of a group. With
    # one, every communicator has pieces of all trees; with as many as there are communicators, each has trees of its
    # own, of which few messages go between two ranks at a time.
    groups: int = 1,
    signals: int = 1,  # Signal indices of a peer; more than 1 needs NCCL 2.31
    # It may be captured as a CUDA graph: two ranks never put twice to each other with one signal index before
    # they wait
    graphs: bool = True,
    # Staging memory of a rank, as a part of M, up to which a block is used again only where that needs no
    # credit; programs that must keep more at a time have more
    staging: Fraction = MOST_STAGING,
    name: str = "coppice",
) -> PutSignalProgram:
    """Lower a plan to a put/signal program.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.planners.planning import plan
        >>> from coppice.program.dialects.put_signal.verify import verify_put_signal
        >>> from coppice.topology.presets import preset
        >>> made = plan(Problem(topology=preset("ring", gpus=4), collective=Collective.ALL_REDUCE)).plan
        >>> program = lower_put_signal(made.body, pieces=2)
        >>> verify_put_signal(program).ok, program.in_place, program.out_of_place, max(program.messages.tolist())
        (True, True, True, 26)
    """
    for option, value in (
        ("pieces", pieces),
        ("communicators", communicators),
        ("groups", groups),
        ("signals", signals),
    ):
        if value is not None and not 1 <= value <= 1024:
            raise InputError(f"expected `{option}` from 1 to 1024, found {value}.")
    if communicators % groups:
        raise InputError(
            f"expected `groups` to divide the {plural(communicators, 'communicator')}, found {groups}."
        )
    if plan.collective is Collective.BARRIER:
        raise InputError(
            "expected a collective that moves data, found a barrier: put/signal programs are made of puts."
        )
    schedule = lower(plan) if isinstance(plan, Forest) else plan
    whole = _placement(schedule)
    transfers = rounds_of(schedule, whole)
    number = _pieces(schedule, whole, transfers) if pieces is None else pieces
    placement = _placement(
        replace(
            schedule,
            chunk_slot=np.repeat(schedule.chunk_slot, number),
            chunk_share=np.repeat(schedule.chunk_share, number),
        )
    )
    rows = in_pieces_of(transfers, whole, placement, number)
    communicator = _communicators(rows, placement, number, communicators, groups)
    done: list[CommunicatorSteps] = []
    for each in range(communicators):
        mine = communicator == each
        part = Transfers(
            *(column[mine] for column in (rows.src, rows.dst, rows.run, rows.op, rows.path, rows.round))
        )
        done.append(
            assign_buffers(
                part,
                placement,
                signals=signals,
                in_turn=graphs,
                most=int(placement.units.num_chunks * staging * _USED_AGAIN_FROM / communicators),
                base=done[-1].staging if done else [0] * placement.ranks,
            )
        )
    return emit(done, placement, name=name)


def _placement(schedule: Schedule) -> BufferLayout:
    return BufferLayout(
        collective=schedule.collective,
        ranks=schedule.topology.num_ranks,
        root=schedule.root,
        in_place=False,
        units=in_sub_chunks(schedule),
    )


def _pieces(schedule: Schedule, placement: BufferLayout, rows: Transfers) -> int:
    """Pieces where none are asked for: as few as keep the rate, and three rounds of staging memory small."""
    if not len(rows.src):
        return 1
    ranks, stepped = placement.ranks, int(schedule.step.min()) >= 0
    slot = placement.units.slot[rows.run]
    lands = (rows.op == Op.REDUCE) | ~placement.wanted(rows.dst, slot)
    together = (rows.round if stepped else 0) * ranks + rows.dst
    staged = int(np.bincount(together, weights=lands * placement.units.count[rows.run]).max())
    wanted = ceil(_ROUNDS_KEPT / MOST_STAGING * Fraction(staged, placement.units.num_chunks))
    most = max(1, min(_MOST_PIECES, _MOST_ROWS // len(rows.src)))
    wanted = max(wanted, pieces_for_rate(rows, placement, schedule, most))
    return min(1 << max(wanted - 1, 0).bit_length(), most)


def _communicators(
    rows: Transfers, placement: BufferLayout, pieces: int, communicators: int, groups: int
) -> np.ndarray:
    """Communicator of each transfer: chunks go round-robin to groups, their pieces to the communicators of a group."""
    start, own = placement.units.start, communicators // groups
    chunk, piece = np.divmod(np.repeat(np.arange(len(start) - 1), np.diff(start))[rows.run], pieces)
    return np.asarray(chunk % groups * own + (chunk // groups * pieces + piece) % own)
