"""Sweep put/signal algorithms against the library's collective on the running processes.

In every round all of them run in turn, right after each other, with memory of the device that puts; a time is that of
the slowest rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from coppice.collectives import Collective
from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.run.bench.measuring import NATIVE, bench
from coppice.run.communicator.groups import host_of_process
from coppice.run.engines.put_signal.engine import PutSignalEngine
from coppice.text import plural
from coppice.topology.model import Topology
from coppice.tuning.records import LibraryChoice, TimedRun, append, reopen

PUT_SIGNAL = "put-signal"


def sweep_put_signal(
    engine: PutSignalEngine,  # This rank's end of the group
    topology: Topology,
    *,
    collectives: Sequence[Collective],
    sizes: Sequence[int],  # M in bytes; cut to whole elements and equal blocks
    algorithms: Sequence[str],  # `forest` and names of the catalogue
    rounds: int,
    output: Path,  # File that rank 0 appends lines to, and reads what is there
    say: Callable[[str], None],  # Told of every line, on rank 0
    timeout_s: float = 300.0,  # Longest wait for another rank, in seconds
    cache_dir: str | None = None,
) -> None:
    """Run a sweep; runs already in the output file are skipped. Collective over the ranks."""
    names = tuple(dict.fromkeys(algorithms))
    if not names or NATIVE in names or not collectives or not sizes:
        raise InputError(
            f"expected collectives, sizes, and algorithms beside {NATIVE}, found {', '.join(names) or 'none'}."
        )
    nodes = len(set(engine.exchange(host_of_process().encode())))
    words, done = "", set()
    if engine.rank == 0:
        try:
            done = {run.key for run in reopen(output)}
        except InputError as error:
            words = str(error)
    if reason := engine.exchange(words.encode())[0].decode():
        raise InputError(reason)

    def run_of(collective: Collective, size: int, name: str) -> TimedRun:
        return TimedRun(
            library=PUT_SIGNAL,
            version=engine.device.name,
            collective=collective,
            nodes=nodes,
            ranks=engine.ranks,
            size_bytes=size,
            choice=LibraryChoice(name),
            origin="measured by coppice tune sweep",
        )

    for collective in collectives:
        whole = 4 * (engine.ranks if collective.sharded else 1)
        cut = sorted({size - size % whole for size in sizes if size >= whole})
        lacking: dict[tuple[str, ...], list[int]] = {}
        for size in cut:
            missing = tuple(name for name in names if run_of(collective, size, name).key not in done)
            lacking.setdefault(missing, []).append(size)
        told = engine.exchange(msgspec.json.encode(list(lacking.items())))[0]  # as rank 0 has read it
        for missing, own in msgspec.json.decode(
            told, type=decodable(list[tuple[tuple[str, ...], list[int]]])
        ):
            if not missing:
                continue
            found = []
            for row in bench(
                engine,
                topology,
                collective,
                algorithms=[NATIVE, *missing],
                sizes=own,
                rounds=rounds,
                warmup=2,
                timeout_s=timeout_s,
                cache_dir=cache_dir,
            ):
                if row.algorithm == NATIVE:
                    default = row
                    continue
                made = run_of(collective, row.size_bytes, row.algorithm)
                found.append(
                    msgspec.structs.replace(
                        made,
                        default_us=() if row.refusal else default.rounds_us,
                        time_us=row.rounds_us,
                        wrong=row.wrong,
                        refusal=default.refusal or row.refusal,
                    )
                )
                if len(found) == len(missing):
                    if engine.rank == 0:
                        append(output, found)
                        say(f"{collective} of {row.size_bytes} bytes: {_words(found)}")
                    found = []


def _words(found: Sequence[TimedRun]) -> str:
    """What was measured at a size, and what could not be."""
    refused = [f"{run.choice.algorithm}: {run.refusal}" for run in found if run.refusal]
    told = [plural(len(found) - len(refused), "choice")]
    return "; ".join(told + ([f"not {each}" for each in refused]))
