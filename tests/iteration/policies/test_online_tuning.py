"""Settings found by measuring, on a clock that a simulation of another network winds, beside all of the grid."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.catalogue import policy_named
from coppice.iteration.policies.data_parallel.online import MeasuredTrial, OnlineTuner
from coppice.iteration.policies.data_parallel.tuning import ImprovementSearch, places_of, policy_seconds
from iteration.policies.workloads import ten, workload_of

WINDOWS, STEPS = 3, 5


def recorded_workload(draw: random.Random) -> LayerWorkload:
    """A model as large ones are: layers alike, or small ones and a few with nearly all weights, or of any size."""
    layers = draw.randint(6, 24)
    kind = draw.choice(["alike", "tail", "any"])
    if kind == "alike":
        sizes = [1e6 * draw.choice([1, 4])] * layers
    elif kind == "tail":
        sizes = [1e4 * (place + 1) ** 2 for place in range(layers - 2)]
        sizes += [draw.uniform(5e6, 40e6), draw.uniform(1e6, 5e6)]
    else:
        sizes = [draw.choice([256, 1e4, 1e5, 1e6, 4e6]) for _ in range(layers)]
    share = [draw.uniform(0.5, 2) for _ in range(layers)]
    forward = [draw.uniform(0.02, 0.1) * each / sum(share) for each in share]
    return workload_of(
        tuple(forward),
        tuple(2 * each * draw.uniform(0.8, 1.2) for each in forward),
        tuple(sizes),
        rate=sum(sizes) / (3 * sum(forward) * draw.choice([0.3, 0.6, 1, 2, 4])),
        message=draw.choice([1e-5, 1e-4, 1e-3]),
    )


def other_than_recorded(work: LayerWorkload, draw: random.Random) -> LayerWorkload:
    """What iterations really take: every time is off, and the network too."""
    return replace(
        work,
        forward=tuple(each * draw.uniform(0.8, 1.3) for each in work.forward),
        backward=tuple(each * draw.uniform(0.8, 1.3) for each in work.backward),
        bytes_per_second=work.bytes_per_second * draw.uniform(0.6, 1.3),
        message_seconds=work.message_seconds * draw.uniform(0.5, 5),
    )


def ratio_of(
    name: str, draw: random.Random, *, simulated: bool, noise: float, trials: int | None = None
) -> float:
    """Time with the settings of a tuner's end over that with the best of all, on a workload at random.

    Each iteration is off by the noise, and one of a hundred is four times as long.
    """
    work = recorded_workload(draw)
    real, policy = other_than_recorded(work, draw), policy_named(name).of()
    tuner = OnlineTuner(policy, work, simulated=simulated, trials=trials)
    while not tuner.done:
        seconds = policy_seconds(policy, real, tuner.settings)
        tuner.conclude(
            [
                sum(
                    seconds * draw.lognormvariate(0, noise) * (4 if draw.random() < 0.01 else 1)
                    for _ in range(STEPS)
                )
                / STEPS
                for _ in range(WINDOWS)
            ]
        )
    assert len(tuner.trials) <= (trials or (10 if simulated else policy.tuning_trials[1]))
    best = min(policy_seconds(policy, real, choice) for choice in ({}, *policy.choices(work)))
    return policy_seconds(policy, real, tuner.settings) / best


@pytest.mark.parametrize("simulated", [False, True])
@pytest.mark.parametrize(
    ("name", "cases"), [("dear", 6), ("ddp", 8), ("priority", 6), ("bytescheduler", 2), ("pace", 4)]
)
@pytest.mark.spread(3)
def test_the_end_is_within_5_percent_of_the_best_of_all(name: str, cases: int, *, simulated: bool) -> None:
    draw = random.Random(f"{name} {simulated}")
    ratios = [ratio_of(name, draw, simulated=simulated, noise=0.03) for _ in range(cases)]
    assert max(ratios) <= 1.05
    assert sum(ratios) / cases <= 1.015


@pytest.mark.slow
@pytest.mark.parametrize("simulated", [False, True])
@pytest.mark.parametrize(
    ("name", "cases"), [("dear", 150), ("ddp", 150), ("bytescheduler", 25), ("jia", 60), ("gradientflow", 60)]
)
def test_the_end_is_within_5_percent_of_the_best_of_all_on_many(
    name: str, cases: int, *, simulated: bool
) -> None:
    draw = random.Random(f"many {name} {simulated}")
    ratios = [ratio_of(name, draw, simulated=simulated, noise=0.03) for _ in range(cases)]
    assert sum(ratio <= 1.05 for ratio in ratios) >= 0.95 * cases
    assert sum(ratios) / cases <= 1.01


def test_no_noise_and_trials_for_all_find_the_best() -> None:
    draw = random.Random(5)
    for name in ("priority", "p3", "tictac"):
        assert ratio_of(name, draw, simulated=False, noise=0.0, trials=99) <= 1 + 1e-9


def test_trials_of_an_earlier_run_are_not_made_again() -> None:
    policy, work = policy_named("dear").of(), ten(3e6, 0.05)
    first = OnlineTuner(policy, work, simulated=False)
    for _ in range(6):
        first.conclude([policy_seconds(policy, work, first.settings)] * 3)
    again = OnlineTuner(policy, work, simulated=False, known=first.trials)
    assert again.settings == first.settings
    assert again.trials == first.trials
    foreign = MeasuredTrial(settings={"threshold_bytes": 7.5, "ahead": None}, windows=(1.0,))
    assert not OnlineTuner(policy, work, simulated=False, known=[foreign]).trials


def test_nothing_to_choose_is_done_at_once() -> None:
    tuner = OnlineTuner(policy_named("wfbp").of(), ten(3), simulated=True)
    assert tuner.done
    assert tuner.settings == {}
    tuner.conclude([1.0])
    assert not tuner.trials


def test_a_window_with_a_pause_does_not_decide() -> None:
    trial = MeasuredTrial(settings={}, windows=(1.0, 9.0, 1.1))
    assert trial.seconds == 1.1


def test_what_is_expected_is_where_a_search_begins() -> None:
    choices = [{"size": float(2**power)} for power in range(12)]
    expected = [abs(power - 9) / 10 for power in range(12)]
    search = ImprovementSearch(
        places_of(choices), initial=1, trials=4, first=[9], expected=expected, least_spread=0.05
    )
    tried = []
    while (number := search.propose()) is not None:
        tried.append(number)
        search.record(
            number, 2 + expected[number] + (0.5 if number == 9 else 0.0)
        )  # worse there than thought
    assert tried[0] == 9
    assert set(tried[1:]) & {8, 10}
    assert search.best() in {8, 10}
