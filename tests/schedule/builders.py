"""Hand-made topologies and forests with known figures, and a slow, readable reference of the verifier."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from coppice.collectives import Collective
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.schedule import Schedule
from coppice.topology.model import Link, Node, NodeKind, Topology

Path = tuple[int, ...]
Tree = tuple[int, int, Phase, Sequence[Path]]
"""(root, weight, phase, path of each edge in the direction of the data)"""


def ring_topology(n: int, gb_per_s: Fraction | int = 1) -> Topology:
    links = [Link(src=f"g{i}", dst=f"g{(i + 1) % n}", gb_per_s=Fraction(gb_per_s)) for i in range(n)]
    return Topology.of(f"ring{n}", [Node(id=f"g{i}") for i in range(n)], links)


def star_topology(n: int, gb_per_s: Fraction | int = 1, *, in_network: bool = False) -> Topology:
    switch = Node(id="sw", kind=NodeKind.SWITCH, multicast=in_network, aggregate=in_network)
    links = [Link(src=f"g{i}", dst="sw", gb_per_s=Fraction(gb_per_s), latency_us=0.5) for i in range(n)]
    return Topology.of(f"star{n}", [*(Node(id=f"g{i}") for i in range(n)), switch], links)


def make_forest(topology: Topology, collective: Collective, trees: Sequence[Tree]) -> Forest:
    paths: dict[Path, int] = {}
    rows = [(paths.setdefault(tuple(p), len(paths)), p[0], p[-1]) for *_, edges in trees for p in edges]
    return Forest(
        topology=topology,
        collective=collective,
        tree_root=np.array([t[0] for t in trees], dtype=np.int32),
        tree_weight=np.array([t[1] for t in trees], dtype=np.int64),
        tree_phase=np.array([t[2] for t in trees], dtype=np.int8),
        tree_start=np.cumsum([0, *(len(t[3]) for t in trees)], dtype=np.int64),
        edge_src=np.array([src for _, src, _ in rows], dtype=np.int32),
        edge_dst=np.array([dst for _, _, dst in rows], dtype=np.int32),
        edge_path=np.array([path for path, _, _ in rows], dtype=np.int32),
        path_start=np.cumsum([0, *map(len, paths)], dtype=np.int64),
        path_nodes=np.array([v for p in paths for v in p], dtype=np.int32),
    )


def trees_of(forest: Forest) -> list[Tree]:
    """The forest as values, to be changed and made again."""
    return [
        (
            int(forest.tree_root[t]),
            int(forest.tree_weight[t]),
            Phase(forest.tree_phase[t]),
            [p for _, _, p in forest.edges(t)],
        )
        for t in range(forest.num_trees)
    ]


def reversed_tree(tree: Tree) -> Tree:
    root, weight, phase, edges = tree
    other = Phase.REDUCE if phase == Phase.BROADCAST else Phase.BROADCAST
    return root, weight, other, [tuple(reversed(path)) for path in reversed(edges)]


def chain(root: int, n: int, step: int, weight: int = 1) -> Tree:
    """Round a ring from ``root``."""
    nodes = [(root + step * i) % n for i in range(n)]
    return root, weight, Phase.BROADCAST, list(pairwise(nodes))


def ring_forest(n: int, collective: Collective = Collective.ALL_GATHER) -> Forest:
    """Both ways round a ring from every root: time per shard (n - 1) / 2 for all-gather."""
    trees = [chain(root, n, step) for root in range(n) for step in (1, -1)]
    if collective is Collective.REDUCE_SCATTER:
        trees = [reversed_tree(tree) for tree in trees]
    if collective is Collective.ALL_REDUCE:
        trees = [reversed_tree(tree) for tree in trees] + trees
    return make_forest(ring_topology(n), collective, trees)


def star_forest(n: int, gb_per_s: Fraction | int = 1) -> Forest:
    """Every root sends to every other rank through the switch: time per shard (n - 1) / rate."""
    trees: list[Tree] = [
        (root, 1, Phase.BROADCAST, [(root, n, other) for other in range(n) if other != root])
        for root in range(n)
    ]
    return make_forest(star_topology(n, gb_per_s), Collective.ALL_GATHER, trees)


def slow_verdict(forest: Forest, weights: Sequence[int] | None = None) -> tuple[bool, Fraction | None]:
    """Is an all-gather or all-reduce forest right, and its time per shard; edge by edge."""
    topology = forest.topology
    ranks = set(topology.rank_nodes.tolist())
    good = True
    load: Counter[tuple[int, int]] = Counter()
    at_root: dict[Phase, Counter[int]] = defaultdict(Counter)
    for root, weight, phase, edges in trees_of(forest):
        down = phase == Phase.BROADCAST
        able = topology.multicast if down else topology.aggregate
        at_root[phase][root] += weight
        ordered = edges if down else [tuple(reversed(path)) for path in reversed(edges)]
        reached = {root}
        good &= root in ranks
        for path in ordered:
            good &= path[0] in reached and path[-1] not in reached
            good &= all(end in ranks or bool(able[end]) for end in (path[0], path[-1]))
            good &= all(node not in ranks for node in path[1:-1])
            reached.add(path[-1])
        good &= ranks <= reached
        for path in edges:
            load.update({hop: weight * times for hop, times in Counter(pairwise(path)).items()})
    if not all(hop in topology.link_index for hop in load):
        return False, None
    nodes = topology.rank_nodes.tolist()
    shares = list(weights or [1] * len(nodes))
    if forest.collective is Collective.ALL_REDUCE:
        good &= at_root[Phase.BROADCAST] == at_root[Phase.REDUCE]
    else:
        total = sum(at_root[Phase.BROADCAST].values())
        good &= all(
            at_root[Phase.BROADCAST][v] * sum(shares) == w * total for v, w in zip(nodes, shares, strict=True)
        )
        good &= not at_root[Phase.REDUCE]
    units = max(sum(count.values()) for count in at_root.values())
    busy = max(
        (Fraction(amount) / topology.gb_per_s(topology.link_index[hop]) for hop, amount in load.items()),
        default=Fraction(0),
    )
    return good, busy * forest.collective.shards(len(nodes), tuple(shares)) / units


@st.composite
def topologies(draw: st.DrawFn, most_gpus: int = 5, most_switches: int = 3) -> Topology:
    """A strongly connected topology of GPUs and switches (which may copy or add), with odd rates."""
    gpus = draw(st.integers(2, most_gpus))
    switches = draw(st.integers(0, most_switches))
    nodes = [Node(id=f"g{i}") for i in range(gpus)]
    nodes += [
        Node(id=f"s{i}", kind=NodeKind.SWITCH, multicast=draw(st.booleans()), aggregate=draw(st.booleans()))
        for i in range(switches)
    ]
    rate = st.builds(Fraction, st.integers(1, 30), st.sampled_from([1, 2, 3, 7]))
    links = []
    for child in range(1, len(nodes)):
        parent = draw(st.integers(0, child - 1))
        links.append(Link(src=nodes[parent].id, dst=nodes[child].id, gb_per_s=draw(rate)))
    for _ in range(draw(st.integers(0, 4))):
        a, b = draw(st.integers(0, len(nodes) - 1)), draw(st.integers(0, len(nodes) - 1))
        links.append(Link(src=nodes[a].id, dst=nodes[b].id, gb_per_s=draw(rate), duplex=False))
    return Topology.of("drawn", nodes, links)


def hop_paths(topology: Topology, source: int) -> dict[int, Path]:
    """Fewest-hop paths from a rank to the other ranks that pass no rank on the way."""
    found: dict[int, Path] = {source: (source,)}
    queue = [source]
    while queue:
        node = queue.pop(0)
        if node != source and topology.rank[node] >= 0:
            continue
        for other in topology.dst[topology.src == node].tolist():
            if other not in found:
                found[other] = (*found[node], other)
                queue.append(other)
    return {node: path for node, path in found.items() if node != source and topology.rank[node] >= 0}


@st.composite
def forests(draw: st.DrawFn, collective: Collective = Collective.ALL_GATHER) -> Forest:
    """Random spanning trees at every root, of random weights that add up to the same at each root."""
    topology = draw(topologies())
    trees: list[Tree] = []
    direct = {node: hop_paths(topology, node) for node in topology.rank_nodes.tolist()}
    for root in topology.rank_nodes.tolist():
        parts = draw(st.sampled_from([(6,), (1, 5), (2, 2, 2), (3, 1, 2)]))
        for weight in parts:
            reached, edges = [root], []
            while len(reached) < topology.num_ranks:
                options = [p for v in reached for t, p in direct[v].items() if t not in reached]
                edges.append(draw(st.sampled_from(options)))
                reached.append(edges[-1][-1])
            trees.append((root, weight, Phase.BROADCAST, edges))
    if collective is Collective.ALL_REDUCE:
        back = make_forest(topology.transposed(), Collective.ALL_GATHER, trees)
        both_ways = set(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
        usable = all((b, a) in both_ways for t in trees for p in t[3] for a, b in pairwise(p))
        if usable and back.num_trees:
            return make_forest(topology, collective, [reversed_tree(t) for t in trees] + trees)
        collective = Collective.ALL_GATHER
    return make_forest(topology, collective, trees)


def make_schedule(
    topology: Topology,
    collective: Collective,
    rows: Sequence[tuple[int, int, int, int, Path | None, int]],
    *,
    chunk_slot: Sequence[int],
    chunk_share: Sequence[int] | None = None,
    slot_weight: Sequence[int] | None = None,
    root: int = -1,
    after: Sequence[Sequence[int]] | None = None,
) -> Schedule:
    """A schedule from rows (chunk, src, dst, op, path or None for the direct link, step)."""
    slots = topology.num_ranks
    if collective is Collective.ALL_TO_ALL:
        slots *= slots
    elif collective in (Collective.BROADCAST, Collective.REDUCE, Collective.BARRIER):
        slots = 1
    nodes = topology.rank_nodes.tolist()
    paths: dict[Path, int] = {}
    path = [paths.setdefault(p or (nodes[s], nodes[d]), len(paths)) for _, s, d, _, p, _ in rows]
    waits = after or [()] * len(rows)

    def column(values: Sequence[int], kind: type) -> np.ndarray:
        return np.array(values, dtype=kind)

    return Schedule(
        topology=topology,
        collective=collective,
        root=root,
        slot_weight=column(slot_weight or [1] * slots, np.int64),
        chunk_slot=column(chunk_slot, np.int32),
        chunk_share=column(chunk_share or [1] * len(chunk_slot), np.int64),
        chunk=column([r[0] for r in rows], np.int32),
        src=column([r[1] for r in rows], np.int32),
        dst=column([r[2] for r in rows], np.int32),
        op=column([r[3] for r in rows], np.int8),
        path=column(path, np.int32),
        step=column([r[5] for r in rows], np.int32),
        after_start=np.cumsum([0, *map(len, waits)], dtype=np.int64),
        after=column([w for each in waits for w in each], np.int32),
        path_start=np.cumsum([0, *map(len, paths)], dtype=np.int64),
        path_nodes=column([v for p in paths for v in p], np.int32),
    )
