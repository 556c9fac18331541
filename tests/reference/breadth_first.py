"""Breadth-first broadcast as its definition says, slow and readable: all sets of in-links, or a linear program."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import chain, combinations

Links = dict[tuple[int, int], int]  # (src, dst) -> capacity


def distances(num_nodes: int, links: Links) -> list[list[int]]:
    """Hops between all pairs."""
    far = num_nodes * 2
    hops = [[0 if a == b else far for b in range(num_nodes)] for a in range(num_nodes)]
    for a, b in links:
        if a != b:
            hops[a][b] = 1
    for k in range(num_nodes):
        for a in range(num_nodes):
            for b in range(num_nodes):
                hops[a][b] = min(hops[a][b], hops[a][k] + hops[k][b])
    return hops


def arrivals(num_nodes: int, links: Links, target: int) -> dict[int, list[frozenset[int]]]:
    """By step, the in-neighbours that may bring each source to the target."""
    hops = distances(num_nodes, links)
    before = [a for a, b in links if b == target and a != target]
    found: dict[int, list[frozenset[int]]] = defaultdict(list)
    for v in range(num_nodes):
        if v != target:
            step = hops[v][target]
            found[step].append(frozenset(w for w in before if hops[v][w] == step - 1))
    return found


def loads_by_sets(num_nodes: int, links: Links) -> list[Fraction]:
    """Step loads: the tightest set of in-links of the slowest node."""
    worst: dict[int, Fraction] = defaultdict(Fraction)
    for target in range(num_nodes):
        before = [a for a, b in links if b == target and a != target]
        sets = chain.from_iterable(combinations(before, size) for size in range(1, len(before) + 1))
        by_step = arrivals(num_nodes, links, target)
        for chosen in sets:
            capacity = sum(links[a, target] for a in chosen)
            for step, sources in by_step.items():
                confined = sum(eligible <= set(chosen) for eligible in sources)
                worst[step] = max(worst[step], Fraction(confined, capacity))
    return [worst[step] for step in sorted(worst)]


def loads_by_lp(num_nodes: int, links: Links) -> list[float]:
    """Step loads as the linear programs they are defined by, one for each target and step."""
    import highspy

    worst: dict[int, float] = defaultdict(float)
    for target in range(num_nodes):
        for step, sources in arrivals(num_nodes, links, target).items():
            solver = highspy.Highs()
            solver.setOptionValue("output_flag", False)
            load = solver.addVariable(lb=0.0, obj=1.0)
            share = {(i, w): solver.addVariable(lb=0.0) for i, ways in enumerate(sources) for w in ways}
            for i, ways in enumerate(sources):
                solver.addConstr(sum(share[i, w] for w in ways) == 1)
            for w in {w for ways in sources for w in ways}:
                brought = sum(share[i, v] for i, v in share if v == w)
                solver.addConstr(brought <= links[w, target] * load)
            solver.run()
            worst[step] = max(worst[step], solver.getObjectiveValue())
    return [worst[step] for step in sorted(worst)]
