"""TACCL (Shah and others, NSDI'23): routing, ordering, contiguity, guided by a communication sketch.

Routing is a mixed-integer program, ordering a list schedule, contiguity another program. Each stage begins with what is
known already: a schedule that needs no solver, whose hops are ordered as well and stay if they are faster.

Stage 3, contiguity: hops and orders are fixed. Up to six chunks that follow each other on the same way may go
together, if all of them begin where they are sent from, or none does: they pay the latency once, but the first arrives
with the last (NSDI'23, section 5.3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from fractions import Fraction

import msgspec

from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.synthesis.mip.greedy import LinkUse, greedy_sends
from coppice.planners.synthesis.mip.program import MixedProgram, MixedSolution, SearchLimits
from coppice.planners.synthesis.synthesizing import Request, Status, Synthesis, SynthesisMethod
from coppice.planners.synthesis.taccl.chunks import best_chunks
from coppice.planners.synthesis.taccl.network import (
    CommunicationSketch,
    Costs,
    SketchedNetwork,
    read_sketch,
    suited_sketch,
)
from coppice.planners.synthesis.taccl.routing import Hops, RoutingProgram, Transfer, needed_hops, ordered
from coppice.planners.synthesis.timed import (
    COLLECTIVES,
    Copying,
    Piece,
    TimedSend,
    combined,
    require_equal_sizes,
)
from coppice.text import parse_size, percent_text, size_text, time_text

_MOST_TOGETHER = 6
_HALF = 0.5


def joined_transfers(
    pieces: Sequence[Piece], network: SketchedNetwork, transfers: Sequence[Transfer], limits: SearchLimits
) -> tuple[set[int], MixedSolution | None]:
    """Transfers that share a message with their predecessor on the route.

    Args:
        transfers: In the order that is kept on every link.
        limits: When to stop; without a better solution nothing goes together.

    Returns:
        Their numbers, and what the solver found; None where no latency could be saved.
    """
    before = _followers(pieces, network, transfers)
    if not before:
        return set(), None
    horizon = max(each.end for each in transfers)
    program = MixedProgram()
    start = [program.column(upper=horizon) for _ in transfers]
    end = [program.column(upper=horizon) for _ in transfers]
    most_at = [float(_MOST_TOGETHER) if i in before else 1.0 for i in range(len(transfers))]
    place = [program.column(lower=1.0, upper=most) for most in most_at]
    follows = {i: program.column(upper=1.0, whole=True) for i in before}
    time = program.column(cost=1.0, upper=horizon)
    for i, each in enumerate(transfers):
        alpha, beta = network.alpha[each.route], network.beta[each.route]
        program.row({end[i]: 1.0, start[i]: -1.0, place[i]: -beta}, least=alpha)
        program.row({time: 1.0, end[i]: -1.0}, least=0.0)
        if i in before:
            a, j = before[i], follows[i]
            most = float(_MOST_TOGETHER)
            program.row({place[i]: 1.0, place[a]: -1.0, j: -most}, least=1.0 - most)
            program.row({start[i]: 1.0, start[a]: -1.0, j: horizon}, most=horizon)
            program.row({end[a]: 1.0, end[i]: -1.0, j: -horizon}, least=-horizon)
    for a, b in _dependencies(network, transfers):
        program.row({start[b]: 1.0, end[a]: -1.0}, least=0.0)
    for a, b, resource in _neighbours(network, transfers):
        held = network.use[transfers[a].route][resource]
        terms = {start[b]: 1.0, start[a]: -1.0, place[a]: -held}
        if before.get(b) == a:
            slack = horizon + _MOST_TOGETHER * held
            program.row({**terms, follows[b]: slack}, least=network.alpha[transfers[a].route])
            program.row({start[b]: 1.0, start[a]: -1.0}, least=0.0)
        else:
            program.row(terms, least=network.alpha[transfers[a].route])
    found = program.solve(limits, start=dict.fromkeys(follows.values(), 0.0))
    if found.values is None:
        return set(), found
    return {i for i, column in follows.items() if found.values[column] > _HALF}, found


def replayed(network: SketchedNetwork, transfers: Sequence[Transfer], joined: Set[int]) -> list[Transfer]:
    """Transfers at their earliest times given order and coalescing."""
    groups: list[list[int]] = []
    last: dict[int, int] = {}
    for i, each in enumerate(transfers):
        if i in joined:
            groups[last[each.route]].append(i)
        else:
            last[each.route] = len(groups)
            groups.append([i])
    there: dict[tuple[int, int], float] = {}
    free: dict[int, float] = defaultdict(float)
    done: dict[int, Transfer] = {}
    for group in _in_order(groups, network, transfers):
        number = transfers[group[0]].route
        route, count = network.routes[number], len(group)
        start = max(
            [
                *(there.get((transfers[i].piece, route.src), 0.0) for i in group),
                *(free[resource] for resource in network.use[number]),
            ]
        )
        end = start + network.alpha[number] + count * network.beta[number]
        for resource, held in network.use[number].items():
            free[resource] = start + network.alpha[number] + count * held
        for i in group:
            there[transfers[i].piece, route.dst] = end
            done[i] = Transfer(piece=transfers[i].piece, route=number, start=start, end=end)
    return [done[i] for i in range(len(transfers))]


def _in_order(
    groups: Sequence[Sequence[int]], network: SketchedNetwork, transfers: Sequence[Transfer]
) -> list[Sequence[int]]:
    """The groups so that each comes after what it depends on and after what is before it on its links."""
    group_of = {i: g for g, members in enumerate(groups) for i in members}
    pairs = _dependencies(network, transfers) + [(a, b) for a, b, _ in _neighbours(network, transfers)]
    after: dict[int, set[int]] = defaultdict(set)
    waits = [0] * len(groups)
    for a, b in pairs:
        g, h = group_of[a], group_of[b]
        if g != h and h not in after[g]:
            after[g].add(h)
            waits[h] += 1
    ready = [g for g in range(len(groups)) if not waits[g]]
    order = []
    while ready:
        g = ready.pop(0)
        order.append(groups[g])
        for h in sorted(after[g]):
            waits[h] -= 1
            if not waits[h]:
                ready.append(h)
    return order


def _followers(
    pieces: Sequence[Piece], network: SketchedNetwork, transfers: Sequence[Transfer]
) -> dict[int, int]:
    """For each transfer between boxes that could go together with the one before it, that one."""
    last: dict[int, int] = {}
    found = {}
    for i, each in enumerate(transfers):
        resources = network.use[each.route]
        before = {last.get(resource) for resource in resources}
        if network.crosses(each.route) and network.alpha[each.route] > 0 and len(before) == 1:
            (a,) = before
            if a is not None and transfers[a].route == each.route:
                sender = network.routes[each.route].src
                own = [pieces[transfers[k].piece].source == sender for k in (a, i)]
                if own[0] == own[1]:
                    found[i] = a
        for resource in resources:
            last[resource] = i
    return found


def _dependencies(network: SketchedNetwork, transfers: Sequence[Transfer]) -> list[tuple[int, int]]:
    """Pairs of a transfer and one that sends on what it brings."""
    brings = {(each.piece, network.routes[each.route].dst): i for i, each in enumerate(transfers)}
    pairs = []
    for i, each in enumerate(transfers):
        before = brings.get((each.piece, network.routes[each.route].src))
        if before is not None:
            pairs.append((before, i))
    return pairs


def _neighbours(network: SketchedNetwork, transfers: Sequence[Transfer]) -> list[tuple[int, int, int]]:
    """Transfers that follow each other on a link or port, with it."""
    last: dict[int, int] = {}
    found = []
    for i, each in enumerate(transfers):
        for resource in network.use[each.route]:
            if resource in last:
                found.append((last[resource], i, resource))
            last[resource] = i
    return found


_ROOM = 2.0
"""Times the finish of the schedule that needs no solver: with less room HiGHS is slow to find a first solution."""

_SOLVED = 1e-4
"""The gap within which HiGHS is asked to stop."""

_ROUTING_SHARE = 0.7
"""Of the time that is left, for the first program."""


class SketchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of TACCL."""

    sketch: str | None = None  # CommunicationSketch file; None: one that suits the topology
    profile: str | None = None  # File with link costs; None: those of the topology
    chunk_size: str = "1M"  # Size of a chunk
    chunks: int | None = None  # Chunks of each rank's block; None: the sketch's, or what suits the links
    alpha_us: float | None = None  # Latency inside a box, in place of the topology's
    remote_alpha_us: float | None = None  # Latency between boxes, likewise
    # Nodes of the search tree for each program: unlike seconds, they stop at the same place on any machine
    nodes: int = 200


