"""Export topology corrections for NCCL and RCCL: the file named by ``NCCL_TOPO_FILE``.

A correction begins with a dump of the machine (``NCCL_TOPO_DUMP_FILE``), since devices are matched by their bus ids.
NCCL takes what the file says for PCIe, GPUs and ports of NICs, and detects the rest. So the correction keeps the dump
and changes what is asked for: speeds of ports, and their rail and plane (read from NCCL 2.30.7 on). With
NCCL_CROSS_NIC=0 rings keep to equal rails, and ports of different planes are never joined.

Left out is what belongs to one run (the host's hash, ranks), so that one file serves all equal machines.

NCCL's own parser is stricter than XML in some ways and looser in others: it wants no prolog, no tabs, and all
attributes on the line of their element, with a single space before each and none around ``=`` or before ``/>``; it
keeps 16 attributes of an element, 253 characters of a name or value, and decodes no entities.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from coppice.errors import InputError
from coppice.export.formats import Exported, NcclTopoXmlOptions
from coppice.files import read_bytes
from coppice.text import suggestion
from coppice.topology.model import NodeKind, Topology
from coppice.topology.operations import PRESET_NIC
from coppice.topology.readers.link_rates import pcie_speed_known
from coppice.topology.readers.xml_tree import Element, parse_xml

_OF_ONE_RUN = {"cpu": ("host_hash",), "gpu": ("rank",)}
_SPEED = re.compile(r"(\d+)(?:\.\d+)? GT/s.*")
_GPU_LINKS = ("nvlink", "xgmi")
_MBIT_OF_GB = 8000


class NetworkPort(NamedTuple):
    """Rate and rail of a network port."""

    gb_per_s: Fraction  # Rate to the network
    rail: int  # Number of the first switch that it leads to, among those of its host


def export_nccl_topo_xml(topology: Topology, options: NcclTopoXmlOptions) -> Exported:
    """Correct a topology dump by what a topology declares, matching NICs by the dump's port names."""
    base, rails = options.base, tuple(options.rails)
    if base is None:
        raise InputError(
            "a correction begins with a dump of the machine: give the file of NCCL_TOPO_DUMP_FILE as the option base."
        )
    root = parse_xml(read_bytes(base), file=str(base))
    _check_one_machine(root)
    ports = _ports(root)
    known = ports_of(topology, options.host) if options.speeds or rails == ("topology",) else {}
    notes: list[str] = []
    if rails == ("topology",):
        for name, element in ports.items():
            element.attributes["rail"] = str(_known(known, name, topology).rail)
    elif rails != ("none",):
        _assign(ports, rails, "rail")
    _assign(ports, options.planes, "plane")
    if options.speeds:
        for name, element in ports.items():
            notes += _set_speed(element, name, _known(known, name, topology).gb_per_s)
    notes += _mended(root, keep_nvlinks=options.nvlinks)
    words = sorted(
        {element.attributes["rail"] for element in ports.values() if "rail" in element.attributes}, key=int
    )
    return Exported(
        text=xml_text(root),
        notes=(
            f"{len(ports)} ports" + (f" on rails {', '.join(words)}" if words else " without rails"),
            *notes,
            "NCCL_TOPO_FILE=FILE; compare what NCCL makes of it with NCCL_TOPO_DUMP_FILE",
            "NCCL reads rail and plane from 2.30.7 on; NCCL_CROSS_NIC=0 then keeps rings on equal rails",
        ),
        suffix=".xml",
        read_as="nccl-topo",
    )


def ports_of(topology: Topology, host: str | None = None) -> dict[str, NetworkPort]:
    """Network ports of a host by NIC name, without the host's prefix.

    Args:
        host: Name of the host; None takes the first.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> ports = ports_of(preset("dgx-a100", boxes=2))
        >>> [(name, port.rail, port.gb_per_s) for name, port in ports.items()][:2]
        [('nic0', 0, Fraction(25, 1)), ('nic1', 1, Fraction(25, 1))]
    """
    if host is None and topology.hosts:
        host = topology.hosts[0]
    if host not in topology.hosts:
        raise InputError(
            f"{topology.name} has no host {host!r}: {suggestion(str(host), topology.hosts or ('no host at all',))}"
        )
    own = topology.hosts.index(host)
    found: dict[str, tuple[Fraction, int]] = {}
    for node in np.flatnonzero((topology.host == own) & (topology.kind == NodeKind.NIC)).tolist():
        leaving = np.flatnonzero((topology.src == node) & (topology.host[topology.dst] != own)).tolist()
        if leaving:
            rate = sum((topology.gb_per_s(link) for link in leaving), Fraction(0))
            first = min(int(topology.dst[link]) for link in leaving)
            found[topology.node_ids[node].removeprefix(f"{host}/")] = (rate, first)
    if not found:
        raise InputError(
            f"the NICs of {host} in {topology.name} are no nodes that lead to a network: describe them (presets: "
            "`nics=node`, several boxes), or give rails as port:rail."
        )
    switches = sorted({first for _, first in found.values()})
    return {name: NetworkPort(rate, switches.index(first)) for name, (rate, first) in found.items()}


def _check_one_machine(root: Element) -> None:
    if root.tag != "system":
        raise InputError(
            f"expected <system> at {root.where}, found <{root.tag[:40]}>: give the file of NCCL_TOPO_DUMP_FILE."
        )
    hosts = {cpu.attributes.get("host_hash", "") for cpu in root.named("cpu")}
    if len(hosts) != 1:
        raise InputError(
            f"expected a dump of one machine, found {len(hosts)} hosts at {root.where}: keep the CPUs of one."
        )


