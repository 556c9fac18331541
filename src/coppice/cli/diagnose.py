"""`coppice diagnose`: which flows to measure, and which part of a cluster is slow by their rates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from coppice.cli.options.declaring import with_options
from coppice.cli.options.faults import Faults
from coppice.cli.options.inputs import TopologyOptions
from coppice.cli.output import Stages, print_fields, print_json, print_lines, write_text
from coppice.errors import CheckError
from coppice.options import argument
from coppice.options.shared import JsonOption, OutputOption, SeedOption
from coppice.text import columns, number, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coppice.diagnosis.design import ProbeDesign
    from coppice.diagnosis.inference import Diagnosed


class _ResultsFirst(TyperGroup):
    """`coppice diagnose FILE` is `coppice diagnose results FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["results", *args]
        found: list[str] = super().parse_args(ctx, args)
        return found


app = typer.Typer(
    cls=_ResultsFirst,
    no_args_is_help=True,
    help="Find the slow link, NIC, GPU, host or switch of a cluster; a file of rates is `results FILE`.",
)

_MOST_LISTED = 12


@app.command()
@with_options("topology output boxes rates settings as_json")
def design(asked: TopologyOptions, *, output: OutputOption = None, as_json: JsonOption = False) -> None:
    """Choose the fewest rounds of concurrent flows that distinguish all slow parts of a cluster.

    A part is a link in one direction, a NIC, GPU, switch or host. What no flow tells apart is listed. Measure every
    flow of each round while the others of its round run, write the rates into the file under `measured_gb_per_s`
    (a number, or a list of repeated measurements), and give it to `coppice diagnose FILE`.

    \b
    Examples:
      coppice diagnose design dgx-a100 --boxes 2 -o probes.json
      coppice diagnose design cluster.json --json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.diagnosis.design import design_probes

    with Stages() as stages:
        stages.begin("reading the topology")
        topology = asked.load()
        stages.begin("choosing probes")
        found = design_probes(topology)
    if output is not None:
        _write(found.record(), output)
    if as_json:
        print_json("diagnose-design", found.record())
    elif str(output) != "-":
        print_fields(f"probes of {topology.name}", design_fields(found))


@app.command()
@with_options("topology nodes links removed one_way seed output boxes rates settings as_json")
def simulate(
    asked: TopologyOptions,
    faults: Faults,
    *,
    seed: SeedOption = 0,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the rates that the probes of a cluster would have with faults, with noise of 3%, to try a diagnosis.

    \b
    Example:
      coppice diagnose simulate dgx-a100 --boxes 2 --slow box1/nic2=60% -o results.json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.diagnosis.design import design_probes
    from coppice.diagnosis.results import with_rates
    from coppice.diagnosis.simulated import measure

    topology = asked.load()
    found = design_probes(topology)
    record = with_rates(found.record(), measure(found, now=faults.of(topology), seed=seed))
    if output is not None or not as_json:
        _write(record, output)
    if as_json:
        print_json("diagnose-design", record)


@app.command()
@with_options()
def results(
    file: Annotated[str, argument("Probes with their rates; - is standard input.", metavar="FILE")],
    *,
    as_json: JsonOption = False,
) -> None:
    """Infer which part of a cluster is slow, with how probable that is; exit code 1 where one is.

    None, one and two slow parts are compared by their likelihood under the noise that the rates themselves show.

    \b
    Examples:
      coppice diagnose results.json
      coppice diagnose results results.json --json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.diagnosis.inference import infer
    from coppice.diagnosis.results import read_results

    found = infer(*read_results(file))
    if as_json:
        print_json("diagnose-results", found.record())
    else:
        print_fields(f"diagnosis of {found.design.topology.name}", diagnosed_fields(found))
        print_lines(_evidence(found))
    if found.culprits:
        named = " and ".join(f"{each.kind} {each.name}" for each in found.culprits)
        raise CheckError(f"expected a cluster without slow parts, found {named}: see the flows that show it.")


def _write(record: Mapping[str, Any], output: Path | None) -> None:
    """Write probes, with their rates where they have some."""
    import json

    write_text(json.dumps(record) + "\n", output)


def design_fields(found: ProbeDesign) -> list[tuple[str, str]]:
    """The lines about probes."""
    names = found.parts.names
    proved = (
        "no fewer of the candidates do" if found.fewest == len(found.rounds) else f"{found.fewest} at least"
    )
    fields = [
        ("rounds", f"{len(found.rounds)}, {plural(found.flows, 'flow')} in all; {proved}"),
        *(("", f"{each.name}: {plural(len(each.src), 'flow')}") for each in found.rounds[:_MOST_LISTED]),
    ]
    if len(found.rounds) > _MOST_LISTED:
        fields.append(("", f"and {len(found.rounds) - _MOST_LISTED} more"))
    apart = len(names) - len(found.unseen) - sum(len(each) for each in found.undistinguished)
    fields.append(("parts", f"{len(names)}, of which {apart} are told apart from all others"))
    for place, each in enumerate(found.undistinguished[:_MOST_LISTED]):
        fields.append(("alike" if place == 0 else "", " and ".join(names[part] for part in each)))
    if len(found.undistinguished) > _MOST_LISTED:
        fields.append(("", f"and {len(found.undistinguished) - _MOST_LISTED} more sets"))
    if found.unseen:
        shown = ", ".join(names[part] for part in found.unseen[:_MOST_LISTED])
        more = len(found.unseen) - _MOST_LISTED
        fields.append(("not seen", shown + (f" and {more} more" if more > 0 else "")))
    return fields


def diagnosed_fields(found: Diagnosed) -> list[tuple[str, str]]:
    """The lines about what is slow."""
    slow = [f"{each.kind} {each.name}, at {100 * each.share:.0f}% of its rate" for each in found.culprits]
    fields = [
        ("slow", " and ".join(slow) or "nothing"),
        ("confidence", f"{100 * found.confidence:.4g}%"),
        ("noise", f"{100 * found.spread:.2g}% of a rate"),
    ]
    if found.others:
        words = [f"{name} {100 * share:.2g}%" for name, share in found.others if share >= 5e-4]
        if words:
            fields.append(("or", ", ".join(words)))
    if found.cut:
        more = len(found.cut) - _MOST_LISTED
        shown = ", ".join(found.cut[:_MOST_LISTED])
        fields.append(("cut", shown + (f" and {more} more" if more > 0 else "")))
        fields.append(("seen by", plural(found.seen, "flow")))
    return fields


def _evidence(found: Diagnosed) -> list[str]:
    """Flows that show it, as a table."""
    rows = [("flow", "expected", "measured", "")]
    for each in found.evidence:
        share = each.measured_gb_per_s / each.expected_gb_per_s
        src, dst = each.ranks
        expected, measured = number(each.expected_gb_per_s), number(each.measured_gb_per_s)
        rows.append((f"rank {src} -> {dst}", f"{expected} GB/s", f"{measured} GB/s", f"{100 * share:.0f}%"))
    return columns(rows, "lrrr") if len(rows) > 1 else []
