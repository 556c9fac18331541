"""Run a put/signal program on stock NCCL, or emulated in this process; needs NumPy, and not Coppice.

    python FILE                                                all ranks as threads of this process, on NumPy arrays
    torchrun --nproc-per-node 8 ... FILE --engine nccl         a rank for each GPU, by libnccl.so.2 of 2.29.2 or later
    torchrun --nproc-per-node 8 ... FILE --engine nccl4py      the same by nccl4py
    torchrun --nproc-per-node 8 ... FILE --engine torch        the same by torch.distributed._symmetric_memory

Every way fills the inputs, runs the program, and compares the outputs with sums and copies by NumPy. What PROGRAM
holds is the format "coppice-put-signal", version 1: M bytes are cut into `chunks` chunks; buffers are `input`, `output`
and `staging`, in slots of one chunk; and every rank issues `calls`, one after the other, each on its stream:

    transfer    ["put", peer, buffer, slot, buffer, slot, chunks, signal, context], ["signal", peer, signal, context]
    wait        ["wait", peer, signals, signal, context]
    local       ["copy", buffer, slot, buffer, slot, chunks], ["sum", buffer, slot, buffer, slot, buffer, slot, chunks]

A wait is over when as many signals of the peer have come as all waits so far asked for. The engines differ in nothing
but the three methods `transfer`, `wait` and `local`, and in where memory comes from.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import sys
import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

PROGRAM = ""


def program_of(text: str) -> dict[str, Any]:
    """Decode a program: JSON, compressed, in base 85."""
    return dict(json.loads(zlib.decompress(base64.b85decode("".join(text.split())))))


def slots_of(program: dict[str, Any], rank: int) -> dict[str, int]:
    """Slots of a rank's buffers."""
    whole, block = program["chunks"], program["chunks"] // program["ranks"]
    at_root = whole if rank == program["root"] else 0
    taken, given = {
        "all_gather": (block, whole),
        "reduce_scatter": (whole, block),
        "broadcast": (at_root, whole),
        "reduce": (whole, at_root),
        "gather": (block, at_root),
        "scatter": (at_root, block),
    }.get(program["collective"], (whole, whole))
    return {"input": taken, "output": given, "staging": program["staging"][rank]}


