"""AutoLRS as a callback of Lightning, for whoever has it; this module needs it only when the callback is made."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from coppice.errors import InputError, MissingExtraError
from coppice.training.torch.autolrs import AutoLRS

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def lightning_callback(**options: Any) -> Any:
    """A Lightning callback that runs AutoLRS: ``Trainer(callbacks=[lightning_callback(lr_range=(1e-3, 1.0))])``.

    It trains with the learning rates that are found, keeps the search in Lightning's checkpoints, and stops the
    trainer when ``kept_steps`` are reached. One optimizer, automatic optimization, no other scheduler; batches of
    accumulated gradients are averaged by themselves. ``callback.tuner`` is the :class:`AutoLRS`.

    Args:
        options: Arguments of :class:`AutoLRS` but model, optimizer and ``accumulate``; ``val_fn`` is called with the
            Lightning module.

    Raises:
        MissingExtraError: If Lightning is not installed.
    """
    package = next((name for name in _PACKAGES if find_spec(name.partition(".")[0]) is not None), None)
    if package is None:
        raise MissingExtraError("this needs the package lightning: run `pip install lightning`.")
    base: Any = import_module(package).Callback
    return type("AutoLRSCallback", (_Adapter, base), {})(options)


class _Adapter:
    """The hooks; Lightning's base class is mixed in when the callback is made."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.tuner: AutoLRS | None = None
        self._options = options
        self._loaded: dict[str, Any] | None = None
        self._losses: list[Any] = []
        self._steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Build the search, when weights and optimizer are loaded."""
        if len(trainer.optimizers) != 1 or trainer.lr_scheduler_configs:
            raise InputError(
                f"expected one optimizer and no scheduler, found {len(trainer.optimizers)} and "
                f"{len(trainer.lr_scheduler_configs)}: AutoLRS sets the learning rate alone."
            )
        options = dict(self._options)
        if options.get("val_fn") is not None:
            validate = options["val_fn"]
            options["val_fn"] = lambda: validate(pl_module)
        if getattr(trainer, "scaler", None) is not None:
            options.setdefault("scaler", trainer.scaler)
        self.tuner = AutoLRS(pl_module, trainer.optimizers[0], **options)
        if self._loaded is not None:
            self.tuner.load_state_dict(self._loaded)
            self._loaded = None
        self._steps = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:  # noqa: ARG002
        """A batch is done; a step may be."""
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        self._losses.append(loss.detach())
        if trainer.global_step == self._steps or self.tuner is None:
            return
        self._steps = trainer.global_step
        mean = sum(self._losses[1:], start=self._losses[0]) / len(self._losses)
        self._losses = []
        self.tuner.step(mean)
        if self.tuner.finished:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Leave no trial behind in the model."""
        if self.tuner is not None:
            self.tuner.finish()

    def state_dict(self) -> dict[str, Any]:
        """What Lightning's checkpoints hold of the search."""
        return {} if self.tuner is None else self.tuner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What a checkpoint held; it is used when training starts."""
        self._loaded = state_dict or None
