"""Choose Open MPI's fastest algorithm at each size by comparing all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison.measurement import SimulatedTime
from coppice.comparison.outcome import Comparison
from coppice.comparison.sweep import compare
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import Value
from coppice.planners.algorithms.catalogue import find
from coppice.schedule.plan import Plan
from coppice.selection import SelectionRequest, select, tables_of
from coppice.selection.selection import decide, parse_rules
from coppice.selection.tables import FUNCTIONS, SEGMENTED, FunctionEntry, algorithms_of
from coppice.simulation.models import ALPHA_BETA, Model, model_of
from coppice.topology.model import Topology

COMPARED = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST, Collective.REDUCE)

WORTH = 0.03
"""Share of the time of Open MPI's own choice that another one must save."""


@dataclass(frozen=True, kw_only=True)
class OmpiChoice:
    """Best algorithm of Open MPI at one size."""

    size_bytes: int  # M
    id: int = 0  # Number of the algorithm, 0 leaves the choice to Open MPI
    name: str = ""  # Its name, empty for 0
    fanout: int = 0  # Number of chains, 0 where it has none
    segment_bytes: int = 0  # Size of a segment, 0 for whole messages
    time_us: float = 0.0  # Simulated time
    # Simulated time of what Open MPI would pick by itself, None where it was not compared
    default_us: float | None = None


def compared(
    topology: Topology,  # Where it runs, one rank on each GPU
    collective: Collective,  # A key of :data:`~coppice.selection.tables.FUNCTIONS`
    sizes: Sequence[int],  # Sizes M in bytes
    *,
    # What messages cost, a model or its name or file; None is `alpha-beta`, a microsecond a message: the default
    # of GPU libraries has protocols that MPI has not
    model: Model | str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    relay_gpus: bool = False,  # GPUs pass on what others send each other, as routers of a direct network do
    # Told the units done, those in all, and what was done last
    on_progress: Callable[[int, int, str], None] | None = None,
) -> Comparison:
    """Compare Open MPI's algorithms for a collective, with ranks in their given order."""
    names = {entry.ours for _, entry in _algorithms(collective)}
    problem = Problem(topology=topology, collective=collective, root=0 if collective.rooted else None)
    return compare(
        problem,
        sizes=sizes,
        algorithms=sorted(name for name in names if name),
        model=ALPHA_BETA if model is None else model_of(model),
        order="rank",
        relay_gpus=relay_gpus,
        jobs=jobs,
        on_progress=on_progress,
    )


def choices_of(comparison: Comparison, version: Sequence[int] | None = None) -> tuple[OmpiChoice, ...]:
    """Best choice at every size of a comparison.

    The fastest algorithm that Open MPI has counts, with the parameters that a rules file can give it, and 0 where it is
    the one that Open MPI picks by itself or saves less than three percent of its time.

    Args:
        version: Version of Open MPI, whose algorithms count; None is the latest.
    """
    problem = comparison.problem
    collective, topology = problem.collective, problem.topology
    known = _algorithms(collective)
    if version is not None:
        most = len(algorithms_of(FUNCTIONS[collective], version))
        known = [(name, entry) for name, entry in known if entry.id is not None and entry.id <= most]
    found = []
    for size_bytes in comparison.sizes:
        rows = [
            (row, name, entry)
            for row in comparison.measurements
            if row.size_bytes == size_bytes and _plain(row)
            for name, entry in known
            if _same(problem, row, name, entry)
        ]
        own = select(
            "open-mpi",
            collective,
            size_bytes,
            topology=topology,
            function=FUNCTIONS[collective],
            variant="tuned",
        )
        found.append(_choice(problem, size_bytes, rows, own.runs_as))
    return tuple(found)


def choice_of_plan(plan: Plan, size_bytes: int, version: Sequence[int]) -> OmpiChoice:
    """What Open MPI has of a plan, at one size; 0 where it has no such algorithm.

    Args:
        plan: The plan; of the catalogue, with ranks as numbered.
        size_bytes: M, by which segments are counted.
        version: Version of Open MPI, whose algorithms count.

    Examples:
        >>> from coppice.planners.planning import plan
        >>> ring = plan("star", "all_reduce", algorithm="ring").plan
        >>> choice_of_plan(ring, 2**20, (5, 0)).name, choice_of_plan(plan("star", "all_reduce").plan, 2**20, (5, 0)).id
        ('ring', 0)
    """
    problem, parameters = plan.problem, dict(plan.parameters)
    row = SimulatedTime(
        key="",
        algorithm=plan.planner,
        size_bytes=size_bytes,
        order=str(parameters.pop("order", "auto")),
        relays=parameters.pop("relay_gpus", False) is True,
        parameters={key: value for key, value in parameters.items() if isinstance(value, int | str)},
    )
    if not _plain(row) or row.relays or plan.forest is not None or problem.root not in (None, 0):
        return OmpiChoice(size_bytes=size_bytes)
    most = len(algorithms_of(FUNCTIONS[problem.collective], version))
    rows = [
        (row, name, entry)
        for name, entry in _algorithms(problem.collective)
        if entry.id is not None and entry.id <= most and _same(problem, row, name, entry)
    ]
    return _choice(problem, size_bytes, rows, "")


