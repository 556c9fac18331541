"""One rank of a training whose policy tries settings while it trains; arguments as in overlap_ranks.py."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from overlap_ranks import NETWORK, OPTIMIZERS, ROWS, batch, chain, distance, main
from torch import nn

from coppice.errors import InputError
from coppice.training.torch import schedule

CASES: list[tuple[str, bool | str, dict[str, Any]]] = [
    ("bytescheduler", "training", {}),
    ("dear", True, {}),
    ("ddp", "training", {}),
    ("p3", True, {"transport": "all_reduce"}),
    ("tictac", "training", {"order": "backward"}),
    ("gradientflow", "training", {"ratio": 0.999}),
    ("priority", "simulation", {}),
    ("serial", True, {}),
]
TRIALS = 4
RECORDED = 3
STEPS = RECORDED + 4 * TRIALS + 3


def train(model: nn.Module, optimizer: Any, steps: range, rank: int, size: int) -> list[dict[str, Any]]:
    """Steps of one rank, and what it carried out in each."""
    mine, seen = slice(rank * ROWS, (rank + 1) * ROWS), []
    schedule = optimizer.schedule
    for step in steps:
        x, y = batch(step, size)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[mine]), y[mine]).backward()
        seen.append({"settings": repr(schedule.policy.settings), "messages": len(schedule.plan.messages)})
        optimizer.step()
        if step in (8, 14, 19):
            optimizer.flush()
            planned = {
                stream: [schedule.plan.messages[each].name for each in order]
                for stream, order in schedule.plan.order.items()
            }
            assert schedule.launched == planned
    optimizer.flush()
    return seen


def tuning(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Every case beside plain training, and resumed in the midst of its trials."""
    del folder
    plain = chain()
    reference = OPTIMIZERS["sgd"](plain.parameters())
    for step in range(STEPS):
        x, y = batch(step, size)
        reference.zero_grad()
        nn.functional.mse_loss(plain(x), y).backward()
        reference.step()
    found: dict[str, Any] = {}
    for name, mode, settings in CASES:
        options = {
            "tune": mode,
            "trials": TRIALS,
            "window": 1,
            "recorded": RECORDED,
            "network": NETWORK,
            **settings,
        }
        model = chain(rank)
        model, optimizer = schedule(model, OPTIMIZERS["sgd"](model.parameters()), name, **options)
        middle = RECORDED + 6
        seen = train(model, optimizer, range(middle), rank, size)
        saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        during = optimizer.schedule.tuning
        seen += train(model, optimizer, range(middle, STEPS), rank, size)
        other = chain(7)
        other, again = schedule(other, OPTIMIZERS["sgd"](other.parameters()), name, **options)
        other.load_state_dict(saved["model"])
        again.load_state_dict(saved["optimizer"])
        train(other, again, range(middle, STEPS), rank, size)
        trials = optimizer.schedule.trials
        found[name] = {
            "distance": distance(model, plain),
            "resumed": distance(other, model),
            "seen": seen,
            "trials": [[repr(sorted(each.settings.items(), key=str)), each.seconds] for each in trials],
            "kept": again.schedule.trials[:1] == trials[:1],
            "least": min(each.seconds for each in trials) if trials else 0.0,
            "during": during,
            "after": optimizer.schedule.tuning,
            "keys": sorted(saved["optimizer"]),
        }
        optimizer.close()
        again.close()
    found["refused"] = []
    for wrong in ({"tune": "measure"}, {"tune": True, "trials": 0}, {"tune": True, "window": 0}):
        try:
            schedule(chain(), OPTIMIZERS["sgd"](plain.parameters()), "ddp", network=NETWORK, **wrong)
        except InputError as error:
            found["refused"].append(str(error))
    return found


if __name__ == "__main__":
    main({"tuning": tuning})
