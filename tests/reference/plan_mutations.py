"""Plan files with something changed: ids, rows, weights, paths, steps, claims, cuts, witnesses, problems, networks."""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import msgspec


def sealed(plan: dict[str, Any]) -> bytes:
    """The bytes of a file, with the checksum that belongs to them."""
    encode = msgspec.json.Encoder().encode
    lines = [b'"' + key.encode() + b'": ' + encode(value) for key, value in plan.items() if key != "sha256"]
    body = b"{" + b",\n".join(lines)
    return body + b',\n"sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def mutant(
    plan: dict[str, Any], rng: random.Random, others: Sequence[dict[str, Any]] = ()
) -> tuple[str, dict[str, Any]]:
    """A changed copy, mostly by one change, and what was changed.

    Args:
        plan: A plan file as JSON.
        rng: What is changed.
        others: Further plans for the same problem, whose bound, or parts of it, this one may get.
    """
    changed = copy.deepcopy(plan)
    names = []
    if others and rng.random() < 0.1:
        other = copy.deepcopy(rng.choice(others)["bound"])
        if changed["bound"] is None or other is None:
            changed["bound"] = other
        else:
            changed["bound"] |= {part: value for part, value in sorted(other.items()) if rng.random() < 0.5}
        return "bound of another", changed
    for _ in range(1 if rng.random() < 0.8 else 2):
        change = rng.choice(_CHANGES)
        if change(changed, rng):
            names.append(change.__name__.strip("_"))
    return " and ".join(names), changed


def _number(value: int, rng: random.Random, most: int) -> int:
    return rng.choice([value + 1, value - 1, 0, 1, 2 * value, rng.randint(0, max(most, 1)), -1])


def _fraction(text: str, rng: random.Random) -> str:
    value = Fraction(text)
    factor = rng.choice([Fraction(1, 2), Fraction(2), Fraction(99, 100), Fraction(101, 100), Fraction(0)])
    return str(value * factor if rng.random() < 0.8 else value + Fraction(1, rng.randint(1, 9)))


def _table(plan: dict[str, Any], rng: random.Random) -> dict[str, list[Any]] | None:
    tables = [plan[name] for name in ("trees", "edges", "chunks", "transfers") if name in plan]
    tables = [table for table in tables if next(iter(table.values()))]
    return rng.choice(tables) if tables else None


def _cell(plan: dict[str, Any], rng: random.Random) -> bool:
    """A cell of a column."""
    table = _table(plan, rng)
    if table is None:
        return False
    column = rng.choice(list(table.values()))
    row = rng.randrange(len(column))
    if isinstance(column[row], int):
        column[row] = _number(column[row], rng, max(value for value in column if isinstance(value, int)))
    elif isinstance(column[row], str):
        column[row] = "reduce" if column[row] == "broadcast" else "broadcast"
    return True


def _swap(plan: dict[str, Any], rng: random.Random) -> bool:
    """Two cells of a column, or two rows."""
    table = _table(plan, rng)
    if table is None:
        return False
    columns = list(table.values()) if rng.random() < 0.5 else [rng.choice(list(table.values()))]
    a, b = (rng.randrange(len(columns[0])) for _ in range(2))
    for column in columns:
        if max(a, b) < len(column):
            column[a], column[b] = column[b], column[a]
    return True


def _row(plan: dict[str, Any], rng: random.Random) -> bool:
    """A row dropped, doubled or moved."""
    table = _table(plan, rng)
    if table is None:
        return False
    count = len(next(iter(table.values())))
    row, place, drop = rng.randrange(count), rng.randrange(count), rng.random()
    for column in table.values():
        if row < len(column):
            value = column.pop(row) if drop < 0.7 else column[row]
            if drop >= 0.35:
                column.insert(place, value)
    return True


def _path(plan: dict[str, Any], rng: random.Random) -> bool:
    """A node of a path, or a whole one."""
    if not plan["paths"]:
        return False
    path = rng.choice(plan["paths"])
    kind = rng.randrange(4)
    if kind == 0 and path:
        path[rng.randrange(len(path))] = rng.randrange(len(plan["topology"]["nodes"]))
    elif kind == 1 and path:
        path.pop(rng.randrange(len(path)))
    elif kind == 2:
        path.insert(rng.randint(0, len(path)), rng.randrange(len(plan["topology"]["nodes"])))
    else:
        path[:] = rng.choice(plan["paths"])
    return True


def _claim(plan: dict[str, Any], rng: random.Random) -> bool:
    """The time that the plan says it takes."""
    plan["inv_rate"] = _fraction(plan["inv_rate"], rng)
    return True


def _bound(plan: dict[str, Any], rng: random.Random) -> bool:
    """A figure of the bound, its cut, or a witness left out."""
    bound = plan["bound"]
    if bound is None:
        return False
    kind = rng.randrange(6)
    if kind == 0:
        bound["inv_rate"] = plan["inv_rate"] if rng.random() < 0.5 else _fraction(bound["inv_rate"], rng)
    elif kind == 1:
        node = rng.randrange(len(plan["topology"]["nodes"]))
        bound["cut"] = sorted(set(bound["cut"]) ^ {node})
    elif kind == 2:
        bound["cut"] = []
    elif kind == 3 and bound.get("attainable"):
        bound["attainable"] = _fraction(bound["attainable"], rng)
    elif kind == 4 and bound["alternatives"]:
        name = rng.choice(list(bound["alternatives"]))
        bound["alternatives"][name] = _fraction(bound["alternatives"][name], rng)
    else:
        for name in ("proof", "whole_trees", "phase_trees", "fewer_trees"):
            if rng.random() < 0.5:
                bound.pop(name, None)
    return True


