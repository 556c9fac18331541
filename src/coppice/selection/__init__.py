"""Predict which algorithm a library picks for a call, from its decision tables and cost model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coppice.arguments import checked
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.selection.nccl.releases import release_of
from coppice.selection.nccl.selecting import select_by_cost
from coppice.selection.rccl.selecting import select_rccl
from coppice.selection.selection import Selection, SelectionPart, SelectionRequest, box_sizes
from coppice.selection.tables import library as tables_of
from coppice.selection.tables import select_by_table
from coppice.text import size_of, suggestion
from coppice.topology.load import load
from coppice.topology.model import Topology

__all__ = ["LIBRARIES", "Selection", "SelectionPart", "SelectionRequest", "select", "tables_of"]

LIBRARIES = ("open-mpi", "mpich", "mvapich2", "nccl", "rccl")
"""Libraries whose choice is known."""


@checked
def select(
    library: str,
    collective: Collective | str,
    size_bytes: int | str,
    *,
    ranks: int | None = None,
    topology: Any = None,
    ranks_per_box: int | None = None,
    function: str | None = None,
    variant: str | None = None,
    commutative: bool = True,
    builtin: bool = True,
    element_bytes: int = 4,
    settings: Mapping[str, str] | None = None,
    root: int | None = None,
) -> Selection:
    """Predict the algorithm that ``library`` picks at a size, as :func:`coppice.select` does, and explain why.

    ``nccl-2.21`` is NCCL in that version, ``nccl`` the newest one that was read.

    Raises:
        InputError: If the library, its function or the collective is unknown, an argument is of the wrong type, or the
            call has no meaning.

    Examples:
        >>> pick = select("open-mpi", "all_reduce", 65536, ranks=48)
        >>> pick
        Selection(Open MPI: allreduce of 65,536 bytes among 48 ranks by rabenseifner)
        >>> pick.algorithm, pick.id, pick.ours, dict(pick.parameters)
        ('rabenseifner', 6, 'rabenseifner', {'folding': 'open-mpi'})
        >>> [select(f"nccl{v}", "all_reduce", 2**21, ranks=2, ranks_per_box=1).algorithm for v in ("", "-2.22")]
        ['Ring/LL128', 'Ring/LL128']
        >>> [(step.rule, step.values) for step in pick.why if step.held and "P" in step.rule]
        [('P < 64', '48 < 64')]
    """
    library, _, version = library.partition("-") if library.startswith("nccl-") else (library, "", "")
    if library not in LIBRARIES:
        raise InputError(
            f"expected a library whose choice is known, found {library!r}: {suggestion(library, LIBRARIES)}"
        )
    if topology is not None:
        topology = load(topology)
    performed, size = Collective.named(collective), size_of(size_bytes)
    ranks, ranks_per_box, boxes, even = _boxes(ranks, topology, ranks_per_box)
    request = SelectionRequest(
        collective=performed,
        ranks=ranks,
        size_bytes=size,
        ranks_per_box=ranks_per_box,
        even=even,
        boxes=boxes,
        commutative=commutative,
        builtin=builtin,
        element_bytes=element_bytes,
    )
    if library in ("nccl", "rccl"):
        if function is not None or variant is not None:
            raise InputError(
                f"{library.upper()} decides by a cost model and has neither functions nor tables to choose from: leave "
                "them out."
            )
        if library == "rccl":
            return select_rccl(request, topology=topology, settings=settings or {}, root=root or 0)
        release = release_of(version) if version else ""
        return select_by_cost(request, topology=topology, settings=settings, root=root or 0, release=release)
    if settings:
        extra = next(iter(settings))
        raise InputError(
            f"settings are inputs of a cost model, which {library} does not have: leave out {extra}."
        )
    return select_by_table(library, request, function=function, variant=variant)


def _boxes(
    ranks: int | None, topology: Topology | None, ranks_per_box: int | None
) -> tuple[int, int | None, int, bool]:
    """Ranks, ranks of a box where anything is known of boxes, number of boxes, and whether all are of that size."""
    boxes, even = 1, True
    if topology is not None:
        if ranks not in (None, topology.num_ranks) or ranks_per_box is not None:
            raise InputError(
                f"{topology.name} has {topology.num_ranks} ranks and its own boxes: leave out the numbers of ranks."
            )
        ranks = topology.num_ranks
        sizes = box_sizes(topology)
        if sizes is not None:
            boxes, ranks_per_box, even = len(sizes), max(sizes), len(set(sizes)) == 1
    elif ranks is None:
        raise InputError("expected a number of ranks or a topology, found neither: give one.")
    elif ranks_per_box is not None:
        if ranks_per_box < 1 or ranks_per_box > ranks:
            raise InputError(f"expected 1 .. {ranks} ranks per box, found {ranks_per_box}.")
        boxes, even = -(-ranks // ranks_per_box), ranks % ranks_per_box == 0
    return ranks, ranks_per_box, boxes, even
