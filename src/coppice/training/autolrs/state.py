"""What a search remembers, and what it says: plain records that a checkpoint and a message can hold."""

from __future__ import annotations

import enum
from math import inf

import msgspec

from coppice.training.autolrs.log import Event

__all__ = ["Action", "SearchDecision", "SearchPhase", "State", "Trial"]


class SearchPhase(enum.StrEnum):
    """What the steps of the moment are for."""

    WARMUP = "warmup"
    SEARCH = "search"
    EXPLOIT = "exploit"
    DONE = "done"


class Action(enum.StrEnum):
    """What the caller has to do before the next step, besides setting the learning rate."""

    CONTINUE = "continue"
    SAVE = "save"
    RESTORE = "restore"


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A rate that was tried in this stage.

    Attributes:
        lr: The rate.
        forecast: Loss forecast for it; infinite if it failed.
        limit: Training loss above which a stage of this rate is worse than the trial was.
    """

    lr: float
    forecast: float
    limit: float = inf


class State(msgspec.Struct, kw_only=True):
    """All that a search remembers; the caller's checkpoint holds it.

    Attributes:
        phase: What the steps of the moment are for.
        lr: Learning rate of the segment (at its end, in the warm-up).
        stage: Number of the stage, from 0.
        tau: Steps of a full stage at this point of the training.
        length: Steps of the segment: warm-up, trial or stage.
        done: Steps of the segment that were seen.
        stage_steps: Steps of this stage; less than ``tau`` at the end of the training.
        validating: Trials are judged by validation losses.
        trials: Trials of this stage that have ended.
        losses: Training losses of the segment.
        validations: Validation losses of the trial.
        chosen: Rate of the last stage that was chosen.
        first_loss: First loss that was ever seen.
        kept: Steps that stay in the model.
        searched: Steps of trials.
        lost: Steps of stages that failed.
    """

    phase: SearchPhase
    lr: float
    tau: int
    length: int
    stage: int = 0
    done: int = 0
    stage_steps: int = 0
    validating: bool = False
    trials: list[Trial] = []
    losses: list[float] = []
    validations: list[float] = []
    chosen: float | None = None
    first_loss: float | None = None
    kept: int = 0
    searched: int = 0
    lost: int = 0


class SearchDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now, whether the segment ended, and what to write into the log."""

    action: Action
    ended: bool
    events: list[Event] = []
