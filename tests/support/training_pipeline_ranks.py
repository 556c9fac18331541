"""One rank of pipelines in training: ``training_pipeline_ranks.py MODE RANK SIZE FOLDER BACKEND``."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from coconet_cases import handoffs
from overlap_ranks import main
from torch import nn
from training_pipelines import (
    ROWS,
    Chain,
    adam,
    alone,
    batch,
    crossed,
    layers,
    mixed,
    plain_sgd,
    sgd,
    simulated,
    words,
)

from coppice.errors import CheckError, InputError
from coppice.training.torch import pipeline
from coppice.training.torch.pipelined.plan import StageCosts, stage_workload
from coppice.training.torch.pipelined.training import PipelineTraining

STEPS = 20
PASSES = ("forward", "backward", "input gradient", "weight gradient")


@dataclass(frozen=True)
class Case:
    """A training."""

    order: Any
    stages: int
    replicas: int = 2
    micro_batches: int = 4
    optimizer: Any = sgd
    made: Any = layers
    words: bool = False
    late: int = 0
    max_norm: float | None = None
    declared: bool = True
    saved: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    costs: dict[str, Any] = field(default_factory=dict)


def tied(count: int, seed: int = 0) -> list[nn.Module]:
    """The embedding is read again at the end."""
    return words(count, seed, tied=True)


def sparse(count: int, seed: int = 0) -> list[nn.Module]:
    """Gradients of the embedding are rows."""
    return words(count, seed, sparse=True)


CASES: dict[str, Case] = {
    "breadth-first": Case("breadth-first", 4, max_norm=0.05),
    "fold3d": Case("fold3d", 4, options={"share": 0.4}, saved=True),
    "fold3d adam": Case("fold3d", 6, optimizer=adam, micro_batches=2, saved=True),
    "fold3d recorded": Case("fold3d", 4, declared=False),
    "fast-forward": Case("fast-forward", 2, declared=False),
    "modulo": Case("modulo", 5),
    "zero-bubble": Case("zero-bubble", 2),
    "interleaved": Case("interleaved", 4, optimizer=adam),
    "1f1b": Case("1f1b", 4, replicas=1),
    "gpipe": Case("gpipe", 4, replicas=1),
    "dualpipe-v": Case("dualpipe-v", 4, micro_batches=4),
    "deep": Case("breadth-first", 8, replicas=1),
    "deep fast-forward": Case("fast-forward", 4, replicas=1),
    "own": Case(crossed(4), 4),
    "mixed": Case("fold3d", 4, made=mixed, optimizer=adam, micro_batches=2),
    "tied": Case("breadth-first", 4, made=tied, words=True, max_norm=0.1),
    "tied fold3d": Case("fold3d", 4, made=tied, words=True, saved=True),
    "tied v": Case("dualpipe-v", 4, made=tied, words=True),
    "trirace": Case("trirace", 2, late=1, saved=True, options={"chunk_bytes": 60}),
    "trirace deep": Case("trirace", 4, replicas=1, late=1, micro_batches=5, optimizer=adam, saved=True),
    "trirace waits": Case("trirace", 2, late=1, options={"delayed": False, "classes": False}),
    "trirace sparse": Case(
        "trirace", 2, late=1, made=sparse, words=True, optimizer=plain_sgd, saved=True, costs={"embedding_bytes": 264}
    ),
    "trirace tied": Case(
        "trirace", 2, late=1, made=tied, words=True, saved=True, costs={"embedding_bytes": 264},
        options={"chunk_bytes": 100},
    ),
}  # fmt: skip


def iteration_of(name: str, case: Case) -> int:
    """The iteration in the name of a task."""
    word = name.split()[-1]
    return (
        int(word)
        if " of " in name
        else int(word[word.index("F" if "F" in word else "B") + 1 :]) // case.micro_batches
    )


def distance(own: PipelineTraining, stages: Sequence[nn.Module], model: Chain) -> float:
    """The largest difference of parameters of the stages of this rank."""
    return max(
        float((mine.detach() - theirs.detach()).abs().max())
        for number in own.stages
        for mine, theirs in zip(stages[number].parameters(), model.stages[number].parameters(), strict=True)
    )


def trained(name: str, case: Case, rank: int, folder: Path) -> dict[str, Any]:
    """A training beside a plain one."""
    loss = nn.functional.cross_entropy if case.words else nn.functional.mse_loss
    rows = case.replicas * case.micro_batches * ROWS
    batches = [batch(step, rows, of_words=case.words) for step in range(STEPS)]
    model, losses = alone(
        case.made(case.stages), case.optimizer, loss, batches, late=case.late, max_norm=case.max_norm
    )
    workload = None
    if case.declared:
        costs = StageCosts(
            forward=[1.0] * case.stages,
            backward=[2.0] * case.stages,
            bytes=[300.0] * case.stages,
            network=(60.0, 0.1),
            transfer=0.25,
            **case.costs,
        )
        workload = stage_workload(costs, case.replicas)

    def begin() -> tuple[list[nn.Module], PipelineTraining]:
        stages = case.made(case.stages, seed=0 if rank < 4 // case.replicas else 7)
        made = pipeline(
            stages,
            case.optimizer,
            loss,
            case.order,
            micro_batches=case.micro_batches,
            replicas=case.replicas,
            max_norm=case.max_norm,
            workload=workload,
            network=(1e8, 1e-4),
            **case.options,
        )
        return stages, made

    stages, own = begin()
    mine = slice(own.layout.replica * rows // case.replicas, (own.layout.replica + 1) * rows // case.replicas)
    rates = [torch.optim.lr_scheduler.StepLR(each, 5, 0.5) for each in own.optimizers.values()]
    state: dict[str, Any] = {}
    worst = 0.0
    keys: list[str] = []
    for step, (x, y) in enumerate(batches):
        value = own.step(x[mine], y[mine])
        for each in rates:
            each.step()
        if value is not None and case.replicas == 1:
            worst = max(worst, abs(float(value) - losses[step]))
        if case.saved and step == 12:
            torch.save(own.state_dict(), folder / f"{name}-{rank}.pt")
            keys = list(own.state_dict()["model"])
    own.flush()
    x, _ = batches[0]
    given = own.evaluate(x)
    found: dict[str, Any] = {
        "distance": distance(own, stages, model),
        "evaluated": 0.0 if given is None else float((given - model(x)).detach().abs().max()),
        "worst": worst,
        "predicted": own.predicted_seconds,
        "stages": sorted(own.stages),
        "events": own.record.events,
        "keys": keys,
    }
    graph = own.plan.iterations(STEPS)
    device = own.layout.device
    if case.declared:
        # A checkpoint drains the pipeline, and the simulated one is over after the last iteration.
        until = 12 if case.saved else STEPS - 1
        stream = f"NIC of node {device}" if case.late else f"network {device}"
        for what, ran, said in (
            ("passes", own.record.passes, simulated(graph, f"device {device}", PASSES)),
            ("sums", own.record.sums, simulated(graph, stream, ["dp all_reduce"])),
        ):
            found[what] = [each for each in ran if iteration_of(each, case) < until]
            found[f"simulated {what}"] = [each for each in said if iteration_of(each, case) < until]
    own.close()
    if case.saved:
        again, resumed = begin()
        rates = [torch.optim.lr_scheduler.StepLR(each, 5, 0.5) for each in resumed.optimizers.values()]
        state = torch.load(folder / f"{name}-{rank}.pt")
        resumed.load_state_dict(state)
        for each in rates:
            each.last_epoch = 13
        for x, y in batches[13:]:
            resumed.step(x[mine], y[mine])
            for each in rates:
                each.step()
        resumed.flush()
        found["resumed"] = distance(resumed, again, Chain(stages))
        resumed.close()
    return found


QUICK = ("breadth-first", "fold3d", "fast-forward", "own", "deep", "tied fold3d", "trirace", "trirace sparse")


def quick(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """A training of each kind."""
    assert size == 4
    found: dict[str, Any] = {name: trained(name, CASES[name], rank, folder) for name in QUICK}
    found["refused"] = refused()
    found["handoffs"] = handoffs(rank, size)
    return found


def rest(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """All others."""
    assert size == 4
    found: dict[str, Any] = {
        name: trained(name, case, rank, folder) for name, case in CASES.items() if name not in QUICK
    }
    found["handoffs"] = handoffs(rank, size)
    return found


def refused() -> list[str]:
    """Messages of what cannot be done."""
    said = []
    loss = nn.functional.mse_loss

    def attempt(*given: Any, **settings: Any) -> PipelineTraining:
        return pipeline(*given, **{"micro_batches": 2, "replicas": 2, **settings})

    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)  # type: ignore[no-any-return]

    rows = torch.ones(4, 6)
    for wrong in (
        lambda: attempt(layers(4), sgd, loss, "fold3d", max_norm=1.0),
        lambda: attempt(layers(3), sgd, loss, "1f1b"),
        lambda: attempt(layers(4), sgd, loss, "sideways"),
        lambda: attempt(layers(4), sgd, loss, replicas=3),
        lambda: attempt(layers(4), sgd, loss, ranks=[[0, 1], [1, 2]]),
        lambda: attempt(layers(4), torch.optim.LBFGS, loss),
        lambda: attempt([Unused() for _ in range(2)], sgd, loss).step(rows, rows),
        lambda: attempt(layers(2), sgd, loss).step(rows[:3], rows[:3]),
        lambda: attempt(words(2, sparse=True), plain_sgd, nn.functional.cross_entropy).step(
            torch.ones(4, dtype=torch.int64), torch.ones(4, dtype=torch.int64)
        ),
    ):
        try:
            wrong()
            said.append("")
        except InputError as error:
            said.append(str(error))
    return said


def killed(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Rank 1 dies in mid-training."""
    del folder
    own = pipeline(
        layers(3), sgd, nn.functional.mse_loss, "1f1b", micro_batches=2, replicas=size // 3, timeout_s=120
    )
    try:
        for step in range(STEPS):
            if step == 8 and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            x, y = batch(step, 4, of_words=False)
            own.step(x, y)
        own.flush()
    except CheckError as error:
        return {"said": str(error), "step": step}
    return {"said": "", "step": STEPS}


if __name__ == "__main__":
    main({"quick": quick, "rest": rest, "killed": killed})
