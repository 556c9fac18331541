"""`coppice probe`: measure the network between launched processes."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import load_topology
from coppice.cli.output import print_json, print_lines, progress_bar
from coppice.errors import InputError
from coppice.options import option
from coppice.options.shared import (
    BoxesOption,
    EngineOption,
    JsonOption,
    RoundsOption,
    SetOption,
    TimeoutOption,
)

if TYPE_CHECKING:
    from coppice.run.probe.network import Probed


@with_options()
def probe(
    *,
    output: Annotated[
        Path | None, option("Write the measured topology.", "-o", "--output", metavar="FILE")
    ] = None,
    expect: Annotated[
        str | None,
        option(
            "Expected network: report its links that carry less; `-o` then writes it with their "
            "measured rates.",
            metavar="TOPOLOGY",
        ),
    ] = None,
    engine: EngineOption = None,
    costs: Annotated[
        Path | None,
        option(
            "Instead, measure what puts, signals, waits and kernels cost on the device of `--engine put-signal`, "
            "and write what their simulation takes.",
            metavar="FILE",
        ),
    ] = None,
    rounds: RoundsOption = 3,
    timeout: TimeoutOption = 300.0,
    boxes: BoxesOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure every pair of ranks alone, then ranks and groups of near ranks against the rest concurrently.

    Without --expect the result is a topology of groups and a network between them, which every other command
    takes. With it, each link is judged; exit code 1 if one carries less than 85% of its rate.
    With --engine put-signal a canary comes first: exit code 1 if a wait is over while data of its put are missing.

    \b
    Examples:
      torchrun --nproc-per-node 8 -m coppice probe -o measured.json
      mpirun -np 16 coppice probe --engine mpi --expect cluster.json
      torchrun --nproc-per-node 8 -m coppice probe --engine put-signal --costs costs.json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.run.engines.launched import engine_name, open_engine
    from coppice.run.engines.put_signal.engine import PutSignalEngine
    from coppice.run.probe.network import probe_network
    from coppice.run.probe.put_signal_costs import check_arrivals
    from coppice.topology.readers.document import write_topology

    if expect is None and (boxes is not None or settings):
        raise InputError("--boxes and --set go with --expect PRESET: add it, or leave them out.")
    if costs is not None:
        _probe_costs(costs, engine, expect, output, rounds=rounds, timeout_s=timeout, as_json=as_json)
        return
    end = open_engine(engine_name(engine), timeout_s=timeout)
    try:
        expected = None if expect is None else load_topology(expect, boxes=boxes, settings=settings)
        if expected is not None and expected.num_ranks != end.ranks:
            raise InputError(
                f"expected {expected.num_ranks} processes for {expected.name}, found {end.ranks}: start as many."
            )
        if isinstance(end, PutSignalEngine):
            check_arrivals(end, timeout_s=timeout)
        with nullcontext() if end.rank else progress_bar("measuring") as progress:
            found = probe_network(end, expected, rounds=rounds, timeout_s=timeout, progress=progress)
        if found is None:
            return
        if output is not None:
            write_topology(found.topology, output)
        if as_json:
            print_json("probe", found.record())
        else:
            print_lines(_words(found))
    finally:
        end.close()
    found.require_rates()


def _probe_costs(
    path: Path,
    engine: str | None,
    expect: str | None,
    output: Path | None,
    *,
    rounds: int,
    timeout_s: float,
    as_json: bool,
) -> None:
    from coppice.files import write_atomically
    from coppice.run.engines.launched import engine_name, open_engine
    from coppice.run.engines.put_signal.engine import PutSignalEngine
    from coppice.run.probe.put_signal_costs import check_arrivals, measure_put_signal_costs
    from coppice.simulation.put_signal import encode_put_signal_costs

    if engine not in (None, "put-signal") or expect is not None or output is not None:
        raise InputError(
            "--costs goes with --engine put-signal, and without --expect and -o: leave them out."
        )
    end = open_engine(engine_name("put-signal"), timeout_s=timeout_s)
    try:
        assert isinstance(end, PutSignalEngine)  # what it opens by that name
        check_arrivals(end, timeout_s=timeout_s)
        found = measure_put_signal_costs(end, rounds=rounds, timeout_s=timeout_s)
        if end.rank:
            return
        text = encode_put_signal_costs(found, measured=f"{end.ranks} ranks on {end.device.name}")
        write_atomically(path, text.encode())
        if as_json:
            print_json("probe-costs", found)
        else:
            print_lines([f"{name:16} {value:.4g}" for name, value in found.items()])
    finally:
        end.close()


def _words(found: Probed) -> list[str]:
    pairs = sorted(each.gb_per_s for each in found.measurements if each.experiment.kind == "pair")
    lines = [f"{len(found.measurements)} experiments"]
    if pairs:
        lines.append(
            f"pairs         {pairs[0]:.3g} to {pairs[-1]:.3g} GB/s, median {pairs[len(pairs) // 2]:.3g}"
        )
    shown = ["{" + ", ".join(map(str, group)) + "}" for group in found.groups]
    lines.append(f"near ranks    {' '.join(shown)}")
    for each in found.measurements:
        if each.experiment.kind == "group-out":
            ranks = ", ".join(map(str, sorted({src for src, _ in each.experiment.flows})))
            lines.append(f"              out of {{{ranks}}}: {each.total_gb_per_s:.3g} GB/s together")
    everybody = [each.total_gb_per_s for each in found.measurements if each.experiment.kind == "all"]
    if everybody:  # tried in more than one way: what the network carries is at least the best of them
        lines.append(f"              all groups to all others: {max(everybody):.3g} GB/s together")
    bound = found.bound
    cut = [found.topology.node_ids[node] for node in bound.cut]
    lines.append(
        f"bottleneck    {', '.join(cut)}: all-gather at {float(bound.algbw_gb_per_s):.4g} GB/s at most"
    )
    lines.extend(
        f"below         {each.src} -> {each.dst}: {each.measured_gb_per_s:.3g} of {each.expected_gb_per_s:g} GB/s"
        for each in found.findings
        if each.below
    )
    untested = sum(not finding.tested for finding in found.findings)
    if untested:
        lines.append(f"not tested    {untested} of {len(found.findings)} links limit no experiment")
    return lines
