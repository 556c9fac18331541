"""Presets: named topologies with parameters, each with the source of its figures."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from coppice.errors import InputError
from coppice.text import suggestion
from coppice.topology.composition.compose import Host
from coppice.topology.model import Topology
from coppice.topology.presets import boxes, clusters, direct
from coppice.topology.presets.registry import Preset, PresetParameter

__all__ = ["PRESETS", "Preset", "PresetParameter", "preset", "preset_from_options", "preset_host"]

PRESETS: dict[str, Preset] = {
    entry.name: entry for entry in (*boxes.PRESETS, *direct.PRESETS, *clusters.PRESETS)
}
"""Every preset by name."""


def preset(name: str, **values: Any) -> Topology:
    """Build the preset called ``name``.

    Args:
        name: As `coppice topology list` shows it.
        values: Parameters, such as ``boxes=2`` or ``rates="measured"``.

    Raises:
        InputError: If there is no such preset, or it has no such parameter.

    Examples:
        >>> preset("dgx-a100", boxes=2).num_ranks
        16
        >>> preset("torus", dims=(2, 3)).num_links
        18
    """
    entry = _entry(name)
    known = [parameter.name for parameter in entry.parameters]
    for key in values:
        if key not in known:
            raise InputError(f"preset {name} has no parameter {key!r}: {suggestion(key, known)}")
    return entry.build(**values)


def preset_from_options(name: str, options: Mapping[str, str]) -> Topology:
    """Build the preset called ``name`` from parameters given as texts, as on the command line."""
    _entry(name)
    return _built(name, tuple(options.items()))


@lru_cache(maxsize=8)  # searches over layouts and runs of many jobs ask for one cluster again and again
def _built(name: str, options: tuple[tuple[str, str], ...]) -> Topology:
    entry = PRESETS[name]
    return entry.build(**entry.values(dict(options)))


def preset_host(name: str, options: Mapping[str, str]) -> Host:
    """Build one box of the preset called ``name`` with its network ports, for composition."""
    entry = _entry(name)
    if entry.host is None:
        boxes = [box.name for box in PRESETS.values() if box.host is not None]
        raise InputError(f"preset {name} is a network, not a box with ports: use one of {', '.join(boxes)}.")
    values = entry.values(options)
    for key in values:
        if key == "boxes" or key not in _box_parameters(entry):
            raise InputError(
                f"a host made of preset {name} takes no {key!r}: set count, and the fabric's fields, instead."
            )
    return entry.host(**values)


def _box_parameters(entry: Preset) -> set[str]:
    names = [parameter.name for parameter in entry.parameters]
    return set(names[: names.index("fabric")])


def _entry(name: str) -> Preset:
    if name not in PRESETS:
        raise InputError(f"there is no preset {name!r}: {suggestion(name, PRESETS)}")
    return PRESETS[name]
