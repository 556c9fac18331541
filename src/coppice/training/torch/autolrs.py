"""AutoLRS for torch: search the learning-rate schedule during training, in a loop or as a Lightning callback.

Lightning is needed only when the callback is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
import torch.distributed as dist

from coppice.decoding import decodable
from coppice.errors import InputError, MissingExtraError
from coppice.training.autolrs.controller import READ_EVERY, Controller
from coppice.training.autolrs.log import (
    Action,
    EventLog,
    Method,
    ProgressLine,
    SearchDecision,
    SearchPhase,
    Settings,
    State,
)
from coppice.training.torch import checkpoints
from coppice.training.torch.core.agree import World
from coppice.training.torch.losses import LearningRates, LossBuffer
from coppice.training.torch.snapshot import (
    Snapshots,
    Training,
    pack,
    preserved_random_state,
    random_state,
    set_random_state,
    unpack,
)

VERSION = 1
Policy = Literal["restore", "keep"]


class AutoLRS:
    """Search, restore and exploit learning rates within an unchanged training loop.

    Call :meth:`step` after every ``optimizer.step()``. Between two calls the model may go back to where a trial began:
    that is the search. Before stopping in the middle of one, call :meth:`finish`, or give ``kept_steps`` and stop when
    :attr:`finished` is true. In a process group all ranks build it and call its methods together; rank 0 decides.

    What goes back with the weights and the optimizer's state is a policy. Random numbers do, so that all trials and
    the stage itself draw the same ones, and the training that is kept is the training that the found schedule alone
    would have given. So do buffers (batch norm). The data goes on, because a ``for`` loop cannot be turned back: every
    trial sees fresh batches. To turn it back too, give a stateful loader as ``data``.

    Args:
        model: The module; DDP, FSDP2 and other DTensor models are captured shard by shard.
        optimizer: Any optimizer that keeps its state in ``state`` and ``param_groups``. The rate that is found is the
            one of its first group; the other groups keep the ratio to it that they have now.
        val_fn: Returns the validation loss (a number, or a tensor of one) of the model as it is; it is called a few
            times per trial once stages have their full length. Random numbers and training modes are put back after
            it. None judges trials by the training loss throughout.
        lr_range: Smallest and largest learning rate.
        tau: Steps of the first stage.
        tau_max: Steps of the longest stage.
        candidates: Learning rates tried before each stage, for a tenth of its steps each.
        warmup_steps: Steps of a linear rise before the first search.
        warmup_lr: Learning rate at the end of the warm-up; by default the optimizer's present one.
        kept_steps: Length of the training that is kept, without trials; None has no end.
        accumulate: Micro-batches per optimizer step: :meth:`step` is then called after each of them.
        scaler: Gradient scaler, part of the snapshot.
        data: Loader with ``state_dict`` and ``load_state_dict`` that take effect with the next batch; None lets the
            data go on.
        also: Further things by name that go back with the model: objects with ``state_dict`` and ``load_state_dict``
            (averages of weights), or random generators.
        rng: ``restore`` or ``keep`` global random numbers (Python, NumPy, torch); ``keep`` never touches them.
        buffers: ``restore`` or ``keep`` the model's buffers.
        snapshots: Directory for the snapshot that trials go back to; None keeps it in the memory of the CPU.
        log: File for the log of every trial and stage, for ``coppice train lr-report``; written by rank 0.
        progress: Show a bar on standard error, if that is a terminal.
        method: ``robust``; ``published`` to search as the published code does; or ``annealed``: one stage whose rate
            falls linearly to zero at ``kept_steps``, found by ten small copies of it (``tau`` and ``tau_max`` do not
            count then). It is the best one where the length of the training is known.
        divergence: A loss above the very first one by this factor has diverged.
        seed: Seed of the proposals.
        group: Process group whose ranks train together; by default all of them.

    Raises:
        InputError: If an argument cannot be used.

    Examples:
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> tuner = AutoLRS(model, optimizer, lr_range=(1e-3, 1.0), tau=100, kept_steps=100)
        >>> while not tuner.finished:
        ...     optimizer.zero_grad()
        ...     loss = (model(torch.ones(4, 2)) - 1).square().mean()
        ...     loss.backward()
        ...     optimizer.step()
        ...     tuner.step(loss)
        >>> tuner.phase, tuner.kept_steps, tuner.search_steps
        (<SearchPhase.DONE: 'done'>, 100, 100)
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        val_fn: Callable[[], torch.Tensor | float] | None = None,
        lr_range: tuple[float, float] = (1e-4, 1.0),
        tau: int = 1000,
        tau_max: int = 8000,
        candidates: int = 10,
        warmup_steps: int = 0,
        warmup_lr: float | None = None,
        kept_steps: int | None = None,
        accumulate: int = 1,
        scaler: Any = None,
        data: Any = None,
        also: Mapping[str, Any] | None = None,
        rng: Policy = "restore",
        buffers: Policy = "restore",
        snapshots: str | os.PathLike[str] | None = None,
        log: str | os.PathLike[str] | None = None,
        progress: bool = True,
        method: Method | str = Method.ROBUST,
        divergence: float = 3.0,
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        _check(rng=rng, buffers=buffers, method=method, accumulate=accumulate)
        self._rates = LearningRates(optimizer)
        self.settings = Settings(
            lr_range=(float(lr_range[0]), float(lr_range[1])),
            tau=tau,
            tau_max=tau_max,
            candidates=candidates,
            warmup_steps=warmup_steps,
            warmup_lr=self._rates.initial if warmup_lr is None else float(warmup_lr),
            kept_steps=kept_steps,
            validation=val_fn is not None,
            divergence=divergence,
            method=Method(method),
            seed=seed,
        )
        self._world = World(group)
        self._val_fn = val_fn
        self._training = Training(
            model=model,
            optimizer=optimizer,
            also=_things(also, scaler=scaler, data=data),
            buffers=buffers == "restore",
            rng=rng == "restore",
        )
        file = None if snapshots is None else Path(snapshots) / f"snapshot-{self._world.rank}.pt"
        self._snapshots = Snapshots(self._training, file=file)
        self._controller = Controller(self.settings)
        self._controller.state = msgspec.msgpack.decode(
            self._world.agree(lambda: msgspec.msgpack.encode(self._controller.state)), type=decodable(State)
        )
        self._losses = LossBuffer(capacity=READ_EVERY, accumulate=accumulate)
        self._log = EventLog(log, self.settings) if log is not None and self._world.decides else None
        self._progress = ProgressLine(self.settings) if progress and self._world.decides else None
        self._act(self._controller.first)

    @property
    def phase(self) -> SearchPhase:
        """Purpose of the current steps: ``warmup``, ``search``, ``exploit`` or ``done``."""
        return self._controller.phase

    @property
    def finished(self) -> bool:
        """Whether the kept training is complete."""
        return self.phase is SearchPhase.DONE

    @property
    def lr(self) -> float:
        """Learning rate of the next step (first group)."""
        return self._rates.current

    @property
    def stage(self) -> int:
        """Number of the current stage, from 0."""
        return self._controller.state.stage

    @property
    def kept_steps(self) -> int:
        """Number of steps in the model: warm-up and stages, without trials."""
        state = self._controller.state
        under_way = 0 if self.phase is SearchPhase.SEARCH else state.done + self._losses.steps
        return state.kept + under_way

    @property
    def search_steps(self) -> int:
        """Number of trial steps."""
        state = self._controller.state
        return state.searched + (state.done + self._losses.steps if self.phase is SearchPhase.SEARCH else 0)

    @property
    def total_steps(self) -> int:
        """Number of optimizer steps: kept, trials, and failed stages."""
        return self.kept_steps + self.search_steps + self._controller.state.lost

    def get_last_lr(self) -> list[float]:
        """Learning rate of every parameter group, as in torch's schedulers."""
        return self._rates.all()

    def step(self, loss: torch.Tensor | float) -> None:
        """Record the last optimizer step, and set the learning rate of the next.

        Args:
            loss: Training loss of the step (of the micro-batch, with ``accumulate``); a tensor is not waited for.

        Raises:
            CheckError: If training fails at every learning rate.
            InputError: If the loss is not one number.
        """
        controller = self._controller
        if controller.state.phase is SearchPhase.DONE or not self._losses.add(loss):
            return
        if self._losses.steps == self._next_event:
            self._observe()
        elif controller.lr_moves:
            self._rates.set(controller.lr_at(controller.state.done + self._losses.steps))

    def finish(self) -> None:
        """End the training; during a search the model is restored first."""
        if not self.finished:
            self._controller.follow(self._world.mean(self._losses.read()))
            self._act(self._controller.stop())

    def state_dict(self) -> dict[str, Any]:
        """State of the search with its snapshot: CPU tensors and plain values.

        In a process group every rank has its own. The snapshot's memory is used again by the next one: write or copy
        it before the next step. To save a whole training, see :meth:`save`.
        """
        searching = self.phase is not SearchPhase.WARMUP and self.phase is not SearchPhase.DONE
        return {
            "version": VERSION,
            "settings": msgspec.json.encode(self.settings).decode(),
            "state": torch.frombuffer(
                bytearray(msgspec.msgpack.encode(self._controller.state)), dtype=torch.uint8
            ),
            "losses": self._losses.state(),
            "ratios": list(self._rates.ratios),
            "lines": 0 if self._log is None else self._log.lines,
            "snapshot": self._snapshots.packed() if searching else None,
            "random": pack(random_state()) if self._training.rng else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from :meth:`state_dict`; the caller loads weights and optimizer, before or after.

        Raises:
            InputError: If it was saved with other settings, or is no such state.
        """
        settings = _settings_of(state)
        if settings != self.settings:
            names = Settings.__struct_fields__
            name = next(name for name in names if getattr(settings, name) != getattr(self.settings, name))
            raise InputError(
                f"expected the settings that the state was saved with, found another {name}: build AutoLRS alike."
            )
        self._rates.ratios = list(state["ratios"])
        self._controller.state = msgspec.msgpack.decode(
            state["state"].numpy().tobytes(), type=decodable(State)
        )
        self._losses.load(state["losses"])
        if self._log is not None:
            self._log.resume(state["lines"])
        if state["snapshot"] is not None:
            self._snapshots.put(state["snapshot"])
        if state["random"] is not None and self._training.rng:
            set_random_state(unpack(state["random"]))
        self._prepare()

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Save a checkpoint of the whole training, one part per rank: model, optimizer and search.

        The new checkpoint replaces the old one only when every rank has written its part.

        Raises:
            InputError: If a file cannot be written, or a step is half done (gradients are not saved).
        """
        if self._losses.parts:
            parts = f"{self._losses.parts} of {self._losses.accumulate} micro-batches"
            raise InputError(f"expected a whole step, found {parts}: save after optimizer.step().")
        content = {"training": self._training.capture(), "tuner": self.state_dict()}
        checkpoints.save(content, Path(directory), number=self.total_steps, world=self._world)

    def load(self, directory: str | os.PathLike[str]) -> bool:
        """Resume from the last checkpoint of :meth:`save`; return whether there was one.

        Raises:
            InputError: If it belongs to another training, or was written by another number of ranks.
        """
        content = checkpoints.load(Path(directory), world=self._world)
        if content is None:
            return False
        self._training.restore(content["training"], everything=True)
        self.load_state_dict(content["tuner"])
        return True

    def _observe(self) -> None:
        """Pass the losses on, and execute the decision."""
        losses = self._losses.read()
        values = list(losses)
        due = self._controller.validation_due(len(losses))
        if due:
            values.append(self._validate())
        values = self._world.mean(values)
        validation = values.pop() if due else None
        self._act(self._world.observe(self._controller, values, validation))

    def _validate(self) -> float:
        """Validation loss, without side effects on the training."""
        if self._val_fn is None:
            raise InputError("expected a validation function, found none: give val_fn.")
        modes = [(module, module.training) for module in self._training.model.modules()]
        if not self._training.rng:
            loss = self._val_fn()
        else:
            with preserved_random_state():
                loss = self._val_fn()
        for module, mode in modes:
            module.training = mode
        return float(loss.detach() if isinstance(loss, torch.Tensor) else loss)

    def _act(self, decision: SearchDecision) -> None:
        if decision.action is Action.SAVE:
            self._snapshots.save()
        elif decision.action is Action.RESTORE:
            self._snapshots.restore()
        if self._log is not None:
            self._log.write(decision.events)
        self._prepare()

    def _prepare(self) -> None:
        """Set the rate of the next step, and when losses are due next."""
        controller = self._controller
        self._next_event = controller.steps_to_event
        self._rates.set(controller.lr_at(controller.state.done + self._losses.steps))
        if self._progress is not None:
            self._progress.show(controller.state)


def _check(*, rng: str, buffers: str, method: str, accumulate: int) -> None:
    for name, value, choices in (
        ("rng", rng, ("restore", "keep")),
        ("buffers", buffers, ("restore", "keep")),
        ("method", str(method), tuple(map(str, Method))),
    ):
        if value not in choices:
            raise InputError(
                f"expected {name} to be one of {', '.join(choices)}, found {value!r}: choose one."
            )
    if accumulate < 1:
        raise InputError(
            f"expected accumulate >= 1 micro-batches per step, found {accumulate}: leave it out for one."
        )


def _things(also: Mapping[str, Any] | None, **named: Any) -> dict[str, Any]:
    """Everything whose state is restored, by name."""
    things = {name: thing for name, thing in named.items() if thing is not None} | dict(also or {})
    for name, thing in things.items():
        pairs = (("state_dict", "load_state_dict"), ("get_state", "set_state"))
        if not any(hasattr(thing, get) and hasattr(thing, put) for get, put in pairs):
            raise InputError(
                f"expected {name!r} to have state_dict and load_state_dict, found {type(thing).__name__}: wrap it."
            )
    return things


def _settings_of(state: Mapping[str, Any]) -> Settings:
    try:
        if state["version"] == VERSION:
            return msgspec.json.decode(state["settings"], type=decodable(Settings))
    except (KeyError, TypeError, msgspec.MsgspecError):
        pass
    raise InputError(
        f"expected a state of AutoLRS, version {VERSION}, found something else: load what state_dict returned."
    )


_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def lightning_callback(**options: Any) -> Any:
    """Lightning callback for AutoLRS: ``Trainer(callbacks=[lightning_callback(lr_range=(1e-3, 1.0))])``.

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
    """Hooks; Lightning's base class is mixed in when the callback is made."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.tuner: AutoLRS | None = None
        self._options = options
        self._loaded: dict[str, Any] | None = None
        self._losses: list[Any] = []
        self._steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Build the search once weights and optimizer are loaded."""
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
        """Count a batch, and possibly a step."""
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
        """Restore the model if a trial is unfinished."""
        if self.tuner is not None:
            self.tuner.finish()

    def state_dict(self) -> dict[str, Any]:
        """State of the search for Lightning's checkpoints."""
        return {} if self.tuner is None else self.tuner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep a checkpoint's state until training starts."""
        self._loaded = state_dict or None
