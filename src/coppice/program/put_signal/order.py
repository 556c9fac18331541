"""What is promised about the order of a put/signal program: which wait ends by which signal, deadlock, and knowledge.

Two orders matter. Whether a program can stand still is asked of the *strongest*: hosts issue calls one after the other,
and streams may share a hardware queue, so that every call may wait for all that its rank issued before. Whether one
access comes before another is asked of the *weakest*: streams, communicators and signals, and nothing else.

In a captured graph signals are flags that hold one: a put, or signal, waits until its peer has executed the wait for
the one before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.program.deadlock import circle_from, waits_in_words
from coppice.program.put_signal.program import PutSignalAct, PutSignalCall, PutSignalProgram
from coppice.rows import begins_run, distinct, grouped, nth_in_group, rows_of_groups, sorted_rows
from coppice.schedule.verification.report import Findings

_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CallOrder:
    """Order of a program whose counts are right and that cannot stand still."""

    program: PutSignalProgram  # The program
    level: _Ints  # Longest way to each call in the strongest order (int64)
    # For each operation, the wait call (int64) at its peer by which a put or signal is known to have arrived;
    # -1 for others
    delivered: _Ints
    sent_by: _Ints  # Transfer calls that wait calls wait for, in pairs with the next (int64)
    awaited_by: _Ints  # The wait calls (int64)

    def known_before(self, earlier: _Ints, later: _Ints) -> NDArray[np.bool_]:
        """Whether the end of a call always comes before the begin of another; -1 is the begin of a rank's program.

        Args:
            earlier: Calls; ``-1 - r`` is where rank r has begun.
        """
        return _CallClocks(self).known(earlier, later)


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
    level = _levels(program.num_calls, np.concatenate([issue, edges], axis=1))
    if (level < 0).any():
        findings.add(f"it stands still: {_circle(program, level, edges)}")
        return None
    return CallOrder(
        program=program,
        level=level,
        delivered=_delivered(program, sends, waits, last),
        sent_by=edges[0],
        awaited_by=edges[1],
    )


def is_graph_safe(program: PutSignalProgram) -> bool:
    """Whether it cannot stand still where it is captured as a graph either, for a program that verifies.

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
    return bool((_levels(2 * calls + len(sends), np.concatenate(edges, axis=1)) >= 0).all())


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


def _levels(nodes: int, edges: NDArray[np.int64]) -> _Ints:
    """Longest way to each node along edges; -1 for nodes in circles and behind them."""
    by_source, start = grouped(edges[0], nodes)
    target = edges[1][by_source]
    left = np.bincount(edges[1], minlength=nodes)
    level = np.full(nodes, -1, dtype=np.int64)
    ready = np.flatnonzero(left == 0)
    depth = 0
    while len(ready):
        level[ready] = depth
        depth += 1
        reached = target[rows_of_groups(start, ready)[0]]
        if len(reached) * 8 < nodes:
            found, times = distinct(reached)
            left[found] -= times
            ready = found[left[found] == 0]
        else:
            times = np.bincount(reached, minlength=nodes)
            left -= times
            found = np.flatnonzero(times)
            ready = found[left[found] == 0]
    return level


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


class _CallClocks:
    """What every call knows when it begins: of each (rank, stream) how many calls are over.

    Calls are counted from 1; 0 is known once the rank is known to have begun.
    """

    def __init__(self, order: CallOrder) -> None:
        program = order.program
        self.order = order
        chains = program.num_streams
        self.chain = program.call_rank * chains + program.stream
        self.place = nth_in_group(self.chain) + 1
        every = np.arange(program.num_calls)
        self.before_on_stream = _previous(self.chain, every)
        remote = program.call_kind != PutSignalCall.LOCAL
        lines = program.call_rank * max(program.num_communicators, 1) + program.communicator
        self.before_on_communicator = np.full(program.num_calls, -1, dtype=np.int64)
        self.before_on_communicator[remote] = _previous(lines[remote], every[remote])
        self.width = program.num_ranks * chains

    def known(self, earlier: _Ints, later: _Ints) -> NDArray[np.bool_]:
        order, program = self.order, self.order.program
        streams = program.num_streams
        chain = np.where(earlier >= 0, self.chain[np.maximum(earlier, 0)], (-1 - earlier) * streams)
        place = np.where(earlier >= 0, self.place[np.maximum(earlier, 0)], 0)
        found = np.zeros(len(earlier), dtype=np.bool_)
        by_level, level_start = grouped(order.level, int(order.level.max(initial=-1)) + 1)
        asks, ask_start = grouped(order.level[later], len(level_start) - 1)
        signals, signal_start = grouped(order.awaited_by, program.num_calls)
        slot = np.zeros(program.num_calls, dtype=np.int64)
        last_use = np.arange(len(level_start) - 1)
        for source, target in (
            (self.before_on_stream, np.arange(program.num_calls)),
            (self.before_on_communicator, np.arange(program.num_calls)),
            (order.sent_by, order.awaited_by),
        ):
            has = source >= 0
            np.maximum.at(last_use, order.level[source[has]], order.level[target[has]])
        kept: dict[
            int, tuple[NDArray[np.int32], NDArray[np.int32]]
        ] = {}  # by level: knowledge at begin, at end
        drops, drop_start = grouped(last_use, len(level_start))
        rank_chains = np.arange(streams)
        for level in range(len(level_start) - 1):
            calls = by_level[level_start[level] : level_start[level + 1]]
            slot[calls] = np.arange(len(calls))
            begin = np.full((len(calls), self.width), -1, dtype=np.int32)
            own = program.call_rank[calls][:, None] * streams + rank_chains
            begin[np.arange(len(calls))[:, None], own] = 0
            for before in (self.before_on_stream[calls], self.before_on_communicator[calls]):
                self._join(begin, np.flatnonzero(before >= 0), before[before >= 0], kept, slot, 1)
            end = begin.copy()
            rows, starts = rows_of_groups(signal_start, calls)
            into = np.repeat(np.arange(len(calls)), np.diff(starts))
            self._join(end, into, order.sent_by[signals[rows]], kept, slot, 0)
            end[np.arange(len(calls)), self.chain[calls]] = self.place[calls]
            kept[level] = (begin, end)
            mine = asks[ask_start[level] : ask_start[level + 1]]
            found[mine] = begin[slot[later[mine]], chain[mine]] >= place[mine]
            for old in drops[drop_start[level] : drop_start[level + 1]].tolist():
                kept.pop(old, None)
        return found

    def _join(
        self, into: NDArray[np.int32], rows: _Ints, calls: _Ints,
        kept: dict[int, tuple[NDArray[np.int32], NDArray[np.int32]]], slot: _Ints, which: int,
    ) -> None:  # fmt: skip
        """Add what some calls know to rows, which ascend."""
        if not len(rows):
            return
        levels = self.order.level[calls]
        for level in np.unique(levels).tolist():
            chosen = levels == level
            mine = rows[chosen]
            knows = kept[level][which][slot[calls[chosen]]]
            heads = np.flatnonzero(begins_run(mine))
            best = np.maximum.reduceat(knows, heads, axis=0)
            into[mine[heads]] = np.maximum(into[mine[heads]], best)


def _previous(group: _Ints, calls: _Ints) -> _Ints:
    """The call before each one in its group, -1 where there is none."""
    order = np.argsort(group, kind="stable")
    before = np.full(len(group), -1, dtype=np.int64)
    before[order[1:]] = np.where(group[order][1:] == group[order][:-1], calls[order[:-1]], -1)
    return before
