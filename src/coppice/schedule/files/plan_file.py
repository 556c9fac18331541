"""Read and write plan files: JSON columns with a checksum, verifiable without Coppice.

The last member of the file, ``sha256``, is the hash of all bytes before it, so that a file that was cut short
or edited is recognised; ``provenance.topology_sha256`` ties the columns to the topology they were made for.
The same plan always gives the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

import msgspec

from coppice.arguments import checked, shown
from coppice.bounds.network import check_problem
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound, WholeTrees
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.files import file_name, read_bytes, write_atomically
from coppice.recognising import impression
from coppice.schedule.files.columns import (
    ABSENT,
    ChunkColumns,
    EdgeColumns,
    SymmetryColumns,
    TransferColumns,
    TreeColumns,
    decode_json,
    forest_columns,
    read_forest,
    read_fraction,
    read_schedule,
    schedule_columns,
)
from coppice.schedule.files.proof_columns import (
    ProofRow,
    WholeTreesRow,
    proof_row,
    read_proof,
    read_whole_trees,
    whole_trees_row,
)
from coppice.schedule.forest import Forest
from coppice.schedule.plan import Parameter, Plan
from coppice.schedule.schedule import Schedule
from coppice.topology.model import Topology
from coppice.topology.presets import PRESETS
from coppice.topology.readers.document import topology_document, topology_from_document
from coppice.topology.readers.json_yaml import parse_json

FORMAT = "coppice-plan"
VERSION = 1

_MOST_BYTES = 2**40
_SEAL = b',\n"sha256": "'


class _PlanHeader(msgspec.Struct):
    format: str = ""
    version: int = 0


class _Provenance(msgspec.Struct, forbid_unknown_fields=True):
    coppice: str
    planner: str
    parameters: dict[str, Parameter]
    topology_sha256: str


class _BoundRow(msgspec.Struct, forbid_unknown_fields=True):
    inv_rate: str
    cut: list[int]
    attainable: str | None
    method: str
    alternatives: dict[str, str]
    proof: ProofRow | None = None
    whole_trees: WholeTreesRow | None = None
    phase_trees: list[WholeTreesRow] = []
    fewer_trees: list[WholeTreesRow] = []


class _PlanDocument(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    provenance: _Provenance
    collective: Collective
    root: int | None
    weights: list[int] | None
    demands: list[list[int]] | None
    inv_rate: str
    bound: _BoundRow | None
    topology: msgspec.Raw
    paths: msgspec.Raw
    sha256: str
    symmetry: SymmetryColumns | None = None
    ordered: bool = False
    trees: TreeColumns | None = None
    edges: EdgeColumns | None = None
    slot_weight: msgspec.Raw = ABSENT
    chunks: ChunkColumns | None = None
    transfers: TransferColumns | None = None


@checked
def write_plan(plan: object, path: str | os.PathLike[str]) -> None:
    """Write a plan file; an interrupted write leaves the old file, or none.

    Args:
        plan: What to write: a plan, or what has one (:func:`plan_of`).
        path: Where; ``-`` is standard output.

    Raises:
        InputError: If the file cannot be written.
    """
    data = encode_plan(plan_of(plan))
    if os.fspath(path) == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        write_atomically(path, data)


@checked
def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan file; its claims are not checked here, but by ``verify``.

    Args:
        path: The file; ``-`` is standard input.

    Raises:
        InputError: If it cannot be read, is no plan, is of a newer version, was cut short or edited.
    """
    return decode_plan(plan_bytes(path), name=file_name(path))


def plan_bytes(path: str | os.PathLike[str]) -> bytes:
    """The content of what is named as a plan: a plan file, or the program of a runtime.

    Examples:
        >>> plan_bytes("dgx-a100")
        Traceback (most recent call last):
        coppice.errors.InputError: expected a plan file, found the preset dgx-a100: plan on it first, `coppice plan \
dgx-a100 -o plan.json`.
    """
    if os.fspath(path) in PRESETS and not os.path.exists(path):  # noqa: PTH110 (text may be no path at all)
        raise InputError(
            f"expected a plan file, found the preset {path}: plan on it first, `coppice plan {path} -o plan.json`."
        )
    if os.path.isdir(path):  # noqa: PTH112 (likewise)
        raise InputError(
            f"expected one plan, found the folder {path}: name one of its files, or the size that a set of plans is to "
            "be taken at, where there is such an option."
        )
    return read_bytes(path, what="the plan", hint="check the name", most_bytes=_MOST_BYTES)


