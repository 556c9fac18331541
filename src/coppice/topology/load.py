"""Load a topology from a preset name, a file, text, bytes, a networkx graph or a topology; join and degrade such."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from coppice.arguments import checked, shown
from coppice.errors import InputError
from coppice.topology.composition.compose import Host, compose, default_ports, gpu_ports, repeated
from coppice.topology.composition.fabric import fabric_from_fields
from coppice.topology.model import Topology
from coppice.topology.operations import (
    remove_links,
    remove_nodes,
    round_rates,
    scale_nodes,
    set_link_rate,
    subset,
)
from coppice.topology.presets import PRESETS
from coppice.topology.readers import read
from coppice.topology.readers.networkx_graph import from_networkx
from coppice.topology.sources import resolve_host, resolve_reading

_OF_GRAPHS = ("rate", "unit", "kind", "name")
"""Parameters of a networkx graph."""


@checked
def load(
    source: Any,
    *,
    boxes: int | None = None,
    rates: str | None = None,
    ranks: Sequence[int] | None = None,
    relays: bool = False,
    round_digits: int | None = None,
    **parameters: object,
) -> Topology:
    """Load a topology from a preset name, a file, text, bytes, a networkx graph, or a topology.

    Args:
        source: Name of a preset (``coppice topology list``); name of a file of any format that is read, ``-`` for
            standard input; the text or the bytes of such a file; a networkx graph; or a topology, or what has one (a
            problem, a plan), to change it.
        boxes: Number of boxes of a box preset.
        rates: ``nominal`` or ``measured``, for a preset or a file whose rates are guessed from names.
        ranks: Ranks that take part; they are numbered anew. None takes all.
        relays: GPUs that ``ranks`` leaves out may forward data, as switches do.
        round_digits: Decimals to which all rates (GB/s) are rounded.
        parameters: Parameters of the preset or options of the reader, such as ``gpus=8`` or ``dims="4x4"``; of a graph
            the attribute of edges with the ``rate`` and its ``unit`` (``rate="capacity", unit="Gb/s"``), and the
            ``kind`` of nodes that have none.

    Raises:
        InputError: If there is no such preset or file, it cannot be read, or an option does not go with it.
        MissingExtraError: If the source needs a package that is not installed.

    What a reader guessed or left out is told as a warning (:class:`UserWarning`).

    Examples:
        >>> load("dgx-a100", boxes=2).num_ranks
        16
        >>> load("torus", dims="4x4", ranks=[0, 1, 2, 3]).num_ranks
        4
    """
    options = {name: str(value) for name, value in parameters.items() if value is not None}
    if rates is not None:
        options["rates"] = rates
    topology = _made(source, boxes, options)
    if round_digits is not None:
        topology = round_rates(topology, round_digits)
    if ranks is not None:
        topology = subset(topology, list(ranks), relays=relays)
    return topology


def _made(source: Any, boxes: int | None, options: Mapping[str, str]) -> Topology:
    if isinstance(source, str) and not source.strip():
        raise InputError(
            "expected the name of a preset or file, or its text, found nothing: see `coppice topology list`."
        )
    if isinstance(source, (str, os.PathLike)) and not _is_text(source):
        reading = resolve_reading(os.fspath(source), boxes=boxes, options=options)
    elif isinstance(source, (str, bytes)):
        _refuse_options({"boxes": boxes}, "text of a file")
        reading = read(source.encode() if isinstance(source, str) else source, options=options)
    else:
        source = getattr(source, "topology", source)
        graph = _is_graph(source)
        if not graph and not isinstance(source, Topology):
            raise InputError(
                f"expected a preset, a file, text, a networkx graph or a Topology, found {shown(source)}: "
                f"give one, such as {next(iter(PRESETS))!r}."
            )
        if graph:
            named: dict[str, Any] = {key: options[key] for key in _OF_GRAPHS if key in options}
            _refuse_options({"boxes": boxes, **dict(options.items() - named.items())}, "graph")
            return from_networkx(source, **named)
        made: Topology = source
        _refuse_options({"boxes": boxes, **options}, "topology that is made already")
        return made
    for text in reading.warnings:
        warnings.warn(text, stacklevel=4)
    return reading.topology


def _is_text(source: str | os.PathLike[str]) -> bool:
    """Whether a string is the text of a file and not its name: several lines, or a bracket in front."""
    return isinstance(source, str) and ("\n" in source or source.lstrip()[:1] in ("{", "<"))


def _is_graph(source: object) -> bool:
    networkx = sys.modules.get("networkx")  # whoever has a graph has imported it
    return networkx is not None and isinstance(source, networkx.Graph)


def _refuse_options(given: Mapping[str, object], what: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise InputError(f"expected no `{name}` with a {what}, found {value}: leave it out.")


_HOST = re.compile(r"(?:(?P<count>[0-9]{1,5})x)?(?P<spec>[^@]+)(?:@(?P<name>[^@]+))?")
_MAX_NAME, _MAX_SOURCE = 200, 1000


@checked
def join(
    hosts: Sequence[str | Topology],
    *,
    fabric: str = "switch",
    host_options: Mapping[str, str] | None = None,
    port_gb_per_s: Fraction | float | None = None,
    name: str | None = None,
    **settings: object,
) -> Topology:
    """Join hosts, equal or different, by a fabric.

    Args:
        hosts: Each ``[COUNTx]SPEC[@NAME]``, where SPEC is a preset of a box or a topology file; or a topology.
        fabric: ``switch``, ``rail``, ``fat-tree``, ``dragonfly`` or ``direct``.
        host_options: Parameters of the presets or options of the readers, such as ``{"rates": "measured"}``.
        port_gb_per_s: Rate in GB/s of one port for each GPU, instead of the hosts' NICs.
        name: Name of the cluster; None: what it is made of.
        settings: Fields of the fabric, such as ``spines=4``.

    Raises:
        InputError: If a host or the fabric cannot be had, or a field is not one of the fabric.

    What a reader guessed or left out is told as a warning (:class:`UserWarning`).

    Examples:
        >>> join(["2xdgx-a100", "dgx-h100@hopper"], fabric="rail", spines=2)
        Topology('2xdgx-a100 + dgx-h100@hopper', 24 ranks on 3 hosts, 53 nodes, 160 links)
    """
    found = [_named_host(each, dict(host_options or {}), alone=len(hosts) == 1) for each in hosts]
    total = Counter(host.name for host, count in found for _ in range(count))
    numbers = Counter[str]()
    joined: list[Host] = []
    for host, count in found:
        ports = (
            host.ports if port_gb_per_s is None else gpu_ports(host.topology, Fraction(str(port_gb_per_s)))
        )
        given = Host(name=host.name, topology=host.topology, ports=ports)
        if total[host.name] == count:
            joined += repeated(given, count)
        else:  # named several times: numbered in their order
            joined += [replace(given, name=f"{host.name}{numbers[host.name] + at}") for at in range(count)]
            numbers[host.name] += count
    chosen = fabric_from_fields(fabric, {key: str(value) for key, value in settings.items()})
    sources = dict.fromkeys(host.topology.source for host in joined if host.topology.source)
    parts = [each.rpartition("/")[2] if isinstance(each, str) else each.name for each in hosts]
    title = " + ".join(parts)[:_MAX_NAME] if name is None else name
    return compose(joined, chosen, name=title, source="; ".join(sources)[:_MAX_SOURCE])


def _named_host(each: str | Topology, options: dict[str, str], *, alone: bool) -> tuple[Host, int]:
    """A host, and how many there are of it."""
    if isinstance(each, Topology):
        label = "box" if alone else each.name
        return Host(name=label, topology=each, ports=default_ports(each)), 1
    found = _HOST.fullmatch(each)
    if found is None:
        raise InputError(
            f"expected a host as [COUNTx]SPEC[@NAME], found {each!r}: write for example 2xdgx-a100."
        )
    host, told = resolve_host(found["spec"], options)
    for text in told:
        warnings.warn(text, stacklevel=4)
    label = found["name"] or ("box" if alone else Path(found["spec"]).stem)
    return Host(name=label, topology=host.topology, ports=host.ports), int(found["count"] or 1)


@checked
def degrade(
    topology: Any,
    *,
    nodes: Mapping[str, Any] | None = None,
    links: Mapping[tuple[str, str], Any] | None = None,
    remove: Sequence[str | tuple[str, str]] = (),
    one_way: bool = False,
) -> Topology:
    """Slow down or remove GPUs, NICs, switches and links.

    Args:
        topology: The cluster: what :func:`coppice.load` takes.
        nodes: Share of its rates that a node keeps on all its links: 0.5, ``"50%"`` or ``"1/3"``, by its name; a GPU
            may be named by its rank: ``rank3``.
        links: Rate in GB/s, or share as text with a percent sign, of a link, by its two ends.
        remove: Nodes, and links as pairs of ends.
        one_way: Links are changed from the first to the second end only.

    Raises:
        InputError: If a node, link, rate or share is not there or cannot be.

    Examples:
        >>> degrade("dgx-a100", nodes={"gpu0": 0.5}, remove=["rank7"]).num_ranks
        7
    """
    found = load(topology)
    for (src, dst), rate in (links or {}).items():
        found = set_link_rate(found, src, dst, rate, one_way=one_way)
    for node, share in (nodes or {}).items():
        found = scale_nodes(found, {node: share})
    found = remove_links(found, [each for each in remove if not isinstance(each, str)], one_way=one_way)
    return remove_nodes(found, [each for each in remove if isinstance(each, str)])
