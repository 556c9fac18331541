"""A small training whose every part has a state: dropout, batch norm, momentum or moments, a scaler, data order."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from coppice.training.torch import AutoLRS

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=1e-4),
    "adam": lambda groups: torch.optim.AdamW(groups, lr=0.01, amsgrad=True),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.01),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01, momentum=0.5, centered=True),
    "adam with a tensor as rate": lambda groups: torch.optim.Adam(
        groups, lr=torch.tensor(0.01), foreach=False
    ),
}


class Data:
    """Batches by number; it can be turned back."""

    def __init__(self) -> None:
        self.position = 0

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(self.position)
        self.position += 1
        x = torch.randn(16, 6, generator=generator)
        return x, (x[:, :1] * x[:, 1:2]).tanh()

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class SmallTraining:
    """A model, its optimizer, data and AutoLRS, and one step of them."""

    def __init__(self, optimizer: str = "sgd", *, tuned: bool = True, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1)
        )
        first, last = self.model[0], self.model[4]
        groups = [
            {"params": first.parameters()},
            {"params": [*self.model[1].parameters(), *last.parameters()]},
        ]
        self.optimizer = OPTIMIZERS[optimizer](groups)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=7)
        self.data = Data()
        defaults: dict[str, Any] = {
            "lr_range": (1e-3, 0.3),
            "tau": 60,
            "tau_max": 120,
            "candidates": 3,
            "warmup_steps": 7,
            "kept_steps": 370,
            "data": self.data,
            "scaler": self.scaler,
            "val_fn": self.validate,
            "progress": False,
        }
        self.tuner = AutoLRS(self.model, self.optimizer, **(defaults | options)) if tuned else None
        self.losses: list[float] = []
        self.rates: list[float] = []

    def validate(self) -> float:
        """Draws random numbers and leaves the model in another mode, as careless functions do."""
        self.model.eval()
        x = torch.randn(8, 6)
        with torch.no_grad():
            return float(self.model(x).square().mean() + 0.1)

    def step(self) -> None:
        x, y = self.data.next()
        self.rates.append(float(self.optimizer.param_groups[0]["lr"]))
        loss = (self.model(x) - y).square().mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.losses.append(float(loss.detach()))
        if self.tuner is not None:
            self.tuner.step(loss)

    def state(self) -> dict[str, Any]:
        """Everything, copied."""
        return fingerprint(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                "data": self.data.state_dict(),
                "random": torch.get_rng_state(),
            }
        )


def fingerprint(value: Any) -> Any:
    """A deep copy without shared memory."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: fingerprint(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [fingerprint(item) for item in value]
    return value


def same(a: Any, b: Any) -> bool:
    """Whether two states are equal bit for bit, types included."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b) or (a != a and b != b)
