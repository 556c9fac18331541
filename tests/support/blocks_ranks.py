"""One rank of blocks of tensor parallelism under policies; arguments as in overlap_ranks.py."""

from __future__ import annotations

import copy
import os
import signal
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from overlap_ranks import main
from refusals import refusals
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from tracked_cases import tracked

from coppice.errors import CheckError
from coppice.iteration.policies.tensor.recompute_windows import LayerWindows, stage_graph
from coppice.training.torch import MegatronBlock, SummedPart, TrackedProduct, tensor_parallel
from coppice.training.torch.tensor.lynx import RecordedBlock

WIDTH, HEADS, TOKENS, ROWS, STEPS = 16, 4, 6, 5, 8


def blocks(count: int = 2, dropout: float = 0.0, group: Any = None) -> nn.Sequential:
    """Megatron's blocks, the same on all ranks but for what is split."""
    torch.manual_seed(3)
    return nn.Sequential(*(MegatronBlock(WIDTH, HEADS, dropout=dropout, group=group) for _ in range(count)))


class Gate(nn.Module):
    """What follows a sum, with weights and a random choice of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, summed: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.gate * nn.functional.dropout(summed, 0.3, self.training))


def own_parts(rank: int, *, tied: bool = False) -> nn.Sequential:
    """Parts of a user: without preparation, without an end, one that is its own block, and one that may run twice."""
    torch.manual_seed(5)

    def part() -> SummedPart:
        partial = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, WIDTH, bias=False))
        with torch.no_grad():
            for p in partial.parameters():
                p.mul_(1 + 0.1 * rank)
        return SummedPart(partial, Gate())

    first, last = part(), part()
    same = SummedPart(nn.Identity(), Gate(), prepare=nn.LayerNorm(WIDTH))
    plain = SummedPart(nn.Linear(WIDTH, WIDTH, bias=False))
    return nn.Sequential(nn.Sequential(first, plain), same, nn.Sequential(first if tied else last))


def alike_parts(rank: int, *, tied: bool = False) -> nn.Sequential:
    """Two blocks of a user, each of a part with an end that saves much; or one block twice."""
    first, other = own_parts(rank)[0][0], own_parts(rank)[2][0]
    return nn.Sequential(first, first if tied else other)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, alike on all ranks."""
    generator = torch.Generator().manual_seed(step)
    return (
        torch.randn(ROWS, TOKENS, WIDTH, generator=generator),
        torch.randn(ROWS, TOKENS, WIDTH, generator=generator),
    )


