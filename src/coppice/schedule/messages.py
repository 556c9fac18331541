"""Messages of a schedule or forest at a given size, with their routes and dependencies.

Rows of one step between the same two ranks over the same path are one message; a row without a step is a message of
its own. What waits for what is written as *gates*: a message belongs to one gate of its sender, passed when it has
arrived, and to one gate of its receiver, passed when it is done; a gate opens when all its members have passed, and
where gates are chained, the members of one wait for the gate before. With steps a gate is what a rank does in one
step, or, where steps do not bind ranks, what happens to one chunk there in one step. Without, it is a run of like
things that happen to one chunk at one rank: sends, additions, or a single overwriting. So the table is linear in the
number of rows however many rows depend on how many.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import InputError
from coppice.rows import begins_run, distinct, offsets
from coppice.schedule.columns import require_well_formed
from coppice.schedule.forest import Forest, expanded
from coppice.schedule.loads import exact_total
from coppice.schedule.lower import chunk_bounds, lower
from coppice.schedule.schedule import Op, Schedule, hops_of, in_pieces, routed
from coppice.topology.model import Topology

_DENSE = 8
"""Tables of numbers are used instead of sorting where they have at most so many entries per row."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Routes(Brief):
    """Distinct node sequences, and the links along them."""

    # Nodes of route r are `nodes[node_start[r] : node_start[r + 1]]`, both ends included (int64)
    node_start: NDArray[np.int64]
    nodes: NDArray[np.int32]  # Node sequences of all routes (int32)
    link_start: NDArray[np.int64]  # Links of route r are `links[link_start[r] : link_start[r + 1]]` (int64)
    links: NDArray[np.int32]  # Links of all routes (int32)

    @cached_property
    def src(self) -> NDArray[np.int32]:
        """First node of each route."""
        return self.nodes[self.node_start[:-1]]

    @cached_property
    def dst(self) -> NDArray[np.int32]:
        """Last node of each route."""
        return self.nodes[self.node_start[1:] - 1]

    @cached_property
    def num_links(self) -> NDArray[np.int64]:
        """Number of links of each route."""
        return np.diff(self.link_start)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Alike(Brief):
    """Ranks and links that stand for all that are like them: messages of one root are then those of every root.

    Where a schedule looks the same from every rank, whatever happens to one link happens to all like it at the same
    time. So it is enough to simulate the messages of one root of each orbit, and to let them take the links and workers
    that stand for theirs.
    """

    rank: NDArray[np.int32]  # Rank that stands for each rank (int32)
    link: NDArray[np.int32]  # Link that stands for each link (int32)

    def links(self, links: NDArray[np.int32]) -> NDArray[np.int32]:
        """What stands for some links; those above the last one are the channels of ranks, in their order."""
        count = len(self.link)
        return np.concatenate([self.link, count + self.rank])[links].astype(np.int32)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Messages(Brief):
    """Messages in tie-breaking order, as columns."""

    topology: Topology  # Where they travel
    routes: Routes  # Their routes
    route: NDArray[np.int32]  # Route of each message (int32)
    num_bytes: NDArray[np.int64]  # What each carries (int64)
    added_bytes: NDArray[np.int64]  # Bytes of it that the receiver adds to others (int64)
    # First row of the schedule that travels in it, after lowering and cutting into pieces (int32)
    first_row: NDArray[np.int32]
    num_rows: NDArray[np.int32]  # Number of rows that travel in it (int32)
    send_gate: NDArray[np.int32]  # Gate that it passes when it has arrived, -1 for none (int32)
    receive_gate: NDArray[np.int32]  # Gate that it passes when it is done, -1 for none (int32)
    chained: NDArray[np.uint8]  # Members of gate g wait for gate g - 1 (uint8, per gate)
    # Message m waits for `after[after_start[m] : after_start[m + 1]]` to be done (int64); empty where no
    # message does
    after_start: NDArray[np.int64]
    after: NDArray[np.int32]  # Message numbers (int32)
    # Piece of its job that each belongs to (int32): where messages wait for a link, a turn of a job goes to
    # its earliest piece. Empty: turns are never passed on.
    wave: NDArray[np.int32]
    job: NDArray[np.int32]  # Job of each message, where waves count (int32); empty: they are all of one
    # Time before which each message does not start (float64); empty: all may start at 0
    due_us: NDArray[np.float64]
    # Time that a message takes before its first link, per route (float64); None: what the model says
    overhead_us: NDArray[np.float64] | None = None
    sent_share: Fraction | None = None  # Part of M that ranks send to others, in an all-to-all
    alike: Alike | None = None  # These stand for messages of all ranks; None: they are all there are

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self.route)

    @property
    def src(self) -> NDArray[np.int32]:
        """Node that sends each message."""
        return self.routes.src[self.route]

    @property
    def dst(self) -> NDArray[np.int32]:
        """Node that receives each message."""
        return self.routes.dst[self.route]


