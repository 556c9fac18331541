"""Simulate a put/signal program: calls, streams and communicators with their costs.

Every put and signal is a message over the links between its ranks, which waits for the call before it in its stream
and in its communicator; a wait, and what a rank adds or copies by itself, is a message without links that takes what it
costs.
Peers in one box are reached by copy engines, others by NCCL's proxy thread and the network:

    group of puts, one box    one wave for all peers: ``wave_us`` and the memory operation of a signal, then the bytes
    put to another box        ``proxy_us`` before it, and ``request_us`` for every put that the proxy posts before it in
                              the group, then the bytes; the call is over when the network has told so (``told_us``)
    wait                      ``wait_us``, one batch of stream operations
    copies, sums              ``launch_us`` for the kernel of the call, and what it reads and writes at the rate of the
                              memory (:mod:`coppice.program.dialects.put_signal.kernels`)

That structure is read from the source of NCCL 2.30.7 (src/rma: batched waves of copies, the ring of the proxy). The
constants are *assumptions*, of the order of what launches and memory operations take; nobody has measured them, and a
probe of 1 put, n grouped puts and n single ones replaces them.

Files of what puts, signals, waits and launches cost, as `coppice probe --costs` measures them.

What a file does not name was not measured and stays what :class:`~coppice.simulation.put_signal.PutSignalCosts`
assumes: between ranks of one host nobody learns what a network costs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coppice.decoding import decode_json
from coppice.errors import InputError
from coppice.files import file_name, read_bytes
from coppice.program.dialects.put_signal.kernels import chunks_moved
from coppice.program.dialects.put_signal.program import PutSignalAct, PutSignalCall, PutSignalProgram
from coppice.rows import grouped, nth_in_group, offsets, rows_of_groups
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.messages import Messages, Routes
from coppice.schedule.schedule import Schedule, hops_of, routed
from coppice.simulation.engine import run
from coppice.simulation.models import Model
from coppice.simulation.timeline import Timeline
from coppice.topology.routing import Router

_Ints = NDArray[np.int64]
_MODEL = Model(name="put-signal", overhead_us=0.0)


@dataclass(frozen=True, kw_only=True)
class PutSignalCosts:
    """Costs of calls beyond their bytes; all are assumptions, see the top of this module.

    Raises:
        InputError: If a cost is negative, or the rate is not above 0.
    """

    wave_us: float = 3.0  # A wave of the copy engines, whatever its number of peers
    signal_us: float = 1.0  # The batched memory operation that signals, in one box
    wait_us: float = 1.0  # A wait, whatever its number of peers
    proxy_us: float = 3.0  # From the stream to the proxy thread
    request_us: float = 0.5  # Of the proxy thread for one put or signal
    told_us: float = 3.0  # From the end of a transfer over the network to the stream that waits for it
    launch_us: float = 2.0  # A kernel
    memory_gb_per_s: float = 1500.0  # Rate of a GPU's memory

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (isfinite(value) and value >= 0):
                raise InputError(f"expected {name} of 0 or more, found {value}.")
        if self.memory_gb_per_s == 0:
            raise InputError("expected memory_gb_per_s above 0, found 0.")

    @classmethod
    def free(cls) -> PutSignalCosts:
        """Zero cost for calls and no memory limit."""
        return cls(
            wave_us=0, signal_us=0, wait_us=0, proxy_us=0, request_us=0, told_us=0, launch_us=0,
            memory_gb_per_s=1e12,
        )  # fmt: skip


def simulate_put_signal(
    program: PutSignalProgram,
    # What it was lowered from: its topology, and the paths of its pairs of ranks. What a pair puts goes over
    # its paths in turn.
    plan: Schedule | Forest,
    size_bytes: int,  # M in bytes
    *,
    costs: PutSignalCosts | None = None,
) -> Timeline:
    """Simulate a program out of place: completion time of every call.

    Returns:
        The timeline of puts and signals in the program's order, followed by what ranks do by themselves.

    Examples:
        A chain of 2 hops in 2 pieces: 3 rounds of 3 us of bytes, and nothing else.

        >>> from coppice.collectives import Collective
        >>> from coppice.planners.algorithms.algorithm import AlgorithmCase
        >>> from coppice.planners.algorithms.parts.moves import Moves, whole
        >>> from coppice.program.dialects.put_signal.lower import lower_put_signal
        >>> from coppice.topology.presets import preset
        >>> box = preset("ring", gpus=3, gb_per_s=3)
        >>> chain = Moves(case := AlgorithmCase(topology=box, collective=Collective.BROADCAST, root=0), whole(case))
        >>> chain.add([0, 1], [0, 1], [1, 2], 0)
        >>> program = lower_put_signal(chain.schedule(), pieces=2)
        >>> simulate_put_signal(program, chain.schedule(), 18000, costs=PutSignalCosts.free()).time_us
        9.0
    """
    schedule = lower(plan) if isinstance(plan, Forest) else plan
    if program.num_ranks != schedule.topology.num_ranks:
        raise InputError(
            f"expected a program of {schedule.topology.num_ranks} ranks, found one of {program.num_ranks}."
        )
    if size_bytes < 0:
        raise InputError(f"expected a size of 0 bytes or more, found {size_bytes}.")
    made = _PutSignalMessages(program, routed(schedule), size_bytes, costs or PutSignalCosts())
    return run(
        made.messages(), model=_MODEL, collective=program.collective, size_bytes=size_bytes, keep_hops=False
    )


class _PutSignalMessages:
    """The messages of a program: sends first, then one for each wait, local call, and end of a transfer by a proxy."""

    def __init__(
        self, program: PutSignalProgram, schedule: Schedule, size_bytes: int, costs: PutSignalCosts
    ) -> None:
        self.program, self.schedule, self.costs = program, schedule, costs
        self.chunk_bytes = size_bytes / program.num_chunks
        self.sends = np.flatnonzero(program.act <= PutSignalAct.SIGNAL)
        topology = schedule.topology
        node = topology.rank_nodes[np.arange(program.num_ranks)]
        host = topology.host[node]
        own, peer = host[program.rank_of[self.sends]], host[program.peer[self.sends]]
        self.far = (own != peer) & (own >= 0)
        self.overhead_us = self._overheads()
        self.after: list[list[int]] = [[] for _ in self.sends]
        self.own_rank: list[int] = []
        self._chain()

    def _overheads(self) -> NDArray[np.float64]:
        """Of each send."""
        program, costs = self.program, self.costs
        call = program.call_of[self.sends]
        begins = np.searchsorted(call, call)
        before = np.append(0, np.cumsum(self.far))
        turn = before[np.arange(len(call)) + 1] - before[begins]  # requests of the group up to its own
        found: NDArray[np.float64] = np.where(
            self.far, costs.proxy_us + costs.request_us * turn, costs.wave_us + costs.signal_us
        )
        return found

    def _chain(self) -> None:
        """What each message waits for: the call before it in its queues, and a wait the signals that it takes."""
        program, costs = self.program, self.costs
        number_of = np.full(program.num_operations, -1, dtype=np.int64)
        number_of[self.sends] = np.arange(len(self.sends))
        signals = self._signals(number_of)
        local_us = self._local_us()
        start, rank_of = program.call_start.tolist(), program.call_rank.tolist()
        kind, stream, line = (c.tolist() for c in (program.call_kind, program.stream, program.communicator))
        numbers, far = number_of.tolist(), self.far.tolist()
        last: dict[tuple[int, int, int], list[int]] = {}
        extra: list[float] = []
        for call in range(program.num_calls):
            rank = rank_of[call]
            queues = [(rank, 0, stream[call])] + ([(rank, 1, line[call])] if line[call] >= 0 else [])
            before = sorted({each for queue in queues for each in last.get(queue, ())})
            rows = range(start[call], start[call + 1])
            if kind[call] == PutSignalCall.TRANSFER:
                done = [numbers[op] for op in rows]
                for each in done:
                    self.after[each] = before
                if any(far[each] for each in done):
                    done = [self._by_itself(rank, done, extra, costs.told_us)]
            elif kind[call] == PutSignalCall.WAIT:
                taken = [each for op in rows for each in signals[op]]
                done = [self._by_itself(rank, before + taken, extra, costs.wait_us)]
            else:
                done = [self._by_itself(rank, before, extra, local_us[call])]
            last |= dict.fromkeys(queues, done)
        self.overhead_us = np.append(self.overhead_us, extra)

    def _by_itself(self, rank: int, after: list[int], extra: list[float], us: float) -> int:
        """What a rank does without others, as a message without links; its number."""
        self.after.append(after)
        self.own_rank.append(rank)
        extra.append(us)
        return len(self.after) - 1

    def _local_us(self) -> list[float]:
        """Time of the kernel of each call."""
        chunks = chunks_moved(self.program)
        us = (
            self.costs.launch_us * (chunks > 0) + chunks * self.chunk_bytes / self.costs.memory_gb_per_s / 1e3
        )
        found: list[float] = us.tolist()
        return found

    def _signals(self, number_of: _Ints) -> dict[int, list[int]]:
        """Sends that each wait takes: the first ones that no wait before it took."""
        program = self.program
        waits = np.flatnonzero(program.act == PutSignalAct.WAIT)
        rows = np.concatenate([self.sends, waits])
        sent = np.arange(len(rows)) < len(self.sends)
        rank, peer = program.rank_of[rows], program.peer[rows]
        columns = (
            program.communicator[program.call_of[rows]], np.where(sent, rank, peer), np.where(sent, peer, rank),
            program.context[rows], program.signal[rows],
        )  # fmt: skip
        counter = np.unique(np.stack(columns), axis=1, return_inverse=True)[1].reshape(-1)
        number = int(counter.max(initial=-1)) + 1
        arrivals, first = grouped(counter[sent], number)
        taken = np.zeros(number, dtype=np.int64)
        found: dict[int, list[int]] = {}
        for wait, of in zip(waits.tolist(), counter[~sent].tolist(), strict=True):
            begin = int(first[of] + taken[of])
            taken[of] += program.count[wait]
            found[wait] = number_of[self.sends[arrivals[begin : int(first[of] + taken[of])]]].tolist()
        return found

    def messages(self) -> Messages:
        """As the simulator takes them; every message has a route of its own, since overheads belong to routes."""
        program, topology = self.program, self.schedule.topology
        path, path_start, path_nodes = self._paths()
        entries, ends = rows_of_groups(path_start, path)
        own = topology.rank_nodes[np.array(self.own_rank, dtype=np.int64)]
        nodes = np.append(path_nodes[entries], own).astype(np.int32)
        start = offsets(np.append(np.diff(ends), np.ones(len(own), dtype=np.int64)))
        routes = Routes(
            node_start=start,
            nodes=nodes,
            link_start=offsets(np.diff(start) - 1),
            links=hops_of(topology, start, nodes).link.astype(np.int32),
        )
        count = len(self.after)
        data = np.where(program.act[self.sends] == PutSignalAct.PUT, program.count[self.sends], 0)
        num_bytes = np.append(np.rint(data * self.chunk_bytes), np.zeros(len(self.own_rank)))
        none = np.full(count, -1, dtype=np.int32)
        return Messages(
            topology=topology,
            routes=routes,
            route=np.arange(count, dtype=np.int32),
            num_bytes=num_bytes.astype(np.int64),
            added_bytes=np.zeros(count, dtype=np.int64),
            first_row=np.append(self.sends, np.zeros(len(self.own_rank))).astype(np.int32),
            num_rows=np.ones(count, dtype=np.int32),
            send_gate=none,
            receive_gate=none,
            chained=np.zeros(0, dtype=np.uint8),
            after_start=offsets(np.array([len(each) for each in self.after], dtype=np.int64)),
            after=np.array([each for line in self.after for each in line], dtype=np.int32),
            wave=np.zeros(0, dtype=np.int32),
            job=np.zeros(0, dtype=np.int32),
            due_us=np.zeros(0, dtype=np.float64),
            overhead_us=self.overhead_us,
        )

    def _paths(self) -> tuple[_Ints, _Ints, NDArray[np.int32]]:
        """Row of a table of paths for each send, and the table: those of its pair in turn.

        What goes between ranks that the schedule does not join, such as credits, takes the default route.
        """
        schedule, ranks = self.schedule, self.program.num_ranks
        wanted = self.program.rank_of[self.sends] * ranks + self.program.peer[self.sends]
        pair = schedule.src.astype(np.int64) * ranks + schedule.dst
        lacking = np.setdiff1d(wanted, pair)
        router = Router(schedule.topology, relay_gpus=True)
        start, nodes = router.paths(*np.divmod(lacking, ranks), np.zeros(len(lacking), dtype=np.int64))
        both = np.stack(
            [
                np.append(pair, lacking),
                np.append(schedule.path, len(schedule.path_start) - 1 + np.arange(len(lacking))),
            ]
        )
        both = np.unique(both.astype(np.int64), axis=1)
        first = np.searchsorted(both[0], np.arange(ranks * ranks + 1))
        turn = nth_in_group(wanted)
        path = both[1][first[wanted] + turn % (first[wanted + 1] - first[wanted])]
        return (
            np.asarray(path),
            np.append(schedule.path_start[:-1], schedule.path_start[-1] + start).astype(np.int64),
            np.append(schedule.path_nodes, nodes),
        )


_FORMAT = "coppice-put-signal-costs"


class _CostFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a file holds."""

    format: str
    version: int
    measured: str
    costs: dict[str, float]


