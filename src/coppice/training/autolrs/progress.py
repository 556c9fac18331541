"""A line that says where the search is, on a terminal only."""

from __future__ import annotations

from weakref import finalize

from coppice.training.autolrs.settings import Settings
from coppice.training.autolrs.state import SearchPhase, State

__all__ = ["ProgressLine", "describe"]


def describe(state: State, settings: Settings) -> str:
    """Where the search is, in words.

    >>> describe(State(phase=SearchPhase.SEARCH, lr=0.01, tau=1000, length=100), Settings())
    'stage 0: trial 1 of 10, lr 0.01'
    """
    if state.phase is SearchPhase.WARMUP:
        return f"warm-up to lr {state.lr:.3g}"
    if state.phase is SearchPhase.SEARCH:
        return (
            f"stage {state.stage}: trial {len(state.trials) + 1} of {settings.candidates}, lr {state.lr:.3g}"
        )
    if state.phase is SearchPhase.EXPLOIT:
        return f"stage {state.stage}: training, lr {state.lr:.3g}"
    return f"done: {state.kept} steps kept, {state.searched} of trials"


class ProgressLine:
    """A bar on standard error for each segment; nothing where that is no terminal.

    It is drawn when losses are read, so it costs ordinary steps nothing.
    """

    def __init__(self, settings: Settings) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._settings = settings
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(*columns, console=console, auto_refresh=False, transient=True)
        self._task = self._progress.add_task("", total=None) if console.is_terminal else None
        if self._task is not None:
            self._progress.start()
            # A bar hides the cursor: whatever ends the program shows it again.
            finalize(self, self._progress.stop)

    def show(self, state: State) -> None:
        """Draw what is going on; the last call puts the bar away."""
        if self._task is None:
            return
        words = describe(state, self._settings)
        self._progress.update(self._task, description=words, total=state.length, completed=state.done)
        self._progress.refresh()
        if state.phase is SearchPhase.DONE:
            self.close()

    def close(self) -> None:
        """Put the bar away."""
        if self._task is not None:
            self._progress.stop()
            self._task = None
