"""Chunk programs in their own files: run them, and report mistakes with their lines.

A file is Python that is executed here, with all rights of whoever runs Coppice. It has to leave behind a name
``program``: a :class:`~coppice.language.chunk_program.ChunkProgram`, or a function that returns one.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from coppice.errors import CoppiceError, InputError
from coppice.files import file_name, read_bytes
from coppice.language.chunk_program import ChunkProgram
from coppice.language.trace import raised_at
from coppice.text import suggestion

_MODULE = "coppice_chunk_program"
_PLACED = re.compile(r"[^\s:]+:\d+: ")


def read_chunk_program(
    path: str | os.PathLike[str],  # The file; `-` is standard input. It is executed.
    *,
    # Arguments of the function `program` by name; text that is a whole number becomes one
    parameters: Mapping[str, Any] | None = None,
    # Further arguments, for those of its parameters that have these names and are not given
    known: Mapping[str, Any] | None = None,
) -> ChunkProgram:
    """Run a file, and return the chunk program that it defines.

    What it prints goes to standard error.
    """
    data, name = read_bytes(path), file_name(path)
    given = dict(parameters or {})
    with _as_module(path) as module, _told(name):
        code = compile(data, name, "exec", dont_inherit=True)
        exec(code, module.__dict__)
        found = module.__dict__.get("program")
        if callable(found):
            found = found(**_arguments(found, given, known or {}, name))
        elif given:
            names = ", ".join(given)
            raise InputError(
                f"{name}: expected a function program({names}), found no function: leave the parameters out."
            )
    if not isinstance(found, ChunkProgram):
        hint = "end it with `program = ...`, or define `program(ranks)`"
        shown = "none" if found is None else type(found).__name__
        short = Path(name).name
        raise InputError(
            f"{short}:1: expected program to be a ChunkProgram, or a function that returns one, found {shown}: "
            f"{hint}."
        )
    return found


def _value(given: Any, parameter: inspect.Parameter | None) -> Any:
    """A whole number for text that is one, unless text is what the parameter takes."""
    takes_text = parameter is not None and (
        isinstance(parameter.default, str) or parameter.annotation in (str, "str")
    )
    if (
        isinstance(given, str)
        and not takes_text
        and given.removeprefix("-").isdecimal()
        and given.isascii()
        and len(given) < 19
    ):
        return int(given)
    return given


@contextlib.contextmanager
def _as_module(path: str | os.PathLike[str]) -> Iterator[ModuleType]:
    """A module for the file, which finds others beside it; printing goes to standard error meanwhile."""
    module = ModuleType(_MODULE)
    module.__file__ = os.fspath(path)
    before = sys.modules.get(_MODULE)
    folder = str(Path(os.fspath(path)).resolve().parent)
    sys.modules[_MODULE] = module
    sys.path.insert(0, folder)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield module
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
        if before is None:
            del sys.modules[_MODULE]
        else:
            sys.modules[_MODULE] = before


@contextlib.contextmanager
def _told(name: str) -> Iterator[None]:
    """What goes wrong in a file, in one sentence with the line."""
    short = Path(name).name
    try:
        yield
    except SyntaxError as error:
        line = error.lineno if error.filename == name and error.lineno else 1
        raise InputError(f"{short}:{line}: expected Python, found {error.msg}.") from None
    except CoppiceError as error:
        if str(error).startswith(f"{short}:") or _PLACED.match(str(error)):
            raise
        raise type(error)(f"{raised_at(error.__traceback__, name)}: {error}") from None
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(raised_at(error.__traceback__, name)) from None
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 (whatever the program of a user raises)
        words = " ".join(str(error).split()).rstrip(".")
        kind = type(error).__name__
        raise InputError(
            f"{raised_at(error.__traceback__, name)}: the program raises {kind}{': ' if words else ''}{words}."
        ) from None


def _arguments(
    function: Callable[..., Any], given: Mapping[str, Any], known: Mapping[str, Any], name: str
) -> dict[str, Any]:
    """Arguments of the function of a file."""
    line = getattr(getattr(function, "__code__", None), "co_firstlineno", 1)
    where = f"{Path(name).name}:{line}"
    parameters = inspect.signature(function).parameters
    anything = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    for key in given:
        if key not in parameters and not anything:
            names = list(parameters)
            hint = suggestion(key, names, otherwise=f"it has {', '.join(names) or 'none'}.")
            raise InputError(f"{where}: program has no parameter {key}: {hint}")
    found = {key: value for key, value in known.items() if key in parameters}
    found |= {key: _value(value, parameters.get(key)) for key, value in given.items()}
    for each in parameters.values():
        if (
            each.default is inspect.Parameter.empty
            and each.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
            and each.name not in found
        ):
            raise InputError(
                f"{where}: program needs a value for {each.name}: give it as a parameter ({each.name}=VALUE)."
            )
    return found
