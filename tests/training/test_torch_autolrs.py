"""AutoLRS on torch: what is kept is what the found schedule alone gives, and every phase resumes bit for bit."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from coppice.errors import CheckError, InputError  # noqa: E402
from coppice.training.autolrs.log import Finished, Kept, TrialEnd, read_events  # noqa: E402
from coppice.training.torch import AutoLRS  # noqa: E402
from coppice.training.torch.losses import LossBuffer  # noqa: E402
from support.small_training import OPTIMIZERS, SmallTraining, fingerprint, same  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def finish(training: SmallTraining) -> SmallTraining:
    while not training.tuner.finished:
        training.step()
    return training


def steps(tuner: AutoLRS, count: int, *, loss: float = 1.0) -> None:
    for _ in range(count):
        tuner.step(loss)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.spread(2)
def test_what_is_kept_is_plain_training_with_the_found_schedule(optimizer: str, tmp_path: Path) -> None:
    """Bit for bit: weights, moments, running means, scaler, random numbers and data."""
    log = tmp_path / "log.jsonl"
    found = finish(SmallTraining(optimizer, log=log))
    assert (found.tuner.kept_steps, found.tuner.search_steps) == (370, 3 * (6 + 12 + 12 + 6))
    plain = SmallTraining(optimizer, tuned=False)
    for kept in (event for event in read_events(log) if isinstance(event, Kept)):
        for step in range(kept.steps):
            rate = kept.lr * (step + 1) / kept.steps if kept.phase == "warmup" else kept.lr
            for group in plain.optimizer.param_groups:
                group["lr"] = torch.tensor(rate) if isinstance(group["lr"], torch.Tensor) else rate
            plain.step()
    assert same(found.state(), plain.state())


def test_rates_of_the_loop_are_those_of_the_log(tmp_path: Path) -> None:
    """No stale rate anywhere: every step of a trial, the one after a restore included, has the trial's rate."""
    log = tmp_path / "log.jsonl"
    training = finish(SmallTraining(log=log))
    expected: list[float] = []
    for event in read_events(log):
        if isinstance(event, Kept) and event.phase == "warmup":
            expected += [event.lr * (step + 1) / event.steps for step in range(event.steps)]
        elif isinstance(event, Kept):
            expected += [event.lr] * event.steps
        elif isinstance(event, TrialEnd):
            expected += [event.lr] * (event.losses.steps[-1] + 1)
    assert training.rates == expected
    assert isinstance(read_events(log)[-1], Finished)


@pytest.mark.parametrize("where", [pytest.param("memory", marks=pytest.mark.slow), "disk"])
def test_resume_in_every_phase(where: str, tmp_path: Path) -> None:
    options = {"snapshots": tmp_path / "snapshots"} if where == "disk" else {}
    whole = SmallTraining(log=tmp_path / "whole.jsonl", **options)
    states = []
    while not whole.tuner.finished:
        whole.step()
        if whole.tuner.total_steps % 17 == 0 or whole.tuner.phase == "warmup":
            part = {"model": whole.model.state_dict(), "optimizer": whole.optimizer.state_dict()}
            part |= {"scaler": whole.scaler.state_dict(), "data": whole.data.state_dict()}
            part["tuner"] = whole.tuner.state_dict()
            states.append((whole.tuner.total_steps, str(whole.tuner.phase), copy.deepcopy(part)))
    assert {phase for _, phase, _ in states} == {"warmup", "search", "exploit"}
    end = whole.state()
    text = (tmp_path / "whole.jsonl").read_bytes()
    for step, _, part in states[:: 1 if where == "memory" else 5]:
        log = tmp_path / "part.jsonl"
        log.write_bytes(text + b'{"torn')
        again = SmallTraining(log=log, **options)
        again.model.load_state_dict(part["model"])
        again.optimizer.load_state_dict(part["optimizer"])
        again.scaler.load_state_dict(part["scaler"])
        again.data.load_state_dict(part["data"])
        again.tuner.load_state_dict(part["tuner"])
        assert again.tuner.total_steps == step
        finish(again)
        assert same(again.state(), end)
        assert log.read_bytes() == text
        assert again.rates == whole.rates[step:]


@pytest.mark.parametrize(
    "step", [30, 150, *(pytest.param(step, marks=pytest.mark.slow) for step in (3, 7, 11, 80, 300))]
)
@pytest.mark.spread(2)
def test_checkpoint_of_the_whole_training(step: int, tmp_path: Path) -> None:
    whole = SmallTraining("adam")
    for _ in range(step):
        whole.step()
    whole.tuner.save(tmp_path)
    end = finish(whole).state()
    again = SmallTraining("adam")
    torch.manual_seed(99)
    assert again.tuner.load(tmp_path)
    assert again.tuner.total_steps == step
    assert same(finish(again).state(), end)
    assert [path.name for path in tmp_path.glob("step-*")] == [f"step-{step:09d}"]


