"""Simulate a plan or messages to a timeline; choose the fastest protocol and number of sub-chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Literal

import numpy as np

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.rows import distinct
from coppice.schedule.files.plan_file import body_of
from coppice.schedule.forest import Forest
from coppice.schedule.messages import Messages, RoutedBody, messages_of_routed, routed_body
from coppice.schedule.schedule import Schedule
from coppice.simulation.channels import TransportProfile, transport_profiles
from coppice.simulation.engine import run
from coppice.simulation.models import Model, Sharing, model_of
from coppice.simulation.timeline import Timeline
from coppice.text import size_of


@checked
def simulate(
    plan: Any,
    size_bytes: int | str,
    *,
    model: Model | str | PathLike[str] | None = None,
    pieces: int | Literal["best"] = "best",
) -> Timeline:
    """Simulate a schedule: start and arrival of every message.

    Args:
        plan: What is carried out; it should have been verified: a plan, what holds one, the name of a plan file, a
            schedule, or a forest. A forest is simulated as it is: switches at which its trees branch copy and add,
            without overhead and workers.
        size_bytes: M in bytes, 0 or more, also as text such as ``64M``.
        model: What messages cost beside rates and latencies of links: a model, its name, or a file with one; None is
            the default of :mod:`coppice.simulation.models`. Of its protocols the fastest is taken.
        pieces: Every chunk is cut into so many pieces that follow each other, as
            :func:`coppice.schedule.schedule.in_pieces` does; ``best`` takes the number that is fastest.

    Raises:
        InputError: If the body is malformed, the size or number of pieces out of range, or there is no such model.
        UnreachableError: If a transfer names no path and there is none.

    Examples:
        A chain of two hops, 18,000 bytes at 3 GB/s and 1 us a message, in one piece and in three:

        >>> from coppice.collectives import Collective
        >>> from coppice.planners.algorithms.algorithm import AlgorithmCase
        >>> from coppice.planners.algorithms.parts.moves import Moves, whole
        >>> from coppice.topology.presets import preset
        >>> case = AlgorithmCase(topology=preset("ring", gpus=3, gb_per_s=3), collective=Collective.BROADCAST, root=0)
        >>> chain = Moves(case, whole(case))
        >>> chain.add([0, 1], [0, 1], [1, 2], 0)
        >>> simulate(chain.schedule(), 18000, model="alpha-beta", pieces=1).time_us
        14.0
        >>> simulate(chain.schedule(), 18000, model="alpha-beta", pieces=3).time_us
        12.0
    """
    count = None if pieces == "best" else pieces
    return fastest(body_of(plan), size_of(size_bytes), model=model_of(model), pieces=count)


MOST_PIECES = 256
"""Pieces that a chunk is cut into at most."""

_FLAT_PIECES, _FLAT = 4, 1.15
"""Where a time is to be undercut, a second protocol that takes so many times what the first one does in its best number
of pieces, from this number on, is not looked at in others: near the best one a few more or less are much the same."""

_WORTH, _WORTH_MANY = 0.002, 0.01
"""Twice as many pieces are taken where they save this share of the time. Where these would be more than ``_MOST_ROWS``
messages, they are simulated only if all further doublings together can be expected to save the second share."""

_GUESSED_ROWS = 2**18
"""Messages that a body is cut into at a guess: it is cut into more only while that gains enough."""

_MOST_ROWS, _MOST_MESSAGES = 2**20, 2**23
_MORE_ROWS = 2**21
_FEW_PIECES, _SOME_PIECES = 16, 128
"""Cutting makes at most ``_MOST_ROWS`` transfers, but up to ``_SOME_PIECES`` pieces of every chunk even so, where these
are no more than ``_MORE_ROWS``, and up to ``_FEW_PIECES``, where they are no more than ``_MOST_MESSAGES``."""


_FEW_ROWS, _MANY_ROWS = 2**18, 2**22
"""Where steps do not bind, every row travels on its own up to the first number of them. Above, those of one step that
go the same way may as well be one message, if that is faster, and above the second number they are."""

_JOINED_ROWS, _JOINED = 2**11, 3
"""From this number of rows on they are one message below ``_FEW_ROWS`` too where that makes so many times fewer,
in no more steps than exchanges of small messages have, two for each doubling of the ranks."""


def most_pieces(schedule: Schedule, size_bytes: int, *, model: Model, most: int = MOST_PIECES) -> int:
    """Largest useful number of sub-chunks per chunk.

    A schedule with steps is not cut: its steps are what goes on at a time.

    Args:
        schedule: Chunks and transfers; those of a forest once it is lowered.
        size_bytes: M in bytes.
        model: Whose least size of a piece counts.
    """
    if not schedule.num_transfers or int(schedule.step.min()) >= 0:
        return 1
    by_size = size_bytes // (model.least_piece_bytes * max(schedule.num_chunks, 1))
    rows = schedule.num_transfers
    some = max(min(_FEW_PIECES, _MOST_MESSAGES // rows), min(_SOME_PIECES, _MORE_ROWS // rows))
    by_rows = max(some, _MOST_ROWS // rows)
    return max(1, min(most, by_size, by_rows))


def fastest(
    body: Schedule | Forest | RoutedBody,
    size_bytes: int,
    *,
    model: Model,
    pieces: int | None = None,
    most: int = MOST_PIECES,
    keep_hops: bool = True,
    enough_us: float = 0.0,
    below_us: float = math.inf,
    give_up_us: float = math.inf,
    least_us: Mapping[str | None, float] | None = None,
) -> Timeline:
    """Timeline of a plan with the fastest of the model's protocols and the best number of sub-chunks.

    Where h messages follow each other at a cost of alpha each and the busiest link takes B, m pieces take about
    ``(m + h - 1) (alpha + B / m)``, least for ``m = sqrt((h - 1) B / alpha)``. From the power of two next to it the
    search goes to half or twice as many pieces while that is faster. A protocol is left out where its start and the
    busiest link alone take longer than what was found.

    Args:
        body: What is carried out; it should have been verified. Of rows that stand for those of all ranks M is what
            they carry by themselves.
        size_bytes: M in bytes, 0 or more.
        model: What messages cost.
        pieces: Cut every chunk into so many pieces; None takes the fastest number.
        most: Most pieces to try.
        keep_hops: As :func:`run`.
        enough_us: The search ends with the first timeline that takes no longer, and leaves out what cannot.
        below_us: A time to undercut. Protocols and numbers of pieces that cannot are left out, so that a timeline that
            takes longer may not be the fastest one.
        give_up_us: What is in one number of pieces is simulated no further, and takes for ever then.
        least_us: What no schedule undercuts in each protocol, by its name: the search ends there.

    Raises:
        InputError: If columns are malformed, or the size or number of pieces is out of range.
        UnreachableError: If a transfer names no path and there is none.
    """
    search = searched(
        body if isinstance(body, RoutedBody) else routed_body(body),
        size_bytes,
        model,
        pieces=pieces,
        most=most,
        enough_us=enough_us,
        below_us=below_us,
        give_up_us=give_up_us,
        least_us=least_us,
        gain=0.0,
        known=None,
    )
    assert search.best is not None
    found = search.best.timeline
    return search.again() if keep_hops or found is None else found


@dataclass(frozen=True, eq=False, kw_only=True)
class TimedTrial:
    """What a body takes in one protocol and number of pieces."""

    time_us: float  # For ever where the simulation was given up
    pieces: int
    protocol: str | None
    messages: int  # How many were simulated
    guess: float = 1.0  # How many pieces are likely to be the fastest, by what the first number of them takes
    timeline: Timeline | None = None  # Of the simulation, unless it is an earlier one that is remembered


TrialKey = tuple[str | None, int, bool]
"""The protocol and the number of pieces of a trial of a body, and whether its steps bind."""

KnownTrials = MutableMapping[TrialKey, tuple[TimedTrial, float]]
"""Trials of a body at a size, each with the time at which it was to be given up."""


def searched(
    rows: RoutedBody,
    size_bytes: int,
    model: Model,
    *,
    pieces: int | None,
    most: int,
    enough_us: float,
    below_us: float,
    give_up_us: float,
    least_us: Mapping[str | None, float] | None,
    gain: float,
    known: KnownTrials | None,
) -> _Search:
    """The search of :func:`fastest`, with something found.

    Args:
        gain: Where there is a time to undercut, all further doublings of the pieces together are to save more than this
            share of the time.
        known: Trials that are not made again; gets those that are made.
    """
    if most < 1:
        raise InputError(f"expected at least 1 piece at most, found {most}.")
    search = _Search(
        rows=rows,
        size_bytes=size_bytes,
        model=model,
        pieces=pieces,
        limit=most_pieces(rows.schedule, size_bytes, model=model, most=most),
        enough_us=enough_us,
        below_us=below_us,
        give_up_us=give_up_us,
        least_us={} if least_us is None else least_us,
        gain=gain,
        known=known,
        best=None,
    )
    for steps_bind in _ways_of_steps(rows.schedule, model):
        search.try_profiles(steps_bind=steps_bind)
    if search.best is None:
        raise InputError(f"expected a model with a protocol, found none in {model.name}.")
    return search


@dataclass
class _Search:
    """Search for the fastest protocol and number of pieces of :func:`fastest`, whose arguments it has."""

    rows: RoutedBody
    size_bytes: int
    model: Model
    pieces: int | None
    limit: int
    enough_us: float
    below_us: float
    give_up_us: float
    least_us: Mapping[str | None, float]
    gain: float
    known: KnownTrials | None
    best: TimedTrial | None
    how: tuple[TransportProfile, bool] | None = None  # Protocol of the best one, and whether its steps bind

    def try_profiles(self, *, steps_bind: bool) -> None:
        """Try each protocol, those that leave the busiest link idle for the shortest time first."""
        given = 1 if self.pieces is None else self.pieces
        if self.best is not None and self.best.time_us <= self.enough_us:
            return
        profiles = transport_profiles(self.model, self.rows.topology)
        handled_us = 0.0 if steps_bind else _handling_us(self.rows, given, self.model)
        if self._hopeless(min(_start_us(each, self.model) for each in profiles) + handled_us):
            return
        cut = {given: self._cut(given, steps_bind=steps_bind)}
        whole = cut[given]
        for profile in sorted(profiles, key=lambda each: least_in_profile_us(whole, each, self.model)):
            least_us = max(
                least_in_profile_us(whole, profile, self.model),
                _start_us(profile, self.model) + handled_us,
                self.least_us.get(profile.name, 0.0),
            )
            if not self._hopeless(least_us):
                self._try(profile, cut, steps_bind=steps_bind)

    def _hopeless(self, least_us: float) -> bool:
        """Whether what takes so long at least is not worth a simulation; one there is in any case."""
        if self.best is None:
            return False
        wanted_us = min(self.enough_us or self.best.time_us, self.below_us)
        return self.best.time_us <= self.enough_us or least_us >= wanted_us

    def _try(self, profile: TransportProfile, cut: dict[int, Messages], *, steps_bind: bool) -> None:
        """The fastest number of pieces in one protocol."""
        several = self.pieces is None and self.limit > 1

        def attempt(count: int, give_up_us: float = math.inf) -> TimedTrial:
            key = profile.name, count, steps_bind
            known = _remembered(self.known, key, give_up_us)
            if known is not None:
                return known
            if count not in cut:
                cut[count] = self._cut(count, steps_bind=steps_bind)
            timeline = self._run(cut[count], profile, count, give_up_us=give_up_us)
            made = TimedTrial(
                time_us=timeline.time_us,
                pieces=count,
                protocol=profile.name,
                messages=timeline.messages.count,
                guess=_likely_pieces(timeline, self.limit) if several and count == 1 else 1.0,
                timeline=timeline,
            )
            if self.known is not None:
                self.known[key] = replace(made, timeline=None), give_up_us
            return made

        # A second protocol is fastest in about as many pieces as the first one.
        first = (1 if self.pieces is None else self.pieces) if self.best is None else self.best.pieces
        known_us = math.inf if self.best is None else self.best.time_us
        limit_us = math.inf if several else min(known_us, self.give_up_us)
        if several and self.below_us < math.inf and first >= _FLAT_PIECES:
            limit_us = known_us * _FLAT
        found = attempt(first, limit_us)
        if several and self.enough_us < found.time_us < math.inf:
            found = _best_pieces(
                found,
                attempt,
                self.limit,
                guessed=self.best is not None or self.below_us < math.inf,
                enough_us=self.enough_us,
                below_us=self.below_us,
                least_us=self.least_us.get(profile.name, 0.0),
                gain=self.gain,
            )
        if self.best is None or found.time_us < self.best.time_us:
            self.best, self.how = found, (profile, steps_bind)

    def again(self) -> Timeline:
        """The best one with all that can be recorded."""
        assert self.best is not None
        assert self.how is not None
        profile, steps_bind = self.how
        messages = self._cut(self.best.pieces, steps_bind=steps_bind)
        return self._run(messages, profile, self.best.pieces, keep_hops=True)

    def _cut(self, pieces: int, *, steps_bind: bool) -> Messages:
        return messages_of_routed(
            self.rows, self.size_bytes, pieces=pieces, steps_bind=steps_bind, packed=self.model.packed
        )

    def _run(
        self,
        messages: Messages,
        profile: TransportProfile,
        pieces: int,
        *,
        keep_hops: bool = False,
        give_up_us: float = math.inf,
    ) -> Timeline:
        return run(
            messages,
            model=self.model,
            collective=self.rows.schedule.collective,
            size_bytes=self.size_bytes,
            profile=profile,
            pieces=pieces,
            keep_hops=keep_hops,
            keep_rates=keep_hops and self.model.sharing is Sharing.FAIR,
            give_up_us=give_up_us,
        )


def too_many_messages(body: Schedule | Forest) -> bool:
    """Whether rows of one step have to travel together although a model lets each go on its own."""
    return _has_many_rows(body, _MANY_ROWS)


def _has_many_rows(body: Schedule | Forest, most: int) -> bool:
    """Whether a schedule has steps and more rows than so many."""
    return isinstance(body, Schedule) and body.num_transfers > most and int(body.step.min()) >= 0


def _ways_of_steps(body: Schedule | Forest, model: Model) -> tuple[bool, ...]:
    """Whether steps bind, in the ways that are simulated: of many rows they do first, as messages are fewer then."""
    if model.steps_bind or too_many_messages(body):
        return (True,)
    return (True, False) if _has_many_rows(body, _FEW_ROWS) or _joins(body) else (False,)


def _joins(body: Schedule | Forest) -> bool:
    """Whether rows of one step that go the same way make a few messages."""
    if not isinstance(body, Schedule) or not _has_many_rows(body, _JOINED_ROWS):
        return False
    ranks = body.topology.num_ranks
    if int(body.step.max()) >= 2 * ranks.bit_length():
        return False
    ways = (body.step.astype(np.int64) * ranks + body.src) * ranks + body.dst
    return _JOINED * len(distinct(ways)[0]) <= body.num_transfers


def _remembered(known: KnownTrials | None, key: TrialKey, give_up_us: float) -> TimedTrial | None:
    """A trial that was made and not given up too early; one that takes longer than ``give_up_us`` takes for ever."""
    trial, given_up_us = (None, 0.0) if known is None else known.get(key, (None, 0.0))
    if trial is None or (trial.time_us == math.inf and given_up_us < give_up_us):
        return None
    return trial if trial.time_us <= give_up_us else replace(trial, time_us=math.inf)


def _likely_pieces(timeline: Timeline, limit: int) -> float:
    """How many pieces are likely to be the fastest, by what one piece takes."""
    if timeline.time_us == math.inf:
        return 1.0
    waiting = (chain_length(timeline) - 1) * float(timeline.link_busy_us.max(initial=0.0))
    cost = _message_us(timeline)
    return math.sqrt(waiting / cost) if cost else limit


def _best_pieces(
    first: TimedTrial,
    attempt: Callable[..., TimedTrial],
    limit: int,
    *,
    guessed: bool,
    enough_us: float,
    below_us: float,
    least_us: float,
    gain: float,
) -> TimedTrial:
    """The fastest number of pieces of the powers of two, found from a guess or from what one piece takes.

    Where a time is enough, or is to be undercut, the search ends where all further steps together do not get there
    (:func:`further_gain_us`). With a time to undercut it begins with the pieces of ``first``: what cannot get there
    shows in a few pieces, which are simulated sooner than many.
    """

    def worth(pieces: int) -> float:
        many = first.messages * pieces // first.pieces > _MOST_ROWS
        return _WORTH_MANY if many else _WORTH

    highest, middle, best = limit.bit_length() - 1, first.pieces.bit_length() - 1, first
    climbs = False  # from fewer pieces than were guessed
    if not guessed:
        middle = min(round(math.log2(max(first.guess, 1))), highest)
        if first.time_us <= least_us * (1 + worth(2**middle)):
            return first
        climbs = first.messages << middle > _GUESSED_ROWS
        if climbs:
            middle = min(middle, max(1, (_GUESSED_ROWS // first.messages).bit_length() - 1))
        best = min((first, attempt(2**middle)), key=_worth) if middle else first
    below_gain_us = math.inf  # what the step to the middle from below it gained
    for direction in (-1, 1):
        if best.pieces < 2**middle:
            break  # fewer pieces are faster, so more are slower
        exponent, gain_us, before_us = middle + direction, below_gain_us, math.inf
        while (0 if guessed else 1) <= exponent <= highest and best.time_us > enough_us:
            reached_us = (
                best.time_us - 2 * gain_us
            )  # a step may gain as much as the one before did, but hardly more
            if (enough_us and reached_us > enough_us) or reached_us > below_us:
                break
            share = _WORTH if climbs else worth(2**exponent)
            # Near the least time more pieces do not save enough; fewer may still be as good.
            if direction > 0 and best.time_us <= least_us * (1 + share):
                return best
            # Of all that is gained from here on the next step gains half or less.
            lacking = (
                max(share * (1 if share > _WORTH else 2), gain if below_us < math.inf else 0) * best.time_us
            )
            if (share > _WORTH or climbs or below_us < math.inf) and further_gain_us(
                gain_us, before_us
            ) < lacking:
                break
            # How much slower half of the first guess is says what doubling gains.
            needs_time = direction < 0 and exponent == middle - 1
            found = attempt(2**exponent, math.inf if needs_time else best.time_us)
            if _worth(found) >= _worth(best):
                below_gain_us = found.time_us - best.time_us if exponent == middle - 1 else math.inf
                break
            before_us, gain_us = gain_us, best.time_us - found.time_us
            best, exponent = found, exponent + direction
    return best


def further_gain_us(gain_us: float, before_us: float) -> float:
    """Most that all further doublings or halvings of a number of pieces together gain, after two that gained so much.

    With m pieces a plan takes about ``a + b / m + c m``: a step gains half of what the one before it did, or less, and
    after two that gained g and h about ``5/2 h - g``. All further steps together gain half as much each, and a quarter
    of the last one for what is not of that form.

    Args:
        gain_us: What the last one gained; infinite: unknown.
        before_us: What the one before that gained; infinite: unknown.

    Examples:
        >>> further_gain_us(8.0, math.inf), further_gain_us(8.0, 16.0)
        (16.0, 10.0)
    """
    further_us = 2 * gain_us
    if before_us < math.inf:
        further_us = min(further_us, 2 * max(0.0, 2.5 * gain_us - before_us) + gain_us / 4)
    return further_us


def _worth(trial: TimedTrial) -> float:
    """Time, with which twice as many pieces must save enough to be worth it."""
    return trial.time_us * math.exp(math.log1p(_WORTH) * math.log2(trial.pieces))


def chain_length(timeline: Timeline) -> int:
    """Length of the dependency chain that ends in the last message."""
    if not len(timeline.finish_us):
        return 0
    message, count = int(np.argmax(timeline.finish_us)), 0
    while message >= 0:
        message, count = int(timeline.cause[message]), count + 1
    return count


def _message_us(timeline: Timeline) -> float:
    """What a message costs on average beyond its bytes."""
    messages, model = timeline.messages, timeline.model
    routes = messages.routes
    route = np.repeat(np.arange(len(routes.src)), routes.num_links)
    latency = np.bincount(
        route, weights=timeline.topology.latency_us[routes.links], minlength=len(routes.src)
    )
    overhead = (
        np.full(len(routes.src), model.overhead_us) if messages.overhead_us is None else messages.overhead_us
    )
    return float((latency + overhead).mean()) + model.send_us + model.receive_us if len(latency) else 0.0


def least_in_profile_us(messages: Messages, profile: TransportProfile, model: Model) -> float:
    """Lower bound on the time with a transport profile: start latency, and the bytes of the busiest link."""
    start = _start_us(profile, model)
    routes, topology = messages.routes, messages.topology
    carried = np.bincount(messages.route, weights=messages.num_bytes, minlength=len(routes.src))
    of_link = np.repeat(carried, routes.num_links)
    links = routes.links if messages.alike is None else messages.alike.links(routes.links)
    load = np.bincount(links, weights=of_link, minlength=topology.num_links)
    wire_load = load * float(profile.expansion) / model.efficiency - model.burst_bytes
    least = float((wire_load * topology.denominator / topology.capacity).max(initial=0.0)) / 1000
    if profile.gpu_gb_per_s is not None:
        sent = np.bincount(routes.src, weights=carried, minlength=topology.num_nodes)[topology.rank_nodes]
        least = max(least, float(sent.max(initial=0.0)) / float(profile.gpu_gb_per_s) / 1000)
    return start + least


def _start_us(profile: TransportProfile, model: Model) -> float:
    """Time before the first message."""
    return model.launch_us + (0.0 if profile.protocol is None else profile.protocol.start_us)


def _handling_us(rows: RoutedBody, pieces: int, model: Model) -> float:
    """For how long the workers of the busiest rank are busy, if every row is a message."""
    if not model.workers or model.shared_workers:
        return 0.0
    nodes, count = rows.schedule.topology.rank_nodes, rows.topology.num_nodes
    busy = model.send_us * np.bincount(nodes[rows.schedule.src], minlength=count)
    busy += model.receive_us * np.bincount(nodes[rows.schedule.dst], minlength=count)
    return float(busy[rows.topology.rank_nodes].max(initial=0.0)) * pieces / model.workers
