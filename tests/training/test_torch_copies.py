"""Copies of what is trained by a schedule, gradients set to 0 in place, and compiled parts, for every policy."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402 (torch may be absent)
from torch import nn  # noqa: E402
from torch.optim.swa_utils import AveragedModel  # noqa: E402

from coppice.errors import InputError  # noqa: E402
from coppice.training.torch import MixtureOfExperts, TensorParallelModule, pipeline, schedule  # noqa: E402
from coppice.training.torch.whole.sharded import ShardedWeights  # noqa: E402

POLICIES = (
    *("ddp", "serial", "wfbp", "mg-wfbp", "jia", "poseidon", "ooo", "gradientflow"),
    *("priority", "bytescheduler", "dear", "p3", "pace", "tictac"),
)
LATE = ("priority", "bytescheduler", "dear", "p3", "tictac")
NETWORK = (1e9, 1e-5)
STEPS = 9

pytestmark = pytest.mark.filterwarnings("ignore:Dynamo", "ignore:.*torch.jit", "ignore:The .grad attribute")


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    """A group of this process alone: messages are sent, in the order of the policy."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()
    torch._dynamo.reset()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 2))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def batch(number: int) -> torch.Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(number))


def train(
    forward: Callable[[torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    steps: range = range(STEPS),
    zero: Callable[[], None] | None = None,
) -> None:
    for number in steps:
        (zero or optimizer.zero_grad)()
        forward(batch(number)).square().mean().backward()
        optimizer.step()


def plain(*spans: range) -> nn.Module:
    model = net()
    optimizer = adam(model)
    for steps in spans or (range(STEPS),):
        train(model, optimizer, steps)
    return model


def distance(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs)


def hooks(model: nn.Module) -> int:
    return sum(
        len(value)
        for each in model.modules()
        for name, value in vars(each).items()
        if "hooks" in name and value
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.spread(3)
def test_copies_are_plain_models_with_the_weights_after_all_updates(policy: str) -> None:
    """Copied between step() and the next forward pass, when late updates are still to be made."""
    model, optimizer = _scheduled(policy)
    train(model, optimizer)
    copied, own = copy.deepcopy((model, optimizer))
    assert type(own) is torch.optim.AdamW
    assert hooks(copied) == 0
    assert {type(each) for each in copied.parameters()} == {nn.Parameter}
    assert distance(copied, plain()) == 0
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert distance(torch.load(file, weights_only=False), plain()) == 0
    part = copy.deepcopy(model[0])
    train(model, optimizer, range(STEPS, 2 * STEPS))
    assert distance(part, plain()[0]) == 0
    train(copied, own, range(20, 20 + STEPS))  # alone: no message of the schedule goes
    optimizer.flush()
    assert distance(model, plain(range(2 * STEPS))) < 1e-7
    assert distance(copied, plain(range(STEPS), range(20, 20 + STEPS))) < 1e-7
    optimizer.close()
    assert hooks(model) == 0
    assert "__reduce_ex__" not in {name for each in model.modules() for name in vars(each)}


def _scheduled(policy: str, **settings: Any) -> tuple[Any, Any]:
    model = net()
    return schedule(model, adam(model), policy, network=NETWORK, **settings)


@pytest.mark.parametrize("policy", POLICIES)
def test_averages_of_weights_are_those_of_plain_training(policy: str) -> None:
    def averaged(model: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
        found = AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
        for number in range(STEPS):
            train(model, optimizer, range(number, number + 1))
            found.update_parameters(model)
        with torch.no_grad():
            found(batch(0))
        return found

    reference = net()
    assert distance(averaged(*_scheduled(policy)), averaged(reference, adam(reference))) < 1e-7


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("whose", ["optimizer", "model"])
@pytest.mark.spread(3)
def test_gradients_are_set_to_0_in_place(policy: str, whose: str) -> None:
    model, optimizer = _scheduled(policy)
    owner = model if whose == "model" else optimizer
    train(model, optimizer, zero=lambda: owner.zero_grad(set_to_none=False))
    optimizer.zero_grad(set_to_none=False)
    optimizer.flush()
    assert distance(model, plain()) < 1e-7
    assert all(float(each.grad.abs().max()) == 0 for each in model.parameters())


def test_zero_grad_between_a_backward_pass_and_its_step_loses_no_gradient_in_silence() -> None:
    model, optimizer = _scheduled("bytescheduler")
    train(model, optimizer)
    model(batch(0)).sum().backward()
    with pytest.raises(InputError, match=r"call optimizer\.synchronize\(\) first"):
        optimizer.zero_grad(set_to_none=False)


COMPILED = ("ddp", "poseidon", "ooo", *LATE)
PAIRS = {
    ("model", "ddp"),
    ("model", "priority"),
    ("model", "p3"),
    ("part", "poseidon"),
    ("part", "dear"),
    ("part", "tictac"),
    *(("function", policy) for policy in LATE),
    ("flushed", "ooo"),
    ("flushed", "bytescheduler"),
}
"""What is compiled under each policy in a quick run: all of both, and what a late update is missed by, for each."""


@pytest.mark.parametrize(
    ("what", "policy"),
    [
        pytest.param(what, policy, marks=() if (what, policy) in PAIRS else pytest.mark.slow)
        for what in ("model", "part", "function", "flushed")
        for policy in COMPILED
    ],
)
@pytest.mark.spread(3)
def test_compiled_models_and_parts_train_as_they_are(policy: str, what: str) -> None:
    """A compiled function that reads a weight by itself gets it after its update, as a part with modules does."""
    model, optimizer = _scheduled(policy)
    forward: Any = torch.compile(model, backend="eager")
    if what == "part":
        model[0].compile(backend="eager")
        forward = model
    elif what == "function":
        read = torch.compile(lambda x: nn.functional.linear(x, model[3].weight), backend="eager")

        def forward(x: torch.Tensor) -> torch.Tensor:
            return model(x) + 0 * read(model[2](model[1](model[0](x)))).detach()

    if what == "flushed":
        for number in range(STEPS):
            optimizer.flush()
            train(forward, optimizer, range(number, number + 1))
    else:
        train(forward, optimizer)
    optimizer.flush()
    assert distance(model, plain()) < 1e-6


@pytest.mark.parametrize("policy", LATE)
def test_a_compiled_function_that_reads_weights_before_their_updates_is_told_to_flush(policy: str) -> None:
    """Also one that was compiled when nothing was outstanding."""
    model, optimizer = _scheduled(policy)
    read = torch.compile(lambda x: nn.functional.linear(x, model[3].weight), backend="eager")
    x = torch.ones(1, 12)
    read(x)
    train(model, optimizer)
    with pytest.raises(Exception, match=r"torch\.compile .* call optimizer\.flush\(\) before"):
        read(x)
    optimizer.flush()
    found = read(x).detach()
    assert float((found - nn.functional.linear(x, plain()[3].weight)).detach().abs().max()) < 1e-6


class _OwnCopy(nn.Linear):
    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = type(self).__new__(type(self))
        vars(made).update(copy.deepcopy(vars(self), memo))
        return made


def test_a_class_that_copies_itself_is_refused_with_what_to_do() -> None:
    model = nn.Sequential(_OwnCopy(6, 2))
    model, optimizer = schedule(model, adam(model), "ddp", network=NETWORK)
    train(model, optimizer)
    with pytest.raises(
        InputError, match=r"_OwnCopy with a __deepcopy__ of its own: load model\.state_dict\(\)"
    ):
        copy.deepcopy(model)
    optimizer.close()
    copy.deepcopy(model)


class _Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.mixed = MixtureOfExperts(6, lambda: nn.Linear(6, 6), experts=2, group=dist.group.WORLD)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mixed(torch.tanh(self.first(x)))


def _sections() -> nn.Module:
    torch.manual_seed(1)
    inner = (nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)) for _ in range(2))
    return nn.Sequential(*(TensorParallelModule(each, norm=nn.LayerNorm(6)) for each in inner))


def _mixture() -> nn.Module:
    torch.manual_seed(1)
    return _Mixture()


INSIDE = {"inside": NETWORK, "between": NETWORK}


@pytest.mark.parametrize(
    ("policy", "made", "network"),
    [("lina", _mixture, NETWORK), ("centauri", _sections, INSIDE), ("syndicate", _sections, INSIDE)],
)
def test_mixtures_and_plans_of_the_whole_step(
    policy: str, made: Callable[[], nn.Module], network: Any
) -> None:
    def trained(steps: int, *, scheduled: bool) -> tuple[nn.Module, Any]:
        model = made()
        optimizer: Any = adam(model)
        if scheduled:
            model, optimizer = schedule(model, optimizer, policy, network=network)
        train(model, optimizer, range(steps), zero=lambda: optimizer.zero_grad(set_to_none=False))
        return model, optimizer

    model, optimizer = trained(STEPS, scheduled=True)
    copied, own = copy.deepcopy((model, optimizer))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    averaged = AveragedModel(model)
    averaged.update_parameters(model)
    for each in (model, copied, torch.load(file, weights_only=False), averaged.module):
        assert distance(each, trained(STEPS, scheduled=False)[0]) < 1e-6
    train(copied, own, range(STEPS, 2 * STEPS))
    train(model, optimizer, range(STEPS, 2 * STEPS))
    wanted = trained(2 * STEPS, scheduled=False)[0]
    assert distance(copied, wanted) < 1e-6
    assert distance(model, wanted) < 1e-6
    assert hooks(copied) == 0


def test_sections_of_which_a_rank_has_a_part_are_not_copied() -> None:
    section = _sections()[0]
    weights = ShardedWeights(section.inner, list(section.inner.parameters()), None)
    for copied in (lambda: copy.deepcopy(section), lambda: torch.save(section, io.BytesIO())):
        with pytest.raises(InputError, match=r"sharded over replicas: load model\.state_dict\(\)"):
            copied()
    weights.close(adam(section))
    assert distance(copy.deepcopy(section), _sections()[0]) == 0


@pytest.mark.parametrize("order", ["1f1b", "breadth-first", "fold3d"])
def test_stages_of_a_pipeline_are_copied_after_their_updates(order: str) -> None:
    training = pipeline(
        [net()],
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        lambda found, _: found.square().mean(),
        order=order,
        micro_batches=1,
    )
    module = training.stages[0].module
    for number in range(STEPS):
        training.step(batch(number), batch(number))
    copied = copy.deepcopy(module)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for each in (copied, torch.load(file, weights_only=False)):
        assert distance(each, plain()) < 1e-6
    training.step(batch(0), batch(0))
    assert distance(copied, plain()) < 1e-6
    training.close()
