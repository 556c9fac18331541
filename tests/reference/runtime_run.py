"""A runtime that reads MSCCL XML, acted out: thread blocks and proxies as coroutines over buffers of steps.

An account of the kernels, parsers and proxies of the runtimes that knows nothing of the model that the verifier has of
them: loaders count slots to a message from bytes, kernels go over the whole program in passes, a message of Simple is
two slices of two steps each, flags are numbers of work, pass and step, and connections between hosts have a buffer at
either end and a proxy that was told beforehand how many steps to move. Which of those that can go on does so is chosen
at random.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from coppice.collectives import Collective
from coppice.program.dialects.thread_blocks.program import Program, StepOp

STEPS = 8
_RECEIVES = {StepOp.RECV, StepOp.RECV_COPY_SEND, StepOp.RECV_REDUCE_COPY, StepOp.RECV_REDUCE_SEND}
_RECEIVES |= {StepOp.RECV_REDUCE_COPY_SEND}
_SENDS = {StepOp.SEND, StepOp.RECV_COPY_SEND, StepOp.RECV_REDUCE_SEND, StepOp.RECV_REDUCE_COPY_SEND}
_MOST_STEPS = 256

Waiting = Generator[Callable[[], bool], None, None]


@dataclass(frozen=True)
class Wire:
    """What moves a program's messages.

    Attributes:
        step_bytes: Bytes of a step of a connection's buffer, without flags.
        hosts: Host of each rank.
        most_passes: Passes that flags can count.
    """

    step_bytes: int
    hosts: tuple[int, ...]
    most_passes: int = 65_536


@dataclass
class _Connection:
    """Counters of steps; where there is a network, ``sent`` and ``arrived`` differ."""

    remote: bool
    sent: int = 0
    freed: int = 0
    arrived: int = 0
    taken: int = 0
    sizes: set[int] = field(default_factory=set)

    def room(self, steps: int) -> bool:
        return self.sent + steps - (self.freed if self.remote else self.taken) <= STEPS

    def put(self, steps: int) -> None:
        self.sizes.add(self.sent % STEPS)
        self.sent += steps
        if not self.remote:
            self.arrived = self.sent

    def full(self, steps: int) -> bool:
        return self.arrived - self.taken >= steps

    def take(self, steps: int) -> None:
        self.taken += steps


class _Runtime:
    def __init__(self, program: Program, size_bytes: int, wire: Wire) -> None:
        self.program, self.wire = program, wire
        simple = program.protocol == "Simple"
        self.slices, self.slice_steps = (2, 2) if simple else (1, 1)
        steps = self.slices * self.slice_steps  # those that the kernel takes for a message
        rooted = program.collective in (Collective.BROADCAST, Collective.REDUCE)
        self.loader_steps = 1 if rooted and simple else steps
        self.proxy_steps = 1 if rooted and simple else self.slice_steps
        slot = size_bytes // program.num_chunks
        assert slot * program.num_chunks == size_bytes
        self.together = min(max(1, wire.step_bytes * self.loader_steps // slot), 71)
        self.passes = -(-slot // (wire.step_bytes * steps))
        self.loader_passes = -(-slot // (wire.step_bytes * self.loader_steps))
        self.flags = [0] * program.num_blocks
        self.connections: dict[tuple[int, int, int], _Connection] = {}

    def connection(self, src: int, dst: int, channel: int) -> _Connection:
        remote = self.wire.hosts[src] != self.wire.hosts[dst]
        return self.connections.setdefault((src, dst, channel), _Connection(remote))

    def flag(self, turn: int, position: int) -> int:
        return (self.wire.most_passes + turn) * _MOST_STEPS + position

    def reached(self, block: int, goal: int) -> bool:
        work = self.flags[block] // (self.wire.most_passes * _MOST_STEPS)
        return self.flags[block] >= goal and work == 1

    def thread_block(self, block: int) -> Waiting:
        program = self.program
        rank, channel = int(program.block_rank[block]), int(program.block_channel[block])
        send, recv = int(program.block_send[block]), int(program.block_recv[block])
        first, end = int(program.step_start[block]), int(program.step_start[block + 1])
        for turn in range(self.passes):
            for step in range(first, end):
                for row in range(int(program.dep_start[step]), int(program.dep_start[step + 1])):
                    other = int(program.rank_start[rank]) + int(program.dep_block[row])
                    goal = self.flag(turn, int(program.dep_step[row]))
                    yield lambda other=other, goal=goal: self.reached(other, goal)  # type: ignore[misc]
                op = program.op[step]
                into = self.connection(recv, rank, channel) if op in _RECEIVES else None
                outof = self.connection(rank, send, channel) if op in _SENDS else None
                for _ in range(0, int(program.count[step]), self.together):
                    for _ in range(self.slices):
                        if into or outof:
                            yield lambda into=into, outof=outof: (  # type: ignore[misc]
                                (into is None or into.full(self.slice_steps))
                                and (outof is None or outof.room(self.slice_steps))
                            )
                        if into:
                            into.take(self.slice_steps)
                        if outof:
                            outof.put(self.slice_steps)
                self.flags[block] = self.flag(turn, step - first)

    def told(self, block: int) -> int:
        """Steps that a loader counts for the sends of a thread block."""
        program = self.program
        steps = range(int(program.step_start[block]), int(program.step_start[block + 1]))
        messages = sum(
            -(-int(program.count[step]) // self.together) for step in steps if program.op[step] in _SENDS
        )
        return self.loader_passes * self.loader_steps * messages

    def proxy(self, connection: _Connection, total: int) -> Waiting:
        """Both proxies of a connection: what is sent goes where a buffer was put up for it."""
        moved = 0
        while moved < total:
            yield lambda moved=moved: (  # type: ignore[misc]
                moved % STEPS in connection.sizes
                and connection.sent > moved
                and moved + self.proxy_steps - connection.taken <= STEPS
            )
            connection.sizes.remove(moved % STEPS)
            moved += self.proxy_steps
            connection.freed = connection.arrived = moved

    def run(self, rng: random.Random) -> bool:
        program = self.program
        actors = [self.thread_block(block) for block in range(program.num_blocks)]
        for block in range(program.num_blocks):
            if program.block_send[block] >= 0:
                rank, channel = int(program.block_rank[block]), int(program.block_channel[block])
                connection = self.connection(rank, int(program.block_send[block]), channel)
                if connection.remote:
                    actors.append(self.proxy(connection, self.told(block)))
        waiting = [(actor, condition) for actor in actors if (condition := next(actor, None)) is not None]
        while waiting:
            able = [place for place, (_, condition) in enumerate(waiting) if condition()]
            if not able:
                return False
            place = rng.choice(able)
            following = next(waiting[place][0], None)
            if following is None:
                waiting.pop(place)
            else:
                waiting[place] = (waiting[place][0], following)
        return True


def finishes(program: Program, size_bytes: int, wire: Wire, *, seed: int) -> bool:
    """Whether a call comes to an end: all thread blocks and proxies are done.

    Args:
        program: A program of sound structure.
        size_bytes: M, a multiple of the number of chunks.
        wire: What moves its messages.
        seed: Chooses among those that can go on.
    """
    return _Runtime(program, size_bytes, wire).run(random.Random(seed))
