"""`coppice design show`, `cabling` and `schedule`: one graph, its cabling list, and a broadcast on a topology file."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec.structs import replace

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import TopologyOptions
from coppice.cli.output import Stages, print_fields, print_json, to_stdout, write_text
from coppice.collectives import Collective
from coppice.design.limits import CablingLimits
from coppice.files import write_atomically
from coppice.options import argument, option
from coppice.options.shared import USUAL_SIZES, CollectiveOption, JsonOption, OutputOption, SizesOption
from coppice.simulation.models import ALPHA_BETA
from coppice.text import parse_sizes, percent_text, plural, rate_text, size_text

if TYPE_CHECKING:
    from coppice.design.evaluation import Evaluation
    from coppice.design.recipes.recipe import Recipe


_MOST_RANKS_WITH_TREES = 128
_MOST_LOADS = 12


PiecesOption = Annotated[
    int | None,
    option(
        "Number of sub-chunks per shard [default: as many as the least loads need].",
        "--pieces",
        metavar="N",
        ge=1,
    ),
]


@with_options()
def show(
    recipe: Annotated[
        str,
        argument(
            "Such as 'line^3(circulant(16,3,4))', 'diamond^2' or 'uniring(4) * uniring(8)'.", metavar="RECIPE"
        ),
    ],
    *,
    output: OutputOption = None,
    plan: Annotated[Path | None, option("Write the schedule as a plan.", metavar="FILE")] = None,
    picture: Annotated[Path | None, option("Draw the graph as SVG.", "--plot", was=["--picture"])] = None,
    collective: CollectiveOption = Collective.ALL_GATHER,
    size: SizesOption = USUAL_SIZES,
    gb_per_s: Annotated[str, option("Rate of a link in each direction.", metavar="RATE")] = "12.5",
    latency_us: Annotated[float, option("Latency of a link.", ge=0)] = 0.5,
    pieces: PiecesOption = None,
    forest: Annotated[
        bool | None,
        option(
            "Simulate optimal trees on the same graph as well [default: up to 128 ranks].",
            "--forest/--no-forest",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Build a recipe's graph, schedule a collective on it, verify and simulate the schedule.

    All-gather, reduce-scatter and all-reduce spread along shortest paths in the best balance (breadth-first broadcast);
    all-to-all follows a maximum concurrent flow. T_B is the bandwidth time in units of M over the bandwidth of a node,
    with every step as slow as its busiest link. The bound is what no schedule on the graph beats.

    \b
    Examples:
      coppice design show 'line^3(circulant(16,3,4))' -o topo.json
      coppice design show 'torus(4,6)' --collective all_reduce --plan plan.json --plot torus.svg
      coppice design show 'gkautz(4,64)' --collective all_to_all --json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.design.evaluation import evaluate
    from coppice.design.recipes.parser import parse
    from coppice.report.topology.picture import topology_svg
    from coppice.schedule.files.plan_file import write_plan
    from coppice.topology.model import exact_rate
    from coppice.topology.readers.document import write_topology

    printed = to_stdout(output, plan, picture, as_json=as_json, holds="a file", instead="topo.json")
    sizes = parse_sizes(size, option="--size")
    rate = exact_rate(gb_per_s, where="--gb-per-s")
    made = parse(recipe)
    with Stages() as stages:
        stages.begin("building the graph")
        graph = made.build()
        topology = graph.to_topology(gb_per_s=rate, latency_us=latency_us)
        trees = graph.num_nodes <= _MOST_RANKS_WITH_TREES if forest is None else forest
        found = evaluate(
            graph,
            topology,
            collective,
            recipe=made,
            pieces=pieces,
            sizes=sizes,
            with_forest=trees,
            on_stage=stages.begin,
        )
        if output is not None and Path(str(output)).suffix == ".svg":
            write_atomically(output, topology_svg(topology).encode())
        elif output is not None:
            write_topology(topology, output)
        if plan is not None:
            write_plan(found.plan, plan)
        if picture is not None:
            write_atomically(picture, topology_svg(topology).encode())
    if as_json:
        print_json("design-show", found.record())
    else:
        fields = [*_graph_fields(made, found), *_schedule_fields(found), *_time_fields(found)]
        fields.extend(
            ("written to", str(path))
            for path in (output, plan, picture)
            if path is not None and str(path) != "-"
        )
        title = f"{made} ({plural(graph.num_nodes, 'rank')} of degree {graph.degree})"
        print_fields(title, fields, file=sys.stderr if printed else sys.stdout)
    found.report.require_ok()


def _graph_fields(recipe: Recipe, found: Evaluation) -> list[tuple[str, str]]:
    """What the graph is and what its recipe promises."""
    graph = found.graph
    kind = "full-duplex" if graph.bidirectional else "one way"
    facts = recipe.facts()
    promised = f"{plural(facts.steps, 'step')}, T_B {_fraction(facts.bandwidth_time)}"
    return [
        ("links", f"{plural(graph.num_links, 'link')}, {kind}"),
        ("recipe promises", promised if facts.exact else f"{promised} at most"),
    ]


def _schedule_fields(found: Evaluation) -> list[tuple[str, str]]:
    """What the schedule takes, and what the verifier says."""
    from coppice.design.families.family import optimum
    from coppice.design.schedules.breadth_first import moore_steps

    graph, designed, schedule = found.graph, found.designed, found.plan.schedule
    collective = found.plan.problem.collective
    fields: list[tuple[str, str]] = []
    if designed is not None:
        phases = 2 if collective is Collective.ALL_REDUCE else 1
        least_steps = phases * moore_steps(graph.num_nodes, graph.degree)
        fields.append(("steps", f"{designed.steps} (Moore bound {least_steps})"))
        if designed.expanded:
            fields.append(("schedule", "of the expansions: faster than breadth-first broadcast"))
        loads = [str(load) for load in designed.step_loads]
        shown = ", ".join(loads[:_MOST_LOADS]) + (", .." if len(loads) > _MOST_LOADS else "")
        fields.append(("step loads", f"{shown} shards on the busiest link"))
        best = _fraction(phases * optimum(graph.num_nodes))
        fields.append(("T_B", f"{_fraction(designed.bandwidth_time)} (bound {best})"))
        pieces = plural(designed.pieces, "piece")
        loss = f", {percent_text(designed.loss)} slower than with more" if designed.loss else ""
        fields.append(("shards", f"cut into {pieces}{loss}"))
    rate = found.plan.algbw_gb_per_s
    fields.append(
        (
            str(collective),
            f"algbw {rate_text(rate)} GB/s: {percent_text(found.share_of_optimum)} of the bound",
        )
    )
    count = 0 if schedule is None else schedule.num_transfers
    verdict = "yes" if found.report.ok else f"no: {found.report.failures[0]}"
    fields.append(("verified", f"{verdict} ({plural(count, 'transfer')})"))
    return fields


def _time_fields(found: Evaluation) -> list[tuple[str, str]]:
    """Simulated times, those of trees beside them."""
    fields = []
    for place, (size, time) in enumerate(found.times_us.items()):
        trees = found.forest_times_us.get(size)
        beside = "" if trees is None else f"; trees {trees:,.2f} us"
        fields.append(("simulated" if place == 0 else "", f"{size_text(size)}: {time:,.2f} us{beside}"))
    if fields:
        fields.append(("model", ALPHA_BETA.text))
    return fields


def _fraction(value: Fraction) -> str:
    """A fraction with its decimal."""
    return str(value) if value.denominator == 1 else f"{value} = {float(value):.5g}"


LimitOption = Annotated[CablingLimits, option("Upper limits", "--limit")]


@with_options()
def cabling(
    recipe: Annotated[str, argument("Such as 'torus(4,6)'.", metavar="RECIPE")],
    *,
    output: Annotated[
        Path,
        option("Where to write the list; - is standard output.", "-o", "--output", metavar="FILE"),
    ] = Path("-"),
    limits: LimitOption,
    as_json: JsonOption = False,
) -> None:
    """Write the cabling list of a recipe as CSV: pairs of ports to connect.

    Full-duplex graphs have cables, others fibres from the transmitter of a port to the receiver of another. With
    panel_ports every port of a node has a fixed position on a patch panel, and cables join positions.

    \b
    Examples:
      coppice design cabling 'torus(4,6)' -o torus.csv
      coppice design cabling 'gkautz(4,1024)' --limit panel_ports=512 --limit max_panels=8 -o kautz.csv
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.design.cabling import cabling_of
    from coppice.design.recipes.parser import parse

    made = cabling_of(parse(recipe).build(), limits)
    printed = str(output) == "-"
    if not (printed and as_json):
        write_text(made.csv_text(), output)
    if as_json:
        print_json("design-cabling", made.record())
    if printed or as_json:
        return
    fields = [(f"{made.kind}s", f"{len(made.ends):,}")]
    if limits.panel_ports is not None:
        fields.append(("patch panels", f"{made.panels:,}, {made.across_panels:,} {made.kind}s across"))
    fields.append(("written to", str(output)))
    graph = made.graph
    print_fields(f"{graph.name} ({plural(graph.num_nodes, 'rank')} of degree {graph.degree})", fields)


