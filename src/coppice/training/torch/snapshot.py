"""The state of a training in memory or a file: weights, buffers, optimizer, scaler, random numbers, what else has one.

What is captured is packed on the CPU; restoring overwrites tensors in place, so that references to parameters, fused
optimizers and captured graphs stay valid. Optimizer state is copied as it is: ``Optimizer.load_state_dict`` would cast
moments to the type of their parameter. Gradients are dropped: they belong to the steps that are taken back.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coppice.errors import InputError
from coppice.training.torch.checkpoints import load_file, save_file
from coppice.training.torch.packing import copy_into, pack, unpack

__all__ = ["Snapshots", "Training", "preserved_random_state", "random_state", "set_random_state"]

_cuda: Any = torch.cuda  # is_initialized has no types


@dataclass(frozen=True, kw_only=True)
class Training:
    """What a snapshot is of.

    Attributes:
        model: The module whose parameters and buffers are trained; sharded ones are captured shard by shard.
        optimizer: Its optimizer: whatever keeps its state in ``state`` and ``param_groups``.
        also: Further objects by name, with ``state_dict`` and ``load_state_dict``, or ``get_state`` and ``set_state``
            (random generators): a gradient scaler, a stateful loader, an average of weights.
        buffers: Buffers of the model, such as running means of batch norm, go back as well.
        rng: Global random numbers go back as well.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    also: Mapping[str, Any] = field(default_factory=dict)
    buffers: bool = True
    rng: bool = True

    def capture(self, reuse: dict[str, Any] | None = None) -> dict[str, Any]:
        """The state of everything, packed; memory of ``reuse`` is overwritten where it fits.

        Raises:
            InputError: If some state is not made of tensors and plain values.
        """
        tree = {
            "parameters": dict(self.model.named_parameters()),
            "loose": self._loose(),
            "buffers": dict(self.model.named_buffers()),
            "extra": _extra_state(self.model),
            "optimizer": self._optimizer_state(),
            "also": {name: _state_of(thing) for name, thing in self.also.items()},
            "random": random_state() if self.rng else {},
        }
        packed: dict[str, Any] = pack(tree, reuse)
        _finish_copies()
        return packed

    def restore(self, packed: dict[str, Any], *, everything: bool = False) -> None:
        """Put everything back as it was captured, bit for bit.

        Args:
            packed: What :meth:`capture` returned.
            everything: Put buffers back even if the policy keeps them: a training is resumed, not a trial undone.

        Raises:
            InputError: If model or optimizer are others than those that were captured.
        """
        _copy_named(dict(self.model.named_parameters()), packed["parameters"], "parameter")
        if self.buffers or everything:
            _copy_named(dict(self.model.named_buffers()), packed["buffers"], "buffer")
            extra = unpack(packed["extra"])
            for name, module in self.model.named_modules():
                if name in extra:
                    module.set_extra_state(extra[name])
        loose = self._loose()
        if len(loose) != len(packed["loose"]):
            raise InputError(
                _changed("the optimizer's parameters outside the model", len(packed["loose"]), len(loose))
            )
        for tensor, saved in zip(loose, packed["loose"], strict=True):
            copy_into(tensor, saved)
        self._restore_optimizer(packed["optimizer"])
        for name, thing in self.also.items():
            if name not in packed["also"]:
                msg = f"expected the state of {name!r} in the snapshot, found none: give `also` the same names as then."
                raise InputError(msg)
            _put_back(thing, unpack(packed["also"][name]))
        if self.rng and packed["random"]:
            set_random_state(unpack(packed["random"]))
        _finish_copies()

    def _loose(self) -> list[torch.Tensor]:
        """Parameters that the optimizer trains and the model does not hold."""
        known = {id(parameter) for parameter in self.model.parameters()}
        return [parameter for parameter in _parameters(self.optimizer) if id(parameter) not in known]

    def _optimizer_state(self) -> dict[str, Any]:
        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self.optimizer.param_groups
        ]
        state = [dict(self.optimizer.state.get(parameter, {})) for parameter in _parameters(self.optimizer)]
        sizes = [len(group["params"]) for group in self.optimizer.param_groups]
        return {"state": state, "groups": groups, "sizes": sizes}

    def _restore_optimizer(self, packed: dict[str, Any]) -> None:
        optimizer = self.optimizer
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        if sizes != packed["sizes"]:
            raise InputError(_changed("parameters per group of the optimizer", packed["sizes"], sizes))
        for group, saved in zip(optimizer.param_groups, packed["groups"], strict=True):
            for key, value in saved.items():
                group[key] = unpack(value, current=group.get(key))
        for parameter, saved in zip(_parameters(optimizer), packed["state"], strict=True):
            parameter.grad = None
            if saved:
                optimizer.state[parameter] = unpack(
                    saved, current=optimizer.state.get(parameter), like=parameter
                )
            else:
                optimizer.state.pop(parameter, None)
        for parameter in self.model.parameters():
            parameter.grad = None


