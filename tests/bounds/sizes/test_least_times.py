"""Least times of sizes against linear programs over expanded time; certificates against a checker of its own."""

from __future__ import annotations

import dataclasses
import random
from fractions import Fraction
from itertools import permutations
from math import ceil

import numpy as np
import pytest

from coppice.bounds import bound
from coppice.bounds.problem import Problem
from coppice.bounds.sizes.arrival import Sink
from coppice.bounds.sizes.classes import class_network
from coppice.bounds.sizes.describe import limit_words, witness_record
from coppice.bounds.sizes.growth import growth_time
from coppice.bounds.sizes.least import TimeBound, TimeBounds
from coppice.bounds.sizes.timed import MessageCosts, TimedNetwork
from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.schedule.verification.time_proof import check_time_bound
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset
from reference.time_expanded import StepLink, least_steps
from support.blocks import blocks

ALL = [each for each in Collective if each is not Collective.BARRIER]


def drawn(rng: random.Random, *, most: int = 5, slowest: int = 3, rates: int = 3) -> Topology:
    """A connected network of GPUs and switches with whole rates (GB/s) and latencies (ns)."""
    count = rng.randint(2, most)
    switches = rng.randint(0, max(0, count - 2)) if rng.random() < 0.5 else 0
    nodes = [
        Node(id=f"n{i}", kind=NodeKind.SWITCH if i >= count - switches else NodeKind.GPU)
        for i in range(count)
    ]
    ends = {(i, rng.randrange(i)) for i in range(1, count)}
    ends |= {(b, a) for a, b in ends}
    for _ in range(rng.randint(0, count)):
        a, b = rng.sample(range(count), 2)
        ends.add((a, b))
    links = [
        Link(
            src=f"n{a}",
            dst=f"n{b}",
            gb_per_s=Fraction(rng.randint(1, rates)),
            latency_us=rng.randint(0, slowest) / 1000,
            duplex=False,
        )
        for a, b in sorted(ends)
    ]
    return Topology.of("drawn", nodes, links)


def problem_on(rng: random.Random, topology: Topology, collective: Collective) -> Problem:
    ranks = topology.num_ranks
    weights = demands = None
    if collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER) and rng.random() < 0.5:
        weights = (*(rng.randint(0, 3) for _ in range(ranks - 1)), 1)
    if collective is Collective.ALL_TO_ALL and ranks > 1 and rng.random() < 0.5:
        rows = [[rng.randint(0, 3) for _ in range(ranks)] for _ in range(ranks)]
        rows[0][1] += 1
        demands = tuple(tuple(row) for row in rows)
    root = rng.randrange(ranks) if collective.rooted else None
    return Problem(topology, collective, root=root, weights=weights, demands=demands)


def steps_of(topology: Topology, *, turned: bool) -> list[StepLink]:
    ends = (topology.dst, topology.src) if turned else (topology.src, topology.dst)
    return [
        StepLink(int(a), int(b), int(c), round(1000 * latency))
        for a, b, c, latency in zip(*ends, topology.capacity, topology.latency_us, strict=True)
    ]