def plan_of(source: object) -> Plan:
    """Coerce a plan, a result that holds one, or the name of a plan file to a plan.

    Args:
        source: A :class:`Plan`, whatever has one as its attribute ``plan``, or a path.
    """
    found = getattr(source, "plan", source)
    if isinstance(found, Plan):
        return found
    if isinstance(source, (str, os.PathLike)):
        return read_plan(source)
    raise InputError(
        f"expected a plan, a result with one or a plan file, found {shown(source)}: make one with coppice.plan."
    )


def body_of(source: object) -> Forest | Schedule:
    """As :func:`plan_of`, but return the forest or the schedule, which may also be given itself.

    Args:
        source: A :class:`Forest`, a :class:`Schedule`, or what stands for a plan.
    """
    return source if isinstance(source, (Forest, Schedule)) else plan_of(source).body


def encode_plan(plan: Plan) -> bytes:
    """Encode a plan as the bytes of a plan file."""
    problem, bound = plan.problem, plan.bound
    document = topology_document(problem.topology)
    members: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "provenance": {
            "coppice": plan.version or _own_version(),
            "planner": plan.planner,
            "parameters": dict(sorted(plan.parameters.items())),
            "topology_sha256": topology_from_document(document).sha256,
        },
        "collective": problem.collective.value,
        "root": problem.root,
        "weights": problem.weights,
        "demands": problem.demands,
        "inv_rate": str(plan.inv_rate),
        "bound": None if bound is None else _bound_members(bound),
        "topology": document,
    }
    members |= forest_columns(plan.forest) if plan.forest is not None else {}
    members |= schedule_columns(plan.schedule) if plan.schedule is not None else {}
    encode = msgspec.json.Encoder().encode
    lines = [b'"' + key.encode() + b'": ' + encode(value) for key, value in members.items()]
    return sealed(b"{" + b",\n".join(lines))


def sealed(body: bytes) -> bytes:
    """Close a JSON object with the hash of all bytes before.

    Args:
        body: The object with all other members, not closed.
    """
    return body + _SEAL + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def check_seal(data: bytes, *, name: str) -> None:
    """Refuse a file whose hash does not match its content.

    Raises:
        InputError: If it was edited, cut short or damaged.
    """
    body, _, seal = data.rpartition(_SEAL)
    if seal != hashlib.sha256(body).hexdigest().encode() + b'"}\n':
        raise InputError(
            f"{name} was edited or damaged: its sha256 does not match its content; write the plan again."
        )


def _bound_members(bound: Bound) -> dict[str, Any]:
    members: dict[str, Any] = {
        "inv_rate": str(bound.inv_rate),
        "cut": list(bound.cut),
        "attainable": None if bound.attainable is None else str(bound.attainable),
        "method": bound.method,
        "alternatives": {name: str(rate) for name, rate in bound.alternatives.items()},
    }
    if bound.proof is not None:
        members["proof"] = proof_row(bound.problem.topology, bound.proof)
    if bound.whole_trees is not None:
        members["whole_trees"] = whole_trees_row(bound.problem.topology, bound.whole_trees)
    for name, rows in (("phase_trees", bound.phase_trees), ("fewer_trees", bound.fewer_trees)):
        if rows:
            members[name] = [whole_trees_row(bound.problem.topology, each) for each in rows]
    return members


