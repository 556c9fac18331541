"""What Open MPI and MPICH pick on a cluster, and what they could pick best, by simulation of all their algorithms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from coppice.advice.changes import Change
from coppice.advice.rows import WORTH, AdviceRow, settled
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import CoppiceError
from coppice.fitting.open_mpi import OmpiChoice, choices_of, compared
from coppice.planners.algorithms.parts.boxes import RELAY, crossings
from coppice.planners.planning import plan
from coppice.selection import Selection, SelectionRequest, select, tables_of
from coppice.selection.selection import decide, parse_rules
from coppice.selection.tables import FunctionEntry
from coppice.simulation.models import Model
from coppice.simulation.simulator import fastest
from coppice.text import short_size
from coppice.topology.model import Topology

Progress = Callable[[int, int, str], None]


def open_mpi_rows(
    topology: Topology,
    collective: Collective,
    sizes: Sequence[int],
    *,
    model: Model,
    trusted: bool = False,
    version: Sequence[int] | None = None,
    group: str = "all",
    jobs: int | None = None,
    on_progress: Progress | None = None,
) -> tuple[list[AdviceRow], tuple[OmpiChoice, ...]]:
    """Rows of Open MPI, whose rules files choose an algorithm at each size, and the choices for such a file."""
    found = compared(
        topology,
        collective,
        sizes,
        model=model,
        jobs=jobs,
        relay_gpus=passes_on(topology),
        on_progress=on_progress,
    )
    choices = choices_of(found, version)
    rows = []
    for choice in choices:
        own = select("open-mpi", collective, choice.size_bytes, topology=topology)
        # On nodes of several ranks han decides, on nodes of one another table: not what the choices are compared with.
        before = _time_of(own, topology, model)
        gains = bool(choice.id) and before is not None and choice.time_us < before
        after = choice.time_us if gains else before
        best = choice.name if gains else own.runs_as
        if gains and choice.segment_bytes:
            best += f" in segments of {short_size(choice.segment_bytes)}"
        row = _row(own, topology, model, group, best, before, None if before is None else after)
        rows.append(row if trusted else cautious(row))
    # What is not advised is left to Open MPI.
    kept = tuple(
        choice if row.change else OmpiChoice(size_bytes=choice.size_bytes)
        for choice, row in zip(choices, rows, strict=True)
    )
    return rows, kept


PASSED_ON = "messages between ranks that no switches or NICs join are passed on by the nodes on their way"
"""What is assumed of direct networks, whose routers are part of their nodes."""


@lru_cache(maxsize=16)
def passes_on(topology: Topology) -> bool:
    """Whether some ranks reach each other through others alone, as in a torus or a mesh.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> passes_on(preset("torus", dims=(3, 3))), passes_on(preset("star"))
        (True, False)
    """
    apart = crossings(topology)
    return bool(apart.size) and int(apart.max()) >= RELAY


LEAST_BLOCK_BYTES = 2**16
"""Blocks from which the rates of links decide, not the software of the library, which no named model knows."""

LEAST_GAIN = 1.25
"""Simulated gain from which a choice is advised: simulated times of large messages err by a fifth."""


def cautious(row: AdviceRow) -> AdviceRow:
    """The row without a choice that simulation under a named model does not make sure; it is then the next best."""
    if not row.change:
        return row
    block = row.size_bytes / row.ranks
    if block >= LEAST_BLOCK_BYTES and row.gain >= LEAST_GAIN:
        return row
    reason = (
        "in blocks below 64K software decides" if block < LEAST_BLOCK_BYTES else "simulations err by as much"
    )
    return replace(
        row,
        best=row.picked,
        best_us=row.picked_us,
        rival=row.best,
        rival_us=row.best_us,
        change="",
        why=f"{row.best} is faster in simulation, but {reason}: measure (coppice tune sweep), or give a fitted --model",
    )


def mpich_rows(
    topology: Topology,
    collective: Collective,
    sizes: Sequence[int],
    *,
    model: Model,
    trusted: bool = False,
    group: str = "all",
) -> tuple[list[AdviceRow], str]:
    """Rows of MPICH, whose variable chooses one algorithm for all sizes, and the value of that variable.

    An algorithm is chosen that is faster at one size at least, and slower by 2 percent at none; empty where none is.
    """
    picks = [select("mpich", collective, size, topology=topology) for size in sizes]
    times = {
        name: _times(topology, collective, entry, sizes, model) for name, entry in _forced(collective).items()
    }
    today = [_time_of(pick, topology, model) for pick in picks]
    chosen, most = "", 1.0
    for name, own in times.items():
        if own is None or any(each is None for each in today):
            continue
        ratios = [before / after for before, after in zip(today, own, strict=True) if before is not None]
        total = 1.0
        for ratio in ratios:
            total *= ratio
        if min(ratios) >= _NO_LOSS and max(ratios) > 1 / (1 - WORTH) and total > most:
            chosen, most = name, total
    rows = []
    for at, (pick, before) in enumerate(zip(picks, today, strict=True)):
        after = None if not chosen else times[chosen]
        best, best_us = (chosen, after[at]) if after is not None else (pick.runs_as, before)
        row = _row(pick, topology, model, group, best, before, best_us)
        least = min(
            ((own[at], name) for name, own in times.items() if own is not None), default=(before or 0.0, "")
        )
        if not row.change and before is not None and least[0] < before * (1 - WORTH):
            words = f"{least[1]} would take {short_time(least[0])} here, but the variable of MPICH holds for all sizes"
            row = replace(row, why=f"{words}, and it is slower at others")
        rows.append(row)
    if trusted or all(cautious(row) is row for row in rows):
        return rows, chosen
    # The variable holds for all sizes: what is not sure at one of them is not set.
    return [cautious(replace(row, size_bytes=row.size_bytes)) for row in rows], ""


def reordered(today: MpiAdvice, there: MpiAdvice, change: Change) -> MpiAdvice | None:
    """Advice with another order of ranks, which holds for all calls: where some gain by it and none loses; else None.

    Args:
        today: Rows of the ranks as they are.
        there: Rows of the ranks in that order.
        change: The order.
    """
    rows, ratios = [], []
    for row, moved in zip(today.rows, there.rows, strict=True):
        if row.picked_us is None or row.best_us is None or moved.best_us is None:
            rows.append(row)
            continue
        ratios.append(row.best_us / moved.best_us)
        own = moved.change == ""
        rows.append(
            settled(
                replace(
                    row,
                    best=moved.best,
                    best_us=moved.best_us,
                    change=change.name if own else "all changes",
                    why=f"what {moved.best} takes in that order of ranks",
                )
            )
        )
    if not ratios or min(ratios) < _NO_LOSS or max(ratios) <= 1 / (1 - WORTH):
        return None
    return MpiAdvice(rows=tuple(rows), choices=there.choices, chosen=there.chosen)


@dataclass(frozen=True, kw_only=True)
class MpiRequest:
    """What of an MPI library is looked at."""

    library: str  # `open-mpi` or `mpich`
    collectives: tuple[Collective, ...]
    sizes: tuple[int, ...]  # Sizes M in bytes
    model: Model  # What messages cost
    trusted: bool  # The model was fitted there
    version: tuple[int, ...] | None = None  # Version of the library, None where nothing says it
    jobs: int | None = None  # Processes that simulate
    on_progress: Progress | None = None


@dataclass(frozen=True, kw_only=True)
class MpiAdvice:
    """Rows of an MPI library, and what makes it choose so."""

    rows: tuple[AdviceRow, ...]
    choices: Mapping[Collective, tuple[OmpiChoice, ...]]  # Of Open MPI, for a rules file
    chosen: Mapping[Collective, str]  # Of MPICH, for its variables


def mpi_advice(topology: Topology, request: MpiRequest) -> MpiAdvice:
    """Simulate what an MPI library picks, and all that it could pick."""
    rows: list[AdviceRow] = []
    choices: dict[Collective, tuple[OmpiChoice, ...]] = {}
    chosen: dict[Collective, str] = {}
    for collective in request.collectives:
        if request.library == "open-mpi":
            found, choices[collective] = open_mpi_rows(
                topology,
                collective,
                request.sizes,
                model=request.model,
                trusted=request.trusted,
                version=request.version,
                jobs=request.jobs,
                on_progress=request.on_progress,
            )
        else:
            found, chosen[collective] = mpich_rows(
                topology, collective, request.sizes, model=request.model, trusted=request.trusted
            )
        rows += found
    return MpiAdvice(rows=tuple(rows), choices=choices, chosen=chosen)


_NO_LOSS = 0.98
MPICH_FUNCTIONS = {
    Collective.ALL_GATHER: "allgather",
    Collective.ALL_REDUCE: "allreduce",
    Collective.BROADCAST: "bcast",
    Collective.REDUCE: "reduce",
}


def short_time(time_us: float) -> str:
    """A time in three digits.

    >>> short_time(12345.0), short_time(1.234)
    ('12.3 ms', '1.23 us')
    """
    return f"{time_us / 1000:.3g} ms" if time_us >= 1000 else f"{time_us:.3g} us"


def _forced(collective: Collective) -> dict[str, FunctionEntry]:
    """Algorithms of MPICH that its variable can force and the catalogue has."""
    entries = tables_of("mpich").functions[MPICH_FUNCTIONS[collective]].algorithms
    return {name: entry for name, entry in entries.items() if entry.ours is not None and not entry.parts}


def _times(
    topology: Topology, collective: Collective, entry: FunctionEntry, sizes: Sequence[int], model: Model
) -> list[float] | None:
    """Simulated times of a forced algorithm at all sizes; None where MPICH falls back or it does not apply."""
    request = SelectionRequest(collective=collective, ranks=topology.num_ranks, size_bytes=max(sizes))
    table = tables_of("mpich").functions[MPICH_FUNCTIONS[collective]]
    facts = request.facts(table.m)
    if entry.becomes and decide(parse_rules(entry.becomes, "mpich"), facts, table="mpich")[0] != "this":
        return None
    return _simulated(topology, collective, str(entry.ours), entry.parameters, sizes, model)


def _simulated(
    topology: Topology,
    collective: Collective,
    algorithm: str,
    parameters: object,
    sizes: Sequence[int],
    model: Model,
) -> list[float] | None:
    problem = Problem(topology=topology, collective=collective, root=0 if collective.rooted else None)
    try:
        made = plan(
            problem,
            algorithm=algorithm,
            parameters=parameters,  # type: ignore[arg-type]
            order="rank",
            relay_gpus=passes_on(topology),
        )
    except CoppiceError:
        return None
    return [fastest(made.plan.body, size, model=model, pieces=1, keep_hops=False).time_us for size in sizes]


def _time_of(pick: Selection, topology: Topology, model: Model) -> float | None:
    if pick.ours is None:
        return None
    found = _simulated(topology, pick.collective, pick.ours, pick.parameters, [pick.size_bytes], model)
    return None if found is None else found[0]


def _row(
    own: Selection,
    topology: Topology,
    model: Model,
    group: str,
    best: str,
    picked_us: float | None,
    best_us: float | None,
) -> AdviceRow:
    changes = best != own.runs_as and picked_us is not None
    why = "no other algorithm saves 3 percent"
    if picked_us is None:
        why = f"{own.runs_as} has no schedule here: its time is not known"
    elif changes:
        why = f"{best} is the fastest of all algorithms that can be chosen"
    return settled(
        AdviceRow(
            group=group,
            collective=own.collective,
            nodes=max(1, len(set(topology.host[topology.rank_nodes].tolist()))),
            ranks=topology.num_ranks,
            size_bytes=own.size_bytes,
            picked=own.runs_as,
            best=best,
            picked_us=picked_us,
            best_us=best_us,
            model=f"simulated under {model.name}",
            why=why,
            change="rules" if changes else "",
        )
    )
