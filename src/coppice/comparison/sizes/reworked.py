"""Schedules improved by ruin and recreate: part of the transfers is taken out and put back where links have room.

Trees that were made for a rate, and chunks that were matched greedily, leave links idle at sizes where latencies and
bytes count alike. The search (cpp/recreate) starts from such a schedule, in the order in which its transfers are
simulated, and changes trees, paths and times of chunks at what messages cost under the model. What reduces is what
copies, backwards in time. The phases of an all-reduce are improved one by one, which is soon done, and then together:
a chunk turns as soon as its terms have come, while links still serve the sums of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.collectives import Collective
from coppice.comparison.sizes.channel_costs import ChannelCosts
from coppice.planners.ordering import held_back_early, plainly, turned_round, without_steps
from coppice.planners.synthesis.tacos import ChunkRoutes
from coppice.planners.synthesis.timed import TimedTransfers, joined, reversed_in_time
from coppice.rows import offsets
from coppice.schedule.forest import Forest
from coppice.schedule.lower import chunk_bounds, lower
from coppice.schedule.messages import messages_of_routed, routed_body
from coppice.schedule.schedule import Op, Schedule, in_pieces, routed
from coppice.simulation.channels import TransportProfile
from coppice.simulation.engine import run
from coppice.simulation.models import Model, Sharing

MOST_ROWS = 2**14
"""Transfers of a schedule that is improved."""
_GRAINS, _MOST_SIZES = 256, 16
"""Sizes of chunks are told apart by such a part of the longest one, or by the other where there are more sizes."""


@dataclass(frozen=True, kw_only=True)
class ReworkStart:
    """A schedule to improve."""

    body: Schedule | Forest  # What has been verified
    profile: TransportProfile  # Protocol at whose costs transfers are placed
    pieces: int = 1  # Pieces that every chunk is cut into
    in_order: bool = False  # Rows come in the order in which they go
    mirrored: bool = False  # They go when their images go in the mirror, which needs `body` to have one


class Rework:
    """A schedule on its way to a better one; see :meth:`of`."""

    def __init__(self, rows: Schedule, costs: ChannelCosts, phases: Sequence[_Phase]) -> None:
        self.rows, self.costs, self.phases = rows, costs, phases
        self._together: TimedTransfers | None = None

    @classmethod
    def of(
        cls, start: ReworkStart, size_bytes: int, model: Model, routes: ChunkRoutes | None
    ) -> Rework | None:
        """Begin with a schedule; None where it is not made of trees that bring a chunk once to each rank.

        Args:
            routes: Routes between ranks that chunks may take besides those of the schedule itself.

        Examples:
            >>> from coppice.planners.algorithms.algorithm import AlgorithmCase
            >>> from coppice.planners.algorithms.parts.moves import Moves, whole
            >>> from coppice.simulation.models import model_of
            >>> from coppice.topology.presets import preset
            >>> case = AlgorithmCase(topology=preset("ring", gpus=4), collective=Collective.BROADCAST, root=0)
            >>> chain = Moves(case, whole(case))
            >>> chain.add([0, 1, 2], [0, 1, 2], [1, 2, 3], 0)
            >>> start = ReworkStart(body=chain.schedule(), profile=TransportProfile(), pieces=1)
            >>> found = Rework.of(start, 2**20, model_of("ideal"), None)
            >>> found.improve(looks=0, enough_us=0.0)
            >>> next(found.schedules()).num_transfers
            3
        """
        body = start.body
        if model.sharing is not Sharing.FIFO or (isinstance(body, Forest) and body.branches_at_switches):
            return None
        plain = lower(body) if isinstance(body, Forest) else without_steps(plainly(routed(body)))
        if plain.num_transfers * start.pieces > MOST_ROWS:
            return None
        rows = in_pieces(plain, start.pieces)
        sizes, size = np.unique(_rounded(chunk_bounds(rows, size_bytes)[1]), return_inverse=True)
        if start.in_order:
            start_us = finish_us = np.arange(rows.num_transfers, dtype=np.float64)
        else:
            as_made = (
                in_pieces(body, start.pieces) if isinstance(body, Schedule) and len(body.after) else rows
            )
            carried_out = turned_round(rows) if start.mirrored else as_made
            timeline = run(
                messages_of_routed(routed_body(carried_out), size_bytes, pieces=1, steps_bind=False),
                model=model,
                collective=rows.collective,
                size_bytes=size_bytes,
                profile=start.profile,
                keep_hops=False,
            )
            start_us, finish_us = timeline.start_us, timeline.finish_us
            if start.mirrored:
                start_us, finish_us = -finish_us[::-1], -start_us[::-1]
        rows = rows if routes is None else _with_routes(rows, routes)
        trees = _phases_of(rows, start_us, finish_us)
        if trees is None:
            return None
        costs = ChannelCosts.of(
            rows.topology,
            rows.path_start,
            rows.path_nodes,
            sizes,
            size_bytes=size_bytes,
            profile=start.profile,
            model=model,
        )
        ranks, number = rows.topology.num_ranks, size.astype(np.int32)
        return cls(rows, costs, [_Phase(each, costs, number, ranks) for each in trees])

    @property
    def time_us(self) -> float:
        """What it takes where its transfers go at their times; an all-reduce one phase after the other at first."""
        units = sum(phase.time for phase in self.phases) if self._together is None else self._together.time
        return self.costs.start_us + units * self.costs.unit_us

    def improve(self, *, looks: int, enough_us: float) -> None:
        """Search further, in each phase alone.

        Args:
            looks: How often the search looks at what a link serves, at most.
            enough_us: A time that needs no further search.
        """
        alone = len(self.phases) == 1
        enough = self._units(enough_us) if alone else 0
        self._together = None
        for phase in self.phases:
            phase.improve(looks // len(self.phases), enough)

    def improve_together(self, *, looks: int, enough_us: float) -> None:
        """Search further from there in both phases at once, where there are two.

        Args:
            looks: As :meth:`improve` takes it.
            enough_us: Likewise.
        """
        if len(self.phases) == 1:
            self.improve(looks=looks, enough_us=enough_us)
            return
        done = self._done()
        order = np.lexsort((done.end, done.start))
        _, start, arrive, channel, chunk, adds = self.phases[0].recreated(
            self.costs,
            start=done.start[order],
            channel=done.path[order].astype(np.int32),
            chunk=done.chunk[order].astype(np.int32),
            adds=(done.op[order] == Op.REDUCE).astype(np.uint8),
            looks=looks,
            enough=self._units(enough_us),
        )
        found = _timed(self.costs, start, arrive, channel, chunk, adds)
        if found.time < done.time:
            self._together = found

    def schedules(self) -> Iterator[Schedule]:
        """What was found, as it is and with transfers that are held back until their times, or a little before."""
        done = self._done()
        order = np.lexsort((done.end, done.start))
        made = replace(
            self.rows,
            src=done.src[order].astype(np.int32),
            dst=done.dst[order].astype(np.int32),
            chunk=done.chunk[order].astype(np.int32),
            op=done.op[order],
            path=done.path[order].astype(np.int32),
        )
        due, over = (np.asarray(each[order] * self.costs.unit_us) for each in (done.start, done.end))
        yield made
        yield from held_back_early(made, due, over)

    def _done(self) -> TimedTransfers:
        """The transfers at their times."""
        if self._together is not None:
            return self._together
        found = [phase.transfers() for phase in self.phases]
        return found[0] if len(found) == 1 else joined(*found)

    def _units(self, us: float) -> int:
        """Units of time from the first message until then."""
        return int(max(0.0, us - self.costs.start_us) / self.costs.unit_us)


def fastest_rework(
    starts: Sequence[ReworkStart],
    size_bytes: int,
    model: Model,
    routes: ChunkRoutes | None,
    *,
    looks: int,
    enough_us: float,
) -> tuple[int, Rework] | None:
    """The start that becomes the fastest, by its number, and what it becomes; None where none can be improved.

    All are improved a little, the better half of them further, and so on (successive halving; Jamieson and Talwalkar,
    AISTATS 2016). What is left of all-reduces is improved in both phases together at the end.

    Args:
        looks: For all of them together.
    """
    made = ((number, Rework.of(start, size_bytes, model, routes)) for number, start in enumerate(starts))
    left = [(number, each) for number, each in made if each is not None]
    rounds = len(left).bit_length()
    alone = looks // 2 if left and len(left[0][1].phases) > 1 else looks
    while left:
        for _, each in left:
            each.improve(looks=alone // (rounds * len(left)), enough_us=enough_us)
        left.sort(key=lambda one: one[1].time_us)
        if len(left) == 1:
            number, best = left[0]
            if len(best.phases) > 1:
                best.improve_together(looks=looks // 2, enough_us=enough_us)
            return number, best
        left = left[: len(left) // 2]
    return None


def _with_routes(rows: Schedule, routes: ChunkRoutes) -> Schedule:
    """The rows with a table of paths that has all routes between ranks as well."""
    number: dict[tuple[int, ...], int] = {}
    found = [
        number.setdefault(tuple(nodes[start[k] : start[k + 1]].tolist()), len(number))
        for start, nodes in ((rows.path_start, rows.path_nodes), (routes.path_start, routes.path_nodes))
        for k in range(len(start) - 1)
    ]
    return replace(
        rows,
        path=np.array(found, dtype=np.int32)[rows.path],
        path_start=offsets(np.array([len(nodes) for nodes in number], dtype=np.int64)),
        path_nodes=np.array([v for nodes in number for v in nodes], dtype=np.int32),
    )


def _rounded(num_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sizes rounded up so that few are different."""
    longest = int(num_bytes.max(initial=1))
    for parts in (_GRAINS, _MOST_SIZES):
        grain = max(1, longest // parts)
        rounded = np.maximum(-(-num_bytes // grain) * grain, 1)
        if len(np.unique(rounded)) <= _MOST_SIZES:
            break
    return rounded


@dataclass(frozen=True, eq=False, kw_only=True)
class _PhaseTrees:
    """Transfers of one phase, which bring each chunk from one rank to others: backwards in time where they reduce."""

    backwards: bool
    source: NDArray[np.int32]  # Per chunk, the rank that has it
    target: NDArray[np.int32]  # The rank that wants it, or -1: all of them
    channel: NDArray[np.int32]  # Of each transfer, in their order: its path
    chunk: NDArray[np.int32]


class _Phase:
    """Trees on their way to better ones."""

    def __init__(
        self, trees: _PhaseTrees, costs: ChannelCosts, size: NDArray[np.int32], num_ranks: int
    ) -> None:
        self.trees, self.size, self.num_ranks = trees, size, num_ranks
        self.costs = costs.backwards() if trees.backwards else costs
        self.channel, self.chunk = trees.channel, trees.chunk
        self.start = self.arrive = np.zeros(len(trees.chunk), dtype=np.int64)
        self.time, self.seed = 0, 0

    def improve(self, looks: int, enough: int) -> None:
        self.time, self.start, self.arrive, self.channel, self.chunk, _ = self.recreated(
            self.costs,
            start=self.start,
            channel=self.channel,
            chunk=self.chunk,
            adds=np.zeros(0, dtype=np.uint8),
            looks=looks,
            enough=enough,
        )
        self.seed += 1

    def recreated(
        self,
        costs: ChannelCosts,
        *,
        start: NDArray[np.int64],
        channel: NDArray[np.int32],
        chunk: NDArray[np.int32],
        adds: NDArray[np.uint8],
        looks: int,
        enough: int,
    ) -> tuple[
        int,
        NDArray[np.int64],
        NDArray[np.int64],
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.uint8],
    ]:
        """Improve some transfers of the chunks; all of both phases where there are marks which of them add."""
        return _core.recreate(
            self.num_ranks,
            costs.num_ports,
            costs.src,
            costs.dst,
            costs.port_start,
            costs.port,
            costs.duration.ravel(),
            costs.offset.ravel(),
            costs.hold.ravel(),
            self.trees.source,
            self.trees.target,
            self.size,
            start,
            channel,
            chunk,
            adds,
            len(adds) > 0,
            self.seed,
            looks,
            enough,
        )

    def transfers(self) -> TimedTransfers:
        found = _timed(self.costs, self.start, self.arrive, self.channel, self.chunk, None)
        return reversed_in_time(found) if self.trees.backwards else found


def _timed(
    costs: ChannelCosts,
    start: NDArray[np.int64],
    arrive: NDArray[np.int64],
    channel: NDArray[np.int32],
    chunk: NDArray[np.int32],
    adds: NDArray[np.uint8] | None,
) -> TimedTransfers:
    """Transfers on channels; None: none of them adds."""
    return TimedTransfers(
        start=start,
        end=arrive,
        chunk=chunk.astype(np.int64),
        src=costs.src[channel].astype(np.int64),
        dst=costs.dst[channel].astype(np.int64),
        path=channel.astype(np.int64),
        op=np.where(np.zeros(len(chunk)) if adds is None else adds, Op.REDUCE, Op.COPY).astype(np.int8),
    )


def _phases_of(
    rows: Schedule, start_us: NDArray[np.float64], finish_us: NDArray[np.float64]
) -> list[_PhaseTrees] | None:
    """The phases of a schedule, the one that reduces first; None where some rank gets a chunk twice, or in vain."""
    found = []
    for op in (Op.REDUCE, Op.COPY):
        own = np.flatnonzero(rows.op == op)
        if len(own):
            backwards = op == Op.REDUCE
            at_us = -finish_us if backwards else start_us
            trees = _trees(rows, own[np.argsort(at_us[own], kind="stable")], backwards=backwards)
            if trees is None:
                return None
            found.append(trees)
    both = rows.collective is Collective.ALL_REDUCE
    if len(found) != 1 + both or (both and not np.array_equal(found[0].source, found[1].source)):
        return None
    return found


def _trees(rows: Schedule, own: NDArray[np.int64], *, backwards: bool) -> _PhaseTrees | None:
    ranks, chunks = rows.topology.num_ranks, rows.num_chunks
    chunk = rows.chunk[own].astype(np.int64)
    src, dst = (rows.dst[own], rows.src[own]) if backwards else (rows.src[own], rows.dst[own])
    comes = np.bincount(chunk * ranks + dst, minlength=ranks * chunks)
    first = comes[chunk * ranks + src] == 0
    source = np.full(chunks, -1, dtype=np.int32)
    source[chunk[first]] = src[first]
    if comes.max() > 1 or np.any(source[chunk[first]] != src[first]):
        return None
    target = np.full(chunks, -1, dtype=np.int32)
    if rows.collective is not Collective.ALL_TO_ALL:
        if np.any(np.bincount(chunk, minlength=chunks) != ranks - 1):
            return None
    elif len(np.unique(chunk)) < len(chunk):
        return None  # ranks pass on what is not theirs
    else:
        target[chunk] = dst
        own_block = target < 0
        source[own_block] = target[own_block] = 0
    return _PhaseTrees(
        backwards=backwards, source=source, target=target, channel=rows.path[own], chunk=rows.chunk[own]
    )
