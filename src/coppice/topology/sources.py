"""Resolve a preset name, a topology file or a cluster file to a topology.

A cluster file, ``coppice-cluster`` version 1, has hosts and the fabric that joins them, in JSON or YAML:

    {"format": "coppice-cluster", "version": 1, "name": "mixed",
     "hosts": [
       {"name": "dgx", "count": 2, "preset": "dgx-a100", "options": {"rates": "measured"}},
       {"name": "amd", "file": "mi250.json", "ports": [{"at": "gpu0", "gb_per_s": 25, "nic": "nic0"}]}],
     "fabric": {"kind": "rail", "rails": 2, "spines": 4, "oversubscription": 2}}

A host comes from exactly one of ``preset`` (with ``options``), ``file`` (any format that Coppice reads;
relative to the cluster file) and ``topology`` (a native document). Without ``ports`` a preset brings its
own, any other host gets one per NIC, and ``port_gb_per_s`` gives each GPU one. The fields of each kind of
fabric are those of the classes in :mod:`coppice.topology.composition.fabric`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from coppice.errors import InputError
from coppice.files import read_bytes
from coppice.text import suggestion
from coppice.topology.composition.compose import Host, Port, compose, default_ports, gpu_ports, repeated
from coppice.topology.composition.fabric import Fabric, converted
from coppice.topology.model import Topology
from coppice.topology.presets import PRESETS, preset_from_options, preset_host
from coppice.topology.readers import Reading, TopologyFormat, read
from coppice.topology.readers.document import DuplicateKey, NumberText, topology_from_document
from coppice.topology.readers.json_yaml import parse_json, parse_yaml
from coppice.topology.readers.reading import checked_id, sniff

FORMAT = "coppice-cluster"
VERSION = 1
_MAX_HOSTS = 65_536
_MAX_DEPTH = 16
_MAX_TEXT = 1000

HostOf = Callable[[str, Mapping[str, str]], Host]
"""Gives the host for a preset name with options, or for a file name with options."""


class _PortRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    at: str
    gb_per_s: Fraction
    nic: str | None = None
    nic_gb_per_s: Fraction | None = None
    rail: int | None = None
    latency_us: float = 0.0


class _HostRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    count: int = 1
    preset: str | None = None
    file: str | None = None
    topology: Any = None
    options: dict[str, str | int | float | bool] = {}
    ports: list[_PortRow] | None = None
    port_gb_per_s: Fraction | None = None


class _ClusterFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str
    version: int
    hosts: list[_HostRow]
    fabric: Fabric | None = None
    name: str = "cluster"
    source: str = ""


def cluster_from_document(
    document: object, *, where: str, preset_host: HostOf, file_host: HostOf
) -> Topology:
    """Compose the topology that a cluster document describes.

    Args:
        document: Mappings, lists, text and numbers, as the JSON and YAML readers hand them over.
        where: Name of the file, for messages.
        preset_host: Makes a host of a preset.
        file_host: Makes a host of a topology file.
    """
    _check_version(document, where)
    cluster = converted(_plain(document, where), _ClusterFile, where)
    if not cluster.hosts:
        raise InputError(f"{where}: expected at least one host at $.hosts, found none.")
    checked_id(cluster.name, where=f"{where}: $.name")
    hosts: list[Host] = []
    for position, row in enumerate(cluster.hosts):
        place = f"{where}: $.hosts[{position}]"
        if not 1 <= row.count <= _MAX_HOSTS - len(hosts):
            raise InputError(
                f"expected a count of 1 .. {_MAX_HOSTS} hosts in all at {place}.count, found {row.count}."
            )
        checked_id(row.name, where=f"{place}.name")
        host = _host(row, place, preset_host=preset_host, file_host=file_host)
        hosts += repeated(_with_ports(host, row), row.count)
    return compose(hosts, cluster.fabric, name=cluster.name, source=cluster.source)


def _host(row: _HostRow, place: str, *, preset_host: HostOf, file_host: HostOf) -> Host:
    given = [key for key in ("preset", "file", "topology") if getattr(row, key) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise InputError(f"expected exactly one of preset, file and topology at {place}, found {found}.")
    options = {key: _option_text(value) for key, value in row.options.items()}
    if row.preset is not None:
        return preset_host(row.preset, options)
    if row.file is not None:
        return file_host(row.file, options)
    if options:
        raise InputError(
            f"options belong to presets and files, found some at {place} beside topology: remove them."
        )
    topology = topology_from_document(row.topology, where=f"{place}.topology")
    return Host(name=row.name, topology=topology, ports=default_ports(topology))


def _with_ports(host: Host, row: _HostRow) -> Host:
    if row.ports is not None:
        ports = tuple(Port(**msgspec.structs.asdict(port)) for port in row.ports)
    elif row.port_gb_per_s is not None:
        ports = gpu_ports(host.topology, row.port_gb_per_s)
    else:
        ports = host.ports
    return Host(name=row.name, topology=host.topology, ports=ports)


def _option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_version(document: object, where: str) -> None:
    found = document.get("version") if isinstance(document, Mapping) else None
    if isinstance(found, int) and not isinstance(found, bool) and found > VERSION:
        raise InputError(
            f"{where}: $.version is {found}, newer than {VERSION}, which this Coppice reads: upgrade Coppice."
        )
    if found != VERSION or isinstance(found, bool):
        raise InputError(
            f"{where}: expected {FORMAT} version {VERSION} at $.version, found {str(found)[:40]!r}: set it."
        )


def _plain(value: object, where: str, key: object = None, depth: int = 0) -> object:
    """The tree with latencies as floats and checked texts; an embedded topology stays as it is."""
    if depth > _MAX_DEPTH:
        raise InputError(f"{where} nests more than {_MAX_DEPTH} levels: a cluster needs six.")
    if isinstance(value, DuplicateKey):
        raise InputError(f"{where} has the key {value.key[:80]!r} twice in one object: keep one.")
    if key == "topology":
        return value
    if isinstance(value, NumberText):
        return float(value) if key == "latency_us" else str(value)
    if isinstance(value, str):
        return _text(value, where)
    if isinstance(value, Mapping):
        return {_text(inner, where): _plain(entry, where, inner, depth + 1) for inner, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry, where, None, depth + 1) for entry in value]
    return value


def _text(value: str, where: str) -> str:
    if len(value) > _MAX_TEXT or not value.isprintable():
        found = f"found {value[:40]!r}"
        raise InputError(
            f"{where}: expected texts of at most {_MAX_TEXT} printable characters, {found}: mend it."
        )
    return value


def resolve(spec: str, *, boxes: int | None = None, options: Mapping[str, str] | None = None) -> Topology:
    """Resolve ``spec`` to a topology.

    Args:
        spec: Name of a preset, name of a file of any format (a cluster file included), or ``-`` for standard
            input. A file named like a preset is given as ``./name``.
        boxes: Number of boxes, for a preset.
        options: Parameters of the preset, or options of the reader.

    Raises:
        InputError: If there is no such preset or file, or it cannot be used.

    What a reader guessed or left out is told as a warning (:class:`UserWarning`).

    Examples:
        >>> resolve("dgx-a100", boxes=2).num_ranks
        16
    """
    reading = resolve_reading(spec, boxes=boxes, options=options)
    for text in reading.warnings:
        warnings.warn(text, stacklevel=2)
    return reading.topology


def resolve_reading(
    spec: str, *, boxes: int | None = None, options: Mapping[str, str] | None = None
) -> Reading:
    """As :func:`resolve`, with the detected format and the warnings of the reader."""
    given = dict(options or {})
    if spec in PRESETS:
        if boxes is not None:
            if "boxes" in given:
                raise InputError(
                    f"expected the number of boxes once, found `boxes={boxes}` and boxes={given['boxes']}: keep one."
                )
            given["boxes"] = str(boxes)
        return Reading(topology=preset_from_options(spec, given), format="preset")
    _check_exists(spec)
    if boxes is not None:
        raise InputError(
            f"`boxes` belongs to presets, and {spec} is a file: "
            f"run `coppice topology compose {boxes}x{spec} --fabric switch -o cluster.json`."
        )
    data = read_bytes(spec)
    document = _cluster_document(data, spec)
    if document is None:
        return read(data if spec == "-" else spec, options=given)
    if given:
        raise InputError(
            f"a cluster file takes no options, found {', '.join(given)}: write them into {spec}."
        )
    base = Path() if spec == "-" else Path(spec).parent
    told: list[str] = []

    def file_host(name: str, host_options: Mapping[str, str]) -> Host:
        reading = _host_file(base / name, host_options)
        told.extend(warning for warning in reading.warnings if warning not in told)
        return _as_host(reading.topology)

    topology = cluster_from_document(document, where=spec, preset_host=preset_host, file_host=file_host)
    return Reading(topology=topology, format=FORMAT, warnings=tuple(told))


def resolve_host(spec: str, options: Mapping[str, str] | None = None) -> tuple[Host, tuple[str, ...]]:
    """Resolve one host with its network ports from a preset box or a topology file, with reader warnings."""
    given = dict(options or {})
    if spec in PRESETS:
        return preset_host(spec, given), ()
    _check_exists(spec)
    reading = _host_file(Path(spec), given)
    return _as_host(reading.topology), reading.warnings


def _host_file(path: Path, options: Mapping[str, str]) -> Reading:
    data = read_bytes(path)
    if _cluster_document(data, str(path)) is not None:
        raise InputError(
            f"expected one host in {path}, found a cluster: name its hosts in one cluster file instead."
        )
    return read(path, options=options)


def _as_host(topology: Topology) -> Host:
    return Host(name="box", topology=topology, ports=default_ports(topology))


def _cluster_document(data: bytes, spec: str) -> object | None:
    """The parsed document if ``data`` is a cluster file."""
    if FORMAT.encode() not in data:
        return None
    found = sniff(data, file=spec)
    if found not in (TopologyFormat.JSON, TopologyFormat.YAML):
        return None
    document = (parse_json if found is TopologyFormat.JSON else parse_yaml)(data, file=spec)
    return document if isinstance(document, dict) and document.get("format") == FORMAT else None


def _check_exists(spec: str) -> None:
    if spec == "-" or Path(spec).exists():
        return
    if "/" in spec or "." in spec:
        msg = f"there is no file {spec}: check its name."
    else:
        hint = suggestion(spec, PRESETS)
        msg = f"there is no preset or file {spec!r}: {hint} (`coppice topology list` shows all.)"
    raise InputError(msg)
