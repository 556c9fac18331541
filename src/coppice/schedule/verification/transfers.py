"""Verify a schedule: slots, order, deadlock freedom, routes, symbolic execution and exact loads.

What passes is right. A few schedules that would come out right are refused all the same, since nobody means them:
a transfer that sends what its sender does not have, that sends to itself, that adds to nothing or adds something twice,
or two that write one buffer in no certain order, even where nobody needs the result; and rows whose steps decrease.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise

import numpy as np

from coppice.collectives import Collective
from coppice.errors import UnreachableError
from coppice.rows import distinct
from coppice.schedule.columns import schedule_defects
from coppice.schedule.loads import LinkLoads, grouped_sums, schedule_loads
from coppice.schedule.schedule import Schedule, hops_of, routed
from coppice.schedule.verification.execution import Execution
from coppice.schedule.verification.paths import check_ends, check_paths, overload
from coppice.schedule.verification.report import Findings, Report

_SHOWN = 8


def num_connections(schedule: Schedule) -> int:
    """Number of different (sender, receiver, path)."""
    pair = schedule.src.astype(np.int64) * schedule.topology.num_ranks + schedule.dst
    return len(distinct(pair * len(schedule.path_start) + schedule.path + 1)[0])


def find_deadlock(schedule: Schedule) -> str | None:
    """Find a cycle of waits with one slot per connection, as a sentence; None if there is no deadlock.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.collectives import Collective
        >>> from coppice.topology.presets import preset
        >>> from dataclasses import replace
        >>> from coppice.schedule.schedule import Schedule
        >>> column = lambda *values: np.array(values, dtype=np.int64)
        >>> chain = Schedule(topology=preset("ring", gpus=3), collective=Collective.BROADCAST, root=0,
        ...                  slot_weight=column(1), chunk_slot=column(0), chunk_share=column(1),
        ...                  src=column(0, 1), dst=column(1, 2), chunk=column(0, 0), op=column(0, 0),
        ...                  path=column(-1, -1), step=column(-1, -1), after_start=column(0, 0, 0), after=column(),
        ...                  path_start=column(0), path_nodes=column())
        >>> find_deadlock(chain) is None
        True
        >>> print(find_deadlock(replace(chain, after_start=column(0, 1, 1), after=column(1))))
        transfers wait for each other in a circle: sending transfer 0 waits for receiving transfer 1 (its `after`), \
