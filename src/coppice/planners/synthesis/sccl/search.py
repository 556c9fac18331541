"""The method ``sccl``: schedules of S steps, R rounds and C chunks, exact by satisfiability.

Z. Cai, Z. Liu, S. Maleki, M. Musuvathi, T. Mytkowicz, J. Nelson, O. Saarikivi, "Synthesizing optimal collective
algorithms", PPoPP 2021. A schedule runs in S steps; step s takes r_s >= 1 rounds, R in all; in a round a link carries
as many chunks as its rate is a multiple of the slowest one's. Its time is S alpha + R / C times that of a block on the
slowest link, so the schedules that no other beats lie between the fewest steps and the fewest rounds per chunk.

What is added to the paper: bounds that no number of chunks goes below (:mod:`.relaxation`), so that a front is proved
to be all there is; symmetric schedules first (:mod:`.model`); switches by the links that routes share (:mod:`.routes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import msgspec

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.synthesis.method import Request, Status, Synthesis, SynthesisMethod
from coppice.planners.synthesis.sccl.deciding import decider_of, schedule_from
from coppice.planners.synthesis.sccl.encoding import require_z3
from coppice.planners.synthesis.sccl.fronts import AskedInstance, InstanceSearch, most_chunks
from coppice.text import plural, rate_text
from coppice.topology.model import exact_rate

_ANY = "with any number of chunks"


class ScclOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the method; what is left out of steps, rounds and chunks is chosen as the best."""

    steps: int | None = None  # Steps S
    rounds: int | None = None  # Rounds R of all steps together
    # Chunks C of every block (of weight 1): of each rank's in an all-gather, of each pair's in an all-to-all.
    # For a front, up to so many.
    chunks: int | None = None
    pareto: bool = False  # All pairs of steps and rounds per chunk that no other beats
    detour: int = 0  # StepRoutes may have so many hops through switches more than the shortest
    # The rate that carries one chunk in a round, such as 25 or 25/2 [default: the slowest link's]
    round_gb_per_s: str | int | float | None = None
    # Of the solver, after which an instance is left undecided, so that a choice or a front ends; 0: never.
    # One in a formula of n thousand literals counts n times. An instance that is given by steps, rounds and
    # chunks is searched to the end.
    conflicts: int = 10_000


def _run(request: Request) -> Synthesis:
    require_z3()
    options: ScclOptions = request.options
    _check(options)
    rate = options.round_gb_per_s
    unit = None if rate is None else exact_rate(rate, where="`round_gb_per_s`")
    decider, unit = decider_of(request, detour=options.detour, round_gb_per_s=unit)
    search = InstanceSearch(decider, request, options.conflicts or None)
    interrupted = False
    try:
        if options.pareto:
            status = search.find_front(options.chunks)
        else:
            status = search.find(
                AskedInstance(steps=options.steps, rounds=options.rounds, chunks=options.chunks)
            )
    except KeyboardInterrupt:
        if search.best is None:
            raise
        status, interrupted = Status.SAT, True
    report = _ScclReport(search, unit, options)
    if search.best is None or status is not Status.SAT:
        return Synthesis(status=status, details=report.details(), words=report.words())
    instance, verdict = search.best
    return Synthesis(
        status=status,
        body=schedule_from(request.problem, instance, verdict),
        parameters={
            "steps": instance.steps,
            "rounds": instance.rounds,
            "chunks": instance.chunks,
            "round_gb_per_s": str(unit),
            "detour": options.detour,
            "seed": request.seed,
        },
        interrupted=interrupted,
        details=report.details(),
        words=report.words(),
    )


