"""Shared set-up of HiGHS: silent, single-threaded, interruptible by Ctrl-C."""

from __future__ import annotations

import threading
from typing import Any


def new_solver() -> Any:
    """A HiGHS solver without a model, which prints nothing and can be interrupted."""
    import highspy

    class SilentHighs(highspy.Highs):
        """HiGHS 1.16 prints its licence as soon as callbacks are enabled, which its constructor does."""

        def enableCallbacks(self) -> None:  # noqa: N802
            self.setOptionValue("output_flag", False)  # noqa: FBT003
            super().enableCallbacks()  # type: ignore[no-untyped-call]

    solver: Any = SilentHighs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)  # noqa: FBT003
    solver.HandleUserInterrupt = True  # lets cancelSolve work
    solver.setOptionValue("threads", 1)
    return solver


def run_interruptibly(solver: Any) -> None:
    """Run HiGHS in a thread, so that Ctrl-C stops it at once."""
    done = threading.Event()

    def work() -> None:
        try:
            solver.run()
        finally:
            done.set()

    worker = threading.Thread(target=work, daemon=True)
    try:
        worker.start()
        # An interrupted `join` would take the thread for finished, and leaving with HiGHS at work aborts.
        while not done.wait(0.1):
            pass
    except KeyboardInterrupt:
        solver.cancelSolve()
        done.wait(10.0)  # on a busy machine HiGHS takes more than a second to notice
        raise
    worker.join()
