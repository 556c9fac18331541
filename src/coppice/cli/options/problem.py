"""Options of a problem: collective, root, weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated

import typer

from coppice.cli.options.completion import algorithm_names, collective_names
from coppice.cli.options.inputs import TopologyOptions
from coppice.collectives import Collective
from coppice.errors import InputError

if TYPE_CHECKING:
    from coppice.bounds.problem import Problem

CollectiveOption = Annotated[
    Collective,
    typer.Option(
        "--collective",
        "-c",
        help=f"One of: {', '.join(Collective)}; also as all-reduce, AllReduce or MPI_Allreduce.",
        metavar="NAME",
        parser=Collective.named,
        autocompletion=collective_names,
    ),
]
RootOption = Annotated[
    int | None,
    typer.Option(
        "--root",
        min=0,
        metavar="RANK",
        help="Root rank of broadcast, reduce, gather and scatter [default: 0].",
    ),
]
WeightsOption = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        help="Relative shard size of each rank (all_gather, reduce_scatter), or a matrix of demands, "
        "one row for each sender (all_to_all): a JSON list, or numbers in lines; - is standard input.",
    ),
]
AlgorithmOption = Annotated[
    str | None,
    typer.Option(
        "--algorithm",
        "-a",
        metavar="NAME",
        help="Algorithm (`coppice algorithms` lists them) [default: the optimal planner, forest or flow].",
        autocompletion=algorithm_names,
    ),
]
ParameterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--parameter", "-p", metavar="KEY=VALUE", help="Parameter of the algorithm; may be repeated."
    ),
]
OrderOption = Annotated[
    str,
    typer.Option(
        "--order",
        metavar="auto|rank|topology",
        help="Order in which an algorithm takes the ranks: as numbered, with boxes and rails kept together, or "
        "(auto) the latter where the former has no routes.",
    ),
]
RelayGpusOption = Annotated[
    bool,
    typer.Option(
        "--relay-gpus",
        help="Where an algorithm sends between GPUs that no path of switches and NICs joins, other GPUs pass it on.",
    ),
]
InNetworkOption = Annotated[
    bool,
    typer.Option(
        "--in-network",
        help="Use switches that can copy (multicast) or add (aggregate), and print both optima.",
    ),
]
TreesOption = Annotated[
    str | None,
    typer.Option(
        "--trees",
        metavar="K|auto:P%",
        help="Trees per root: a number, or auto:1% for the fewest within 1% of the optimum "
        "[default: as many as the exact optimum needs].",
    ),
]


@dataclass(frozen=True, kw_only=True)
class ProblemOptions(TopologyOptions):
    """Options of a collective on a topology."""

    collective: CollectiveOption = Collective.ALL_REDUCE
    root: RootOption = None
    weights: WeightsOption = None

    def load_problem(self) -> Problem:
        """Problem of the options; a rooted collective without ``--root`` has root 0."""
        from coppice.bounds.problem import Problem
        from coppice.bounds.weights import read_demands, read_weights

        topology, collective, weights = self.load(), self.collective, self.weights
        everywhere = collective is Collective.ALL_TO_ALL
        return Problem(
            topology=topology,
            collective=collective,
            root=0 if collective.rooted and self.root is None else self.root,
            demands=None if weights is None or not everywhere else read_demands(weights),
            weights=None if weights is None or everywhere else read_weights(weights),
        )


def parse_trees(text: str | None) -> tuple[int | None, Fraction | None]:
    """Parse ``--trees``: a number of trees, or ``auto:`` with a tolerance in percent.

    >>> parse_trees("4"), parse_trees("auto:1%"), parse_trees(None)
    ((4, None), (None, Fraction(1, 100)), (None, None))

    Raises:
        InputError: If it is neither.
    """
    if text is None:
        return None, None
    automatic = re.fullmatch(r"auto:([0-9]{1,3}(\.[0-9]{1,9})?)%", text)
    if automatic:
        return None, Fraction(automatic[1]) / 100
    if re.fullmatch(r"[0-9]{1,9}", text) and int(text) > 0:
        return int(text), None
    raise InputError(
        f"expected --trees to be a number of 1 or more or a tolerance such as auto:1%, found {text!r}."
    )
