"""Shell completion of option values: presets, collectives, algorithms, models.

Each function is called by the shell's completion only, and loads no more than the names that it lists.
"""

from __future__ import annotations

from coppice.collectives import Collective


def collective_names(incomplete: str) -> list[str]:
    """Complete a collective; of a comma-separated list the last one.

    Examples:
        >>> collective_names("all_r"), collective_names("broadcast,all_g")
        (['all_reduce'], ['broadcast,all_gather'])
    """
    return _last_of(incomplete, list(Collective))


def algorithm_names(incomplete: str) -> list[str]:
    """Complete an algorithm; of a comma-separated list the last one."""
    from coppice.planners.algorithms.listing import listed

    return _last_of(incomplete, sorted({entry.name for entry in listed()}))


def preset_names(incomplete: str) -> list[str]:
    """Complete a preset; without a match the shell completes files."""
    from coppice.topology.presets import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


def model_names(incomplete: str) -> list[str]:
    """Complete a time model."""
    from coppice.simulation.models import named_models

    return [name for name in named_models() if name.startswith(incomplete)]


def _last_of(incomplete: str, names: list[str]) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]