def _choice(
    problem: Problem, size_bytes: int, rows: list[tuple[SimulatedTime, str, FunctionEntry]], own: str
) -> OmpiChoice:
    """The fastest of some measurements, or 0 where Open MPI's ``own`` algorithm does as well."""
    collective, ranks = problem.collective, problem.topology.num_ranks
    defaults = [row.time_us for row, name, _ in rows if name == own and _number(row, "segments") == 1]
    default = min(defaults, default=None)
    if not rows:
        return OmpiChoice(size_bytes=size_bytes)
    row, name, entry = min(rows, key=lambda each: (each[0].time_us, each[2].id or 0))
    if default is not None and default - row.time_us < WORTH * default:
        return OmpiChoice(size_bytes=size_bytes, time_us=default, default_us=default)
    segments = _number(row, "segments")
    whole = size_bytes if collective is not Collective.ALL_REDUCE else -(-size_bytes // ranks)
    return OmpiChoice(
        size_bytes=size_bytes,
        id=entry.id or 0,
        name=name,
        fanout=_number(row, "fanout") if name == "chain" else 0,
        segment_bytes=0 if segments == 1 else -(-whole // segments),
        time_us=row.time_us,
        default_us=default,
    )


def _algorithms(collective: Collective) -> list[tuple[str, FunctionEntry]]:
    if collective not in FUNCTIONS:
        raise InputError(f"expected a collective that is one of {', '.join(FUNCTIONS)}, found {collective}.")
    entries = tables_of("open-mpi").functions[FUNCTIONS[collective]].algorithms
    return [
        (name, entry) for name, entry in entries.items() if entry.id is not None and entry.ours is not None
    ]


def _plain(row: SimulatedTime) -> bool:
    """Simulated as Open MPI would run it."""
    whole = row.pieces == 1 and not row.in_network
    return row.refusal is None and row.order == "rank" and whole


def _same(problem: Problem, row: SimulatedTime, name: str, entry: FunctionEntry) -> bool:
    """Whether a measurement is what Open MPI runs as ``name``, where a rules file may say segments and fan-outs."""
    if row.algorithm != entry.ours or _falls_back(problem, row, name, entry):
        return False
    given = {"segments"} | ({"fanout"} if name == "chain" else set())
    theirs = {**_defaults(problem.collective, row.algorithm), **entry.parameters}
    ours = {**_defaults(problem.collective, row.algorithm), **row.parameters}
    if name not in SEGMENTED.get(FUNCTIONS[problem.collective], ()) and _number(row, "segments") > 1:
        return False
    return all(ours[key] == theirs[key] for key in ours.keys() | theirs.keys() if key not in given)


def _falls_back(problem: Problem, row: SimulatedTime, name: str, entry: FunctionEntry) -> bool:
    """Whether Open MPI would run another algorithm instead."""
    if name == "segmented_ring":  # falls back on the ring where a rule gives it no segments
        return _number(row, "segments") == 1
    if not entry.becomes:
        return False
    function = FUNCTIONS[problem.collective]
    request = SelectionRequest(
        collective=problem.collective, ranks=problem.topology.num_ranks, size_bytes=row.size_bytes
    )
    facts = request.facts(tables_of("open-mpi").functions[function].m)
    return decide(parse_rules(entry.becomes, name), facts, table=name)[0] != "this"


def _defaults(collective: Collective, algorithm: str) -> dict[str, Value]:
    return {name: each.default for name, each in find(algorithm, collective).parameters.items()}


def _number(row: SimulatedTime, parameter: str) -> int:
    """A number of a measurement's algorithm, 1 where it has none of that name."""
    value = row.parameters.get(parameter)
    if value is None and row.refusal is None and parameter == "fanout":
        value = find(row.algorithm, Collective.BROADCAST).parameters[parameter].default
    return value if isinstance(value, int) else 1
