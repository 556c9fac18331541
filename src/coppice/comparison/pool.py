"""Running jobs on an executor: local processes unless the caller brings another one."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TypeVar

from coppice.errors import InputError

__all__ = ["chosen_executor", "cores", "local_processes", "run"]

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


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
        msg = f"expected 1 or more processes, found {workers}: leave out `jobs` for one per core."
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


@contextmanager
def chosen_executor(
    executor: Executor | None, *, processes: int | None, units: int, large: bool
) -> Iterator[Executor | None]:
    """Where work is done: on the caller's executor, in processes of this machine, or in this process (None).

    Args:
        executor: What the caller brings, if anything.
        processes: How many to start; None is one per core where the work is large, 1 is none.
        units: Pieces that the work comes in.
        large: The work takes longer than to start processes.

    Raises:
        InputError: If there is no process.
    """
    if executor is None and processes != 1 and units and (large or processes is not None):
        count = cores() if processes is None else processes
        if count != 1:
            with local_processes(min(count, units)) as pool:
                yield pool
            return
    yield executor


def run(
    work: Callable[[_Job], _Result], jobs: Sequence[_Job], executor: Executor | None
) -> Iterator[_Result]:
    """What ``work`` makes of each job as it is done, in any order.

    Args:
        work: Function of a module, which other processes can import.
        jobs: What to do.
        executor: Where; None does one after the other in this process.

    Raises:
        InputError: If a process of the executor ended on its own, as those that a script without a guard starts do.
    """
    if executor is None:
        yield from map(work, jobs)
        return
    futures: list[Future[_Result]] = []
    try:
        futures += [executor.submit(work, job) for job in jobs]
        for future in as_completed(futures):
            yield future.result()
    except BrokenExecutor:
        msg = (
            "expected processes that work, found one that ended on its own: in a script, call this below "
            '`if __name__ == "__main__":`, since every process reads the script; or work in this one (`jobs=1`).'
        )
        raise InputError(msg) from None
    finally:
        for future in futures:
            future.cancel()


def _die_on_interrupt() -> None:
    """Ctrl-C reaches all processes of a terminal: let it end these without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