def _check(options: ScclOptions) -> None:
    """Refuse options that make no instance."""
    if options.pareto and (options.steps is not None or options.rounds is not None):
        raise InputError(
            "a front has all steps and rounds that are of use: leave out `steps` and `rounds`, or `pareto`."
        )
    for name, least in (("steps", 0), ("rounds", 0), ("chunks", 1), ("detour", 0), ("conflicts", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise InputError(f"expected `{name}` to be {least} or more, found {value}: correct it.")


@dataclass(frozen=True)
class _ScclReport:
    """What a search has to say."""

    search: InstanceSearch
    unit: Fraction
    options: ScclOptions

    def details(self) -> Mapping[str, Any]:
        """As JSON values."""
        search, decider = self.search, self.search.decider
        found: dict[str, Any] = {
            "round_gb_per_s": str(self.unit),
            "fewest_steps": decider.fewest_steps,
            "least_rounds_per_chunk": str(decider.least),
            "proved": self._proved,
            "proved_for": self._proved_for,
            "most_chunks": self._most_chunks(),
        }
        if search.why:
            found["why"] = search.why
        if search.best is not None:
            instance, verdict = search.best
            found |= {
                "steps": instance.steps,
                "rounds": instance.rounds,
                "chunks": instance.chunks,
                "rounds_per_step": list(verdict.rounds),
                "rounds_per_chunk": str(Fraction(instance.rounds, instance.chunks)),
                "least_rounds_per_chunk_in_steps": str(decider.least_in(instance.steps)),
            }
        if self.options.pareto:
            found |= {
                "front": [[each.steps, each.rounds, each.chunks] for each in search.front],
                "proved_for_any_chunks": search.proved_for_any_chunks,
                "decided": [
                    [each.steps, each.rounds, each.chunks, status.value]
                    for each, status in search.decided.items()
                ],
            }
        return found

    def words(self) -> tuple[tuple[str, str], ...]:
        """For people."""
        decider = self.search.decider
        least = f"{plural(decider.fewest_steps, 'step')}; {decider.least} rounds per chunk"
        lines = [("no schedule has less", least), *self._answer()]
        return (*lines, ("a round", f"one chunk at {rate_text(self.unit)} GB/s"))

    def _answer(self) -> list[tuple[str, str]]:
        search = self.search
        if self.options.pareto:
            front = "  ".join(str(each) for each in search.front) or "none found"
            return [("front", front), ("proved", self._front_proof())]
        if search.best is None:
            return [("why", search.why)] if search.why else []
        instance, verdict = search.best
        steps = " + ".join(str(rounds) for rounds in verdict.rounds) or "0"
        lines = [
            ("steps, rounds, chunks", str(instance)),
            ("rounds per chunk", f"{Fraction(instance.rounds, instance.chunks)} (steps of {steps})"),
        ]
        if self._free:
            lines.append(("chosen", f"the least rounds per chunk, then steps{self._up_to()}"))
        return lines

    @property
    def _free(self) -> bool:
        """Something was left to be chosen."""
        return None in (self.options.steps, self.options.rounds, self.options.chunks)

    @property
    def _proved(self) -> bool:
        """Nothing better of what was asked for was left undecided: with any number of chunks where none was given."""
        return self.search.proved and (self.options.chunks is not None or self._any_chunks)

    @property
    def _proved_for(self) -> str:
        """Among what nothing better exists, in words; empty where instances were left undecided."""
        if not self.search.proved:
            return ""
        if self._any_chunks:
            return _ANY
        up_to = "" if self.options.chunks is not None and not self.options.pareto else "up to "
        return f"with {up_to}{plural(self._most_chunks(), 'chunk')}"

    @property
    def _any_chunks(self) -> bool:
        """Bounds leave no room for something better with more chunks than were looked at."""
        search, options = self.search, self.options
        if options.pareto:
            return search.proved_for_any_chunks
        if search.best is None:  # what one chunk cannot do, more cannot
            return search.proved and options.chunks is None
        if options.chunks is not None:
            return False
        instance, decider = search.best[0], search.decider
        if options.rounds is not None:
            return instance.rounds < decider.least * (self._most_chunks() + 1)
        ratio, fewest = Fraction(instance.rounds, instance.chunks), decider.fewest_steps
        if options.steps is not None:
            return ratio == decider.least_in(instance.steps)
        fewer_steps = instance.steps > fewest and decider.least_in(instance.steps - 1) == ratio
        return ratio == decider.least and not fewer_steps

    def _up_to(self) -> str:
        """Among how many chunks, and whether that was proved."""
        if not self.search.proved:
            return "; the best found, others were left undecided"
        return f", {self._proved_for}"

    def _front_proof(self) -> str:
        if not self.search.proved:
            return "not all of it: some instances were left undecided"
        return f"nothing else is better {self._proved_for}"

    def _most_chunks(self) -> int:
        return most_chunks(self.search.decider) if self.options.chunks is None else self.options.chunks


METHOD = SynthesisMethod(
    name="sccl",
    about="schedules of given steps, rounds and chunks, exact by satisfiability (PPoPP'21)",
    collectives=tuple(each for each in Collective if each is not Collective.BARRIER),
    options=ScclOptions,
    run=_run,
)