@dataclass(frozen=True, eq=False, kw_only=True)
class StagedSchedule:
    """Output of the stages for one direction."""

    pieces: Sequence[Piece]  # What is sent
    sends: Sequence[TimedSend]  # With their times in microseconds
    finish_us: float = 0.0  # When the last has arrived
    ordered_us: float = 0.0  # The same before chunks were joined
    # Share by which the routing program may still be improved; None where it found nothing
    routing_gap: float | None = 0.0
    routes_by: str = "program"  # `program` or `greedy`
    joined: int = 0  # Transfers that go together with the one before them


@dataclass
class _Stages:
    """Runs the stages, one direction after the other."""

    request: Request
    sketch: CommunicationSketch
    costs: Costs
    ways: int
    interrupted: bool = field(default=False, init=False)

    def __call__(self, copying: Copying) -> StagedSchedule:
        network = SketchedNetwork.of(copying.topology, self.sketch, self.costs)
        pieces = copying.pieces
        if not any(piece.targets for piece in pieces):
            return StagedSchedule(pieces=pieces, sends=[])
        first = self._greedy(copying, network)
        transfers, gap, by = ordered(pieces, network, first), None, "greedy"
        self.request.report(f"without a solver: {time_text(_finish(transfers))}")
        joined: set[int] = set()
        before = _finish(transfers)
        try:
            if not self.interrupted:
                hops, gap = self._route(copying, network, first, before)
                found = transfers if hops is None else ordered(pieces, network, hops)
                self.request.report(f"routed and ordered: {time_text(_finish(found))}")
                if hops is not None and _finish(found) <= before:
                    transfers, by, before = found, "program", _finish(found)
            if not self.interrupted:
                joined = self._join(pieces, network, transfers)
        except KeyboardInterrupt:
            self.interrupted = True
        final = replayed(network, transfers, joined)
        if _finish(final) > before:
            final, joined = transfers, set()
        self.ways -= 1
        return StagedSchedule(
            pieces=pieces,
            sends=[
                TimedSend(piece=each.piece, route=network.routes[each.route], start=each.start, end=each.end)
                for each in final
            ],
            finish_us=_finish(final),
            ordered_us=before,
            routing_gap=gap,
            routes_by=by,
            joined=len(joined),
        )

    def _greedy(self, copying: Copying, network: SketchedNetwork) -> Hops:
        """Routes without a solver."""
        routes = range(len(network.routes))
        sends = greedy_sends(
            copying.pieces,
            copying.topology.num_ranks,
            network.routes,
            [network.cost(route) for route in routes],
            [
                {
                    resource: LinkUse(slots=1, period=held)
                    for resource, held in network.occupied(route).items()
                }
                for route in routes
            ],
            seed=self.request.seed,
            allowed=network.allowed(copying.pieces),
        )
        number_of = {(route.src, route.dst): number for number, route in enumerate(network.routes)}
        into = {(send.piece, send.route.dst): number_of[send.route.src, send.route.dst] for send in sends}
        return needed_hops(copying.pieces, network, into)

    def _limits(self, share: float) -> SearchLimits:
        left = self.request.seconds_left
        options: SketchOptions = self.request.options
        return SearchLimits(
            seconds=None if left is None else share * left / self.ways,
            nodes=options.nodes,
            seed=self.request.seed,
        )

    def _route(
        self, copying: Copying, network: SketchedNetwork, first: Hops, horizon: float
    ) -> tuple[Hops | None, float | None]:
        """Stage 1, and the gap that it leaves."""
        self.request.report("stage 1: routing")
        least = 0.0
        if self.costs.profile is None:
            root = copying.pieces[0].source if copying.collective is Collective.BROADCAST else None
            exact = bound_of(Problem(copying.topology, copying.collective, root=root)).inv_rate
            per_block = max(piece.number for piece in copying.pieces) + 1
            least = float(exact * per_block * self.costs.chunk_bytes / 1000)
        program = RoutingProgram(copying, network, horizon=_ROOM * horizon, least=least)
        found = program.program.solve(self._limits(_ROUTING_SHARE), start=program.start_of(first))
        self.interrupted |= found.interrupted
        return program.hops(found), found.gap

    def _join(
        self, pieces: Sequence[Piece], network: SketchedNetwork, transfers: Sequence[Transfer]
    ) -> set[int]:
        """Stage 3."""
        self.request.report(f"stage 3: contiguity, {time_text(_finish(transfers))} without")
        joined, found = joined_transfers(pieces, network, transfers, self._limits(1.0))
        if found is not None:
            self.interrupted |= found.interrupted
        return joined


