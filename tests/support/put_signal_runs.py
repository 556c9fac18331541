"""Programs of every planner on one topology, and their runs under adversarial schedules."""

from __future__ import annotations

from collections.abc import Iterator

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import CoppiceError
from coppice.planners.algorithms.catalogue import algorithms, case_of, make
from coppice.planners.planning import plan
from coppice.planners.synthesis.synthesizing import synthesize
from coppice.program.dialects.put_signal.fuzzer import FuzzRuns, fuzz
from coppice.program.dialects.put_signal.lower import lower_put_signal
from coppice.program.dialects.put_signal.program import PutSignalProgram
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.topology.model import Topology
from support.put_signal_cases import problem

PLANNERS = ("forest", "classic", "synthesis")
"""The exact planner; every algorithm by name that the topology takes; TACOS, which takes every topology."""

SIZES = (1, 3, 64)
"""Numbers of 8 bytes in a chunk. Smaller chunks hold the first words of larger ones, and no schedule depends on what
chunks hold, so that a run of the largest is one of each."""
SIZES_OF_MANY = (1, 2, 3)
"""The same for programs of so many chunks that larger ones would take a gigabyte or more."""
_MANY_BYTES = 2**30


def programs_of(
    topology: Topology, planner: str, collective: Collective
) -> Iterator[tuple[str, PutSignalProgram]]:
    """Programs and their names; none where the planner does not serve the case."""
    for name, body in _bodies(problem(topology, collective), planner):
        try:
            program = lower_put_signal(body, name=name)
        except CoppiceError:  # shares that make no equal chunks
            continue
        yield name, program


def _bodies(asked: Problem, planner: str) -> Iterator[tuple[str, Forest | Schedule]]:
    """Plans; what a planner refuses is left out."""
    try:
        if planner == "forest":
            yield "forest", plan(asked).plan.body
        elif planner == "synthesis":
            yield "tacos", synthesize(asked, method="tacos").plan.body
    except CoppiceError:
        return
    for (name, collective), entry in algorithms().items() if planner == "classic" else ():
        if collective is asked.collective:
            try:
                body = make(entry, case_of(entry, asked))
            except CoppiceError:
                continue
            yield name, body


def run_in_every_way(program: PutSignalProgram, schedules: int) -> FuzzRuns:
    """All sizes at once, out of place and in place as far as it is meant for both."""
    slots = 2 * program.num_ranks * program.num_chunks + int(program.staging.sum())
    elements = max(SIZES if 8 * max(SIZES) * slots < _MANY_BYTES else SIZES_OF_MANY)
    done = [
        fuzz(program, in_place=in_place, elements=elements, schedules=schedules)
        for in_place, meant in ((False, program.out_of_place), (True, program.in_place))
        if meant
    ]
    return FuzzRuns(runs=sum(each.runs for each in done), actions=sum(each.actions for each in done))
