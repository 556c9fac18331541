"""Lower a schedule or a forest to a put/signal program, in rounds of pipelined sub-chunks.

Every chunk is cut into pieces that follow each other; receive buffers and credits are decided round by
round (:mod:`.receive_buffers`). Values may be distributed over several *communicators*, each with a stream and a part
of the staging memory of its own: a communicator is one queue, so that only several overlap transfers with sums.

The work grows with the messages (transfers x pieces), and with messages x ranks for what ranks know of each other.

Rounds of a schedule for put/signal programs: pipelined sub-chunks, and sums as late as possible. A round is what all
ranks put, wait for and add before they put again. The pieces of a chunk follow each other, one round apart, so that
every link carries one piece of each of its tree edges in every round but the first and last few. What is to be added
arrives in the last round in which it is in time, together with all else that is added to it: a receive buffer is then
needed for one round and not for as long as the deepest subtree takes.
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
from coppice.program.lower import Transfers, transfers_of
from coppice.rows import offsets, rows_of_groups
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.schedule import Op, Schedule, hops_of
from coppice.text import plural

_BUSY = 0.92
_MOST_LOADS = 2**24
"""Rounds x links that are looked at."""


def rounds_of(schedule: Schedule, placement: BufferLayout) -> Transfers:
    """Transfers of a schedule with uncut chunks, with their rounds."""
    rows = transfers_of(schedule, placement)
    stepped = bool(schedule.num_transfers) and int(schedule.step.min()) >= 0
    if stepped or len(schedule.after):
        return rows
    return _sorted(replace(rows, round=late_sums(rows, placement.ranks)))


def in_pieces_of(rows: Transfers, placement: BufferLayout, cut: BufferLayout, pieces: int) -> Transfers:
    """Transfers of every sub-chunk, each a round behind the one before.

    Args:
        cut: Of their pieces; piece j of chunk c is chunk ``c * pieces + j``.
    """
    chunks = np.repeat(np.arange(len(placement.units.start) - 1), np.diff(placement.units.start))
    piece = np.tile(np.arange(pieces), len(rows.src))
    src, dst, op, path = (np.repeat(each, pieces) for each in (rows.src, rows.dst, rows.op, rows.path))
    run = cut.units.start[np.repeat(chunks[rows.run], pieces) * pieces + piece]
    return _sorted(
        Transfers(src=src, dst=dst, run=run, op=op, path=path, round=np.repeat(rows.round, pieces) + piece)
    )


def pieces_for_rate(rows: Transfers, placement: BufferLayout, schedule: Schedule, most: int) -> int:
    """Fewest sub-chunks, a power of two, that keep the busiest links of all rounds 92% busy.

    Args:
        rows: Transfers of whole chunks, of which some go in rounds that leave links idle.

    Returns:
        1 where it is not known which links transfers take, or there are too many rounds to look at.
    """
    topology = schedule.topology
    rounds, links = int(rows.round.max(initial=-1)) + 1, topology.num_links
    if not rounds or int(rows.path.min()) < 0 or (rounds + most) * links > _MOST_LOADS:
        return 1
    hops = hops_of(topology, schedule.path_start, schedule.path_nodes)
    start = offsets(np.bincount(hops.path, minlength=hops.num_paths))
    at, ends = rows_of_groups(start, rows.path)
    row = np.repeat(np.arange(len(rows.path)), np.diff(ends))
    place = rows.round[row] * links + hops.link[at]
    sums = np.bincount(place, weights=placement.units.count[rows.run][row], minlength=rounds * links)
    load = sums.reshape(rounds, links) / topology.capacity
    until = np.concatenate([np.zeros((1, links)), np.cumsum(load, axis=0)])
    pieces = 1
    while pieces < most:
        turn = np.arange(rounds + pieces - 1)
        spent = until[np.minimum(turn + 1, rounds)] - until[np.maximum(turn + 1 - pieces, 0)]
        if until[-1].max() >= _BUSY * spent.max(axis=1).sum() / pieces:
            break
        pieces *= 2
    return pieces


def _sorted(rows: Transfers) -> Transfers:
    order = np.argsort(rows.round, kind="stable")
    return Transfers(
        **{key: getattr(rows, key)[order] for key in ("src", "dst", "run", "op", "path", "round")}
    )


def late_sums(rows: Transfers, ranks: int) -> np.ndarray:
    """Rounds in which addends arrive as late as the receiver's own send allows.

    Args:
        rows: Transfers in the order of their rounds.

    Examples:
        Ranks 0 and 1 send to rank 2, which sends on to rank 3; rank 0 could send a round before rank 1:

        >>> column = lambda *values: np.array(values, dtype=np.int64)
        >>> rows = Transfers(column(4, 0, 1, 2), column(1, 2, 2, 3), column(0, 0, 0, 0),
        ...                  column(1, 1, 1, 1), column(0, 0, 0, 0) - 1, column(0, 0, 1, 2))
        >>> late_sums(rows, 5).tolist()
        [0, 1, 1, 2]
    """
    into, outof = rows.run * ranks + rows.dst, rows.run * ranks + rows.src
    values, column = np.unique(np.concatenate([into, outof]), return_inverse=True)
    target, source = column[: len(into)].tolist(), column[len(into) :].tolist()
    far = int(rows.round.max(initial=0)) + 1
    deepest = np.full(len(values), -1, dtype=np.int64)
    np.maximum.at(deepest, column[: len(into)], rows.round)
    last: list[int] = deepest.tolist()
    sent, written, copied = (
        [far] * len(values) for _ in range(3)
    )  # first rounds after the row that is looked at
    found: list[int] = rows.round.tolist()
    adds: list[bool] = (rows.op == Op.REDUCE).tolist()
    for row in range(len(found) - 1, -1, -1):
        to, origin = target[row], source[row]
        if adds[row]:
            limit = min(sent[to] - 1, copied[to] - 1, written[origin] - 1, last[to])
            found[row] = max(found[row], limit)
        else:
            copied[to] = min(copied[to], found[row])
        sent[origin] = min(sent[origin], found[row])
        written[to] = min(written[to], found[row])
    return np.array(found, dtype=np.int64)


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
