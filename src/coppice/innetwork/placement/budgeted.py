"""The fewest streams that leave a tree with a budget of switches that add: by dynamic programming, exactly.

For every node of a tree and every k, the fewest streams that it sends up when k switches at or below it are given the
feature, and no link below carries more than it may. Fewer streams are never worse further up, so nothing else of a
subtree matters; the budget is divided among children by (min, +) convolution.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from coppice.innetwork.placement.trees import AggregationTree

_NEVER = 1 << 60


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchChoices:
    """Which switches are decided."""

    featured: Collection[int]  # Nodes that add: given by the topology, or chosen
    open: Collection[int]  # Switches that can be chosen
    budget: int  # How many of these


def fewest_switches(tree: AggregationTree, limits: Sequence[int], choices: SwitchChoices) -> list[int] | None:
    """Open switches to choose, as few as possible, so that the root adds and no link carries more than it may.

    Args:
        limits: Streams that each link may carry, by its number.
        choices: What is decided, and the budget.

    Returns:
        The switches, or None where the budget does not suffice.
    """
    if any(limits[edge] < 1 for edge in tree.rank_edges):
        return None
    budget = choices.budget
    coming: list[list[int]] = [[count] for count in tree.direct]
    merges: list[list[tuple[int, list[int], list[int]]]] = [[] for _ in tree.nodes]
    for at, node in enumerate(tree.nodes[:-1]):
        out = _sent(coming[at], node, choices)
        limit = limits[tree.edge[at]]
        out = [streams if streams <= limit else _NEVER for streams in out]
        if min(out) == _NEVER:
            return None
        parent = tree.parent[at]
        merges[parent].append((at, coming[parent], out))
        coming[parent] = _together(coming[parent], out, budget)
    root = tree.nodes[-1]
    spent = 0 if root in choices.featured else 1
    if spent and root not in choices.open:
        return None
    for k in range(len(coming[-1])):
        if coming[-1][k] < _NEVER and k + spent <= budget:
            chosen = [root] if spent else []
            _collect(tree, coming, merges, choices, len(tree.nodes) - 1, k, chosen)
            return sorted(chosen)
    return None


def _sent(coming: list[int], node: int, choices: SwitchChoices) -> list[int]:
    """Streams that a node sends up, for every k, from those that come in."""
    if node in choices.featured:
        return [1 if streams < _NEVER else _NEVER for streams in coming]
    if node not in choices.open:
        return coming
    out = [*coming, _NEVER][: choices.budget + 1]
    for k in range(1, len(out)):
        if coming[k - 1] < _NEVER:
            out[k] = 1
    return out


def _together(a: list[int], b: list[int], budget: int) -> list[int]:
    """The fewest streams of two subtrees, for every budget of both."""
    found = [_NEVER] * min(len(a) + len(b) - 1, budget + 1)
    for i, x in enumerate(a):
        if x < _NEVER:
            for j, y in enumerate(b[: len(found) - i]):
                if x + y < found[i + j]:
                    found[i + j] = x + y
    return found


def _collect(
    tree: AggregationTree,
    coming: list[list[int]],
    merges: list[list[tuple[int, list[int], list[int]]]],
    choices: SwitchChoices,
    at: int,
    k: int,
    chosen: list[int],
) -> None:
    """The switches below a node behind entry k of its table."""
    merged = coming[at]
    for child, before, out in reversed(merges[at]):
        own = next(
            j
            for j, streams in enumerate(out[: k + 1])
            if k - j < len(before) and before[k - j] + streams == merged[k] < _NEVER
        )
        node, taken = tree.nodes[child], own
        if node in choices.open and (own >= len(coming[child]) or coming[child][own] != out[own]):
            chosen.append(node)
            taken = own - 1
        _collect(tree, coming, merges, choices, child, taken, chosen)
        k -= own
        merged = before
