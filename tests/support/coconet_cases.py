"""Cases of fused optimizers and of hand-offs between stages, for programs of ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from coppice.errors import InputError
from coppice.iteration.policies.tensor.coconet.costs import kernel_chains, volumes
from coppice.training.torch import PipelineHandoff, fused_optimizer
from coppice.training.torch.tensor.passes_hops import MeasuredCosts

STEPS = 20
QUICK_LINKS = (1e9, 1e-7)
WHOLE = MeasuredCosts(
    ranks=2,
    flops_per_s=1e9,
    network={
        "all_reduce": (1e9, 1e-6),
        "reduce_scatter": (1e9, 1e-3),
        "all_gather": (1e9, 1e-3),
        "hop": (1e9, 1e-6),
    },
)
"""Parts of a sum are dearer than the sum."""
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.01, amsgrad=True),
}
CLIP = 0.5
CASES: dict[str, tuple[str, int, Any, float | None]] = {
    "momentum sliced": ("momentum", 200, QUICK_LINKS, None),
    "momentum whole": ("momentum", 10**6, WHOLE, None),
    "momentum clipped": ("momentum", 200, QUICK_LINKS, CLIP),
    "momentum whole clipped": ("momentum", 200, WHOLE, CLIP),
    "adamw sliced": ("adamw", 200, QUICK_LINKS, None),
    "adamw whole": ("adamw", 10**6, WHOLE, None),
}
"""Optimizer, bytes of a chunk, costs and the norm to which gradients are clipped."""
QUICK = ("momentum sliced", "momentum whole", "momentum clipped", "adamw sliced")


def gap(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """The largest difference."""
    return max(float((ours[name] - theirs[name]).detach().abs().max()) for name in theirs)


class Scale(nn.Module):
    """A parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def net(seed: int) -> nn.Sequential:
    """Layers of sizes that ranks do not divide, one of them frozen, one read twice."""
    torch.manual_seed(seed)
    tied = nn.Linear(7, 7)
    layers = nn.Sequential(Scale(), nn.Linear(5, 7), nn.ReLU(), tied, nn.Linear(7, 7), tied, nn.Linear(7, 3))
    layers[4].requires_grad_(False)
    return layers


def fed(model: nn.Module, step: int, rank: int | None, size: int) -> None:
    """A backward pass in two parts, the second added to the first; all rows with no rank."""
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(size * 4, 5, generator=generator), torch.randn(size * 4, 3, generator=generator)
    mine = slice(None) if rank is None else slice(rank * 4, rank * 4 + 4)
    for half in range(2):
        own = (each[mine][half::2] for each in (x, y))
        loss = nn.functional.mse_loss(*(model(next(own)), next(own))) / 2
        loss.backward()


def elements(states: Any) -> int:
    """Elements of the tensors of states."""
    values = [value for held in states.values() for value in held.values()]
    return sum(value.numel() for value in values if isinstance(value, torch.Tensor))


def optimizers(rank: int, size: int) -> dict[str, Any]:
    """Fused optimizers beside plain ones; resumed from whole states, their own and plain ones."""
    names = QUICK if size == 2 else CASES
    return {name: optimizer_case(name, rank, size) for name in names}


