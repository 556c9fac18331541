"""State machine of a learning-rate search: losses in, decisions out; independent of the model.

    WARMUP ──> SEARCH (trial 0 ... trial K-1) ──> EXPLOIT ──> SEARCH of the next stage ──> ... ──> DONE
                 each from the same snapshot         └── the loss fails: the next best rate, same snapshot

A stage keeps one learning rate for tau steps. Before it, K rates are tried for tau/10 steps each, all from the same
snapshot; the loss that each would reach after tau steps is forecast, and the best one is chosen. tau doubles from stage
to stage until ``tau_max``; after the first stage of that length trials are judged by validation losses, if there are
any. An annealed search has one stage, as long as the training, whose rate falls linearly to zero; so does the rate of a
trial, which is judged by where it ends. The caller trains, hands over losses when :meth:`Controller.steps_to_event` has
run down, and does what it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf, isfinite
from statistics import fmean, median

from coppice.errors import CheckError, InputError
from coppice.training.autolrs.forecast import ExponentialFit, fit_exponential, fit_published
from coppice.training.autolrs.log import (
    FEWEST_TRIAL_STEPS,
    Action,
    Event,
    Finished,
    Kept,
    Method,
    Retreat,
    SearchDecision,
    SearchPhase,
    Settings,
    State,
    Trial,
    TrialEnd,
    curve,
)
from coppice.training.autolrs.search import best_of, propose

READ_EVERY = 100
"""Most steps between two looks at the losses."""

_LOOKS_PER_TRIAL = 10
_FEWEST_READ = 10
_FAILED_SCORE = 1e6
"""What the published code tells its search of a rate that made the loss NaN."""


_MAD_TO_SIGMA = 1.4826
_NOISES_ABOVE, _SHARE_ABOVE = 3.0, 0.02
"""What may separate the loss of a stage from that at the end of its trial: so many deviations, and a share of it."""

_COOLEST = 5
"""The part of a trial, at its end, whose training losses judge it once its rate has fallen."""

_SETTLED_AFTER = 2
"""Trial lengths after which a stage is compared with its trial."""


class Controller:
    """Choose learning rates from losses.

    Args:
        settings: What is searched, and how.

    Raises:
        InputError: If the training to keep is too short for a search.

    Examples:
        >>> control = Controller(Settings(tau=100, tau_max=200, candidates=2))
        >>> control.phase, control.first.action, control.steps_to_event
        (<SearchPhase.SEARCH: 'search'>, <Action.SAVE: 'save'>, 10)
        >>> control.observe([1.0 - 0.05 * step for step in range(10)]).action
        <Action.RESTORE: 'restore'>
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        least = settings.warmup_steps + FEWEST_TRIAL_STEPS * settings.trial_share
        if settings.kept_steps is not None and settings.kept_steps < least:
            raise InputError(
                f"expected kept_steps >= {least} (warm-up and one stage), found {settings.kept_steps}: train longer."
            )
        self.state = State(
            phase=SearchPhase.WARMUP, lr=settings.warmup_lr, tau=settings.tau, length=settings.warmup_steps
        )
        self.first = (
            SearchDecision(action=Action.CONTINUE, ended=False)
            if settings.warmup_steps
            else self._begin_stage([])
        )
        """What to do before the first step."""

    @property
    def phase(self) -> SearchPhase:
        """Purpose of the current steps."""
        return self.state.phase

    @property
    def steps_to_event(self) -> int:
        """Steps until :meth:`observe` is due; 0 when the training is complete."""
        state = self.state
        if state.phase is SearchPhase.DONE:
            return 0
        every = READ_EVERY
        if state.phase is SearchPhase.SEARCH:
            every = min(max(state.length // _LOOKS_PER_TRIAL, _FEWEST_READ), READ_EVERY)
        next_look = min((state.done // every + 1) * every, state.length)
        if state.phase is SearchPhase.SEARCH and state.validating:
            step = self._validation_steps()
            next_look = min(next_look, (state.done // step + 1) * step)
        return next_look - state.done

    def lr_at(self, step: int) -> float:
        """Learning rate of a step of the segment, from 0: rising in the warm-up, falling if annealed.

        >>> [Controller(Settings(warmup_steps=4, warmup_lr=0.4)).lr_at(step) for step in (0, 3)]
        [0.1, 0.4]
        """
        state = self.state
        if state.phase is SearchPhase.WARMUP:
            return state.lr * (step + 1) / state.length
        if self.settings.method is Method.ANNEALED and step < state.length:
            return state.lr * (state.length - step) / state.length
        return state.lr

    @property
    def lr_moves(self) -> bool:
        """Whether the rate changes within the segment."""
        return self.state.phase is SearchPhase.WARMUP or self.settings.method is Method.ANNEALED

    def validation_due(self, steps: int) -> bool:
        """Whether a validation loss is due after ``steps`` more steps."""
        state = self.state
        if state.phase is not SearchPhase.SEARCH or not state.validating:
            return False
        return (state.done + steps) % self._validation_steps() == 0 and len(
            state.validations
        ) < self.settings.validations

    def follow(self, losses: Sequence[float], validation: float | None = None) -> None:
        """Record losses without deciding; the decision comes from another rank."""
        state = self.state
        if len(losses) > state.length - state.done:
            left = state.length - state.done
            raise InputError(
                f"expected at most {left} losses, found {len(losses)}: observe segment by segment."
            )
        if state.first_loss is None and losses:
            state.first_loss = float(losses[0])
        state.losses.extend(map(float, losses))
        state.done += len(losses)
        if validation is not None:
            state.validations.append(float(validation))

    def observe(self, losses: Sequence[float], validation: float | None = None) -> SearchDecision:
        """Record the losses since the last call, and decide.

        Args:
            losses: Training losses, one per step, in order.
            validation: Validation loss, where :meth:`validation_due` asked for one.
        """
        self.follow(losses, validation)
        state = self.state
        verdict = self._verdict(len(losses), validation)
        if state.phase is SearchPhase.SEARCH:
            if verdict != "ok" or state.done == state.length:
                return self._end_trial(verdict)
        elif state.phase is SearchPhase.WARMUP:
            if verdict == "not finite":
                raise CheckError(
                    f"the loss is not finite after {state.done} steps of the warm-up: lower warmup_lr ({state.lr:g})."
                )
            if state.done == state.length:
                return self._end_kept()
        elif state.phase is SearchPhase.EXPLOIT:
            if verdict != "ok":
                return self._retreat(verdict)
            if state.done == state.length:
                return self._end_kept()
        return SearchDecision(action=Action.CONTINUE, ended=False)

    def stop(self) -> SearchDecision:
        """End the training; an unfinished search is undone."""
        state = self.state
        events: list[Event] = []
        if state.phase is SearchPhase.DONE:
            return SearchDecision(action=Action.CONTINUE, ended=False)
        searching = state.phase is SearchPhase.SEARCH
        if searching:
            state.searched += state.done
        elif state.done:
            events = [self._kept_event()]
            state.kept += state.done
        events.append(self._finished_event())
        rate = state.lr if state.chosen is None else state.chosen
        if state.phase is SearchPhase.EXPLOIT and state.done:
            rate = self.lr_at(state.done - 1)
        self._begin(SearchPhase.DONE, lr=rate, length=0)
        return SearchDecision(
            action=Action.RESTORE if searching else Action.CONTINUE, ended=True, events=events
        )

    def _validation_steps(self) -> int:
        if self.settings.method is Method.ANNEALED:
            return self.state.length
        return max(self.state.length // self.settings.validations, 1)

    def _verdict(self, count: int, validation: float | None) -> str:
        """Whether the last ``count`` losses are those of a training that works."""
        state, settings = self.state, self.settings
        recent = state.losses[len(state.losses) - count :]
        if not all(map(isfinite, recent)) or (validation is not None and not isfinite(validation)):
            return "not finite"
        if settings.method is Method.PUBLISHED or not recent or state.first_loss is None:
            return "ok"
        level = median(recent)
        if level > state.first_loss + (settings.divergence - 1) * abs(state.first_loss):
            return "diverged"
        if state.phase is SearchPhase.EXPLOIT and state.done >= _SETTLED_AFTER * settings.trial_steps(
            state.stage_steps
        ):
            limit = next((trial.limit for trial in state.trials if trial.lr == state.lr), inf)
            if level > limit:
                return "worse than its trial"
        return "ok"

    def _begin(self, phase: SearchPhase, *, lr: float, length: int) -> None:
        """Start a new segment."""
        state = self.state
        state.phase, state.lr, state.length, state.done = phase, lr, length, 0
        state.losses, state.validations = [], []

    def _begin_stage(self, events: list[Event]) -> SearchDecision:
        """Start the search before a stage; none where too few steps remain to judge by."""
        state, settings = self.state, self.settings
        left = None if settings.kept_steps is None else settings.kept_steps - state.kept
        if left == 0:
            self._begin(SearchPhase.DONE, lr=self.lr_at(state.done - 1), length=0)
            return SearchDecision(
                action=Action.CONTINUE, ended=True, events=[*events, self._finished_event()]
            )
        state.trials = []
        state.stage_steps = state.tau if left is None else min(state.tau, left)
        if settings.method is Method.ANNEALED and left is not None:
            state.stage_steps, state.validating = left, settings.validation
        steps = settings.trial_steps(state.stage_steps)
        if steps < FEWEST_TRIAL_STEPS and state.chosen is not None:
            self._begin(SearchPhase.EXPLOIT, lr=state.chosen, length=state.stage_steps)
        else:
            self._begin(SearchPhase.SEARCH, lr=self._proposal(), length=max(steps, FEWEST_TRIAL_STEPS))
        return SearchDecision(action=Action.SAVE, ended=True, events=events)

    def _proposal(self) -> float:
        state, settings = self.state, self.settings
        published = settings.method is Method.PUBLISHED
        scores = [trial.forecast for trial in state.trials]
        if published:
            scores = [score if isfinite(score) else _FAILED_SCORE for score in scores]
        return propose(
            [trial.lr for trial in state.trials],
            scores,
            lr_range=settings.lr_range,
            seed=(settings.seed, state.stage),
            previous=state.chosen,
            published=published,
        )

    def _end_trial(self, verdict: str) -> SearchDecision:
        """Judge the trial, then start the next one or the stage."""
        state, settings = self.state, self.settings
        fit, forecast = (None, inf) if verdict != "ok" else self._forecast()
        event = TrialEnd(
            stage=state.stage,
            number=len(state.trials),
            lr=state.lr,
            horizon=state.stage_steps,
            forecast=forecast if isfinite(forecast) else None,
            verdict=verdict,
            fit=None if fit is None else (fit.a, fit.b, fit.c),
            outliers=0 if fit is None else fit.outliers,
            losses=curve(range(len(state.losses)), state.losses),
            validations=curve(self._validated_at(), state.validations) if state.validating else None,
        )
        limit = inf
        if verdict == "ok" and settings.method is not Method.PUBLISHED:
            annealed = (
                settings.method is Method.ANNEALED
            )  # what a trial gains by its low rates, the stage gains later
            limit = _limit(state.losses[: (len(state.losses) + 1) // 2] if annealed else state.losses)
        state.trials = [*state.trials, Trial(lr=state.lr, forecast=forecast, limit=limit)]
        state.searched += state.done
        if len(state.trials) < settings.candidates:
            self._begin(SearchPhase.SEARCH, lr=self._proposal(), length=state.length)
        else:
            state.chosen = self._choice()
            self._begin(SearchPhase.EXPLOIT, lr=state.chosen, length=state.stage_steps)
        return SearchDecision(action=Action.RESTORE, ended=True, events=[event])

    def _validated_at(self) -> list[int]:
        step = self._validation_steps()
        return [step * (number + 1) for number in range(len(self.state.validations))]

    def _forecast(self) -> tuple[ExponentialFit | None, float]:
        """The fit of the trial (over steps) and the loss that it promises at the end of the stage."""
        state, settings = self.state, self.settings
        if settings.method is Method.ANNEALED:
            last = state.losses[-max(len(state.losses) // _COOLEST, 1) :]
            return None, state.validations[-1] if state.validating else fmean(last)
        if settings.method is Method.ROBUST:
            places, values = (
                (self._validated_at(), state.validations)
                if state.validating
                else (list(range(len(state.losses))), state.losses)
            )
            robust = fit_exponential(values, positions=places, horizon=state.stage_steps)
            return robust, robust.at(state.stage_steps)
        if not state.validating:
            published = fit_published(state.losses)
            return published, _finite_or_inf(published.at(state.stage_steps))
        if state.first_loss is not None and max(state.validations) >= state.first_loss:
            return None, state.validations[-1]
        every = self._validation_steps()
        indexed = fit_published(state.validations, validating=True)
        forecast = _finite_or_inf(indexed.at(state.stage_steps // every))
        a, b = (
            indexed.a,
            indexed.b / every,
        )  # over steps, the first validation standing after ``every`` of them
        return ExponentialFit(
            a=_finite_or_inf(indexed.at(-1)) - indexed.c if a else 0.0, b=b, c=indexed.c
        ), forecast

    def _choice(self, *, below: float = inf) -> float:
        """Best rate tried that has not failed."""
        state, settings = self.state, self.settings
        trials = [trial for trial in state.trials if trial.lr < below]
        number = best_of(
            [trial.lr for trial in trials],
            [trial.forecast for trial in trials],
            lr_range=settings.lr_range,
            published=settings.method is Method.PUBLISHED,
        )
        if number is None:
            low = min((trial.lr for trial in state.trials), default=state.lr)
            raise CheckError(
                f"training fails at every learning rate tried for stage {state.stage}, down to {low:.3g}: lower "
                f"lr_range, which begins at {settings.lr_range[0]:g}."
            )
        return trials[number].lr

    def _retreat(self, verdict: str) -> SearchDecision:
        """Repeat a failed stage with the best lower rate."""
        state = self.state
        failed = state.lr
        state.chosen = self._choice(below=failed)
        state.lost += state.done
        event = Retreat(stage=state.stage, lr=failed, steps=state.done, verdict=verdict, next_lr=state.chosen)
        self._begin(SearchPhase.EXPLOIT, lr=state.chosen, length=state.length)
        return SearchDecision(action=Action.RESTORE, ended=True, events=[event])

    def _end_kept(self) -> SearchDecision:
        """End the warm-up or a stage."""
        state, settings = self.state, self.settings
        event = self._kept_event()
        state.kept += state.done
        if state.phase is SearchPhase.EXPLOIT:
            state.validating = settings.validation and state.tau == settings.tau_max
            state.stage += 1
            state.tau = settings.next_tau(state.tau)
        return self._begin_stage([event])

    def _kept_event(self) -> Kept:
        state = self.state
        return Kept(
            phase=str(state.phase),
            stage=state.stage if state.phase is SearchPhase.EXPLOIT else -1,
            lr=state.lr,
            first_step=state.kept,
            steps=state.done,
            losses=curve(range(len(state.losses)), state.losses),
        )

    def _finished_event(self) -> Finished:
        state = self.state
        return Finished(kept_steps=state.kept, search_steps=state.searched, lost_steps=state.lost)


def _limit(losses: Sequence[float]) -> float:
    """Acceptable loss at the end of a trial, with an allowance for noise.

    A short trial at too large a rate may look good before training collapses; the stage then ends worse than its own
    trial, which took a tenth of its steps.
    """
    level = median(losses[-max(len(losses) // 4, 3) :])
    steps = [abs(after - before) for before, after in pairwise(losses)]
    noise = _MAD_TO_SIGMA * median(steps) / 2**0.5
    return level + _NOISES_ABOVE * noise + _SHARE_ABOVE * abs(level)


def _finite_or_inf(value: float) -> float:
    """Map overflow and division by zero to a failure."""
    return value if isfinite(value) else inf