def test_newer_checkpoints_replace_older_ones(tmp_path: Path) -> None:
    training = SmallTraining()
    assert training.tuner.load(tmp_path) is False
    for _ in range(3):
        training.step()
        training.tuner.save(tmp_path)
    (tmp_path / "step-000000009").mkdir()
    (tmp_path / "step-000000009" / "rank-0.pt").write_bytes(b"half")  # a crash before LATEST
    again = SmallTraining()
    assert again.tuner.load(tmp_path)
    assert again.tuner.total_steps == 3


def test_damaged_or_foreign_checkpoints_are_named(tmp_path: Path) -> None:
    training = SmallTraining()
    training.tuner.save(tmp_path)
    (tmp_path / "step-000000000" / "rank-0.pt").write_bytes(b"half")
    with pytest.raises(InputError, match="expected a checkpoint of AutoLRS"):
        training.tuner.load(tmp_path)
    (tmp_path / "LATEST").write_text("step-000000000 4\n")
    with pytest.raises(InputError, match="checkpoint of 1 ranks"):
        training.tuner.load(tmp_path)
    with pytest.raises(InputError, match="state of AutoLRS"):
        training.tuner.load_state_dict({"version": 7})
    with pytest.raises(InputError, match="another tau"):
        SmallTraining(tau=70).tuner.load_state_dict(training.tuner.state_dict())


def test_all_random_numbers_go_back() -> None:
    def draw() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: NPY002

    def drawn(rng: str) -> list[list[float]]:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        model = torch.nn.Linear(1, 1)
        tuner = AutoLRS(model, torch.optim.SGD(model.parameters(), lr=0.1), tau=50, rng=rng, progress=False)
        values = []
        for step in range(15):
            values.append(draw())
            tuner.step(1.0 - 0.01 * step)
        return values

    restored, kept = drawn("restore"), drawn("keep")
    assert restored[:5] == restored[5:10] == restored[10:]
    assert len({tuple(values) for values in kept}) == 15


def test_buffers_can_be_kept() -> None:
    for policy in ("restore", "keep"):
        training = SmallTraining(buffers=policy, warmup_steps=0, kept_steps=None)
        before = training.model[1].running_mean.clone()
        for _ in range(6):
            training.step()
        assert torch.equal(training.model[1].running_mean, before) is (policy == "restore")


def test_validation_disturbs_nothing() -> None:
    """Neither the mode of the model nor the random numbers, those of the same trial included."""
    trainings = []
    for careless in (False, True):
        training = SmallTraining(tau=60, tau_max=60, kept_steps=None, warmup_steps=0, val_fn=lambda: 0.0)
        if careless:
            training.tuner._val_fn = lambda training=training: 0.0 * training.validate()
        modes = []
        while training.tuner.stage < 2:
            training.step()
            modes.append(training.model.training)
        assert all(modes)
        trainings.append(training)
    assert trainings[0].losses == trainings[1].losses


def test_moments_keep_their_precision() -> None:
    """An optimizer's own load_state_dict would round double moments of single parameters."""
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.rand(parameter.shape, dtype=torch.float64)
    before = fingerprint([optimizer.state[parameter] for parameter in model.parameters()])
    tuner = AutoLRS(model, optimizer, tau=50, progress=False)
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros(parameter.shape)
        optimizer.state[parameter]["new"] = 1
    for _ in range(5):
        tuner.step(1.0)
    assert same([optimizer.state[parameter] for parameter in model.parameters()], before)


def test_parameters_outside_the_model_extra_state_and_hidden_buffers_go_back() -> None:
    class Odd(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 1)
            self.count = 0
            self.register_buffer("hidden", torch.zeros(1), persistent=False)

        def get_extra_state(self) -> dict:
            return {"count": self.count}

        def set_extra_state(self, state: dict) -> None:
            self.count = state["count"]

    model, scale = Odd(), torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([*model.parameters(), scale], lr=0.1)
    generator = torch.Generator().manual_seed(1)
    tuner = AutoLRS(model, optimizer, tau=50, also={"noise": generator}, progress=False)
    first = torch.rand(3, generator=generator)
    model.count, model.hidden[0] = 5, 3.0
    with torch.no_grad():
        scale += 1
    for _ in range(5):
        tuner.step(1.0)
    assert model.count == 0
    assert model.hidden.item() == 0
    assert torch.equal(scale, torch.ones(2))
    assert torch.equal(torch.rand(3, generator=generator), first)


