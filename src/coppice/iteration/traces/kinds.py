"""What kind of trace a file holds, told by its content."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from coppice.errors import InputError
from coppice.files import read_bytes
from coppice.iteration.traces.chakra import chakra_nodes
from coppice.iteration.traces.nodes import ExecutionTrace
from coppice.iteration.traces.pytorch import pytorch_nodes

_MOST_BYTES = 4 * 2**30
_LOOK = 1 << 16
_ZIPPED = (b"PK\x03\x04", b"PK\x05\x06")
_ASCEND = (b'"Ascend Hardware"', b'"CANN"')
"""Processes that the traces of Ascend's profiler (torch_npu, MindStudio) name."""
_SUFFIXES = (".et", ".json", ".json.gz", ".gz")


class TraceKind(StrEnum):
    """Kinds of traces."""

    PROFILER = "trace of PyTorch's profiler"
    PYTORCH = "execution trace of PyTorch"
    CHAKRA = "Chakra execution trace"


def read_trace_bytes(path: Path | str) -> bytes:
    """The content of a file, gzipped or not."""
    data = read_bytes(path, what="the trace", most_bytes=_MOST_BYTES)
    if data[:4] in _ZIPPED:
        raise InputError(
            f"expected a trace, gzipped or not, in {path}, found a zip file: unzip it, and name the trace inside."
        )
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"expected a whole gzip file in {path}, found otherwise: {str(error).rstrip('.')}: copy it again."
        ) from None


def bare_list(data: bytes) -> str:
    """What a list of events without ``traceEvents`` around it is, and what to do instead.

    Examples:
        >>> bare_list(b'[{"name": "process_name", "args": {"name": "CANN"}}]').split(": ")[0]
        "a bare list of events, as Ascend's profiler exports it, which is not read"
    """
    if any(name in data for name in _ASCEND):
        return (
            "a bare list of events, as Ascend's profiler exports it, which is not read: give the job to "
            "`coppice train estimate` instead, or profile it on GPUs with torch.profiler and export_chrome_trace"
        )
    return "a bare list of events: export it with torch.profiler's export_chrome_trace"


def kind_of(data: bytes, *, file: str = "the file") -> TraceKind:
    """The kind of trace that some content is.

    Examples:
        >>> kind_of(b'{"schema": "1.1.0", "nodes": []}').value
        'execution trace of PyTorch'
    """
    start = data[:_LOOK].lstrip()
    if start[:1] in (b"{", b"["):
        if b'"traceEvents"' in start or b'"traceEvents"' in data:
            return TraceKind.PROFILER
        if b'"nodes"' in start and b'"schema"' in start:
            return TraceKind.PYTORCH
        if start[:1] == b"[":
            raise InputError(
                f"expected a trace of PyTorch's profiler (with traceEvents) in {file}, found {bare_list(data)}."
            )
        raise InputError(
            f"expected a trace of PyTorch's profiler (traceEvents), an execution trace of PyTorch (schema, nodes) or a "
            f"Chakra trace in {file}, found other JSON: profile with torch.profiler and export_chrome_trace."
        )
    return TraceKind.CHAKRA


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """Files of some names: those of a folder are its traces, in the order of their numbers."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = [each for each in path.iterdir() if each.is_file() and each.name.endswith(_SUFFIXES)]
        if not inside:
            raise InputError(
                f"expected traces (*{', *'.join(_SUFFIXES[:3])}) in the folder {path}, found none: name a file."
            )
        found += sorted(
            inside, key=lambda each: [int(part) if part.isdigit() else part for part in _parts(each.name)]
        )
    return found


def _parts(name: str) -> list[str]:
    """A name cut at its numbers, always beginning with text.

    >>> _parts("trace.10.et")
    ['trace.', '10', '.et']
    """
    parts = [""]
    for letter in name:
        if parts[-1] and parts[-1][-1].isdigit() != letter.isdigit():
            parts.append("")
        parts[-1] += letter
    return ["", *parts] if name[:1].isdigit() else parts


def read_traces(contents: Sequence[tuple[str, bytes]]) -> list[ExecutionTrace]:
    """Execution traces of some files, one a rank; ranks that files do not name are counted."""
    traces = []
    for number, (name, data) in enumerate(contents):
        kind = kind_of(data, file=name)
        if kind is TraceKind.PROFILER:
            raise InputError(
                f"expected execution traces together, found a {kind} in {name}: import one of its ranks alone."
            )
        read = chakra_nodes if kind is TraceKind.CHAKRA else pytorch_nodes
        traces.append(read(data, file=name, rank=number))
    return traces
