"""Settings, state and log of a learning-rate search: trials, forecasts and choices.

The log has one JSON object per line. Settings are checked once, at the edge, and written into the log and the
checkpoints. Every line is on the disk before training goes on; a resumed training takes back lines that its checkpoint
does not know. No record holds a time: the same training writes the same bytes. Long series of losses are thinned.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from weakref import finalize

import msgspec

from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.files import AppendedFile, write_atomically

if TYPE_CHECKING:
    from coppice.outputs.shapes.training import LearningRatesJson

FEWEST_TRIAL_STEPS = 5
"""Steps of a trial below which there is no curve to forecast from."""


class Method(enum.StrEnum):
    """Methods of forecasting losses and proposing rates."""

    ROBUST = "robust"
    """A direct robust exponential fit, and expected improvement."""

    PUBLISHED = "published"
    """As the published code: a spline first, and rates that fill the range whatever was found."""

    ANNEALED = "annealed"
    """One stage, whose rate falls linearly to zero; a trial is the same in small, and is judged by where it ends.

    A constant rate is judged too early: within a tenth of a stage the low rate looks best that a training ends with.
    Linear decay: Defazio et al. 2023, "Optimal linear decay learning rate schedules and further refinements"
    (arXiv 2310.07831).
    """


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a search; all counts are optimizer steps."""

    lr_range: tuple[float, float] = (1e-4, 1.0)  # Smallest and largest learning rate
    tau: int = 1000  # Steps of the first stage; an annealed one has all steps to `kept_steps`
    # Steps of the longest stage; each stage is twice as long as the one before until then
    tau_max: int = 8000
    candidates: int = 10  # Learning rates tried before each stage
    trial_share: int = 10  # A trial takes `tau / trial_share` steps
    warmup_steps: int = 0  # Steps of a linear rise to `warmup_lr` before the first search
    warmup_lr: float = 0.1  # Learning rate at the end of the warm-up
    # Length of the training that is kept (warm-up and stages, without trials); None has no end
    kept_steps: int | None = None
    # A validation function is there: trials of the stages after the first of length `tau_max` are judged by
    # it
    validation: bool = False
    validations: int = 16  # Validations in such a trial
    # A loss that exceeds the first one by more than `divergence - 1` times its absolute value diverges
    divergence: float = 3.0
    method: Method = Method.ROBUST  # How losses are forecast and rates proposed
    seed: int = 0  # Seed of the proposals

    def __post_init__(self) -> None:
        low, high = self.lr_range
        if not (isfinite(low) and isfinite(high) and 0 < low < high):
            raise InputError(
                f"expected lr_range (low, high) with 0 < low < high, found ({low}, {high}): give positive rates."
            )
        for name, least in (
            ("candidates", 1),
            ("trial_share", 1),
            ("warmup_steps", 0),
            ("validations", 4),
            ("seed", 0),
        ):
            if getattr(self, name) < least:
                raise InputError(f"expected {name} >= {least}, found {getattr(self, name)}: raise it.")
        if self.trial_steps(self.tau) < FEWEST_TRIAL_STEPS:
            raise InputError(
                f"expected tau / trial_share >= {FEWEST_TRIAL_STEPS} steps per trial, found "
                f"{self.tau} / {self.trial_share}: raise tau."
            )
        if self.tau_max < self.tau:
            raise InputError(f"expected tau_max >= tau, found {self.tau_max} < {self.tau}: raise tau_max.")
        if not (isfinite(self.warmup_lr) and self.warmup_lr > 0):
            raise InputError(
                f"expected warmup_lr > 0, found {self.warmup_lr}: give the rate that the warm-up ends with."
            )
        if self.kept_steps is not None and self.kept_steps < 1:
            raise InputError(
                f"expected kept_steps >= 1 or None, found {self.kept_steps}: give the length of the training."
            )
        if self.method is Method.ANNEALED and self.kept_steps is None:
            raise InputError(
                "expected kept_steps with method 'annealed', found None: give the length that the rate falls over."
            )
        if not self.divergence > 1:
            raise InputError(f"expected divergence > 1, found {self.divergence}: 3 is usual.")

    def trial_steps(self, tau: int) -> int:
        """Steps of one trial before a stage of ``tau`` steps.

        >>> Settings().trial_steps(1000)
        100
        """
        return tau // self.trial_share

    def next_tau(self, tau: int) -> int:
        """Steps of the stage after one of ``tau`` steps.

        >>> Settings().next_tau(4000), Settings().next_tau(8000)
        (8000, 8000)
        """
        return min(2 * tau, self.tau_max)


