"""Numbers and names of collectives and algorithms in Open MPI's component tuned, and the inputs of its decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coppice.collectives import Collective

COLLECTIVES = (
    *("allgather", "allgatherv", "allreduce", "alltoall", "alltoallv", "alltoallw", "barrier", "bcast"),
    *("exscan", "gather", "gatherv", "reduce", "reduce_scatter", "reduce_scatter_block", "scan", "scatter"),
    *("scatterv", "neighbor_allgather", "neighbor_allgatherv", "neighbor_alltoall", "neighbor_alltoallv"),
    "neighbor_alltoallw",
)
"""Collectives by their numbers in rules files."""

FUNCTIONS: Mapping[Collective, str] = {
    Collective.ALL_GATHER: "allgather",
    Collective.ALL_REDUCE: "allreduce",
    Collective.ALL_TO_ALL: "alltoall",
    Collective.BROADCAST: "bcast",
    Collective.REDUCE: "reduce",
    Collective.REDUCE_SCATTER: "reduce_scatter_block",
}
"""Of :data:`COLLECTIVES`, the one that performs a collective whose algorithm can be chosen."""

ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "allgather": ("linear", "bruck", "recursive_doubling", "ring", "neighbor", "two_proc", "sparbit"),
    "allgatherv": ("default", "bruck", "ring", "neighbor", "two_proc", "sparbit"),
    "allreduce": (
        "basic_linear",
        "nonoverlapping",
        "recursive_doubling",
        "ring",
        "segmented_ring",
        "rabenseifner",
    ),
    "alltoall": ("linear", "pairwise", "modified_bruck", "linear_sync", "two_proc"),
    "alltoallv": ("basic_linear", "pairwise"),
    "barrier": ("linear", "double_ring", "recursive_doubling", "bruck", "two_proc", "tree"),
    "bcast": (
        *("basic_linear", "chain", "pipeline", "split_binary_tree", "binary_tree", "binomial", "knomial"),
        *("scatter_allgather", "scatter_allgather_ring"),
    ),
    "exscan": ("linear", "recursive_doubling"),
    "gather": ("basic_linear", "binomial", "linear_sync"),
    "reduce": ("linear", "chain", "pipeline", "binary", "binomial", "in-order_binary", "rabenseifner"),
    "reduce_scatter": ("non-overlapping", "recursive_halving", "ring", "butterfly"),
    "reduce_scatter_block": ("basic_linear", "recursive_doubling", "recursive_halving", "butterfly"),
    "scan": ("linear", "recursive_doubling"),
    "scatter": ("basic_linear", "binomial", "linear_nb"),
}
"""Algorithms 1, 2, ... of the collectives for which the component tuned has any, in Open MPI 5.0.

The tables of :mod:`coppice.selection` number and name algorithms, too, but those of one snapshot of the
development branch, and of the collectives that the catalogue performs. A rules file is read by a release: what its
numbers and names mean must not move when the tables do. Both agree on version 6.0.
"""

SEGMENTED: Mapping[str, tuple[str, ...]] = {
    "allreduce": ("segmented_ring",),
    "bcast": ("chain", "pipeline", "split_binary_tree", "binary_tree", "binomial", "knomial"),
    "gather": ("linear_sync",),
    "reduce": ("chain", "pipeline", "binary", "binomial", "in-order_binary"),
}
"""Algorithms that look at the size of a segment; others are given one, too, and do without."""

_IN_6: Mapping[str, Mapping[int, str]] = {
    "allgather": {2: "bruck-k-fanout", 8: "direct-messaging"},
    "allreduce": {7: "allgather_reduce"},
    "reduce": {8: "knomial"},
}
_NOT_IN_4 = {"allgather": "sparbit", "allgatherv": "sparbit"}


def algorithms_of(collective: str, version: Sequence[int] | None = None) -> tuple[str, ...]:
    """Names of the algorithms 1, 2, ... of a collective; empty where the component tuned lacks it.

    Args:
        collective: One of :data:`COLLECTIVES`.
        version: Version of Open MPI, None is 5.0.

    Examples:
        >>> algorithms_of("alltoallv"), algorithms_of("allgather", (4, 1, 8))[-1]
        (('basic_linear', 'pairwise'), 'two_proc')
        >>> algorithms_of("allgather")[1], algorithms_of("allgather", (6,))[1]
        ('bruck', 'bruck-k-fanout')
    """
    found = ALGORITHMS.get(collective, ())
    major = 5 if version is None else version[0]
    if major < 5:
        return tuple(name for name in found if name != _NOT_IN_4.get(collective))
    if major < 6:
        return found
    return tuple((dict(enumerate(found, start=1)) | dict(_IN_6.get(collective, {}))).values())
