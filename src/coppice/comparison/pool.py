"""Run jobs on an executor: local processes, or one that the caller supplies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import Any, TypeVar

from coppice.errors import InputError
from coppice.interrupts import later

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


def cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _WorkerProcess(SpawnProcess):
    """A process that does not read the script that started it: work is a function of a module.

    Otherwise every process would run a script without a guard again, up to the call that starts processes. Ctrl-C waits
    until a process has been started: one that is not told what to do says so, and one that nobody knows stays.
    """

    def start(self) -> None:
        """Start the process."""
        with later():
            super().start()

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 (the name is multiprocessing's)
        script = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        # Ctrl-C reaches all processes of a terminal: this one is deaf to it until it has its own way to end.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return SpawnProcess._Popen(process_obj)  # noqa: SLF001
        finally:
            sys.modules["__main__"] = script
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Context(SpawnContext):
    """Fresh processes: a copy of one that runs threads, such as a progress bar, may hang."""

    Process = _WorkerProcess


@contextmanager
def local_processes(workers: int) -> Iterator[Executor]:
    """Pool of ``workers`` local processes that always end with the block."""
    if workers < 1:
        raise InputError(f"expected 1 or more processes, found {workers}: leave out `jobs` for one per core.")
    context = _Context()
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
    """Executor of the work: the caller's, local processes, or None for this process.

    Args:
        executor: What the caller brings, if anything.
        processes: How many to start; None is one per core where the work is large, 1 is none.
        units: Pieces that the work comes in.
        large: The work takes longer than to start processes.
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
    """Results of ``work`` on each job, in order of completion.

    Args:
        work: Function of a module, which other processes can import.
        executor: Where; None does one after the other in this process.
    """
    if executor is None:
        yield from map(work, jobs)
        return
    futures: list[Future[_Result]] = []
    try:
        for job in jobs:
            with later():  # the first one starts a thread, which has to run before it can be ended
                futures.append(executor.submit(work, job))
        for future in as_completed(futures):
            yield future.result()
    except BrokenExecutor:
        raise InputError(
            "expected processes that work, found one that ended on its own, perhaps for lack of memory: work with "
            "fewer of them (`jobs=2`), or in this one (`jobs=1`)."
        ) from None
    finally:
        for future in futures:
            future.cancel()


def _die_on_interrupt() -> None:
    """Ctrl-C reaches all processes of a terminal: let it end these without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
