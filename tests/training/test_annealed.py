"""One annealed stage: the rate of every step, what trials are judged by, and why it beats constant stages."""

from __future__ import annotations

from itertools import pairwise
from math import nan
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.errors import CheckError, InputError
from coppice.training.autolrs.controller import Controller
from coppice.training.autolrs.log import Event, Finished, Kept, Method, Retreat, Settings, TrialEnd
from coppice.training.autolrs.state import Action, SearchPhase


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
