"""List the available algorithms: the catalogue and the optimal planners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coppice.arguments import checked
from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import ANY, AlgorithmParameter
from coppice.planners.algorithms.catalogue import algorithms
from coppice.planners.choice import FLOW, FOREST, optimal_planner


@dataclass(frozen=True, kw_only=True, repr=False)
class Listed(Brief):
    """An entry of the list; a name whose conditions differ by collective has several."""

    name: str  # What `plan --algorithm` takes
    collectives: tuple[Collective, ...]  # What it performs
    ranks: str  # Numbers of ranks: `any`, `even` or `power of two`
    roots: str  # `any`, or `none` where the collective has no root
    summary: str  # What it does, in one line
    source: str  # Where it comes from
    topological: bool  # It looks at the topology
    parameters: Mapping[str, AlgorithmParameter] = field(default_factory=dict)  # Its parameters


_OPTIMAL = {
    FOREST: (
        "throughput-optimal spanning trees",
        "ForestColl, NSDI 2026; the pipeline schedule, arXiv 2305.18461",
    ),
    FLOW: ("throughput-optimal routes", "maximum concurrent flow; for one root a maximum flow"),
}


@checked
def listed(collective: Collective | str | None = None, name: str | None = None) -> tuple[Listed, ...]:
    """List the optimal planners, then the catalogue.

    Args:
        collective: Only what performs this one.
        name: Only this name.

    Raises:
        InputError: If there is no such name for the collective.

    Examples:
        >>> [entry.name for entry in listed(Collective.ALL_GATHER)][:1]
        ['forest']
    """
    if collective is not None:
        collective = Collective.named(collective)
    rows = [_optimal(planner, served) for served in Collective if (planner := optimal_planner(served))]
    rows += [
        Listed(
            name=entry.name,
            collectives=(served,),
            ranks=entry.ranks,
            roots=entry.roots,
            summary=entry.summary,
            source=entry.source,
            topological=entry.topological,
            parameters=entry.parameters,
        )
        for (_, served), entry in algorithms().items()
    ]
    groups: dict[tuple[object, ...], list[Listed]] = {}
    for row in rows:
        if collective in (None, *row.collectives) and name in (None, row.name):
            key = (row.name, row.ranks, row.roots, row.summary, tuple(row.parameters))
            groups.setdefault(key, []).append(row)
    if not groups:
        wanted = "an algorithm" if collective is None else f"an algorithm for {collective}"
        raise InputError(f"expected {wanted}, found {name!r}: `coppice algorithms` lists them.")
    return tuple(
        replace(alike[0], collectives=tuple(row.collectives[0] for row in alike)) for alike in groups.values()
    )


def _optimal(planner: str, served: Collective) -> Listed:
    summary, source = _OPTIMAL[planner]
    return Listed(
        name=planner,
        collectives=(served,),
        ranks=ANY,
        roots="any" if served.rooted else "none",
        summary=summary,
        source=source,
        topological=True,
    )
