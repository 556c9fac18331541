"""TE-CCL (Liu and others, SIGCOMM'24): a collective as a multi-commodity flow in the fewest epochs.

Whole chunks that ranks copy are
a mixed-integer program, or a chain of smaller ones (A*); fractions that nobody copies are a linear program. Switches
are hyper-edges: none of them copies. How many epochs there are is searched from above, beginning with a schedule that
needs no solver, and from below, beginning with Coppice's exact bound, which the method itself does not know: where the
two meet, no schedule has fewer epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import msgspec

from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.synthesis.mip.greedy import distances, greedy_sends
from coppice.planners.synthesis.mip.program import SearchLimits
from coppice.planners.synthesis.mip.routes import routes_of
from coppice.planners.synthesis.synthesizing import Request, Status, Synthesis, SynthesisMethod
from coppice.planners.synthesis.te_ccl.programs import Clock, CopyProgram, FlowProgram, program_size, pruned
from coppice.planners.synthesis.timed import (
    COLLECTIVES,
    Copying,
    Piece,
    TimedSend,
    combined,
    require_equal_sizes,
)
from coppice.schedule.plan import Parameter
from coppice.text import parse_size, size_text, suggestion, time_text

MOST_WHOLE = 4_000
"""Whole variables up to which a program is solved without being asked for."""

MOST_FRACTIONS = 100_000
"""Flow variables up to which a linear program is solved without being asked for."""

_ANY_GAP = 1e9
"""Of a program of so many epochs any solution will do."""

_ROUND_GAP = 0.05
"""How far a round may be from its best."""

_JITTER = 0.3


class EpochOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of TE-CCL."""

    chunks: int = 1  # Chunks of each rank's block
    chunk_size: str = "1M"  # Size of a chunk, where latency counts
    # `fastest`: an epoch is the time of a chunk on the fastest link; `slowest`: on the slowest
    epoch: str = "fastest"
    epoch_multiplier: int = 1  # So many times as long
    # Find a schedule of so many epochs, or prove that there is none; None: the fewest
    epochs: int | None = None
    # `milp` (whole chunks), `rounds` (A*), `lp` (fractions; all_to_all only), `greedy` (none), or `auto`
    solver: str = "auto"
    round_epochs: int = 4  # Epochs of a round
    tries: int = 16  # First schedules, of which the best is taken
    # Nodes of the search tree for each program: unlike seconds, they stop at the same place on any machine
    nodes: int = 200


@dataclass(frozen=True, eq=False, kw_only=True)
class EpochSchedule:
    """Result for one direction."""

    clock: Clock  # The epochs
    pieces: Sequence[Piece]  # What was sent, a block perhaps in several shares
    sends: Sequence[TimedSend] | None  # The best schedule; None where none was found
    epochs: int  # How many it takes
    least: int  # So many epochs are needed, as is proved
    none: bool = False  # It is proved that there is none of the number of epochs that was asked for
    found_by: str = "greedy"  # What found it