def optimizer_case(name: str, rank: int, size: int) -> dict[str, Any]:
    """A training with a fused optimizer, a plain one, and others that go on from the states of both after 10 steps."""
    kind, chunk, costs, clip = CASES[name]
    make = OPTIMIZERS[kind]
    plain, model = net(3), net(3 + rank)
    reference = make(plain.parameters())
    settings: dict[str, Any] = {"costs": costs, "flops_per_s": 1e9, "max_norm": clip}
    fused = fused_optimizer(make(model.parameters()), chunk_bytes=chunk, **settings)
    rates = [torch.optim.lr_scheduler.StepLR(each, 5, 0.5) for each in (reference, fused)]
    saved: Any = None
    theirs: Any = None
    norm = 0.0
    for step in range(STEPS):
        for each, network, who in ((reference, plain, None), (fused, model, rank)):
            each.zero_grad()
            fed(network, step, who, size)
            if each is reference and clip is not None:
                norm = float(nn.utils.clip_grad_norm_(plain.parameters(), clip))
            each.step()
        for rate in rates:
            rate.step()
        if step == 9:
            saved = copy.deepcopy((model.state_dict(), fused.state_dict()))
            theirs = copy.deepcopy((plain.state_dict(), reference.state_dict()))
    ended = dict(model.named_parameters())
    gone_on = {}
    for own, (weights, state) in (("resumed", saved), ("from plain", theirs)):
        other = net(9)
        # Two numbers have one sum; of more, what shares a chunk decides the order in which some backends add them.
        again = fused_optimizer(make(other.parameters()), chunk_bytes=77 if size == 2 else chunk, **settings)
        again.load_state_dict(state)  # in any order: weights are read when they are updated
        other.load_state_dict(weights)
        rate = torch.optim.lr_scheduler.StepLR(again, 5, 0.5, last_epoch=9)
        for group in again.param_groups:
            group["lr"] = state["param_groups"][0]["lr"]
        for step in range(10, STEPS):
            again.zero_grad()
            fed(other, step, rank, size)
            again.step()
            rate.step()
        gone_on[own] = gap(dict(other.named_parameters()), ended)
    ours, expected = saved[1]["state"], theirs[1]["state"]
    into_plain = make(net(4).parameters())
    into_plain.load_state_dict(saved[1])
    program = fused.tuned.program
    return {
        "distance": gap(ended, dict(plain.named_parameters())),
        "buffers": list(model.state_dict()) == list(plain.state_dict()),
        **gone_on,
        "keys": {number: sorted(each) for number, each in ours.items()}
        == {number: sorted(each) for number, each in expected.items()},
        "groups": saved[1]["param_groups"] == theirs[1]["param_groups"],
        "state": max(
            float((ours[number][key] - value).abs().max())
            for number, held in expected.items()
            for key, value in held.items()
        ),
        "rewrites": fused.tuned.rewrites,
        "tasks": fused.tasks,
        "simulated": [name for chain in kernel_chains(program) for kernel in chain for name in kernel],
        "held": elements(fused._inner.state),
        "whole": elements(expected),
        "norm": 0.0 if clip is None else abs(float(fused.gradient_norm) - norm),
    }


def optimizer_of(rank: int, size: int) -> tuple[Callable[[int], None], Any]:
    """A backward pass, and the fused optimizer behind it."""
    model = net(3)
    fused = fused_optimizer(OPTIMIZERS["adamw"](model.parameters()), costs=QUICK_LINKS, chunk_bytes=200)
    return lambda step: fed(model, step, rank, size), fused


def refusals() -> list[Callable[[], Any]]:
    """What a fused optimizer does not do."""

    def made(**settings: Any) -> tuple[nn.Linear, Any]:
        model = nn.Linear(2, 2)
        fused = fused_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), costs=(1e9, 0.0), **settings)
        model.weight.grad, model.bias.grad = torch.ones(2, 2), torch.ones(2)
        return model, fused

    def without_gradient() -> None:
        model, fused = made()
        model.weight.grad = None
        fused.step()

    def moved() -> None:
        model, fused = made()
        model.bias.data = torch.zeros(2)
        fused.step()

    def scaled() -> None:
        _, fused = made()
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(torch.ones(()))
        scaler.step(fused)

    def other_steps() -> None:
        model, fused = made()
        plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model.bias.grad = None
        plain.step()
        fused.load_state_dict(plain.state_dict())

    return [
        lambda: fused_optimizer(torch.optim.Adagrad(nn.Linear(2, 2).parameters())),
        without_gradient,
        moved,
        scaled,
        other_steps,
        lambda: made()[1].step(lambda: 0.0),
        lambda: made()[1].add_param_group({"params": [nn.Parameter(torch.ones(1))]}),
        lambda: made(max_norm=0.0),
    ]


