"""Number of pieces of a chunk (pipelining), from the measured cost of a message and the simulated time."""

from __future__ import annotations

import math
import statistics
import time

import msgspec
import numpy as np

from coppice.collectives import Collective
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.engine import Engine
from coppice.run.programs.lower import ring_program, schedule_of
from coppice.run.programs.rank_program import RankProgram
from coppice.schedule.forest import Forest
from coppice.schedule.layout import chunk_bounds
from coppice.schedule.schedule import Schedule

MOST_TRANSFERS = 2_000_000
"""Pieces are tried while the simulated transfers, pieces counted, stay below this."""
_MOST_PIECES = 256
_PATIENCE = 2
_STEPS, _WIDTH, _ROUNDS = 32, 9, 7
_LEAST_US = 0.05
_LEAST_PIECE_BYTES = 32 * 1024
_IN_THE_WAY = 0.5
_HARDLY_MORE = 1.05
_ROOM = 0.75


def choose_pieces(plan: Schedule | Forest, size_bytes: int, overhead_us: float) -> int:
    """The number of pieces of every chunk with the least time.

    The time is the simulated one, but not less than the busiest rank needs to post its messages. Posting is hidden
    behind the transfers only while it is short beside them: half of it, times its share of the time, is added. Tried
    are 1, 2, 4, .. until that has grown twice in a row; of equal times the fewest pieces count. Then chunks are cut
    further, by two or by one and a half, down to pieces of 32 KiB, as long as the transfers take hardly more time and
    posting fits into three quarters of it: what networks hold back in their queues delays whole pieces, and MPI
    libraries wait for the receiver before they send a longer one, which the simulator does not know.

    Args:
        size_bytes: M in bytes.
        overhead_us: What a message costs a rank beside its time on the links.

    Examples:
        A broadcast along a ring gains from pieces, but not when it is small:

        >>> from coppice.bounds.problem import Problem
        >>> from coppice.planners.planning import plan
        >>> from coppice.topology.presets import preset
        >>> made = plan(Problem(topology=preset("ring", gpus=8), collective=Collective.BROADCAST, root=0)).plan
        >>> choose_pieces(made.body, 1 << 10, 5.0), choose_pieces(made.body, 1 << 30, 5.0) > 8
        (1, True)
    """
    from coppice.simulation.model import Model
    from coppice.simulation.simulator import simulate

    schedule = schedule_of(plan)
    if not schedule.num_transfers or not size_bytes or schedule.collective is Collective.BARRIER:
        return 1
    if (schedule.step >= 0).any() and len(schedule.after):
        return 1
    ends = np.concatenate([schedule.src, schedule.dst])
    posted_us = int(np.bincount(ends).max()) * overhead_us
    most = max(1, min(_MOST_PIECES, MOST_TRANSFERS // schedule.num_transfers))
    model = Model(overhead_us=overhead_us)

    def moving_us(pieces: int) -> float:
        return simulate(schedule, size_bytes, model=model, pieces=pieces).time_us

    best, taken, least, last, worse, pieces = 1, math.inf, math.inf, math.inf, 0, 1
    while pieces <= most and worse < _PATIENCE and pieces * posted_us < least:
        time = max(moving_us(pieces), pieces * posted_us)
        found = time + _IN_THE_WAY * (pieces * posted_us) ** 2 / time
        worse = worse + 1 if found >= last else 0
        if found < least:
            best, taken, least = pieces, time, found
        last, pieces = found, 2 * pieces
    _, lengths = chunk_bounds(schedule, size_bytes)
    longest = int(lengths.max())

    def fits(pieces: int) -> bool:
        return (
            best < pieces <= most
            and longest >= pieces * _LEAST_PIECE_BYTES
            and pieces * posted_us <= _ROOM * taken
            and moving_us(pieces) <= _HARDLY_MORE * taken
        )

    while further := next(filter(fits, (2 * best, 3 * best // 2)), 0):
        best = further
    return best


def piece_elements(plan: Schedule | Forest, count: int, pieces: int) -> int | None:
    """Longest piece, in elements, if the longest chunk is cut into ``pieces``; None if that is 1."""
    if pieces <= 1:
        return None
    _, length = chunk_bounds(schedule_of(plan), count)
    longest = int(length.max()) if len(length) else 0
    return max(1, -(-longest // pieces))


def measure_overhead_us(engine: Engine, *, timeout_s: float) -> float:
    """What one more message in a step costs, in microseconds: the same number on every rank.

    Every rank sends messages of one element to the next one, one at a time and then several at a time. The difference
    between the medians of the rounds counts, and of all ranks the median. Ranks that share cores keep each other
    waiting, and do so in a collective. It is at least a fifth of what a step with one message takes: on busy cores the
    difference drowns in noise, and a cost of nothing would cut plans to dust.
    """
    if engine.ranks == 1:
        return _LEAST_US
    narrow, wide = (ring_program(engine.rank, engine.ranks, _STEPS, width) for width in (1, _WIDTH))
    empty = np.zeros(0, dtype=np.uint8)

    def seconds(program: RankProgram) -> float:
        begin = time.perf_counter()
        engine.run(program, empty, empty, dtype=DataType.UINT8, op=ReduceOp.SUM, timeout_s=timeout_s)
        return time.perf_counter() - begin

    seconds(wide)  # connections are made
    alone = statistics.median(seconds(narrow) for _ in range(_ROUNDS)) * 1e6
    together = statistics.median(seconds(wide) for _ in range(_ROUNDS)) * 1e6
    own = max(_LEAST_US, (together - alone) / (_STEPS * (_WIDTH - 1)), alone / _STEPS / 5)
    answers = engine.exchange(msgspec.json.encode(own))
    return statistics.median(float(msgspec.json.decode(answer)) for answer in answers)
