"""Convert forests and schedules to the columns of a plan file and back, checking every value.

Each column is decoded on its own, straight into an array of its type, so that a file of some million edges
never stands in memory as Python objects all at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from itertools import chain, pairwise
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.decoding import decodable, json_fault
from coppice.errors import CheckError, InputError
from coppice.rows import offsets
from coppice.schedule.columns import forest_defects, schedule_defects
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.schedule import Schedule
from coppice.topology.model import Topology
from coppice.topology.symmetry import Symmetry, symmetry_of

Id = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
IdOrNone = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
Bit = Annotated[int, msgspec.Meta(ge=0, le=1)]

ABSENT = msgspec.Raw()
"""Stands where a file has no such member."""

_T = TypeVar("_T")
_FRACTION = re.compile(r"[0-9]{1,2000}(/[0-9]{1,2000})?")
_PHASE_NAMES = {Phase.BROADCAST: "broadcast", Phase.REDUCE: "reduce"}
_PHASES = {name: phase for phase, name in _PHASE_NAMES.items()}


class TreeColumns(msgspec.Struct, forbid_unknown_fields=True):
    """``$.trees``: a row per tree."""

    root: msgspec.Raw
    weight: msgspec.Raw
    phase: msgspec.Raw


class SymmetryColumns(msgspec.Struct, forbid_unknown_fields=True):
    """``$.symmetry``: the group under which every tree stands for its images."""

    orders: list[int]
    generators: list[list[int]]


class EdgeColumns(msgspec.Struct, forbid_unknown_fields=True):
    """``$.edges``: a row per edge, ordered by tree."""

    tree: msgspec.Raw
    src: msgspec.Raw
    dst: msgspec.Raw
    path: msgspec.Raw


class ChunkColumns(msgspec.Struct, forbid_unknown_fields=True):
    """``$.chunks``: a row per chunk, ordered by slot."""

    slot: msgspec.Raw
    share: msgspec.Raw


class TransferColumns(msgspec.Struct, forbid_unknown_fields=True):
    """``$.transfers``: a row per transfer, in an order in which they can happen."""

    chunk: msgspec.Raw
    src: msgspec.Raw
    dst: msgspec.Raw
    op: msgspec.Raw
    path: msgspec.Raw
    step: msgspec.Raw
    after: msgspec.Raw = ABSENT


def decode_json(data: bytes | msgspec.Raw, kind: Callable[..., _T] | Any, where: str) -> Any:
    """Decode JSON as ``kind``.

    Args:
        where: File and path, such as ``plan.json $.edges.src``.
    """
    try:
        return msgspec.json.decode(data, type=decodable(kind))
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        raise InputError(
            f"{where}{place.rstrip('`')} is not as a plan has it ({what}): write the plan again."
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{where} is cut short or damaged ({json_fault(error, bytes(data))}): write the plan again."
        ) from None
    except RecursionError:
        raise InputError(f"{where} is nested beyond reason: write the plan again.") from None


def read_fraction(text: str, where: str) -> Fraction:
    """Parse a fraction written as text."""
    try:
        if _FRACTION.fullmatch(text):
            return Fraction(text)
    except ZeroDivisionError:
        pass
    raise InputError(
        f'expected a fraction such as "3/25" at {where}, found {text[:40]!r}: write the plan again.'
    )


def forest_columns(forest: Forest) -> dict[str, Any]:
    """The members ``paths``, ``trees`` and ``edges`` of a plan file, and ``symmetry`` where trees are templates."""
    symmetry = {} if forest.symmetry is None else {"symmetry": symmetry_columns(forest.symmetry)}
    return symmetry | {
        "paths": _path_lists(forest.path_start, forest.path_nodes),
        "trees": {
            "root": forest.tree_root.tolist(),
            "weight": forest.tree_weight.tolist(),
            "phase": [_PHASE_NAMES[Phase(phase)] for phase in forest.tree_phase.tolist()],
        },
        "edges": {
            "tree": forest.edge_tree.tolist(),
            "src": forest.edge_src.tolist(),
            "dst": forest.edge_dst.tolist(),
            "path": forest.edge_path.tolist(),
        },
    }


def symmetry_columns(symmetry: Symmetry) -> dict[str, Any]:
    """The member ``symmetry``: orders of the cyclic factors and the permutation of each generator."""
    return {"orders": list(symmetry.orders), "generators": symmetry.generators.tolist()}


def read_symmetry(topology: Topology, columns: SymmetryColumns, where: str, *, free: bool = True) -> Symmetry:
    """Read the group of a file and check that it preserves the topology, and acts freely on ranks where it has to."""
    try:
        return symmetry_of(topology, columns.orders, columns.generators, free=free)
    except CheckError as error:
        raise InputError(f"expected a symmetry of the topology at {where}.symmetry: {error}") from None


def schedule_columns(schedule: Schedule) -> dict[str, Any]:
    """The members ``paths``, ``slot_weight``, ``chunks`` and ``transfers`` of a plan file (and ``ordered``)."""
    transfers: dict[str, Any] = {
        "chunk": schedule.chunk.tolist(),
        "src": schedule.src.tolist(),
        "dst": schedule.dst.tolist(),
        "op": schedule.op.tolist(),
        "path": schedule.path.tolist(),
        "step": schedule.step.tolist(),
    }
    if len(schedule.after):
        transfers["after"] = _path_lists(schedule.after_start, schedule.after)
    ordered = {"ordered": True} if schedule.ordered else {}
    return ordered | {
        "paths": _path_lists(schedule.path_start, schedule.path_nodes),
        "slot_weight": schedule.slot_weight.tolist(),
        "chunks": {"slot": schedule.chunk_slot.tolist(), "share": schedule.chunk_share.tolist()},
        "transfers": transfers,
    }


def read_forest(
    problem: Problem,
    paths: msgspec.Raw,
    trees: TreeColumns,
    edges: EdgeColumns,
    where: str,
    symmetry: SymmetryColumns | None = None,
) -> Forest:
    """The forest that a file holds."""
    root = _column(trees.root, Id, np.int32, f"{where}.trees.root")
    names = decode_json(trees.phase, list[str], f"{where}.trees.phase")
    phases = [_PHASES.get(name, -1) for name in names]
    if -1 in phases:
        row = phases.index(-1)
        place = f"{where}.trees.phase[{row}]"
        raise InputError(f'expected "broadcast" or "reduce" at {place}, found {names[row][:40]!r}: mend it.')
    at = f"{where}.edges"
    edge_tree = _column(edges.tree, Id, np.int32, f"{at}.tree")
    disorder = np.flatnonzero(np.diff(edge_tree) < 0)
    if len(disorder):
        raise InputError(
            f"expected ascending tree numbers, found a smaller one at {at}.tree[{disorder[0] + 1}]: sort it."
        )
    if len(edge_tree) and edge_tree[-1] >= len(root):
        raise InputError(
            f"expected tree numbers below {len(root)}, found {edge_tree[-1]} in {at}.tree: mend it."
        )
    path_start, path_nodes = _read_lists(paths, f"{where}.paths")
    forest = Forest(
        topology=problem.topology,
        collective=problem.collective,
        tree_root=root,
        tree_weight=_column(trees.weight, Positive, np.int64, f"{where}.trees.weight"),
        tree_phase=np.array(phases, dtype=np.int8),
        tree_start=np.searchsorted(edge_tree, np.arange(len(root) + 1)).astype(np.int64),
        edge_src=_column(edges.src, Id, np.int32, f"{at}.src"),
        edge_dst=_column(edges.dst, Id, np.int32, f"{at}.dst"),
        edge_path=_column(edges.path, Id, np.int32, f"{at}.path"),
        path_start=path_start,
        path_nodes=path_nodes,
        symmetry=None if symmetry is None else read_symmetry(problem.topology, symmetry, where),
    )
    if len(forest.edge_src) != len(edge_tree):
        raise InputError(
            f"expected {len(edge_tree)} rows in {at}.src, found {len(forest.edge_src)}: mend it."
        )
    _refuse(forest_defects(forest), where)
    return forest


def read_schedule(
    problem: Problem,
    paths: msgspec.Raw,
    slot_weight: msgspec.Raw,
    chunks: ChunkColumns,
    transfers: TransferColumns,
    where: str,
    *,
    ordered: bool = False,
) -> Schedule:
    """The schedule that a file holds."""
    path_start, path_nodes = _read_lists(paths, f"{where}.paths")
    at = f"{where}.transfers"
    src = _column(transfers.src, Id, np.int32, f"{at}.src")
    if transfers.after == ABSENT:
        after_start = np.zeros(len(src) + 1, dtype=np.int64)
        after = np.zeros(0, dtype=np.int32)
    else:
        after_start, after = _read_lists(transfers.after, f"{at}.after")
    schedule = Schedule(
        topology=problem.topology,
        collective=problem.collective,
        root=-1 if problem.root is None else problem.root,
        slot_weight=_column(slot_weight, Count, np.int64, f"{where}.slot_weight"),
        chunk_slot=_column(chunks.slot, Id, np.int32, f"{where}.chunks.slot"),
        chunk_share=_column(chunks.share, Positive, np.int64, f"{where}.chunks.share"),
        src=src,
        dst=_column(transfers.dst, Id, np.int32, f"{at}.dst"),
        chunk=_column(transfers.chunk, Id, np.int32, f"{at}.chunk"),
        op=_column(transfers.op, Bit, np.int8, f"{at}.op"),
        path=_column(transfers.path, IdOrNone, np.int32, f"{at}.path"),
        step=_column(transfers.step, IdOrNone, np.int32, f"{at}.step"),
        after_start=after_start,
        after=after,
        path_start=path_start,
        path_nodes=path_nodes,
        ordered=ordered,
    )
    _refuse(schedule_defects(schedule), where)
    return schedule


def _column(data: msgspec.Raw, kind: Any, dtype: Any, where: str) -> NDArray[Any]:
    return np.array(decode_json(data, list[kind], where), dtype=dtype)


def _path_lists(start: NDArray[np.integer], values: NDArray[np.integer]) -> list[list[int]]:
    flat = values.tolist()
    return [flat[low:high] for low, high in pairwise(start.tolist())]


def _read_lists(data: msgspec.Raw, where: str) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    rows = decode_json(data, list[list[Id]], where)
    start = offsets(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)))
    return start, np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(start[-1]))


def _refuse(defects: list[str], where: str) -> None:
    if defects:
        raise InputError(
            f"{where} is not a well-formed plan: {defects[0].rstrip('.')}; write the plan again."
        )
