"""From what a user names, a preset or a file, to a topology."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from coppice.errors import InputError
from coppice.files import read_bytes
from coppice.text import suggestion
from coppice.topology.composition.cluster_file import FORMAT, cluster_from_document
from coppice.topology.composition.compose import Host, default_ports
from coppice.topology.model import Topology
from coppice.topology.presets import PRESETS, preset_from_options, preset_host
from coppice.topology.readers import Reading, TopologyFormat, read
from coppice.topology.readers.json_yaml import parse_json, parse_yaml
from coppice.topology.readers.reading import sniff

__all__ = ["resolve", "resolve_host", "resolve_reading"]


def resolve(spec: str, *, boxes: int | None = None, options: Mapping[str, str] | None = None) -> Topology:
    """The topology called ``spec``.

    Args:
        spec: Name of a preset, name of a file of any format (a cluster file included), or ``-`` for standard
            input. A file named like a preset is given as ``./name``.
        boxes: Number of boxes, for a preset.
        options: Parameters of the preset, or options of the reader.

    Raises:
        InputError: If there is no such preset or file, or it cannot be used.

    Examples:
        >>> resolve("dgx-a100", boxes=2).num_ranks
        16
    """
    return resolve_reading(spec, boxes=boxes, options=options).topology


def resolve_reading(
    spec: str, *, boxes: int | None = None, options: Mapping[str, str] | None = None
) -> Reading:
    """As :func:`resolve`, with the format that was found and the warnings of the reader.

    Raises:
        InputError: As there.
    """
    given = dict(options or {})
    if spec in PRESETS:
        if boxes is not None:
            given["boxes"] = str(boxes)
        return Reading(topology=preset_from_options(spec, given), format="preset")
    _check_exists(spec)
    if boxes is not None:
        msg = (
            f"`boxes` belongs to presets, and {spec} is a file: "
            f"run `coppice topology compose {boxes}x{spec} --fabric switch -o cluster.json`."
        )
        raise InputError(msg)
    data = read_bytes(spec)
    document = _cluster_document(data, spec)
    if document is None:
        return read(data if spec == "-" else spec, options=given)
    if given:
        msg = f"a cluster file takes no options, found {', '.join(given)}: write them into {spec}."
        raise InputError(msg)
    base = Path() if spec == "-" else Path(spec).parent
    warnings: list[str] = []

    def file_host(name: str, host_options: Mapping[str, str]) -> Host:
        reading = _host_file(base / name, host_options)
        warnings.extend(warning for warning in reading.warnings if warning not in warnings)
        return _as_host(reading.topology)

    topology = cluster_from_document(document, where=spec, preset_host=preset_host, file_host=file_host)
    return Reading(topology=topology, format=FORMAT, warnings=tuple(warnings))


def resolve_host(spec: str, options: Mapping[str, str] | None = None) -> Host:
    """One host, with its network ports, from a preset box or a topology file.

    Raises:
        InputError: If there is no such box or file, or it cannot be used.
    """
    given = dict(options or {})
    if spec in PRESETS:
        return preset_host(spec, given)
    _check_exists(spec)
    return _as_host(_host_file(Path(spec), given).topology)


def _host_file(path: Path, options: Mapping[str, str]) -> Reading:
    data = read_bytes(path)
    if _cluster_document(data, str(path)) is not None:
        msg = f"expected one host in {path}, found a cluster: name its hosts in one cluster file instead."
        raise InputError(msg)
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
