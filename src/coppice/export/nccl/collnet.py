"""Export inter-node trees for Coppice's network plugin of NCCL: the file named by ``COPPICE_COLLNET_FOREST``.

NCCL hands what remains between the nodes of a rail to the plugin: node i of the communicator takes the place of rank i
of the plan. The plugin reduces along a tree to its root and broadcasts back along the same tree, each tree its share of
the data; all-gather and reduce-scatter go along the trees of a block's own node. The trees are those that broadcast in
the plan, those that reduce, turned, where it has no others; equal ones are merged.
"""

from __future__ import annotations

from collections import Counter
from math import gcd

from coppice.errors import CheckError, InputError
from coppice.export.formats import Exported, NcclCollnetOptions
from coppice.schedule.forest import Forest, Phase, expanded
from coppice.schedule.plan import Plan
from coppice.text import plural

FOREST_VARIABLE = "COPPICE_COLLNET_FOREST"
"""Variable that names the file."""

MOST_TREES = 1024
"""Trees that the plugin takes."""

_MOST_SHARE = 2**32

Parents = tuple[int, ...]


def export_nccl_collnet(plan: Plan, _: NcclCollnetOptions) -> Exported:
    """Export the inter-node trees of a plan for the network plugin.

    Args:
        plan: A forest on a topology with one rank a node: of all nodes, for a rail.
    """
    trees, turned = collnet_trees(plan)
    nodes = plan.topology.num_ranks
    depth = max(_depth(parents) for parents in trees)
    lines = ["coppice-collnet 1", f"nodes {nodes}"]
    lines += [f"tree {share} {' '.join(map(str, parents))}" for parents, share in trees.items()]
    notes = [
        f"{plural(len(trees), 'tree')} for {plural(nodes, 'node')}, up to {plural(depth, 'step')} deep",
        "node i of the communicator takes the place of rank i of the plan; all nodes need the same file",
        f"use: NCCL_NET_PLUGIN=coppice (`coppice tune plugin build net`) NCCL_COLLNET_ENABLE=1 {FOREST_VARIABLE}=...",
    ]
    if turned:
        notes.insert(
            1, "the plan reduces along other trees than it broadcasts: the plugin takes the latter both ways"
        )
    return Exported(text="\n".join(lines) + "\n", notes=tuple(notes), suffix=".forest")


def collnet_trees(plan: Plan) -> tuple[dict[Parents, int], bool]:
    """Parents of each distinct tree (-1 for the root) with its share, and whether reduction uses other trees.

    Args:
        plan: A forest with one rank a node.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.planning import plan
        >>> from coppice.topology.presets import preset
        >>> line = preset("fat-tree", leaves=2, gpus_per_leaf=1)
        >>> collnet_trees(plan(Problem(topology=line, collective=Collective.ALL_REDUCE)).plan)
        ({(-1, 0): 1, (1, -1): 1}, False)
    """
    forest = _checked(plan)
    by_phase: dict[Phase, Counter[Parents]] = {phase: Counter() for phase in Phase}
    for tree in range(forest.num_trees):
        phase = Phase(int(forest.tree_phase[tree]))
        by_phase[phase][_parents(forest, tree, phase)] += int(forest.tree_weight[tree])
    found = by_phase[Phase.BROADCAST] or by_phase[Phase.REDUCE]
    turned = bool(by_phase[Phase.REDUCE]) and by_phase[Phase.REDUCE] != found
    if len(found) > MOST_TREES:
        raise CheckError(
            f"expected at most {MOST_TREES} distinct trees, found {len(found)}: plan with fewer per root (`trees=1`)."
        )
    unit = gcd(*found.values())
    shares = {parents: weight // unit for parents, weight in found.items()}
    if max(shares.values()) > _MOST_SHARE:
        raise CheckError(
            f"expected shares up to {_MOST_SHARE}, found {max(shares.values())}: plan with fewer trees (`trees=1`)."
        )
    return shares, turned


def _checked(plan: Plan) -> Forest:
    if plan.forest is None:
        raise InputError(
            f"nccl-collnet is made of trees, found {plan.problem.collective} without: plan with a forest."
        )
    topology = plan.topology
    hosts = Counter(host for host in topology.host[topology.rank_nodes].tolist() if host >= 0)
    crowded = next((host for host, ranks in hosts.items() if ranks > 1), None)
    if crowded is not None:
        raise InputError(
            f"nccl-collnet joins the nodes of a rail, one rank each, found {hosts[crowded]} ranks on "
            f"{topology.hosts[crowded]!r}: plan with one rank a host (`ranks`)."
        )
    if plan.forest.branches_at_switches:
        raise InputError(
            "trees of nccl-collnet branch at nodes, found a plan that branches at switches: plan without "
            "`in_network`."
        )
    forest = expanded(plan.forest)
    spanning = topology.num_ranks - 1
    for tree in range(forest.num_trees):
        edges = int(forest.tree_start[tree + 1] - forest.tree_start[tree])
        if edges != spanning:
            raise InputError(
                f"trees of nccl-collnet reach all {topology.num_ranks} nodes, found one with {plural(edges, 'edge')}: "
                "plan all_reduce, all_gather or reduce_scatter."
            )
    return forest


def _parents(forest: Forest, tree: int, phase: Phase) -> Parents:
    rank = forest.topology.rank
    parents = [-1] * forest.topology.num_ranks
    for src, dst, _ in forest.edges(tree):
        above, below = (src, dst) if phase is Phase.BROADCAST else (dst, src)
        parents[int(rank[below])] = int(rank[above])
    return tuple(parents)


def _depth(parents: Parents) -> int:
    deepest = 0
    for node in range(len(parents)):
        at, steps = node, 0
        while parents[at] >= 0:
            at, steps = parents[at], steps + 1
        deepest = max(deepest, steps)
    return deepest
