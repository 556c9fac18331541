"""The algorithms of MPICH that can be forced, and our schedules of the same ones.

MPICH counts no messages itself; in a network whose ranks are linked in pairs (:mod:`coppice.run.lab`) the links do. An
algorithm is forced by a control variable, ``MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM``, in the environment or, by
:func:`force`, in the running library: its tool interface takes the number that stands for the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.catalogue import case_of, find, make
from coppice.schedule.schedule import Schedule
from coppice.topology.presets import preset
from coppice.tuning.mpi_switch import Variables

__all__ = ["MPICH", "ForcedByName", "algorithm_variable", "force", "schedule_of_mpich"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ForcedByName:
    """What a name of MPICH stands for.

    Attributes:
        name: Name in the catalogue.
        parameters: Parameters there, as MPICH 5.0 runs it by default.
        powers_only: It serves powers of two of ranks; the library stops or runs another one elsewhere.
        apart: Why the same bytes move between other ranks than in our schedule.
        apart_among_powers: That is so for powers of two of ranks too.
    """

    name: str
    parameters: Mapping[str, int | str] = field(default_factory=dict)
    powers_only: bool = False
    apart: str | None = None
    apart_among_powers: bool = False

    def follows(self, ranks: int) -> bool:
        """Our schedule has the library's messages between the same ranks."""
        return self.apart is None or (not self.apart_among_powers and not ranks & (ranks - 1))


def _as(name: str, *, powers_only: bool = False, **parameters: int | str) -> ForcedByName:
    return ForcedByName(name=name, parameters=parameters, powers_only=powers_only)


_BROADCAST_TREE = ForcedByName(
    name="tree",
    parameters={"shape": "k-ary", "radix": 2, "segments": 1},
    apart="node v has the children 2 v + 1 and 2 v + 2 there, ours is strided by levels",
    apart_among_powers=True,
)


MPICH: dict[str, tuple[Collective, dict[str, ForcedByName]]] = {
    "allgather": (
        Collective.ALL_GATHER,
        {
            "brucks": _as("bruck", radix=2),
            "k_brucks": _as("bruck", radix=2),
            "recursive_doubling": _as("recursive-doubling", powers_only=True),
            "ring": _as("ring"),
            "recexch_doubling": _as("recexch-doubling", radix=2),
            "recexch_halving": _as("recexch-halving", radix=2),
        },
    ),
    "allreduce": (
        Collective.ALL_REDUCE,
        {
            "recursive_doubling": _as("recursive-doubling"),
            "recursive_multiplying": ForcedByName(
                name="recursive-multiplying",
                parameters={"radix": 2},
                apart="ranks beyond the power of k are folded into those as many places before, ours into neighbours",
            ),
            "reduce_scatter_allgather": _as("rabenseifner", folding="mpich"),
            "tree": ForcedByName(
                name="tree",
                parameters={"shape": "k-nomial", "radix": 2, "segments": 1},
                apart="the tree is numbered with the largest subtree first there, ours with the smallest",
                apart_among_powers=True,
            ),
            "recexch": _as("recursive-multiplying", radix=2),
            "ring": _as("ring"),
            "k_reduce_scatter_allgather": _as("k-reduce-scatter-allgather", radix=2),
        },
    ),
    "alltoall": (
        Collective.ALL_TO_ALL,
        {
            "brucks": _as("bruck", radix=2),
            "k_brucks": _as("bruck", radix=2),
            "pairwise": _as("pairwise"),
            "scattered": _as("scattered"),
        },
    ),
    "bcast": (
        Collective.BROADCAST,
        {
            "binomial": _as("binomial"),
            "scatter_recursive_doubling_allgather": _as("scatter-allgather"),
            "scatter_ring_allgather": _as("scatter-ring-allgather"),
            "pipelined_tree": _BROADCAST_TREE,
            "tree": _BROADCAST_TREE,
        },
    ),
    "gather": (Collective.GATHER, {"binomial": _as("binomial")}),
    "reduce": (
        Collective.REDUCE,
        {
            "binomial": _as("binomial"),
            "reduce_scatter_gather": _as("rabenseifner", folding="mpich"),
        },
    ),
    "reduce_scatter": (
        Collective.REDUCE_SCATTER,
        {
            "noncommutative": _as("butterfly", powers_only=True),
            "pairwise": _as("pairwise"),
            "recursive_doubling": _as("recursive-doubling"),
            "recursive_halving": _as("recursive-halving"),
        },
    ),
    "reduce_scatter_block": (
        Collective.REDUCE_SCATTER,
        {
            "noncommutative": _as("butterfly", powers_only=True),
            "pairwise": _as("pairwise"),
            "recursive_doubling": _as("recursive-doubling"),
            "recursive_halving": _as("recursive-halving"),
        },
    ),
    "scatter": (Collective.SCATTER, {"binomial": _as("binomial")}),
}
"""What each function performs, and its algorithms by MPICH's names."""


def algorithm_variable(function: str) -> str:
    """Control variable that forces an algorithm of a function of MPI, in lower case.

    Examples:
        >>> algorithm_variable("reduce_scatter_block")
        'MPIR_CVAR_REDUCE_SCATTER_BLOCK_INTRA_ALGORITHM'
    """
    return f"MPIR_CVAR_{function.upper()}_INTRA_ALGORITHM"


def schedule_of_mpich(function: str, algorithm: str, ranks: int, root: int = 0) -> Schedule:
    """Our schedule of what MPICH runs.

    Raises:
        InputError: If there is no such algorithm, or it does not serve this number of ranks.

    Examples:
        >>> schedule_of_mpich("allgather", "ring", 4).num_transfers
        12
    """
    if function not in MPICH or algorithm not in MPICH[function][1]:
        known = ", ".join(MPICH[function][1]) if function in MPICH else ", ".join(MPICH)
        raise InputError(
            f"expected an algorithm of MPICH, found {algorithm!r} of {function!r}: choose one of {known}."
        )
    collective, algorithms = MPICH[function]
    forced = algorithms[algorithm]
    if forced.powers_only and ranks & (ranks - 1):
        raise InputError(
            f"MPICH runs {algorithm} of {function} among a power of two of ranks, found {ranks}: choose another."
        )
    problem = Problem(
        topology=preset("star", gpus=ranks), collective=collective, root=root if collective.rooted else None
    )
    entry = find(forced.name, collective)
    made = make(entry, case_of(entry, problem, forced.parameters))
    if not isinstance(made, Schedule):
        raise InputError(f"expected an algorithm with steps, found {forced.name}, which is a forest.")
    return made


def force(mpi: Any, function: str, algorithm: str | None) -> None:
    """Let MPICH run an algorithm from now on, or choose by itself again (None).

    Args:
        mpi: The module ``mpi4py.MPI``, loaded with MPICH.
        function: Function of MPI in lower case.
        algorithm: MPICH's name.

    Raises:
        InputError: If another library is loaded, or this one has no such algorithm.
    """
    vendor, _ = mpi.get_vendor()
    if vendor != "MPICH":
        raise InputError(
            f"expected MPICH, whose algorithm is forced here, found {vendor}: start it with MPICH's launcher."
        )
    variables, variable = Variables(), algorithm_variable(function)
    numbers = {name: number for number, name in variables.values(variable)}
    chosen = "auto" if algorithm is None else algorithm
    if chosen not in numbers:
        raise InputError(f"expected one of {', '.join(numbers)} for {variable}, found {chosen!r}.")
    variables.write(variable, numbers[chosen])
