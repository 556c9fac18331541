"""What a file is, by how it begins: for messages about a file that was given for another."""

from __future__ import annotations

import re

_HEAD = 65_536
_SHOWN = 30

_KNOWN = (
    (rb'"format"\s*:\s*"coppice-[a-z-]+-output"', "figures that a command printed with --json", "schema"),
    (rb'"format"\s*:\s*"coppice-plan"', "a plan", "verify, explain, simulate, export, report"),
    (rb'"?format"?\s*:\s*"?coppice-topology', "a topology", "bound, plan, compare"),
    (rb'"?format"?\s*:\s*"?coppice-cluster', "the description of a cluster", "bound, plan, compare"),
    (
        rb'"format"\s*:\s*"coppice-put-signal"',
        "a program of puts and signals",
        "verify, doctor --target nccl",
    ),
    (rb'"format"\s*:\s*"coppice-model"', "a model of time", "model show"),
    (rb'"format"\s*:\s*"coppice-jobs"', "a list of jobs", "simulate --together"),
    (rb"<algo\b", "MSCCL XML", "verify, doctor, import"),
    (rb"<system\b", "a topology that NCCL or RCCL wrote", "bound, plan, compare, topology import"),
    (rb"<graphs\b", "graphs that NCCL wrote", "logs, doctor --target nccl-graph"),
    (rb'"traceEvents"', "a trace of PyTorch's profiler", "train import"),
    (rb'"schema"\s*:\s*"[^"\n]{0,40}"', "an execution trace of PyTorch", "train import"),
    (rb'"coll_sn"|"coll_perf"', "records of NCCL's inspector", "logs"),
    (rb"NCCL INFO|RCCL INFO", "a log of NCCL", "logs, select --log"),
    (rb"^# nThread |^#[ \t]+size[ \t]+count", "a table of nccl-tests", "logs, model fit"),
    (rb"^[ \t]*GPU0[ \t]+GPU1|Weight between two GPUs", "a matrix of GPUs", "bound, plan, topology import"),
    (rb"^model\.name|^\[model\]|^model\s*=", "a training job", "train estimate"),
    (rb"^(import|from) [\w.]+", "a Python script", "compile"),
)
"""How files begin, what they are, and the commands that take them."""

_GPUS = re.compile(rb'"gpus"\s*:')


def recognised(data: bytes) -> str | None:
    """What a file is and which commands take it; None where that is not known.

    >>> recognised(b"<algo name='ring'>")
    'MSCCL XML, which `coppice verify`, `doctor` and `import` take'
    >>> recognised(b"# Title")
    """
    head = data[:_HEAD]
    for pattern, what, commands in _KNOWN:
        if re.search(pattern, head, re.MULTILINE):
            return f"{what}, which {_taken(commands)}"
    if head.lstrip().startswith(b"{") and _GPUS.search(data):
        return f"an execution plan of MSCCL++, which {_taken('verify, doctor, import')}"
    return None


def impression(data: bytes) -> str:
    """What a file is, in words for a message: one that is known, or how it begins.

    >>> impression(b"# Title"), impression(b'{"a": 1}'), impression(b" ")
    ("text that begins with '# Title'", 'other JSON', 'nothing')
    """
    known = recognised(data)
    if known is not None:
        return known
    head = data[:_HEAD].removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head:
        return "nothing"
    if b"\0" in head:
        return "binary data"
    if head[:1] in (b"{", b"["):
        return "other JSON"
    first = head.splitlines()[0].decode(errors="replace")
    return f"text that begins with {first[:_SHOWN]!r}"


def _taken(commands: str) -> str:
    if commands == "schema":
        return "`coppice schema` describes"
    names = commands.split(", ")
    quoted = [f"`coppice {names[0]}`", *(f"`{name}`" for name in names[1:])]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted) + (
        " take" if len(quoted) > 1 else " takes"
    )
