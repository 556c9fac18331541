"""`coppice train lr-compare`: tasks, methods, steps to a loss, and runs that are kept in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from typer.testing import CliRunner

from coppice.cli.train import app
from coppice.errors import InputError
from coppice.options.names import LR_METHODS, LR_TASKS
from coppice.training.learning_rates import comparison
from coppice.training.learning_rates.comparison import ComparedTask, MethodRuns, compare_methods
from coppice.training.learning_rates.methods import LearningRun, missing_package, rates_of, train
from coppice.training.learning_rates.tasks import TASKS


def run_of(losses: list[float], made: int = 1) -> LearningRun:
    kept = tuple(10 * (at + 1) for at in range(len(losses)))
    return LearningRun(
        kept=kept, made=tuple(made * each for each in kept), losses=tuple(losses), test_loss=losses[-1]
    )


def test_names_are_those_of_the_tasks() -> None:
    assert tuple(TASKS) == LR_TASKS


@pytest.mark.parametrize(
    ("task", "share", "wanted"),
    [
        ("pictures", 2.5 / 90, 0.5),
        ("pictures", 29.9 / 90, 1.0),
        ("pictures", 30.1 / 90, 0.1),
        ("pictures", 79.9 / 90, 0.01),
        ("pictures", 89 / 90, 0.001),
        ("translation", 0.02, 0.5),
        ("translation", 0.04, 1.0),
        ("translation", 0.16, 0.5),
        ("translation", 1.0, 0.2),
        ("masked", 0.005, 0.5),
        ("masked", 0.505, 0.5),
        ("masked", 1.0, 0.0),
    ],
)
def test_published_schedules(task: str, share: float, wanted: float) -> None:
    assert TASKS[task].schedule(share) == pytest.approx(wanted)


@pytest.mark.parametrize("name", LR_TASKS)
def test_data(name: str) -> None:
    """The same numbers give the same batch; what is held out for the two purposes differs."""
    task = TASKS[name]
    one, two = (task.next_batch(torch.Generator().manual_seed(5)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert len(one[0]) == task.batch_size
    validation, test = task.held_out("validation"), task.held_out("test")
    assert validation[0].shape == test[0].shape
    assert not torch.equal(validation[0], test[0])
    assert all(torch.equal(a, b) for a, b in zip(validation, task.held_out("validation"), strict=True))


def test_gaps_are_a_share_of_the_letters() -> None:
    inputs, targets = TASKS["masked"].held_out("validation")
    hidden = targets >= 0
    assert 0.13 < float(hidden.float().mean()) < 0.17
    assert bool((inputs[hidden] == inputs.max()).all())


def test_a_translation_follows_from_its_source() -> None:
    """Nine words in ten are the dictionary's, rotated; the decoder sees the word before each."""
    both, target = TASKS["translation"].held_out("test")
    source, before = both[:, 0], both[:, 1]
    assert torch.equal(before[:, 1:], target[:, :-1])
    places = (torch.arange(10) + source[:, :1]) % 10
    words = source.gather(1, places)
    dictionary = [int(target[words == word].mode().values) for word in range(24)]
    assert sorted(dictionary) == list(range(24))
    right = target == torch.tensor(dictionary)[words]
    assert 0.88 < float(right.float().mean()) < 0.93


@pytest.mark.parametrize("method", [each for each in LR_METHODS if each != "autolrs-staged"])
@pytest.mark.spread(3)
def test_every_method_learns(method: str) -> None:
    package = missing_package(method)
    if package is not None:
        pytest.skip(f"{package} is not installed")
    task = TASKS["translation"]
    found = train(task, method, rate=3e-3, seed=1, steps=50)
    assert found.kept[-1] == 50
    # AutoLRS makes as many steps again in trials.
    assert found.made[-1] == (100 if method.startswith("autolrs") else 50)
    assert found.losses[-1] < found.losses[0]
    if method == "cosine":
        short = [train(task, method, rate=3e-3, seed=seed, steps=10) for seed in (1, 1, 2)]
        assert short[0] == short[1] != short[2]


