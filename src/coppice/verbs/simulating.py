"""Simulate a plan, compare algorithms over sizes, and predict what a library picks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct, structs

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.options import ANYTHING, NAMES, AnySizes, argument, option
from coppice.options.calls import verb
from coppice.options.names import SELECTING, SYNTHESIS_METHODS
from coppice.options.shared import (
    USUAL_SIZES,
    JobsOption,
    ModelOption,
    NumRanksOption,
    RootOption,
    SeedOption,
    SizesOption,
    TimeLimitOption,
)

if TYPE_CHECKING:
    from coppice.comparison.outcome import Comparison
    from coppice.simulation.models import Model

    AnyModel = Model | str | os.PathLike[str]
    AnyPath = str | os.PathLike[str]
else:
    AnyModel = AnyPath = Any


class SimulateOptions(Struct, frozen=True, kw_only=True):
    """Options of a simulation."""

    pieces: Annotated[int | str, option("Number of sub-chunks per chunk.", metavar="N|best")] = "best"
    model: Annotated[AnyModel | None, ANYTHING, *ModelOption.__metadata__] = None
    protocol: Annotated[str | None, option("Only this protocol of the model.", metavar="simple|ll|ll128")] = (
        None
    )
    channels: Annotated[
        int | None, option("Channels of a GPU [default: as many as it takes].", metavar="N")
    ] = None
    seeds: Annotated[
        int,
        option(
            "Hash default routes in N ways: median and 99th percentile of the time.",
            "--seeds",
            "--hashed-routes",
            metavar="N",
            ge=0,
        ),
    ] = 0
    percentiles: Annotated[
        bool,
        option(
            "Count collisions of these hashes on links instead of simulating them: percentiles, worst pair, and what "
            "queue pairs, paths and orders of ranks make of them."
        ),
    ] = False
    multipath: Annotated[bool, option("Spread default routes evenly over all equally good ones.")] = False

    algorithm: Annotated[
        str | None,
        option(
            "library: simulate what --library picks on a topology, which then stands in place of the plan.",
            "--algorithm",
            "-a",
            metavar="NAME",
        ),
    ] = None
    library: Annotated[
        str | None,
        option(
            f"Whose pick: {', '.join(SELECTING)}, or NCCL by version as nccl-2.21 [default: nccl].",
            "--library",
            "-l",
            metavar="NAME",
        ),
    ] = None
    collective: Annotated[
        Collective | str | None, option("What it picks for.", "--collective", "-c", metavar="NAME")
    ] = None
    root: RootOption = None

    def count(self) -> int | None:
        """Pieces of every chunk; None for the number that is fastest."""
        text = str(self.pieces)
        if text == "best":
            return None
        if not text.isdecimal() or len(text) > 7 or int(text) < 1:
            raise InputError(
                f"expected `pieces` to be a number of 1 or more, or best, found {self.pieces!r}."
            )
        return int(text)

    def picks(self) -> bool:
        """Whether a library's pick is simulated."""
        if self.algorithm not in (None, "library"):
            raise InputError(
                f"expected `algorithm` to be library, found {self.algorithm!r}: plan other algorithms first "
                "(`coppice plan`)."
            )
        extra = [name for name in ("library", "collective", "root") if getattr(self, name) is not None]
        if extra and self.algorithm is None:
            raise InputError(
                f"a plan says what it performs: leave out `{extra[0]}`, or give `algorithm=library`."
            )
        return self.algorithm is not None

    def refuse_percentiles(self, *others: str) -> None:
        """Refuse `percentiles` without hashes, or with an option that simulates."""
        if self.percentiles and not self.seeds:
            raise InputError("`percentiles` are of hashed routes, found none: give `seeds=1000` as well.")
        if self.percentiles and (self.multipath or self.algorithm is not None or others):
            found = others[0] if others else "multipath" if self.multipath else "algorithm"
            raise InputError(
                f"`percentiles` count the links of one plan, and simulate nothing: leave out `{found}`."
            )


