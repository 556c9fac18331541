"""Running jobs on an executor: local processes unless the caller brings another one."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager

from coppice.comparison.measurement import Job, Measurement, measure
from coppice.errors import InputError

__all__ = ["cores", "local_processes", "run"]


def cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def local_processes(workers: int) -> Iterator[Executor]:
    """An executor of ``workers`` processes that are gone at the end, whatever the reason for it.

    Args:
        workers: Number of processes.

    Raises:
        InputError: If there is no process.
    """
    if workers < 1:
        msg = f"expected 1 or more processes, found {workers}: leave out `--jobs` for one per core."
        raise InputError(msg)
    # Fresh processes: a copy of one that runs threads, such as a progress bar, may hang.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_die_on_interrupt)
    try:
        yield pool
    except BaseException:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def run(jobs: Sequence[Job], executor: Executor | None) -> Iterator[list[Measurement]]:
    """Measurements of each job as it is done, in any order.

    Args:
        jobs: What to do.
        executor: Where; None does one after the other in this process.
    """
    if executor is None:
        yield from map(measure, jobs)
        return
    futures: list[Future[list[Measurement]]] = [executor.submit(measure, job) for job in jobs]
    try:
        for future in as_completed(futures):
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


def _die_on_interrupt() -> None:
    """Ctrl-C reaches all processes of a terminal: let it end these without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
