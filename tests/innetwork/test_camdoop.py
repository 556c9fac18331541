"""Camdoop's hops: the native machines and their twin, byte for byte; whole jobs; rebuilt trees; pairs."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from coppice import _switch
from coppice.planners.algorithms.parts.torus_trees import torus_trees
from reference.innetwork.camdoop import CamdoopWorkerTwin, HopTwin
from reference.innetwork.driving import Both, RandomNetwork, in_tree, inputs_of, native_job
from reference.innetwork.frames import TwinJob, Words


class Job:
    """One tree of hops: workers are 0, 1, .., hops follow."""

    def __init__(self, seed: int, *, pairs: bool) -> None:
        self.random = random = Random(seed)
        self.hostile = seed % 3 == 0
        self.job = TwinJob(
            id=random.choice([0, 7, 2**32 - 1]),
            workers=random.randint(1, 6),
            slots=random.randint(1, 5),
            values=random.randint(1, 4),
            window=random.randint(1, 7),
            element=random.choice(["int32", "float32"]),
            timeout=20_000,
            give_up_timeout=2**61,
            settings={"first": random.choice([0, 2**32 - 3]), "pairs": int(pairs)},
        )
        self.network = RandomNetwork(
            seed,
            loss=random.choice([0, 0.05, 0.2]),
            doubled=random.choice([0, 0.1]),
            spoilt=0.2 if self.hostile else 0,
            in_order=random.choice([0, 0.5, 1]),
        )
        self.shape = in_tree(self.job.workers, random.choice([2, 3, 8]))
        self.above = {
            c: self.job.workers + at for at, (children, _) in enumerate(self.shape) for c in children
        }
        for at, (children, parent) in enumerate(self.shape):
            native = _switch.aggregation_switch("camdoop", self.job.slots)
            native.open(native_job(self.job), children, parent)
            self.network.nodes[self.job.workers + at] = Both(native, HopTwin(self.job, children, parent))
        self.workers = []
        for index in range(self.job.workers):
            native_worker = _switch.aggregation_worker(
                "camdoop", native_job(self.job), index, self.above[index]
            )
            self.workers.append(Both(native_worker, CamdoopWorkerTwin(self.job, self.above[index])))
            self.network.nodes[index] = self.workers[-1]

    def begin(self, words: list[Words], *, room: int = 0) -> None:
        for index, worker in enumerate(self.workers):
            pairs = bool(self.job.number("pairs"))
            self.network.post(index, worker.begin(words[index], self.network.now, pairs=pairs, room=room))

    def run(self, most: int = 200_000) -> bool:
        return self.network.run(
            lambda: all(worker.done for worker in self.workers), most=2000 if self.hostile else most
        )

    def rebuild(self, epoch: int) -> None:
        """The same tree in another epoch: everything that hops know is lost."""
        self.job.settings["life"] = epoch
        for at, (children, parent) in enumerate(self.shape):
            both = self.network.nodes[self.job.workers + at]
            both.native.open(native_job(self.job), children, parent)
            both.twin.reopen(self.job, children, parent)


def play(seed: int) -> None:
    played = Job(seed, pairs=False)
    for epoch in range(2):
        words, total = inputs_of(
            played.random, played.job.element, played.job.workers, played.random.randrange(25)
        )
        played.begin(words)
        if seed % 4 == 1:
            played.run(most=played.random.randrange(200))
            played.rebuild(epoch + 1)
        ended = played.run()
        if played.hostile:
            return
        assert ended
        for worker in played.workers:
            assert np.array_equal(worker.output, total)


def play_pairs(seed: int) -> None:
    played = Job(seed, pairs=True)
    for _ in range(2):
        totals: dict[int, int] = {}
        words = []
        for _ in range(played.job.workers):
            keys = sorted({played.random.randrange(40) for _ in range(played.random.randrange(15))})
            values = [played.random.randrange(-100, 100) for _ in keys]
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
            assert np.array_equal(worker.output[: 2 + 2 * count], worker.twin.output)


@pytest.mark.parametrize("dims", [(3, 3, 3), (2, 3), (4,)], ids=str)
def test_a_torus_of_hops_with_the_trees_of_the_planner(dims: tuple[int, ...]) -> None:
    """Six trees on 27 servers: each link of a direction carries a sixth of the data once."""
    trees = torus_trees(dims)
    size = trees.hops.shape[1]
    job = TwinJob(id=1, workers=size, slots=4, values=3, window=8, settings={"trees": trees.count})
    hops = [_switch.aggregation_switch("camdoop", 4 * trees.count) for _ in range(size)]
    for tree in range(trees.count):
        for node in range(size):
            below = [child for child in range(1, size) if trees.hops[tree, child] == node]
            own = TwinJob(**{**vars(job), "settings": {**job.settings, "tree": tree}})
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
