"""Schedule fuzzer: run a put/signal program with data under adversarial schedules.

What a GPU and its network might do, a seed decides: which of the allowed actions comes next. The adversary of a run is
one of eleven kinds, in turn: any action; arrivals as late, or as early, as they may; late reads; ranks that begin last;
ranks, streams or links that pause for as long as anything else can happen; the newest action first; one rank as
far as it goes; and random priorities (PCT). The tests hold the same machine in Python.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coppice.errors import CheckError
from coppice.native import _run
from coppice.program.memory import Buffer, end_columns, memory_of, start_columns
from coppice.program.put_signal.contents import PutSignalContents
from coppice.program.put_signal.faults import PutSignalFault, fault_sentence
from coppice.program.put_signal.intervals import intervals_of
from coppice.program.put_signal.program import PutSignalProgram
from coppice.rows import offsets


@dataclass(frozen=True, kw_only=True)
class FuzzRuns:
    """Result of some runs."""

    runs: int  # How many there were, up to the first that went wrong
    actions: int  # Actions of all runs
    fault: str = ""  # What went wrong, a sentence with the run's seed; empty where nothing did


def fuzz(
    program: PutSignalProgram, *, in_place: bool, elements: int = 1, schedules: int = 1, seed: int = 0
) -> FuzzRuns:
    """Run a program under adversarial schedules, and compare every output with NumPy's.

    Args:
        elements: 64-bit words of a chunk.
        schedules: Runs, each with a schedule of its own.
        seed: The first run's seed; the others' follow it.
    """
    found = fuzz_runs(program, in_place=in_place, elements=elements, schedules=schedules, seed=seed)
    if found.fault:
        raise CheckError(f"{found.fault}: verify the program.")
    return found


def fuzz_runs(
    program: PutSignalProgram, *, in_place: bool, elements: int = 1, schedules: int = 1, seed: int = 0
) -> FuzzRuns:
    """As :func:`fuzz`, but return a fault instead of raising it."""
    native = native_runs(program, in_place=in_place, elements=elements, seed=seed)
    fault, first, second, number, runs, actions = native.run(seed, schedules)
    words = fault_sentence(program, PutSignalFault(fault), first, second)
    return FuzzRuns(
        runs=runs,
        actions=actions,
        fault=words and f"under the adversarial schedule of seed {number}, {words}",
    )


def native_runs(
    program: PutSignalProgram, *, in_place: bool, elements: int = 1, seed: int = 0
) -> _run.PutSignalRuns:
    """Native runner of a program with random memory contents.

    Args:
        elements: 64-bit words of a chunk.
    """
    memory = memory_of(program, in_place=in_place)
    parts = intervals_of(program, memory)
    contents = PutSignalContents(layout=program, elements=elements, seed=seed)
    begin = contents.noise(parts.first)
    results, outputs = [], []
    for rank in range(program.num_ranks):
        source, target = int(memory.base[Buffer.INPUT, rank]), int(memory.base[Buffer.OUTPUT, rank])
        content = contents.filled(rank, parts.begins_in(source, len(start_columns(program, rank)[0])))
        begin[parts.number[source] : parts.number[source] + len(content)] = content
        outputs.append(int(parts.number[target]))
        results.append(contents.wanted(rank, parts.begins_in(target, len(end_columns(program, rank)[0]))))
    return _run.PutSignalRuns(
        num_slots=len(parts.first),
        rank_start=program.rank_start,
        call_start=program.call_start,
        stream=program.stream,
        communicator=program.communicator,
        act=program.act,
        peer=program.peer,
        context=program.context,
        signal=program.signal,
        count=parts.count,
        source=parts.source,
        addend=parts.addend,
        target=parts.target,
        words=elements,
        begin=begin.reshape(-1).view(np.uint64),
        output=np.array(outputs),
        wanted_start=offsets(np.array([len(result) for result in results])),
        wanted=np.concatenate(results).reshape(-1).view(np.uint64),
    )