that for sending transfer 1 (it must be sent first), that for receiving transfer 0 (it sends what that brings), \
that for sending transfer 0 (it must be sent first).
    """
    if _row_order_suffices(schedule):
        return None
    return _BufferWaits(schedule).cycle()


def _row_order_suffices(schedule: Schedule) -> bool:
    """The premises of the theorem."""
    step = schedule.step
    waiting = np.repeat(np.arange(schedule.num_transfers), np.diff(schedule.after_start))
    if not len(step) or int(step.max()) < 0:
        return bool((schedule.after < waiting).all())
    return bool(
        int(step.min()) >= 0 and (np.diff(step) >= 0).all() and (step[schedule.after] < step[waiting]).all()
    )


class _BufferWaits:
    """The graph of waits: which events each event waits for, and why.

    Events 2 m and 2 m + 1 are the sending and the receiving of message m, later ones the ends of steps at ranks.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.src, self.dst = schedule.src.tolist(), schedule.dst.tolist()
        self.chunk, self.step = schedule.chunk.tolist(), schedule.step.tolist()
        self.path = schedule.path.tolist()
        self.message: list[int] = []  # message of each row
        self.first_row: list[int] = []  # first row of each message
        self._group()
        self.before: list[dict[int, str]] = [{} for _ in range(2 * len(self.first_row))]
        self.step_ends: list[tuple[int, int]] = []  # (rank, step) of each further event
        self._connections()
        self._data()
        self._after()
        self._steps()

    def cycle(self) -> str | None:
        """A cycle in words, or None."""
        waiting = [len(reasons) for reasons in self.before]
        following: list[list[int]] = [[] for _ in self.before]
        for event, reasons in enumerate(self.before):
            for earlier in reasons:
                following[earlier].append(event)
        ready = [event for event, count in enumerate(waiting) if not count]
        while ready:
            for event in following[ready.pop()]:
                waiting[event] -= 1
                if not waiting[event]:
                    ready.append(event)
        stuck = [event for event, count in enumerate(waiting) if count]
        if not stuck:
            return None
        place: dict[int, int] = {}
        walk = [stuck[0]]
        while walk[-1] not in place:
            place[walk[-1]] = len(walk) - 1
            walk.append(next(event for event in self.before[walk[-1]] if waiting[event]))
        return self._told(walk[place[walk[-1]] :])

    def _told(self, walk: list[int]) -> str:
        """A closed walk, each event waiting for the next."""
        start = min(range(len(walk) - 1), key=lambda place: walk[place])
        events = [*walk[start:-1], *walk[: start + 1]]
        waits = [
            f"{self._name(later)} ({self.before[earlier][later]})" for earlier, later in pairwise(events)
        ]
        if len(waits) > _SHOWN:
            waits = [*waits[: _SHOWN - 1], f".. ({len(waits) - _SHOWN} more) ..", waits[-1]]
        told = ", that for ".join(waits)
        return f"transfers wait for each other in a circle: {self._name(events[0])} waits for {told}."

    def _name(self, event: int) -> str:
        messages = len(self.first_row)
        if event >= 2 * messages:
            rank, step = self.step_ends[event - 2 * messages]
            return f"the end of step {step} at rank {rank}"
        return f"{'receiving' if event % 2 else 'sending'} transfer {self.first_row[event // 2]}"

    def _wait(self, event: int, earlier: int, why: str) -> None:
        self.before[event].setdefault(earlier, why)

    def _group(self) -> None:
        """Rows of one step and connection are one message."""
        known: dict[tuple[int, int, int, int], int] = {}
        for row, key in enumerate(zip(self.src, self.dst, self.path, self.step, strict=True)):
            if key[3] < 0 or key not in known:
                known[key] = len(self.first_row)
                self.first_row.append(row)
            self.message.append(known[key])

    def _connections(self) -> None:
        """One slot; both ends in row order."""
        last: dict[tuple[int, int, int], int] = {}
        for message, row in enumerate(self.first_row):
            self._wait(2 * message + 1, 2 * message, "it must be sent first")
            key = (self.src[row], self.dst[row], self.path[row])
            if key in last:
                self._wait(2 * message, 2 * last[key], "the same connection, in row order")
                self._wait(2 * message, 2 * last[key] + 1, "the only slot of their connection")
                self._wait(2 * message + 1, 2 * last[key] + 1, "the same connection, in row order")
            last[key] = message

    def _data(self) -> None:
        """Buffers are read after they were written, and written again after they were read."""
        readers: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        writers: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for row, (chunk, src) in enumerate(zip(self.chunk, self.src, strict=True)):
            readers[chunk, src].append(row)
        for row, (chunk, src, dst, step) in enumerate(
            zip(self.chunk, self.src, self.dst, self.step, strict=True)
        ):
            sent, received = 2 * self.message[row], 2 * self.message[row] + 1
            for earlier in writers[chunk, src]:
                if step < 0 or self.step[earlier] != step:
                    self._wait(sent, 2 * self.message[earlier] + 1, "it sends what that brings")
            for reader in readers[chunk, dst]:
                if reader != row and (reader < row or (step >= 0 and self.step[reader] == step)):
                    self._wait(received, 2 * self.message[reader], "it overwrites what that sends")
            for earlier in writers[chunk, dst]:
                if step < 0 or self.step[earlier] != step:
                    self._wait(received, 2 * self.message[earlier] + 1, "the same buffer, in row order")
            writers[chunk, dst].append(row)

    def _after(self) -> None:
        """The column ``after``."""
        start, after = self.schedule.after_start.tolist(), self.schedule.after.tolist()
        for row, message in enumerate(self.message):
            for earlier in after[start[row] : start[row + 1]]:
                self._wait(2 * message, 2 * self.message[earlier] + 1, "its `after`")

    def _steps(self) -> None:
        """A rank goes from step to step."""
        events: defaultdict[int, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for message, row in enumerate(self.first_row):
            if self.step[row] >= 0:
                events[self.src[row]][self.step[row]].append(2 * message)
                events[self.dst[row]][self.step[row]].append(2 * message + 1)
        for rank, by_step in sorted(events.items()):
            end = -1
            for step in sorted(by_step):
                for event in by_step[step]:
                    if end >= 0:
                        self._wait(event, end, "a later step of that rank")
                reasons = dict.fromkeys(by_step[step], "a part of that step")
                if end >= 0:
                    reasons[end] = "a later step of that rank"
                end = len(self.before)
                self.before.append(reasons)
                self.step_ends.append((rank, step))


def verify_schedule(
    schedule: Schedule,
    *,
    # Relative shard sizes of the ranks (all-gather and reduce-scatter), where they are not equal
    weights: tuple[int, ...] | None = None,
    # Relative block sizes of an all-to-all, where they are not equal
    demands: tuple[tuple[int, ...], ...] | None = None,
    # Time per shard that the planner claims; a busier link is then a failure
    claimed: Fraction | None = None,
    # Paths may lead through other ranks, which then pass data on without being told by a transfer
    relay_gpus: bool = False,
) -> Report:
    """Verify that a schedule implements its collective, and count its cost.

    Returns:
        The report; failures are collected, not raised. Its time is that of the busiest link over the whole
        schedule; steps are an order here, not barriers.

    Examples:
        >>> from coppice.topology.model import Link, Node, Topology
        >>> pair = Topology.of("pair", [Node(id="a"), Node(id="b")],
        ...                    [Link(src="a", dst="b", gb_per_s=Fraction(25))])
        >>> column = lambda *values: np.array(values, dtype=np.int64)
        >>> swap = Schedule(topology=pair, collective=Collective.ALL_GATHER, root=-1,
        ...                 slot_weight=column(1, 1), chunk_slot=column(0, 1), chunk_share=column(1, 1),
        ...                 src=column(0, 1), dst=column(1, 0), chunk=column(0, 1),
        ...                 op=column(0, 0), path=column(0, 1), step=column(0, 0),
        ...                 after_start=column(0, 0, 0), after=column(), path_start=column(0, 2, 4),
        ...                 path_nodes=column(0, 1, 1, 0))
        >>> report = verify_schedule(swap)
        >>> report.ok, report.inv_rate
        (True, Fraction(1, 25))
    """
    findings = Findings()
    for defect in schedule_defects(schedule):
        findings.add(f"the schedule is malformed: {defect}")
    ranks = schedule.topology.num_ranks
    if weights is not None and len(weights) != ranks:
        findings.add(f"expected one weight for each of the {ranks} ranks, found {len(weights)}.")
    if demands is not None and [len(row) for row in demands] != [ranks] * ranks:
        findings.add(f"expected a matrix of {ranks} x {ranks} demands, found {len(demands)} rows.")
    if findings.failures:
        return Report(ok=False, failures=tuple(findings.failures), claimed=claimed)
    _check_order(schedule, findings)
    circle = find_deadlock(schedule)
    if circle is not None:
        findings.add(circle)
    _check_slots(schedule, weights, demands, findings)
    execution = Execution(schedule)
    execution.run()
    execution.report(findings)
    default_routes = int((schedule.path < 0).sum())
    counted, relayed = False, 0
    aimless = (schedule.src == schedule.dst) & (schedule.path < 0)
    if not aimless.any():  # they have failed already, and have no route
        try:
            schedule = routed(schedule, relay_gpus=relay_gpus)
            counted, relayed = _check_routes(schedule, findings, relay_gpus=relay_gpus)
        except UnreachableError as error:
            findings.add(f"the default route of a transfer does not exist: {error}")
    topology = schedule.topology
    checked = {
        "transfers": schedule.num_transfers,
        "chunks": schedule.num_chunks,
        "buffers": execution.buffers,
        "paths": len(schedule.path_start) - 1,
        "default_routes": default_routes,
        "links": topology.num_links,
        "connections": num_connections(schedule),
    }
    if relay_gpus:
        checked["relayed_paths"] = relayed
    reached, worst, busiest = None, -1, None
    if counted:
        reached, worst, busiest = _figures(schedule_loads(schedule, weights, demands), claimed)
    if reached is not None and claimed is not None and reached > claimed:
        findings.add(overload(topology, worst, reached, claimed))
    ok = not findings.failures
    return Report(
        ok=ok,
        failures=tuple(findings.failures),
        inv_rate=reached,
        claimed=claimed,
        worst_link=worst,
        max_link_load=busiest,
        redundant=execution.redundant_share if counted else Fraction(0),
        ordered=ok and schedule.ordered,
        deadlock_free=circle is None,
        checked=checked,
    )


def _figures(loads: LinkLoads, claimed: Fraction | None) -> tuple[Fraction, int, Fraction]:
    """Time per shard, busiest link, and the share of its capacity that it uses in the claimed time."""
    if not loads.shard or loads.worst_link < 0:
        return Fraction(0), -1, Fraction(0)
    reached, worst = loads.inv_rate, loads.worst_link
    return reached, worst, loads.utilisation(worst, reached if claimed is None else claimed)


def _check_order(schedule: Schedule, findings: Findings) -> None:
    """Dependencies point backwards, and steps do not decrease: then no cycle of waiting is possible."""
    waiting = np.repeat(np.arange(schedule.num_transfers), np.diff(schedule.after_start))
    forward = np.flatnonzero(schedule.after >= waiting)
    findings.add_examples(
        [
            f"transfer {waiting[place]} waits for transfer {schedule.after[place]}, which comes no earlier."
            for place in forward[:5].tolist()
        ],
        len(forward),
        "dependencies",
    )
    step = schedule.step
    back = np.flatnonzero(np.diff(step) < 0)
    findings.add_examples(
        [
            f"transfer {row + 1} has step {step[row + 1]} after a row of step {step[row]}: "
            f"steps must not decrease."
            for row in back[:5].tolist()
        ],
        len(back),
        "steps",
    )
    if len(step) and int(step.min()) < 0 <= int(step.max()):
        findings.add(
            "some transfers have a step and others have none: give steps to all of them, or to none."
        )


def _check_routes(schedule: Schedule, findings: Findings, *, relay_gpus: bool) -> tuple[bool, int]:
    """Paths run along links, end where their transfers do: whether loads can be counted, and paths through ranks."""
    topology = schedule.topology
    hops = hops_of(topology, schedule.path_start, schedule.path_nodes)
    relayed = check_paths(schedule, hops, findings, relay_gpus=relay_gpus)
    src, dst = topology.rank_nodes[schedule.src], topology.rank_nodes[schedule.dst]
    check_ends(schedule, schedule.path, src, dst, findings, row_name="transfer")
    return not (hops.link < 0).any(), relayed


def _check_slots(
    schedule: Schedule,
    weights: tuple[int, ...] | None,
    demands: tuple[tuple[int, ...], ...] | None,
    findings: Findings,
) -> None:
    """Slots have the sizes that the problem gives them, and every slot that must move has chunks."""
    ranks = schedule.topology.num_ranks
    expected = _expected_weights(schedule, weights, demands)
    found = schedule.slot_weight.tolist()
    barrier = schedule.collective is Collective.BARRIER
    if barrier and found[0]:
        findings.add(f"slot 0 has weight {found[0]}, expected 0: a barrier moves no data.")
    elif expected is not None:
        # Blocks that stay where they are count in the size of an all-to-all.
        sized = schedule.collective is Collective.ALL_TO_ALL
        counted = [slot for slot in range(len(found)) if sized or not _needless(schedule, slot)]
        want, have = sum(expected[slot] for slot in counted), sum(found[slot] for slot in counted)
        if want and not have:
            findings.add("every slot has weight 0, so no rank receives anything.")
        wrong = [slot for slot in counted if found[slot] * want != expected[slot] * have]
        findings.add_examples(
            [
                f"slot {slot} has weight {found[slot]} of {have}, expected the share "
                f"{Fraction(expected[slot], want)}."
                for slot in wrong[:5]
            ],
            len(wrong),
            "slots",
        )
    elif ranks > 1 and not barrier and not any(found):
        findings.add("every slot has weight 0, so no rank receives anything.")
    shares = grouped_sums(schedule.chunk_slot, schedule.chunk_share, len(found))
    bare = [
        slot
        for slot, share in enumerate(shares)
        if (found[slot] or barrier) and not share and not _needless(schedule, slot)
    ]
    findings.add_examples(
        [f"slot {slot} has weight {found[slot]} but no chunks." for slot in bare[:5]], len(bare), "slots"
    )


def _needless(schedule: Schedule, slot: int) -> bool:
    """Nothing has to move for this slot: its data are where they belong from the start."""
    ranks = schedule.topology.num_ranks
    if ranks == 1:
        return True
    match schedule.collective:
        case Collective.ALL_TO_ALL:
            return slot // ranks == slot % ranks
        case Collective.GATHER | Collective.SCATTER:
            return slot == schedule.root
        case _:
            return False


def _expected_weights(
    schedule: Schedule, weights: tuple[int, ...] | None, demands: tuple[tuple[int, ...], ...] | None
) -> list[int] | None:
    """Relative slot weights, or None where the planner may choose them."""
    ranks = schedule.topology.num_ranks
    match schedule.collective:
        case Collective.ALL_GATHER | Collective.REDUCE_SCATTER:
            return list(weights or (1,) * ranks)
        case Collective.ALL_TO_ALL:
            return [size for row in demands for size in row] if demands else [1] * (ranks * ranks)
        case Collective.GATHER | Collective.SCATTER:
            return [1] * ranks
        case _:
            return None