def test_groups_keep_their_ratio() -> None:
    a, b, c = (torch.nn.Parameter(torch.ones(1)) for _ in range(3))
    groups = [{"params": [a]}, {"params": [b], "lr": 0.02}, {"params": [c], "lr": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    tuner = AutoLRS(torch.nn.ParameterList([a, b, c]), optimizer, tau=50, progress=False)
    for _ in range(37):
        assert tuner.get_last_lr() == pytest.approx([tuner.lr, tuner.lr / 5, 0.0])
        tuner.step(1.0)


def test_accumulated_micro_batches_count_once() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuner = AutoLRS(model, optimizer, tau=50, accumulate=4, progress=False)
    first = tuner.lr
    for _ in range(19):
        tuner.step(torch.tensor(1.0))
    assert (tuner.total_steps, tuner.lr) == (4, first)
    with pytest.raises(InputError, match="3 of 4 micro-batches"):
        tuner.save("nowhere")
    again = LossBuffer(capacity=10, accumulate=4)
    again.load(tuner.state_dict()["losses"])
    assert (again.steps, again.parts) == (4, 3)
    tuner.step(1.0)
    assert tuner.total_steps == 5
    assert tuner.lr != first


def test_losses_are_copied_and_averaged() -> None:
    losses = LossBuffer(capacity=4, accumulate=2)
    static = torch.zeros(1, requires_grad=True)
    for value in (1.0, 3.0, 5.0, 6.0):
        with torch.no_grad():
            static.fill_(value)
        losses.add(static)
    assert losses.read() == [2.0, 5.5]
    losses.add(1e300)  # more than single precision holds
    losses.add(0)
    assert losses.read() == [5e299]
    losses.add(torch.tensor(0.5, dtype=torch.bfloat16))
    losses.add(float("nan"))
    assert np.isnan(losses.read()).all()


def test_a_nan_that_the_search_meets_leaves_no_trace() -> None:
    """Rates that blow the weights up are tried, and the model is as if they had not been."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuner = AutoLRS(model, optimizer, lr_range=(1e-3, 1e8), tau=100, kept_steps=300, progress=False)
    blown = False
    while not tuner.finished:
        optimizer.zero_grad()
        loss = (model(torch.tensor([[1.0, 2.0]])) - 1).square().mean()
        loss.backward()
        optimizer.step()
        tuner.step(loss)
        blown |= not bool(torch.isfinite(loss))
    assert blown
    assert loss.item() < 1e-3
    assert torch.isfinite(model.weight).all()


def test_failing_everywhere_is_an_error() -> None:
    model = torch.nn.Linear(1, 1)
    tuner = AutoLRS(model, torch.optim.SGD(model.parameters(), lr=0.1), tau=50, progress=False)
    for _ in range(9):
        tuner.step(float("nan"))  # ends a trial of 5 steps, too
    with pytest.raises(CheckError, match="every learning rate"):
        steps(tuner, 91, loss=float("nan"))


@pytest.mark.parametrize("phase", ["warmup", "search", "exploit", "done"])
def test_finish_leaves_no_trial_behind(phase: str, tmp_path: Path) -> None:
    training = SmallTraining(log=tmp_path / "log")
    while training.tuner.phase != phase:
        training.step()
    before = training.state()
    total = training.tuner.total_steps
    if phase == "search":
        training.step()
        training.step()
        total += 2
    training.tuner.finish()
    training.tuner.finish()
    assert training.tuner.finished
    assert training.tuner.total_steps == total
    assert isinstance(read_events(tmp_path / "log")[-1], Finished)
    after = training.state()
    assert same(after["model"], before["model"])
    assert same(after["random"], before["random"])


def test_snapshot_files_are_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = SmallTraining(snapshots=tmp_path, warmup_steps=0)
    [file] = tmp_path.iterdir()
    before = file.read_bytes()

    def torn(_: object, handle: object) -> None:
        handle.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", torn)
    with pytest.raises(InputError, match="No space left"):
        training.tuner._snapshots.save()
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot-0.pt"]
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rng": "both"}, "rng to be one of"),
        ({"buffers": "no"}, "buffers to be one of"),
        ({"method": "magic"}, "method to be one of"),
        ({"accumulate": 0}, "accumulate >= 1"),
        ({"data": object()}, "'data' to have state_dict"),
        ({"lr_range": (1, 0)}, "0 < low < high"),
    ],
)
def test_bad_arguments(options: dict, words: str) -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises(InputError, match=words):
        AutoLRS(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


def test_bad_use() -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises(InputError, match="learning rate > 0"):
        AutoLRS(model, torch.optim.SGD(model.parameters(), lr=0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuner = AutoLRS(model, optimizer, tau=50, progress=False)
    with pytest.raises(InputError, match="one number"):
        tuner.step(torch.ones(2))
    with pytest.raises(InputError, match="tensor or a number"):
        tuner.step("low")
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    with pytest.raises(InputError, match="do not change them"):
        steps(tuner, 5)
