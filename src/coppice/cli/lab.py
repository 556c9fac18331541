"""`coppice lab`: emulate a topology on this machine, and run programs in it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated

import typer

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import TopologyOptions
from coppice.cli.output import Stages, print_fields, print_json, print_lines, progress_bar
from coppice.errors import CheckError, InputError
from coppice.options import argument, option
from coppice.options.shared import JsonOption, LauncherOption, LauncherWordsOption, TimeLimitOption

if TYPE_CHECKING:
    from coppice.outputs.shapes.networks import LabJson
    from coppice.run.lab.blueprint import Blueprint, Load
    from coppice.run.lab.namespaces import Lab

app = typer.Typer(
    no_args_is_help=True,
    help="Build a topology from network namespaces and rate-limited links, and run programs in it (Linux, root).",
)

LabOption = Annotated[str, option("Name of the lab.", "--name")]


@app.command("up")
@with_options("topology ... boxes rates settings ranks as_json")
def up(
    asked: TopologyOptions,
    *,
    scale: Annotated[
        str,
        option("Factor of the rates: 300 GB/s at 1e-4 are 240 Mbit/s."),
    ] = "1e-4",
    name: LabOption = "lab",
    force: Annotated[
        bool,
        option("Build it although the cores of this machine would be the bottleneck."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Build a lab: a namespace for every node, a rate-limited cable for every link.

    It is refused where an optimal all-gather would bring more traffic than the cores of this machine can carry:
    then they, not the links, would be measured.

    \b
    Examples:
      coppice lab up examples/two-boxes.json --scale 1e-4
      coppice lab run -- python train.py
      coppice lab down
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.run.lab.blueprint import draw, load_of
    from coppice.run.lab.namespaces import build

    loaded = asked.load()
    factor = _factor(scale)
    blueprint = draw(loaded, factor)
    load = load_of(loaded, factor)
    if not load.fits and not force:
        largest = factor * load.limit_bits_per_s / load.bits_per_s
        raise InputError(
            f"expected at most {_gbit(load.limit_bits_per_s)} Gbit/s at all ranks together, which the cores of this "
            f"machine can carry, found {_gbit(load.bits_per_s)} in an optimal all-gather: choose --scale "
            f"{float(largest):.1e} or less, or --force."
        )
    with Stages() as stages:
        stages.begin("building namespaces and cables")
        lab = build(name, blueprint)
    if as_json:
        print_json("lab", _facts(lab, load))
        return
    print_fields(f"lab {name}: {loaded.name}", _fields(lab, load))


@app.command("check")
@with_options()
def check(*, name: LabOption = "lab", as_json: JsonOption = False) -> None:
    """Measure every link with a TCP stream; exit code 1 if one carries less than 90% of its rate."""
    from coppice.run.lab.namespaces import check_links, find

    lab = find(name)
    ids = lab.blueprint.topology.node_ids
    with progress_bar("measuring links") as progress:
        found = check_links(lab, progress=progress)
    bad = [each for each in found if not each.ok]
    if as_json:
        rows = [
            {
                "from": ids[each.src],
                "to": ids[each.dst],
                "mbit_per_s": each.bits_per_s / 1e6,
                "measured_mbit_per_s": round(each.measured_bits_per_s / 1e6, 3),
                "ok": each.ok,
            }
            for each in found
        ]
        print_json("lab-check", {"links": rows, "ok": not bad})
    else:
        shares = sorted(each.measured_bits_per_s / each.bits_per_s for each in found)
        print_lines(
            [
                (
                    f"{len(found)} links: TCP carries {100 * shares[0]:.1f}% to {100 * shares[-1]:.1f}% of "
                    f"their rates, median {100 * shares[len(shares) // 2]:.1f}%"
                )
            ]
        )
    if bad:
        worst = min(bad, key=lambda each: each.measured_bits_per_s / each.bits_per_s)
        raise CheckError(
            f"expected at least 90% of the rate of every link, found {worst.measured_bits_per_s / 1e6:.1f} of "
            f"{worst.bits_per_s / 1e6:g} Mbit/s from {ids[worst.src]} to {ids[worst.dst]}, and {len(bad) - 1} more: "
            "leave the machine alone, or choose a smaller --scale."
        )


@app.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@with_options()
def run(
    command: Annotated[list[str], argument("Program and arguments.", metavar="COMMAND...")],
    *,
    name: LabOption = "lab",
    mpi: Annotated[
        str | None,
        option("Start the ranks with this library's launcher.", metavar="open-mpi|mpich"),
    ] = None,
    launcher: LauncherOption = None,
    options: LauncherWordsOption = None,
    switch: Annotated[
        str | None,
        option("Let the switches of the lab add up by this protocol.", metavar="PROTOCOL"),
    ] = None,
    time_limit: TimeLimitOption = None,
) -> None:
    """Run a command once per rank, each in the namespace of its GPU.

    The processes get the variables that torchrun sets, COPPICE_TOPOLOGY, and COPPICE_SWITCH with --switch. Output
    of ranks above 0 is marked with the rank. However it ends, no process stays.

    \b
    Examples:
      coppice lab run -- python train.py
      coppice lab run -- python -m coppice bench all_gather -b 1M -e 16M
      coppice lab run --mpi open-mpi -- python -m coppice bench all_reduce --engine mpi
      coppice lab run --switch switchml -- python -m coppice bench all_reduce -a switchml,forest,native
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.run.lab.launch import launch_mpi, launch_ranks
    from coppice.run.lab.namespaces import find

    lab = find(name)
    if mpi is None:
        if launcher is not None or options:
            raise InputError(
                "--launcher and --launcher-option go with --mpi open-mpi or --mpi mpich: add it or leave them out."
            )
        with _switches(lab, switch) as addresses:
            launch_ranks(lab, command, switches=addresses, timeout_s=time_limit)
    else:
        if switch is not None:
            raise InputError("--switch is for ranks that Coppice starts: leave out --mpi.")
        launch_mpi(lab, mpi, command, launcher=launcher, options=options or (), timeout_s=time_limit)