def _ports(element: Element) -> dict[str, Element]:
    """Network ports by name."""
    found: dict[str, Element] = {}
    for each in _all(element):
        if each.tag == "net":
            name = each.text("name")
            if name in found:
                raise InputError(
                    f"two ports have the name {name[:40]!r} (second at {each.where}): leave one out."
                )
            found[name] = each
    return found


def _all(element: Element) -> list[Element]:
    return [element, *(each for child in element.children for each in _all(child))]


def _known(ports: Mapping[str, NetworkPort], name: str, topology: Topology) -> NetworkPort:
    device = re.fullmatch("mlx5_([0-9]+)", name)
    if name not in ports and device is not None:  # NICs of a preset bear only their numbers
        name = f"{PRESET_NIC}{device[1]}"
    if name not in ports:
        raise InputError(f"{topology.name} has no NIC {name!r}: {suggestion(name, ports)}")
    return ports[name]


def _assign(ports: Mapping[str, Element], texts: Sequence[str], what: str) -> None:
    for text in texts:
        name, colon, number = text.rpartition(":")
        if not colon or not (number.isascii() and number.isdigit() and len(number) < 6):
            raise InputError(f"expected {what}s as port:{what} such as mlx5_0:0, found {text!r}.")
        if name not in ports:
            raise InputError(
                f"the dump has no port {name!r}: {suggestion(name, ports) if ports else 'it has none at all.'}"
            )
        ports[name].attributes[what] = str(int(number))


def _set_speed(element: Element, name: str, gb_per_s: Fraction) -> list[str]:
    speed = str(int(gb_per_s * _MBIT_OF_GB))
    before = element.attributes.get("speed", "none")
    element.attributes["speed"] = speed
    return [] if before == speed else [f"port {name}: {speed} Mbit/s instead of {before}"]


def _mended(root: Element, *, keep_nvlinks: bool) -> list[str]:
    """Take away what belongs to one run, and complete speeds that NCCL would take for PCIe 3."""
    speeds, links = 0, 0
    for element in _all(root):
        for name in _OF_ONE_RUN.get(element.tag, ()):
            element.attributes.pop(name, None)
        text = element.attributes.get("link_speed", "")
        match = _SPEED.fullmatch(text)
        if match and not pcie_speed_known(text):
            whole = f"{match[1]}.0 GT/s PCIe"
            if pcie_speed_known(whole):
                element.attributes["link_speed"] = whole
                speeds += 1
        if element.tag == "gpu":
            others = [child for child in element.children if child.tag not in _GPU_LINKS]
            links += len(element.children) - len(others)
            if not keep_nvlinks:
                element.children[:] = others
    notes = [f"{speeds} texts of PCIe speeds completed, which NCCL takes for 8 GT/s"] if speeds else []
    if links:
        words = "kept, and NCCL detects none of its own" if keep_nvlinks else "left out, for NCCL to detect"
        notes.append(f"{links} entries of GPU links {words}")
    return notes


MOST_NODES = {"1": 256, "2": 8192}
"""Elements of a topology file for one host, by the version of its root: NCCL, RCCL."""

_MOST_ATTRIBUTES = 16
_MOST_CHARACTERS = 253
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_VALUE = re.compile(r"[^<>&\"'\x00-\x1f\x7f]*")


def xml_text(root: Element) -> str:
    r"""Encode an element with its content.

    Args:
        root: The element; where it came from does not matter.

    Examples:
        >>> from coppice.topology.readers.xml_tree import parse_xml
        >>> xml_text(parse_xml(b"<?xml version='1.0'?>\n<system version = '1'><cpu numaid='0' /></system>", file="a"))
        '<system version="1">\n  <cpu numaid="0"/>\n</system>\n'
    """
    version = root.attributes.get("version")
    if version not in MOST_NODES:
        raise InputError(
            f'expected version="1" (NCCL) or "2" (RCCL) on <{root.tag}> at {root.where}, found {version!r}.'
        )
    lines = list(_lines(root, 0))
    nodes = _count(root)
    if nodes > MOST_NODES[version]:
        raise InputError(
            f"expected at most {MOST_NODES[version]} elements for one host, found {nodes}: leave out unused devices."
        )
    return "".join(f"{line}\n" for line in lines)


def _lines(element: Element, depth: int) -> Iterator[str]:
    start = f"{'  ' * depth}<{element.tag}{_attributes(element, element.attributes)}"
    if not element.children:
        yield f"{start}/>"
        return
    yield f"{start}>"
    for child in element.children:
        yield from _lines(child, depth + 1)
    yield f"{'  ' * depth}</{element.tag}>"


def _attributes(element: Element, attributes: Mapping[str, str]) -> str:
    if len(attributes) > _MOST_ATTRIBUTES:
        where = f"<{element.tag}> at {element.where}"
        raise InputError(
            f"NCCL keeps {_MOST_ATTRIBUTES} attributes, found {len(attributes)} on {where}: leave some out."
        )
    for name, value in ((element.tag, ""), *attributes.items()):
        plain = _NAME.fullmatch(name) and _VALUE.fullmatch(value)
        if not plain or max(len(name), len(value)) > _MOST_CHARACTERS:
            raise InputError(
                f"NCCL's parser cannot read {name[:40]}={value[:40]!r} at {element.where}: use plain characters."
            )
    return "".join(f' {name}="{value}"' for name, value in attributes.items())


def _count(element: Element) -> int:
    return 1 + sum(map(_count, element.children))