@pytest.mark.parametrize("seed", range(40))
def test_one_sink_takes_exactly_the_steps_of_the_linear_program(seed: int) -> None:
    """Rates are bytes a nanosecond and latencies whole nanoseconds, so a step is one."""
    rng = random.Random(seed)
    topology = drawn(rng)
    collective = rng.choice([Collective.GATHER, Collective.SCATTER])
    problem = problem_on(rng, topology, collective)
    size = rng.randint(1, 6) * topology.num_ranks
    found = TimeBounds(problem, MessageCosts()).least(size)
    nodes = topology.rank_nodes.tolist()
    sink = nodes[problem.root or 0]
    needs = {sink: {node: size // topology.num_ranks for node in nodes if node != sink}}
    expected = least_steps(
        topology.num_nodes, steps_of(topology, turned=collective is Collective.SCATTER), needs
    )
    assert ceil(found.time_us * 1000) == expected


@pytest.mark.parametrize("seed", range(25))
def test_gathering_everywhere_takes_no_less_than_said(seed: int) -> None:
    rng = random.Random(seed)
    topology = drawn(rng, most=4, rates=2)
    collective = rng.choice([Collective.ALL_GATHER, Collective.BROADCAST])
    problem = problem_on(rng, topology, collective)
    size = int(2 * problem.shards)
    costs = MessageCosts(gpu_gb_per_s=rng.choice([None, Fraction(1)]))
    found = TimeBounds(problem, costs).least(size)
    check_time_bound(found)
    nodes = topology.rank_nodes.tolist()
    if collective is Collective.BROADCAST:
        held = {nodes[problem.root or 0]: size}
    else:
        held = dict(zip(nodes, [2 * each for each in problem.weights or [1] * len(nodes)], strict=True))
    needs = {sink: {node: part for node, part in held.items() if node != sink} for sink in nodes}
    network = TimedNetwork.of(topology, costs)
    links = [
        StepLink(a, b, int(c * network.scale), latency // network.units)
        for a, b, c, latency in zip(
            *(each.tolist() for each in (network.tail, network.head, network.capacity, network.latency)),
            strict=True,
        )
    ]
    plain = set(range(network.num_nodes)) - set(nodes)
    assert found.time_us * 1000 <= least_steps(network.num_nodes, links, needs, plain=plain)


def test_ranks_that_send_little_are_counted_together() -> None:
    """Three ranks need a byte each of one that sends 1 of them at a time, or of each other once they have it."""
    star = preset("star", gpus=4, gb_per_s=10)
    costs = MessageCosts(gpu_gb_per_s=Fraction(1))
    found = TimeBounds(Problem(star, "all_gather"), costs).least(4000)
    check_time_bound(found)
    assert (found.joint, found.time_us) == (True, 3)
    assert limit_words(found) == "11.7 KiB must enter all GPUs in all at 4 GB/s"
    alone = TimeBounds(Problem(star, "all_gather"), MessageCosts()).least(4000)
    assert alone.time_us == Fraction(3, 10)
    reduced = TimeBounds(Problem(star, "all_reduce"), costs).least(4000)
    check_time_bound(reduced)
    assert (reduced.cut, reduced.time_us) == (None, 6)
    assert limit_words(reduced) == "all data must be sent 6 times by GPUs that send at most 1 GB/s each"
    with pytest.raises(CheckError, match="sends are counted in an all-reduce and an all-to-all"):
        check_time_bound(dataclasses.replace(reduced, problem=Problem(star, "all_gather")))


def test_what_is_passed_on_is_sent_again() -> None:
    """On a path of three, ranks send 8 blocks in all: two of them twice, by the one in the middle."""
    path = preset("path", gpus=3, gb_per_s=100)
    costs = MessageCosts(gpu_gb_per_s=Fraction(1), message_us=0.5)
    found = TimeBounds(Problem(path, "all_to_all"), costs).least(3000)
    check_time_bound(found)
    assert found.priced is not None
    assert found.priced.witness is None
    assert found.time_us == Fraction(8, 3) + Fraction(1, 2)
    said = "7.81 KiB must be sent in all, what is passed on again, by GPUs that send at most 1 GB/s each"
    assert limit_words(found) == said
    with pytest.raises(CheckError, match="this proves nothing"):
        check_time_bound(dataclasses.replace(found, time_us=found.time_us * Fraction(1001, 1000)))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_an_all_reduce_sends_each_element_this_often(ranks: int) -> None:
    """By trying all orders of messages: a state is what each rank knows."""
    whole = (1 << ranks) - 1
    states = {tuple(1 << i for i in range(ranks))}
    sends = 0
    while not any(all(known == whole for known in state) for state in states):
        after = set()
        for state in states:
            for a, b in permutations(range(ranks), 2):
                if state[a] | state[b] != state[b]:
                    after.add((*state[:b], state[a] | state[b], *state[b + 1 :]))
        states, sends = after, sends + 1
    assert sends == 2 * (ranks - 1)


@pytest.mark.parametrize("collective", ALL)
@pytest.mark.parametrize("block", blocks(3, always=1))
@pytest.mark.spread(3)
def test_every_certificate_is_counted_again(block: int, collective: Collective) -> None:
    for seed in range(block * 20, block * 20 + 20):
        rng = random.Random(f"{collective} {seed}")
        problem = problem_on(rng, drawn(rng, most=7, slowest=rng.choice([0, 3, 2000])), collective)
        bounds = TimeBounds(problem, drawn_costs(rng))
        before = Fraction(0)
        for size in (0, 1, 100, 10_000, 10_000_000):
            found = bounds.least(size)
            check_time_bound(found)
            assert found.time_us >= before
            before = found.time_us


def drawn_costs(rng: random.Random) -> MessageCosts:
    return MessageCosts(
        start_us=rng.choice([0.0, 2.5]),
        message_us=rng.choice([0.0, 0.6, 1.0]),
        crossing_us=rng.choice([0.0, 2.1]),
        links=rng.random() < 0.8,
        expansion=rng.choice([Fraction(1), Fraction(2), Fraction(16, 15)]),
        gpu_gb_per_s=rng.choice([None, Fraction(3, 2)]),
        burst_bytes=rng.choice([0, 0, 500]),
        workers=rng.choice([0, 1, 2]),
        send_us=0.3,
        receive_us=rng.choice([0.0, 0.3]),
    )


@pytest.mark.parametrize("collective", ALL)
@pytest.mark.spread(3)
def test_certificates_that_were_changed_are_refused(collective: Collective) -> None:
    refused = 0
    for seed in range(40):
        rng = random.Random(f"change {collective} {seed}")
        problem = problem_on(rng, drawn(rng, most=6), collective)
        costs = MessageCosts(message_us=0.5, gpu_gb_per_s=rng.choice([None, Fraction(1, 4)]))
        found = TimeBounds(problem, costs).least(rng.choice([200, 20_000]))
        if found.time_us == 0:
            continue
        for change in changes(rng, found):
            with pytest.raises(CheckError):
                check_time_bound(change)
            refused += 1
    assert refused > 40


def changes(rng: random.Random, found: TimeBound) -> list[TimeBound]:
    """Claims that are false: a longer time, fewer bytes for it, labels beyond the time."""
    fewer = found.size_bytes - ceil(found.problem.shards)  # every share has fewer whole bytes
    more = [dataclasses.replace(found, time_us=found.time_us * Fraction(1001, 1000))]
    cut = found.cut
    if cut is not None:
        longer = dataclasses.replace(cut, time_ns=cut.time_ns * Fraction(1001, 1000))
        more.append(dataclasses.replace(found, time_us=longer.time_ns / 1000, cut=longer))
        offset = cut.offset.copy()
        offset[rng.randrange(len(offset))] = int(cut.time_ns * cut.units) + 1
        more.append(dataclasses.replace(found, cut=dataclasses.replace(cut, offset=offset)))
        if found.joint:
            more.append(dataclasses.replace(found, sinks=(0,)))
        if found.joint:
            ranks = found.problem.topology.num_ranks
            wrong: list[tuple[int, ...]] = [(), (ranks,), (-1,), (*found.sources, found.sources[0])]
            more += [dataclasses.replace(found, sources=each) for each in wrong]
        if len(found.sinks) > 1 and cut.rate:
            more.append(dataclasses.replace(found, sinks=found.sinks[1:]))
        if cut.rate:
            more.append(dataclasses.replace(found, size_bytes=fewer))
        more.append(
            dataclasses.replace(found, turned=not found.turned)
        ) if found.problem.demands is None and (
            found.problem.collective is not Collective.ALL_TO_ALL
        ) else None
    else:
        more.append(dataclasses.replace(found, size_bytes=fewer))
    return more


@pytest.mark.parametrize("collective", ALL)
def test_long_messages_take_the_time_of_the_bound_on_the_rate(collective: Collective) -> None:
    """Of an all-reduce whose proof has overlapping sets, no more; of others, what the rate says."""
    for seed in range(15):
        rng = random.Random(f"long {collective} {seed}")
        problem = problem_on(rng, drawn(rng, most=6), collective)
        if problem.topology.num_ranks < 2 or bound(problem).inv_rate == 0:
            continue
        size = 10**15
        found = TimeBounds(problem, MessageCosts()).least(size)
        by_rate = size / problem.shards * bound(problem).inv_rate / 1000
        if collective is not Collective.ALL_REDUCE:
            assert by_rate * Fraction(999_999, 10**6) <= found.time_us
        assert found.time_us <= by_rate + 10**6


def test_classes_lose_nothing() -> None:
    """With every node a class of its own, the least time is the same."""
    for name, more in (
        ("ring", {"gpus": 6}),
        ("hypercube", {"dimension": 3}),
        ("dgx-1v", {}),
        ("star", {"gpus": 5}),
    ):
        network = TimedNetwork.of(preset(name, **more), MessageCosts(message_us=1))
        nodes = network.topology.rank_nodes.tolist()
        sink = Sink.of(network, nodes[0], dict.fromkeys(nodes, 1))
        assert sink is not None
        assert (sink.classes.num_classes < network.num_nodes) is (name != "dgx-1v")
        alone = class_network(network, np.arange(network.num_nodes))
        shares = np.array([float(sink.share.get(node, 0)) for node in range(network.num_nodes)])
        apart = dataclasses.replace(
            sink,
            classes=alone,
            class_share=shares,
            ways={v: sink.ways[int(c)] for v, c in enumerate(sink.classes.node_class)},
        )
        for part in (Fraction(10), Fraction(5000), Fraction(10**8)):
            one, other = sink.least_time(part, Fraction(0)), apart.least_time(part, Fraction(0))
            assert one is not None
            assert other is not None
            assert one.time_ns == other.time_ns


def test_nothing_to_move_takes_no_time() -> None:
    alone = Topology.of("alone", [Node(id="a")], [])
    for collective in Collective:
        root = 0 if collective.rooted else None
        found = TimeBounds(
            Problem(alone, collective, root=root), MessageCosts(start_us=3, message_us=1)
        ).least(1000)
        check_time_bound(found)
        assert found.time_us == 0


def test_an_all_reduce_is_a_broadcast_of_each_and_a_reduction_to_each() -> None:
    """Of n ranks with a byte a nanosecond each: T = 2a - a/(n - 1) + M (docs/theory.md, Theorem 14)."""
    star = preset("star", gpus=4, gb_per_s=1)
    found = TimeBounds(Problem(star, "all_reduce"), MessageCosts(message_us=1)).least(800)
    check_time_bound(found)
    assert found.joint
    assert len(found.sources) == 1
    assert found.time_us == Fraction(5, 3) + Fraction(800, 1000)
    assert limit_words(found) == "2.34 KiB must enter all GPUs in all at 3 GB/s, and 1.67 us of latency"
    record = witness_record(found)
    assert (record["source_names"], record["sink"], record["sink_names"]) == (["gpu0"], None, [])


def test_a_box_passes_on_nothing_before_it_has_come() -> None:
    """Of two boxes of 8 GPUs, each must have 8 shares of the other, which come by 8 NICs and are passed on."""
    boxes = preset("dgx-a100", boxes=2)
    costs = MessageCosts(message_us=1, crossing_us=2, gpu_gb_per_s=Fraction(50))
    found = TimeBounds(Problem(boxes, "all_gather"), costs).least(160_000)
    check_time_bound(found)
    assert found.sources == (*range(8, 16),)
    # 8 NICs of 25 GB/s from 3 us on, and 8 GPUs that send 50 GB/s from then until 1 us before the end
    needed = Fraction(8 * 80_000, 1000)
    assert found.time_us == (needed + 200 * 3 + 400 * 4) / 600
    reduced = TimeBounds(Problem(boxes, "reduce_scatter"), costs).least(160_000)
    check_time_bound(reduced)
    fewer = dataclasses.replace(found, sources=found.sources[1:])
    with pytest.raises(CheckError, match="this proves nothing"):
        check_time_bound(fewer)
    summed = dataclasses.replace(found, problem=Problem(boxes, "all_reduce"))
    with pytest.raises(CheckError, match="must name the one rank"):
        check_time_bound(summed)


def told_by(time: Fraction, workers: int, occupied: Fraction, message: Fraction) -> int:
    """Ranks that can know by a time, one message after the other in order of time."""
    known, arrivals = 1, [message + j * occupied for j in range(1 + int(time / occupied))]
    pending = sorted(at for at in arrivals for _ in range(workers))
    while pending and pending[0] <= time and known < 2000:
        at = pending.pop(0)
        known += 1
        further = [at + message + j * occupied for j in range(1 + int(time / occupied))]
        pending = sorted([*pending, *(each for each in further for _ in range(workers) if each <= time)])
    return known


@pytest.mark.parametrize("seed", range(30))
def test_as_many_ranks_know_as_workers_can_tell(seed: int) -> None:
    rng = random.Random(f"growth {seed}")
    workers, occupied = rng.randint(1, 3), Fraction(rng.randint(1, 6), 2)
    message, others = occupied + Fraction(rng.randint(0, 6), 2), rng.randint(1, 40)
    time = growth_time(others, workers=workers, occupancy=occupied, message=message)
    assert told_by(time, workers, occupied, message) > others
    assert told_by(time - Fraction(1, 1000), workers, occupied, message) <= others


def test_sixteen_workers_do_not_inform_71_others_at_once() -> None:
    racks = preset("gb200-nvl72")
    costs = MessageCosts(message_us=0.6, workers=16, send_us=0.3, receive_us=0.3)
    for collective, told in ((Collective.BROADCAST, "inform"), (Collective.REDUCE, "hear of")):
        found = TimeBounds(Problem(racks, collective, root=3), costs).least(72)
        check_time_bound(found)
        assert found.time_us == Fraction(12, 10)
        assert limit_words(found) == (
            f"one GPU must {told} 71 others by messages of 0.6 us, and 16 workers of a GPU "
            f"{'send' if told == 'inform' else 'receive'} one each in 0.3 us"
        )
        assert witness_record(found)["kind"] == "growth"
        for changed in (
            {"time_us": found.time_us + Fraction(1, 1000)},
            {"growth": "gathered" if told == "inform" else "spread"},
            {"costs": dataclasses.replace(costs, workers=0)},
            {"costs": dataclasses.replace(costs, workers=71)},
        ):
            with pytest.raises(CheckError):
                check_time_bound(dataclasses.replace(found, **changed))


def test_links_between_boxes_rest_while_boxes_add() -> None:
    """With a rail for each GPU, all but one GPU of a box wait for a message before, and are waited for after."""
    rails = preset("dgx-h100", boxes=4)
    costs = MessageCosts(message_us=1, crossing_us=2)
    found = TimeBounds(Problem(rails, "all_reduce"), costs).least(4_000_000)
    check_time_bound(found)
    assert found.priced is not None
    assert limit_words(found) == "all data must leave and enter each of 4 sets of nodes once"
    # 32 links of 50 GB/s, 4 of them at once and 28 after 1 us and until 1 us before the end
    assert found.time_us == 3 + (Fraction(6 * 4_000_000, 50_000) + 28 * 2) / 32
    assert len(witness_record(found)["representative_names"]) == 4
    for chosen in ((), found.priced.representatives[1:], (*found.priced.representatives[1:], 8)):
        priced = dataclasses.replace(found.priced, representatives=chosen)
        with pytest.raises(CheckError, match=r"a set without one|only ranks stand"):
            check_time_bound(dataclasses.replace(found, priced=priced))
    more = dataclasses.replace(found.priced, representatives=tuple(rails.rank_nodes.tolist()))
    with pytest.raises(
        CheckError, match="this proves nothing"
    ):  # all ranks stand for their sets: true, but less
        check_time_bound(dataclasses.replace(found, priced=more))


def test_ranks_stand_for_disjoint_sets_of_an_all_reduce_only() -> None:
    star = preset("star", gpus=4, gb_per_s=10)
    costs = MessageCosts(gpu_gb_per_s=Fraction(1))
    found = TimeBounds(Problem(star, "all_reduce"), costs).least(4000)
    assert found.priced is not None
    assert found.priced.witness is None
    fewer = dataclasses.replace(found.priced, representatives=(0, 1))
    with pytest.raises(CheckError, match="fewer ranks than there are"):
        check_time_bound(dataclasses.replace(found, priced=fewer))


def test_a_box_is_one_source_of_an_all_to_all() -> None:
    """Half of 16 shares leave each box by 8 NICs of 25 GB/s, each byte after 3 us at the earliest."""
    boxes = preset("dgx-a100", boxes=2)
    costs = MessageCosts(message_us=1, crossing_us=2)
    found = TimeBounds(Problem(boxes, "all_to_all"), costs).least(16_000_000)
    check_time_bound(found)
    assert len(found.sinks) == 8
    assert found.time_us == 3 + Fraction(8_000_000, 25_000)
    assert limit_words(found).startswith("61 MiB must enter box")
    gathered = dataclasses.replace(found, problem=Problem(boxes, "all_gather"))
    with pytest.raises(CheckError, match="one node needs what crosses a cut, found several"):
        check_time_bound(gathered)


def test_boxes_of_unlike_demands_are_looked_at_one_by_one() -> None:
    rng = random.Random("boxes")
    boxes = preset("dgx-a100", boxes=2)
    rows = tuple(tuple(rng.randint(0, 3) for _ in range(16)) for _ in range(16))
    problem = Problem(boxes, "all_to_all", demands=rows)
    size = int(1000 * problem.shards)
    found = TimeBounds(problem, MessageCosts(message_us=1, crossing_us=2)).least(size)
    check_time_bound(found)
    across = max(sum(rows[i][j] for i in range(a, a + 8) for j in range(8 - a, 16 - a)) for a in (0, 8))
    assert found.time_us >= 3 + Fraction(1000 * across, 200_000)


def test_a_message_to_another_box_crosses_once() -> None:
    """A box whose NICs are joined to two switches could be passed: links out of it count for nothing more."""
    costs = MessageCosts(message_us=1, crossing_us=5)
    plain = preset("dgx-a100", boxes=2)
    assert (
        TimeBounds(Problem(plain, "all_gather"), costs).least(0).time_us == 7
    )  # a GPU passes on: two messages
    gpus = [Node(id=f"g{i}", host=f"h{i}") for i in range(3)]
    inner = [Node(id=f"s{i}", kind=NodeKind.SWITCH, host=f"h{i}") for i in range(3)]
    links = [Link(src=f"g{i}", dst=f"s{i}", gb_per_s=Fraction(1)) for i in range(3)]
    links += [Link(src=f"s{i}", dst=f"s{i + 1}", gb_per_s=Fraction(1)) for i in range(2)]
    chain = Topology.of("chain of boxes", [*gpus, *inner], links)
    assert TimeBounds(Problem(chain, "all_gather"), costs).least(0).time_us <= 6


def test_fewer_sinks_prove_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    from coppice.bounds.sizes import least

    for seed in range(12):
        rng = random.Random(f"few {seed}")
        collective = rng.choice([Collective.ALL_GATHER, Collective.ALL_TO_ALL, Collective.BROADCAST])
        problem = problem_on(rng, drawn(rng, most=7), collective)
        whole = TimeBounds(problem, MessageCosts(message_us=0.5)).least(5000)
        with monkeypatch.context() as few:
            few.setattr(least, "MOST_SINKS", 1)
            found = TimeBounds(problem, MessageCosts(message_us=0.5)).least(5000)
        check_time_bound(found)
        assert found.time_us <= whole.time_us