def decode_plan(data: bytes, *, name: str) -> Plan:
    """Decode a plan from the bytes of a plan file.

    Args:
        data: The bytes.
        name: Name of the file, for messages.
    """
    if FORMAT.encode() not in data:
        raise InputError(
            f"expected a plan in {name}, found {impression(data)}: make one with `coppice plan`."
        )
    header = decode_json(data, _PlanHeader, f"{name} $")
    if header.format != FORMAT:
        raise InputError(
            f'expected format "{FORMAT}" in {name}, found {header.format[:40]!r}: make a plan with `coppice plan`.'
        )
    if header.version > VERSION:
        raise InputError(
            f"{name} has version {header.version}, newer than the {VERSION} read here: upgrade Coppice."
        )
    if header.version != VERSION:
        raise InputError(
            f"expected version {VERSION} in {name}, found {header.version}: write the plan again."
        )
    check_seal(data, name=name)
    document: _PlanDocument = decode_json(data, _PlanDocument, f"{name} $")
    topology = topology_from_document(
        parse_json(bytes(document.topology), file=f"{name} $.topology"), where=f"{name} $.topology"
    )
    if topology.sha256 != document.provenance.topology_sha256:
        raise InputError(
            f"{name} is for another topology: $.provenance.topology_sha256 differs from it; plan again."
        )
    return _plan(document, topology, name)


def _plan(document: _PlanDocument, topology: Topology, name: str) -> Plan:
    demands = document.demands
    problem = Problem(
        topology=topology,
        collective=document.collective,
        root=document.root,
        weights=None if document.weights is None else tuple(document.weights),
        demands=None if demands is None else tuple(tuple(row) for row in demands),
    )
    try:
        check_problem(problem)
    except InputError as error:
        raise InputError(f"{name} poses no problem that can be solved: {error}") from None
    where = f"{name} $"
    forest = schedule = None
    if (
        document.trees is not None
        and document.edges is not None
        and document.transfers is None
        and not document.ordered
    ):
        forest = read_forest(
            problem, document.paths, document.trees, document.edges, where, document.symmetry
        )
    elif (
        document.slot_weight != ABSENT
        and document.chunks is not None
        and document.transfers is not None
        and document.trees is None
        and document.symmetry is None
    ):
        schedule = read_schedule(
            problem,
            document.paths,
            document.slot_weight,
            document.chunks,
            document.transfers,
            where,
            ordered=document.ordered,
        )
    else:
        raise InputError(
            f"expected trees and edges, or slot_weight, chunks and transfers in {name}: write the plan again."
        )
    provenance = document.provenance
    return Plan(
        problem=problem,
        inv_rate=read_fraction(document.inv_rate, f"{where}.inv_rate"),
        forest=forest,
        schedule=schedule,
        bound=_bound(problem, document.bound, where),
        planner=provenance.planner,
        parameters=provenance.parameters,
        version=provenance.coppice,
    )


def _bound(problem: Problem, row: _BoundRow | None, where: str) -> Bound | None:
    if row is None:
        return None
    nodes = problem.topology.num_nodes
    for place, node in enumerate(row.cut):
        if not 0 <= node < nodes:
            raise InputError(
                f"expected a node below {nodes} at {where}.bound.cut[{place}], found {node}: plan again."
            )
    return Bound(
        problem=problem,
        inv_rate=read_fraction(row.inv_rate, f"{where}.bound.inv_rate"),
        cut=tuple(row.cut),
        attainable=None
        if row.attainable is None
        else read_fraction(row.attainable, f"{where}.bound.attainable"),
        method=row.method,
        alternatives={
            key: read_fraction(text, f"{where}.bound.alternatives") for key, text in row.alternatives.items()
        },
        proof=None if row.proof is None else read_proof(problem.topology, row.proof, f"{where}.bound.proof"),
        whole_trees=None
        if row.whole_trees is None
        else read_whole_trees(problem.topology, row.whole_trees, f"{where}.bound.whole_trees"),
        phase_trees=_whole_trees(problem, row.phase_trees, f"{where}.bound.phase_trees"),
        fewer_trees=_whole_trees(problem, row.fewer_trees, f"{where}.bound.fewer_trees"),
    )


def _whole_trees(problem: Problem, rows: list[WholeTreesRow], where: str) -> tuple[WholeTrees, ...]:
    return tuple(
        read_whole_trees(problem.topology, row, f"{where}[{place}]") for place, row in enumerate(rows)
    )


def _own_version() -> str:
    from coppice.version import __version__

    return __version__