def messages_of(
    body: Schedule | Forest, size_bytes: int, *, pieces: int = 1, steps_bind: bool = True, packed: bool = True
) -> Messages:
    """Messages of a schedule, or of a forest as it is (with switch multicast and reduction), for ``size_bytes``.

    Args:
        body: What is carried out; it should have been verified.
        size_bytes: M in bytes, 0 or more.
        pieces: Every chunk is cut into so many pieces that follow each other.
        steps_bind: A rank begins a step when all that it does in the step before is done, and what goes the same
            way in a step is one message. Otherwise every row is a message, and steps order only what happens to one
            chunk at one rank: what channels of a GPU library wait for.
        packed: What goes the same way in a step is one message wherever it lies; otherwise only chunks are that follow
            each other in memory and arrive to the same end.
    """
    return messages_of_routed(
        routed_body(body), size_bytes, pieces=pieces, steps_bind=steps_bind, packed=packed
    )


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class RoutedBody(Brief):
    """What is carried out as rows with their routes, whatever its size: made once for many sizes or pieces."""

    schedule: Schedule  # A row names its path; every node sequence that is used stands in the table once
    topology: Topology  # Where the rows travel; in that of the schedule switches that pass on count as ranks
    routes: Routes  # The paths
    alike: Alike | None = None  # As that of :class:`Messages`


def routed_body(body: Schedule | Forest) -> RoutedBody:
    """The rows of a schedule or forest; it should have been verified."""
    schedule, topology = _as_schedule(body)
    require_well_formed(schedule)
    _check_steps(schedule)
    schedule = _distinct_paths(routed(schedule))
    return RoutedBody(schedule=schedule, topology=topology, routes=_routes(schedule))


def messages_of_routed(
    rows: RoutedBody, size_bytes: int, *, pieces: int, steps_bind: bool, packed: bool = True
) -> Messages:
    """As :func:`messages_of`, of rows that are routed already."""
    topology, schedule = rows.topology, in_pieces(rows.schedule, pieces)
    _, length = chunk_bounds(schedule, size_bytes)
    row_bytes = length[schedule.chunk]
    message, first_row = _grouped(schedule, steps_bind=steps_bind, packed=packed)
    count = len(first_row)
    route = schedule.path[first_row]
    at_gpu = topology.rank[schedule.topology.rank_nodes[schedule.dst]] >= 0
    added = np.where((schedule.op == Op.REDUCE) & at_gpu, row_bytes, 0)
    if count == len(message):
        num_bytes, num_rows = row_bytes, np.ones(count, dtype=np.int32)
    else:
        num_bytes, added = _summed(row_bytes, message, count), _summed(added, message, count)
        num_rows = np.bincount(message, minlength=count).astype(np.int32)
    send_gate, receive_gate, chained = _gates_of_pieces(
        rows.schedule, pieces, schedule, first_row, steps_bind=steps_bind
    )
    after_start, after = _after(schedule, message)
    return Messages(
        topology=topology,
        routes=rows.routes,
        route=route.astype(np.int32),
        num_bytes=num_bytes,
        added_bytes=added,
        first_row=first_row.astype(np.int32),
        num_rows=num_rows,
        send_gate=send_gate,
        receive_gate=receive_gate,
        chained=chained,
        after_start=after_start,
        after=after,
        wave=_waves(schedule, pieces, steps_bind=steps_bind),
        job=np.zeros(0, dtype=np.int32),
        due_us=np.zeros(0, dtype=np.float64),
        sent_share=_sent_share(schedule),
        alike=rows.alike,
    )


