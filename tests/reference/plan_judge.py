"""A judge of plan files that shares no code with the verifier: plain JSON, sets and fractions.

It replays what the file says, tree by tree and transfer by transfer, counts what every link carries, and knows what a
cut proves. For small networks it knows the best time as well: by trying every cut, or by a linear program over all
paths in fractions.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from reference.rational import concurrent_flow_rate

TREES = {
    "all_gather": {"broadcast"},
    "broadcast": {"broadcast"},
    "reduce_scatter": {"reduce"},
    "reduce": {"reduce"},
    "all_reduce": {"broadcast", "reduce"},
}


class Wrong(Exception):  # noqa: N818 (what it says of a plan is no error of the judge)
    """What is wrong with a plan."""


@dataclass(frozen=True)
class Judged:
    """What is true of a file.

    Attributes:
        wrong: What is wrong with what the plan does or claims to take; empty where nothing is.
        inv_rate: Time per shard that its busiest link needs; None where routes are left to the network.
        helped: A switch copies or adds.
    """

    wrong: str
    inv_rate: Fraction | None = None
    helped: bool = False


@dataclass(frozen=True)
class Network:
    """The topology of a file."""

    ranks: tuple[int, ...]
    links: dict[tuple[int, int], Fraction]
    copies: frozenset[int]
    adds: frozenset[int]
    count: int

    @classmethod
    def of(cls, document: Any) -> Network:
        """Read the native format, as docs/topology-formats.md has it."""
        nodes, index = document["nodes"], {node["id"]: i for i, node in enumerate(document["nodes"])}
        gpus = [(node.get("rank", i), i) for i, node in enumerate(nodes) if node.get("kind", "gpu") == "gpu"]
        links: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
        for link in document["links"]:
            a, b, rate = index[link["from"]], index[link["to"]], Fraction(str(link["gb_per_s"]))
            links[a, b] += rate
            if link.get("duplex", True):
                links[b, a] += rate
        return cls(
            ranks=tuple(i for rank, i in sorted(gpus) if rank >= 0),
            links=dict(links),
            copies=frozenset(i for i, node in enumerate(nodes) if node.get("multicast")),
            adds=frozenset(i for i, node in enumerate(nodes) if node.get("aggregate")),
            count=len(nodes),
        )


def judge(plan: Any) -> Judged:
    """What is true of a plan that was read as JSON."""
    network = Network.of(plan["topology"])
    try:
        loads, helped = _forest(plan, network) if "trees" in plan else (_schedule(plan, network), False)
        inv_rate = None
        if loads is not None:
            inv_rate = max((load / network.links[link] for link, load in loads.items()), default=Fraction(0))
            if inv_rate > Fraction(plan["inv_rate"]):
                raise Wrong(f"it takes {inv_rate} per shard, not {plan['inv_rate']}")
    except Wrong as error:
        return Judged(str(error))
    return Judged("", inv_rate, helped)


def _walk(nodes: list[int], network: Network, *, relays: bool) -> None:
    """A path runs along links, and through no rank that may not relay."""
    for link in itertools.pairwise(nodes):
        if link not in network.links:
            raise Wrong(f"there is no link {link}")
    if not relays and set(nodes[1:-1]) & set(network.ranks):
        raise Wrong("a path leads through a rank")
    if len(nodes) < 2:
        raise Wrong("a path goes nowhere")


def _forest(plan: Any, network: Network) -> tuple[dict[tuple[int, int], Fraction], bool]:
    """What links carry per shard, and whether switches help, of trees that do what they must."""
    collective, ranks = plan["collective"], set(network.ranks)
    rows = defaultdict(list)
    for tree, *edge in zip(*(plan["edges"][name] for name in ("tree", "src", "dst", "path")), strict=True):
        rows[tree].append(edge)
    elements = _elements(plan.get("symmetry"), network.count)
    at_root: dict[str, Counter[int]] = {"broadcast": Counter(), "reduce": Counter()}
    loads: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    helped = False
    trees = list(zip(*(plan["trees"][name] for name in ("root", "weight", "phase")), strict=True))
    for element in elements:
        for tree, (root, weight, phase) in enumerate(trees):
            edges = [
                (element[a], element[b], [element[v] for v in plan["paths"][p]]) for a, b, p in rows[tree]
            ]
            helped |= _tree(element[root], phase, edges, network, collective)
            at_root[phase][element[root]] += weight
            for _, _, nodes in edges:
                for link in itertools.pairwise(nodes):
                    loads[link] += weight
    if any(at_root[phase] for phase in at_root if phase not in TREES[collective]):
        raise Wrong("it has trees of a phase that the collective has not")
    totals = {phase: sum(at_root[phase].values()) for phase in TREES[collective]}
    if len(ranks) > 1 and not all(totals.values()):
        raise Wrong("there are no trees")
    if collective == "all_reduce":
        if at_root["broadcast"] != at_root["reduce"]:
            raise Wrong("roots do not give what they get")
        shards = 1
    elif plan["root"] is not None:
        if set(at_root[next(iter(TREES[collective]))]) - {network.ranks[plan["root"]]}:
            raise Wrong("there is another root")
        shards = 1
    else:
        [phase] = TREES[collective]
        wanted = plan["weights"] or [1] * len(ranks)
        for rank, node in enumerate(network.ranks):
            if at_root[phase][node] * sum(wanted) != wanted[rank] * totals[phase]:
                raise Wrong(f"rank {rank} is root of another share")
        shards = sum(wanted)
    unit = Fraction(max(totals.values()), shards)
    return {link: load / unit for link, load in loads.items()}, helped


def _elements(symmetry: Any, count: int) -> list[list[int]]:
    """All elements of the group, each as the images of the nodes."""
    found = [list(range(count))]
    for order, generator in (
        zip(*(symmetry[name] for name in ("orders", "generators")), strict=True) if symmetry else ()
    ):
        more = found
        for _ in range(order - 1):
            more = [[generator[v] for v in element] for element in more]
            found = found + more
    return found


def _tree(
    root: int, phase: str, edges: list[tuple[int, int, list[int]]], network: Network, collective: str
) -> bool:
    """Replay a tree; whether a switch copies or adds in it."""
    ranks, able = set(network.ranks), network.copies if phase == "broadcast" else network.adds
    if root not in ranks and not (collective == "all_reduce" and root in network.copies & network.adds):
        raise Wrong("a root is no rank")
    for a, b, nodes in edges:
        _walk(nodes, network, relays=False)
        if (nodes[0], nodes[-1]) != (a, b):
            raise Wrong("a path ends elsewhere")
        for end in (a, b):
            if end not in ranks and end not in able:
                raise Wrong("a tree branches at a node that cannot")
    if phase == "broadcast":
        has = {root}
        for a, b, _ in edges:
            if a not in has or b in has:
                raise Wrong("data go from where they are not, or to where they are")
            has.add(b)
        if not ranks <= has:
            raise Wrong("a rank is left out")
    else:
        held = defaultdict(set, {rank: {rank} for rank in ranks})
        sent: set[int] = set()
        for a, b, _ in edges:
            if a in sent or b in sent or a == root or not held[a]:
                raise Wrong("a sum is sent twice, too early, or empty")
            sent.add(a)
            held[b] |= held[a]
        if held[root] != ranks:
            raise Wrong("a contribution is left out")
    ends = [root, *itertools.chain.from_iterable((a, b) for a, b, _ in edges)]
    return not ranks.issuperset(ends)


def _schedule(plan: Any, network: Network) -> dict[tuple[int, int], Fraction] | None:
    """What links carry per shard, of transfers that do what they must; None where routes are the network's choice."""
    collective, count, root = plan["collective"], len(network.ranks), plan["root"]
    weights, slots, shares = plan["slot_weight"], plan["chunks"]["slot"], plan["chunks"]["share"]
    columns = plan["transfers"]
    names = ("chunk", "src", "dst", "op", "path", "step")
    rows = list(zip(*(columns[name] for name in names), strict=True))
    _check_after(columns.get("after", []), rows)
    _check_sizes(plan, network)
    total = Counter[int]()
    for slot, share in zip(slots, shares, strict=True):
        total[slot] += share
    relays = plan["provenance"]["parameters"].get("relay_gpus") is True
    loads: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    routed = True
    for chunk, src, dst, _, path, _ in rows:
        nodes = (
            plan["paths"][path] if path >= 0 else _only_route(network, network.ranks[src], network.ranks[dst])
        )
        if nodes is None:
            routed = False
            continue
        _walk(nodes, network, relays=relays)
        if (nodes[0], nodes[-1]) != (network.ranks[src], network.ranks[dst]):
            raise Wrong("a path ends elsewhere")
        for link in itertools.pairwise(nodes):
            loads[link] += Fraction(weights[slots[chunk]] * shares[chunk], total[slots[chunk]])
    used = {slots[chunk] for chunk, *_ in rows}
    by_chunk = defaultdict(list)
    for row in rows:
        by_chunk[row[0]].append(row)
    for slot, weight in enumerate(weights):
        needless = (collective == "all_to_all" and slot // count == slot % count) or (
            collective in ("gather", "scatter") and slot == root
        )
        if not total[slot] and (weight or collective == "barrier") and not needless and count > 1:
            raise Wrong(f"slot {slot} has no chunks")
    for chunk, slot in enumerate(slots):
        if weights[slot] or slot in used or collective == "barrier":
            _execute(by_chunk[chunk], slot, collective, count, root)
    if not routed:
        return None
    shard = _shard(plan, count)
    return {link: load / shard for link, load in loads.items() if load} if shard else {}


