"""Timings of NCCL and RCCL algorithms and protocols: predicted by the cost model, or measured.

A table is CSV with a header line and the columns ``collective,nodes,ranks,size_bytes,algorithm,protocol,time_us``, and
optionally ``channels`` (empty or 0: the library's default) and ``spread`` (relative, such as 0.02). Sizes are the size
column of nccl-tests. Rows with the algorithm ``default`` are what the library does without a table.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.files import file_name, read_text
from coppice.selection.nccl import inputs_of
from coppice.selection.nccl_model import cells
from coppice.selection.selection import SelectionRequest, box_sizes
from coppice.topology.model import Topology

COLLECTIVES = {
    Collective.BROADCAST: "broadcast",
    Collective.REDUCE: "reduce",
    Collective.ALL_GATHER: "allgather",
    Collective.REDUCE_SCATTER: "reducescatter",
    Collective.ALL_REDUCE: "allreduce",
}
"""Collectives that a tuner is asked about, in the spelling of its tables."""

ALGORITHMS = {
    "Tree": "tree",
    "Ring": "ring",
    "CollNetDirect": "collnet_direct",
    "CollNetChain": "collnet_chain",
    "NVLS": "nvls",
    "NVLSTree": "nvls_tree",
    "PAT": "pat",
}
PROTOCOLS = ("ll", "ll128", "simple")
MOST_CHANNELS = 127
"""NCCL keeps the number of channels in a signed byte."""

_COLUMNS = ("collective", "nodes", "ranks", "size_bytes", "algorithm", "protocol", "time_us")
_OPTIONAL = ("channels", "spread")
_DEFAULT = "default"
_ONLY_SIMPLE = ("collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")


@dataclass(frozen=True, kw_only=True)
class TunerTiming:
    """Time of one algorithm and protocol at one size."""

    collective: Collective  # What was run
    nodes: int  # Domains of NVLink (hosts, where there are none larger) that the communicator spans
    ranks: int  # Its ranks
    size_bytes: int  # M (see :mod:`coppice.collectives`)
    algorithm: str | None  # In the spelling of tuner tables; None is what the library does by itself
    protocol: str | None  # Likewise
    channels: int | None = None  # Number of channels, None is the library's default
    time_us: float  # Time of the call
    spread: float = 0.0  # Relative spread of repeated measurements


def impossible(collective: Collective, algorithm: str, protocol: str) -> str | None:
    """Why no library supports this combination, or None.

    Examples:
        >>> impossible(Collective.BROADCAST, "tree", "ll")
        'broadcast runs as ring only'
        >>> impossible(Collective.ALL_REDUCE, "nvls", "simple")
    """
    if algorithm in _ONLY_SIMPLE and protocol != "simple":
        return f"{algorithm} has the protocol simple only"
    if collective in (Collective.BROADCAST, Collective.REDUCE) and algorithm != "ring":
        return f"{collective} runs as ring only"
    if collective is Collective.ALL_REDUCE and algorithm == "pat":
        return "pat performs all_gather and reduce_scatter only"
    gathers = collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    if gathers and algorithm in ("tree", "collnet_chain", "nvls_tree"):
        return f"{algorithm} performs all_reduce only"
    return None


def model_timings(
    topology: Topology,
    sizes: Sequence[int],  # Sizes M in bytes
    *,
    collectives: Sequence[Collective] = tuple(COLLECTIVES),
    # Inputs of the model (see :data:`coppice.selection.nccl.SETTINGS`)
    settings: Mapping[str, str] | None = None,
) -> tuple[tuple[TunerTiming, ...], tuple[str, ...]]:
    """Predicted times for a communicator of all ranks, with the assumptions made.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found, _ = model_timings(preset("dgx-h100"), [1024], collectives=[Collective.BROADCAST])
        >>> [(each.algorithm, each.protocol) for each in found]
        [('ring', 'll'), ('ring', 'll128'), ('ring', 'simple')]
    """
    if topology.num_ranks < 2:
        raise InputError(
            f"expected 2 ranks or more, found {topology.num_ranks}: nothing is to be tuned for one."
        )
    boxes = box_sizes(topology)
    found: list[TunerTiming] = []
    assumptions: dict[str, None] = {}
    for collective in collectives:
        for size_bytes in sizes:
            request = SelectionRequest(
                collective=collective,
                ranks=topology.num_ranks,
                size_bytes=size_bytes,
                ranks_per_box=None if boxes is None else max(boxes),
                even=boxes is None or len(set(boxes)) == 1,
                boxes=1 if boxes is None else len(boxes),
            )
            inputs = inputs_of(request, topology, settings or {})
            assumptions.update(dict.fromkeys(inputs.assumptions))
            found += [
                TunerTiming(
                    collective=collective,
                    nodes=inputs.communicator.nodes,
                    ranks=topology.num_ranks,
                    size_bytes=size_bytes,
                    algorithm=ALGORITHMS[cell.algorithm],
                    protocol=cell.protocol.lower(),
                    time_us=cell.time_us,
                )
                for cell in cells(inputs.communicator, collective, size_bytes)
                if cell.time_us is not None
            ]
    return tuple(found), tuple(assumptions)


def read_timings(path: str | os.PathLike[str]) -> tuple[TunerTiming, ...]:
    """Read measured times from a table."""
    file = file_name(path)
    text = read_text(path, what="the times", hint="give a CSV file")
    rows = [
        (number, row)
        for number, row in enumerate(csv.reader(text.splitlines()), start=1)
        if row and not row[0].startswith("#")
    ]
    if not rows:
        raise InputError(
            f"{file} holds no times: expected a header line {','.join(_COLUMNS)}, then one time in each line."
        )
    first, names = rows[0][0], [name.strip() for name in rows[0][1]]
    if len(set(names)) != len(names) or set(_COLUMNS) - set(names) or set(names) - {*_COLUMNS, *_OPTIONAL}:
        wanted = f"{','.join(_COLUMNS)}[,channels][,spread]"
        raise InputError(f"expected the columns {wanted} at {file}:{first}, found {','.join(names)}.")
    found = []
    for number, row in rows[1:]:
        if len(row) != len(names):
            raise InputError(f"expected {len(names)} fields at {file}:{number}, found {len(row)}.")
        found.append(_timing(dict(zip(names, (f.strip() for f in row), strict=True)), f"{file}:{number}"))
    if not found:
        raise InputError(f"{file} has a header and no times: add one in each line.")
    return tuple(found)


def _timing(row: Mapping[str, str], where: str) -> TunerTiming:
    collective = next(
        (
            key
            for key, name in COLLECTIVES.items()
            if name == row["collective"].lower().replace("_", "").replace("-", "")
        ),
        None,
    )
    if collective is None:
        known = ", ".join(COLLECTIVES.values())
        raise InputError(
            f"expected a collective that is one of {known} at {where}, found {row['collective']!r}."
        )
    algorithm, protocol = row["algorithm"].lower(), row["protocol"].lower()
    own = algorithm == _DEFAULT
    if not own and (algorithm not in ALGORITHMS.values() or protocol not in PROTOCOLS):
        raise InputError(
            f"expected an algorithm ({', '.join(ALGORITHMS.values())} or {_DEFAULT}) and a protocol "
            f"({', '.join(PROTOCOLS)}) at {where}, found {row['algorithm']!r} and {row['protocol']!r}."
        )
    reason = None if own else impossible(collective, algorithm, protocol)
    if reason is not None:
        raise InputError(f"{where} has a combination that no library runs: {reason}; remove the line.")
    nodes = _integer(row["nodes"], "nodes", where, low=1)
    ranks = _integer(row["ranks"], "ranks", where, low=2)
    if ranks < nodes:
        raise InputError(
            f"expected as many ranks as nodes or more at {where}, found {ranks} ranks on {nodes} nodes."
        )
    channels = _integer(row.get("channels") or "0", "channels", where, low=0, high=MOST_CHANNELS)
    return TunerTiming(
        collective=collective,
        nodes=nodes,
        ranks=ranks,
        size_bytes=_integer(row["size_bytes"], "size_bytes", where, low=0),
        algorithm=None if own else algorithm,
        protocol=None if own else protocol,
        channels=channels or None,
        time_us=_number(row["time_us"], "time_us", where, least=1e-9),
        spread=_number(row.get("spread") or "0", "spread", where),
    )


def _integer(text: str, name: str, where: str, *, low: int, high: int = 2**62) -> int:
    if text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high:
        return int(text)
    raise InputError(f"expected {name} as an integer {low} .. {high} at {where}, found {text[:40]!r}.")


def _number(text: str, name: str, where: str, *, least: float = 0.0) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        raise InputError(
            f"expected {name} as a number{' above 0' if least else ' of 0 or more'} at {where}, found {text[:40]!r}."
        )
    return value