def _sent_share(schedule: Schedule) -> Fraction | None:
    if schedule.collective is not Collective.ALL_TO_ALL:
        return None
    whole, ranks = exact_total(schedule.slot_weight), schedule.topology.num_ranks
    return 1 - Fraction(exact_total(schedule.slot_weight[:: ranks + 1]), whole) if whole else None


def _as_schedule(body: Schedule | Forest) -> tuple[Schedule, Topology]:
    """The body as rows, and its own topology.

    A forest is lowered with every node counted as a rank, so that branches at switches are transfers as well.
    """
    if isinstance(body, Schedule):
        return body, body.topology
    topology = body.topology
    everyone = replace(topology, rank=np.arange(topology.num_nodes, dtype=np.int32))
    return lower(replace(expanded(body), topology=everyone)), topology


def _check_steps(schedule: Schedule) -> None:
    step = schedule.step
    back = np.flatnonzero(np.diff(step) < 0)
    if len(back):
        row = int(back[0])
        raise InputError(
            f"expected steps that do not decrease, found step {step[row + 1]} at transfer {row + 1} after step "
            f"{step[row]}: order the rows by step."
        )
    if len(step) and step[0] < 0 <= step[-1]:
        raise InputError(
            "expected steps at all transfers or at none, found some without: give steps to all of them."
        )


def _distinct_paths(schedule: Schedule) -> Schedule:
    """The same schedule with every node sequence that is used exactly once in the table of paths."""
    used, path = np.unique(schedule.path, return_inverse=True)
    length = np.diff(schedule.path_start)[used]
    number = np.zeros(len(used), dtype=np.int64)
    starts, nodes = [np.zeros(1, dtype=np.int64)], [np.zeros(0, dtype=np.int32)]
    count = 0
    for each in np.unique(length).tolist():
        rows = np.flatnonzero(length == each)
        table = schedule.path_nodes[schedule.path_start[used[rows]][:, None] + np.arange(each)]
        distinct, which = _distinct_rows(table, schedule.topology.num_nodes)
        number[rows] = count + which
        count += len(distinct)
        nodes.append(distinct.reshape(-1))
        starts.append(starts[-1][-1] + each * np.arange(1, len(distinct) + 1))
    return replace(
        schedule,
        path=number[path.reshape(-1)].astype(np.int32),
        path_start=np.concatenate(starts).astype(np.int64),
        path_nodes=np.concatenate(nodes).astype(np.int32),
    )


