"""Compile an example of the public msccl-tools with its own compiler, and print the file and its operations as JSON.

    python benchmarks/language_reference.py DIRECTORY EXAMPLE ARGUMENT ...

DIRECTORY is a checkout of https://github.com/microsoft/msccl-tools, EXAMPLE a file below its examples/mscclang. Only
its language is loaded, not its synthesiser, so z3 is not needed; where lxml is missing, the XML writer of Python's
standard library takes its place.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import runpy
import sys
import time
import types
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

__all__ = ["run_example"]


def run_example(directory: Path, example: str, arguments: list[str]) -> dict[str, Any]:
    """Run an example, and note what it does.

    Args:
        directory: The checkout.
        example: File below ``examples/mscclang``.
        arguments: Its arguments.

    Returns:
        ``xml``, ``seconds`` of its compiler (tracing, checks and writing), what the collective is, and ``operations``:
        (adds, source rank, buffer, index, destination rank, buffer, index, size).
    """
    package: Any = types.ModuleType("msccl")
    package.__path__ = [str(directory / "msccl")]
    sys.modules["msccl"] = package
    try:
        importlib.import_module("lxml.etree")
    except ImportError:
        _stand_in_for_lxml()
    language: Any = importlib.import_module("msccl.language")
    operations: list[list[Any]] = []
    programs: list[Any] = []
    _note_operations(language, operations, programs)
    folder = directory / "examples" / "mscclang"
    sys.path.insert(0, str(folder))
    sys.argv = [example, *arguments]
    printed = io.StringIO()
    start = time.perf_counter()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(folder / example), run_name="__main__")
    seconds = time.perf_counter() - start
    [program] = programs
    text = printed.getvalue()
    begin, end = text.index("<algo"), text.index("</algo>") + len("</algo>")
    return {
        "xml": text[begin:end],
        "seconds": seconds,
        "collective": program.collective.name,
        "ranks": program.num_ranks,
        "chunks": program.collective.chunk_factor,
        "in_place": program.collective.inplace,
        "instances": program.instances,
        "protocol": program.protocol,
        "operations": operations,
    }


def _stand_in_for_lxml() -> None:
    module: Any = types.ModuleType("lxml")
    module.etree = ET
    sys.modules["lxml"], sys.modules["lxml.etree"] = module, ET


def _note_operations(language: Any, operations: list[list[Any]], programs: list[Any]) -> None:
    """Have its references and programs tell what they do."""
    copy, reduce, enter = language.Ref.copy, language.Ref.reduce, language.MSCCLProgram.__enter__

    def place(ref: Any) -> list[Any]:
        return [int(ref.rank), getattr(ref.buffer, "name", str(ref.buffer)), int(ref.index)]

    def noting_copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = copy(self, *args, **kwargs)
        if made is not None:
            operations.append([False, *place(self), *place(made), self.size])
        return made

    def noting_reduce(self: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        made = reduce(self, other, *args, **kwargs)
        operations.append([True, *place(other), *place(self), other.size])
        return made

    def noting_enter(self: Any) -> None:
        programs.append(self)
        enter(self)

    language.Ref.copy, language.Ref.reduce = noting_copy, noting_reduce
    language.MSCCLProgram.__enter__ = noting_enter


if __name__ == "__main__":
    json.dump(run_example(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]), sys.stdout)
