"""What faults cost a collective and a job, and the plan for what is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct

from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import InputError
from coppice.options import ANYTHING, AnySizes, argument, option
from coppice.options.calls import verb
from coppice.options.shared import BatchOption, ModelOption, ParallelOption, RootOption

if TYPE_CHECKING:
    from coppice.iteration.job.what_if import WhatIf
    from coppice.outputs.shapes.planning import SizeAfterFaultsJson
    from coppice.planners.replanning import Replanned
    from coppice.simulation.models import Model
    from coppice.topology.model import Topology


class FaultOptions(Struct, frozen=True, kw_only=True):
    """Sizes, a job and a root for which the cost of faults is computed."""

    root: RootOption = None
    sizes: Annotated[
        AnySizes | None,
        option(
            "Also times at these message sizes, such as 64M or 1K:1G: before, now, and of what is fastest now.",
            "--size",
            "--sizes",
            "-s",
            metavar="SIZES",
        ),
    ] = None
    model: Annotated[Any, ANYTHING, *ModelOption.__metadata__] = None
    job: Annotated[
        str | None,
        option(
            "Also whether to keep or drain the boxes with faults, for a job: job file (.toml) or name of a model.",
            "--job",
            metavar="JOB",
        ),
    ] = None
    parallel: ParallelOption = None
    global_batch: BatchOption = None


class ReplanCall(FaultOptions, frozen=True):
    """Faults of a network."""

    topology: Annotated[Any, ANYTHING, argument("The whole network: what :func:`coppice.load` takes.")]
    collective: Annotated[Collective | str, argument("What the ranks do.")] = Collective.ALL_REDUCE
    nodes: Annotated[
        Mapping[str, Any] | None,
        ANYTHING,
        option("Share of its rates that a GPU, NIC or switch keeps, as :func:`coppice.degrade` takes it."),
    ] = None
    links: Annotated[
        Mapping[tuple[str, str], Any] | None, ANYTHING, option("Rates of links, by their two ends, as there.")
    ] = None
    remove: Annotated[
        Sequence[Any], ANYTHING, option("Nodes that are gone, and links as pairs of their ends.")
    ] = ()
    one_way: Annotated[bool, option("Links are changed from the first to the second end only.")] = False
    plan: Annotated[
        Any,
        ANYTHING,
        option("The plan of the whole network, or a file of it; None plans it as :func:`coppice.plan`."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class TimesAfterFaults:
    """Simulated times of a message size."""

    size_bytes: int  # M
    before_us: float  # Of the plan of the whole network, there
    now_us: float  # Of the new plan on what is left
    fastest: str  # What is fastest on what is left, among fewer and lower trees and all algorithms
    fastest_us: float  # Its time

    def record(self) -> SizeAfterFaultsJson:
        """As JSON values."""
        return {
            "size_bytes": self.size_bytes,
            "before_seconds": self.before_us / 1e6,
            "simulated_seconds": self.now_us / 1e6,
            "fastest_name": self.fastest,
            "fastest_seconds": self.fastest_us / 1e6,
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class FaultCosts(Brief):
    """What faults cost: the rate, times at sizes, and a job."""

    replanned: Replanned  # The new plan, beside the one before and the optimum of what is left
    times: Sequence[TimesAfterFaults]  # At each size that was asked for
    model: Model | None  # What was assumed of machines for them; None without sizes
    # The job as it is and laid out anew, then the ways on: kept, laid out anew, drained; empty without a job
    ways: Sequence[WhatIf]


@verb(ReplanCall)
def replan(asked: ReplanCall) -> FaultCosts:
    """Compute what faults cost, and plan for what is left from the plan of the whole network.

    The new plan (``.replanned.plan``) is verified, has the exact optimum of what is left beside it, and changes as
    little of the old one as that takes. With `sizes` the times before and after are simulated; with a `job`, keeping
    the boxes with faults is weighed against draining them.

    Raises:
        InputError: If a node, link or share is not there, nothing is faulty, or the job does not suit the network.
        UnreachableError: If some rank cannot be reached any more.
        CheckError: If the new plan does not verify, which would be a defect here.
        KeyboardInterrupt: Within a fraction of a second after Ctrl-C.

    Examples:
        >>> import coppice
        >>> found = coppice.replan(
        ...     coppice.load("dgx-a100", boxes=2), "all_gather", nodes={"box0/nic3": "30%"}, remove=["rank7"]
        ... )
        >>> found.replanned.loss, found.replanned.report.ok
        (Fraction(0, 1), True)
    """
    from coppice.topology.load import degrade, load

    whole = load(asked.topology)
    if not (asked.nodes or asked.links or asked.remove):
        raise InputError("expected faults, found none: give `nodes`, `links` or `remove`.")
    now = degrade(whole, nodes=asked.nodes, links=asked.links, remove=asked.remove, one_way=asked.one_way)
    return replanned(asked, whole, now, Collective.named(asked.collective), asked.plan)


def replanned(
    options: FaultOptions,
    whole: Topology,
    now: Topology,
    collective: Collective,
    plan: Any = None,
    on_stage: Callable[[str], None] | None = None,
) -> FaultCosts:
    """What faults cost, of a network and what is left of it."""
    from coppice.planners.planning import plan as made
    from coppice.planners.replanning import replan_after_faults
    from coppice.schedule.files.plan_file import plan_of
    from coppice.simulation.models import model_of

    say = on_stage or (lambda _: None)
    if options.job is None and (options.parallel is not None or options.global_batch is not None):
        raise InputError("expected `parallel` and `global_batch` with `job`, found one alone: name a job.")
    if options.sizes is None and options.model is not None:
        raise InputError("expected `model` with `sizes`, found it alone: give sizes, or leave it out.")
    if plan is None:
        say("planning the whole network")
        given = made(whole, collective, root=options.root, ring=False).plan
    else:
        say("reading the plan")
        given = plan_of(plan)
        if given.problem.collective is not collective or given.topology != whole:
            raise InputError(
                f"expected a plan of {collective} on {whole.name}, found one of {given.problem.collective} on "
                f"{given.topology.name}: give its collective and its network."
            )
    say("planning what is left")
    found = replan_after_faults(given, now)
    times: list[TimesAfterFaults] = []
    model: Model | None = None
    if options.sizes is not None:
        say("simulating")
        model = model_of(options.model)
        times = _times(found, options.sizes, model)
    ways: list[WhatIf] = []
    if options.job is not None:
        say("laying the job out")
        ways = _ways(options, whole, now)
    return FaultCosts(replanned=found, times=times, model=model, ways=ways)


def _times(found: Replanned, asked: AnySizes, model: Model) -> list[TimesAfterFaults]:
    """Simulated times at each size."""
    from coppice.comparison.planned import plan_for  # brings the comparison of algorithms
    from coppice.simulation.simulated import simulate_sizes
    from coppice.text import sizes_of

    sizes = sizes_of(asked)
    before, after = (simulate_sizes(each, sizes, model=model) for each in (found.before, found.plan))
    rows = []
    for size, was, now in zip(sizes, before, after, strict=True):
        sized = plan_for(found.problem, size, model=model).preferred
        name, fastest_us = sized.fastest[size]
        if now.time_us <= fastest_us:
            name, fastest_us = "the new plan", now.time_us
        rows.append(
            TimesAfterFaults(
                size_bytes=size,
                before_us=was.time_us,
                now_us=now.time_us,
                fastest=name,
                fastest_us=fastest_us,
            )
        )
    return rows


def _ways(options: FaultOptions, whole: Topology, now: Topology) -> list[WhatIf]:
    """The ways on of the job, on the network that is given."""
    from coppice.iteration.job.what_if import after_faults
    from coppice.iteration.job_options import JobOptions

    asked = JobOptions(
        job=os.fspath(options.job or ""),
        topology=whole.name,
        parallel=options.parallel,
        global_batch=options.global_batch,
    )
    return after_faults(asked.load(lambda *_: whole), now)