def _distinct_rows(table: NDArray[np.int32], below: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The distinct rows of entries 0 .. ``below`` - 1 in order, and which of them each row is.

    As `numpy.unique` along an axis, but what is sorted are integers: rows read as numbers to the base ``below``,
    and numbered anew where that would leave 64 bits.
    """
    key, most = np.zeros(len(table), dtype=np.int64), 1
    for column in table.T:
        if most * below >= 2**63:
            values, inverse = np.unique(key, return_inverse=True)
            key, most = inverse.reshape(-1).astype(np.int64), len(values)
        key, most = key * below + column, most * below
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return table[first], which.reshape(-1)


def _waves(schedule: Schedule, pieces: int, *, steps_bind: bool) -> NDArray[np.int32]:
    """Piece of each row, where nothing but links holds back the later pieces."""
    rows = schedule.num_transfers
    if pieces == 1 or not rows or (schedule.step[0] >= 0 and steps_bind):
        return np.zeros(0, dtype=np.int32)
    return (schedule.chunk % pieces).astype(np.int32)


def _routes(schedule: Schedule) -> Routes:
    topology = schedule.topology
    hops = hops_of(topology, schedule.path_start, schedule.path_nodes)
    missing = np.flatnonzero(hops.link < 0)
    if len(missing):
        hop = int(missing[0])
        raise InputError(
            f"expected paths over links of the topology, found none from {topology.node_ids[hops.src[hop]]} to "
            f"{topology.node_ids[hops.dst[hop]]}: verify the plan on this topology."
        )
    length = np.diff(schedule.path_start) - 1
    return Routes(
        node_start=schedule.path_start.astype(np.int64),
        nodes=schedule.path_nodes,
        link_start=offsets(length),
        links=hops.link.astype(np.int32),
    )


def _grouped(
    schedule: Schedule, *, steps_bind: bool, packed: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Message of each row, and the first row of each message; messages are in the order of their first rows."""
    rows = np.arange(schedule.num_transfers, dtype=np.int64)
    if not len(rows) or schedule.step[0] < 0 or not steps_bind:
        return rows, rows
    if not packed:
        return _of_neighbours(schedule)
    key = schedule.step * np.int64(len(schedule.path_start)) + schedule.path
    if int(key.max()) < _DENSE * len(key):
        first_row = np.empty(int(key.max()) + 1, dtype=np.int64)
        first_row[key[::-1]] = rows[::-1]  # of several rows with one key the last to be written is the first
        first_row = first_row[key]
    else:
        _, first, group = np.unique(key, return_index=True, return_inverse=True)
        first_row = first[group.reshape(-1)]
    opens = first_row == rows
    return (np.cumsum(opens) - 1)[first_row], np.flatnonzero(opens)


def _of_neighbours(schedule: Schedule) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """As :func:`_grouped`, where only chunks that follow each other are one message."""
    columns = (schedule.chunk, schedule.op, schedule.path, schedule.step)
    order = np.lexsort(columns)
    chunk, *alike = (column[order] for column in columns)
    opens = begins_run(*alike)
    opens[1:] |= chunk[1:] != chunk[:-1] + 1
    first_row = np.minimum.reduceat(order, np.flatnonzero(opens))
    message = np.empty(len(order), dtype=np.int64)
    message[order] = np.argsort(np.argsort(first_row))[np.cumsum(opens) - 1]
    return message, np.sort(first_row)


def _summed(values: NDArray[np.int64], group: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, group, values)
    return sums


def _gates_of_pieces(
    whole: Schedule, pieces: int, schedule: Schedule, first_row: NDArray[np.int64], *, steps_bind: bool
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]:
    """Gates of a schedule whose chunks were cut into pieces: without steps each piece has those of the whole."""
    if pieces == 1 or not whole.num_transfers or whole.step[0] >= 0:
        return _gates(schedule, first_row, steps_bind=steps_bind)
    send_gate, receive_gate, chained = _gates(
        whole, np.arange(whole.num_transfers, dtype=np.int64), steps_bind=steps_bind
    )
    shift = np.repeat(np.arange(pieces, dtype=np.int32) * np.int32(len(chained)), whole.num_transfers)
    return np.tile(send_gate, pieces) + shift, np.tile(receive_gate, pieces) + shift, np.tile(chained, pieces)


def _gates(
    schedule: Schedule, first_row: NDArray[np.int64], *, steps_bind: bool
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]:
    """Gates of senders and receivers, and whether each waits for the gate before it."""
    count, ranks = len(first_row), schedule.topology.num_ranks
    place = np.stack([schedule.src[first_row], schedule.dst[first_row]], axis=1).astype(np.int64)
    step = schedule.step[first_row]
    # What happens at each place: runs of the same kind share a gate, an overwriting has one of its own.
    if not count or step[0] >= 0:
        kind = np.repeat(step[:, None], 2, axis=1)
        alone = np.zeros((count, 2), dtype=np.bool_)
        if not steps_bind:
            place += schedule.chunk[first_row, None].astype(np.int64) * ranks
    else:
        place += schedule.chunk[first_row, None].astype(np.int64) * ranks
        adds = schedule.op[first_row] == Op.REDUCE
        kind = np.stack([np.zeros(count, dtype=np.int32), np.where(adds, 1, 2)], axis=1)
        alone = kind == 2
    order = np.argsort(place.reshape(-1), kind="stable")
    at, what = place.reshape(-1)[order], kind.reshape(-1)[order]
    opens = begins_run(at, what) | alone.reshape(-1)[order]
    gate = np.empty(len(order), dtype=np.int32)
    gate[order] = np.cumsum(opens, dtype=np.int64) - 1
    chained = (~begins_run(at)).astype(np.uint8)
    return gate[0::2].copy(), gate[1::2].copy(), chained[opens]


def _after(schedule: Schedule, message: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The further dependencies of rows as dependencies of messages."""
    if not len(schedule.after):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
    count = int(message.max()) + 1
    if count == len(message):  # each row is a message of its own
        return schedule.after_start.astype(np.int64), schedule.after.astype(np.int32)
    waits = np.repeat(message, np.diff(schedule.after_start))
    pairs, _ = distinct(waits * count + message[schedule.after])
    start = offsets(np.bincount(pairs // count, minlength=count))
    return start, (pairs % count).astype(np.int32)
