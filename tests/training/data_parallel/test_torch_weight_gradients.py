"""Gradients of weights made later: those of a plain backward pass bit for bit, in the order that was asked for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from coppice.errors import InputError  # noqa: E402
from coppice.iteration.pipeline.order import Work  # noqa: E402
from coppice.iteration.step.plan import LayerPass  # noqa: E402
from coppice.training.torch.data_parallel.ooo import DeferredGradients  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Threads that wait for each other are slow on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Layers(nn.Module):
    """A layer of each kind, one that runs twice, activations in place, and layers that are left whole."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 12, padding_idx=0)
        self.narrow = nn.Conv1d(12, 8, 3, padding=1, stride=2)
        self.wide = nn.ConvTranspose1d(8, 12, 4, stride=2, padding=1, bias=False)
        self.batch = nn.BatchNorm1d(12)
        self.norm = nn.LayerNorm(12)
        self.first = nn.Linear(12, 12)
        self.frozen = nn.Linear(12, 12).requires_grad_(False)
        self.twice = nn.Linear(12, 12, bias=False)
        self.attention = nn.MultiheadAttention(12, 2, batch_first=True)
        self.image = nn.Conv2d(2, 6, 3, groups=2)
        self.head = nn.Linear(6 * 3 * 4, 4)
        self.reentrant: bool | None = None

    def middle(self, x: Any) -> Any:
        return torch.relu_(self.frozen(self.first(self.norm(x))))

    def forward(self, x: Any) -> Any:
        y = self.wide(torch.relu_(self.narrow(self.table(x).transpose(1, 2))))
        y = self.batch(y).transpose(1, 2)
        again = self.reentrant
        y = self.middle(y) if again is None else checkpoint(self.middle, y, use_reentrant=again)
        y = self.twice(torch.tanh(self.twice(y)))
        y = y + self.attention(y, y, y)[0]
        return self.head(self.image(y.view(len(y), 2, 5, 12)[..., :6]).flatten(1)).logsumexp(1)


def readers(model: nn.Module) -> list[list[nn.Module]]:
    """Owners of each trained tensor, and the attention that reads those of its last layer itself."""
    found = []
    for name, parameter in trained(model):
        owners = [m for m in model.modules() for own in m.parameters(recurse=False) if own is parameter]
        found.append([*owners, model.attention] if name.startswith("attention.out") else owners)
    return found


def trained(model: nn.Module) -> list[tuple[str, Any]]:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def passes(count: int, late: list[int]) -> list[LayerPass]:
    """All gradients of inputs, then those of some weights."""
    return [
        *(LayerPass(Work.INPUT, layer) for layer in reversed(range(count))),
        *(LayerPass(Work.WEIGHT, layer) for layer in late),
    ]


WHOLE = {"batch.weight", "batch.bias"} | {
    f"attention.{name}" for name in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
}


@pytest.mark.parametrize("reentrant", [None, False])
@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("first", [4, 99])
def test_gradients_are_those_of_a_plain_backward_pass(reentrant: bool | None, low: bool, first: int) -> None:
    torch.manual_seed(0)
    plain = Layers()
    plain.reentrant = reentrant
    model = copy.deepcopy(plain)
    keys = list(model.state_dict())
    names = [name for name, _ in trained(model)]
    own = [p for _, p in trained(model)]
    deferred = DeferredGradients(own)
    deferred.watch(model, readers(model))
    order: list[str] = []

    def arrived(place: int) -> Callable[[Any], None]:
        def note(_: Any) -> None:
            order.append(names[place])
            deferred.arrived(place)

        return note

    for place, (_, parameter) in enumerate(trained(model)):
        parameter.register_post_accumulate_grad_hook(arrived(place))
    late: list[int] = []
    for step in range(4):  # two are recorded; gradients add up
        if step == 2:
            times = deferred.times()
            whole = WHOLE | ({"norm.weight", "norm.bias"} if low else set())
            assert {name for name, each in zip(names, times.separable, strict=True) if not each} == whole
            assert all(bool(s) == t for s, t in zip(times.seconds, times.separable, strict=True))
            late = [place for place in range(min(first, len(own))) if times.separable[place]]
            deferred.adopt(passes(len(own), late), range(len(own)))
        torch.manual_seed(step)
        x = torch.randint(11, (4, 10))
        order.clear()
        for each in (model, plain):
            if each is model:
                deferred.begin()
            with torch.autocast("cpu", enabled=low, dtype=torch.bfloat16):
                loss = each(x)
            loss.float().sum().backward()
        for (name, p), (_, q) in zip(trained(model), trained(plain), strict=True):
            assert torch.equal(p.grad, q.grad), (name, step)
        assert sorted(order) == sorted(names)
    assert order[-len(late) :] == [names[place] for place in late]
    assert list(model.state_dict()) == keys
    assert type(model.first) is nn.Linear
    deferred.close()
    assert all("forward" not in vars(module) for module in model.modules())


