"""Stage 3 of TACCL: which chunks travel between boxes as one message, as a mixed-integer program.

Routes and orders are fixed. Up to six chunks that follow each other on the same way may go together, if all of them
begin where they are sent from, or none does: they pay the latency once, but the first arrives with the last (NSDI'23,
section 5.3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set

from coppice.planners.synthesis.mip.program import MixedProgram, MixedSolution, SearchLimits
from coppice.planners.synthesis.mip.timed import Piece
from coppice.planners.synthesis.taccl.network import SketchedNetwork
from coppice.planners.synthesis.taccl.ordering import Transfer

_MOST_TOGETHER = 6
_HALF = 0.5


def joined_transfers(
    pieces: Sequence[Piece], network: SketchedNetwork, transfers: Sequence[Transfer], limits: SearchLimits
) -> tuple[set[int], MixedSolution | None]:
    """The transfers that go together with the one before them on their leg.

    Args:
        transfers: In the order that is kept on every link.
        limits: When to stop; without a better solution nothing goes together.

    Returns:
        Their numbers, and what the solver found; None where no latency could be saved.
    """
    before = _followers(pieces, network, transfers)
    if not before:
        return set(), None
    horizon = max(each.end for each in transfers)
    program = MixedProgram()
    start = [program.column(upper=horizon) for _ in transfers]
    end = [program.column(upper=horizon) for _ in transfers]
    most_at = [float(_MOST_TOGETHER) if i in before else 1.0 for i in range(len(transfers))]
    place = [program.column(lower=1.0, upper=most) for most in most_at]
    follows = {i: program.column(upper=1.0, whole=True) for i in before}
    time = program.column(cost=1.0, upper=horizon)
    for i, each in enumerate(transfers):
        alpha, beta = network.alpha[each.leg], network.beta[each.leg]
        program.row({end[i]: 1.0, start[i]: -1.0, place[i]: -beta}, least=alpha)
        program.row({time: 1.0, end[i]: -1.0}, least=0.0)
        if i in before:
            a, j = before[i], follows[i]
            most = float(_MOST_TOGETHER)
            program.row({place[i]: 1.0, place[a]: -1.0, j: -most}, least=1.0 - most)
            program.row({start[i]: 1.0, start[a]: -1.0, j: horizon}, most=horizon)
            program.row({end[a]: 1.0, end[i]: -1.0, j: -horizon}, least=-horizon)
    for a, b in _dependencies(network, transfers):
        program.row({start[b]: 1.0, end[a]: -1.0}, least=0.0)
    for a, b, resource in _neighbours(network, transfers):
        held = network.use[transfers[a].leg][resource]
        terms = {start[b]: 1.0, start[a]: -1.0, place[a]: -held}
        if before.get(b) == a:
            slack = horizon + _MOST_TOGETHER * held
            program.row({**terms, follows[b]: slack}, least=network.alpha[transfers[a].leg])
            program.row({start[b]: 1.0, start[a]: -1.0}, least=0.0)
        else:
            program.row(terms, least=network.alpha[transfers[a].leg])
    found = program.solve(limits, start=dict.fromkeys(follows.values(), 0.0))
    if found.values is None:
        return set(), found
    return {i for i, column in follows.items() if found.values[column] > _HALF}, found


def replayed(network: SketchedNetwork, transfers: Sequence[Transfer], joined: Set[int]) -> list[Transfer]:
    """The transfers, each as early as its order and its company allow."""
    groups: list[list[int]] = []
    last: dict[int, int] = {}
    for i, each in enumerate(transfers):
        if i in joined:
            groups[last[each.leg]].append(i)
        else:
            last[each.leg] = len(groups)
            groups.append([i])
    there: dict[tuple[int, int], float] = {}
    free: dict[int, float] = defaultdict(float)
    done: dict[int, Transfer] = {}
    for group in _in_order(groups, network, transfers):
        number = transfers[group[0]].leg
        leg, count = network.legs[number], len(group)
        start = max(
            [
                *(there.get((transfers[i].piece, leg.src), 0.0) for i in group),
                *(free[resource] for resource in network.use[number]),
            ]
        )
        end = start + network.alpha[number] + count * network.beta[number]
        for resource, held in network.use[number].items():
            free[resource] = start + network.alpha[number] + count * held
        for i in group:
            there[transfers[i].piece, leg.dst] = end
            done[i] = Transfer(piece=transfers[i].piece, leg=number, start=start, end=end)
    return [done[i] for i in range(len(transfers))]


def _in_order(
    groups: Sequence[Sequence[int]], network: SketchedNetwork, transfers: Sequence[Transfer]
) -> list[Sequence[int]]:
    """The groups so that each comes after what it depends on and after what is before it on its links."""
    group_of = {i: g for g, members in enumerate(groups) for i in members}
    pairs = _dependencies(network, transfers) + [(a, b) for a, b, _ in _neighbours(network, transfers)]
    after: dict[int, set[int]] = defaultdict(set)
    waits = [0] * len(groups)
    for a, b in pairs:
        g, h = group_of[a], group_of[b]
        if g != h and h not in after[g]:
            after[g].add(h)
            waits[h] += 1
    ready = [g for g in range(len(groups)) if not waits[g]]
    order = []
    while ready:
        g = ready.pop(0)
        order.append(groups[g])
        for h in sorted(after[g]):
            waits[h] -= 1
            if not waits[h]:
                ready.append(h)
    return order


def _followers(
    pieces: Sequence[Piece], network: SketchedNetwork, transfers: Sequence[Transfer]
) -> dict[int, int]:
    """For each transfer between boxes that could go together with the one before it, that one."""
    last: dict[int, int] = {}
    found = {}
    for i, each in enumerate(transfers):
        resources = network.use[each.leg]
        before = {last.get(resource) for resource in resources}
        if network.crosses(each.leg) and network.alpha[each.leg] > 0 and len(before) == 1:
            (a,) = before
            if a is not None and transfers[a].leg == each.leg:
                sender = network.legs[each.leg].src
                own = [pieces[transfers[k].piece].source == sender for k in (a, i)]
                if own[0] == own[1]:
                    found[i] = a
        for resource in resources:
            last[resource] = i
    return found


def _dependencies(network: SketchedNetwork, transfers: Sequence[Transfer]) -> list[tuple[int, int]]:
    """Pairs of a transfer and one that sends on what it brings."""
    brings = {(each.piece, network.legs[each.leg].dst): i for i, each in enumerate(transfers)}
    pairs = []
    for i, each in enumerate(transfers):
        before = brings.get((each.piece, network.legs[each.leg].src))
        if before is not None:
            pairs.append((before, i))
    return pairs


def _neighbours(network: SketchedNetwork, transfers: Sequence[Transfer]) -> list[tuple[int, int, int]]:
    """Transfers that follow each other on a link or port, with it."""
    last: dict[int, int] = {}
    found = []
    for i, each in enumerate(transfers):
        for resource in network.use[each.leg]:
            if resource in last:
                found.append((last[resource], i, resource))
            last[resource] = i
    return found
