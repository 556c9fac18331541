"""The Lightning callback: against Lightning itself where it is installed, and its hooks against a stand-in."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from coppice.errors import InputError, MissingExtraError  # noqa: E402
from coppice.training.torch import autolrs, lightning_callback  # noqa: E402

OPTIONS = {"tau": 50, "tau_max": 50, "candidates": 2, "kept_steps": 50, "progress": False}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    package, module = ModuleType("lightning"), ModuleType("lightning.pytorch")
    module.Callback = object
    monkeypatch.setitem(sys.modules, "lightning", package)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", module)
    monkeypatch.setattr(autolrs, "find_spec", lambda _: object())


def trainer_of(model: torch.nn.Module) -> SimpleNamespace:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return SimpleNamespace(
        optimizers=[optimizer], lr_scheduler_configs=[], global_step=0, should_stop=False, scaler=None
    )


def train(
    callback: object, trainer: SimpleNamespace, model: torch.nn.Module, *, steps: int, accumulate: int = 1
) -> list:
    rates = []
    for _ in range(steps):
        for part in range(accumulate):
            trainer.global_step += part == accumulate - 1
            callback.on_train_batch_end(trainer, model, {"loss": torch.tensor(1.0 + part)}, None, 0)
        rates.append(trainer.optimizers[0].param_groups[0]["lr"])
        if trainer.should_stop:
            break
    return rates


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("accumulate", [1, 3])
def test_steps_are_optimizer_steps_and_the_trainer_stops(accumulate: int) -> None:
    model = torch.nn.Linear(1, 1)
    callback, trainer = lightning_callback(**OPTIONS), trainer_of(model)
    callback.on_train_start(trainer, model)
    train(callback, trainer, model, steps=1000, accumulate=accumulate)
    assert trainer.should_stop
    assert callback.tuner.finished
    assert trainer.global_step == callback.tuner.total_steps == 60
    callback.on_train_end(trainer, model)


@pytest.mark.usefixtures("stand_in")
def test_checkpoints_go_on() -> None:
    model = torch.nn.Linear(1, 1)
    callback, trainer = lightning_callback(**OPTIONS), trainer_of(model)
    callback.on_train_start(trainer, model)
    train(callback, trainer, model, steps=7)
    state = callback.state_dict()
    again = lightning_callback(**OPTIONS)
    again.load_state_dict(state)
    fresh = trainer_of(model)
    again.on_train_start(fresh, model)
    assert again.tuner.total_steps == 7
    assert train(again, fresh, model, steps=99) == train(callback, trainer, model, steps=99)


@pytest.mark.usefixtures("stand_in")
def test_another_scheduler_is_refused() -> None:
    model = torch.nn.Linear(1, 1)
    trainer = trainer_of(model)
    trainer.lr_scheduler_configs = [object()]
    with pytest.raises(InputError, match="one optimizer and no scheduler"):
        lightning_callback(**OPTIONS).on_train_start(trainer, model)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autolrs, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match="pip install lightning"):
        lightning_callback()


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_with_lightning_itself() -> None:
    pytorch = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

    environments = pytest.importorskip("lightning.pytorch.plugins.environments")

    class Module(pytorch.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            return (self.layer(batch[0]) - 1).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 2)), batch_size=4)
    callback = lightning_callback(**OPTIONS)
    trainer = pytorch.Trainer(
        callbacks=[callback],
        max_epochs=100,
        accelerator="cpu",
        plugins=[environments.LightningEnvironment()],  # looking for others may fail on MPI
        accumulate_grad_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Module(), data)
    assert callback.tuner.finished
    assert trainer.global_step == callback.tuner.total_steps == 60