@with_options("topology ... boxes rates settings round_digits as_json")
def schedule(
    asked: TopologyOptions,
    *,
    collective: CollectiveOption = Collective.ALL_GATHER,
    pieces: PiecesOption = None,
    output: Annotated[
        Path | None, option("Write the schedule as a plan.", "-o", "--output", metavar="FILE")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Schedule all-gather, reduce-scatter or all-reduce by breadth-first broadcast on a direct-connect topology.

    Every shard spreads along shortest paths, in the best balance over the links into each rank. Step loads are in
    shards per link of the smallest rate; t_b is the time of all steps in units of M over the bandwidth of a node, the
    largest rate at which a node sends. Self-loops are dropped.

    \b
    Examples:
      coppice design schedule graph.json --json
      coppice design schedule torus --set dims=4x6 --collective all_reduce -o plan.json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.bounds.problem import Problem
    from coppice.design.graph import graph_of
    from coppice.design.schedules.collectives import breadth_first_schedule
    from coppice.schedule.explanation import title_of
    from coppice.schedule.files.plan_file import write_plan
    from coppice.schedule.plan import Plan
    from coppice.schedule.verification.verify import verify_plan

    printed = to_stdout(output, as_json=as_json)
    with Stages() as stages:
        stages.begin("reading the topology")
        loaded = replace(asked, settings=_dropping_loops(asked.topology, asked.settings)).load()
        graph, least = graph_of(loaded)
        stages.begin("scheduling")
        made = breadth_first_schedule(graph, loaded, collective, pieces=pieces)
        unit = Fraction(int(loaded.capacity.sum()), loaded.denominator * max(1, graph.num_links))
        plan = Plan(
            problem=Problem(topology=loaded, collective=collective),
            inv_rate=made.inv_rate(unit) if loaded.num_links else Fraction(0),
            schedule=made.schedule,
            planner="breadth-first",
            parameters={"pieces": made.pieces},
        )
        stages.begin("verifying")
        report = verify_plan(plan)
        if output is not None:
            stages.begin("writing the plan")
            write_plan(plan, output)
    loads = [str(load * least) for load in made.step_loads]
    if as_json:
        print_json(
            "design-schedule",
            {
                "topology": loaded.name,
                "topology_sha256": loaded.sha256,
                "ranks": loaded.num_ranks,
                "collective": collective.value,
                "steps": made.steps,
                "step_loads": loads,
                "t_b": str(made.bandwidth_time),
                "pieces": made.pieces,
                "loss_by_pieces": str(made.loss),
                "transfers": made.schedule.num_transfers,
                "load_ns_per_byte": str(plan.inv_rate),
                "inv_rate": str(plan.inv_rate),
                "verified": report.ok,
                "failures": list(report.failures),
            },
        )
    elif not printed:
        fields = [
            ("steps", str(made.steps)),
            ("step loads", f"{', '.join(loads)} shards per smallest link"),
            ("T_B", f"{made.bandwidth_time} = {float(made.bandwidth_time):.5g} M / bandwidth of a node"),
            ("pieces", f"{made.pieces} per shard"),
            ("transfers", f"{made.schedule.num_transfers:,}"),
            ("verified", "yes" if report.ok else f"no: {report.failures[0]}"),
        ]
        if made.loss:
            fields.insert(4, ("loss", f"{percent_text(made.loss)} slower than with more pieces"))
        if output is not None:
            fields.append(("written to", str(output)))
        print_fields(title_of(plan.problem), fields)
    report.require_ok()


def _dropping_loops(topology: str, settings: list[str] | None) -> list[str]:
    """The settings, and for a file that its self-loops be dropped: they take ports and carry nothing."""
    from coppice.topology import PRESETS

    given = list(settings or ())
    if topology in PRESETS or any(setting.startswith("self_links") for setting in given):
        return given
    return [*given, "self_links=drop"]
