"""`coppice design schedule`: breadth-first broadcast on a direct-connect topology file."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Annotated

from msgspec.structs import replace

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import TopologyOptions
from coppice.cli.output.render import Stages, print_fields, print_json, to_stdout
from coppice.collectives import Collective
from coppice.options import option
from coppice.options.shared import CollectiveOption, JsonOption
from coppice.text import percent_text

PiecesOption = Annotated[
    int | None,
    option(
        "Number of sub-chunks per shard [default: as many as the least loads need].",
        "--pieces",
        metavar="N",
        ge=1,
    ),
]


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
