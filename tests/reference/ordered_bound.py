"""Least congestion of sums along one order, whatever stands for a part: a linear program that knows no planner.

Every block crosses each node of the order once, from the ranks of one part to those of the other: into the part of the
rank that sums it, where it is one of the node's, and either way otherwise. Whoever sends and gets, this is a flow from
one set of GPUs to another. In an all-reduce every link carries as much again the other way.
"""

from __future__ import annotations

from collections.abc import Iterator

import highspy
import numpy as np

from coppice.schedule.verification.sums import Addends
from coppice.topology.model import NodeKind, Topology


def leaves(node: Addends) -> list[int]:
    """The ranks of a node."""
    return [node] if isinstance(node, int) else leaves(node[0]) + leaves(node[1])


def additions(node: Addends) -> Iterator[tuple[list[int], list[int]]]:
    """The two parts of every addition."""
    if not isinstance(node, int):
        yield leaves(node[0]), leaves(node[1])
        for part in node:
            yield from additions(part)


def most_algbw(topology: Topology, order: Addends, *, relay_gpus: bool) -> float:
    """No all-reduce in this order has more algorithm bandwidth, in GB/s; nan where the order has no ways.

    Args:
        relay_gpus: GPUs may pass on what is not theirs.
    """
    ranks, links, nodes = topology.num_ranks, topology.num_links, topology.num_nodes
    src, dst = topology.src.tolist(), topology.dst.tolist()
    number = topology.link_index
    back = [number[b, a] for a, b in zip(src, dst, strict=True)]
    gpu = (topology.kind == NodeKind.GPU).tolist()
    sides = []
    for one, other in additions(order):
        sides += [(one, other), (other, one)]
    columns = len(sides) * links + len(sides) + 1
    lower, upper = np.zeros(columns), np.full(columns, highspy.kHighsInf)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    rows: list[tuple[float, float, dict[int, float]]] = []
    for at, (sending, getting) in enumerate(sides):
        begins, ends = ({int(topology.rank_nodes[r]) for r in part} for part in (sending, getting))
        lower[len(sides) * links + at] = len(getting)
        kept: list[dict[int, float]] = [{} for _ in range(nodes)]
        into: dict[int, float] = {len(sides) * links + at: -1.0}
        for link, (a, b) in enumerate(zip(src, dst, strict=True)):
            column = at * links + link
            relays = (gpu[a] and a not in begins) or (gpu[b] and b not in ends)
            if relays and not relay_gpus:
                upper[column] = 0.0
            kept[a][column], kept[b][column] = 1.0, -1.0
            if (b in ends) != (a in ends):
                into[column] = 1.0 if b in ends else -1.0
        rows.append((0.0, 0.0, into))
        rows += [(0.0, 0.0, kept[node]) for node in range(nodes) if node not in begins and node not in ends]
    for at in range(0, len(sides), 2):
        first = len(sides) * links + at
        rows.append((ranks, ranks, {first: 1.0, first + 1: 1.0}))
    for link in range(links):
        loads = {columns - 1: -float(topology.gb_per_s(link))}
        for at in range(len(sides)):
            for each in (link, back[link]):
                loads[at * links + each] = 1.0
        rows.append((-highspy.kHighsInf, 0.0, loads))
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = columns, len(rows)
    cost = np.zeros(columns)
    cost[-1] = 1.0
    model.col_cost_, model.col_lower_, model.col_upper_ = cost, lower, upper
    model.row_lower_ = np.array([row[0] for row in rows])
    model.row_upper_ = np.array([row[1] for row in rows])
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.concatenate([[0], np.cumsum([len(row[2]) for row in rows])]).astype(np.int32)
    model.a_matrix_.index_ = np.concatenate([list(row[2]) for row in rows]).astype(np.int32)
    model.a_matrix_.value_ = np.concatenate([list(row[2].values()) for row in rows]).astype(np.float64)
    solver.passModel(model)
    solver.setOptionValue("solver", "ipm")
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return float("nan")
    return float(ranks / solver.getInfo().objective_function_value)
