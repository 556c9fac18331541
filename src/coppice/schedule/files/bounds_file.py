"""Read and write files of bounds on time: a problem, and the certificate of each size, which anybody can check."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import Any, Literal

import msgspec
import numpy as np

from coppice.bounds.network import check_problem
from coppice.bounds.problem import Problem
from coppice.bounds.result import CutFamily
from coppice.bounds.sizes.arrival import MovingCut
from coppice.bounds.sizes.crossings import Crossings
from coppice.bounds.sizes.least import TimeBound
from coppice.bounds.sizes.priced import priced_links
from coppice.bounds.sizes.timed import MessageCosts, TimedNetwork
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.files import write_atomically
from coppice.schedule.files.columns import Count, Id, decode_json, read_fraction
from coppice.schedule.files.proof_columns import ProofRow, proof_row, read_proof
from coppice.topology.readers.document import topology_document, topology_from_document
from coppice.topology.readers.json_yaml import parse_json
from coppice.version import __version__

FORMAT = "coppice-time-bounds"
VERSION = 1


class _CutRow(msgspec.Struct, forbid_unknown_fields=True):
    """A moving cut: label ``offset``, or the time less it where ``from_end``, of each node, in units."""

    sink: Id
    turned: bool
    time_ns: str
    units: Count
    offset: list[Count]
    from_end: list[bool]
    joint: bool = False
    boxed: bool = False
    sources: list[Count] = msgspec.field(default_factory=list)
    more_sinks: list[Id] = msgspec.field(default_factory=list)


class _CrossingsRow(msgspec.Struct, forbid_unknown_fields=True):
    """Messages between boxes: nodes of ranks, one of each box."""

    ports: bool
    sources: list[Id]
    sinks: list[Id]


class _CostsRow(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    start_us: float
    message_us: float
    crossing_us: float
    links: bool
    expansion: str
    gpu_gb_per_s: str | None
    burst_bytes: int
    workers: Count = 0
    send_us: float = 0.0
    receive_us: float = 0.0


class _SizeRow(msgspec.Struct, forbid_unknown_fields=True):
    size_bytes: int
    time_us: str
    costs: _CostsRow
    cut: _CutRow | None = None
    proof: ProofRow | None = None
    sends: bool = False  # The proof counts the sends of an all-reduce or an all-to-all
    crossings: _CrossingsRow | None = None
    growth: Literal["spread", "gathered"] | None = None
    representatives: list[Id] | None = None  # Nodes of ranks, one for each set of the proof; none: all ranks


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    coppice: str
    model: str
    collective: Collective
    root: int | None
    weights: list[int] | None
    demands: list[list[int]] | None
    sizes: list[_SizeRow]
    topology: msgspec.Raw


def write_bounds(bounds: Sequence[TimeBound], path: str | os.PathLike[str], *, model: str) -> None:
    """Write bounds on time of one problem to a file; ``-`` is standard output.

    Raises:
        InputError: If the file cannot be written.
    """
    data = encode_bounds(bounds, model=model)
    if os.fspath(path) == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        write_atomically(path, data)


def encode_bounds(bounds: Sequence[TimeBound], *, model: str) -> bytes:
    """Bytes of a file of bounds on time of one problem."""
    problem = bounds[0].problem
    members: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "coppice": __version__,
        "model": model,
        "collective": problem.collective.value,
        "root": problem.root,
        "weights": problem.weights,
        "demands": problem.demands,
        "topology": topology_document(problem.topology),
    }
    encode = msgspec.json.Encoder().encode
    rows = b",\n ".join(encode(_row(each)) for each in bounds)
    lines = [b'"' + key.encode() + b'": ' + encode(value) for key, value in members.items()]
    return b"{" + b",\n".join([*lines, b'"sizes": [' + rows + b"]"]) + b"}\n"


def _row(bound: TimeBound) -> dict[str, Any]:
    costs = asdict(bound.costs)
    costs["expansion"] = str(bound.costs.expansion)
    costs["gpu_gb_per_s"] = None if bound.costs.gpu_gb_per_s is None else str(bound.costs.gpu_gb_per_s)
    row: dict[str, Any] = {"size_bytes": bound.size_bytes, "time_us": str(bound.time_us), "costs": costs}
    if bound.cut is not None:
        row["cut"] = {
            "sink": bound.sinks[0],
            "more_sinks": bound.sinks[1:],
            "turned": bound.turned,
            "time_ns": str(bound.cut.time_ns),
            "units": bound.cut.units,
            "offset": bound.cut.offset.tolist(),
            "from_end": bound.cut.from_end.tolist(),
            "joint": bound.joint,
            "boxed": bound.boxed,
            "sources": bound.sources,
        }
    elif bound.priced is not None and bound.priced.witness is not None:
        row["proof"] = proof_row(bound.problem.topology, bound.priced.witness)
        if isinstance(bound.priced.witness, CutFamily):
            row["representatives"] = bound.priced.representatives
    elif bound.priced is not None:
        row["sends"] = True
    elif bound.crossings is not None:
        names = ("ports", "sources", "sinks")
        row["crossings"] = {name: getattr(bound.crossings, name) for name in names}
    elif bound.growth is not None:
        row["growth"] = bound.growth
    return row


def is_bounds(data: bytes) -> bool:
    """Whether data are a file of bounds on time."""
    return data.lstrip().startswith(b'{"format": "' + FORMAT.encode() + b'"')


def decode_bounds(data: bytes, *, name: str) -> tuple[list[TimeBound], str]:
    """Bounds on time of a file, and the name of their model; nothing is believed of them until it is checked.

    Raises:
        InputError: If the file is none, or what it says makes no sense.
    """
    where = f"{name} $"
    document: _Document = decode_json(data, _Document, where)
    if document.version != VERSION:
        raise InputError(
            f"expected version {VERSION} in {name}, found {document.version}: write the bounds again."
        )
    topology = topology_from_document(
        parse_json(bytes(document.topology), file=f"{where}.topology"), where=f"{where}.topology"
    )
    demands = document.demands
    problem = Problem(
        topology=topology,
        collective=document.collective,
        root=document.root,
        weights=None if document.weights is None else tuple(document.weights),
        demands=None if demands is None else tuple(tuple(row) for row in demands),
    )
    check_problem(problem)
    if not document.sizes:
        raise InputError(f"expected a bound at {where}.sizes, found none: write the bounds again.")
    return [
        _bound(problem, row, f"{where}.sizes[{i}]") for i, row in enumerate(document.sizes)
    ], document.model


def _bound(problem: Problem, row: _SizeRow, where: str) -> TimeBound:
    limit = row.costs.gpu_gb_per_s
    costs = MessageCosts(
        name=row.costs.name,
        start_us=_amount(row.costs.start_us, f"{where}.costs.start_us"),
        message_us=_amount(row.costs.message_us, f"{where}.costs.message_us"),
        crossing_us=_amount(row.costs.crossing_us, f"{where}.costs.crossing_us"),
        links=row.costs.links,
        expansion=_positive(row.costs.expansion, f"{where}.costs.expansion"),
        gpu_gb_per_s=None if limit is None else _positive(limit, f"{where}.costs.gpu_gb_per_s"),
        burst_bytes=int(_amount(row.costs.burst_bytes, f"{where}.costs.burst_bytes")),
        workers=row.costs.workers,
        send_us=_amount(row.costs.send_us, f"{where}.costs.send_us"),
        receive_us=_amount(row.costs.receive_us, f"{where}.costs.receive_us"),
    )
    network = TimedNetwork.of(problem.topology, costs)
    found = TimeBound(
        problem=problem,
        costs=costs,
        size_bytes=int(_amount(row.size_bytes, f"{where}.size_bytes")),
        time_us=read_fraction(row.time_us, f"{where}.time_us"),
        growth=row.growth,
    )
    if row.crossings is not None:
        return TimeBound(**{**vars(found), "crossings": _crossings(problem, network, row.crossings, where)})
    if row.cut is None:
        if row.proof is None and not row.sends:
            return found
        witness = None if row.proof is None else read_proof(problem.topology, row.proof, f"{where}.proof")
        ranks: list[int] = problem.topology.rank_nodes.tolist()
        chosen = ranks if row.representatives is None else row.representatives
        if not chosen or not {*chosen} <= {*ranks}:
            raise InputError(
                f"expected nodes with ranks at {where}.representatives, found others: write the bounds again."
            )
        return TimeBound(**{**vars(found), "priced": priced_links(problem, network, witness, chosen)})
    count, expected = len(row.cut.offset), network.num_nodes * (1 + row.cut.boxed)
    expected += row.cut.joint or row.cut.boxed
    sinks = (row.cut.sink, *row.cut.more_sinks)
    if count != expected or len(row.cut.from_end) != count or not all(0 <= sink < count for sink in sinks):
        raise InputError(
            f"expected labels of {expected} nodes at {where}.cut, found {count}: write the bounds again."
        )
    if row.cut.units != network.units:
        raise InputError(
            f"expected {network.units} units of time in a nanosecond at {where}.cut, found {row.cut.units}: write the "
            "bounds again."
        )
    cut = MovingCut(
        time_ns=read_fraction(row.cut.time_ns, f"{where}.cut.time_ns"),
        offset=np.array(row.cut.offset, dtype=np.int64),
        from_end=np.array(row.cut.from_end, dtype=np.bool_),
        units=row.cut.units,
    )
    sources = tuple(row.cut.sources)
    if (row.cut.joint or row.cut.boxed) and not sources:
        sources = tuple(range(problem.topology.num_ranks)) if problem.root is None else (problem.root,)
    sides = {
        "turned": row.cut.turned,
        "joint": row.cut.joint,
        "boxed": row.cut.boxed,
        "sources": sources,
        "sinks": sinks,
    }
    return TimeBound(**{**vars(found), "cut": cut, **sides})


def _crossings(problem: Problem, network: TimedNetwork, row: _CrossingsRow, where: str) -> Crossings:
    """Crossings as they are written; who checks them counts anew."""
    ranks = {*problem.topology.rank_nodes.tolist()}
    if not {*row.sources, *row.sinks} <= ranks:
        raise InputError(
            f"expected nodes with ranks at {where}.crossings, found others: write the bounds again."
        )
    return Crossings(
        network=network,
        ports=row.ports,
        sources=tuple(row.sources),
        sinks=tuple(row.sinks),
        work=Fraction(len(row.sources)),
        rows=(),
    )


def _amount(value: float, where: str) -> float:
    if not 0 <= value < 2**62:
        raise InputError(f"expected a number of 0 or more at {where}, found {value}: write the bounds again.")
    return value


def _positive(text: str, where: str) -> Fraction:
    found = read_fraction(text, where)
    if found <= 0:
        raise InputError(f"expected a number above 0 at {where}, found {text}: write the bounds again.")
    return found
