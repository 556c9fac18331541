"""`coppice topology`: list presets, show a topology, convert, compose or derive one."""

from __future__ import annotations

import warnings
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from coppice.cli import with_flags
from coppice.cli.options.declaring import with_options
from coppice.cli.options.faults import Faults
from coppice.cli.options.inputs import (
    TopologyOptions,
    print_reader_warnings,
    settings_with_rates,
)
from coppice.cli.output import print_fields, print_json, print_lines, write_text
from coppice.errors import InputError
from coppice.options import argument, option, parse_settings
from coppice.options.names import FABRICS
from coppice.options.shared import JsonOption, OutputOption, RatesOption
from coppice.text import rate_text, suggestion

if TYPE_CHECKING:
    from coppice.outputs.shapes.networks import PresetJson, TopologyJson
    from coppice.topology import Topology
    from coppice.topology.presets import Preset
    from coppice.topology.summary import LinkGroup, Summary

app = typer.Typer(no_args_is_help=True, help="List, show, import, compose, subset and degrade topologies.")


# Longer texts are not read back from a native file.

NameOption = Annotated[str | None, option("Name of the new topology.", "--name")]


@app.command("list")
@with_options()
def list_presets(
    name: Annotated[str | None, argument("Show its source and parameters.", metavar="[PRESET]")] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """List the presets, or the source and parameters of one.

    \b
    Examples:
      coppice topology list
      coppice topology list dgx-h100
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.topology import PRESETS

    if name is not None and name not in PRESETS:
        raise InputError(f"there is no preset {name!r}: {suggestion(name, PRESETS)}")
    chosen = list(PRESETS.values()) if name is None else [PRESETS[name]]
    if as_json:
        print_json("topology-list", {"presets": [_preset_json(preset.name) for preset in chosen]})
    elif name is None:
        print_fields("Presets", [(preset.name, preset.description) for preset in chosen])
        print_lines(["", "`coppice topology list NAME` shows the source and the parameters of one."])
    else:
        print_fields(name, preset_fields(chosen[0]))


@app.command()
@with_options("topology boxes rates settings ranks relays round_digits as_json")
def show(asked: TopologyOptions, *, as_json: JsonOption = False) -> None:
    """Summarize a topology: nodes, links, what each GPU can send, hosts, warnings.

    \b
    Examples:
      coppice topology show dgx-a100 --boxes 2
      coppice topology show torus --set dims=4x4x4
      coppice topology show nccl.xml --json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.topology import summarize

    summary = summarize(asked.load())
    if as_json:
        print_json("topology", summary_json(summary))
    else:
        print_fields(summary.name, summary_fields(summary))


@app.command("import")
@with_options("topology output boxes rates settings round_digits ...")
def import_topology(
    asked: TopologyOptions,
    *,
    output: OutputOption = None,
    name: NameOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write any topology as a native file, which may then be edited.

    \b
    Examples:
      coppice topology import nccl.xml -o box.json
      nvidia-smi topo -m | coppice topology import - --set gpu=a100 -o box.json
    """  # noqa: D301 (\b is for the help formatter)
    _deliver(asked.load(), output, name=name, as_json=as_json)


@app.command()
@with_options()
def compose(
    hosts: Annotated[
        list[str],
        argument(
            "[COUNTx]SPEC[@NAME]: a preset box or a file, such as 2xdgx-a100 or 4xbox.json@amd.",
            metavar="HOST...",
        ),
    ],
    *,
    fabric: Annotated[str, option(f"Joins the hosts: {', '.join(FABRICS)}.")] = "switch",
    settings: Annotated[
        list[str] | None,
        option("Field of the fabric; may be repeated.", "--set", metavar="KEY=VALUE"),
    ] = None,
    host_settings: Annotated[
        list[str] | None,
        option("Parameter of the hosts; may be repeated.", "--host-set", metavar="KEY=VALUE"),
    ] = None,
    rates: RatesOption = None,
    port_rate: Annotated[
        str | None,
        option("Give each GPU a port of this rate, instead of the hosts' NICs.", metavar="GB/S"),
    ] = None,
    output: OutputOption = None,
    name: NameOption = None,
    as_json: JsonOption = False,
) -> None:
    """Join hosts, equal or different, by a fabric. A cluster file does the same and more.

    \b
    Examples:
      coppice topology compose 4xdgx-h100 --fabric rail --set spines=4 -o cluster.json
      coppice topology compose 2xdgx-a100 mi250.json@amd --port-rate 25 -o mixed.json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.topology import exact_rate
    from coppice.topology.load import join

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            made = join(
                hosts,
                fabric=fabric,
                host_options=settings_with_rates(host_settings, rates, option="--host-set"),
                port_gb_per_s=None if port_rate is None else exact_rate(port_rate, where="--port-rate"),
                **parse_settings(settings or ()),
            )
        except InputError as error:
            raise InputError(with_flags(str(error), {"settings": "--host-set"})) from None
    print_reader_warnings(dict.fromkeys(str(each.message) for each in told))
    _deliver(made, output, name=name, as_json=as_json)


@app.command("subset")
@with_options("topology ranks relays boxes rates settings ...")
def subset_ranks(
    asked: TopologyOptions,
    *,
    ranks: Annotated[str, option("Ranks that take part, such as 0,1,2 or 0-7,16.", metavar="LIST")],
    output: OutputOption = None,
    name: NameOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep some ranks, renumbered in the given order.

    \b
    Example:
      coppice topology subset dgx-a100 --boxes 2 --ranks 0-3,8-11 -o half.json
    """  # noqa: D301 (\b is for the help formatter)
    _deliver(structs.replace(asked, ranks=ranks).load(), output, name=name, as_json=as_json)


@app.command()
@with_options("topology links nodes removed one_way boxes rates settings ...")
def degrade(
    asked: TopologyOptions,
    faults: Faults,
    *,
    output: OutputOption = None,
    name: NameOption = None,
    as_json: JsonOption = False,
) -> None:
    """Slow down or remove links, NICs, switches or GPUs; a GPU may be named by its rank: rank3.

    \b
    Examples:
      coppice topology degrade dgx-a100 --boxes 2 --node box0/nic3=50% -o slow.json
      coppice topology degrade box.json --link gpu0,gpu1=12.5 --remove rank7 -o broken.json
    """  # noqa: D301 (\b is for the help formatter)
    _deliver(faults.of(asked.load()), output, name=name, as_json=as_json)


def _deliver(topology: Topology, output: Path | None, *, name: str | None, as_json: bool) -> None:
    """Write the native file, or print it where no file is named."""
    from coppice.topology import summarize
    from coppice.topology.readers.document import topology_json, write_topology

    if name is not None:
        topology = replace(topology, name=name)
    if output is None or str(output) == "-":
        write_text(topology_json(topology).decode(), output)
        return
    write_topology(topology, output)
    summary = summarize(topology)
    if as_json:
        print_json("topology-written", {**summary_json(summary), "output": str(output)})
        return
    print_lines([f"wrote {output}: {summary.ranks} ranks, {topology.num_nodes} nodes, {summary.links} links"])
    print_reader_warnings(summary.warnings)


def _preset_json(name: str) -> PresetJson:
    from coppice.topology import PRESETS

    preset = PRESETS[name]
    return {
        "name": preset.name,
        "summary": preset.description,
        "description": preset.description,
        "source": preset.source,
        "parameter_list": [
            {"name": entry.name, "default": entry.default, "summary": entry.description}
            for entry in preset.parameters
        ],
        "parameters": [
            {
                "name": entry.name,
                "default": entry.default,
                "summary": entry.description,
                "description": entry.description,
            }
            for entry in preset.parameters
        ],
    }


_MAX_GROUPS = 12


def preset_fields(preset: Preset) -> list[tuple[str, str]]:
    """Description, source and parameters of a preset."""
    plain = [entry for entry in preset.parameters if entry.default]
    fabric = [entry.name for entry in preset.parameters if not entry.default]
    fields = [("what", preset.description), ("source", preset.source)]
    fields += [(f"--set {entry.name}=", f"{entry.description} [{entry.default}]") for entry in plain]
    if fabric:
        fields.append(("fabric fields", ", ".join(fabric)))
    return fields


def summary_fields(summary: Summary) -> list[tuple[str, str]]:
    """Output lines of a summary."""
    kinds = ", ".join(f"{count} {_plural(kind, count)}" for kind, count in summary.nodes.items())
    relays = f" ({summary.relays} relays)" if summary.relays else ""
    fields = [("ranks", f"{summary.ranks}{relays}"), ("nodes", kinds)]
    if summary.hosts:
        hosts = ", ".join(
            f"{count} {_plural('host', count)} of {ranks} {_plural('rank', ranks)}"
            for ranks, count in summary.hosts.items()
        )
        fields.append(("hosts", hosts))
    fields.append(("links", f"{summary.links} directed"))
    fields += [("", _group_text(group)) for group in summary.groups[:_MAX_GROUPS]]
    if len(summary.groups) > _MAX_GROUPS:
        fields.append(("", f"and {len(summary.groups) - _MAX_GROUPS} more groups"))
    rows = [
        f"{_rates(into, out)} GB/s"
        + (f" at {count} {_plural('rank', count)}" if len(summary.gpus) > 1 else "")
        for (into, out), count in summary.gpus.items()
    ]
    if len(rows) > _MAX_GROUPS:
        rows = [*rows[:_MAX_GROUPS], f"and {len(rows) - _MAX_GROUPS} more"]
    fields += [("per GPU" if i == 0 else "", row) for i, row in enumerate(rows)]
    if summary.denominator > 1:
        fields.append(("rates", f"multiples of 1/{summary.denominator} GB/s"))
    for imbalance in summary.imbalances[:_MAX_GROUPS]:
        fields.append(("imbalance", f"{imbalance.node}: {_rates(imbalance.into, imbalance.out)} GB/s"))
    if len(summary.imbalances) > _MAX_GROUPS:
        fields.append(("imbalance", f"and {len(summary.imbalances) - _MAX_GROUPS} more"))
    if summary.source:
        fields.append(("source", summary.source))
    fields.append(("hash", summary.sha256[:16]))
    fields += [("warning", warning) for warning in summary.warnings]
    return fields


def summary_json(summary: Summary) -> TopologyJson:
    """A summary as JSON; rates are exact fractions as text."""
    return {
        "name": summary.name,
        "source": summary.source,
        "sha256": summary.sha256,
        "ranks": summary.ranks,
        "relays": summary.relays,
        "nodes_by_kind": summary.nodes,
        "nodes": summary.nodes,
        "hosts": [{"ranks": ranks, "count": count} for ranks, count in summary.hosts.items()],
        "link_count": summary.links,
        "links": summary.links,
        "link_groups": [
            {
                "from": group.src,
                "to": group.dst,
                "gb_per_s": str(group.gb_per_s),
                "count": group.count,
                "duplex": group.duplex,
            }
            for group in summary.groups
        ],
        "gpus": [
            {"in_gb_per_s": str(into), "out_gb_per_s": str(out), "count": count}
            for (into, out), count in summary.gpus.items()
        ],
        "denominator": summary.denominator,
        "imbalances": [
            {"node": entry.node, "in_gb_per_s": str(entry.into), "out_gb_per_s": str(entry.out)}
            for entry in summary.imbalances
        ],
        "warnings": list(summary.warnings),
    }


def _group_text(group: LinkGroup) -> str:
    arrow = "<->" if group.duplex else "->"
    each = " each way" if group.duplex else ""
    return f"{group.count} x {group.src} {arrow} {group.dst}, {rate_text(group.gb_per_s)} GB/s{each}"


def _rates(into: Fraction, out: Fraction) -> str:
    return f"in {rate_text(into)}, out {rate_text(out)}"


def _plural(word: str, count: int) -> str:
    if count == 1:
        return word.upper() if word in ("gpu", "nic") else word
    return {"gpu": "GPUs", "nic": "NICs", "switch": "switches"}.get(word, f"{word}s")