def encode_put_signal_costs(costs: Mapping[str, float], *, measured: str) -> str:
    """Encode costs as a file.

    Args:
        costs: Fields of ``PutSignalCosts`` that were measured.

    Examples:
        >>> "wait_us" in encode_put_signal_costs({"wait_us": 1.5}, measured="2 ranks on the emulated device")
        True
    """
    _costs_of(costs, file="the costs")
    found = _CostFile(format=_FORMAT, version=1, measured=measured, costs=dict(costs))
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"


def read_put_signal_costs(path: str | os.PathLike[str]) -> PutSignalCosts:
    """Read costs from a file, with defaults for what it lacks."""
    data, name = read_bytes(path, hint="give a file of `coppice probe --costs`"), file_name(path)
    words = f"{name} holds no costs of puts and signals"
    found = decode_json(
        data, _CostFile, lambda fault: f"{words} ({fault}): `coppice probe --costs` writes them."
    )
    if (found.format, found.version) != (_FORMAT, 1):
        raise InputError(
            f"expected {_FORMAT} of version 1 in {name}, found {found.format} of version {found.version}."
        )
    return _costs_of(found.costs, file=name)


def _costs_of(costs: Mapping[str, float], *, file: str) -> PutSignalCosts:
    known = {field.name for field in fields(PutSignalCosts) if field.type == "float"}
    unknown = sorted(set(costs) - known)
    if unknown:
        raise InputError(
            f"expected costs out of {', '.join(sorted(known))} in {file}, found {unknown[0]}: remove it."
        )
    given: dict[str, Any] = dict(costs)
    return PutSignalCosts(**given)
