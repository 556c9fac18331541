"""What forests reach where switches send more than they get: an LP with every cut written out.

Theory. A forest loads link e at some rate b'(e) <= b(e). It exists iff (I) every vertex set X that holds a
terminal has in'(X) + x * w(X) >= x * w(all), and (II) no switch that cannot copy sends more than it gets,
out'(w) <= in'(w): edge splitting then removes the switches and Edmonds' theorem packs the trees. So the best
rate is the LP

    maximise x  over  0 <= b' <= b  subject to (I) for all X and (II).

For all-reduce each terminal v has a share x(v) of the data, which is reduced to v and broadcast from v; links
split into a part for each phase, with (I) for both (on reversed links in the reduce phase), (II) in the
broadcast phase, and its mirror image in'(w) <= out'(w) in the reduce phase (ForestColl, arXiv 2402.06787,
appendix on all-reduce, restated with the rows (II), without which the LP assumes that switches copy).

All 2^n cuts are rows, in floats by HiGHS: only for small graphs, and to about nine digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from reference.network import Link, Network, Supply


def attainable_rate(network: Network, supply: Supply) -> float:
    """The largest rate x per unit of weight of broadcast trees; 1 / x is the time per shard."""
    lp = _silent_lp()
    rate = lp.addVariable(lb=0)
    used = {link: lp.addVariable(lb=0, ub=float(c)) for link, c in network.capacity.items()}
    total = sum(supply.values())
    for sinks in sink_sides(network):
        missing = total - sum(supply.get(v, 0) for v in sinks)
        if missing:
            lp.addConstr(_entering(lp, used, sinks) >= missing * rate)
    for w in network.switches:
        lp.addConstr(_leaving(lp, used, {w}) <= _entering(lp, used, {w}))
    return _maximum(lp, rate)


def all_reduce_rate(network: Network) -> float:
    """The largest algbw of reduce trees and broadcast trees that share the links, roots chosen freely."""
    lp = _silent_lp()
    share = {v: lp.addVariable(lb=0) for v in network.terminals}
    total = lp.qsum(share.values())
    spread = {link: lp.addVariable(lb=0) for link in network.capacity}
    collect = {link: lp.addVariable(lb=0) for link in network.capacity}
    for link, c in network.capacity.items():
        lp.addConstr(spread[link] + collect[link] <= float(c))
    for sinks in sink_sides(network):
        missing = [share[v] for v in network.terminals if v not in sinks]
        if missing:
            lp.addConstr(_entering(lp, spread, sinks) >= lp.qsum(missing))
            lp.addConstr(_leaving(lp, collect, sinks) >= lp.qsum(missing))
    for w in network.switches:
        lp.addConstr(_leaving(lp, spread, {w}) <= _entering(lp, spread, {w}))
        lp.addConstr(_entering(lp, collect, {w}) <= _leaving(lp, collect, {w}))
    return _maximum(lp, total)


def sink_sides(network: Network) -> Iterator[set[int]]:
    """All vertex sets that hold a terminal."""
    for size in range(1, network.num_nodes + 1):
        for nodes in combinations(range(network.num_nodes), size):
            if not set(network.terminals).isdisjoint(nodes):
                yield set(nodes)


def _silent_lp() -> Any:
    import highspy

    lp = highspy.Highs()
    lp.setOptionValue("output_flag", False)
    return lp


def _entering(lp: Any, used: dict[Link, Any], nodes: set[int]) -> Any:
    return lp.qsum([x for (u, v), x in used.items() if u not in nodes and v in nodes])


def _leaving(lp: Any, used: dict[Link, Any], nodes: set[int]) -> Any:
    return lp.qsum([x for (u, v), x in used.items() if u in nodes and v not in nodes])


def _maximum(lp: Any, objective: Any) -> float:
    lp.maximize(objective)
    return float(lp.getInfo().objective_function_value)
