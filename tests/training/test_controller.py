"""The state machine: stage arithmetic, trials and choices, failing losses, validation mode, bad settings."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import exp, inf, log10, nan, sin
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.errors import CheckError, InputError
from coppice.training.autolrs.controller import Controller
from coppice.training.autolrs.log import (
    Action,
    Event,
    Finished,
    Kept,
    Method,
    Retreat,
    SearchPhase,
    Settings,
    State,
    TrialEnd,
)

Loss = Callable[[float, int, int], float]
"""Loss for (learning rate, step of the segment, stage)."""


def smooth(rate: float, step: int, stage: int) -> float:
    """The best rate falls by 3 from stage to stage."""
    best = 0.1 / 3**stage
    return 0.3 * (log10(rate) - log10(best)) ** 2 + 2 * exp(-0.03 * step) + 0.5


class Run:
    """A training without a model: what the controller sees, and what it asks for."""

    def __init__(self, settings: Settings, loss: Loss = smooth, *, most: int = 200_000) -> None:
        self.control = Controller(settings)
        self.events: list[Event] = []
        self.segments: list[tuple[str, int, int, float]] = []
        self.actions = [self.control.first.action]
        self.validated: list[int] = []
        self.steps = 0
        self.loss = loss
        while self.control.phase is not SearchPhase.DONE and self.steps < most:
            self.advance()

    def advance(self) -> None:
        control, state = self.control, self.control.state
        before = (str(state.phase), state.stage, state.length, state.lr)
        count = control.steps_to_event
        assert count > 0
        losses = [self.loss(control.lr_at(state.done + k), state.done + k, state.stage) for k in range(count)]
        due = control.validation_due(count)
        if due:
            self.validated.append(state.done + count)
        validation = self.loss(state.lr, state.done + count, state.stage) if due else None
        decision = control.observe(losses, validation)
        self.steps += count
        self.events.extend(decision.events)
        if decision.ended:
            self.segments.append(before)
            self.actions.append(decision.action)

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]


def test_stages_double_up_to_the_longest_then_stay_and_validate() -> None:
    run = Run(Settings(kept_steps=31_000, validation=True))
    kept = run.of(Kept)
    assert [event.steps for event in kept] == [1000, 2000, 4000, 8000, 8000, 8000]
    assert [event.first_step for event in kept] == [0, 1000, 3000, 7000, 15000, 23000]
    trials = run.of(TrialEnd)
    assert [trial.validations is not None for trial in trials] == [False] * 40 + [True] * 20
    assert [trial.number for trial in trials] == list(range(10)) * 6
    assert {trial.horizon for trial in trials[:10]} == {1000}
    searched = 10 * (100 + 200 + 400 + 800 + 800 + 800)
    assert run.of(Finished) == [Finished(kept_steps=31_000, search_steps=searched, lost_steps=0)]
    assert run.steps == 31_000 + searched


def test_a_trial_is_validated_sixteen_times() -> None:
    run = Run(Settings(tau=1000, tau_max=1000, kept_steps=2000, candidates=1, validation=True))
    assert run.validated == [6 * number for number in range(1, 17)]
    eighty = Run(Settings(tau=800, tau_max=800, kept_steps=1600, candidates=1, validation=True))
    assert eighty.validated == [5 * number for number in range(1, 17)]


def test_without_validation_the_training_loss_judges_throughout() -> None:
    run = Run(Settings(tau=100, tau_max=100, kept_steps=400))
    assert not run.validated
    assert all(trial.validations is None for trial in run.of(TrialEnd))


def test_longest_stage_need_not_be_a_power_of_two() -> None:
    run = Run(Settings(tau=100, tau_max=300, kept_steps=1200, validation=True))
    assert [event.steps for event in run.of(Kept)] == [100, 200, 300, 300, 300]
    assert run.of(TrialEnd)[29].validations is None
    assert run.of(TrialEnd)[30].validations is not None


def test_the_end_shortens_the_last_stage_and_skips_a_search_that_would_be_too_short() -> None:
    run = Run(Settings(tau=100, tau_max=200, kept_steps=530))
    assert [event.steps for event in run.of(Kept)] == [100, 200, 200, 30]
    assert [segment[0] for segment in run.segments].count("search") == 30
    assert run.of(Kept)[-1].lr == run.of(Kept)[-2].lr
    longer = Run(Settings(tau=100, tau_max=200, kept_steps=370))
    assert [event.steps for event in longer.of(Kept)] == [100, 200, 70]
    assert [segment[2] for segment in longer.segments if segment[0] == "search"][-1] == 7


def test_actions_save_once_per_stage_and_restore_after_every_trial() -> None:
    run = Run(Settings(tau=100, tau_max=100, candidates=3, kept_steps=200))
    stage = [Action.RESTORE] * 3
    assert run.actions == [Action.SAVE, *stage, Action.SAVE, *stage, Action.CONTINUE]


def test_warmup_rises_linearly_and_is_kept() -> None:
    control = Controller(Settings(warmup_steps=250, warmup_lr=0.5))
    assert control.first.action is Action.CONTINUE
    assert [control.lr_at(step) for step in (0, 124, 249)] == [0.002, 0.25, 0.5]
    run = Run(Settings(tau=100, tau_max=100, warmup_steps=250, kept_steps=450))
    assert [event.steps for event in run.of(Kept)] == [250, 100, 100]
    assert run.segments[0][0] == "warmup"
    assert run.actions[:2] == [Action.CONTINUE, Action.SAVE]


@pytest.mark.parametrize("method", [Method.ROBUST, Method.PUBLISHED])
def test_chooses_near_the_best_rate_of_every_stage(method: Method) -> None:
    run = Run(Settings(tau=1000, tau_max=1000, kept_steps=4000, method=method))
    chosen = [event.lr for event in run.of(Kept)]
    within = 0.15 if method is Method.ROBUST else 0.3
    assert all(abs(log10(rate * 3**stage / 0.1)) < within for stage, rate in enumerate(chosen))
    assert chosen == sorted(chosen, reverse=True)


def test_nan_and_infinity_end_a_trial_early_and_are_not_chosen() -> None:
    def loss(rate: float, step: int, stage: int) -> float:
        if rate > 0.05:
            return nan if step > 20 else 1.0
        return inf if rate > 0.02 else smooth(rate, step, stage + 2)

    run = Run(Settings(tau=1000, tau_max=1000, kept_steps=1000), loss)
    failed = [trial for trial in run.of(TrialEnd) if trial.verdict == "not finite"]
    assert failed
    assert all(trial.forecast is None and trial.fit is None for trial in failed)
    assert run.of(Finished)[0].search_steps < 1000
    assert run.of(Kept)[0].lr <= 0.02
    assert msgspec.json.encode(run.events)  # NaN is no JSON


def test_a_diverging_trial_ends_early() -> None:
    run = Run(
        Settings(tau=1000, tau_max=1000, kept_steps=1000),
        lambda rate, step, stage: 2.0 * exp(0.1 * step) if rate > 0.05 else smooth(rate, step, stage + 2),
    )
    diverged = [trial for trial in run.of(TrialEnd) if trial.verdict == "diverged"]
    assert diverged
    assert all(len(trial.losses.losses) < 100 for trial in diverged)
    assert run.of(Kept)[0].lr <= 0.05


def test_a_negative_loss_may_rise_a_little() -> None:
    run = Run(Settings(tau=100, tau_max=100, kept_steps=100), lambda *_: -2.0)
    assert all(trial.verdict == "ok" for trial in run.of(TrialEnd))


@pytest.mark.parametrize("bad", [nan, 1e9])
def test_a_stage_that_fails_begins_again_with_a_lower_rate(bad: float) -> None:
    def loss(rate: float, step: int, stage: int) -> float:
        return bad if rate > 0.03 and step > 120 else smooth(rate, step, stage)

    run = Run(Settings(tau=1000, tau_max=1000, kept_steps=1000), loss)
    retreats = run.of(Retreat)
    assert retreats
    assert retreats[0].steps == 200
    rates = [retreats[0].lr, *(event.next_lr for event in retreats)]
    assert rates == sorted(rates, reverse=True)
    assert run.of(Kept)[0].lr <= 0.03
    done = run.of(Finished)[0]
    assert done.lost_steps == sum(event.steps for event in retreats)
    assert run.steps == done.kept_steps + done.search_steps + done.lost_steps


def test_a_stage_that_ends_worse_than_its_trial_begins_again() -> None:
    """Dead units: the loss is that of the untrained model for ever, which is no divergence."""

    def loss(rate: float, step: int, stage: int) -> float:
        return 2.6 if rate > 0.03 and step > 120 else smooth(rate, step, stage)

    run = Run(Settings(tau=1000, tau_max=1000, kept_steps=1000), loss)
    assert {event.verdict for event in run.of(Retreat)} == {"worse than its trial"}
    assert run.of(Kept)[0].lr <= 0.03
    published = Run(Settings(tau=1000, tau_max=1000, kept_steps=1000, method=Method.PUBLISHED), loss)
    assert not published.of(Retreat)
    assert published.of(Kept)[0].lr > 0.03


def test_noise_alone_is_no_failure() -> None:
    def loss(_rate: float, step: int, _stage: int) -> float:
        return 1.0 + 0.2 * sin(37.0 * step**1.5)

    assert not Run(Settings(tau=1000, tau_max=2000, kept_steps=9000), loss).of(Retreat)


def test_failing_everywhere_is_an_error() -> None:
    with pytest.raises(CheckError, match="fails at every learning rate tried for stage 0"):
        Run(Settings(tau=100, kept_steps=100), lambda *_: nan)
    with pytest.raises(CheckError, match="warm-up"):
        Run(Settings(warmup_steps=50), lambda *_: nan)
    with pytest.raises(CheckError, match="every learning rate"):
        Run(Settings(tau=1000, kept_steps=1000), lambda _rate, step, _stage: nan if step > 150 else 1.0)


def test_published_method_fails_only_at_nan() -> None:
    settings = Settings(tau=100, tau_max=100, kept_steps=100, method=Method.PUBLISHED)
    run = Run(settings, lambda rate, step, stage: 1e3 if rate > 0.1 else smooth(rate, step, stage))
    assert {trial.verdict for trial in run.of(TrialEnd)} == {"ok"}
    assert run.of(Kept)[0].lr <= 0.1


def test_published_validation_takes_the_last_loss_where_nothing_was_learnt() -> None:
    settings = Settings(tau=100, tau_max=100, kept_steps=200, validation=True, method=Method.PUBLISHED)
    run = Run(settings, lambda _rate, step, stage: 1.0 + 0.01 * step if stage else 1.0)
    second = run.of(TrialEnd)[10:]
    assert all(trial.fit is None for trial in second)
    assert {trial.forecast for trial in second} == {trial.validations.losses[-1] for trial in second}


def test_state_survives_encoding_at_every_event() -> None:
    settings = Settings(tau=100, tau_max=200, candidates=3, warmup_steps=20, kept_steps=320, validation=True)
    whole = Run(settings)
    run = Run(settings, most=0)
    run.control.state = Controller(settings).state
    while run.control.phase is not SearchPhase.DONE:
        packed = msgspec.msgpack.encode(run.control.state)
        run.control = Controller(settings)
        run.control.state = msgspec.msgpack.decode(packed, type=State)
        run.advance()
    assert run.events == whole.events


@pytest.mark.parametrize("phase", ["warmup", "search", "exploit"])
def test_stop_in_every_phase(phase: str) -> None:
    run = Run(Settings(tau=300, tau_max=300, warmup_steps=120), most=0)
    while run.control.phase != phase or not run.control.state.done:
        run.advance()
    state = run.control.state
    seen, kept, searched = state.done, state.kept, state.searched
    decision = run.control.stop()
    assert decision.action is (Action.RESTORE if phase == "search" else Action.CONTINUE)
    assert run.control.phase is SearchPhase.DONE
    assert (state.kept - kept, state.searched - searched) == ((0, seen) if phase == "search" else (seen, 0))
    assert isinstance(decision.events[-1], Finished)
    assert run.control.stop().events == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr_range": (0.0, 1.0)}, "0 < low < high"),
        ({"lr_range": (0.1, 0.1)}, "0 < low < high"),
        ({"lr_range": (0.1, inf)}, "0 < low < high"),
        ({"candidates": 0}, "candidates >= 1"),
        ({"tau": 40}, "trial_share"),
        ({"tau_max": 500}, "tau_max >= tau"),
        ({"warmup_steps": -1}, "warmup_steps >= 0"),
        ({"warmup_lr": nan}, "warmup_lr > 0"),
        ({"kept_steps": 0}, "kept_steps >= 1"),
        ({"divergence": 1.0}, "divergence > 1"),
        ({"validations": 3}, "validations >= 4"),
    ],
)
def test_bad_settings(options: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Settings(**options)


def test_too_short_a_training() -> None:
    with pytest.raises(InputError, match="kept_steps >= 550"):
        Controller(Settings(warmup_steps=500, kept_steps=549))


def test_too_many_losses() -> None:
    with pytest.raises(InputError, match="at most 100 losses, found 101"):
        Controller(Settings()).observe([1.0] * 101)


class NoisyQuadratic:
    """SGD on a quadratic with gradient noise, in expectation: exact losses, no random numbers.

    Fast directions settle where the noise of the rate leaves them, slow ones need many steps at a large rate.
    """

    def __init__(self, limit: float = 2.0) -> None:
        self.curvature = np.geomspace(1e-3, 1, 24)
        self.mean, self.variance = np.ones(24), np.zeros(24)
        self.limit, self.rates = limit, list[float]()

    def step(self, rate: float) -> float:
        self.rates.append(rate)
        loss = self.loss()
        shrink = 1 - rate * self.curvature
        self.mean = shrink * self.mean
        self.variance = shrink**2 * self.variance + 0.05 * rate**2 * self.curvature
        return nan if rate > self.limit else loss

    def loss(self) -> float:
        return 0.5 * float((self.curvature * (self.mean**2 + self.variance)).sum())


def trained(told: Settings, model: NoisyQuadratic) -> list[Event]:
    """What happened; the model is trained."""
    control, events = Controller(told), list[Event]()
    held = (model.mean, model.variance)
    while control.phase is not SearchPhase.DONE:
        count, done = control.steps_to_event, control.state.done
        losses = [model.step(control.lr_at(done + step)) for step in range(count)]
        decision = control.observe(losses, model.loss() if control.validation_due(count) else None)
        if decision.action is Action.SAVE:
            held = (model.mean, model.variance)
        elif decision.action is Action.RESTORE:
            model.mean, model.variance = held
        events += decision.events
    return events


@pytest.mark.slow
def test_constant_stages_lower_their_rates_too_early_and_one_annealed_stage_does_not() -> None:
    """Even where losses are exact: within a tenth of a stage a low rate always looks better."""
    kept, ends, stages = 7000, {}, {}
    for method in (Method.ROBUST, Method.ANNEALED):
        model = NoisyQuadratic()
        told = Settings(lr_range=(1e-3, 1.5), kept_steps=kept, method=method)
        stages[method] = [event for event in trained(told, model) if isinstance(event, Kept)]
        ends[method] = model.loss()
    tuned = []
    for rate in np.geomspace(0.1, 0.8, 4):
        model = NoisyQuadratic()
        for step in range(kept):
            model.step(float(rate) * (kept - step) / kept)
        tuned.append(model.loss())
    robust = [event.lr for event in stages[Method.ROBUST]]
    assert max(after / before for before, after in pairwise(robust)) < 0.5
    assert ends[Method.ROBUST] > 1.5 * min(tuned)
    assert ends[Method.ANNEALED] < 1.1 * min(tuned)


@settings(max_examples=20, deadline=None)
@given(st.integers(50, 700), st.integers(0, 40), st.integers(1, 4), st.booleans())
def test_rates_fall_to_zero_in_trials_and_in_what_is_kept(
    stage: int, warmup: int, candidates: int, validation: bool
) -> None:
    told = Settings(
        lr_range=(1e-3, 1.0),
        warmup_steps=warmup,
        warmup_lr=0.01,
        kept_steps=warmup + stage,
        candidates=candidates,
        validation=validation,
        method=Method.ANNEALED,
    )
    model = NoisyQuadratic()
    events = trained(told, model)
    trials = [event for event in events if isinstance(event, TrialEnd)]
    kept = [event for event in events if isinstance(event, Kept) and event.phase == "exploit"]
    assert (len(trials), len(kept), kept[0].steps) == (candidates, 1, stage)
    expected = [0.01 * (step + 1) / warmup for step in range(warmup)]
    for event, steps in [*((trial, stage // 10) for trial in trials), (kept[0], stage)]:
        expected += [event.lr * (steps - step) / steps for step in range(steps)]
    assert model.rates == expected
    assert events[-1] == Finished(
        kept_steps=warmup + stage, search_steps=candidates * (stage // 10), lost_steps=0
    )
    assert all((trial.validations is not None) is validation for trial in trials)


def test_a_trial_is_judged_by_where_it_ends() -> None:
    told = Settings(lr_range=(1e-3, 1.0), kept_steps=1000, candidates=3, method=Method.ANNEALED)
    for trial in trained(told, NoisyQuadratic()):
        if isinstance(trial, TrialEnd):
            assert trial.fit is None
            assert trial.forecast == pytest.approx(
                fmean(loss for loss in trial.losses.losses[-20:] if loss is not None)
            )
    validated = Settings(
        lr_range=(1e-3, 1.0), kept_steps=1000, candidates=3, validation=True, method=Method.ANNEALED
    )
    for trial in trained(validated, NoisyQuadratic()):
        if isinstance(trial, TrialEnd):
            assert trial.validations is not None
            assert (trial.validations.steps, trial.validations.losses) == ([100], [trial.forecast])


def test_rates_that_fail_are_not_chosen() -> None:
    told = Settings(lr_range=(1e-3, 1.0), kept_steps=1000, method=Method.ANNEALED)
    events = trained(told, NoisyQuadratic(limit=0.02))
    assert any(isinstance(event, TrialEnd) and event.verdict == "not finite" for event in events)
    assert [event.lr <= 0.02 for event in events if isinstance(event, Kept)] == [True]
    with pytest.raises(CheckError, match="every learning rate"):
        trained(told, NoisyQuadratic(limit=0.0))


def test_a_stage_that_fails_late_begins_again_lower() -> None:
    class Late(NoisyQuadratic):
        def step(self, rate: float) -> float:
            loss = super().step(rate)
            long = len(self.rates) > 1300 and len(set(self.rates[-300:])) == 300
            return nan if long and rate > 0.1 else loss

    model = Late()
    events = trained(Settings(lr_range=(0.05, 1.0), kept_steps=1000, method=Method.ANNEALED), model)
    retreats = [event for event in events if isinstance(event, Retreat)]
    assert retreats
    assert all(event.next_lr < event.lr for event in retreats)


def test_the_length_has_to_be_known() -> None:
    with pytest.raises(InputError, match="kept_steps with method 'annealed'"):
        Settings(method=Method.ANNEALED)


@pytest.mark.slow
def test_torch_keeps_what_the_found_decay_alone_gives(tmp_path: Path) -> None:
    """Bit for bit, and from a checkpoint in any phase."""
    pytest.importorskip("torch", reason="torch is not installed")
    from coppice.training.autolrs.log import read_events
    from support.small_training import SmallTraining, same

    def finish(training: SmallTraining) -> SmallTraining:
        while not training.tuner.finished:
            training.step()
        return training

    log = tmp_path / "log.jsonl"
    options = {"method": "annealed", "kept_steps": 107}
    found = SmallTraining(log=log, **options)
    saved = []
    while not found.tuner.finished:
        found.step()
        if found.tuner.total_steps in (30, 90):
            found.tuner.save(tmp_path / str(found.tuner.total_steps))
            saved.append(found.tuner.total_steps)
    assert len(saved) == 2
    plain = SmallTraining(tuned=False)
    for kept in (event for event in read_events(log) if isinstance(event, Kept)):
        for step in range(kept.steps):
            share = (step + 1) / kept.steps if kept.phase == "warmup" else None
            rate = kept.lr * share if share else kept.lr * (kept.steps - step) / kept.steps
            for group in plain.optimizer.param_groups:
                group["lr"] = rate
            plain.step()
    assert same(found.state(), plain.state())
    for steps in saved:
        again = SmallTraining(**options)
        assert again.tuner.load(tmp_path / str(steps))
        assert same(finish(again).state(), found.state())