def _switches(lab: Lab, protocol: str | None) -> AbstractContextManager[list[str]]:
    """The switches of a protocol while they stand; none without one."""
    from coppice.run.lab.launch import standing_switches

    return nullcontext([]) if protocol is None else standing_switches(lab, protocol)


@app.command("bytes")
@with_options()
def counters(*, name: LabOption = "lab", as_json: JsonOption = False) -> None:
    """Print the bytes carried by every link, as counted by the kernel."""
    from coppice.run.lab.namespaces import find, link_bytes

    lab = find(name)
    ids = lab.blueprint.topology.node_ids
    counted = link_bytes(lab)
    if as_json:
        print_json(
            "lab-bytes",
            {
                "links": [
                    {"from": ids[a], "to": ids[b], "link_bytes": n, "bytes": n}
                    for (a, b), n in sorted(counted.items())
                ]
            },
        )
        return
    print_lines([f"{ids[a]} -> {ids[b]}  {n}" for (a, b), n in sorted(counted.items())])


@app.command("status")
@with_options()
def status(*, name: LabOption = "lab", as_json: JsonOption = False) -> None:
    """List running labs."""
    from coppice.run.lab.blueprint import load_of
    from coppice.run.lab.namespaces import find

    lab = find(name)
    load = load_of(lab.blueprint.topology, lab.blueprint.scale)
    if as_json:
        print_json("lab", _facts(lab, load))
        return
    print_fields(f"lab {name}: {lab.blueprint.topology.name}", _fields(lab, load))


@app.command("down")
@with_options()
def down(
    *,
    name: LabOption = "lab",
    every: Annotated[bool, option("All labs.", "--all")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove a lab with every process in it, or the remains of an interrupted one."""
    from coppice.run.lab.namespaces import remove, remove_all

    if every:
        names = remove_all()
        if as_json:
            print_json("lab-down", {"labs": list(names)})
            return
        print_lines([f"removed {', '.join(names) if names else 'nothing: no lab stands'}"])
        return
    removed = remove(name)
    if as_json:
        print_json("lab-down", {"labs": [name], "namespaces": removed})
        return
    print_lines([f"removed {removed} namespaces of the lab {name}"])


def _factor(text: str) -> Fraction:
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise InputError(
            f"expected --scale as a number above 0, found {text!r}: 1e-4 turns 300 GB/s into 240 Mbit/s."
        ) from None


def _gbit(bits_per_s: Fraction) -> str:
    return f"{float(bits_per_s) / 1e9:.3g}"


def _slowest_and_fastest(blueprint: Blueprint) -> tuple[int, int]:
    rates = [
        rate
        for cable in blueprint.cables
        for rate in (cable.near_to_far_bits_per_s, cable.far_to_near_bits_per_s)
        if rate
    ]
    return min(rates, default=0), max(rates, default=0)


def _facts(lab: Lab, load: Load) -> LabJson:
    blueprint = lab.blueprint
    slowest, fastest = _slowest_and_fastest(blueprint)
    return {
        "name": lab.name,
        "topology_file": str(lab.topology_file),
        "topology": str(lab.topology_file),
        "rate_scale": str(blueprint.scale),
        "scale": str(blueprint.scale),
        "node_count": blueprint.topology.num_nodes,
        "nodes": blueprint.topology.num_nodes,
        "ranks": blueprint.topology.num_ranks,
        "cables": len(blueprint.cables),
        "slowest_mbit_per_s": slowest / 1e6,
        "fastest_mbit_per_s": fastest / 1e6,
        "load_gbit_per_s": float(load.bits_per_s) / 1e9,
        "limit_gbit_per_s": float(load.limit_bits_per_s) / 1e9,
        "addresses": [blueprint.identity[node] for node in blueprint.rank_nodes],
    }


def _fields(lab: Lab, load: Load) -> list[tuple[str, str]]:
    blueprint = lab.blueprint
    slowest, fastest = _slowest_and_fastest(blueprint)
    share = 100 * float(load.bits_per_s / load.limit_bits_per_s)
    return [
        ("nodes", f"{blueprint.topology.num_nodes} namespaces, {blueprint.topology.num_ranks} of them ranks"),
        ("links", f"{len(blueprint.cables)} cables, {slowest / 1e6:g} to {fastest / 1e6:g} Mbit/s each way"),
        ("topology", str(lab.topology_file)),
        (
            "load",
            (
                f"{_gbit(load.bits_per_s)} Gbit/s at all ranks in an optimal all-gather, {share:.0f}% of what "
                "the cores carry"
            ),
        ),
    ]