def test_what_finds_its_rate_is_not_tuned() -> None:
    assert rates_of(TASKS["masked"], "cosine") == TASKS["masked"].rates
    assert rates_of(TASKS["pictures"], "schedule-free")[0] == 10 * TASKS["pictures"].rates[0]
    assert rates_of(TASKS["masked"], "prodigy") == rates_of(TASKS["masked"], "autolrs") == ()


def test_steps_to_the_goal_are_medians() -> None:
    original = MethodRuns(
        method="original", rate=0.1, runs=(run_of([3, 2, 1]), run_of([3, 1, 1]), run_of([4, 3, 2]))
    )
    quick = MethodRuns(
        method="quick", rate=None, runs=(run_of([1, 1, 1], 2), run_of([2, 1, 1], 2), run_of([9, 9, 9]))
    )
    slow = MethodRuns(
        method="slow", rate=None, runs=(run_of([9, 9, 9]), run_of([9, 9, 9]), run_of([1, 1, 1]))
    )
    found = ComparedTask(task="made", steps=30, methods=(original, quick, slow), left_out=())
    assert found.goal == 1
    assert [each.reached(found.goal) for each in found.methods] == [2, 2, 1]
    assert original.steps_to(found.goal, trials=False) == 25
    assert quick.steps_to(found.goal, trials=False) == 15
    assert quick.steps_to(found.goal, trials=True) == 30
    assert found.speedup(quick) == pytest.approx(25 / 15)
    assert found.speedup(quick, trials=True) == pytest.approx(25 / 30)
    assert found.speedup(slow) is None


def test_runs_that_are_kept_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def made(*_: object, rate: float, **__: object) -> LearningRun:
        asked.append(rate)
        # The third rate is best; one diverges.
        loss = {1e-3: 3.0, 3e-3: 2.0, 1e-2: 1.0, 3e-2: float("nan")}.get(rate, 1.5)
        return run_of([4.0, loss])

    monkeypatch.setattr(comparison, "train", made)
    file = tmp_path / "runs.jsonl"
    first = compare_methods("masked", ["cosine", "autolrs"], steps=60, seeds=2, results=file)
    assert [each.method for each in first.methods] == ["original", "cosine", "autolrs"]
    assert [each.rate for each in first.methods] == [1e-2, 1e-2, None]
    assert len(asked) == 2 * (4 + 2) + 2
    again = compare_methods("masked", ["cosine", "autolrs"], steps=60, seeds=2, results=file)
    assert len(asked) == 14
    assert again.methods[1] == first.methods[1]
    compare_methods("masked", ["cosine"], steps=60, seeds=3, results=file)
    assert len(asked) == 16
    with file.open("a") as out:
        out.write("torn")
    with pytest.raises(
        InputError, match=r"runs.jsonl:17: expected a run that lr-compare wrote, found 'torn'"
    ):
        compare_methods("masked", [], steps=60, seeds=1, results=file)


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        comparison, "missing_package", lambda method: "prodigyopt" if method == "prodigy" else None
    )
    monkeypatch.setattr(comparison, "train", lambda *_, **__: run_of([2.0, 1.0]))
    assert compare_methods("masked", ["prodigy"], seeds=1).left_out == ("prodigy (pip install prodigyopt)",)


def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "train", lambda *_, **__: run_of([2.0, 1.0]))
    words = ["lr-compare", "masked", "--method", "autolrs", "--set", "steps=60", "--set", "seeds=2"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exception is None
    (task,) = json.loads(done.stdout)["tasks"]
    assert task["goal_loss"] == 1
    assert task["methods"][1]["kept_speedup"] == 1
    shown = CliRunner().invoke(app, words).stdout
    assert "masked: steps to a validation loss of 1.000, of 2 trainings that keep 60 each" in shown
    for wrong, sentence in (
        ("mask", "there is no 'mask' among the tasks: did you mean 'masked'"),
        ("masked --method sgd", "there is no 'sgd' among the methods: use one of original"),
        ("masked --set steps=3", "expected `steps` of 50 or more, found 3"),
    ):
        assert sentence in str(CliRunner().invoke(app, ["lr-compare", *wrong.split()]).exception)
