"""`compare`: simulate every applicable algorithm at every size, in parallel processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

from coppice.arguments import checked
from coppice.bounds.attainable import in_network_optimum
from coppice.bounds.network import check_problem
from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem, problem_of
from coppice.collectives import Collective
from coppice.comparison.in_network import modelled_systems
from coppice.comparison.measurement import (
    BOTH_ORDERS,
    AlgorithmVariant,
    MeasurementJob,
    SimulatedTime,
    SynthesizedVariant,
    candidates,
    given_candidates,
    measure,
    packed,
    synthesized_candidates,
)
from coppice.comparison.outcome import Comparison
from coppice.comparison.pool import chosen_executor, run
from coppice.comparison.results import MeasurementsFile, key_of, problem_sha256
from coppice.errors import InputError
from coppice.options.shared import USUAL_SIZES
from coppice.planners.choice import optimal_planner
from coppice.schedule.files.set_file import is_plan_set
from coppice.simulation.latency import least_latency
from coppice.simulation.least_time import LeastTimes
from coppice.simulation.models import Model, model_of
from coppice.text import sizes_of

SMALL = 20_000
"""Up to this many ranks x ranks x candidates x sizes the work is done before processes have started."""

MANY_RANKS = 256
MOST_HELPED = 256
"""Ranks up to which the work of switches is compared without being asked for: its plans are linear programs."""

FEW_SIZES = 4
"""From more ranks than that on, a job has so many sizes only: less is lost when it is interrupted."""


@checked
def compare(
    problem: Any,
    collective: Collective | str | None = None,
    *,
    sizes: str | int | Sequence[int | str] = USUAL_SIZES,
    root: int | None = None,
    weights: Sequence[int] | None = None,
    demands: Sequence[Sequence[int]] | None = None,
    algorithms: Iterable[Any] | None = None,
    synthesize: Iterable[str] = (),
    synthesis_time_limit_s: float | None = 60.0,
    seed: int = 0,
    model: Model | str | os.PathLike[str] | None = None,
    order: str = BOTH_ORDERS,
    relay_gpus: bool | None = None,
    in_network: bool | None = None,
    systems: Iterable[str] = (),
    executor: Executor | None = None,
    jobs: int | None = None,
    results: str | os.PathLike[str] | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> Comparison:
    """Simulate every algorithm for a collective and compare the times with the lower bounds.

    The outcome depends on nothing but the problem, the sizes, the algorithms and the model: not on the executor, the
    number of processes, or how often the work was interrupted. Methods of synthesis are the exception where their time
    limit ends them.

    Raises:
        InputError: If the problem has no meaning, a name or size cannot be used, or ``results`` belongs to another
            problem.
        UnreachableError: If some rank cannot be reached.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(topology=preset("star", gpus=4), collective=Collective.ALL_GATHER)
        >>> found = compare(problem, sizes=[1024, 2**20], algorithms=["ring"], jobs=1)
        >>> found.best(1024).algorithm
        'ring'
    """
    chosen = model_of(model)
    problem = problem_of(problem, collective, root=root, weights=weights, demands=demands)
    check_problem(problem)
    wanted = _sizes(problem, sizes_of(sizes))
    asked = list(systems)
    modelled = modelled_systems(problem, asked, sizes=wanted, model=chosen) if asked else None
    wished = None if algorithms is None else list(algorithms)
    given = [each for each in wished or () if not isinstance(each, str) or _is_plan(each)]
    names = None if wished is None else [each for each in wished if each not in given]
    helping, relaying = in_network is True, relay_gpus is True
    tried: list[AlgorithmVariant] = []
    if names or not given:
        tried = candidates(problem, names, order=order, relay_gpus=relaying, in_network=helping)
    tried += given_candidates(problem, given)
    tried += synthesized_candidates(synthesize, seed=seed, time_limit_s=synthesis_time_limit_s)
    plain = bound_of(problem)
    file = MeasurementsFile(results, problem)

    def measured(some: Sequence[AlgorithmVariant]) -> list[SimulatedTime]:
        return _measured(
            problem, some, wanted, file, chosen, executor=executor, processes=jobs, on_progress=on_progress
        )

    rows = measured(tried)
    if relay_gpus is None:
        apart = _lacking(rows, lambda row: row.unreachable)
        if apart:
            relaying = True
            again = candidates(problem, apart, order=order, relay_gpus=True, in_network=helping)
            rows = [row for row in rows if row.algorithm not in apart] + measured(again)
    found = Comparison(
        problem=problem,
        model=chosen,
        sizes=wanted,
        optimum=in_network_optimum(plain) if helping else plain,
        latency=least_latency(problem, chosen, relay_gpus=relaying),
        least=LeastTimes(problem, chosen, relay_gpus=relaying, helped=helping),
        measurements=tuple(rows),
        modelled=modelled,
    )
    helped = _lacking(rows, lambda row: row.needs_switches) if in_network is None else []
    if not helped or problem.topology.num_ranks > MOST_HELPED or not _switches_help(problem):
        return found
    optimal = optimal_planner(problem.collective)
    if optimal is not None and (names is None or optimal in names):
        helped = [optimal, *helped]
    tried = candidates(problem, helped, order=order, relay_gpus=relaying, in_network=True)
    rows = measured([each for each in tried if each.in_network])
    beside = replace(
        found,
        optimum=in_network_optimum(plain),
        least=LeastTimes(problem, chosen, relay_gpus=relaying, helped=True),
        measurements=tuple(rows),
        modelled=None,
    )
    return replace(found, helped=beside) if beside.times else found


def _is_plan(name: str) -> bool:
    """Whether a name is that of a plan file or of a set of plans, rather than of an algorithm."""
    return name.endswith(".json") or is_plan_set(name)


def _lacking(rows: Iterable[SimulatedTime], why: Callable[[SimulatedTime], bool]) -> list[str]:
    """Algorithms of which no variant applies, one of them for such a reason."""
    timed, found = set(), dict[str, bool]()
    for row in rows:
        if row.refusal is None:
            timed.add(row.algorithm)
        else:
            found[row.algorithm] = found.get(row.algorithm, False) or why(row)
    return [name for name, holds in found.items() if holds and name not in timed]


def _switches_help(problem: Problem) -> bool:
    """Whether some switch copies or adds what the collective lets it."""
    topology = problem.topology
    able = bool(topology.multicast.any() or topology.aggregate.any())
    return able and problem.collective.made_of_trees


def _measured(
    problem: Problem,
    tried: Sequence[AlgorithmVariant],
    sizes: Sequence[int],
    file: MeasurementsFile,
    model: Model,
    *,
    executor: Executor | None,
    processes: int | None,
    on_progress: Callable[[int, int, str], None] | None,
) -> list[SimulatedTime]:
    """Every candidate at every size, in this order, from the file or by simulation."""
    problem_hash = problem_sha256(problem)
    keys = {
        (position, size): key_of(problem_hash, candidate, size, model)
        for position, candidate in enumerate(tried)
        for size in sizes
    }
    work = _work(problem, tried, sizes, keys, file, model)
    many = len(work) > 1 and problem.topology.num_ranks**2 * sum(len(job.keys) for job in work) > SMALL
    with chosen_executor(executor, processes=processes, units=len(work), large=many) as where:
        for done, rows in enumerate(run(measure, work, where), start=1):
            file.add(rows)
            if on_progress is not None:
                on_progress(done, len(work), rows[0].algorithm if rows else "")
    return [file.known[key] for key in keys.values()]


def _sizes(problem: Problem, sizes: Sequence[int]) -> tuple[int, ...]:
    """The sizes in order, each once."""
    if problem.collective is Collective.BARRIER:
        return (0,)
    if not sizes or min(sizes) < 1:
        found = "none" if not sizes else str(min(sizes))
        raise InputError(f"expected sizes of 1 byte or more, found {found}: give some, such as 1K:4G.")
    return tuple(sorted(set(sizes)))


def _work(
    problem: Problem,
    tried: Sequence[AlgorithmVariant],
    sizes: Sequence[int],
    keys: dict[tuple[int, int], str],
    file: MeasurementsFile,
    model: Model,
) -> list[MeasurementJob]:
    """What the results file does not hold yet: a job for each candidate, several where a job would take minutes."""
    data = packed(problem)
    found = []
    few = problem.topology.num_ranks <= MANY_RANKS
    for position, candidate in enumerate(tried):
        together = len(sizes) if few or isinstance(candidate, SynthesizedVariant) else FEW_SIZES
        missing = [size for size in sizes if keys[position, size] not in file.known]
        for first in range(0, len(missing), together):
            open_keys = {size: keys[position, size] for size in missing[first : first + together]}
            found.append(MeasurementJob(problem=data, candidate=candidate, keys=open_keys, model=model))
    return found
