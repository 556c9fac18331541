"""Compile Coppice's plugins for NCCL and RCCL where they are used, and the settings of the environment plugin."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from coppice.arguments import checked
from coppice.errors import CheckError, InputError
from coppice.files import replacing
from coppice.text import suggestion

_TIMEOUT_S = 900
_SWITCH_CLIENT = (
    *(f"udp/{name}.cc" for name in ("client", "connection", "envelope", "join", "sockets")),
    *(f"aggregation/{name}.cc" for name in ("job_table", "node", "switchml", "switchml_worker")),
    *(f"numerics/{name}.cc" for name in ("block_float", "fpisa")),
)
"""A worker's end of a switch in software."""

_COMMON = ("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")


@dataclass(frozen=True, kw_only=True)
class NcclPlugin:
    """A kind of plugin."""

    file: str  # Name under which the library finds it on its path
    variable: str  # Variable by which NCCL is told to take it
    language: str  # C11, C++17 or C++20
    folder: str  # Where its sources are: of the package, or of `cpp/` in a checkout
    further: tuple[str, ...] = ()  # Sources of other folders beside that one
    flags: tuple[str, ...] = ()  # Further flags of the compiler
    settings: str  # What else to set, with a place for a file

    @property
    def compiler_variable(self) -> str:
        """Environment variable that names the compiler."""
        return "CC" if self.language == "C11" else "CXX"


NCCL_PLUGINS: Mapping[str, NcclPlugin] = MappingProxyType(
    {
        "tuner": NcclPlugin(
            file="libnccl-tuner-coppice.so",
            variable="NCCL_TUNER_PLUGIN",
            language="C11",
            folder="",
            settings="COPPICE_TUNER_TABLE=/path/of/table.csv",
        ),
        "net": NcclPlugin(
            file="libnccl-net-coppice.so",
            variable="NCCL_NET_PLUGIN",
            language="C++20",
            folder="collnet",
            further=_SWITCH_CLIENT,
            flags=("-pthread", "-Wl,--version-script={folder}/exports.map"),
            settings="NCCL_COLLNET_ENABLE=1",
        ),
        "env": NcclPlugin(
            file="libnccl-env-coppice.so",
            variable="NCCL_ENV_PLUGIN",
            language="C++17",
            folder="nccl_env",
            flags=("-Wl,--version-script={folder}/exports.map",),
            settings="COPPICE_NCCL_SETTINGS=/path/of/settings",
        ),
    }
)
"""Kinds of plugins."""


def compiler_found(compiler: str | None = None, *, language: str = "C11") -> list[str] | None:
    """Compiler command: the option, else ``$CC`` or ``$CXX``, else ``cc`` or ``c++``; None if absent.

    Args:
        compiler: Command, with options where need be.
        language: ``C11``, ``C++17`` or ``C++20``.
    """
    words = shlex.split(_asked(compiler, language))
    return words if words and shutil.which(words[0]) else None


def _asked(compiler: str | None, language: str) -> str:
    own = ("CC", "cc") if language == "C11" else ("CXX", "c++")
    return compiler or os.environ.get(own[0]) or own[1]


@checked
def build_plugin(
    output: str | os.PathLike[str] | None = None, *, kind: str = "tuner", compiler: str | None = None
) -> Path:
    """Compile a plugin.

    Args:
        output: File to write (default: the name by which NCCL finds the kind, here).
        kind: One of :data:`NCCL_PLUGINS`.
        compiler: Command of a C11 compiler, for ``env`` of a C++17 and for ``net`` of a C++20 compiler (default:
            ``$CC``, else ``cc``; ``$CXX``, else ``c++``).

    Returns:
        The absolute path of the file, for the variable of the kind.
    """
    if kind not in NCCL_PLUGINS:
        raise InputError(f"there is no plugin {kind!r}: {suggestion(kind, NCCL_PLUGINS)}")
    made = NCCL_PLUGINS[kind]
    command = compiler_found(compiler, language=made.language)
    if command is None:
        asked = _asked(compiler, made.language)
        words = "a C compiler" if made.language == "C11" else "a C++ compiler"
        raise InputError(
            f"expected {words}, found no {asked!r}: install one, or name it in {made.compiler_variable}."
        )
    target = Path(output or made.file).absolute()
    if not target.parent.is_dir():
        raise InputError(
            f"expected a directory at {target.parent}, found none: make it, or choose another place."
        )
    try:
        with replacing(target) as temporary:
            folder = _sources(made)
            done = subprocess.run(
                [*command, *_flags(made, folder), "-o", str(temporary)],
                capture_output=True,
                text=True,
                check=False,
                timeout=_TIMEOUT_S,
                input=_unit(made, folder),
            )
            if done.returncode:
                said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
                raise CheckError(
                    f"expected {command[0]} to build the plugin, but it says: {said[0]}; try another compiler "
                    f"({made.compiler_variable})."
                )
    except subprocess.TimeoutExpired:
        raise CheckError(
            f"{command[0]} still compiled after {_TIMEOUT_S} s: try another compiler ({made.compiler_variable})."
        ) from None
    return target


def _sources(made: NcclPlugin) -> Path:
    """The folder of a plugin's sources: the C++ ones are part of ``cpp/``, and packed when the package is built."""
    packed = Path(__file__).with_name("plugin") / made.folder
    return packed if packed.is_dir() else Path(__file__).resolve().parents[3] / "cpp" / made.folder


def _unit(made: NcclPlugin, folder: Path) -> str:
    """All sources as one: most of the work of many small ones is to read the same headers."""
    ends = "*.c" if made.language == "C11" else "*.cc"
    sources = sorted(each for each in folder.glob(ends) if not each.name.endswith(".test.cc"))
    sources += [folder.parent / each for each in made.further]
    return "".join(f'#include "{each}"\n' for each in sources)


def _flags(made: NcclPlugin, folder: Path) -> list[str]:
    language = "c" if made.language == "C11" else "c++"
    own = [flag.format(folder=folder) for flag in made.flags]
    return [f"-std={made.language.lower()}", *_COMMON, f"-I{folder.parent}", "-x", language, "-", *own]


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