def _witness(plan: dict[str, Any], rng: random.Random) -> bool:
    """A number or a set of a witness, with the bound raised to what it says or not."""
    bound = plan["bound"] or {}
    proofs = [bound[name] for name in ("proof", "whole_trees") if bound.get(name)]
    proofs += [*bound.get("phase_trees", []), *bound.get("fewer_trees", [])]
    if not proofs:
        return False
    proof = rng.choice(proofs)
    if rng.random() < 0.3:
        proof["inv_rate"] = _fraction(proof["inv_rate"], rng)
        if rng.random() < 0.5:
            bound["inv_rate"] = proof["inv_rate"]
        return True
    if "trees" in proof and rng.random() < 0.3:
        proof["trees"] = _number(proof["trees"], rng, 4)
        return True
    parts = [proof, *proof.get("cases", [])]
    part = rng.choice(parts)
    columns = [part[name] for name in ("cuts", "potentials", "lengths") if part.get(name)]
    if not columns:
        return False
    table = rng.choice(columns)
    column = rng.choice([each for each in table.values() if each] or [[]])
    if not column:
        return False
    row = rng.randrange(len(column))
    if isinstance(column[row], list):
        column[row] = sorted(set(column[row]) ^ {rng.randrange(len(plan["topology"]["nodes"]))})
    elif isinstance(column[row], str):
        column[row] = _fraction(column[row], rng)
    else:
        column[row] = _number(column[row], rng, max(column))
    return True


def _problem(plan: dict[str, Any], rng: random.Random) -> bool:
    """The collective, its root, weights or demands."""
    ranks = sum(node.get("kind", "gpu") == "gpu" for node in plan["topology"]["nodes"])
    kind = rng.randrange(4)
    if kind == 0:
        pairs = {
            "all_gather": "reduce_scatter",
            "broadcast": "reduce",
            "gather": "scatter",
            "all_reduce": "all_gather",
        }
        pairs |= {after: before for before, after in pairs.items() if after not in pairs}
        plan["collective"] = pairs.get(plan["collective"], "all_gather")
    elif kind == 1 and plan["root"] is not None:
        plan["root"] = rng.randrange(ranks)
    elif kind == 2 and plan["collective"] in ("all_gather", "reduce_scatter"):
        weights = plan["weights"] or [1] * ranks
        weights[rng.randrange(ranks)] = rng.randint(0, 3)
        plan["weights"] = weights
    elif plan["collective"] == "all_to_all":
        demands = plan["demands"] or [[1] * ranks for _ in range(ranks)]
        demands[rng.randrange(ranks)][rng.randrange(ranks)] = rng.randint(0, 3)
        plan["demands"] = demands
    else:
        return False
    return True


def _sizes(plan: dict[str, Any], rng: random.Random) -> bool:
    """The weight of a slot, or of a tree and all its like."""
    if "slot_weight" in plan:
        slot = rng.randrange(len(plan["slot_weight"]))
        plan["slot_weight"][slot] = _number(plan["slot_weight"][slot], rng, 3)
        return True
    factor = rng.randint(2, 3)
    phase = rng.choice(["broadcast", "reduce"])
    weights = plan["trees"]["weight"]
    weights[:] = [
        w * factor if p == phase else w for w, p in zip(weights, plan["trees"]["phase"], strict=False)
    ]
    return True


def _order(plan: dict[str, Any], rng: random.Random) -> bool:
    """Steps, and what rows wait for; paths through ranks; the claim of order."""
    if "transfers" not in plan or not plan["transfers"]["src"]:
        return False
    transfers, kind = plan["transfers"], rng.randrange(4)
    rows = len(transfers["src"])
    if kind == 0:
        transfers["step"] = [0] * rows if rng.random() < 0.5 else list(range(rows))
    elif kind == 1:
        after = transfers.setdefault("after", [[] for _ in range(rows)])
        if len(after) == rows:
            after[rng.randrange(rows)] = [rng.randrange(rows)]
    elif kind == 2:
        plan["provenance"]["parameters"]["relay_gpus"] = rng.random() < 0.5
    else:
        plan["ordered"] = True
    return True


def _symmetry(plan: dict[str, Any], rng: random.Random) -> bool:
    """A generator, or templates without a group."""
    if "symmetry" not in plan:
        return False
    if rng.random() < 0.3:
        del plan["symmetry"]
        return True
    generator = rng.choice(plan["symmetry"]["generators"])
    a, b = (rng.randrange(len(generator)) for _ in range(2))
    generator[a], generator[b] = generator[b], generator[a]
    return True


def _network(plan: dict[str, Any], rng: random.Random) -> bool:
    """A link's rate or direction, a link left out, what a switch can do."""
    from coppice.topology.readers.document import topology_from_document

    topology = plan["topology"]
    link, kind = rng.choice(topology["links"]), rng.randrange(5)
    if kind == 0:
        link["gb_per_s"] = str(Fraction(str(link["gb_per_s"])) * rng.choice([Fraction(1, 2), Fraction(2)]))
    elif kind == 1:
        link["duplex"] = not link.get("duplex", True)
    elif kind == 2:
        topology["links"].remove(link)
    else:
        node = rng.choice(topology["nodes"])
        if node.get("kind", "gpu") == "gpu":
            return False
        flag = rng.choice(["multicast", "aggregate"])
        node[flag] = not node.get(flag, False)
    try:
        plan["provenance"]["topology_sha256"] = topology_from_document(topology, where="$").sha256
    except Exception:  # noqa: BLE001 (a topology that cannot be is refused in any case)
        return False
    return True


_CHANGES: list[Callable[[dict[str, Any], random.Random], bool]] = [
    _cell, _cell, _cell, _swap, _row, _path, _claim, _bound, _bound, _witness, _witness, _problem, _sizes, _order,
    _symmetry, _network,
]  # fmt: skip