class SimulateCall(SimulateOptions, frozen=True):
    """A simulation: what is carried out, at which sizes."""

    plan: Annotated[
        Any,
        argument(
            "What is carried out; it should have been verified: a plan, what holds one, the name of a plan file, a "
            "schedule, a forest, or a set of plans, of which each size takes its own; a topology with "
            "`algorithm='library'`."
        ),
    ]
    size_bytes: Annotated[
        AnySizes,
        argument("M in bytes or as text such as 64M; a list or a range such as 1K:1G for several."),
    ]


@verb(SimulateCall)
def simulate(asked: SimulateCall) -> Any:
    """Simulate a plan: start and arrival of every message.

    One size gives a :class:`Timeline`. Several, or hashes of default routes, give a list with what is known at each
    (:class:`coppice.simulation.simulated.Simulated`): the timeline, its distance from the optimum, and the times under
    the hashes. Of the model's protocols the fastest is taken at each size. With `percentiles` nothing is simulated, and
    collisions of the hashes are counted (:class:`coppice.simulation.collisions.Collisions`).

    A set of plans is simulated under the model that it was made for, unless another one is named.

    Raises:
        InputError: If the plan is malformed, a size or the number of pieces out of range, or there is no such model.
        UnreachableError: If a transfer names no path and there is none.

    Examples:
        >>> import coppice
        >>> made = coppice.plan("dgx-a100", "all_gather")
        >>> coppice.simulate(made, "64M", protocol="simple").protocol
        'simple'
        >>> rows = coppice.simulate(made, "1K:1M:32")
        >>> [row.timeline.size_bytes for row in rows], rows[0].share_of_least < rows[-1].share_of_least
        ([1024, 32768, 1048576], True)
        >>> ring = coppice.plan(coppice.load("fat-tree"), "all_gather", algorithm="ring")
        >>> coppice.simulate(ring, "1M", seeds=4)[0].hashed.median_us > 0
        True
        >>> coppice.simulate(ring, "1M", seeds=1000, percentiles=True).plain.quantile(0.99) >= 1
        True
        >>> (row,) = coppice.simulate(coppice.load("dgx-a100", boxes=2), "64M", algorithm="library")
        >>> row.picked.algorithm, row.picked.channels_filled, round(row.picked.cell.time_us), round(row.time_us)
        ('Ring/LL128', 16, 864, 702)
    """
    from coppice.schedule.files.plan_file import body_of, plan_of
    from coppice.schedule.files.set_file import plan_set_of
    from coppice.simulation.models import model_of
    from coppice.simulation.set_times import model_of_set, simulate_set
    from coppice.simulation.simulated import simulate_sizes
    from coppice.simulation.simulator import fastest
    from coppice.text import sizes_of

    asked.refuse_percentiles()
    if asked.picks():
        return _simulate_pick(asked)
    if asked.percentiles:
        from coppice.simulation.collisions import collisions

        return collisions(body_of(asked.plan), asked.seeds)
    changes: dict[str, Any] = {"channels": asked.channels}
    changes["protocols"] = None if asked.protocol is None else (asked.protocol.lower(),)
    plans = plan_set_of(asked.plan)
    assumed = model_of_set(plans) if plans is not None and asked.model is None else model_of(asked.model)
    model = replace(assumed, **{name: value for name, value in changes.items() if value is not None})
    if asked.seeds and asked.multipath:
        raise InputError("`seeds` shows ideal multipath beside the seeds: leave out `multipath`.")
    size = asked.size_bytes
    one = isinstance(size, int) or (isinstance(size, str) and not {":", ","} & set(size))
    if one and not asked.seeds and not asked.multipath:
        (single,) = sizes_of(size)
        body = body_of(asked.plan) if plans is None else plans.at(single).body
        return fastest(body, single, model=model, pieces=asked.count())
    several: dict[str, Any] = {
        "model": model,
        "pieces": asked.count(),
        "seeds": asked.seeds,
        "multipath": asked.multipath,
    }
    if plans is not None:
        return simulate_set(plans, sizes_of(size), **several)
    return simulate_sizes(plan_of(asked.plan), sizes_of(size), **several)