def deferring(model: nn.Module) -> DeferredGradients:
    own = [p for _, p in trained(model)]
    deferred = DeferredGradients(own)
    deferred.watch(model, readers(model) if isinstance(model, Layers) else [[model]] * len(own))
    deferred.adopt(passes(len(own), list(range(len(own)))), range(len(own)))
    deferred.begin()
    return deferred


def test_graphs_that_are_used_again_and_gradients_that_are_not_asked_for() -> None:
    model = nn.Linear(3, 2)
    plain = copy.deepcopy(model)
    deferring(model)
    x = torch.randn(4, 3, requires_grad=True)
    loss, same = model(x).square().sum(), plain(x).square().sum()
    torch.autograd.grad(loss, x, retain_graph=True)  # leaves gradients of weights unmade
    loss.backward(retain_graph=True)
    same.backward(retain_graph=True)
    assert torch.equal(model.weight.grad, plain.weight.grad)
    loss.backward()
    same.backward()
    assert torch.equal(model.weight.grad, plain.weight.grad)
    assert torch.equal(model.bias.grad, plain.bias.grad)
    assert torch.equal(
        torch.autograd.grad(model(x).square().sum(), model.weight)[0],
        torch.autograd.grad(plain(x).square().sum(), plain.weight)[0],
    )


def test_hooks_of_a_parameter_see_its_gradient() -> None:
    model = nn.Linear(3, 2)
    deferring(model)
    model.weight.register_hook(lambda gradient: gradient * 2)
    model(torch.ones(1, 3)).sum().backward()
    assert torch.equal(model.weight.grad, torch.full((2, 3), 2.0))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda m: nn.utils.parametrizations.weight_norm(m), "parametrized"),
        (lambda m: vars(m).update(forward=lambda x: nn.functional.linear(x, m.weight, m.bias)), "replaced"),
        (lambda _: None, "tied"),
    ],
)
def test_what_is_not_a_layer_as_torch_has_it_is_left_whole(change: Callable[[Any], Any], name: str) -> None:
    model = nn.Linear(3, 3)
    change(model)
    own = [p for p in model.parameters() if p.requires_grad]
    deferred = DeferredGradients(own)
    others = [model, nn.Identity()] if name == "tied" else [model]
    deferred.watch(model, [others] * len(own))
    for _ in range(2):
        deferred.begin()
        model(torch.ones(2, 3)).sum().backward()
        for place in range(len(own)):
            deferred.arrived(place)
    assert not any(deferred.times().separable)
    assert all(p.grad is not None for p in own)


def test_what_cannot_be_deferred_is_said() -> None:
    model = nn.Linear(3, 2)
    deferring(model)
    loss = model(torch.ones(1, 3, requires_grad=True)).square().sum()
    with pytest.raises(InputError, match="expected backward\\(\\) without create_graph"):
        loss.backward(create_graph=True)
    layers = Layers()
    layers.reentrant = True
    deferring(layers)
    with pytest.raises(InputError, match="use_reentrant=False where gradients of weights are deferred"):
        layers(torch.randint(11, (4, 10))).sum().backward()
