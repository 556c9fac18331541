"""Guaranteed order of a put/signal program: match waits with signals, and find deadlocks.

Two orders matter. Whether a program can deadlock is asked of the *strongest*: hosts issue calls one after the other,
and streams may share a hardware queue, so that every call may wait for all that its rank issued before. Whether one
access comes before another is asked of the *weakest*: streams, communicators and signals, and nothing else.

In a captured graph signals are flags that hold one: a put, or signal, waits until its peer has executed the wait for
the one before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.program.dialects.put_signal.program import PutSignalAct, PutSignalProgram
from coppice.program.order import circle_from, levels, waits_in_words
from coppice.rows import begins_run, grouped, nth_in_group, sorted_rows
from coppice.schedule.verification.report import Findings

_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CallOrder:
    """Order of a program with matching counts and without deadlock."""

    program: PutSignalProgram  # The program
    level: _Ints  # Longest way to each call in the strongest order (int64)
    # For each operation, the wait call (int64) at its peer by which a put or signal is known to have arrived;
    # -1 for others
    delivered: _Ints
    sent_by: _Ints  # Transfer calls that wait calls wait for, in pairs with the next (int64)
    awaited_by: _Ints  # The wait calls (int64)


def call_order(program: PutSignalProgram, findings: Findings) -> CallOrder | None:
    """Match waits with signals, and find an order of execution.

    Returns:
        The order, None where there is none.
    """
    sends = np.flatnonzero(program.act <= PutSignalAct.SIGNAL)
    waits = np.flatnonzero(program.act == PutSignalAct.WAIT)
    counter = _counters(program, sends, waits)
    sent, wanted = counter[: len(sends)], counter[len(sends) :]
    number = int(counter.max(initial=-1)) + 1
    issued = np.bincount(sent, minlength=number)
    awaited = np.bincount(wanted, weights=program.count[waits], minlength=number).astype(np.int64)
    if (issued != awaited).any():
        _count_failures(program, sends, waits, counter, issued, awaited, findings)
        return None
    by_counter, first = grouped(sent, number)
    total = _running(wanted, program.count[waits])
    last = sends[by_counter[first[wanted] + total - 1]]  # the signal by which each wait is over
    call = program.call_of
    edges = np.stack([call[last], call[waits]])
    every = np.arange(program.num_calls)
    following = every[1:][program.call_rank[1:] == program.call_rank[:-1]]
    issue = np.stack([following - 1, following])
    level = levels(program.num_calls, *np.concatenate([issue, edges], axis=1))
    if (level < 0).any():
        findings.add(f"it deadlocks: {_circle(program, level, edges)}")
        return None
    return CallOrder(
        program=program,
        level=level,
        delivered=_delivered(program, sends, waits, last),
        sent_by=edges[0],
        awaited_by=edges[1],
    )


def is_graph_safe(program: PutSignalProgram) -> bool:
    """Whether a verified program is also free of deadlock when captured as a graph.

    There every counter holds one signal at most: the next one waits for the wait.
    """
    sends = np.flatnonzero(program.act <= PutSignalAct.SIGNAL)
    waits = np.flatnonzero(program.act == PutSignalAct.WAIT)
    counter = _counters(program, sends, waits)
    number = int(counter.max(initial=-1)) + 1
    by_counter, _ = grouped(counter[: len(sends)], number)
    by_wait, _ = grouped(counter[len(sends) :], number)
    wait_of = np.repeat(
        waits[by_wait], program.count[waits[by_wait]]
    )  # of the n-th signal of each counter, in order
    signal = sends[by_counter]
    calls, call = program.num_calls, program.call_of
    node = 2 * calls + np.arange(len(sends))
    node_of = np.zeros(program.num_operations, dtype=np.int64)
    node_of[sends] = node
    every = np.arange(calls)
    following = every[1:][program.call_rank[1:] == program.call_rank[:-1]]
    same = np.flatnonzero(counter[: len(sends)][by_counter][1:] == counter[: len(sends)][by_counter][:-1])
    edges = [
        np.stack([every, calls + every]),
        np.stack([calls + following - 1, following]),
        np.stack([call[sends], node]),
        np.stack([node, calls + call[sends]]),
        np.stack([node_of[signal], calls + call[wait_of]]),
        np.stack([calls + call[wait_of[same]], node_of[signal[same + 1]]]),
    ]
    return bool((levels(2 * calls + len(sends), *np.concatenate(edges, axis=1)) >= 0).all())


def _counters(program: PutSignalProgram, sends: _Ints, waits: _Ints) -> _Ints:
    """A number for the counter of each signal, and of each wait: (communicator, source, peer, context, signal)."""
    rows = np.concatenate([sends, waits])
    rank, peer = program.rank_of[rows], program.peer[rows]
    is_send = np.arange(len(rows)) < len(sends)
    columns = (
        program.communicator[program.call_of[rows]],
        np.where(is_send, rank, peer),
        np.where(is_send, peer, rank),
        program.context[rows],
        program.signal[rows],
    )
    order = sorted_rows(*columns)
    found = np.empty(len(rows), dtype=np.int64)
    found[order] = np.cumsum(begins_run(*(column[order] for column in columns))) - 1
    return found


def _running(group: _Ints, count: _Ints) -> _Ints:
    """Sum of the counts of each row and of those before it in its group."""
    order = np.argsort(group, kind="stable")
    sums = np.cumsum(count[order])
    heads = np.flatnonzero(begins_run(group[order])) if len(order) else order
    base = np.concatenate([[0], sums])[heads]
    found = np.empty(len(group), dtype=np.int64)
    found[order] = sums - np.repeat(base, np.diff(np.append(heads, len(order))))
    return found


def _count_failures(
    program: PutSignalProgram, sends: _Ints, waits: _Ints, counter: _Ints, issued: _Ints, awaited: _Ints,
    findings: Findings,
) -> None:  # fmt: skip
    wrong = np.flatnonzero(issued != awaited)
    rows = np.concatenate([sends, waits])
    sentences = []
    for number in wrong[:6].tolist():
        at = int(np.flatnonzero(counter == number)[0])
        op = int(rows[at])
        rank, peer = int(program.rank_of[op]), int(program.peer[op])
        source, target = (rank, peer) if at < len(sends) else (peer, rank)
        sentences.append(
            f"rank {source} signals rank {target} {issued[number]} times with index {program.signal[op]} of context "
            f"{program.context[op]} on communicator {program.communicator[program.call_of[op]]}, and rank {target} "
            f"waits for {awaited[number]}: expected the same number."
        )
    findings.add_examples(sentences, len(wrong), "counters")


def _circle(program: PutSignalProgram, level: _Ints, edges: NDArray[np.int64]) -> str:
    """The circle of waiting in words."""
    stuck = level < 0
    needs: dict[int, int] = {}
    for source, target in edges.T.tolist():
        if stuck[source] and stuck[target]:
            needs.setdefault(target, source)

    def waits_for(call: int) -> int | None:
        if call in needs:
            return needs[call]
        before = call - 1
        first = call == int(program.rank_start[program.call_rank[call]])
        return None if first or not stuck[before] else before

    circle = circle_from(int(np.flatnonzero(stuck)[0]), waits_for)
    words = [program.place(int(program.call_start[call])) for call in circle]
    return waits_in_words(f"{words[0]} waits for {words[1]}", [f"waits for {each}" for each in words[2:]])


def _delivered(program: PutSignalProgram, sends: _Ints, waits: _Ints, last: _Ints) -> _Ints:
    """The first wait at the peer that is over only when each put or signal has arrived."""
    call = program.call_of
    found = np.full(program.num_operations, -1, dtype=np.int64)
    if not len(sends):
        return found
    # A chain is what one rank sends another in one context of one communicator; its operations arrive in order.
    span = max(program.num_ranks, int(program.context.max()) + 1, program.num_communicators) + 1
    source = np.concatenate([program.rank_of[sends], program.peer[waits]])
    target = np.concatenate([program.peer[sends], program.rank_of[waits]])
    rows = np.concatenate([sends, waits])
    key = ((program.communicator[call[rows]] * span + source) * span + target) * span + program.context[rows]
    chain = np.unique(key, return_inverse=True)[1]
    of_send, of_wait = chain[: len(sends)], chain[len(sends) :]
    nth = np.zeros(program.num_operations, dtype=np.int64)
    nth[sends] = nth_in_group(of_send)
    wide = program.num_operations + 1
    order = np.argsort(of_wait, kind="stable")  # in the order in which the rank issues them
    reach = np.maximum.accumulate(of_wait[order] * wide + nth[last[order]])
    at = np.searchsorted(reach, of_send * wide + nth[sends])
    at = np.minimum(at, len(order) - 1)
    covered = (of_wait[order][at] == of_send) & (reach[at] >= of_send * wide + nth[sends])
    found[sends] = np.where(covered, call[waits[order[at]]], -1)
    return found
