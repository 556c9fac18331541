"""Names of files that are no logs: what they are, and what to give instead or where to give them."""

from __future__ import annotations

import re
from typing import Any

from coppice.errors import InputError
from coppice.topology.readers.reading import TopologyFormat, sniff

_EXPECTED = "expected a table of nccl-tests, a log of NCCL, records of the inspector, or a dump of graphs or topology."
_NOT_READ = "which is not read"
_SHOWN = "give it to `coppice topology show`"
_TEXTS = (
    (r"(?m)^#\s*OSU (?:MPI|NCCL|RCCL)", f"a table of the OSU micro-benchmarks, {_NOT_READ}"),
    (
        r"(?m)^\s*(?:allreduce|allgather|reducescatter|broadcast|reduce)\s*,\s*[0-9]+\s*,\s*[0-9]+\s*,",
        "a tuner table: give it to `coppice doctor`",
    ),
    (r"(?m)^#\s*Intel\(R\) MPI Benchmarks", f"a table of the Intel MPI benchmarks, {_NOT_READ}"),
)
_JSON = (
    (
        ("format", "version"),
        "a file of Coppice, no log: give it to `coppice verify` or `coppice topology show`",
    ),
    (("traceEvents",), "a trace of a profiler: give it to `coppice train`"),
    (("pg_config", "entries"), f"a dump of PyTorch's flight recorder, {_NOT_READ}"),
    (("name", "collective", "protocol", "gpus"), "a plan of MSCCL++: give it to `coppice import`"),
    (
        ("collective", "algorithm", "size_bytes", "time_us"),
        "of `coppice bench --json`: give its lines to `coppice model fit`",
    ),
)


def unknown_kind(text: str, *, file: str) -> str:
    r"""What to say of a text that no reader knows.

    Examples:
        >>> unknown_kind("# OSU MPI Allreduce Latency Test v7.4\n", file="x")[:67]
        'x is a table of the OSU micro-benchmarks, which is not read: expect'
    """
    try:
        form = sniff(text.encode(), file="")
    except InputError:
        form = None
    if form in (TopologyFormat.NVIDIA_SMI, TopologyFormat.ROCM_SMI):
        return f"{file} is a topology ({form.value}), no log: {_SHOWN}."
    for pattern, words in _TEXTS:
        if re.search(pattern, text[: 1 << 20]):
            return f"{file} is {words}." if "give it" in words else f"{file} is {words}: {_EXPECTED}"
    return f"{file} is of no known kind: {_EXPECTED}"


def unknown_json(value: Any, *, file: str, line: int) -> str:
    """What to say of a JSON value that no reader knows."""
    if isinstance(value, dict):
        for keys, words in _JSON:
            if all(key in value for key in keys):
                return f"{file}:{line} is {words}."
    return (
        f"{file}:{line} is JSON of no known kind: expected the file of nccl-tests -J, JSON lines of rccl-tests, or the "
        "inspector's."
    )


def unknown_xml(data: bytes, *, file: str) -> str:
    """What to say of XML that no reader knows; empty where one may."""
    if re.search(rb"<algo\b", data[:4096]):
        return f"{file} is an algorithm for MSCCL or RCCL, no log: give it to `coppice doctor` or `coppice import`."
    return ""
