"""Heights of trees by walking them: how many GPU-to-GPU hops data takes at most."""

from __future__ import annotations

from fractions import Fraction

from coppice.schedule.forest import Forest, Phase


def heights(forest: Forest) -> list[int]:
    """The height of each tree."""
    result = []
    for t in range(forest.num_trees):
        depth = {int(forest.tree_root[t]): 0}
        edges = [(src, dst) for src, dst, _ in forest.edges(t)]
        if forest.tree_phase[t] == Phase.REDUCE:
            edges = [(dst, src) for src, dst in reversed(edges)]
        for src, dst in edges:
            depth[dst] = depth[src] + 1
        result.append(max(depth.values()))
    return result


def mean_height(forest: Forest) -> Fraction:
    """Mean height, trees counted by weight."""
    weights = forest.tree_weight.tolist()
    return Fraction(sum(h * w for h, w in zip(heights(forest), weights, strict=True)), sum(weights))
