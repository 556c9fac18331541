"""Bound a collective, or the groups of a training job at once."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.options import ANYTHING, AnySizes, argument, option
from coppice.options.calls import verb
from coppice.options.shared import BatchOption, InNetworkOption, ModelOption, RelaysOption, RootOption

if TYPE_CHECKING:
    from coppice.bounds.together.demands import GroupDemand
    from coppice.bounds.together.least import TogetherBound
    from coppice.simulation.least_time import LeastTime
    from coppice.topology.model import Topology

GB = 10**9


class GroupOptions(Struct, frozen=True, kw_only=True):
    """Groups of a training job that exchange at once."""

    groups: Annotated[
        str | None,
        option(
            "Groups of a training job at once, such as tp=8,dp=4: tensor, context (cp), data, pipeline (pp) and "
            "expert (ep) parallelism; each performs the collective.",
            metavar="LIST",
        ),
    ] = None
    job: Annotated[
        str | None,
        option(
            "All groups at once, with the bytes that an iteration of a job sends: job file (.toml) or name of a model.",
            "--job",
            metavar="JOB",
            was=["--workload"],
        ),
    ] = None
    global_batch: BatchOption = None
    priority: Annotated[
        str | None,
        option(
            "Groups that go first, in this order, where the network serves them so: tp,dp; tp+pp,dp for two alike. "
            "What is not named goes last [default: all alike].",
            metavar="NAME,...",
        ),
    ] = None

    @property
    def at_once(self) -> bool:
        """Whether groups are given, or a job that has some.

        Raises:
            InputError: If there is a batch without a job, or a priority without groups.
        """
        if self.global_batch is not None and self.job is None:
            raise InputError("expected `global_batch` with `job`, found it alone: name a job.")
        if self.priority is not None and self.groups is None and self.job is None:
            raise InputError(
                "expected `priority` with groups of a job, found it alone: give `groups` or `job`."
            )
        return self.groups is not None or self.job is not None

    def exchanged(
        self, topology: Topology, collective: str, *, positions: int | None = None
    ) -> tuple[list[GroupDemand], str]:
        """What all groups exchange, by ranks of the network or by so many positions, and what it is of."""
        from coppice.iteration.costs.traffic import degree_demands, job_demands
        from coppice.iteration.job.job import check_layout, layout_of, model_of
        from coppice.iteration.job_options import JobOptions, parse_degrees

        degrees = parse_degrees(self.groups, option="`groups`")
        ranks = topology.num_ranks if positions is None else positions
        if self.job is None:
            demands = degree_demands(degrees, collective, GB, ranks)
            return demands, f"{collective} of 1 GB in each of {self.groups} on {topology.name}"
        job = JobOptions(
            job=self.job, topology=topology.name, parallel=self.groups, global_batch=self.global_batch
        )
        record, _ = job.record()
        model, layout = model_of(record.model), layout_of(record.layout, ranks)
        check_layout(model, layout, ranks, topology.name)
        title = f"an iteration of {record.model.name or 'the model'} on {topology.name}"
        return job_demands(model, layout), title

    def positions(self) -> int:
        """GPUs that the degrees ask for.

        Raises:
            InputError: If there are no degrees.
        """
        from coppice.iteration.job_options import parse_degrees

        if self.groups is None:
            raise InputError(
                "expected `groups` with `order=topology`, which say how many GPUs are taken: give them."
            )
        degrees = parse_degrees(self.groups, option="`groups`")
        return prod(degree for name, degree in degrees.items() if name not in ("ep", "expert", "chunks"))


class GroupBoundOptions(GroupOptions, frozen=True, kw_only=True):
    """Options of a bound of groups at once."""

    in_network: InNetworkOption = False

    def together(self, topology: Topology, collective: str) -> tuple[list[TogetherBound], str]:
        """The least time of all groups of each class of priority, checked by itself, and what it is of."""
        from coppice.bounds.together.check import check_together
        from coppice.planners.together.joint import least_times_of

        demands, title = self.exchanged(topology, collective)
        found = least_times_of(topology, demands, priority=self.priority, in_network=self.in_network)
        for each in found:
            check_together(each)
        return found, title


class BoundOptions(GroupBoundOptions, frozen=True, kw_only=True):
    """Options of a bound."""

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
    ranks: Annotated[
        Sequence[int] | None, ANYTHING, option("Only these ranks take part; they are renumbered.")
    ] = None
    relays: RelaysOption = False
    sizes: Annotated[
        AnySizes | None,
        option("Least times of these message sizes instead, such as 1M or 1K:4G, under `model`."),
    ] = None
    model: Annotated[Any, ANYTHING, *ModelOption.__metadata__] = None
    time_limit: Annotated[
        float,
        option(
            "Seconds for linear programs; past it the result is a bracket (`inv_rate` below `attainable`).",
            ge=0,
        ),
    ] = 60.0


class BoundCall(BoundOptions, frozen=True):
    """A bound: its problem and its options."""

    problem: Annotated[
        Any,
        argument(
            "What to bound: a :class:`Problem`, what has one, or a topology (also by name) with a `collective`."
        ),
    ]
    collective: Annotated[
        Collective | str | None, argument("The collective, where `problem` is a topology.")
    ] = None


@verb(BoundCall)
def bound(asked: BoundCall) -> Any:
    """Least time per shard of a collective, exactly, with the bottleneck cut.

    For all-reduce it is the optimum over reduce trees and broadcast trees together; the two-phase time
    (reduce-scatter, then all-gather) is among the alternatives. For all-to-all it is the maximum concurrent flow. With
    groups of a training job it is the least time in which the network carries what all of them exchange
    (:class:`coppice.bounds.together.least.TogetherBound`); with `priority` a list of them, one for each class and all
    before it. With `sizes` it is the least time of a message of each size under a model, latencies included (a list of
    :class:`coppice.simulation.least_time.LeastTime`).

    Raises:
        InputError: If the problem has no meaning on this topology.
        UnreachableError: If some rank cannot be reached.

    Examples:
        >>> import coppice
        >>> coppice.bound("dgx-a100", "all_gather", ranks=range(4)).algbw_gb_per_s
        Fraction(400, 1)
        >>> cluster = coppice.load("dgx-h100", boxes=2)
        >>> float(coppice.bound(cluster, "all_reduce", groups="tp=8,dp=2").seconds)
        0.02
        >>> [round(each.time_us, 1) for each in coppice.bound(cluster, "all_reduce", sizes="1K,1G")]
        [9.9, 4039.4]
    """
    from coppice.bounds.attainable import in_network_optimum
    from coppice.bounds.optimum import bound as bound_of
    from coppice.topology.load import load

    source = asked.problem
    if asked.ranks is not None:
        source = load(source, ranks=list(asked.ranks), relays=asked.relays)
    if asked.model is not None and asked.sizes is None:
        raise InputError("expected `model` with `sizes`, found it alone: give the sizes.")
    if asked.at_once:
        given = [name for name in ("root", "weights", "demands", "sizes") if getattr(asked, name) is not None]
        if given:
            raise InputError(f"expected groups of a job at once, found `{given[0]}` with them: leave it out.")
        named = str(Collective.named(asked.collective or Collective.ALL_REDUCE))
        found, _ = asked.together(load(source), named)
        return found[-1] if asked.priority is None else found
    if asked.sizes is not None:
        return _least_times(asked, source)
    single = bound_of(
        source,
        asked.collective,
        root=asked.root,
        weights=asked.weights,
        demands=asked.demands,
        time_limit=asked.time_limit,
    )
    return in_network_optimum(single) if asked.in_network else single


def _least_times(asked: BoundCall, source: Any) -> list[LeastTime]:
    """The least time of a message of each size."""
    from coppice.bounds.problem import problem_of
    from coppice.simulation.least_time import LeastTimes
    from coppice.simulation.models import model_of
    from coppice.text import sizes_of

    if asked.in_network:
        raise InputError(
            "expected `sizes` without the help of switches, found `in_network` with them: leave it out."
        )
    problem = problem_of(
        source, asked.collective, root=asked.root, weights=asked.weights, demands=asked.demands
    )
    return LeastTimes(problem, model_of(asked.model)).over(sizes_of(asked.sizes or ()))