class EventLog:
    """A log file of events.

    The file is touched when the first event is written: what a former run left is replaced then, but for the lines
    that the checkpoint knows, from which this training goes on.

    Args:
        path: The file.
        settings: What its first line tells.
    """

    def __init__(self, path: str | os.PathLike[str], settings: Settings) -> None:
        self.lines = 0  # Lines that belong to this training
        self._path = Path(path)
        self._file = AppendedFile(path)
        self._settings = settings
        self._opened = False

    def resume(self, lines: int) -> None:
        """Continue after a number of lines."""
        self.lines = lines
        self._opened = False

    def write(self, events: Sequence[Event]) -> None:
        """Append events."""
        if not events:
            return
        written = events if self.lines else [Start(settings=self._settings), *events]
        text = b"".join(msgspec.json.encode(event) + b"\n" for event in written)
        try:
            if self._opened or self._file.is_stream:
                self._file.append(text, flush=True)
            else:
                write_atomically(self._path, self._known() + text)
            self._opened = True
        except OSError as error:
            raise InputError(
                f"cannot write the log {self._path} ({error.strerror or error}): choose another place."
            ) from None
        self.lines += len(written)

    def _known(self) -> bytes:
        """The lines of the file that belong to this training."""
        if not self.lines:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return b""
        lines = self._path.read_bytes().split(b"\n")[:-1]
        if len(lines) < self.lines:
            raise InputError(
                f"expected {self.lines} lines of this training in the log {self._path}, found {len(lines)}: put the "
                "log back, or give another name."
            )
        return b"".join(line + b"\n" for line in lines[: self.lines])


FORMAT = "coppice-autolrs"
VERSION = 1

