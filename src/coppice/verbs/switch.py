"""Model aggregation in the network and choose the switches that should add; the verbs of `coppice switch`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct

from coppice.options import ANYTHING, NAMES, argument, option
from coppice.options.calls import verb
from coppice.options.names import AGGREGATING

if TYPE_CHECKING:
    from coppice.innetwork.placement import AggregationPlacement
    from coppice.innetwork.systems.estimate import AggregationEstimate

__all__ = ["model", "place"]


class ModelCall(Struct, frozen=True):
    """Systems in a case."""

    systems: Annotated[
        str | Iterable[str] | None,
        NAMES,
        argument(f"Systems, such as {', '.join(AGGREGATING[:3])}; ring for the hosts alone; None: all."),
    ] = None
    size: Annotated[int | str, ANYTHING, argument("Message size M in bytes, or as text.")] = "64M"
    workers: Annotated[int, option("GPUs that take part.", ge=2)] = 8
    gb_per_s: Annotated[Any, ANYTHING, option("Rate of a worker's link per direction, GB/s.")] = "12.5"
    slots: Annotated[
        int | None, option("Slots (aggregators) of the switch [default: 128, 40,000 of ATP].", ge=1)
    ] = None
    loss: Annotated[float, option("Packet loss probability per direction.", ge=0.0)] = 0.0
    case: Annotated[
        Mapping[str, Any] | None,
        option("Other fields of :class:`coppice.innetwork.systems.estimate.AggregationCase` by name."),
    ] = None


class PlaceCall(Struct, frozen=True):
    """A network, and how many of its switches may add."""

    topology: Annotated[Any, ANYTHING, argument("The network, or a name or file of it.")]
    budget: Annotated[int, argument("Switches that can get the feature at most.")]
    jobs: Annotated[
        Sequence[Sequence[int]] | None,
        option("Ranks of each job, which all-reduce at once; None: one of all ranks."),
    ] = None
    parts: Annotated[int, option("Equal parts of each job, each added in a tree of its own.", ge=1)] = 1
    size: Annotated[int | str, ANYTHING, option("Message size M in bytes, or as text.")] = "64M"


@verb(ModelCall)
def model(asked: ModelCall) -> list[AggregationEstimate]:
    """Closed-form performance of systems that aggregate in the network, the fastest first.

    Systems that do not apply are left out where all are modelled, and refused where they are named.

    Raises:
        InputError: If there is no such system, it does not apply, or a value is out of range.

    Examples:
        >>> import coppice
        >>> [(each.system, round(each.time_us)) for each in coppice.switch.model("switchml,ring", "64M", slots=512)]
        [('switchml', 5850), ('ring', 9479)]
    """
    from coppice.errors import InputError
    from coppice.innetwork.systems.estimate import AggregationCase
    from coppice.innetwork.systems.registry import MODELLED, estimates
    from coppice.text import size_of
    from coppice.topology.model import exact_rate

    named = asked.systems
    names = named.split(",") if isinstance(named, str) else [*(MODELLED if named is None else named)]
    rate = exact_rate(asked.gb_per_s, where="`gb_per_s`")
    case = AggregationCase(
        workers=asked.workers, gb_per_s=rate, slots=asked.slots, loss=asked.loss, **asked.case or {}
    )
    found, refused = estimates([name.strip() for name in names], case, size_of(asked.size))
    if named is not None and refused:
        raise InputError(next(iter(refused.values())))
    return sorted(found, key=lambda each: each.time_us)


@verb(PlaceCall)
def place(asked: PlaceCall) -> AggregationPlacement:
    """Choose the switches that should add, so that all-reduces load the busiest link least.

    Raises:
        InputError: If the network cannot be read, or a number is out of range.

    Examples:
        >>> import coppice
        >>> coppice.switch.place("fat-tree", 1).chosen
        ('spine0',)
    """
    from coppice.innetwork.placement import place_aggregation
    from coppice.topology.load import load

    return place_aggregation(
        load(asked.topology), budget=asked.budget, jobs=asked.jobs, trees=asked.parts, size=asked.size
    )