def _finish(transfers: Sequence[Transfer]) -> float:
    return max((each.end for each in transfers), default=0.0)


def _run(request: Request) -> Synthesis:
    options: SketchOptions = request.options
    problem = request.problem
    require_equal_sizes(problem, METHOD.name)
    _check(options)
    topology = problem.topology
    sketch = (
        suited_sketch(topology) if options.sketch is None else read_sketch(options.sketch, topology.num_ranks)
    )
    chunk_bytes = max(1, parse_size(options.chunk_size, option="`chunk_size`"))
    per_slot = options.chunks
    if per_slot is None:
        per_slot = best_chunks(problem) if options.sketch is None else sketch.hyperparameters.input_chunkup
    costs = Costs(
        chunk_bytes=chunk_bytes,
        alpha_us=options.alpha_us,
        remote_alpha_us=options.remote_alpha_us,
        profile=options.profile,
    )
    both = problem.collective is Collective.ALL_REDUCE
    stages = _Stages(request=request, sketch=sketch, costs=costs, ways=1 + both)
    schedule, answers = combined(problem, per_slot, stages, lambda answer: (answer.pieces, answer.sends))
    if both and len(answers) == 1:
        answers = [answers[0], replace(answers[0])]
    finish, before = sum(each.finish_us for each in answers), sum(each.ordered_us for each in answers)
    gaps = [each.routing_gap for each in answers]
    gap = None if None in gaps else max(each for each in gaps if each is not None)
    joined = sum(each.joined for each in answers)
    by = ", ".join(dict.fromkeys(each.routes_by for each in answers))
    routing = "not solved"
    if gap is not None:
        left = percent_text(Fraction(gap).limit_denominator(10_000))
        routing = f"within {left} of the program's optimum" if gap > _SOLVED else "optimal for the program"
    words = [
        ("routing", f"{routing}; routes by {by}"),
        ("predicted", f"{time_text(finish)} for chunks of {size_text(chunk_bytes)}"),
    ]
    if joined:
        words.append(("joined", f"{joined} chunks go with the one before; {time_text(before)} without"))
    return Synthesis(
        status=Status.SAT,
        body=schedule,
        parameters={
            "sketch": options.sketch,
            "profile": options.profile,
            "chunk_bytes": chunk_bytes,
            "chunks": per_slot,
        },
        interrupted=stages.interrupted,
        details={
            "predicted_us": finish,
            "ordered_us": before,
            "routing_gap": gap,
            "routes_by": by,
            "joined": joined,
            "sketch": msgspec.to_builtins(sketch),
        },
        words=tuple(words),
    )


def _check(options: SketchOptions) -> None:
    """Refuse options without meaning."""
    for name, least in (("chunks", 1), ("nodes", 1), ("alpha_us", 0), ("remote_alpha_us", 0)):
        value = getattr(options, name)
        if value is not None and not value >= least:
            raise InputError(f"expected `{name}` to be {least} or more, found {value}.")


METHOD = SynthesisMethod(
    name="taccl",
    about="routing, ordering, contiguity by a communication sketch: TACCL (NSDI'23)",
    collectives=COLLECTIVES,
    options=SketchOptions,
    run=_run,
)
"""TACCL."""