@dataclass
class EpochSearch:
    """Search each direction within one request."""

    request: Request  # What was asked
    options: EpochOptions  # Its options
    chunk_bytes: int  # Size of a chunk
    ways: int  # Directions that are still to come, this one included; they share the time that is left
    interrupted: bool = False  # Ctrl-C came: what is still needed is made without a search
    _best: EpochSchedule | None = field(default=None, init=False)

    def __call__(self, copying: Copying) -> EpochSchedule:
        """The schedule of one direction."""
        self._best = None
        topology, ranks = copying.topology, copying.topology.num_ranks
        options = self.options
        clock = Clock.of(
            topology,
            routes_of(topology),
            chunk_bytes=self.chunk_bytes,
            fastest=options.epoch == "fastest",
            multiplier=options.epoch_multiplier,
        )
        known = EpochSchedule(clock=clock, pieces=copying.pieces, sends=[], epochs=0, least=0)
        if not any(piece.targets for piece in copying.pieces):
            return known
        least = self._least(copying, clock)
        try:
            self._first(copying.pieces, ranks, clock, least)
            if not self.interrupted:
                self._improve(copying, ranks, least)
        except KeyboardInterrupt:
            if self._best is None:
                raise
            self.interrupted = True
        self.ways -= 1
        found = self._best
        assert found is not None
        asked = options.epochs
        if asked is not None and found.epochs > asked:
            return EpochSchedule(
                clock=clock,
                pieces=copying.pieces,
                sends=None,
                epochs=found.epochs,
                least=found.least,
                none=found.least > asked,
            )
        return found

    def _least(self, copying: Copying, clock: Clock) -> int:
        """Epochs that any schedule takes: by the exact bound, and by the farthest rank."""
        root = copying.pieces[0].source if copying.collective is Collective.BROADCAST else None
        exact = bound_of(Problem(copying.topology, copying.collective, root=root)).inv_rate
        fluid = self.options.solver == "lp"
        transit = [1 + delay for delay in clock.delay] if fluid else clock.transit
        dist = distances(copying.topology.num_ranks, clock.routes, transit)
        far = max(int(dist[piece.source, t]) for piece in copying.pieces for t in piece.targets)
        return max(ceil(exact * self.options.chunks / clock.epoch), far)

    def _first(self, pieces: Sequence[Piece], ranks: int, clock: Clock, least: int) -> None:
        """The best of some schedules without a solver."""
        tries = 1 if self.interrupted else self.options.tries
        for number in range(tries):
            sends = greedy_sends(
                pieces,
                ranks,
                clock.routes,
                clock.transit,
                clock.use,
                seed=self.request.seed * self.options.tries + number,
                jitter=_JITTER if number else 0.0,
            )
            self._keep(clock, pieces, sends, least, "greedy")
            if self._done or self.request.seconds_left == 0:
                return

    def _keep(
        self, clock: Clock, pieces: Sequence[Piece], sends: Sequence[TimedSend], least: int, found_by: str
    ) -> None:
        """Remember a schedule if it is the best so far."""
        epochs = round(max(send.end for send in sends))
        asked = found_by == self.options.solver and self._best is not None and epochs == self._best.epochs
        if self._best is None or epochs < self._best.epochs or asked:
            self._best = EpochSchedule(
                clock=clock, pieces=pieces, sends=sends, epochs=epochs, least=least, found_by=found_by
            )
            self.request.report(f"{found_by}: {epochs} epochs, at least {least}")

    @property
    def _done(self) -> bool:
        """Whether nothing better is wanted."""
        best, asked = self._best, self.options.epochs
        return best is not None and (
            best.epochs <= best.least or (asked is not None and best.epochs <= asked)
        )

    def _improve(self, copying: Copying, ranks: int, least: int) -> None:
        best, solver = self._best, self.options.solver
        assert best is not None
        if self.options.epochs is not None and self.options.epochs < least:
            return
        if solver == "auto":
            size = program_size(best.pieces, best.clock, best.epochs)
            if copying.collective is Collective.ALL_TO_ALL:
                # The flows of a source are one, so that there are as many fewer.
                solver = "lp" if size <= MOST_FRACTIONS * (ranks - 1) else "greedy"
            else:
                solver = "milp" if size <= MOST_WHOLE else "greedy"
        if solver == "lp" and not (self._done and self.options.solver == "auto"):
            self._flow(copying.pieces, ranks, best.clock, least)
        elif solver == "rounds" and not self._done:
            self._rounds(copying.pieces, ranks, best.clock, least)
        elif solver == "milp":
            self._shorten(copying.pieces, ranks, best.clock)

    def _limits(self, gap: float) -> SearchLimits:
        left = self.request.seconds_left
        return SearchLimits(
            seconds=None if left is None else left / self.ways,
            nodes=self.options.nodes,
            gap=gap,
            seed=self.request.seed,
        )

    def _shorten(self, pieces: Sequence[Piece], ranks: int, clock: Clock) -> None:
        """Programs of one epoch less than the best known, until there is none or the limits are reached."""
        while not self._done and self.request.seconds_left != 0:
            best = self._best
            assert best is not None
            asked = self.options.epochs
            epochs = best.epochs - 1 if asked is None else asked
            self.request.report(f"program of {epochs} epochs, at least {best.least}")
            copies = CopyProgram(pieces, ranks, clock, epochs)
            found = copies.program.solve(self._limits(_ANY_GAP))
            if found.values is not None:
                sends = pruned(pieces, copies.sends(found))
                self._keep(clock, pieces, sends, best.least, "milp")
            elif found.infeasible:
                self._best = _with_least(best, epochs + 1)
            if found.interrupted:
                raise KeyboardInterrupt
            if found.values is None:
                return

    def _rounds(self, pieces: Sequence[Piece], ranks: int, clock: Clock, least: int) -> None:
        """Rounds of a few epochs, each bringing the pieces as near as it can (A*)."""
        sends: list[TimedSend] = []
        best = self._best
        assert best is not None
        first, length = 0, self.options.round_epochs
        while not _complete(pieces, sends):
            if first >= best.epochs or self.request.seconds_left == 0:
                return
            self.request.report(f"round of epochs {first} .. {first + length - 1}, best {best.epochs}")
            part = CopyProgram(pieces, ranks, clock, length, before=sends, first=first, final=False)
            found = part.program.solve(self._limits(_ROUND_GAP))
            if found.interrupted:
                raise KeyboardInterrupt
            sends += part.sends(found)
            first += length
        self._keep(clock, pieces, pruned(pieces, sends), least, "rounds")

    def _flow(self, pieces: Sequence[Piece], ranks: int, clock: Clock, least: int) -> None:
        """The fewest epochs in which fractions can flow."""
        best = self._best
        assert best is not None
        asked = self.options.epochs
        for epochs in range(least, (best.epochs if asked is None else asked) + 1):
            if self.request.seconds_left == 0:
                return
            self.request.report(f"linear program of {epochs} epochs, best {best.epochs}")
            flow = FlowProgram(pieces, ranks, clock, epochs)
            found = flow.program.solve(self._limits(_ANY_GAP))
            if found.interrupted:
                raise KeyboardInterrupt
            if found.optimal:
                parts, sends = flow.walks(found)
                self._keep(clock, parts, sends, epochs, "lp")
                return
            if not found.infeasible:
                return
            self._best = _with_least(best, epochs + 1)


