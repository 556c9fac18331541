"""Execution plans of MSCCL++ run with numbers by threads, proxies and ranks that nothing keeps in step but themselves.

The JSON is taken as it stands. Every thread of every thread block is a generator that goes one access of memory at a
time; so is every proxy. At any moment one of those that can go on, chosen at random, does. A rank begins at some
moment, before which its memory holds something else, and once all its threads have come to an end its output is looked
at and its memory is overwritten, as its caller may do.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

Wait = Callable[[], bool] | None
_LETTERS = ("i", "o", "s")
_ADDS = {
    "re": "dd>d", "res": "dd>dD", "rre": "dD>d", "rres": "dD>dD",
    "repkt": "dp>d", "respkt": "dp>dP", "recpkt": "dp>dp", "recspkt": "dp>dpP",
}  # fmt: skip


class _Rank:
    def __init__(self, machine: _Machine, number: int) -> None:
        self.number, self.machine = number, machine
        self.gpu = machine.plan["gpus"][number]
        self.begun = False
        self.left = 0  # threads that have not come to an end
        self.result: list[Any] | None = None
        words = machine.words
        self.inputs, self.outputs = machine.chunks_of(number)
        self.memory: dict[tuple[str, int], Any] = {}
        self.scratch_words = self.gpu["scratch_chunks"] * (machine.ring or words)

    def garbage(self, *, scratch: bool) -> None:
        rng, words = self.machine.rng, self.machine.words
        for letter, chunks in (("i", self.inputs), ("o", self.outputs)):
            for word in range(chunks * words):
                self.memory[self.machine.place(self.number, letter, word)] = rng.getrandbits(60)
        if scratch:
            for word in range(2 * self.scratch_words):
                self.memory["s", word] = rng.getrandbits(60)


class _Machine:
    def __init__(self, plan: dict[str, Any], rng: random.Random, rounds: int, ring: int) -> None:
        self.plan, self.rng = plan, rng
        gpus = plan["gpus"]
        self.count = len(gpus)
        ops = [op for gpu in gpus for block in gpu["threadblocks"] for op in block["ops"]]
        ops += [inner for op in ops for inner in op.get("ops", ())]
        widest = max(
            [len(op.get("channel_ids", ())) for op in ops] + [len(op.get("dst_buff", ())) for op in ops] + [1]
        )
        self.threads = max(3, min(widest, 8))
        shares = 1
        for op in ops:
            shares = max(shares, op.get("tbg_info", {}).get("tbg_size", 1))
        self.piece = self.threads if any(op["name"] == "pipeline" for op in ops) else 0
        self.ring = ring * self.piece
        self.words = rounds * self.piece if self.piece else shares * self.threads
        self.units = [op["iter_context"]["unit_size"] for op in ops if op["name"] == "pipeline"]
        self.ranks = [_Rank(self, number) for number in range(self.count)]
        self.signals: dict[tuple[int, int, str, int], int] = defaultdict(int)  # into (rank, from, kind, k-th)
        self.waits: dict[tuple[int, int, str, int], int] = defaultdict(int)
        self.queues: dict[tuple[int, int, str, int], list[Any]] = defaultdict(list)
        self.barriers: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])  # came, generation
        self.semaphores = {
            (rank.number, number): each["init_value"]
            for rank in self.ranks
            for number, each in enumerate(rank.gpu.get("semaphores", ()))
        }
        self.first = dict(self.semaphores)
        self.values = {
            (rank.number, word): rng.getrandbits(60)
            for rank in self.ranks
            for word in range(rank.inputs * self.words)
        }
        self.faults: list[str] = []

    def chunks_of(self, rank: int) -> tuple[int, int]:
        gpu = self.plan["gpus"][rank]
        inputs, outputs, count = gpu["input_chunks"], gpu["output_chunks"], len(self.plan["gpus"])
        match self.plan["collective"]:
            case "allgather":
                outputs = outputs or inputs * count
                return outputs // count, outputs
            case "reducescatter":
                inputs = inputs or outputs * count
                return inputs, inputs // count
            case _:
                return max(inputs, outputs), max(inputs, outputs)

    def place(self, rank: int, letter: str, word: int) -> tuple[str, int]:
        if not self.plan["inplace"] or letter == "s":
            return letter, word
        inputs, outputs = self.chunks_of(rank)
        match self.plan["collective"]:
            case "allgather":
                return "o", word + (rank * inputs * self.words if letter == "i" else 0)
            case "reducescatter":
                return "i", word + (rank * outputs * self.words if letter == "o" else 0)
            case _:
                return "i", word

    def begin(self, rank: _Rank) -> None:
        rank.garbage(scratch=not self.plan.get("use_double_scratch_buffer"))
        for word in range(rank.inputs * self.words):
            rank.memory[self.place(rank.number, "i", word)] = self.values[rank.number, word]
        rank.begun = True

    def end(self, rank: _Rank) -> None:
        rank.result = [
            rank.memory[self.place(rank.number, "o", word)] for word in range(rank.outputs * self.words)
        ]
        rank.garbage(scratch=not self.plan.get("use_double_scratch_buffer"))

    def expected(self, rank: int) -> list[int]:
        inputs, outputs = self.chunks_of(rank)
        words, count = self.words, self.count
        size = outputs * words
        match self.plan["collective"]:
            case "allgather":
                part = inputs * words
                return [self.values[word // part, word % part] for word in range(size)]
            case "reducescatter":
                return [sum(self.values[r, rank * size + word] for r in range(count)) for word in range(size)]
            case "alltoall":
                part = size // count
                return [self.values[word // part, rank * part + word % part] for word in range(size)]
            case _:
                return [sum(self.values[r, word] for r in range(count)) for word in range(size)]

    def read(self, rank: int, letter: str, word: int) -> Any:
        place = self.place(rank, letter, word)
        if place not in self.ranks[rank].memory:
            self.faults.append(f"reads beyond {letter} of {rank}")
        return self.ranks[rank].memory.get(place, 0)

    def write(self, rank: int, letter: str, word: int, value: Any) -> None:
        place = self.place(rank, letter, word)
        if place not in self.ranks[rank].memory:
            self.faults.append(f"writes beyond {letter} of {rank}")
            return
        self.ranks[rank].memory[place] = value


class _Block:
    """What the threads of one thread block share."""

    def __init__(self, machine: _Machine, rank: int, block: dict[str, Any]) -> None:
        self.machine, self.rank, self.block = machine, rank, block
        gpu = machine.plan["gpus"][rank]
        self.came = self.generation = 0
        flat: dict[str, list[Any]] = defaultdict(list)
        seen: dict[tuple[str, int], int] = defaultdict(int)
        for channel in gpu["channels"]:
            kind = channel["channel_type"]
            if kind == "switch":
                letter = channel.get("buffer_type", channel.get("buff"))
                flat[kind] += [(letter, group["ranks"]) for group in channel["rank_groups"]]
                continue
            for peer in channel["connected_to"]:
                flat[kind].append((peer, kind, seen[kind, peer]))
                seen[kind, peer] += 1
        self.channels: dict[str, list[Any]] = defaultdict(list)
        for entry in block["channels"]:
            kind = entry["channel_type"]
            self.channels[kind] += [flat[kind][number] for number in entry["channel_ids"]]
        self.remote: dict[str, list[Any]] = defaultdict(list)
        for entry in block.get("remote_buffer_refs", ()):
            for number in entry["remote_buffer_ids"]:
                buffer = gpu["remote_buffers"][number]
                self.remote[entry["access_channel_type"]].append((buffer["rank"], buffer["type"]))

    def join(self) -> Iterator[Wait]:
        self.came += 1
        mine = self.generation
        if self.came == self.machine.threads:
            self.came, self.generation = 0, mine + 1
        yield lambda: self.generation > mine

    def thread(self, number: int) -> Iterator[Wait]:
        """One thread from beginning to end."""
        rank = self.machine.ranks[self.rank]
        yield lambda: rank.begun
        for op in self.block["ops"]:
            if op["name"] != "pipeline":
                yield from self.operation(number, op, None, 0)
                continue
            step = op["iter_context"]["unit_size"] // min(self.machine.units) * self.machine.piece
            total = op["iter_context"]["num_chunks"] * self.machine.words
            for turn in range(-(-total // step)):
                for inner in op["ops"]:
                    yield from self.operation(number, inner, step, turn)
        rank.left -= 1
        if not rank.left:
            self.machine.end(rank)

    def operation(self, number: int, op: dict[str, Any], step: int | None, turn: int) -> Iterator[Wait]:
        machine, name = self.machine, op["name"]
        kind = op.get("channel_type", "none")
        if name == "nop":
            yield from self.join()
        elif name == "barrier":
            yield from self.join()
            if number == 0:
                state = machine.barriers[self.rank, op["barrier_id"]]
                mine = state[1]
                state[0] += 1
                if state[0] == op["num_threadblocks"]:
                    state[0], state[1] = 0, mine + 1
                yield lambda: state[1] > mine
            yield from self.join()
        elif name.endswith("signal"):
            if number < len(op["channel_ids"]):
                peer, _, place = self.channels[kind][op["channel_ids"][number]]
                yield None
                if kind == "port":
                    machine.queues[self.rank, peer, kind, place].append(("signal", None))
                else:
                    machine.signals[peer, self.rank, kind, place] += 1
        elif name.endswith("wait"):
            if number < len(op["channel_ids"]):
                peer, _, place = self.channels[kind][op["channel_ids"][number]]
                key = (self.rank, peer, kind, place)
                machine.waits[key] += 1
                mine = machine.waits[key]
                yield lambda: machine.signals[key] >= mine
        elif name == "sem_acquire":
            if number < len(op["semaphore_ids"]):
                key2 = (self.rank, op["semaphore_ids"][number])
                while machine.semaphores[key2] <= 0:
                    yield lambda: machine.semaphores[key2] > 0
                machine.semaphores[key2] -= 1
        elif name == "sem_release":
            if number < len(op["semaphore_ids"]):
                yield None
                machine.semaphores[self.rank, op["semaphore_ids"][number]] += 1
        elif name in ("put", "pws", "pwsf", "ppkt") and kind == "port":
            yield from self.order(number, op, step, turn)
        elif name == "rppkt" and kind == "port":
            for word in self.mine(number, op["src_buff"][0], op, step, turn):
                yield from self.packet(op["src_buff"][0], word)
            yield from self.join()
            yield from self.order(number, op, step, turn)
        elif name in ("put", "pws", "pwsf", "ppkt", "get", "copy"):
            for source, target in zip(op["src_buff"], op["dst_buff"], strict=False):
                if name == "get":  # as the executor has it
                    source, target = (
                        {**source, "index": target["index"]},
                        {**target, "index": source["index"]},
                    )
                for word in self.mine(number, source, op, step, turn):
                    yield None
                    value = self.load(source, word, kind)
                    yield None
                    self.store(target, word, kind, value, packet=name == "ppkt")
        elif name != "flush":
            yield from self.add(number, op, step, turn)

    def mine(
        self, number: int, entry: dict[str, Any], op: dict[str, Any], step: int | None, turn: int
    ) -> range:
        """Words of the entry, from its first one, that a thread handles."""
        total = entry["size"] * self.machine.words
        share = op.get("tbg_info", {"tb_id": 0, "tbg_size": 1})
        low = total * share["tb_id"] // share["tbg_size"]
        high = total * (share["tb_id"] + 1) // share["tbg_size"]
        if step is not None:
            low, high = low + turn * step, min(high, low + (turn + 1) * step)
        return range(low + number, high, self.machine.threads)

    def where(self, entry: dict[str, Any], word: int, kind: str) -> tuple[list[int], str, int]:
        if "switch_channel_id" in entry:
            letter, ranks = self.channels["switch"][entry["switch_channel_id"]]
        elif "buffer_id" in entry:
            rank, letter = self.remote[kind][entry["buffer_id"]]
            ranks = [rank]
        else:
            letter, ranks = entry["type"], [self.rank]
        machine = self.machine
        if letter == "s" and machine.ring:
            return ranks, letter, entry["index"] * machine.ring + word % machine.ring
        return ranks, letter, entry["index"] * machine.words + word

    def load(self, entry: dict[str, Any], word: int, kind: str) -> Any:
        ranks, letter, place = self.where(entry, word, kind)
        values = [self.machine.read(rank, letter, place) for rank in ranks]
        if any(isinstance(value, tuple) for value in values):
            self.machine.faults.append("reads packets as data")
            return 0
        return sum(values)

    def store(self, entry: dict[str, Any], word: int, kind: str, value: Any, *, packet: bool) -> None:
        ranks, letter, place = self.where(entry, word, kind)
        for rank in ranks:
            if packet:
                self.machine.write(rank, letter, 2 * place, ("packet", value))
                self.machine.write(rank, letter, 2 * place + 1, ("packet", value))
            else:
                self.machine.write(rank, letter, place, value)

    def packet(self, entry: dict[str, Any], word: int) -> Iterator[Wait]:
        """Wait for a packet."""
        _, letter, place = self.where(entry, word, "none")
        key = self.machine.place(self.rank, letter, 2 * place)
        memory = self.machine.ranks[self.rank].memory
        yield lambda: isinstance(memory.get(key), tuple)

    def taken(self, entry: dict[str, Any], word: int) -> Any:
        _, letter, place = self.where(entry, word, "none")
        found = self.machine.read(self.rank, letter, 2 * place)
        return found[1] if isinstance(found, tuple) else 0

    def order(self, number: int, op: dict[str, Any], step: int | None, turn: int) -> Iterator[Wait]:
        """Hand a put to the proxy."""
        if number >= len(op["dst_buff"]):
            return
        yield None
        source = op["src_buff"][0 if op["name"] == "rppkt" else number]
        target = op["dst_buff"][number]
        peer, kind, place = self.channels["port"][op["channel_ids"][number]]
        words = range(0)
        for thread in range(self.machine.threads):
            part = self.mine(thread, source, op, step, turn)
            words = range(part.start, part.stop) if thread == 0 else words
        done = [False]
        queue = self.machine.queues[self.rank, peer, kind, place]
        queue.append(("put", (self, source, target, words, op["name"] in ("rppkt", "ppkt"))))
        if op["name"] in ("pws", "pwsf"):
            queue.append(("signal", None))
        if op["name"] == "pwsf":
            queue.append(("flush", done))
            yield lambda: done[0]

    def add(self, number: int, op: dict[str, Any], step: int | None, turn: int) -> Iterator[Wait]:
        """Operations whose targets get the sum of all sources."""
        name = op["name"]
        sources, targets = op["src_buff"], op["dst_buff"]
        if name in _ADDS:
            read, written = _ADDS[name].split(">")
            from_packets = [False] + [read[1] == "p"] * (len(sources) - 1)
            letters = written + written[-1] * len(targets)
            to_packets = [letter in "pP" for letter in letters[: len(targets)]]
        else:
            from_packets = [name in ("upkt", "rppkt", "gstorepkt")] * len(sources)
            to_packets = [name in ("cpkt", "rppkt", "gstorepkt")] * len(targets)
        for word in self.mine(number, sources[0], op, step, turn):
            total = 0
            for source, packets in zip(sources, from_packets, strict=True):
                if packets:
                    yield from self.packet(source, word)
                    total += self.taken(source, word)
                else:
                    yield None
                    total += self.load(source, word, "memory")
            for target, packets in zip(targets, to_packets, strict=True):
                yield None
                self.store(target, word, "memory", total, packet=packets)


def _proxy(machine: _Machine, key: tuple[int, int, str, int]) -> Iterator[Wait]:
    """Carries out the orders of one channel, one after the other."""
    queue = machine.queues[key]
    rank, peer, kind, place = key
    while True:
        yield lambda: bool(queue)
        what, detail = queue[0]
        if what == "put":
            block, source, target, words, packets = detail
            for word in words:
                value = block.taken(source, word) if packets else block.load(source, word, "port")
                yield None
                block.store(target, word, "port", value, packet=packets)
                yield None
        elif what == "signal":
            machine.signals[peer, rank, kind, place] += 1
        else:
            detail[0] = True
        queue.pop(0)


def run_plan(
    plan: dict[str, Any], seed: int, *, together: bool = True, rounds: int = 2, ring: int = 0
) -> str:
    """What comes of a plan: ``right``, ``wrong`` or ``stuck``.

    Args:
        plan: Values of the JSON file.
        seed: Of the order of events.
        together: All ranks begin before anything else happens.
        rounds: How often pipelines go round.
        ring: Pieces that a slot of scratch memory holds, 0 for as many as a chunk.
    """
    rng = random.Random(seed)
    machine = _Machine(plan, rng, rounds, ring)
    actors: list[Iterator[Wait]] = []
    keys = set()
    for rank in machine.ranks:
        rank.garbage(scratch=True)
        for block in rank.gpu["threadblocks"]:
            made = _Block(machine, rank.number, block)
            actors += [made.thread(number) for number in range(machine.threads)]
            rank.left += machine.threads
            keys |= {(rank.number, peer, kind, place) for peer, kind, place in made.channels["port"]}
    proxies = [_proxy(machine, key) for key in sorted(keys)]
    asleep = list(machine.ranks)
    if together:
        for rank in asleep:
            machine.begin(rank)
        asleep = []
    blocked: list[tuple[Iterator[Wait], Callable[[], bool]]] = []
    ready: list[Iterator[Wait]] = [*actors, *proxies]
    favoured = rng.random() < 0.5  # half of the runs let whoever went last go on, so that some get far ahead
    while True:
        still = []
        for actor, condition in blocked:
            (ready.append(actor) if condition() else still.append((actor, condition)))
        blocked = still
        if asleep and (not ready or rng.random() < 0.01):
            machine.begin(asleep.pop(rng.randrange(len(asleep))))
            continue
        if not ready:
            break
        chosen = len(ready) - 1 if favoured and rng.random() < 0.9 else rng.randrange(len(ready))
        actor = ready.pop(chosen)
        try:
            condition = next(actor)
        except StopIteration:
            continue
        if condition is None:
            ready.append(actor)
        else:
            blocked.append((actor, condition))
    if any(rank.result is None for rank in machine.ranks):
        return "stuck"
    if machine.faults or any(machine.queues.values()):
        return "wrong"
    if any(rank.result != machine.expected(rank.number) for rank in machine.ranks):
        return "wrong"
    left = any(machine.signals[key] != machine.waits[key] for key in {*machine.signals, *machine.waits})
    return "wrong" if left or machine.semaphores != machine.first else "right"
