"""Camdoop's hops: the native machines and their reference, byte for byte; whole jobs; rebuilt trees; pairs."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from coppice import _switch
from coppice.planners.algorithms.trees.camdoop import torus_trees
from reference.innetwork.camdoop import SUMS, CamdoopWorkerReference, HopReference
from reference.innetwork.driving import (
    AlteringFrames,
    Both,
    Exchange,
    all_done,
    drawn_job,
    frames_exchange,
    in_tree,
    inputs_of,
    native_job,
)
from reference.innetwork.frames import Words
from reference.innetwork.machine import Job


class Tree:
    """One tree of hops: workers are 0, 1, .., hops follow."""

    def __init__(self, job: Job, network: Exchange, fanout: int) -> None:
        self.job, self.network, self.shape = job, network, in_tree(job.workers, fanout)
        self.hostile = isinstance(network, AlteringFrames)
        self.above = {
            c: self.job.workers + at for at, (children, _) in enumerate(self.shape) for c in children
        }
        for at, (children, parent) in enumerate(self.shape):
            hop = HopReference(self.job, children, parent)
            self.network.nodes[self.job.workers + at] = Both.switch(
                "camdoop", self.job.slots, self.job, children, parent, hop
            )
        self.workers = []
        for index in range(self.job.workers):
            worker = CamdoopWorkerReference(self.job, self.above[index])
            self.workers.append(Both.worker("camdoop", self.job, index, self.above[index], worker))
            self.network.nodes[index] = self.workers[-1]

    def begin(self, words: list[Words], *, room: int = 0) -> None:
        for index, worker in enumerate(self.workers):
            pairs = bool(self.job.number("pairs"))
            self.network.put(
                index, worker.begin_words(words[index], self.network.now, pairs=pairs, room=room)
            )

    def run(self, most: int = 200_000) -> bool:
        return self.network.run_for(2000 if self.hostile else most, lambda: all_done(self.workers))

    def rebuild(self, epoch: int) -> None:
        """The same tree in another epoch: everything that hops know is lost."""
        self.job.settings = {**self.job.settings, "life": epoch}
        for at, (children, parent) in enumerate(self.shape):
            self.network.nodes[self.job.workers + at].open(self.job, children, parent)


def drawn_tree(random: Random, seed: int, **settings: float) -> Tree:
    job = drawn_job(random, **settings)
    return Tree(job, frames_exchange(random, seed, [0, 0.5, 1]), random.choice([2, 3, 8]))


def play(seed: int) -> None:
    random = Random(seed)
    played = drawn_tree(random, seed)
    for epoch in range(2):
        words, total = inputs_of(random, played.job.element, played.job.workers, random.randrange(25))
        played.begin(words)
        if seed % 4 == 1:
            played.run(most=random.randrange(200))
            played.rebuild(epoch + 1)
        ended = played.run()
        if played.hostile:
            return
        assert ended
        for worker in played.workers:
            assert np.array_equal(worker.output, total)


def play_pairs(seed: int) -> None:
    random = Random(seed)
    played = drawn_tree(random, seed, pairs=1)
    for _ in range(2):
        totals: dict[int, int] = {}
        words = []
        for _ in range(played.job.workers):
            keys = sorted({random.randrange(40) for _ in range(random.randrange(15))})
            values = [random.randrange(-100, 100) for _ in keys]
            kind = np.int32 if played.job.element == "int32" else np.float32
            both = np.stack(
                [np.array(keys, dtype=np.uint32), np.array(values, dtype=kind).view(np.uint32)], axis=1
            )
            words.append(both.reshape(-1))
            for key, value in zip(keys, values, strict=True):
                totals[key] = totals.get(key, 0) + value
        played.begin(words, room=100)
        ended = played.run()
        if played.hostile:
            return
        assert ended
        for worker in played.workers:
            count = int(worker.output[0])
            pairs = worker.output[2 : 2 + 2 * count].reshape(-1, 2)
            kind = np.int32 if played.job.element == "int32" else np.float32
            assert pairs[:, 0].tolist() == sorted(totals)
            assert pairs[:, 1].copy().view(kind).tolist() == [totals[key] for key in sorted(totals)]
            assert np.array_equal(worker.output[: 2 + 2 * count], worker.reference.output)


def test_workers_with_all_sums_are_told_of_a_rebuilt_tree() -> None:
    """Worker 2, alone below its hop, has all when the tree breaks: the others still need what it gave."""
    job = Job(id=1, workers=3, slots=4, values=1, window=4, timeout=20_000)
    played = Tree(job, Exchange(1, 0, 0, 0), 2)
    words, total = inputs_of(Random(1), "int32", 3, 3)
    played.begin(words)
    network = played.network
    while not played.workers[2].done:
        lost = [way for way in network.on_the_way if way[1] < 2 and way[2][0] == SUMS]
        network.on_the_way = [way for way in network.on_the_way if way not in lost]
        network.step()
    network.on_the_way.clear()
    played.rebuild(1)
    network.run(lambda: all_done(played.workers), steps=2_000)
    assert all(np.array_equal(worker.output, total) for worker in played.workers)


@pytest.mark.parametrize("dims", [(3, 3, 3), (2, 3), (4,)], ids=str)
def test_a_torus_of_hops_with_the_trees_of_the_planner(dims: tuple[int, ...]) -> None:
    """Six trees on 27 servers: each link of a direction carries a sixth of the data once."""
    trees = torus_trees(dims)
    size = trees.hops.shape[1]
    job = Job(id=1, workers=size, slots=4, values=3, window=8, settings={"trees": trees.count})
    hops = [_switch.aggregation_switch("camdoop", 4 * trees.count) for _ in range(size)]
    for tree in range(trees.count):
        for node in range(size):
            below = [child for child in range(1, size) if trees.hops[tree, child] == node]
            own = Job(**{**vars(job), "settings": {**job.settings, "tree": tree}})
            parent = int(trees.hops[tree, node]) if node else -1
            hops[node].open(native_job(own), [size + node, *below], parent)
    workers = [_switch.aggregation_worker("camdoop", native_job(job), node, node) for node in range(size)]
    chunks = 7
    numbers = np.arange(size * chunks * trees.count * 3, dtype=np.int32).reshape(size, -1)
    outputs = np.zeros_like(numbers)
    flying: list[tuple[int, int, bytes]] = []
    carried: dict[tuple[int, int], int] = {}

    def post(sender: int, sent: list[tuple[list[int], bytes]]) -> None:
        for receivers, packet in sent:
            for receiver in receivers:
                flying.append((sender, receiver, packet))
                if packet[0] == 1 and max(sender, receiver) < size:
                    carried[sender, receiver] = carried.get((sender, receiver), 0) + 1

    for node, worker in enumerate(workers):
        sent = worker.begin(numbers[node].ctypes.data, outputs[node].ctypes.data, numbers.shape[1], 0)
        post(size + node, sent)
    while flying:
        sender, receiver, packet = flying.pop(0)
        machine = hops[receiver] if receiver < size else workers[receiver - size]
        post(receiver, machine.receive(sender, packet, 0))
    assert all(worker.done() for worker in workers)
    assert (outputs == numbers.sum(axis=0, dtype=np.int32)).all()
    assert set(carried.values()) == {chunks}
    assert len(carried) == trees.count * (size - 1)
