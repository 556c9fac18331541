"""The long AutoLRS benchmark: a stack trains its models as each alone would be, and its tables tell the truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from support.benchmark_scripts import BENCHMARKS, load_benchmark  # noqa: E402


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch):
    """Import a benchmark script; what it imports itself is found beside it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return load_benchmark


@pytest.fixture(params=["digits", "text", "transformer"])
def task(request: pytest.FixtureRequest, module):
    if request.param == "digits":
        pytest.importorskip("sklearn", reason="scikit-learn brings the data")
    return replace(module("autolrs_stacks").TASKS[request.param], batch=4)


def test_a_stack_trains_each_model_as_torch_would(module, task) -> None:
    stacks = module("autolrs_stacks")
    seeds, rates, steps = [3, 5, 3], [0.01, 0.02, 0.003], 12
    exact = (
        torch.float64 if task.context else torch.float32
    )  # Adam makes steps of what is rounding in a gradient
    stack, feed = stacks.Stack(task, seeds).to(exact), stacks.Feed(task, seeds)
    optimizer = stacks.StackOptimizer(stack)
    for _ in range(steps):
        stack.losses(*feed.next()).sum().backward()
        optimizer.step(torch.tensor(rates))
    for row, seed, rate in zip(stack.rows, seeds, rates, strict=True):
        alone, feed = stacks.Stack(task, [seed]).to(exact), stacks.Feed(task, [seed])
        ours = (
            torch.optim.AdamW(alone.parameters(), lr=rate, weight_decay=task.decay)
            if task.adaptive
            else torch.optim.SGD(alone.parameters(), lr=rate, momentum=0.9, weight_decay=task.decay)
        )
        for _ in range(steps):
            ours.zero_grad()
            alone.losses(*feed.next()).mean().backward()
            ours.step()
        assert torch.allclose(row, alone.rows[0], atol=1e-4)
    found = stacks.evaluate(stack, seeds, "validation", quick=True)
    assert len(found) == 3
    assert all(0 < loss < 10 and 0 <= wrong <= 1 for loss, wrong in found)


def test_schedule_free_stacks_are_those_of_the_short_benchmark(module, task) -> None:
    stacks, free = module("autolrs_stacks"), module("autolrs_baselines").ScheduleFree
    exact = torch.float64 if task.context else torch.float32
    stack, feed = stacks.Stack(task, [1, 2]).to(exact), stacks.Feed(task, [1, 2])
    optimizer = stacks.StackOptimizer(stack, free=True, warmup=5)
    alone, own_feed = stacks.Stack(task, [2]).to(exact), stacks.Feed(task, [2])
    own = free(alone.parameters(), lr=0.05, adaptive=task.adaptive, warmup=5, decay=task.decay)
    for _ in range(12):
        stack.losses(*feed.next()).sum().backward()
        optimizer.step(torch.tensor([0.1, 0.05], dtype=exact))
        alone.zero_grad()
        alone.losses(*own_feed.next()).mean().backward()
        own.step()
    with own.averaged():
        assert torch.allclose(optimizer.evaluated()[1], alone.rows[0], atol=1e-3)


def test_batches_go_back(module, task) -> None:
    stacks = module("autolrs_stacks")
    feed = stacks.Feed(task, [7])
    for _ in range(250):
        feed.next()
    held = feed.state_dict()
    first = [feed.next() for _ in range(20)]
    feed.load_state_dict(held)
    again = [feed.next() for _ in range(20)]
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def outcome(module, loss: float, curve: list[tuple[int, int, float]]):
    return module("autolrs_long_tables").LongOutcome(
        loss=loss, wrong=0.1, total=curve[-1][1], curve=curve, seconds=1.0
    )


def test_tables_tell_medians_gaps_and_steps(module) -> None:
    tables = module("autolrs_long_tables")

    def runs(method: str, rate: float | None, losses: list[float], curve: list[tuple[int, int, float]]):
        outcomes = [outcome(module, loss, curve) for loss in losses]
        return tables.Runs(method=method, rate=rate, steps=100, outcomes=outcomes)

    known = [
        runs("constant", 0.1, [0.50, 0.60, 0.40], [(50, 50, 0.9), (100, 100, 0.5)]),
        runs("cosine", 0.3, [0.30, 0.40, 0.20], [(50, 50, 0.8), (100, 100, 0.3)]),
        runs("ours", None, [0.31, 0.39, 0.21], [(50, 140, 0.5), (100, 190, 0.4)]),
    ]
    final = tables.final_table("task", 100, known, "ours")
    assert [row[-1] for row in final.rows] == ["3 of 3", "1 of 3", "-"]
    assert final.rows[0][1:4] == ("0.1, tuned", "100", "0.5000 (0.4000 to 0.6000)")
    assert "ours is better than constant (-0.1967); within the noise of cosine (+0.0033):" in final.notes[0]
    steps = tables.steps_table("task", 100, known)
    assert steps.header[1] == "to 0.5000: kept"
    assert steps.rows[0] == ("constant", "100", "100", "-", "-", "3 and 0 of 3")
    assert steps.rows[1] == ("cosine", "100", "100", "100", "100", "3 and 3 of 3")
    assert steps.rows[2] == ("ours", "50", "140", "-", "-", "3 and 0 of 3")


def test_the_picture_has_one_legend_and_eight_lines_at_most(module, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws")
    tables, long = module("autolrs_long_tables"), module("autolrs_long")
    assert len((*long.BASELINES, *long.AUTO)) <= 8
    curve = [(step, step, 1 / step) for step in range(1, 20)]
    run = tables.Runs(method="ours", rate=None, steps=19, outcomes=[outcome(module, 0.1, curve)])
    tables.draw(tmp_path / "a.png", {"task": [run]}, lambda _: 19)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_benchmark_goes_on(module, tmp_path: Path) -> None:
    long = module("autolrs_long")
    job = long.LongJob(task="text", method="cosine", rate=0.1, seed=0, steps=10)
    found = outcome(module, 0.25, [(10, 10, 0.5)])
    long.Results(tmp_path).add(job, found)
    again = long.Results(tmp_path).known[job.key]
    assert (again.loss, [tuple(place) for place in again.curve]) == (0.25, [(10, 10, 0.5)])
