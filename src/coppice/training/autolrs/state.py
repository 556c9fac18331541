"""State and decisions of a search as plain records for checkpoints, and a progress line."""

from __future__ import annotations

import enum
from math import inf
from weakref import finalize

import msgspec

from coppice.training.autolrs.log import Event, Settings


class SearchPhase(enum.StrEnum):
    """Purpose of the current steps."""

    WARMUP = "warmup"
    SEARCH = "search"
    EXPLOIT = "exploit"
    DONE = "done"


class Action(enum.StrEnum):
    """What the caller must do before the next step, besides setting the learning rate."""

    CONTINUE = "continue"
    SAVE = "save"
    RESTORE = "restore"


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A rate tried in this stage."""

    lr: float  # The rate
    forecast: float  # Loss forecast for it; infinite if it failed
    limit: float = inf  # Training loss above which a stage of this rate is worse than the trial was


class State(msgspec.Struct, kw_only=True):
    """State of a search, stored in the caller's checkpoint."""

    phase: SearchPhase  # What the steps of the moment are for
    lr: float  # Learning rate of the segment (at its end, in the warm-up)
    tau: int  # Steps of a full stage at this point of the training
    length: int  # Steps of the segment: warm-up, trial or stage
    stage: int = 0  # Number of the stage, from 0
    done: int = 0  # Steps of the segment that were seen
    stage_steps: int = 0  # Steps of this stage; less than `tau` at the end of the training
    validating: bool = False  # Trials are judged by validation losses
    trials: list[Trial] = []  # Trials of this stage that have ended
    losses: list[float] = []  # Training losses of the segment
    validations: list[float] = []  # Validation losses of the trial
    chosen: float | None = None  # Rate of the last stage that was chosen
    first_loss: float | None = None  # First loss that was ever seen
    kept: int = 0  # Steps that stay in the model
    searched: int = 0  # Steps of trials
    lost: int = 0  # Steps of stages that failed


class SearchDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Next action, whether the segment ended, and events to log."""

    action: Action
    ended: bool
    events: list[Event] = []


def describe(state: State, settings: Settings) -> str:
    """Progress of the search as text.

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
    """Progress bar on standard error, one per segment, on terminals only.

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
        """Update the bar; the last call removes it."""
        if self._task is None:
            return
        words = describe(state, self._settings)
        self._progress.update(self._task, description=words, total=state.length, completed=state.done)
        self._progress.refresh()
        if state.phase is SearchPhase.DONE:
            self.close()

    def close(self) -> None:
        """Remove the bar."""
        if self._task is not None:
            self._progress.stop()
            self._task = None