_MOST_POINTS = 200
_MOST_BYTES = 2**30


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Losses over steps."""

    steps: list[int]  # Steps from the beginning of the trial or stage, ascending
    losses: list[float | None]  # Loss at each; None where it was not finite


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start", tag_field="event"):
    """First line: format, version and settings."""

    settings: Settings
    format: str = FORMAT
    version: int = VERSION


class TrialEnd(msgspec.Struct, frozen=True, kw_only=True, tag="trial", tag_field="event"):
    """A trial of a learning rate."""

    stage: int  # Number of the stage that it was tried for, from 0
    number: int  # Number of the trial within the search, from 0
    lr: float  # Learning rate
    horizon: int  # Step of the stage at which the loss was forecast
    # Forecast loss (of an annealed trial, the loss at its end); None if the trial failed
    forecast: float | None
    verdict: str  # `ok`, `not finite` or `diverged`
    # `a, b, c` of `a exp(-b t) + c` with `t` in steps; None if none was made
    fit: tuple[float, float, float] | None
    outliers: int  # Losses that had no weight in the fit
    losses: Curve  # Training losses
    validations: Curve | None = None  # Validation losses, if the trial was judged by them


class Kept(msgspec.Struct, frozen=True, kw_only=True, tag="kept", tag_field="event"):
    """Steps that stay in the model: warm-up, or a stage."""

    phase: str  # `warmup` or `exploit`
    stage: int  # Number of the stage; -1 for the warm-up
    lr: float  # Learning rate, at the end of the warm-up; annealed stages begin with it and fall to zero
    first_step: int  # Kept steps before it
    steps: int  # How many
    losses: Curve  # Training losses


class Retreat(msgspec.Struct, frozen=True, kw_only=True, tag="retreat", tag_field="event"):
    """A stage whose rate failed and that is repeated with another one."""

    stage: int  # Number of the stage
    lr: float  # The rate that failed
    steps: int  # Steps that were lost
    verdict: str  # `not finite`, `diverged` or `worse than its trial`
    next_lr: float  # The rate that the stage begins again with


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished", tag_field="event"):
    """The training is complete."""

    kept_steps: int  # Steps that stayed in the model
    search_steps: int  # Steps of trials
    lost_steps: int  # Steps of stages that failed


Event: TypeAlias = Start | TrialEnd | Kept | Retreat | Finished


def curve(steps: Sequence[int], losses: Sequence[float]) -> Curve:
    """Loss curve for the log: evenly thinned to some hundreds, the last one kept.

    >>> curve(range(3), [1.0, float("nan"), 0.5])
    Curve(steps=[0, 1, 2], losses=[1.0, None, 0.5])
    """
    every = max(ceil(len(losses) / _MOST_POINTS), 1)
    chosen = list(range(0, len(losses), every))
    if losses and chosen[-1] != len(losses) - 1:
        chosen.append(len(losses) - 1)
    values = [losses[index] for index in chosen]
    finite = [value if abs(value) < float("inf") else None for value in values]
    return Curve(steps=[steps[index] for index in chosen], losses=finite)


def read_events(path: str | os.PathLike[str]) -> list[Event]:
    """Read a log; an incomplete last line is dropped."""
    name = os.fspath(path)
    try:
        size = Path(path).stat().st_size
        if size > _MOST_BYTES:
            raise InputError(
                f"expected a log of at most {_MOST_BYTES} bytes, found {size} in {name}: is it another file?"
            )
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(
            f"cannot read {name} ({error.strerror or error}): give the log that AutoLRS wrote."
        ) from None
    decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(decodable(Event))
    events: list[Event] = []
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last line feed was cut off
        try:
            events.append(decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise InputError(
                f"expected an event of AutoLRS, found something else in {name}:{number}: {error}."
            ) from None
    first = events[0] if events else None
    if not isinstance(first, Start) or (first.format, first.version) != (FORMAT, VERSION):
        raise InputError(
            f"expected a log that begins with format {FORMAT}, version {VERSION}, found none in {name}:1: is it one?"
        )
    return events


@dataclass(frozen=True, kw_only=True)
class SearchLog:
    """Content of a log."""

    start: Start  # Settings
    trials: dict[int, list[TrialEnd]]  # Trials by stage
    kept: list[Kept]  # The warm-up and the stages that are over
    retreats: list[Retreat]  # Stages that began again
    finished: Finished | None  # The end, if the training reached it

    def record(self) -> LearningRatesJson:
        """The schedule as JSON values."""
        return {
            "method": str(self.start.settings.method),
            "schedule": [
                {
                    "phase": event.phase,
                    "stage": event.stage,
                    "lr": event.lr,
                    "first_step": event.first_step,
                    "step_count": event.steps,
                    "steps": event.steps,
                }
                for event in self.kept
            ],
            "search_steps": self.search_steps,
            "lost_steps": sum(event.steps for event in self.retreats),
            "finished": self.finished is not None,
        }

    @property
    def search_steps(self) -> int:
        """Number of trial steps."""
        return sum(trial.losses.steps[-1] + 1 for trials in self.trials.values() for trial in trials)

    @property
    def by_stage(self) -> dict[int, Kept]:
        """Finished stages by number; -1 is the warm-up."""
        return {event.stage: event for event in self.kept}

    @property
    def summary(self) -> str:
        """Step counts as text."""
        kept = sum(event.steps for event in self.kept)
        words = f"AutoLRS: {kept:,} steps kept, {self.search_steps:,} of trials"
        lost = sum(event.steps for event in self.retreats)
        if lost:
            words += f", {lost:,} lost in stages that failed"
        return words if self.finished is not None else f"{words} so far"


def read_search(path: str | os.PathLike[str]) -> SearchLog:
    """Read a log."""
    events: Sequence[Event] = read_events(path)
    trials: dict[int, list[TrialEnd]] = {}
    for event in events:
        if isinstance(event, TrialEnd):
            trials.setdefault(event.stage, []).append(event)
    kept = [event for event in events if isinstance(event, Kept)]
    if not trials and not kept:
        raise InputError(
            f"expected a trial or a stage in {os.fspath(path)}, found none yet: let the training go on."
        )
    return SearchLog(
        start=next(event for event in events if isinstance(event, Start)),
        trials=trials,
        kept=kept,
        retreats=[event for event in events if isinstance(event, Retreat)],
        finished=next((event for event in events if isinstance(event, Finished)), None),
    )


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
