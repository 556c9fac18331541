"""One rank of an emulated device: `emulated_ranks.py RANK RANKS DIRECTORY WORK`, or `... PORT cli WORDS`."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np

from coppice.collectives import Collective
from coppice.program.dialects.put_signal.lower import lower_put_signal
from coppice.run.engines.datatype import DataType
from coppice.run.engines.put_signal.emulated import EmulatedDevice
from coppice.run.engines.put_signal.engine import PutSignalEngine
from coppice.run.engines.shared_memory import ShmEngine, directory_exchange
from coppice.run.errors import RunError
from support.put_signal_cases import forest


def main(rank: int, ranks: int, directory: str, work: str) -> None:
    exchange = directory_exchange(directory, rank, ranks, timeout_s=60)
    below = ShmEngine.connect(rank, ranks, exchange)
    engine = PutSignalEngine(EmulatedDevice(rank, ranks, exchange, seed=len(work)), below)
    program = lower_put_signal(forest("ring", Collective.ALL_REDUCE, (("gpus", ranks),)), pieces=2)
    given = np.arange(1000, dtype=np.int64) * (rank + 1)
    wanted = np.arange(1000, dtype=np.int64) * (ranks * (ranks + 1) // 2)
    for turn in range(4):
        if work == "kill" and rank == 1 and turn == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        found = np.zeros_like(given)
        try:
            engine.run_program(program, given, found, count=1000, dtype=DataType.INT64, timeout_s=600)
        except RunError as error:
            print(f"{turn} right,", type(error).__name__, error)
            return
        assert (found == wanted).all()
    engine.close()


def command(rank: int, ranks: int, port: str, words: list[str]) -> None:
    """As `torchrun ... -m coppice WORDS` starts each rank; DIRECTORY is the port."""
    from coppice.__main__ import main as coppice

    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    sys.argv[:] = ["coppice", *words]
    coppice()


if __name__ == "__main__" and sys.argv[4] == "cli":
    command(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[5:])
elif __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
