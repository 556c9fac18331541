"""Join hosts by a fabric, each named as a preset or file, or given as a topology."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.topology.composition.compose import Host, compose, default_ports, gpu_ports, repeated
from coppice.topology.composition.fabric import fabric_from_fields
from coppice.topology.model import Topology
from coppice.topology.sources import resolve_host

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
