"""`coppice diagnose`: which flows to measure, which part of a cluster is slow by their rates, what logs show."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coppice.cli.options.declaring import with_options
from coppice.cli.options.default_command import defaulting_to
from coppice.cli.options.faults import Faults
from coppice.cli.options.inputs import RunOption, TopologyOptions, collective_run, load_topology
from coppice.cli.output import Stages, print_fields, print_json, print_lines, progress_bar, write_text
from coppice.errors import CheckError, InputError
from coppice.options import argument, option
from coppice.options.shared import (
    BoxesOption,
    EngineOption,
    JsonOption,
    OutputOption,
    RoundsOption,
    SeedOption,
    SetOption,
    TimeoutOption,
)
from coppice.text import columns, number, plural, short_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coppice.diagnosis.design import ProbeDesign
    from coppice.diagnosis.inference import Diagnosed
    from coppice.diagnosis.recorded.examining import RunDiagnosis
    from coppice.diagnosis.recorded.waiting import LateRank


app = typer.Typer(
    cls=defaulting_to("results"),
    no_args_is_help=True,
    help="Find what is slow in a cluster by probes, or broken in a job by its logs; a file of rates is `results FILE`.",
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


@app.command("run")
@with_options("topology output boxes settings engine rounds timeout as_json")
def measure_probes(
    topology: Annotated[
        str | None,
        argument("Preset or topology file; in a lab [default: that of the lab].", metavar="TOPOLOGY"),
    ] = None,
    *,
    output: OutputOption = None,
    boxes: BoxesOption = None,
    settings: SetOption = None,
    engine: EngineOption = None,
    rounds: RoundsOption = 3,
    timeout: TimeoutOption = 300.0,
    as_json: JsonOption = False,
) -> None:
    """Measure the probes of a cluster between launched processes, all flows of a round at once, and write their rates.

    Every process is a rank of the topology. Ranks measure over the engine's own messages (torch: gloo; mpi: MPI), from
    memory of the host. `coppice diagnose FILE` infers from the file what is slow.

    \b
    Examples:
      torchrun --nproc-per-node 8 -m coppice diagnose run dgx-a100 -o results.json
      mpirun -np 16 coppice diagnose run cluster.json --engine mpi -o results.json
      coppice lab run -- coppice diagnose run -o results.json
    """  # noqa: D301 (\b is for the help formatter)
    import os

    from coppice.diagnosis.design import design_probes
    from coppice.diagnosis.results import with_rates
    from coppice.run.engines.launched import engine_name, open_engine
    from coppice.run.probe.flows import measure_design

    spec = topology or os.environ.get("COPPICE_TOPOLOGY")
    if spec is None:
        raise InputError("expected TOPOLOGY, found none: name the network of the processes.")
    end = open_engine(engine_name(engine), timeout_s=timeout)
    try:
        design = None
        if end.rank == 0:
            network = load_topology(spec, boxes=boxes, settings=settings)
            if network.num_ranks != end.ranks:
                raise InputError(
                    f"expected {network.num_ranks} processes for {network.name}, found {end.ranks}: start as many."
                )
            design = design_probes(network)
        with nullcontext() if end.rank else progress_bar("measuring") as progress:
            rates = measure_design(end, design, rounds=rounds, timeout_s=timeout, progress=progress)
    finally:
        end.close()
    if design is None:
        return
    record = with_rates(design.record(), rates)
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


@app.command()
@with_options("files topology boxes collective as_json")
def logs(
    files: Annotated[
        list[str],
        argument("Logs, tables, records and dumps of one job; - is standard input.", metavar="FILE..."),
    ],
    *,
    topology: Annotated[
        str | None,
        option("Preset or topology file: what is achievable there.", "--topology", metavar="TOPOLOGY"),
    ] = None,
    boxes: BoxesOption = None,
    collective: RunOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find what logs and dumps of a job show: rates against what is achievable, who waits for whom, what broke.

    The kind of a file is found by its content: logs of NCCL, RCCL and PyTorch, results of nccl-tests (text or -J, with
    -I times of single iterations), records of NCCL's inspector, reports of its RAS service (ncclras -f json), events of
    its profiler plug-in, dumps of PyTorch's flight recorder (a file a rank, named by it; nothing but plain containers
    is read from a pickle). Collectives are joined over ranks. Exit code 1 if there is an error, such as a rank that
    stopped.

    \b
    Examples:
      coppice diagnose logs nccl.log all_reduce.txt --topology dgx-h100 --boxes 4
      coppice diagnose logs nccl_trace_rank_* ras.json
      coppice diagnose logs inspector/*.log --json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.diagnosis.recorded.examining import examine
    from coppice.diagnosis.recorded.records import read_records

    given = None if topology is None else load_topology(topology, boxes=boxes)
    with Stages() as stages:
        stages.begin(f"reading {plural(len(files), 'file')}")
        records = read_records(files, topology=given, collective=collective_run(collective))
        stages.begin("checking rules")
        found = examine(records)
    if as_json:
        print_json("diagnose-logs", found.record())
    else:
        print_lines(_examined(found))
    found.require_ok()


def _examined(found: RunDiagnosis) -> list[str]:
    """Findings, then rates and ranks that others wait for as tables."""
    counts = [
        plural(sum(each.severity.value == kind for each in found.findings), kind)
        for kind in ("error", "warning", "note")
    ]
    lines = [f"{found.records.file}: {', '.join(counts)}"]
    for each in found.findings:
        file = each.path or found.records.file
        place = f"{file}:{each.line}" if each.line else file
        effect = f" ({each.why})" if each.why and each.severity.value != "note" else ""
        lines.append(f"  {each.severity.value:<7}  {each.rule}  {place}: {each.text}{effect}")
        lines.append(f"                fix: {each.fix}")
    lines += [f"  ... and {count} more of {rule}" for rule, count in found.hidden.items()]
    if found.rates:
        rows = [
            (
                "achieved",
                "ranks",
                "nodes",
                "size",
                "calls",
                "us",
                "algbw GB/s",
                "NCCL's us",
                "least us",
                "share",
            )
        ]
        for rate in found.rates[:_MOST_RATES]:
            share = rate.share_of_optimum if rate.share_of_optimum is not None else rate.share_of_model
            rows.append(
                (
                    str(rate.collective) if rate.kernels else f"{rate.collective} (host)",
                    "-" if rate.ranks is None else str(rate.ranks),
                    "-" if rate.nodes is None else str(rate.nodes),
                    short_size(rate.size_bytes),
                    str(rate.calls),
                    f"{rate.time_us:.6g}",
                    f"{rate.algbw_gb_per_s:.4g}",
                    "-" if rate.library_us is None else f"{rate.library_us:.5g}",
                    "-" if rate.least_us is None else f"{rate.least_us:.5g}",
                    "-" if share is None else f"{100 * share:.3g}%",
                )
            )
        lines += ["", *columns(rows, "lrrrrrrrrr")]
        if len(found.rates) > _MOST_RATES:
            lines.append(f"... and {len(found.rates) - _MOST_RATES} more (--json gives all)")
        models = dict.fromkeys(
            f"{title}: {name}"
            for rate in found.rates
            for title, name in (("NCCL's us", rate.library_model), ("least us", rate.least_model))
            if name
        )
        lines += [f"  {words}" for words in models]
    late = [each for each in found.late if each.sure]
    if late:
        lines += ["", *columns([_LATE, *(_late_row(each) for each in late[:_MOST_LISTED])], "llrrrr")]
    return lines


_MOST_RATES = 60
_LATE = ("waited for", "group", "last into", "of", "us each", "of all time")


def _late_row(each: LateRank) -> tuple[str, ...]:
    return (
        f"rank {each.rank}",
        each.communicator[:20],
        str(each.last),
        str(each.calls),
        f"{each.wait_us:.4g}",
        f"{100 * each.share:.3g}%",
    )


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