def _only_route(network: Network, start: int, end: int) -> list[int] | None:
    """The way of fewest hops that passes no rank, where there is only one; None where there are several."""
    paths, seen = [[start]], {start}
    while paths and start != end:
        ends = [path for path in paths if path[-1] == end]
        if ends:
            return ends[0] if len(ends) == 1 else None
        open_ = [path for path in paths if path == [start] or path[-1] not in network.ranks]
        paths = [[*path, b] for path in open_ for a, b in network.links if a == path[-1] and b not in seen]
        seen |= {path[-1] for path in paths}
    raise Wrong("there is no way through nodes without a rank")


def _check_after(after: list[list[int]], rows: list[tuple[int, ...]]) -> None:
    """Rows wait for earlier ones, and steps do not decrease."""
    steps = [row[5] for row in rows]
    if any(a > b for a, b in itertools.pairwise(steps)) or (steps and steps[0] < 0 <= steps[-1]):
        raise Wrong("steps decrease, or some rows have none")
    if any(other >= row for row, others in enumerate(after) for other in others):
        raise Wrong("a row waits for a later one")


def _check_sizes(plan: Any, network: Network) -> None:
    """Blocks have the sizes that the problem gives them."""
    collective, count, weights = plan["collective"], len(network.ranks), plan["slot_weight"]
    if collective in ("all_gather", "reduce_scatter"):
        wanted = plan["weights"] or [1] * count
    elif collective == "all_to_all":
        table = plan["demands"] or [[1] * count] * count
        wanted = [0 if i == j else size for i, row in enumerate(table) for j, size in enumerate(row)]
        weights = [0 if slot // count == slot % count else weight for slot, weight in enumerate(weights)]
    elif collective in ("gather", "scatter"):
        wanted = [int(slot != plan["root"]) for slot in range(count)]
        weights = [0 if slot == plan["root"] else weight for slot, weight in enumerate(weights)]
    elif collective == "barrier":
        wanted = [0]
    else:
        if count > 1 and not any(weights):
            raise Wrong("nothing is moved")
        return
    if len(weights) != len(wanted) or any(
        have * sum(wanted) != want * sum(weights) for have, want in zip(weights, wanted, strict=True)
    ):
        raise Wrong("blocks have other sizes")
    if any(wanted) and count > 1 and not any(weights):
        raise Wrong("nothing is moved")


def _shard(plan: Any, count: int) -> Fraction:
    """Slot weight of what the time is stated for."""
    collective, weights = plan["collective"], plan["slot_weight"]
    match collective:
        case "all_to_all":
            moved = sum(w for slot, w in enumerate(weights) if slot // count != slot % count)
            table = plan["demands"] or [[1] * count] * count
            asked = sum(size for i, row in enumerate(table) for j, size in enumerate(row) if i != j)
            return Fraction(moved, max(asked, 1))
        case "gather" | "scatter":
            return Fraction(sum(weights) - weights[plan["root"]], max(count - 1, 1))
        case "all_gather" | "reduce_scatter":
            return Fraction(sum(weights), sum(plan["weights"] or [1] * count))
    return Fraction(sum(weights))


def _execute(rows: list[tuple[int, ...]], slot: int, collective: str, count: int, root: int | None) -> None:
    """Carry out the rows of a chunk with sets of contributions."""
    everyone = frozenset(range(count))
    owner = {"all_to_all": slot // count, "broadcast": root, "scatter": root}.get(collective, slot)
    held: dict[int, frozenset[int]] = {owner: frozenset([owner])} if owner is not None else {}
    if collective in ("reduce", "reduce_scatter", "all_reduce", "barrier"):
        held = {rank: frozenset([rank]) for rank in everyone}
    for step, group in itertools.groupby(
        enumerate(rows), key=lambda row: row[1][5] if row[1][5] >= 0 else (row[0],)
    ):
        before = dict(held)
        for _, (_, src, dst, op, _, _) in group:
            value = (before if isinstance(step, int) else held).get(src)
            if value is None:
                raise Wrong("a rank sends what it has not")
            if op and dst in held:
                if collective != "barrier" and held[dst] & value:
                    raise Wrong("something is added twice")
                held[dst] = held[dst] | value
            else:
                held[dst] = value
    match collective:
        case "all_to_all":
            wanted = {slot % count: frozenset([slot // count])}
        case "gather":
            wanted = {root: frozenset([slot])}
        case "scatter":
            wanted = {slot: frozenset([root])}
        case "reduce":
            wanted = {root: everyone}
        case "reduce_scatter":
            wanted = {slot: everyone}
        case "all_reduce" | "barrier":
            wanted = dict.fromkeys(everyone, everyone)
        case _:
            wanted = dict.fromkeys(everyone, frozenset([owner]))
    if any(held.get(rank) != contributions for rank, contributions in wanted.items()):
        raise Wrong(f"slot {slot} ends incomplete")


def necessary(plan: Any, network: Network, inside: set[int]) -> Fraction | None:
    """Time per shard that what must leave a set of nodes takes; None where it cannot leave."""
    out = sum(
        (rate for (a, b), rate in network.links.items() if a in inside and b not in inside), Fraction(0)
    )
    within = [node in inside for node in network.ranks]
    if all(within) or not any(within):
        return Fraction(0)
    count, root = len(within), plan["root"]
    weights = plan["weights"] or [1] * count
    match plan["collective"]:
        case "all_gather":
            need = sum(w for w, here in zip(weights, within, strict=True) if here)
        case "reduce_scatter":
            need = sum(w for w, here in zip(weights, within, strict=True) if not here)
        case "broadcast":
            need = int(within[root])
        case "reduce":
            need = int(not within[root])
        case "all_reduce":
            need = 1
        case "gather":
            need = 0 if within[root] else sum(within)
        case "scatter":
            need = within.count(False) if within[root] else 0
        case "all_to_all":
            table = plan["demands"] or [[1] * count] * count
            need = sum(table[i][j] for i in range(count) for j in range(count) if within[i] and not within[j])
        case _:
            need = 0
    if not need:
        return Fraction(0)
    return need / out if out else None


def least_time(plan: Any) -> Fraction | None:
    """Time per shard that some plan is known to take, without help of switches; None where none is known.

    The narrowest of all cuts is reached by trees where every switch has as much capacity in as out (Edmonds), and by
    flows (Ford and Fulkerson); an all-reduce takes no longer than its two phases; an all-to-all is a linear program.
    """
    key = json.dumps({name: plan[name] for name in ("collective", "root", "weights", "demands", "topology")})
    return _least_time(key)


@functools.lru_cache(maxsize=4096)
def _least_time(key: str) -> Fraction | None:
    plan = json.loads(key)
    network, collective = Network.of(plan["topology"]), plan["collective"]
    if collective == "barrier" or network.count > 11:
        return None
    if collective == "all_to_all":
        return _flow_time(plan, network)
    if collective == "all_reduce":
        phases = [
            _cut_time({**plan, "collective": phase}, network) for phase in ("all_gather", "reduce_scatter")
        ]
        return None if None in phases else sum(phases, Fraction(0)) / len(network.ranks)  # type: ignore[arg-type]
    return _cut_time(plan, network)


def _cut_time(plan: Any, network: Network) -> Fraction | None:
    """The narrowest cut, where it is known to be reached."""
    if plan["collective"] not in ("gather", "scatter"):
        for node in set(range(network.count)) - set(network.ranks):
            into = sum((rate for (_, b), rate in network.links.items() if b == node), Fraction(0))
            out = sum((rate for (a, _), rate in network.links.items() if a == node), Fraction(0))
            if into != out:
                return None
    found = Fraction(0)
    for bits in range(1, 2**network.count - 1):
        need = necessary(plan, network, {v for v in range(network.count) if bits >> v & 1})
        if need is None:
            return None
        found = max(found, need)
    return found


def _flow_time(plan: Any, network: Network) -> Fraction | None:
    count = len(network.ranks)
    if network.count > 7 or len(network.links) > 24 or math.prod((count, count - 1)) > 20:
        return None
    table = plan["demands"] or [[1] * count] * count
    demands = {
        (network.ranks[i], network.ranks[j]): Fraction(table[i][j])
        for i in range(count)
        for j in range(count)
        if i != j and table[i][j]
    }
    try:
        rate = concurrent_flow_rate(network.links, demands) if demands else Fraction(0)
    except ValueError:
        return None
    return 1 / rate if rate else None
