"""`coppice plan --job`: plans for all groups of a training job at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fractions import Fraction
from time import process_time
from typing import TYPE_CHECKING

from coppice.cli.output import Stages, print_fields, print_json
from coppice.cli.plan.sets import names_folder
from coppice.errors import InputError
from coppice.text import percent_text, plural, seconds_text

if TYPE_CHECKING:
    from coppice.bounds.together.demands import GroupDemand
    from coppice.cli.options.inputs import ProblemOptions
    from coppice.outputs.shapes.planning import GroupPlansJson
    from coppice.planners.together.joint import JointPlan
    from coppice.planners.together.placing import Placement
    from coppice.topology.model import Topology
    from coppice.verbs.bounding import GroupOptions

_MOST_NAMES = 16

TAKEN = frozenset(
    (
        *("topology", "boxes", "ranks", "relays", "rates", "settings", "round_digits"),
        *("collective", "groups", "job", "global_batch", "priority", "order", "output", "as_json"),
    )
)
"""Options of `plan` that plans of groups have, too."""


def print_group_plans(
    asked: ProblemOptions,
    options: GroupOptions,
    given: Collection[str],  # Options on the command line
    *,
    order: str,  # `topology`: which GPU takes which place is searched
    output: str | None,  # A folder for the plans
    as_json: bool,
) -> None:
    """Plan all groups at once, write the plans into a folder, and print how they share the links."""
    from coppice.verbs.planning import planned_groups

    others = sorted(set(given) - TAKEN)
    if others:
        raise InputError(
            f"groups at once are planned without `{others[0]}`: leave it out, or plan one group by `ranks`."
        )
    if output is not None and not names_folder(output):
        raise InputError(
            f"plans of groups at once are written to a folder, found {output}: give one, such as `-o plans/`."
        )
    with Stages() as stages:
        stages.begin("reading the topology")
        topology = asked.load()
        found, title, place = planned_groups(
            options, topology, str(asked.collective), order=order, on_stage=stages.begin
        )
        if output is not None:
            stages.begin("writing the plans")
            found.save(output)
    if as_json:
        print_json("plan-groups", record_of(found, place))
        return
    print_fields(title, [*_place_fields(found.topology, place), *fields_of(found, output)])


def _place_fields(topology: Topology, place: Placement | None) -> list[tuple[str, str]]:
    """Lines about the GPUs that are taken."""
    if place is None:
        return []
    if place.first_seconds is None:
        beside = "as numbered, groups would not reach each other"
    elif place.first_seconds > place.seconds:
        beside = f"as numbered they would take {seconds_text(float(place.first_seconds))} at least"
    else:
        beside = "as good as numbered"
    return [
        ("GPUs", _names(topology, place.order)),
        ("searched", f"{plural(place.tried, 'placement')} by the bound of all groups: {beside}"),
    ]


def _names(topology: Topology, order: Sequence[int]) -> str:
    """The GPUs by name, many by rank."""
    if len(order) > _MOST_NAMES:
        return f"ranks {', '.join(_runs(order))}"
    return ", ".join(topology.node_ids[topology.rank_nodes[rank]] for rank in order)


def _runs(order: Sequence[int]) -> list[str]:
    """Ranks in their order, neighbours as one.

    >>> _runs([4, 5, 6, 0, 2])
    ['4-6', '0', '2']
    """
    found: list[list[int]] = []
    for rank in order:
        if found and found[-1][-1] + 1 == rank:
            found[-1].append(rank)
        else:
            found.append([rank])
    return [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found]


def fields_of(found: JointPlan, output: str | None) -> list[tuple[str, str]]:
    """Output lines about the plans."""
    from coppice.bounds.together.describe import class_fields, limit_words

    fields = [(each.name, _demand_words(found, each)) for each in found.bound.demands]
    least = float(found.bound.seconds)
    fields += [
        (name, f"{seconds_text(float(seconds))}, {words}")
        for seconds, (name, words) in zip(found.seconds_of_classes, class_fields(found.bounds), strict=False)
    ]
    fields += [
        ("least time", f"{seconds_text(least)} in which the network carries all groups"),
        ("limited by", limit_words(found.bound)),
    ]
    over = "as short as any" if not found.gap else f"{percent_text(found.gap)} above the least time"
    how = "links shared by a linear program" if found.shared else "each group planned by itself"
    busiest = found.topology.link_name(found.link)
    busy = f"the busiest link busy for {seconds_text(float(found.seconds))}"
    fields += [
        ("plans", f"{plural(len(found.groups), 'group')}, {busy}: {over}"),
        ("made", how),
        ("busiest link", f"{busiest}: {_users(found)}"),
        ("verified", "yes: every plan"),
        ("took", f"{seconds_text(process_time())} of processor time in all"),
    ]
    if output is not None:
        fields.append(
            (
                "written to",
                f"{output.rstrip('/')}: `coppice simulate --together {output.rstrip('/')}/jobs.json`",
            )
        )
    return fields


def _demand_words(found: JointPlan, demand: GroupDemand) -> str:
    """One kind of group: what it exchanges, and what it would take alone."""
    size = f"{float(max(demand.size_bytes)) / 1e9:.4g} GB"
    words = (
        f"{demand.collective} of up to {size} in {plural(len(demand.groups), 'group')} of {demand.members}"
    )
    own = [each.seconds for each in found.groups if each.demand is demand]
    if not own or not found.shared:
        return words
    longest = max(own)
    alone = max(each.alone_seconds for each in found.groups if each.demand is demand)
    gives_up = f", {seconds_text(float(alone))} alone" if longest > alone * Fraction(1001, 1000) else ""
    return f"{words}, {seconds_text(float(longest))} on its share{gives_up}"


def _users(found: JointPlan) -> str:
    """What the busiest link is busy with."""
    shares = found.users(found.link)
    total = sum(shares.values())
    return ", ".join(f"{name} {100 * float(share / total):.3g}%" for name, share in shares.items())


def record_of(found: JointPlan, place: Placement | None) -> GroupPlansJson:
    """The plans as JSON values."""
    from coppice.bounds.together.describe import class_records, limit_words

    classes = zip(class_records(found.bounds), found.seconds_of_classes, strict=True)
    return {
        "topology": found.topology.name,
        "topology_sha256": found.topology.sha256,
        "ranks": found.topology.num_ranks,
        "least_seconds": float(found.bound.seconds),
        "least_exact_seconds": str(found.bound.seconds),
        "limited_by": limit_words(found.bound),
        "planned_seconds": float(found.seconds),
        "planned_exact_seconds": str(found.seconds),
        "gap": float(found.gap),
        "shared": found.shared,
        "rank_order": None if place is None else list(place.order),
        "busiest_link": found.topology.link_name(found.link),
        "verified": True,
        "priority_classes": [{**each, "planned_seconds": float(seconds)} for each, seconds in classes],
        "group_plans": [
            {
                "name": each.demand.name,
                "collective": each.demand.collective,
                "ranks_of_group": list(each.ranks),
                "size_bytes": int(each.size_bytes),
                "planner": each.plan.planner,
                "planned_seconds": float(each.seconds),
                "alone_seconds": float(each.alone_seconds),
            }
            for each in found.groups
        ],
        "processor_seconds": process_time(),
    }
