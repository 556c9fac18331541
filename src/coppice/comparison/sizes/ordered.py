"""Search for the order and the number of pieces in which a schedule is fastest at a size, by simulation.

For each protocol the rows are put in the order of their longest ways (:mod:`coppice.planners.ordering`), in as many
pieces as is fastest, and the fastest of these is justified backwards and forwards while that helps. Then links are
asked what they would do if they took the most urgent of what waits, and rows are held back until that is their turn.
What needs its steps keeps them, and is cut into pieces that follow each other. The search is limited by the number of
transfers that it simulates, so that results do not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.network import TRANSPOSED
from coppice.comparison.sizes.mirrored import MIRRORED
from coppice.comparison.sizes.path_costs import PathCosts
from coppice.planners.alike import turned
from coppice.planners.alternatives import Alternative
from coppice.planners.choice import PlannerOutput
from coppice.planners.ordering import (
    by_longest_way,
    held_back,
    held_back_early,
    longest_ways,
    pipelined,
    plainly,
    reordered,
    turned_round,
    without_steps,
)
from coppice.schedule.forest import Forest
from coppice.schedule.lower import chunk_bounds, lower
from coppice.schedule.messages import Alike, RoutedBody, messages_of_routed, routed_body
from coppice.schedule.plan import Parameter
from coppice.schedule.schedule import Schedule, routed
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.channels import TransportProfile, transport_profiles
from coppice.simulation.engine import run
from coppice.simulation.models import Model, Sharing
from coppice.simulation.simulator import least_in_profile_us, most_pieces
from coppice.simulation.timeline import Timeline
from coppice.text import plural

MOST_PIECES = 64
LEAST_PIECE_BYTES = 256
_LEAST_BETWEEN, _BETWEEN = 8, (7, 6, 10)
"""Where the best power of two is this or more pieces, these eighths of it are tried as well."""
_ROUNDS = 6
"""Passes in each direction in which an order is justified at most."""
_PATIENCE = 2
"""Passes in a row that gain nothing, after which an order is as good as it gets."""
_STEPPED, _LAG, _OTHER_LAGS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16), 2, (0, 1, 3)
"""Pieces of rows with steps, and how many of them begin between two steps of one."""
_MOST_STEPS = 64
"""Steps that thread blocks of some runtimes have at most."""
_WORKERS = 2**20
"""Workers that never keep a message waiting."""
_LEAST_GAIN = 1e-4
"""Share of the time that a change saves, or it counts as none."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Ordered:
    """A schedule in an order, and what it takes."""

    schedule: Schedule
    timeline: Timeline
    profile: TransportProfile
    pieces: int = 1  # Pieces that the rows cut chunks into

    @property
    def time_us(self) -> float:
        """Simulated time in microseconds."""
        return self.timeline.time_us

    def alternative(self, one: Alternative, size_bytes: int) -> Alternative:
        """An alternative in this order, for a size."""
        parameters: dict[str, Parameter] = {"ordered_for": size_bytes, "pieces": self.pieces}
        if self.profile.name is not None:
            parameters["protocol"] = self.profile.name
        return Alternative(
            name=f"{one.name}, ordered in {plural(self.pieces, 'piece')}",
            made=PlannerOutput(body=self.schedule, parameters={**one.made.parameters, **parameters}),
            planner=one.planner,
            size_bytes=size_bytes,
        )