def _with_least(best: EpochSchedule, least: int) -> EpochSchedule:
    """The same schedule with a better proof of how few epochs there can be."""
    return replace(best, least=max(best.least, least))


def _complete(pieces: Sequence[Piece], sends: Sequence[TimedSend]) -> bool:
    """Whether every piece is where it has to be, or on the way there."""
    there = {(send.piece, send.route.dst) for send in sends}
    return all((p, t) in there for p, piece in enumerate(pieces) for t in piece.targets)


_CHOICES = {"epoch": ("fastest", "slowest"), "solver": ("auto", "milp", "rounds", "lp", "greedy")}


def _run(request: Request) -> Synthesis:
    options: EpochOptions = request.options
    problem = request.problem
    require_equal_sizes(problem, METHOD.name)
    _check(options, problem.collective)
    chunk_bytes = parse_size(options.chunk_size, option="`chunk_size`")
    both = problem.collective is Collective.ALL_REDUCE
    search = EpochSearch(request=request, options=options, chunk_bytes=max(1, chunk_bytes), ways=1 + both)
    schedule, answers = combined(
        problem, options.chunks, search, lambda answer: (answer.pieces, answer.sends or [])
    )
    if len(answers) == 1 and both:
        answers *= 2
    parameters: dict[str, Parameter] = {
        "chunks": options.chunks,
        "chunk_bytes": chunk_bytes,
        "epoch": options.epoch,
        "epoch_multiplier": options.epoch_multiplier,
    }
    if any(answer.sends is None for answer in answers):
        none = all(answer.none for answer in answers if answer.sends is None)
        return Synthesis(
            status=Status.UNSAT if none else Status.UNKNOWN,
            parameters=parameters,
            interrupted=search.interrupted,
            details={"least_epochs": max(answer.least for answer in answers)},
            words=(("epochs", f"{max(answer.least for answer in answers)} or more"),),
        )
    epochs, least = sum(each.epochs for each in answers), sum(each.least for each in answers)
    return Synthesis(
        status=Status.SAT,
        body=schedule,
        parameters={**parameters, "epochs": epochs},
        interrupted=search.interrupted,
        **_account(_blocks(problem), options, answers, epochs, least, chunk_bytes),
    )


def _blocks(problem: Problem) -> int:
    """Blocks in M: an all-reduce is carried out as one of each rank."""
    return problem.topology.num_ranks if problem.collective is Collective.ALL_REDUCE else int(problem.shards)


def _account(
    blocks: int,
    options: EpochOptions,
    answers: Sequence[EpochSchedule],
    epochs: int,
    least: int,
    chunk_bytes: int,
) -> dict[str, Any]:
    """What there is to say about a schedule."""
    clock = answers[0].clock
    seconds = sum(answer.epochs * answer.clock.epoch for answer in answers)
    rate = float(blocks * options.chunks / seconds) if seconds else None
    gap = 1 - least / epochs if epochs else 0.0
    found_by = ", ".join(dict.fromkeys(answer.found_by for answer in answers))
    proved = "no schedule has fewer" if least >= epochs else f"{least} or more are needed"
    details = {
        "epochs": epochs,
        "least_epochs": least,
        "solver_gap": gap,
        "epoch_us": clock.epoch_us,
        "found_by": found_by,
        "finish_algbw_gb_per_s": rate,
    }
    words = [
        (
            "epochs",
            f"{epochs} of {time_text(clock.epoch_us)} for chunks of {size_text(chunk_bytes)}: {proved}",
        ),
        ("found by", found_by),
    ]
    if rate is not None:
        words.append(("carried out once", f"algbw {rate:.6g} GB/s from the first epoch to the last"))
    return {"details": details, "words": tuple(words)}


def _check(options: EpochOptions, collective: Collective) -> None:
    """Refuse options without meaning."""
    for name in ("chunks", "epoch_multiplier", "round_epochs", "tries", "nodes", "epochs"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InputError(f"expected `{name}` to be 1 or more, found {value}.")
    for name, known in _CHOICES.items():
        value = getattr(options, name)
        if value not in known:
            raise InputError(
                f"expected `{name}` to be {', '.join(known)}, found {value!r}: {suggestion(value, known)}"
            )
    if options.solver == "lp" and collective is not Collective.ALL_TO_ALL:
        raise InputError(
            f"fractions that nobody copies serve all_to_all, found {collective}: leave out `solver='lp'`."
        )
    if options.solver == "lp" and options.chunks > 1:
        raise InputError("a linear program cuts blocks by itself, found `chunks` beside it: leave one out.")


METHOD = SynthesisMethod(
    name="te-ccl",
    about="flows in epochs by linear and mixed-integer programs: TE-CCL (SIGCOMM'24)",
    collectives=COLLECTIVES,
    options=EpochOptions,
    run=_run,
)
"""TE-CCL."""
