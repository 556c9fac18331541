"""Compare algorithms over sizes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct, structs

from coppice.collectives import Collective
from coppice.options import ANYTHING, NAMES, AnySizes, argument, option
from coppice.options.calls import verb
from coppice.options.names import SYNTHESIS_METHODS
from coppice.options.shared import (
    USUAL_SIZES,
    JobsOption,
    ModelOption,
    RootOption,
    SeedOption,
    SizesOption,
    TimeLimitOption,
)

if TYPE_CHECKING:
    from coppice.comparison.outcome import Comparison
    from coppice.simulation.model import Model

    AnyModel = Model | str | os.PathLike[str]
    AnyPath = str | os.PathLike[str]
else:
    AnyModel = AnyPath = Any


class CompareOptions(Struct, frozen=True, kw_only=True):
    """What a comparison tries, and how."""

    sizes: Annotated[AnySizes, *SizesOption.__metadata__] = USUAL_SIZES
    algorithms: Annotated[
        Iterable[Any] | None,
        NAMES,
        option(
            "Only these, such as forest,ring; also plan files (.json) [default: all that perform the collective].",
            "--algorithm",
            "-a",
            metavar="LIST",
            was=["--algorithms"],
        ),
    ] = None
    synthesize: Annotated[
        Iterable[str],
        NAMES,
        option(
            "Compare what methods of synthesis find as well, such as tacos,syccl "
            f"(all: {','.join(SYNTHESIS_METHODS)}).",
            "--method",
            metavar="LIST",
            was=["--synthesize"],
        ),
    ] = ()
    seed: SeedOption = 0
    synthesis_time_limit_s: TimeLimitOption = 60.0
    order: Annotated[
        str,
        option(
            "Order in which algorithms take the ranks: as numbered, boxes and rails kept together, or the better.",
            metavar="rank|topology|both",
        ),
    ] = "both"
    relay_gpus: Annotated[
        bool | None,
        option(
            "Between GPUs that no path of switches and NICs joins other GPUs pass data on: for all algorithms, or "
            "for none [default: for those that do not apply otherwise, marked relays].",
            "--relay-gpus/--no-relay-gpus",
        ),
    ] = None
    in_network: Annotated[
        bool | None,
        option(
            "Use switches that can copy (multicast) or add (aggregate), and print both optima [default: compare "
            "what uses them by itself, up to 256 ranks]. With SYSTEMS: model these beside the algorithms.",
            "--in-network/--no-in-network",
        ),
    ] = None
    results: Annotated[
        AnyPath | None,
        ANYTHING,
        option("Append measurements to this file (JSON lines), and resume from it.", metavar="FILE"),
    ] = None
    jobs: JobsOption = None
    model: Annotated[AnyModel | None, ANYTHING, *ModelOption.__metadata__] = None


class CompareCall(CompareOptions, frozen=True):
    """A comparison: its problem, its options, and where it runs."""

    problem: Annotated[
        Any,
        argument(
            "What to do, and where: a problem, what has one, or a topology (also by name) with a `collective`."
        ),
    ]
    collective: Annotated[
        Collective | str | None, argument("The collective, where `problem` is a topology.")
    ] = None
    root: RootOption = None
    weights: Annotated[
        Sequence[int] | None, option("Relative shard size of each rank (all_gather, reduce_scatter).")
    ] = None
    demands: Annotated[
        Sequence[Sequence[int]] | None, option("For all_to_all, relative size from each rank to each.")
    ] = None
    systems: Annotated[
        Iterable[str],
        option("Systems that add in the network, to be modelled as well, such as sharp or switchml@spine*."),
    ] = ()
    executor: Annotated[
        Executor | None,
        option("Where to run (see docs/executors.md) [default: in processes on this machine]."),
    ] = None
    on_progress: Annotated[
        Callable[[int, int, str], None] | None,
        option("Called with jobs done, jobs in all, and the algorithm that was just done."),
    ] = None


@verb(CompareCall)
def compare(asked: CompareCall) -> Comparison:
    """Simulate every algorithm for a collective and compare the times with the lower bounds.

    The outcome depends on nothing but the problem, the sizes, the algorithms and the model: not on the executor, the
    number of processes, or how often the work was interrupted. Methods of synthesis are the exception where their time
    limit ends them.

    Raises:
        InputError: If the problem has no meaning, a name or size cannot be used, or ``results`` belongs to another
            problem.
        UnreachableError: If some rank cannot be reached.

    Examples:
        >>> import coppice
        >>> found = coppice.compare("star", "all_gather", sizes=[1024, "1M"], algorithms=["ring"], jobs=1)
        >>> found.best(1024).algorithm
        'ring'
    """
    from coppice.comparison.sweep import compare as compared

    return compared(**structs.asdict(asked))
