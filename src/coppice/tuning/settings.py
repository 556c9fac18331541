"""Site-wide settings for NCCL and RCCL, applied by Coppice's environment plugin."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from coppice.arguments import checked
from coppice.errors import InputError

SETTINGS_VARIABLE = "COPPICE_NCCL_SETTINGS"
"""Variable that names the file."""

_NAME = re.compile(r"(?:NCCL|RCCL|COPPICE)_[A-Z0-9_]+")
_BLANKS = " \t\r"

_FILES = frozenset(
    {
        "COPPICE_COLLNET_FOREST",
        "COPPICE_TUNER_TABLE",
        "NCCL_GRAPH_FILE",
        "NCCL_TOPO_FILE",
        "NCCL_TUNER_CONFIG_FILE",
    }
)
"""Variables whose values are files."""

_LIBRARIES = frozenset(
    {"NCCL_GIN_PLUGIN", "NCCL_NET_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_RMA_PLUGIN", "NCCL_TUNER_PLUGIN"}
)
"""Variables whose values may be files of libraries, or names of plugins, with commas between several."""

_TOO_LATE = frozenset(
    {
        "NCCL_CONF_FILE",
        "NCCL_DEBUG",
        "NCCL_DEBUG_FILE",
        "NCCL_DEBUG_SUBSYS",
        "NCCL_ENV_PLUGIN",
        SETTINGS_VARIABLE,
    }
)
"""Variables that are read before there is a plugin to ask."""


def read_settings(data: bytes, *, file: str = "settings") -> dict[str, str]:
    r"""Read a settings file with the strictness of the plugin.

    Args:
        data: Bytes of the file: lines of ``NAME=VALUE``, empty lines, and lines that begin with ``#``.

    Returns:
        Values by name, in the order of the file.

    Examples:
        >>> read_settings(b"# measured\nNCCL_ALGO=Ring\n")
        {'NCCL_ALGO': 'Ring'}
    """
    found: dict[str, str] = {}
    for number, raw in enumerate(data.decode("utf-8", errors="replace").split("\n"), start=1):
        line = raw.strip(_BLANKS)
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        where = f"{file}:{number}: "
        if not equals:
            raise InputError(f"{where}expected NAME=VALUE, found {line[:40]!r}.")
        _check(name, value, where)
        if name in found:
            raise InputError(f"{where}expected each name once, found {name} again.")
        found[name] = value
    return found


@checked
def settings_text(settings: Mapping[str, str], *, notes: Iterable[str] = ()) -> str:
    r"""Encode a settings file with absolute paths.

    Returns:
        The text of the file.

    Examples:
        >>> print(settings_text({"NCCL_ALGO": "Ring", "NCCL_NET_PLUGIN": "none"}), end="")
        NCCL_ALGO=Ring
        NCCL_NET_PLUGIN=none
    """
    lines = [f"# {note}" for note in notes]
    for name, value in settings.items():
        _check(name, value, "")
        if name in _TOO_LATE:
            raise InputError(
                f"{name} is read before there is a plugin to ask: set it in the environment of the job."
            )
        lines.append(f"{name}={_resolved(name, value)}")
    return "\n".join(lines) + "\n" if lines else ""


def _check(name: str, value: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{where}expected a name of NCCL_, RCCL_ or COPPICE_ and capitals, found {name[:40]!r}."
        )
    if "\n" in value or "\0" in value:
        raise InputError(f"{where}expected one line of text for {name}, found {value[:40]!r}.")


def _resolved(name: str, value: str) -> str:
    """The value, made absolute where it is the name of a file: jobs run in other directories."""
    parts = value.split(",")
    if name in _LIBRARIES and len(parts) > 1 and not Path(value).is_file():
        return ",".join(_resolved(name, part.strip(_BLANKS)) for part in parts)
    is_file = name in _FILES or (name in _LIBRARIES and (os.sep in value or Path(value).is_file()))
    if not is_file:
        return value.strip(_BLANKS)
    if not Path(value).is_file():
        raise InputError(f"expected a file at {value!r} for {name}, found none: write it first.")
    return str(Path(value).absolute())
