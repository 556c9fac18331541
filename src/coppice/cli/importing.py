"""`coppice import`: import an algorithm file of a runtime as a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import load_topology
from coppice.cli.output import Stages, print_fields, print_json, print_note, to_stdout
from coppice.errors import InputError
from coppice.options import argument, option
from coppice.options.shared import BoxesOption, JsonOption, OutputOption, RatesOption, SetOption
from coppice.text import bandwidth_text, plural

if TYPE_CHECKING:
    from coppice.schedule.schedule import Schedule


@with_options()
def import_file(
    file: Annotated[str, argument("MSCCL XML or MSCCL++ JSON file; - is standard input.", metavar="FILE")],
    *,
    output: OutputOption = None,
    topology: Annotated[
        str | None,
        option("Where its ranks are: preset or file [default: all GPUs at one switch].", metavar="TOPOLOGY"),
    ] = None,
    root: Annotated[int | None, option("Root, where the file does not name it.", metavar="RANK")] = None,
    boxes: BoxesOption = None,
    rates: RatesOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import an MSCCL XML file, or an execution plan of MSCCL++, as a plan.

    The file is verified (deadlock, races, result); a wrong one is refused with the first fault and exit code 1.
    Thread blocks, channels and slots are left behind: the plan says which rank sends which chunk to whom.

    \b
    Examples:
      coppice import algo.xml -o plan.json
      coppice import algo.xml --topology mi250 --boxes 2 -o plan.json
      coppice import plan.mscclpp.json --topology dgx-h100 -o plan.json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.export.importing import import_plan
    from coppice.schedule.files.plan_file import write_plan
    from coppice.topology.model import Topology

    if topology is None and (boxes is not None or rates is not None or settings):
        raise InputError("--boxes, --rates and --set belong to a topology: give one with --topology.")
    printed = to_stdout(output, as_json=as_json)

    def place() -> Topology:
        return load_topology(topology or "", boxes=boxes, rates=rates, settings=settings)

    with Stages() as stages:
        made = import_plan(
            file, topology=None if topology is None else place, root=root, on_stage=stages.begin
        )
        if output is not None:
            write_plan(made.plan, output)
    for warning in made.warnings:
        print_note(f"warning: {warning}")
    if printed:
        return
    plan, program = made.plan, made.program
    if as_json:
        from coppice.bounds.result import load_rates

        print_json(
            "import",
            {
                "name": program.name,
                **plan.problem.record(),
                "chunks": program.num_chunks,
                "thread_blocks": program.most_blocks,
                "transfers": made.schedule.num_transfers,
                **load_rates(plan.problem, plan.inv_rate),
                "algbw_gb_per_s": float(plan.algbw_gb_per_s),
                "algbw_exact": str(plan.algbw_gb_per_s),
                "output": None if output is None else str(output),
            },
        )
        return
    busbw = plan.algbw_gb_per_s * plan.problem.busbw_factor
    fields = [
        (
            "read",
            f"{program.name}: {plural(program.num_chunks, 'chunk')}, {plural(program.most_blocks, 'thread block')}",
        ),
        ("verified", "no deadlock, no race, the right result"),
        ("transfers", f"{made.schedule.num_transfers:,}, {_routes(made.schedule)}"),
        ("reaches", f"{bandwidth_text(plan.algbw_gb_per_s, busbw)} by its busiest link"),
    ]
    if output is not None:
        fields.append(("written to", str(output)))
    print_fields(
        f"{program.collective} on {plan.topology.name} ({plural(program.num_ranks, 'rank')})", fields
    )


def _routes(schedule: Schedule) -> str:
    """How the transfers go."""
    by_nic = int((schedule.path >= 0).sum())
    if not by_nic:
        return "by default routes"
    others = "" if by_nic == schedule.num_transfers else ", the others by default routes"
    return f"{by_nic:,} of them by the NIC of their channel{others}"
