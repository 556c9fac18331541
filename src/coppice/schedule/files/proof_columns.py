"""Convert proofs to the columns of a plan file and back: cuts, link lengths, bounds on integral trees."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import msgspec

from coppice.bounds.result import CutFamily, LinkLengths, LinkRange, NodePotential, WeightedCut, WholeTrees
from coppice.errors import InputError
from coppice.schedule.files.columns import (
    Count,
    Id,
    SymmetryColumns,
    read_fraction,
    read_symmetry,
    symmetry_columns,
)
from coppice.topology.model import Topology


class CutColumns(msgspec.Struct, forbid_unknown_fields=True):
    """``$.bound.proof.cuts``: a row per cut."""

    nodes: list[list[Id]]
    broadcast: list[str]
    reduce: list[str]


class PotentialColumns(msgspec.Struct, forbid_unknown_fields=True):
    """``$.bound.proof.potentials``: a row per relay node with a flow-conservation weight."""

    node: list[Id]
    broadcast: list[str]
    reduce: list[str]


class LengthColumns(msgspec.Struct, forbid_unknown_fields=True):
    """``$.bound.proof.lengths``: a row per link of positive length."""

    src: list[Id]
    dst: list[Id]
    length: list[Count]


class ProofRow(msgspec.Struct, forbid_unknown_fields=True):
    """``$.bound.proof``: cuts with potentials, or lengths."""

    inv_rate: str
    cuts: CutColumns | None = None
    potentials: PotentialColumns | None = None
    symmetry: SymmetryColumns | None = None
    lengths: LengthColumns | None = None


class CaseRow(msgspec.Struct, forbid_unknown_fields=True):
    """A case of a proof about integral trees: cuts, or a link to branch on."""

    cuts: CutColumns | None = None
    potentials: PotentialColumns | None = None
    src: Id | None = None
    dst: Id | None = None
    most: Count | None = None
    below: Id | None = None
    above: Id | None = None


class WholeTreesRow(msgspec.Struct, forbid_unknown_fields=True):
    """``$.bound.whole_trees``: a bound on forests with a given number of trees."""

    trees: Count
    inv_rate: str
    cases: list[CaseRow]


def proof_row(topology: Topology, proof: CutFamily | LinkLengths) -> dict[str, Any]:
    """Encode a proof as JSON values."""
    if isinstance(proof, LinkLengths):
        src, dst = topology.src.tolist(), topology.dst.tolist()
        rows = [e for e, length in enumerate(proof.length) if length]
        return {
            "inv_rate": str(proof.inv_rate),
            "lengths": {
                "src": [src[e] for e in rows],
                "dst": [dst[e] for e in rows],
                "length": [proof.length[e] for e in rows],
            },
        }
    symmetry = {} if proof.symmetry is None else {"symmetry": symmetry_columns(proof.symmetry)}
    return {"inv_rate": str(proof.inv_rate)} | _cut_columns(proof) | symmetry


def whole_trees_row(topology: Topology, bound: WholeTrees) -> dict[str, Any]:
    """Encode a bound on integral trees as JSON values."""
    cases = [
        _cut_columns(case)
        if isinstance(case, CutFamily)
        else {
            "src": int(topology.src[case.link]),
            "dst": int(topology.dst[case.link]),
            "most": case.most,
            "below": case.below,
            "above": case.above,
        }
        for case in bound.cases
    ]
    return {"trees": bound.trees, "inv_rate": str(bound.inv_rate), "cases": cases}


def read_proof(topology: Topology, row: ProofRow, where: str) -> CutFamily | LinkLengths:
    """Decode the proof of a file; it is not checked here."""
    inv_rate = read_fraction(row.inv_rate, f"{where}.inv_rate")
    if row.lengths is not None and row.cuts is None and row.potentials is None and row.symmetry is None:
        return LinkLengths(inv_rate=inv_rate, length=_lengths(topology, row.lengths, f"{where}.lengths"))
    if row.cuts is None or row.lengths is not None:
        raise InputError(f"expected either cuts or lengths at {where}, found neither or both: plan again.")
    symmetry = None if row.symmetry is None else read_symmetry(topology, row.symmetry, where, free=False)
    return CutFamily(
        inv_rate=inv_rate,
        cuts=_cuts(topology, row.cuts, f"{where}.cuts"),
        potentials=_potentials(topology, row.potentials, f"{where}.potentials"),
        symmetry=symmetry,
    )


def read_whole_trees(topology: Topology, row: WholeTreesRow, where: str) -> WholeTrees:
    """Decode the bound on integral trees of a file; it is not checked here."""
    inv_rate = read_fraction(row.inv_rate, f"{where}.inv_rate")
    links = _links(topology)
    cases: list[CutFamily | LinkRange] = []
    for place, case in enumerate(row.cases):
        at = f"{where}.cases[{place}]"
        if case.cuts is not None:
            cuts = _cuts(topology, case.cuts, f"{at}.cuts")
            potentials = _potentials(topology, case.potentials, f"{at}.potentials")
            cases.append(CutFamily(inv_rate=inv_rate, cuts=cuts, potentials=potentials))
            continue
        ends, most, below, above = (case.src, case.dst), case.most, case.below, case.above
        if ends not in links or most is None or below is None or above is None:
            raise InputError(
                f"expected cuts, or src, dst, most, below and above of a link, at {at}: plan again."
            )
        cases.append(LinkRange(link=links[ends], most=most, below=below, above=above))
    return WholeTrees(trees=row.trees, inv_rate=inv_rate, cases=tuple(cases))


def _cut_columns(family: CutFamily) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "cuts": {"nodes": [list(cut.nodes) for cut in family.cuts], **_weight_columns(family.cuts)}
    }
    if family.potentials:
        columns["potentials"] = {
            "node": [potential.node for potential in family.potentials],
            **_weight_columns(family.potentials),
        }
    return columns


def _weight_columns(rows: Sequence[WeightedCut] | Sequence[NodePotential]) -> dict[str, list[str]]:
    return {"broadcast": [str(row.broadcast) for row in rows], "reduce": [str(row.reduce) for row in rows]}


def _cuts(topology: Topology, columns: CutColumns, where: str) -> tuple[WeightedCut, ...]:
    weights = _weights(columns, len(columns.nodes), where)
    for place, nodes in enumerate(columns.nodes):
        _check_nodes(topology, nodes, f"{where}.nodes[{place}]")
    return tuple(
        WeightedCut(nodes=tuple(nodes), broadcast=broadcast, reduce=reduce)
        for nodes, (broadcast, reduce) in zip(columns.nodes, weights, strict=True)
    )


def _potentials(
    topology: Topology, columns: PotentialColumns | None, where: str
) -> tuple[NodePotential, ...]:
    if columns is None:
        return ()
    weights = _weights(columns, len(columns.node), where)
    _check_nodes(topology, columns.node, f"{where}.node")
    return tuple(
        NodePotential(node=node, broadcast=broadcast, reduce=reduce)
        for node, (broadcast, reduce) in zip(columns.node, weights, strict=True)
    )


def _weights(
    columns: CutColumns | PotentialColumns, rows: int, where: str
) -> list[tuple[Fraction, Fraction]]:
    """Both weights of each row."""
    if len(columns.broadcast) != rows or len(columns.reduce) != rows:
        raise InputError(
            f"expected {rows} rows in {where}.broadcast and {where}.reduce, found others: plan again."
        )
    return [
        (read_fraction(broadcast, f"{where}.broadcast"), read_fraction(reduce, f"{where}.reduce"))
        for broadcast, reduce in zip(columns.broadcast, columns.reduce, strict=True)
    ]


def _check_nodes(topology: Topology, nodes: Sequence[int], where: str) -> None:
    if max(nodes, default=0) >= topology.num_nodes:
        raise InputError(
            f"expected nodes below {topology.num_nodes} at {where}, found {max(nodes)}: plan again."
        )


def _lengths(topology: Topology, columns: LengthColumns, where: str) -> tuple[int, ...]:
    if not len(columns.src) == len(columns.dst) == len(columns.length):
        raise InputError(f"expected columns of equal length at {where}: plan again.")
    links, length = _links(topology), [0] * topology.num_links
    for place, (a, b, value) in enumerate(zip(columns.src, columns.dst, columns.length, strict=True)):
        if (a, b) not in links:
            raise InputError(
                f"expected a link at {where}[{place}], found none from node {a} to node {b}: plan again."
            )
        length[links[a, b]] = value
    return tuple(length)


def _links(topology: Topology) -> dict[tuple[int | None, int | None], int]:
    """The id of each link by its ends; parallel links are one."""
    return {ends: e for e, ends in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))}