class Snapshots:
    """The one snapshot that trials go back to, in memory or in a file.

    Args:
        training: What it is of.
        file: File that holds it, written atomically; None keeps it in memory (pinned, if the model is on a GPU).
    """

    def __init__(self, training: Training, *, file: Path | None) -> None:
        self.training = training
        self.file = file
        self._packed: dict[str, Any] | None = None

    def save(self) -> None:
        """Capture the training; interrupted in the middle, it leaves no snapshot rather than a mixed one."""
        old, self._packed = self._packed, None
        self.put(self.training.capture(old))

    def restore(self) -> None:
        """Put the training back.

        Raises:
            InputError: If nothing was captured, or the file is gone.
        """
        self.training.restore(self.packed())

    def packed(self) -> dict[str, Any]:
        """The snapshot; memory of it is used again by the next one.

        Raises:
            InputError: If nothing was captured, or the file is gone.
        """
        if self._packed is not None:
            return self._packed
        if self.file is None:
            msg = "expected a snapshot to go back to, found none: the training has not begun."
            raise InputError(msg)
        packed: dict[str, Any] = load_file(self.file)
        return packed

    def put(self, packed: dict[str, Any]) -> None:
        """Take a snapshot that was captured elsewhere."""
        if self.file is None:
            self._packed = packed
        else:
            save_file(packed, self.file)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _copy_named(tensors: dict[str, Any], saved: dict[str, Any], kind: str) -> None:
    if tensors.keys() != saved.keys():
        name = sorted(tensors.keys() ^ saved.keys())[0]
        msg = f"expected the {kind}s that were captured, found a difference at {name!r}: use the same model."
        raise InputError(msg)
    for name, tensor in tensors.items():
        copy_into(tensor, saved[name])


def _extra_state(model: torch.nn.Module) -> dict[str, Any]:
    """State of modules that is neither parameter nor buffer."""
    own = torch.nn.Module.get_extra_state
    return {
        name: module.get_extra_state()
        for name, module in model.named_modules()
        if type(module).get_extra_state is not own
    }


def _state_of(thing: Any) -> Any:
    return thing.state_dict() if hasattr(thing, "state_dict") else thing.get_state()


def _put_back(thing: Any, state: Any) -> None:
    if hasattr(thing, "load_state_dict"):
        thing.load_state_dict(state)
    else:
        thing.set_state(state)


def _changed(what: str, before: object, now: object) -> str:
    return f"expected {what} as captured ({before}), found {now}: do not change them while AutoLRS runs."


def _finish_copies() -> None:
    """Copies to and from pinned memory are asynchronous."""
    if _cuda.is_initialized():
        torch.cuda.synchronize()


def random_state() -> dict[str, Any]:
    """The state of all global generators, as plain values and CPU tensors."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 (the global one is meant)
    return {
        "python": (version, tuple(words), gauss),
        "numpy": (
            str(name),
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            position,
            has_gauss,
            cached,
        ),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if _cuda.is_initialized() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Put all global generators back to a state that :func:`random_state` returned."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Random numbers drawn inside are not missed outside."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)