def in_turns(layers: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
    """Both halves with stock autograd and synchronous sums, parts in turns: what draws at random does so in order."""
    from coppice.training.torch.tensor import parts as own

    parts = [part for block in own.parts_of(layers) for part in block]
    entered = list(x.tensor_split([(len(x) + 1) // 2]))
    sums: list[Any] = [None, None]
    for number, part in enumerate(parts):
        for half in range(2):
            if number:
                entered[half] = parts[number - 1].finish(entered[half], sums[half])
            spread = own._Spread.apply(part.prepare(entered[half]), part)
            sums[half] = own._Gathered.apply(part.partial(spread), part)
    return torch.cat([parts[-1].finish(*pair) for pair in zip(entered, sums, strict=True)])


def distance(a: nn.Module, b: nn.Module) -> float:
    """The largest difference of their parameters."""
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return max(float((one.detach() - other.detach()).abs().max()) for one, other in pairs)


def trained(layers: nn.Module, run: Any, steps: range, *, seed: int = 11) -> list[float]:
    """Train; the losses."""
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in steps:
        torch.manual_seed(seed + step)
        x, y = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(run(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def resumed(first: Any, again: Any) -> float:
    """How far a model that goes on from the checkpoint of another after 4 steps is from it in the end."""
    for model in (first, again):
        model.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(model: Any, number: int) -> None:
        torch.manual_seed(number)
        x, y = batch(number)
        model.optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        model.optimizer.step()

    for number in range(4):
        step(first, number)
    state = copy.deepcopy((first.state_dict(), first.optimizer.state_dict()))
    again.load_state_dict(state[0])
    again.optimizer.load_state_dict(state[1])
    for number in range(4, STEPS):
        step(first, number)
        step(again, number)
    return distance(first, again)


@contextmanager
def counted() -> Iterator[list[int]]:
    """The sizes of sums that are started."""
    started: list[int] = []
    real = dist.all_reduce

    def counting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        started.append(tensor.nbytes)
        return real(tensor, *args, **kwargs)

    dist.all_reduce = counting
    try:
        yield started
    finally:
        dist.all_reduce = real


@contextmanager
def saved_bytes() -> Iterator[dict[int, int]]:
    """Memory that autograd keeps of what is computed in the context, by its place; keeps it alive to count it once."""
    found: dict[int, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter):
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage
        return tensor

    sizes: dict[int, int] = {}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield sizes
    sizes |= {place: storage.nbytes() for place, storage in found.items()}


def halves(rank: int, size: int) -> dict[str, Any]:
    """Two halves beside stock autograd."""
    found: dict[str, Any] = {}
    for name, make in (
        ("plain", blocks),
        ("dropout", lambda: blocks(dropout=0.2)),
        ("own", lambda: own_parts(rank)),
        ("tied own", lambda: own_parts(rank, tied=True)),
    ):
        for recompute in (True, False)[: 1 if name == "dropout" else 2]:
            ours, theirs = make(), make()
            halved = tensor_parallel(ours, "oases", recompute=recompute)
            ran = trained(halved, halved, range(STEPS))
            expected = trained(theirs, lambda x, theirs=theirs: in_turns(theirs, x), range(STEPS))
            found[f"{name} {recompute}"] = {
                "distance": distance(halved, theirs),
                "losses": ran == expected,
                "launched": halved.launched,
                "simulated": list(halved.order.graph().names),
                "unneeded": [] if "own" not in name else ["sum of B0 of 2", "sum of B0 of 1"],
                "keys": list(halved.state_dict()) == list(theirs.state_dict()),
            }
    single = [dist.new_group([each]) for each in range(size)][rank]
    whole = blocks(group=single)
    halved = tensor_parallel(blocks(), "oases")
    losses = trained(whole, whole, range(STEPS)), trained(halved, halved, range(STEPS))
    replicated = [
        (one, other)
        for one, other in zip(whole.parameters(), halved.parameters(), strict=True)
        if one.shape == other.shape
    ]
    found["whole"] = {
        "losses": max(abs(a - b) for a, b in zip(*losses, strict=True)),
        "distance": max(float((a - b).detach().abs().max()) for a, b in replicated),
        "compared": len(replicated),
    }
    return found


def half_features(rank: int, size: int) -> dict[str, Any]:
    """Frozen pieces, accumulation, hooks, mixed precision, evaluation, checkpoints, memory, and what is refused."""
    del size
    found: dict[str, Any] = {}
    x, y = batch(0)
    grads = []
    for run in ("ours", "theirs"):
        layers = own_parts(rank)
        for p in layers[0].parameters():
            p.requires_grad_(False)
        inputs = x.clone().requires_grad_(True)
        call = (
            tensor_parallel(layers, "oases")
            if run == "ours"
            else lambda x, layers=layers: in_turns(layers, x)
        )
        for turn in range(2):
            torch.manual_seed(turn)
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):  # else halves are added as bf16
                loss = nn.functional.mse_loss(call(inputs), y)
            loss.backward()
        grads.append([p.grad for p in (*layers.parameters(), inputs)])
    found["mixed"] = [
        a is b is None or (a is not None and torch.equal(a, b)) for a, b in zip(*grads, strict=True)
    ]

    for name, freeze in (("bottom", lambda i: i < 2), ("all but a norm", lambda i: i != 2)):
        sums = []
        grads = []
        for run in ("ours", "theirs"):
            layers = blocks()
            modules = [piece for block in layers for part in block for piece in part.children()]
            for number, piece in enumerate(modules):
                piece.requires_grad_(not freeze(number - 1) if name == "bottom" else number == 3)
            call = (
                tensor_parallel(layers, "oases")
                if run == "ours"
                else lambda x, layers=layers: in_turns(layers, x)
            )
            with counted() as started:
                nn.functional.mse_loss(call(x), y).backward()
            sums.append(len(started))
            grads.append([p.grad for p in layers.parameters()])
        found[name] = {
            "equal": [a is b is None or torch.equal(a, b) for a, b in zip(*grads, strict=True)],
            "sums": sums,
        }

    layers = blocks(dropout=0.1)
    halved = tensor_parallel(layers, "oases")
    fired: list[int] = []
    for number, p in enumerate(layers.parameters()):
        p.register_post_accumulate_grad_hook(lambda _, number=number: fired.append(number))
    with counted() as started:
        with saved_bytes() as sizes:
            output = halved(x)
        begun = len(started)
        nn.functional.mse_loss(output, y).backward()
    found["sums"] = [begun, len(started) - begun]
    found["fired"] = sorted(fired) == list(range(len(list(layers.parameters()))))
    found["saved"] = sum(sizes.values())
    with saved_bytes() as sizes:
        tensor_parallel(blocks(dropout=0.1), "oases", recompute=False)(x)
    found["all saved"] = sum(sizes.values())
    found["activation"] = x.nbytes
    found["predicted"] = halved.workload((1e8, 1e-4)).forward_seconds
    with torch.no_grad():
        halved.eval()
        found["evaluated"] = float((halved(x) - layers.eval()(x)).abs().max())

    halved = tensor_parallel(blocks(dropout=0.1), "oases")
    again = tensor_parallel(blocks(dropout=0.1), "oases")
    found["resumed"] = resumed(halved, again)

    found["refused"] = []
    output = halved(x)
    output.sum().backward(retain_graph=True)
    found["refused"] += refusals(
        lambda: output.sum().backward(),
        lambda: tensor_parallel(blocks(), "oases", silent=False),
        lambda: tensor_parallel(nn.Sequential(nn.Linear(2, 2)), "oases"),
        lambda: tensor_parallel(nn.Sequential(), "oases"),
        lambda: tensor_parallel(blocks(), "centauri"),
        lambda: halved(x[:1]),
        lambda: tensor_parallel(blocks(), "oases").workload((1.0, 0.0)),
        lambda: MegatronBlock(15, 4),
    )
    return found


class Living(TorchDispatchMode):
    """Memory that was allocated within and is there, as PyTorch itself sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.found[id(storage)] = weakref.ref(storage)
        return made

    def nbytes(self, *others: torch.Tensor) -> int:
        """Bytes of what is there, without others of which there were views."""
        left = {other.untyped_storage().data_ptr() for other in others}
        storages = [storage for each in self.found.values() if (storage := each()) is not None]
        return sum(
            {each.data_ptr(): each.nbytes() for each in storages if each.data_ptr() not in left}.values()
        )


def told(block: RecordedBlock, *, windows: float = 3.0, ops: float = 2.0) -> RecordedBlock:
    """The block with times that are not measured."""
    count = len(block.windows.backward)
    made = LayerWindows(
        ops=tuple(replace(op, seconds=ops * (1 + number % 3)) for number, op in enumerate(block.windows.ops)),
        backward=(windows,) * count,
        forward=(windows,) * count,
    )
    return replace(block, windows=made)


def limits_of(block: RecordedBlock, count: int, in_flight: int = 1) -> list[int]:
    """From the least limit there may be to one that keeps everything."""
    sizes = [op.size_bytes for op in block.windows.ops]
    least = in_flight * count * block.fixed_bytes + sum(sizes)
    most = in_flight * count * (block.fixed_bytes + sum(sizes))
    return [least, least + (most - least) // 3, least + 2 * (most - least) // 3, most]


def recomputed(rank: int) -> dict[str, Any]:
    """Operations that are computed again, beside plain blocks with synchronous sums."""
    found: dict[str, Any] = {}
    for name, make in (
        ("plain", lambda: blocks(3)),
        ("dropout", lambda: blocks(3, dropout=0.2)),
        ("own", lambda: alike_parts(rank)),
        ("tied own", lambda: alike_parts(rank, tied=True)),
    ):
        theirs = make()
        expected = trained(theirs, theirs, range(STEPS))
        first = tensor_parallel(make(), "lynx")
        losses = trained(first, first, range(STEPS))
        block = told(first.recorded)
        cases = [(f"{name} recorded", first, losses)]
        limits = limits_of(block, len(first))
        for limit in (None, *limits, "stage") if name == "plain" else (limits[1], "stage"):
            given = {"limit_bytes": limits[1], "search": "stage"}
            ours = tensor_parallel(
                make(), "lynx", block=block, **(given if limit == "stage" else {"limit_bytes": limit or 0})
            )
            cases.append((f"{name} {limit}", ours, trained(ours, ours, range(STEPS))))
        for title, ours, ran in cases:
            x, _ = batch(0)
            with Living() as living:
                output = ours(x.clone())
            for _ in range(500):  # a thread of the group may let go of the last sum later
                held = living.nbytes(output, *ours.parameters())
                if held <= ours.held_bytes:
                    break
                time.sleep(0.01)
            output.sum().backward()
            found[title] = {
                "distance": distance(ours, theirs),
                "losses": ran == expected,
                "launched": ours.launched,
                "simulated": list(stage_graph(ours.recorded.windows, ours.schedule.places).names),
                "windows": [list(each) for each in ours.schedule.places],
                "held": [ours.held_bytes, held],
                "planned": [ours.schedule.activation_bytes, ours.schedule.peak_bytes],
                "limit": ours.policy.settings.limit_bytes,
                "operations": ours.operations,
                "keys": list(ours.state_dict()) == list(theirs.state_dict()),
            }
    return found


def recomputed_features(rank: int) -> dict[str, Any]:
    """Several micro-batches in flight, mixed precision, frozen pieces, evaluation, checkpoints, and what is refused."""
    found: dict[str, Any] = {}
    x, y = batch(0)
    first = tensor_parallel(blocks(3, dropout=0.1), "lynx", passes=1)
    for _ in range(2):
        first(x).sum().backward()
    block = told(first.recorded)
    found["measured"] = [
        min(op.seconds for op in first.recorded.windows.ops if op.size_bytes) > 0,
        min(*first.recorded.windows.forward, *first.recorded.windows.backward) > 0,
    ]
    limit = limits_of(block, 3)[1]

    # A stage of 1F1B that has two micro-batches in flight.
    for search in ("layer", "stage"):
        ours, theirs = (blocks(3, dropout=0.1) for _ in range(2))
        both = limits_of(block, 3, in_flight=2)[1]
        run = tensor_parallel(ours, "lynx", block=block, in_flight=2, limit_bytes=both, search=search)
        launched, held = [], []
        for call in (run, theirs):
            torch.manual_seed(1)
            flying = []
            for number in range(4):
                flying.append(call(batch(number)[0]))
                held += [run.held_bytes] * (call is run)
                if len(flying) == 2:
                    flying.pop(0).square().sum().backward()
                    launched += [list(run.launched)] * (call is run)
            flying.pop().square().sum().backward()
        found[f"in flight {search}"] = {
            "equal": [
                torch.equal(a.grad, b.grad)
                for a, b in zip(run.parameters(), theirs.parameters(), strict=True)
            ],
            "launched": launched,
            "simulated": list(stage_graph(run.recorded.windows, run.schedule.places).names),
            "windows": [list(each) for each in run.schedule.places],
            "operations": run.operations,
            "planned": [2 * max(held), run.schedule.peak_bytes, both],
        }

    for name, freeze, precise in (
        ("mixed", lambda i: i < 0, False),
        ("bottom", lambda i: i < 12, True),
        ("most", lambda i: i != 7, True),
    ):
        grads = []
        for ours in (False, True):
            layers = blocks(3, dropout=0.1)
            for number, p in enumerate(layers.parameters()):
                p.requires_grad_(not freeze(number))
            call = tensor_parallel(layers, "lynx", block=block, limit_bytes=limit) if ours else layers
            torch.manual_seed(0)
            for _ in range(2):
                with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
                    loss = nn.functional.mse_loss(call(x), y)
                loss.backward()
            grads.append([p.grad for p in layers.parameters()])
        found[name] = [a is b is None or torch.equal(a, b) for a, b in zip(*grads, strict=True)]

    ours, again = (
        tensor_parallel(blocks(3, dropout=0.1), "lynx", block=given, limit_bytes=limit)
        for given in (block, None)
    )
    found["resumed"] = resumed(ours, again)
    with torch.no_grad():
        plain = blocks(3)
        plain.load_state_dict(ours.state_dict())
        found["evaluated"] = torch.equal(ours.eval()(x), plain.eval()(x))
        ours.train()

    # A backend may keep what it has summed; what is in flight must not depend on it.
    real, summed = dist.all_reduce, []

    def keeping(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        summed.append(tensor)
        return real(tensor, *args, **kwargs)

    dist.all_reduce = keeping
    try:
        ours(x)
        found["let go"] = not ours.oldest()
    finally:
        dist.all_reduce = real
    summed.clear()

    class Fickle(nn.Module):
        """Does something else when it is called again."""

        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x.sin() if self.calls % 2 else x.exp().exp()

    def twice() -> None:
        output = ours(x)
        output.sum().backward(retain_graph=True)
        output.sum().backward()

    def kept() -> list[Any]:
        return [ours(x) for _ in range(2)]

    fickle = nn.Sequential(
        SummedPart(nn.Sequential(Fickle(), nn.Linear(WIDTH, WIDTH)), prepare=nn.LayerNorm(WIDTH))
    )

    def too_little() -> None:
        small = tensor_parallel(blocks(3), "lynx", passes=1, limit_bytes=1000)
        for _ in range(2):
            small(x).sum().backward()

    found["refused"] = refusals(
        lambda: tensor_parallel(blocks(3), "lynx", block=block, limit_bytes=limits_of(block, 3)[0] - 1),
        too_little,
        kept,
        lambda: ours(x.repeat(2, 1, 1)),
        twice,
        lambda: tensor_parallel(fickle, "lynx")(x).sum().backward(),
        lambda: tensor_parallel(own_parts(rank), "lynx"),
        lambda: tensor_parallel(blocks(3), "lynx", layer_bytes=5),
        lambda: tensor_parallel(blocks(3), "lynx", in_flight=0),
        lambda: tensor_parallel(blocks(3), "lynx", limit_byte="many"),
    )
    return found


def quick(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """All cases."""
    del folder
    return {
        "halves": halves(rank, size),
        "half features": half_features(rank, size),
        "recomputed": recomputed(rank),
        "recomputed features": recomputed_features(rank),
    }


def tracked_only(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Products that trigger their scatter."""
    del folder
    return {"tracked": tracked(rank, size)}


def killed(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Rank 1 dies before its first sum of the second backward pass."""
    found: dict[str, Any] = {"said": "", "then": "", "at last": "", "tracked": tracked(rank, size)}
    product = TrackedProduct(2 * size, 4)
    halved = tensor_parallel(own_parts(rank), "oases")
    if (folder / "lynx").exists():
        halved = tensor_parallel(alike_parts(rank), "lynx", passes=1)
    x, y = batch(0)

    def die(_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    try:
        nn.functional.mse_loss(halved(x), y).backward()
        output = halved(x)
        if rank == 1:
            output.register_hook(die)
        nn.functional.mse_loss(output, y).backward()
    except CheckError as error:
        found["said"] = str(error)
    try:
        tensor_parallel(alike_parts(rank), "lynx")(x).sum().backward()
    except CheckError as error:
        found["then"] = str(error)
    try:
        product.all_reduce(torch.ones(2 * size, 3), torch.ones(3, 4))
    except CheckError as error:
        found["at last"] = str(error)
    return found


if __name__ == "__main__":
    main({"quick": quick, "tracked": tracked_only, "killed": killed})