def places_of(program: dict[str, Any], rank: int, *, in_place: bool) -> dict[str, tuple[str, int]]:
    """Window of each buffer of a rank, and its first slot there."""
    found = {each: (each, 0) for each in ("input", "output", "staging")}
    slots, own = slots_of(program, rank), rank * (program["chunks"] // program["ranks"])
    if in_place:
        if program["collective"] in ("all_gather", "gather"):
            found["input"] = ("output", own) if slots["output"] else ("input", 0)
        elif program["collective"] in ("reduce_scatter", "scatter"):
            found["output"] = ("input", own) if slots["input"] else ("output", 0)
        else:
            found["output"] = ("input", 0)
    return found


def windows_of(program: dict[str, Any], *, in_place: bool) -> dict[str, int]:
    """Slots of each window, the same on all ranks."""
    most = {"input": 0, "output": 0, "staging": 0}
    for rank in range(program["ranks"]):
        places = places_of(program, rank, in_place=in_place)
        for buffer, slots in slots_of(program, rank).items():
            window, first = places[buffer]
            most[window] = max(most[window], first + slots)
    return {window: max(slots, 1) for window, slots in most.items()}


def input_of(program: dict[str, Any], rank: int, elements: int, seed: int) -> np.ndarray[Any, Any]:
    """Input of a rank: small whole numbers, whose sums are exact in any type."""
    shape = (slots_of(program, rank)["input"], elements)
    return np.random.default_rng((seed, rank)).integers(-8, 9, shape)


def output_of(program: dict[str, Any], rank: int, elements: int, seed: int) -> np.ndarray[Any, Any]:
    """Expected output of a rank."""
    ranks, root = program["ranks"], program["root"]
    block = program["chunks"] // ranks
    own = slice(rank * block, (rank + 1) * block)
    given = [input_of(program, each, elements, seed) for each in range(ranks)]
    held = slots_of(program, rank)["output"]
    kind = program["collective"]
    if kind in ("all_gather", "gather"):
        return np.concatenate(given)[:held]
    if kind == "reduce_scatter":
        return np.asarray(np.sum(given, axis=0)[own])
    if kind == "all_to_all":
        return np.concatenate([each[own] for each in given])
    if kind == "broadcast":
        return np.asarray(given[root])
    if kind == "scatter":
        return np.asarray(given[root][own])
    return np.asarray(np.sum(given, axis=0)[:held])


def run_rank(program: dict[str, Any], rank: int, engine: Any) -> None:
    """Issue the calls of a rank."""
    for call in program["calls"][rank]:
        if "transfer" in call:
            engine.transfer(call["stream"], call["communicator"], call["transfer"])
        elif "wait" in call:
            engine.wait(call["stream"], call["communicator"], call["wait"])
        else:
            engine.local(call["stream"], call["local"])


class Windows:
    """Windows of a rank (arrays or tensors of slots x elements), and the buffers in them."""

    def __init__(
        self, program: dict[str, Any], rank: int, *, in_place: bool, make: Callable[[int], Any]
    ) -> None:
        sizes = windows_of(program, in_place=in_place)
        self.places = places_of(program, rank, in_place=in_place)
        self.windows = {window: make(slots) for window, slots in sizes.items()}

    def slots(self, buffer: str, slot: int, count: int) -> Any:
        """Slots of a buffer."""
        window, first = self.places[buffer]
        return self.windows[window][first + slot : first + slot + count]


class Emulator:
    """Emulate all ranks as threads on NumPy arrays, with a network that delays and reorders messages.

    Messages of one communicator, context and pair of ranks are in one chain, which keeps their order.
    """

    def __init__(self, program: dict[str, Any], *, in_place: bool, elements: int, seed: int) -> None:
        self.program, self.elements, self.seed = program, elements, seed
        self.ranks = [
            Windows(program, rank, in_place=in_place, make=self.noise) for rank in range(program["ranks"])
        ]
        self.changed = threading.Condition()
        self.counters: Counter[tuple[int, ...]] = Counter()
        self.chains: dict[tuple[int, ...], list[tuple[Any, ...]]] = defaultdict(list)
        self.failures: list[str] = []
        self.over = False

    def noise(self, slots: int) -> np.ndarray[Any, Any]:
        """Random memory, which must not affect a result."""
        return np.full((slots, self.elements), 2**40)

    def fail(self, words: str) -> None:
        """Stop all ranks."""
        with self.changed:
            self.failures.append(words)
            self.changed.notify_all()

    def carry(self) -> None:
        """Deliver messages, from any non-empty chain, until all ranks are done."""
        chance = random.Random(self.seed)
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.chains or self.over)
                if not self.chains:
                    return
                key = chance.choice(list(self.chains))
                signal, into, data = self.chains[key].pop(0)
                if not self.chains[key]:
                    del self.chains[key]
            if chance.random() < 0.02:
                time.sleep(chance.random() * 1e-4)
            if data is not None:
                into[:] = data
            with self.changed:
                self.counters[(*key, signal)] += 1
                self.changed.notify_all()

    def run(self, timeout: float) -> list[str]:
        """Run all ranks; return the failures."""
        threads = [EmulatedRank(self, rank, timeout) for rank in range(self.program["ranks"])]
        for rank, memory in enumerate(self.ranks):
            given = input_of(self.program, rank, self.elements, self.seed)
            memory.slots("input", 0, len(given))[:] = given
        network = threading.Thread(target=self.carry, daemon=True)
        for thread in (network, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        with self.changed:
            self.over = True
            self.changed.notify_all()
        network.join()
        if self.failures:
            return self.failures
        for rank, memory in enumerate(self.ranks):
            wanted = output_of(self.program, rank, self.elements, self.seed)
            if not np.array_equal(memory.slots("output", 0, len(wanted)), wanted):
                self.failures.append(f"the output of rank {rank} is wrong")
        return self.failures


class EmulatedRank(threading.Thread):
    """Thread of one rank of the emulator."""

    def __init__(self, emulator: Emulator, rank: int, timeout: float) -> None:
        super().__init__(daemon=True)
        self.emulator, self.rank, self.timeout = emulator, rank, timeout
        self.memory, self.taken = emulator.ranks[rank], Counter[tuple[int, ...]]()
        self.chance = random.Random(emulator.seed * 1009 + rank)

    def run(self) -> None:
        """Issue the rank's calls."""
        try:
            run_rank(self.emulator.program, self.rank, self)
        except (ValueError, KeyError, IndexError, TimeoutError, InterruptedError) as error:
            self.emulator.fail(f"rank {self.rank}: {error}")

    def transfer(self, stream: int, line: int, operations: list[list[Any]]) -> None:
        """Send a group: peers in any order, operations for one peer in order."""
        del stream
        peers: dict[int, list[list[Any]]] = defaultdict(list)
        for each in operations:
            peers[each[1]].append(each)
        for peer in self.chance.sample(list(peers), len(peers)):
            for word, _, *rest in peers[peer]:
                into = data = None
                if word == "put":
                    source, start, target, slot, count = rest[:5]
                    into = self.emulator.ranks[peer].slots(target, slot, count)
                    data = self.memory.slots(source, start, count).copy()
                signal, context = rest[-2:]
                with self.emulator.changed:
                    self.emulator.chains[line, self.rank, peer, context].append((signal, into, data))
                    self.emulator.changed.notify_all()

    def wait(self, stream: int, line: int, operations: list[list[Any]]) -> None:
        """Wait until the counters reach the total of all waits so far."""
        del stream
        for _, peer, count, signal, context in operations:
            key = (line, peer, self.rank, context, signal)
            self.taken[key] += count
            with self.emulator.changed:
                self.emulator.changed.wait_for(
                    lambda: self.emulator.failures or self.missing() == 0, self.timeout
                )
                if self.emulator.failures:
                    raise InterruptedError("stopped")
                if self.missing():
                    raise TimeoutError(f"{self.missing()} signal(s) of rank {peer} did not come")

    def missing(self) -> int:
        """Number of expected signals that have not arrived."""
        return sum(max(0, asked - self.emulator.counters[key]) for key, asked in self.taken.items())

    def local(self, stream: int, operations: list[list[Any]]) -> None:
        """Copy and reduce."""
        del stream
        for word, *rest in operations:
            count = rest[-1]
            read = [self.memory.slots(rest[at], rest[at + 1], count) for at in range(0, len(rest) - 3, 2)]
            self.memory.slots(rest[-3], rest[-2], count)[:] = (
                read[0] + read[1] if word == "sum" else read[0].copy()
            )


def run_emulated(program: dict[str, Any], given: argparse.Namespace) -> int:
    """Run all ranks as threads, in place and out of place as the program allows."""
    ways = [way for way, may in ((False, program["out_of_place"]), (True, program["in_place"])) if may]
    for in_place in [True] if given.in_place else ways:
        for seed in range(given.seed, given.seed + given.runs):
            emulator = Emulator(program, in_place=in_place, elements=given.elements, seed=seed)
            failures = emulator.run(given.timeout)
            if failures:
                sys.stderr.write("\n".join([f"run {seed} failed:", *failures]) + "\n")
                return 1
        way = "in place" if in_place else "out of place"
        words = f"{program['collective']} on {program['ranks']} ranks, {way}"
        sys.stdout.write(f"{words}: {given.runs} run(s) equal NumPy's\n")
    return 0
