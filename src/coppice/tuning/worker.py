"""Worker process of a sweep: `python -m coppice.tuning.worker SPEC`, started by the library's launcher.

In each round every choice is timed right beside the default, in an order that changes from round to round. A time is
that of the slowest rank, over as many calls as fill some milliseconds. Choices that look best of several are then
timed in as many rounds again, which alone count: luck was among what made them look best. Rank 0 appends a line for
each choice when a size is done, so that what was measured stays, whatever happens.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.decoding import decodable
from coppice.errors import CoppiceError
from coppice.tuning.mpi_switch import DEPLOYED, Switch, open_switch
from coppice.tuning.records import LibraryChoice, TimedRun, append, reopen

_SAMPLE_S = 20e-3
"""Several turns of the scheduler, where ranks share cores."""
_ROOTED_SAMPLE_S = 1e-3
"""Not so long where a root runs ahead of the others: what it sends meanwhile floods the network."""
_MOST_CALLS = 50
_LAST_WORDS_S = 2.0
_HOPELESS_ROUNDS = 3
_HOPELESS = 2.0
"""A choice that took twice the default's time in each of three rounds gets no more."""

_NEAR = 1.1
"""Times the least that the time of a choice may be which is timed again."""


class Spec(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the worker measures."""

    library: str  # `open-mpi` or `mpich`
    collectives: list[Collective]  # The collectives
    sizes: list[int]  # Sizes M
    rounds: int  # Measured rounds
    output: str  # File that lines are appended to
    segments: list[int] = []  # Sizes of segments to try with Open MPI
    deployed: bool = False  # Measure what the environment tells the library instead of all choices
    # If not empty, these choices of (collective, size) alone
    only: list[tuple[Collective, int, LibraryChoice]] = []


def main(argument: str) -> None:
    """Measure as ``argument``, the JSON of a :class:`Spec`, specifies; runs on every rank."""
    from mpi4py import MPI

    spec = msgspec.json.decode(argument, type=decodable(Spec))
    world = MPI.COMM_WORLD
    try:
        switch = open_switch(MPI, spec.library, segments=tuple(spec.segments))
        _sweep(MPI, spec, switch)
    except CoppiceError as error:
        if world.Get_rank() == 0:
            sys.stderr.write(f"error: {error}\n")
            sys.stderr.flush()
        else:
            time.sleep(_LAST_WORDS_S)  # whoever aborts first silences rank 0
        world.Abort(2)


def _sweep(mpi: Any, spec: Spec, switch: Switch) -> None:
    world = mpi.COMM_WORLD
    local = world.Split_type(mpi.COMM_TYPE_SHARED)
    nodes = world.allreduce(int(local.Get_rank() == 0))
    local.Free()
    first = world.Get_rank() == 0
    done = world.bcast({run.key for run in reopen(Path(spec.output))} if first else None)
    for collective in spec.collectives:
        for size in spec.sizes:
            call = MpiCall(mpi, collective, size)
            wanted = _choices(spec, switch, collective, call.size_bytes)
            keys = {
                choice: TimedRun(
                    library=switch.name,
                    version=switch.version,
                    collective=collective,
                    nodes=nodes,
                    ranks=world.Get_size(),
                    size_bytes=call.size_bytes,
                    choice=choice,
                    origin="measured by coppice tune sweep",
                )
                for choice in wanted
            }
            missing = [choice for choice in wanted if keys[choice].key not in done]
            if not missing:
                continue
            begin = time.perf_counter()
            runs = _measured(mpi, call, switch, collective, missing, keys, rounds=spec.rounds)
            if world.Get_rank() == 0:
                append(Path(spec.output), runs)
                seconds = time.perf_counter() - begin
                sys.stdout.write(
                    f"{collective} of {call.size_bytes} bytes: {len(missing)} choices in {seconds:.1f} s\n"
                )
                sys.stdout.flush()
        switch.close()


def _choices(spec: Spec, switch: Switch, collective: Collective, size_bytes: int) -> list[LibraryChoice]:
    if spec.deployed:
        return [LibraryChoice(DEPLOYED)]
    if spec.only:
        return [choice for own, size, choice in spec.only if (own, size) == (collective, size_bytes)]
    return list(switch.choices(collective, size_bytes))


def _measured(
    mpi: Any,
    call: MpiCall,
    switch: Switch,
    collective: Collective,
    choices: Sequence[LibraryChoice],
    keys: dict[LibraryChoice, TimedRun],
    *,
    rounds: int,
) -> list[TimedRun]:
    """All choices beside the default, round by round."""
    world = mpi.COMM_WORLD
    wrong, refusals = {}, {}
    for choice in choices:  # first calls set up connections, and are not timed
        try:
            wrong[choice] = call.wrong(switch.use(collective, choice))
        except mpi.Exception as error:  # on every rank alike: the library knows before anything is sent
            refusals[choice] = " ".join(str(error).split())[:200]
    default = switch.use(collective, None)
    call.start(default)
    once = min(_timed(world, call, default, 1) for _ in range(3))
    sample = _ROOTED_SAMPLE_S if collective.rooted else _SAMPLE_S
    calls = _agreed(world, switch, collective, max(1, min(_MOST_CALLS, int(sample / max(once, 1e-7)))))
    alive = [choice for choice in choices if choice not in refusals]
    defaults: dict[LibraryChoice, list[float]] = {choice: [] for choice in alive}
    times: dict[LibraryChoice, list[float]] = {choice: [] for choice in alive}

    def beside_default(choice: LibraryChoice, number: int) -> None:
        order: list[LibraryChoice | None] = [None, choice] if number % 2 == 0 else [choice, None]
        for each in order:
            seconds = _timed(world, call, switch.use(collective, each), calls)
            (defaults if each is None else times)[choice].append(seconds)

    for number in range(rounds):
        turn = number % max(1, len(alive))
        for choice in alive[turn:] + alive[:turn]:
            beside_default(choice, number)
        if number == _HOPELESS_ROUNDS - 1:
            switch.use(collective, None)
            hopeless = [
                all(own > _HOPELESS * base for own, base in zip(times[c], defaults[c], strict=True))
                for c in alive
            ]
            keep = world.bcast(hopeless)
            alive = [choice for choice, bad in zip(alive, keep, strict=True) if not bad]
    switch.use(collective, None)
    if len(alive) > 1:
        looks = {choice: _ratio(world, times[choice], defaults[choice]) for choice in alive}
        final = [choice for choice in alive if looks[choice] < min(1.0, _NEAR * min(looks.values()))]
        for choice in final:
            times[choice], defaults[choice] = [], []
        for number in range(rounds):
            for choice in final:
                beside_default(choice, number)
    switch.use(collective, None)
    gathered = world.gather((defaults, times, wrong))
    if gathered is None:
        return []
    return [
        msgspec.structs.replace(keys[choice], refusal=refusals[choice])
        if choice in refusals
        else msgspec.structs.replace(
            keys[choice],
            default_us=_slowest([own[0][choice] for own in gathered]),
            time_us=_slowest([own[1][choice] for own in gathered]),
            wrong=sum(own[2][choice] for own in gathered),
        )
        for choice in choices
    ]


def _timed(world: Any, call: MpiCall, communicator: Any, calls: int) -> float:
    """Seconds of one call on this rank."""
    world.Barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        call.start(communicator)
    return (time.perf_counter() - begin) / calls


def _ratio(world: Any, times: Sequence[float], defaults: Sequence[float]) -> float:
    """The median time of a choice over that of the default beside it, of the slowest ranks; equal on all ranks."""
    every = np.max(world.allgather((times, defaults)), axis=0)
    return float(np.median(every[0] / every[1]))


def _agreed(world: Any, switch: Switch, collective: Collective, value: int) -> int:
    """Rank 0's value, sent by the default algorithms."""
    switch.use(collective, None)
    agreed: int = world.bcast(value)
    return agreed


def _slowest(ranks: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(round(1e6 * max(each), 4) for each in zip(*ranks, strict=True))


_PERIOD = 61  # prime, so that a block in the wrong place shows

Floats = NDArray[np.float32]


class MpiCall:
    """One collective at one size: float32, sum, root 0.

    Args:
        mpi: The module ``mpi4py.MPI``.
        collective: One of the six that can be tuned.
        size_bytes: M; cut to whole elements, and to equal blocks where the collective has blocks.
    """

    def __init__(self, mpi: Any, collective: Collective, size_bytes: int) -> None:
        self._mpi = mpi
        self._rank, self._ranks = mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()
        self._collective = collective
        count = size_bytes // 4
        if collective.sharded:
            count = max(1, count // self._ranks) * self._ranks
        self.size_bytes = 4 * max(1, count)
        self._count = self.size_bytes // 4
        self._block = self._count // self._ranks
        given = self._block if collective is Collective.ALL_GATHER else self._count
        result = self._block if collective is Collective.REDUCE_SCATTER else self._count
        self._given = _pattern(self._rank, given)
        self._result = np.zeros(result, dtype=np.float32)

    def start(self, communicator: Any) -> None:
        """Run the collective."""
        given, result = self._given, self._result
        match self._collective:
            case Collective.ALL_REDUCE:
                communicator.Allreduce(given, result)
            case Collective.ALL_GATHER:
                communicator.Allgather(given, result)
            case Collective.REDUCE_SCATTER:
                communicator.Reduce_scatter_block(given, result)
            case Collective.BROADCAST:
                communicator.Bcast(given if self._rank == 0 else result)
            case Collective.REDUCE:
                communicator.Reduce(given, result if self._rank == 0 else None)
            case _:
                communicator.Alltoall(given, result)

    def wrong(self, communicator: Any) -> int:
        """Run the collective once more, and count this rank's wrong elements."""
        self._result[:] = -1
        self.start(communicator)
        return int(np.count_nonzero(self._result != self._expected()))

    def _expected(self) -> Floats:
        blocks = range(self._ranks)
        match self._collective:
            case Collective.ALL_GATHER:
                return np.concatenate([_pattern(rank, self._block) for rank in blocks])
            case Collective.ALL_TO_ALL:
                start = self._rank * self._block
                return np.concatenate(
                    [_pattern(rank, self._count)[start : start + self._block] for rank in blocks]
                )
            case Collective.BROADCAST if self._rank:
                return _pattern(0, self._count)
            case Collective.BROADCAST:
                return np.full(self._count, -1, dtype=np.float32)
            case Collective.REDUCE if self._rank:
                return np.full(self._count, -1, dtype=np.float32)
        total = np.zeros(self._count, dtype=np.float32)
        for rank in blocks:
            total += _pattern(rank, self._count)
        if self._collective is Collective.REDUCE_SCATTER:
            total = total[self._rank * self._block :][: self._block]
        return total


def _pattern(rank: int, count: int) -> Floats:
    """Small whole numbers: their sums are exact in any order."""
    return ((np.arange(count) + 17 * rank) % _PERIOD).astype(np.float32)


if __name__ == "__main__":
    main(sys.argv[1])