def handoff_between(rank: int, size: int, shape: tuple[int, ...], **settings: Any) -> PipelineHandoff:
    """The first half of the ranks is a stage, the second one the next."""
    half = size // 2
    groups = [dist.new_group(list(range(first, first + half))) for first in (0, half)]
    return PipelineHandoff(
        shape,
        group=groups[rank // half],
        peer=(rank + half) % size,
        **{"costs": (1e8, 1e-6), "between": (1e6, 1e-5), **settings},
    )


HANDOFFS: dict[str, dict[str, Any]] = {
    "sliced": {},
    "whole": {"costs": WHOLE, "between": (1e12, 0.0)},
    "in one": {"chunks": 1},
}


def handoffs(rank: int, size: int) -> dict[str, Any]:
    """Two stages of two products, whose ranks share them out, trained with each kind of hand-off."""
    return {
        **{name: handoff_case(settings, rank, size) for name, settings in HANDOFFS.items()},
        "refused": handoff_refused(rank, size),
    }


def handoff_case(settings: dict[str, Any], rank: int, size: int) -> dict[str, Any]:
    """A training; weights of one process beside it."""
    half, rows, width, hidden = size // 2, 8, 6, 4 * (size // 2)
    stage, place = divmod(rank, half)
    torch.manual_seed(7)
    plain = [torch.randn(shape) * 0.3 for shape in [(width, hidden), (hidden, width)] * 2]
    mine = slice(place * hidden // half, (place + 1) * hidden // half)
    entry, leave = plain[2 * stage].clone()[:, mine], plain[2 * stage + 1].clone()[mine]
    own = [nn.Parameter(each.contiguous()) for each in (entry, leave)]
    weights = [nn.Parameter(each) for each in plain]
    way = handoff_between(rank, size, (rows, 3, width), **settings)
    group = way._group
    alone, shared = (torch.optim.SGD(each, lr=0.1, momentum=0.9) for each in (weights, own))
    losses = []
    tasks: list[str] = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(2, rows, 3, width, generator=generator).unbind()
        alone.zero_grad()
        between = torch.relu(x @ weights[0]) @ weights[1]
        expected = nn.functional.mse_loss(torch.relu(between @ weights[2]) @ weights[3], y)
        expected.backward()
        alone.step()
        shared.zero_grad()
        if stage == 0:
            term = torch.relu(x @ own[0]) @ own[1]
            way.send(term)
            tasks = way.tasks
            term.backward(way.receive())
        else:
            entered = way.receive().requires_grad_()
            tasks = way.tasks
            term = torch.relu(entered @ own[0]) @ own[1]
            whole = term.detach().clone()
            dist.all_reduce(whole, group=group)
            whole.requires_grad_()
            loss = nn.functional.mse_loss(whole, y)
            loss.backward()
            term.backward(whole.grad)
            way.send(entered.grad)
            losses.append(abs(float(loss.detach() - expected.detach())))
        shared.step()
    theirs = [weights[2 * stage][:, mine], weights[2 * stage + 1][mine]]
    program = way.tuned.program
    return {
        "distance": max(float((a - b).detach().abs().max()) for a, b in zip(own, theirs, strict=True)),
        "losses": max(losses, default=0.0),
        "sliced": way.sliced,
        "rewrites": way.tuned.rewrites,
        "tasks": tasks,
        "simulated": [name for name in way.simulated.names if not name.startswith("launch")],
        "sent": way.sent_bytes,
        "expected": STEPS * volumes(program, 4).between,
        "whole": rows * 3 * width * 4 * STEPS,
    }


def handoff_refused(rank: int, size: int) -> list[str]:
    """What is not done, and why."""
    said = []
    way = handoff_between(rank, size, (4, 2))
    for attempt in (
        lambda: way.send(torch.ones(4, 3)),
        lambda: way.send(torch.ones(4, 2, dtype=torch.float64)),
        lambda: handoff_between(rank, size, ()),
        lambda: handoff_between(rank, size, (4, 2), chunks=1 if rank < size // 2 else 2),
    ):
        try:
            attempt()
        except InputError as error:
            said.append(str(error))
    return said