def _simulate_pick(asked: SimulateCall) -> Any:
    from coppice.bounds.problem import Problem, problem_of
    from coppice.comparison.library import simulate_picks
    from coppice.simulation.models import model_of
    from coppice.text import sizes_of

    refuse_decided(asked)
    stated = isinstance(getattr(asked.plan, "problem", asked.plan), Problem)
    collective = asked.collective or (None if stated else Collective.ALL_REDUCE)
    return simulate_picks(
        problem_of(asked.plan, collective, root=asked.root),
        asked.library or "nccl",
        sizes_of(asked.size_bytes),
        model=model_of(asked.model),
        pieces=asked.count(),
        seeds=asked.seeds,
        multipath=asked.multipath,
    )


def refuse_decided(asked: SimulateOptions) -> None:
    """Refuse options that a library decides by itself."""
    for name in ("protocol", "channels"):
        if getattr(asked, name) is not None:
            raise InputError(f"a library picks its protocol and channels: leave out `{name}`.")


class CompareOptions(Struct, frozen=True, kw_only=True):
    """What a comparison tries, and how."""

    sizes: Annotated[AnySizes, *SizesOption.__metadata__] = USUAL_SIZES
    algorithms: Annotated[
        Iterable[Any] | None,
        NAMES,
        option(
            "Only these, such as forest,ring; also plan files (.json) and sets of plans (folders) [default: all that "
            "perform the collective].",
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


class SelectedCall(Struct, frozen=True, kw_only=True):
    """A call of a library, beyond its collective, size and ranks."""

    function: Annotated[str | None, option("function of the library, such as allgatherv")] = None
    variant: Annotated[str | None, option("table to start with, such as tuned or disjoint")] = None
    commutative: Annotated[
        bool,
        option(
            "no: the operation does not commute",
            was=["--commutative commutative=yes", "--non-commutative commutative=no"],
        ),
    ] = True
    element_bytes: Annotated[int, option("bytes of an element: 4", ge=1)] = 4


class SelectOptions(SelectedCall, frozen=True, kw_only=True):
    """What is known of a call and of where it runs."""

    ranks: NumRanksOption = None
    topology: Annotated[
        Any,
        ANYTHING,
        option("Where it runs, as :func:`coppice.load` takes it [default: only `ranks` is known]."),
    ] = None
    ranks_per_box: Annotated[
        int | None, option("Ranks in each box, where there is no topology.", metavar="N", ge=1)
    ] = None
    builtin: Annotated[bool, option("The operation is one of the library's own.")] = True
    settings: Annotated[Mapping[str, str] | None, ANYTHING, option("Inputs of NCCL's cost model.")] = None
    root: RootOption = None


class SelectCall(SelectOptions, frozen=True):
    """A call of a library at sizes."""

    library: Annotated[str, argument("One of open-mpi, mpich, mvapich2, nccl, rccl.")]
    collective: Annotated[Collective | str, argument("What is performed, or its name.")]
    size_bytes: Annotated[
        AnySizes,
        argument("M in bytes or as text such as 64K; a list or a range such as 1K:1G for several."),
    ]


@verb(SelectCall)
def select(asked: SelectCall) -> Any:
    """Predict the algorithm that a library picks, and explain why.

    One size gives a :class:`Selection`, several a list of them.

    Raises:
        InputError: If the library, its function or the collective is unknown, or the call has no meaning.

    Examples:
        >>> import coppice
        >>> pick = coppice.select("open-mpi", "all_reduce", "64K", ranks=48)
        >>> pick.algorithm, pick.ours
        ('rabenseifner', 'rabenseifner')
        >>> [pick.algorithm for pick in coppice.select("nccl", "all_reduce", "1K:1G:1024", ranks=8, ranks_per_box=8)]
        ['Ring/LL', 'Ring/LL', 'NVLS/Simple']
    """
    from coppice.selection import select as selected
    from coppice.text import sizes_of

    options = {name: getattr(asked, name) for name in SelectOptions.__struct_fields__}
    size = asked.size_bytes
    if isinstance(size, int) or (isinstance(size, str) and not {":", ","} & set(size)):
        return selected(asked.library, asked.collective, sizes_of(size)[0], **options)
    return [selected(asked.library, asked.collective, each, **options) for each in sizes_of(size)]
