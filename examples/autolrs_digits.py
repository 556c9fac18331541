"""Train a classifier of handwritten digits with the learning rates that AutoLRS finds: seconds on a laptop.

pip install 'coppice[autolrs]' scikit-learn
python examples/autolrs_digits.py
coppice train lr-report digits.jsonl -o digits.html
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from coppice.training.torch import AutoLRS

torch.set_num_threads(1)
torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
y = torch.tensor(digits.target, dtype=torch.long)
order = torch.randperm(len(x))
train, validation, test = order[:1078], order[1078:1437], order[1437:]

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def validate() -> torch.Tensor:
    """Loss on images that are neither trained on nor tested on."""
    with torch.no_grad():
        return functional.cross_entropy(model(x[validation]), y[validation])


tuner = AutoLRS(
    model,
    optimizer,
    val_fn=validate,
    lr_range=(1e-3, 1.0),
    tau=200,
    tau_max=400,
    warmup_steps=50,
    kept_steps=1450,
    log="digits.jsonl",
)
while not tuner.finished:
    batch = train[torch.randint(len(train), (64,))]
    loss = functional.cross_entropy(model(x[batch]), y[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tuner.step(loss)

right = (model(x[test]).argmax(1) == y[test]).float().mean().item()
words = f"{tuner.kept_steps} steps kept, {tuner.search_steps} of trials"
print(f"{words}; {100 * right:.1f}% of the test digits are right")  # noqa: T201 (a script's output)
