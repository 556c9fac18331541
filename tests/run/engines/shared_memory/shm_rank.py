"""One rank of a group of processes, for the tests of faults: `python shm_rank.py DIRECTORY RANK RANKS DEED [SHM_DIR]`.

Prints one line: `ok`, or the name and message of the error.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

from coppice.collectives import Collective
from coppice.errors import CoppiceError
from coppice.run.engines.datatype import DataType
from coppice.run.engines.shared_memory import ShmEngine, directory_exchange
from support.shm_cases import random_case


def deed(engine: ShmEngine, what: str) -> None:
    rank, last = engine.rank, engine.ranks - 1
    data = np.full(200_000, rank, dtype=np.float32)

    def all_reduce(elements: int, timeout_s: float) -> None:
        engine.run_direct(
            Collective.ALL_REDUCE,
            data,
            np.empty_like(data),
            count=elements,
            dtype=DataType.FLOAT32,
            timeout_s=timeout_s,
        )

    name, _, number = what.partition(":")
    if name == "random":
        rng = np.random.default_rng(7)
        wrong = sum(
            not random_case(rng, engine.ranks, seed=seed).direct(engine) for seed in range(int(number))
        )
        if wrong:
            raise SystemExit(f"{wrong} wrong results")
        return
    all_reduce(len(data), 900)
    if name == "die" and rank == last:
        # At a random moment of a stream of collectives.
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, float(number))
    if name == "stop" and rank == last:
        print("stopping", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    if name == "raise" and rank == last:
        raise ValueError("an error of the program")
    if name == "slow" and rank == last:
        time.sleep(1.0)
    if name == "other" and rank == last:
        all_reduce(1000, 900)
    if name == "interrupt" and rank == last:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    if name == "interrupt" and rank != last:
        time.sleep(3.0)
    timeout_s = float(number) if name in ("stop", "slow") else 900.0
    if name == "die":
        while True:
            all_reduce(len(data), timeout_s)
    all_reduce(len(data), timeout_s)


def main() -> None:
    directory, rank, ranks, what = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    try:
        engine = ShmEngine.connect(
            rank,
            ranks,
            directory_exchange(directory, rank, ranks, timeout_s=300),
            directory=sys.argv[5] if len(sys.argv) > 5 else None,
        )
        print("connected", flush=True)
        deed(engine, what)
        engine.close()
    except CoppiceError as error:
        print(type(error).__name__, error, flush=True)
        return
    print("ok", flush=True)


if __name__ == "__main__":
    main()