class OrderSearch:
    """Orders of a schedule under a model.

    Args:
        body: What is carried out; it should have been verified.
        model: What messages cost.
        budget: Transfers that are simulated at most.
        most_pieces: Pieces that every chunk is cut into at most.
        alike: The rows stand for those of all ranks. They are not held back, and what is found is not verified: whoever
            writes out all rows does that.
    """

    def __init__(
        self,
        body: Schedule | Forest,
        model: Model,
        budget: int,
        *,
        most_pieces: int = MOST_PIECES,
        alike: Alike | None = None,
    ) -> None:
        self.model = model
        self.budget = budget
        self.most_pieces = most_pieces
        self.alike = alike
        plain = plain_rows(body)
        # Rows in other orders have the same routes.
        self._own = None if plain is None or alike is not None else routed_body(plain)
        self.rows = plain if self._own is None else self._own.schedule
        self.stepped = body if self.rows is None and isinstance(body, Schedule) else None
        self._known_ways: dict[tuple[int, str | None], NDArray[np.float64]] = {}

    def fastest(self, size_bytes: int, *, below_us: float) -> Ordered | None:
        """The fastest order that is found; None where none takes less than ``below_us``."""
        rows = self.stepped if self.rows is None else self.rows
        if rows is None or not rows.num_transfers or (self.rows is None and self.model.steps_bind):
            return None
        best: Ordered | None = None
        reduces = rows.collective in TRANSPOSED  # copies need nothing but what their sender has
        whole = messages_of_routed(self._routed(rows), size_bytes, pieces=1, steps_bind=False)
        profiles = sorted(
            (least_in_profile_us(whole, each, self.model), number, each)
            for number, each in enumerate(transport_profiles(self.model, rows.topology))
        )
        given = self._as_given(size_bytes, [each for least_us, _, each in profiles if least_us < below_us])
        for each in given:
            best = _faster(best, self._at_times_of(each, size_bytes))
        for least_us, _, profile in profiles:
            if least_us >= (below_us if best is None else min(best.time_us, below_us)):
                continue
            if self.rows is None:
                best = _faster(best, self._step_by_step(rows, size_bytes, profile))
            else:
                search = self._mirrored if reduces else self._forwards
                best = _faster(best, search(size_bytes, profile))
        if best is None:
            return None
        if self.rows is not None:
            first = best
            best = self._justified(first, size_bytes)
            if self._spend(2 * first.schedule.num_transfers):
                behind = self._from_behind(rows, size_bytes, first)
                best = _faster(best, self._justified(behind, size_bytes)) or best
            search = self._forwards if reduces else self._mirrored
            best = _faster(best, search(size_bytes, first.profile)) or best
            if self.alike is None:
                best = _faster(best, self._in_waves(size_bytes, first.profile)) or best
        if best.time_us >= below_us:
            return None
        return best if self.alike is not None or verify_schedule(best.schedule, relay_gpus=True).ok else None

    def _routed(self, rows: Schedule) -> RoutedBody:
        """The rows with their routes, in either direction."""
        known = self._own
        if known is not None and rows.topology is known.topology and _same_paths(rows, known.schedule):
            return replace(known, schedule=rows)
        made = routed_body(rows)
        if self.alike is None or self.rows is None:
            return made
        own = self.rows.topology
        return replace(made, alike=self.alike if rows.topology is own else turned(self.alike, own))

    def _as_given(self, size_bytes: int, profiles: Sequence[TransportProfile]) -> list[Ordered]:
        """The rows as they stand, whose order a planner may have chosen, and their mirror as it stands.

        Both in the protocol in which they are fastest.
        """
        rows = self.rows
        if rows is None or self.model.sharing is not Sharing.FIFO:
            return []
        found: list[Ordered] = []
        for each in [rows, *([turned_round(rows)] if rows.collective in MIRRORED else [])]:
            best: Ordered | None = None
            for profile in profiles:
                if self._spend(rows.num_transfers):
                    best = _faster(best, self._timed(each, size_bytes, 1, profile))
            found += [] if best is None else [best]
        return found

    def _at_times_of(self, given: Ordered, size_bytes: int) -> Ordered:
        """Rows that stand so, or whose mirror does, as they are and held back."""
        rows = self.rows
        assert rows is not None
        if given.schedule is not rows:
            return self._turned_back(given, size_bytes)
        if self.alike is not None or not self._spend(2 * rows.num_transfers):
            return given
        bound = self._held_back(rows, size_bytes, given.profile)
        return _faster(given, self._timed(bound, size_bytes, 1, given.profile)) or given

    def _forwards(self, size_bytes: int, profile: TransportProfile) -> Ordered | None:
        """What has most to follow first: as rows come, or as links take them."""
        return _faster(self._in_pieces(size_bytes, profile), self._by_turns(size_bytes, profile))

    def _in_pieces(self, size_bytes: int, profile: TransportProfile) -> Ordered | None:
        """The fastest number of pieces in the order of the longest ways."""
        rows = self.rows
        assert rows is not None
        ways = self._ways(size_bytes, profile)
        smallest = int(chunk_bounds(rows, size_bytes)[1].max(initial=0))
        best: Ordered | None = None
        pieces = 1
        while pieces <= self.most_pieces and (pieces == 1 or smallest >= LEAST_PIECE_BYTES * pieces):
            found = self._in_as_many(rows, ways, size_bytes, pieces, profile)
            if found is None or (best is not None and found.time_us >= best.time_us):
                break
            best, pieces = found, 2 * pieces
        if best is None or best.pieces < _LEAST_BETWEEN:
            return best
        power = best.pieces
        for eighths in _BETWEEN:
            pieces = power * eighths // 8
            if 2 * len(_BETWEEN) * rows.num_transfers * pieces > self.budget // 2:
                break
            if pieces <= self.most_pieces and smallest >= LEAST_PIECE_BYTES * pieces:
                best = _faster(best, self._in_as_many(rows, ways, size_bytes, pieces, profile))
        return best

    def _ways(self, size_bytes: int, profile: TransportProfile) -> NDArray[np.float64]:
        """The longest way from each row on."""
        rows, key = self.rows, (size_bytes, profile.name)
        assert rows is not None
        if key not in self._known_ways:
            self._known_ways[key] = longest_ways(rows, durations_us(rows, size_bytes, profile, self.model))
        return self._known_ways[key]

    def _in_as_many(
        self,
        rows: Schedule,
        ways: NDArray[np.float64],
        size_bytes: int,
        pieces: int,
        profile: TransportProfile,
    ) -> Ordered | None:
        """In so many pieces, in the faster of two ways: chunk by chunk, or the first pieces of all first."""
        found: Ordered | None = None
        for pieces_first in (False, True)[: 1 + (pieces > 1)]:
            if not self._spend(rows.num_transfers * pieces):
                break
            cut = by_longest_way(rows, ways, pieces, pieces_first=pieces_first)
            found = _faster(found, self._timed(cut, size_bytes, pieces, profile))
        return found

    def _step_by_step(self, rows: Schedule, size_bytes: int, profile: TransportProfile) -> Ordered | None:
        """The fastest pipeline of rows that need their steps: its number of pieces first, then how they follow."""
        smallest = int(chunk_bounds(rows, size_bytes)[1].max(initial=0))
        most = min(_MOST_STEPS // (int(rows.step.max()) + 1), smallest // LEAST_PIECE_BYTES)
        best: Ordered | None = None
        in_vain = 0
        for pieces in _STEPPED:
            if pieces > max(1, most) or in_vain > _PATIENCE:
                break
            found = self._pipelined(rows, size_bytes, pieces, 0, profile, held=False)
            if pieces > 1:
                found = _faster(found, self._pipelined(rows, size_bytes, pieces, _LAG, profile, held=True))
            better = _faster(best, found)
            in_vain = in_vain + 1 if better is best else 0
            best = better
        pieces = 1 if best is None else best.pieces
        for lag in _OTHER_LAGS if pieces > 1 else ():
            best = _faster(best, self._pipelined(rows, size_bytes, pieces, lag, profile, held=True))
        return best

    def _pipelined(
        self,
        rows: Schedule,
        size_bytes: int,
        pieces: int,
        lag: int,
        profile: TransportProfile,
        *,
        held: bool,
    ) -> Ordered | None:
        """A pipeline as it comes, or as links would take it that serve earlier rows first."""
        if not self._spend((1 + held) * rows.num_transfers * pieces):
            return None
        cut = pipelined(rows, pieces, lag)
        if held:
            cut = self._held_back(cut, size_bytes, profile)
        return self._timed(cut, size_bytes, pieces, profile)

    def _by_turns(self, size_bytes: int, profile: TransportProfile) -> Ordered | None:
        """The fastest number of pieces where links take the row with the longest way of all that wait."""
        rows = self.rows
        assert rows is not None
        if self.model.sharing is not Sharing.FIFO or self.alike is not None:
            return None
        ways = self._ways(size_bytes, profile)
        smallest = int(chunk_bounds(rows, size_bytes)[1].max(initial=0))
        best: Ordered | None = None
        pieces = 1
        while pieces <= self.most_pieces and (pieces == 1 or smallest >= LEAST_PIECE_BYTES * pieces):
            if not self._spend(2 * rows.num_transfers * pieces):
                break
            cut = by_longest_way(rows, ways, pieces, pieces_first=False)
            found = self._timed(self._held_back(cut, size_bytes, profile), size_bytes, pieces, profile)
            if best is not None and found.time_us >= best.time_us:
                break
            best, pieces = found, 2 * pieces
        return best

    def _held_back(self, rows: Schedule, size_bytes: int, profile: TransportProfile) -> Schedule:
        """The rows as links would take them that serve earlier rows first, and as many workers as it takes."""
        messages = messages_of_routed(self._routed(rows), size_bytes, pieces=1, steps_bind=False)
        timeline = run(
            replace(messages, wave=np.arange(messages.count, dtype=np.int32)),
            model=replace(self.model, workers=_WORKERS) if self.model.workers else self.model,
            collective=rows.collective,
            size_bytes=size_bytes,
            profile=profile,
        )
        assert timeline.hops is not None
        entered = timeline.hops.begin_us[timeline.hops.start[:-1]]
        lead: float | NDArray[np.float64] = self.model.send_us if self.model.workers else 0.0
        if not self.model.buffered:  # what a message costs comes before its first link
            costs = timeline.messages.overhead_us
            lead = lead + (self.model.overhead_us if costs is None else costs[timeline.messages.route])
        return held_back(rows, entered - lead, timeline.finish_us)

    def _in_waves(self, size_bytes: int, profile: TransportProfile) -> Ordered | None:
        """The same order, in pieces that the simulator cuts: of those that wait, links take the first piece first."""
        rows = self.rows
        assert rows is not None
        ways = self._ways(size_bytes, profile)
        ordered = by_longest_way(rows, ways, 1, pieces_first=False)
        best: Ordered | None = None
        pieces = 2
        most = most_pieces(ordered, size_bytes, model=self.model)
        while pieces <= most and self._spend(rows.num_transfers * pieces):
            timeline = self._run(ordered, size_bytes, profile, pieces=pieces)
            if best is not None and timeline.time_us >= best.time_us:
                break
            best, pieces = Ordered(schedule=ordered, timeline=timeline, profile=profile), 2 * pieces
        return best

    def _from_behind(self, rows: Schedule, size_bytes: int, like: Ordered) -> Ordered:
        """In the order of the longest ways backwards: what reduces is what copies, turned round."""
        back = turned_round(rows)
        ways = longest_ways(back, durations_us(back, size_bytes, like.profile, self.model))
        cut = by_longest_way(back, ways, like.pieces, pieces_first=False)
        timeline = self._run(cut, size_bytes, like.profile)
        forwards = replace(turned_round(cut), topology=rows.topology)
        last_first = np.argsort(-timeline.start_us[::-1], kind="stable")
        return self._timed(reordered(forwards, last_first), size_bytes, like.pieces, like.profile)

    def _mirrored(self, size_bytes: int, profile: TransportProfile) -> Ordered | None:
        """As the same transfers are carried out backwards, where links take what has most to follow.

        A sum waits for all its terms, of which the last one is easily late. Backwards it is copied instead, so that
        nothing waits for more than one receipt, and each row is put where it stands there.
        """
        rows = self.rows
        assert rows is not None
        if rows.collective not in MIRRORED or not self._spend(rows.num_transfers):
            return None
        backwards = None if self.alike is None else turned(self.alike, rows.topology)
        back = OrderSearch(
            turned_round(rows), self.model, self.budget, most_pieces=self.most_pieces, alike=backwards
        )
        found = _faster(back._in_pieces(size_bytes, profile), back._by_turns(size_bytes, profile))
        self.budget = back.budget
        if found is None or not self._spend(found.schedule.num_transfers):
            return None
        return self._turned_back(found, size_bytes)

    def as_its_mirror(self, size_bytes: int, profile: TransportProfile) -> Ordered | None:
        """The rows at the times of their mirror as it stands, whatever that takes; None where they have none."""
        rows = self.rows
        if rows is None or rows.collective not in MIRRORED or not self._spend(rows.num_transfers):
            return None
        found = self._turned_back(self._timed(turned_round(rows), size_bytes, 1, profile), size_bytes)
        return (
            found if self.alike is not None or verify_schedule(found.schedule, relay_gpus=True).ok else None
        )

    def _turned_back(self, found: Ordered, size_bytes: int) -> Ordered:
        """Rows whose mirror is carried out like this, as they are and held back."""
        assert self.rows is not None
        forwards = replace(turned_round(plainly(found.schedule)), topology=self.rows.topology)
        last_us = found.timeline.finish_us.max(initial=0.0)
        begin_us = last_us - found.timeline.finish_us[::-1]
        done_us = last_us - found.timeline.start_us[::-1]
        free = reordered(forwards, np.argsort(begin_us, kind="stable"))
        best = self._timed(free, size_bytes, found.pieces, found.profile)
        # Held back they are to take what the mirror takes.
        if self.alike is not None or best.time_us <= found.time_us * (1 + _LEAST_GAIN):
            return best
        for bound in held_back_early(forwards, begin_us, done_us):
            if self._spend(forwards.num_transfers):
                best = _faster(best, self._timed(bound, size_bytes, found.pieces, found.profile)) or best
        return best

    def _justified(self, first: Ordered, size_bytes: int) -> Ordered:
        """Carried out backwards and forwards while that is faster."""
        best = current = first
        idle = 0
        for _ in range(_ROUNDS):
            if not self._spend(2 * first.schedule.num_transfers):
                break
            began = np.argsort(current.timeline.start_us, kind="stable")
            forwards = reordered(plainly(current.schedule), began)
            backwards = self._run(turned_round(forwards), size_bytes, first.profile)
            last_first = np.argsort(-backwards.start_us[::-1], kind="stable")
            current = self._timed(reordered(forwards, last_first), size_bytes, first.pieces, first.profile)
            idle = idle + 1 if current.time_us > best.time_us * (1 - _LEAST_GAIN) else 0
            if idle == _PATIENCE:
                break
            best = current if not idle else best
        return best

    def _timed(self, schedule: Schedule, size_bytes: int, pieces: int, profile: TransportProfile) -> Ordered:
        return Ordered(
            schedule=schedule,
            timeline=self._run(schedule, size_bytes, profile),
            pieces=pieces,
            profile=profile,
        )

    def _run(
        self, schedule: Schedule, size_bytes: int, profile: TransportProfile, *, pieces: int = 1
    ) -> Timeline:
        return run(
            messages_of_routed(self._routed(schedule), size_bytes, pieces=pieces, steps_bind=False),
            model=self.model,
            collective=schedule.collective,
            size_bytes=size_bytes,
            profile=profile,
            pieces=pieces,
            keep_hops=False,
        )

    def _spend(self, transfers: int) -> bool:
        """Whether so many transfers may still be simulated."""
        self.budget -= transfers
        return self.budget >= 0


def _faster(one: Ordered | None, other: Ordered | None) -> Ordered | None:
    """The faster one, the first of equals."""
    if one is None or other is None:
        return other if one is None else one
    return other if other.time_us < one.time_us * (1 - _LEAST_GAIN) else one


def _same_paths(one: Schedule, other: Schedule) -> bool:
    """Whether two schedules have one table of paths."""
    return one.path_start is other.path_start and one.path_nodes is other.path_nodes


def plain_rows(body: Schedule | Forest) -> Schedule | None:
    """The rows with their routes and without steps; None where they do something else then."""
    if isinstance(body, Forest):
        return None if body.branches_at_switches else lower(body)
    if len(body.after):
        return None
    plain = without_steps(routed(body))
    if int(body.step.max(initial=-1)) >= 0 and not verify_schedule(plain, relay_gpus=True).ok:
        return None
    return plain


def durations_us(
    rows: Schedule, size_bytes: int, profile: TransportProfile, model: Model
) -> NDArray[np.float64]:
    """What each row takes by itself, in microseconds: its bytes on its slowest link, latencies and costs."""
    costs = PathCosts.of(rows.topology, rows.path_start, rows.path_nodes, profile, model)
    return costs.on_path_us(rows.path, chunk_bounds(rows, size_bytes)[1][rows.chunk]) + 1e-3
