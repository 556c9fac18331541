"""One rank of groups that exchange unequal blocks.

`unequal_ranks.py ENGINES FOLDER NUMBER RANK RANKS`, or under mpiexec `unequal_ranks.py mpi FOLDER NUMBER`.

With a NUMBER above 0 groups of 2 to RANKS ranks carry out as many calls with each of the engines (with commas between
them), and FOLDER/RANK.json says how many had the right outcome on this rank. With 0 all ranks are one group, rank 1 is
killed in the middle of an exchange, and the file says what the others raise.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from coppice.errors import CoppiceError
from coppice.topology.presets import preset
from coppice.topology.readers.document import write_topology
from support.unequal_calls import UnequalCall, two_boxes, unequal_calls

ENGINES = ("torch", "coppice", "shm", "put-signal")
"""Messages of torch, the process group for torch, shared memory, and put/signal on the device that stands in."""
PATIENCE_S = 300


def group_of(name: str, folder: Path, rank: int, ranks: int) -> AbstractContextManager[Any]:
    """This rank's end of a new group: an engine, or a process group of torch."""
    place = folder / f"{name}-{ranks}"
    if name == "mpi":
        from mpi4py import MPI

        from coppice.run.engines.mpi import MpiEngine

        world = MPI.COMM_WORLD
        return closing(MpiEngine(world.Create_group(world.Get_group().Incl(range(ranks)), tag=ranks)))
    if name in ("torch", "coppice"):
        import torch

        store = torch.distributed.FileStore(str(place), ranks)
        if name == "coppice":
            return _process_group(store, place, rank, ranks)
        from coppice.run.engines.torch.engine import TorchEngine

        return closing(TorchEngine(store, rank, ranks, exchange_timeout_s=PATIENCE_S))
    from coppice.run.engines.shared_memory import ShmEngine, directory_exchange

    engine = ShmEngine.connect(rank, ranks, directory_exchange(place, rank, ranks, timeout_s=PATIENCE_S))
    if name == "shm":
        return closing(engine)
    from coppice.run.engines.put_signal.emulated import EmulatedDevice
    from coppice.run.engines.put_signal.engine import PutSignalEngine

    device = EmulatedDevice(rank, ranks, engine.exchange, seed=ranks)
    return closing(PutSignalEngine(device, engine, pieces=2))


@contextmanager
def _process_group(store: Any, place: Path, rank: int, ranks: int) -> Any:
    from coppice.run.torch.backend import CoppiceProcessGroup
    from coppice.run.torch.backend_path import Options, options_from

    file = place.with_suffix(f".{rank}.json")
    write_topology(preset("star", gpus=ranks) if ranks % 2 else two_boxes(ranks // 2), file)
    options = options_from(Options(engine="torch", topology=str(file), threshold_bytes=1 << 40))
    group = CoppiceProcessGroup(store, rank, ranks, timedelta(seconds=PATIENCE_S), range(ranks), options)
    try:
        yield group
    finally:
        group.shutdown()


def count(names: list[str], folder: Path, number: int, rank: int, ranks: int) -> dict[str, dict[int, int]]:
    """Calls with the right outcome, by engine and size of the group."""
    found: dict[str, dict[int, int]] = {name: {} for name in names}
    for members in range(2, ranks + 1):
        for name in names:
            _meet(folder / f"before {name} {members}", rank, ranks)  # nobody waits in a group for long
            if rank >= members:
                continue
            with group_of(name, folder, rank, members) as group:
                calls = unequal_calls(members, number, first=1000 * members)
                found[name][members] = sum(not call.run(group) for call in calls)
    return found


def _meet(place: Path, rank: int, ranks: int) -> None:
    place.mkdir(exist_ok=True)
    (place / str(rank)).touch()
    while len(list(place.iterdir())) < ranks:
        time.sleep(0.05)


def killed(name: str, folder: Path, rank: int, ranks: int) -> str:
    """What this rank raises where rank 1 is gone."""
    with group_of(name, folder, rank, ranks) as group:
        for call in unequal_calls(ranks, 3):
            if fault := call.run(group):
                return fault
        try:
            UnequalCall(2, ranks, most=200_000).run(group, _kill if rank == 1 else lambda: None)
        except (CoppiceError, RuntimeError) as error:  # torch's errors are of the second kind
            return f"{type(error.__cause__ or error).__name__}: {error}"
    return "nothing"


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    names, folder, number = sys.argv[1].split(","), Path(sys.argv[2]), int(sys.argv[3])
    if names == ["mpi"]:
        from mpi4py import MPI

        rank, ranks = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    else:
        rank, ranks = int(sys.argv[4]), int(sys.argv[5])
    found: Any = (
        count(names, folder, number, rank, ranks) if number else killed(names[0], folder, rank, ranks)
    )
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
