"""One rank that carries out the calls of a file: `python generated_worker.py shm|torch FILE DIRECTORY RANK RANKS`, or
`mpiexec -n RANKS python generated_worker.py mpi FILE`.

Prints `N calls right` at the end, or what is wrong first.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

from support.generated_calls import Call


def engine_of(name: str, *place: str) -> Any:
    """This rank's end of the group."""
    if name == "mpi":
        from coppice.run.engines.mpi import MpiEngine

        return MpiEngine()
    directory, rank, ranks = Path(place[0]), int(place[1]), int(place[2])
    if name == "torch":
        import torch

        from coppice.run.engines.torch.engine import TorchEngine

        store = torch.distributed.FileStore(str(directory / "store"), ranks)
        return TorchEngine(store, rank, ranks, exchange_timeout_s=60)
    from coppice.run.engines.shared_memory import ShmEngine, directory_exchange

    return ShmEngine.connect(
        rank, ranks, directory_exchange(directory / "meeting", rank, ranks, timeout_s=60)
    )


def main() -> None:
    name, file, *place = sys.argv[1:]
    calls: list[Call] = pickle.loads(Path(file).read_bytes())
    engine, done = engine_of(name, *place), 0
    for call in calls:
        ways = [call.run, call.run_direct] if name == "shm" and call.direct else [call.run]
        for way in ways:
            if fault := way(engine):
                print(fault, flush=True)
                sys.exit(1)
            done += 1
    engine.close()
    print(f"{done} calls right", flush=True)


if __name__ == "__main__":
    main()
