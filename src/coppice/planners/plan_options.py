"""The options of a plan, as a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct

from coppice.collectives import Collective
from coppice.options import ANYTHING, argument, option
from coppice.options.shared import (
    AlgorithmOption,
    InNetworkOption,
    OrderOption,
    ParameterOption,
    RelayGpusOption,
    RootOption,
    TreesOption,
)

if TYPE_CHECKING:
    from coppice.planners.alternatives import Alternative

    Chooser = Callable[[Iterator[Alternative]], Alternative]
else:
    Chooser = Callable


class PlanOptions(Struct, frozen=True, kw_only=True):
    """Options of a plan."""

    root: RootOption = None
    weights: Annotated[
        Sequence[int] | None,
        ANYTHING,
        option("Relative shard size of each rank (all_gather, reduce_scatter)."),
    ] = None
    demands: Annotated[
        Sequence[Sequence[int]] | None,
        ANYTHING,
        option("For all_to_all, relative size from each rank to each."),
    ] = None
    algorithm: AlgorithmOption = None
    parameters: ParameterOption = None
    order: OrderOption = "auto"
    relay_gpus: RelayGpusOption = False
    trees: TreesOption = None
    tolerance: Annotated[
        Fraction | None,
        ANYTHING,
        option("Instead of `trees`: the fewest whose time is within this share of the optimum."),
    ] = None
    in_network: InNetworkOption = False
    ring: Annotated[
        bool | None,
        option(
            "Look for the best ring to compare with [default: for optimal plans up to 2,048 ranks].",
            "--ring/--no-ring",
        ),
    ] = None
    choose: Annotated[
        Chooser | None,
        ANYTHING,
        option(
            "Takes one of the plans that the options leave open, such as the one that is fastest at a size [default: "
            "the one of the best rate]."
        ),
    ] = None
    on_stage: Annotated[
        Callable[[str], None] | None,
        ANYTHING,
        option("Called with a few words as each stage begins, for progress."),
    ] = None


class PlanCall(PlanOptions, frozen=True):
    """A plan: its problem and its options."""

    problem: Annotated[
        Any,
        argument(
            "What to plan: a :class:`Problem`, what has one, or a topology (also by name) with a `collective`."
        ),
    ]
    collective: Annotated[
        Collective | str | None, argument("The collective, where `problem` is a topology.")
    ] = None
