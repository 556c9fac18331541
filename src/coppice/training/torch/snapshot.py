"""Snapshot of a training in memory or a file: weights, buffers, optimizer, scaler, random state, and other states.

What is captured is packed on the CPU; restoring overwrites tensors in place, so that references to parameters, fused
optimizers and captured graphs stay valid. Optimizer state is copied as it is: ``Optimizer.load_state_dict`` would cast
moments to the type of their parameter. Gradients are dropped: they belong to the steps that are taken back.

A tensor becomes ``{"__tensor__": cpu tensor, "device": name, "sharded": flag}``; of a DTensor every rank packs its own
shard. Dictionaries, lists and tuples are followed; anything else must be an immutable value. Packed trees hold nothing
that ``torch.load(weights_only=True)`` refuses.
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
from torch.distributed.tensor import DTensor

from coppice.errors import InputError
from coppice.training.torch.checkpoints import load_file, save_file

_cuda: Any = torch.cuda  # is_initialized has no types


@dataclass(frozen=True, kw_only=True)
class Training:
    """Objects that a snapshot covers."""

    # The module whose parameters and buffers are trained; sharded ones are captured shard by shard
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer  # Its optimizer: whatever keeps its state in `state` and `param_groups`
    # Further objects by name, with `state_dict` and `load_state_dict`, or `get_state` and `set_state` (random
    # generators): a gradient scaler, a stateful loader, an average of weights
    also: Mapping[str, Any] = field(default_factory=dict)
    buffers: bool = True  # Buffers of the model, such as running means of batch norm, go back as well
    rng: bool = True  # Global random numbers go back as well

    def capture(self, reuse: dict[str, Any] | None = None) -> dict[str, Any]:
        """Pack the state of everything, overwriting the memory of ``reuse`` where it fits."""
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
        """Restore a captured state, bit for bit.

        Args:
            packed: What :meth:`capture` returned.
            everything: Put buffers back even if the policy keeps them: a training is resumed, not a trial undone.
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
                raise InputError(
                    f"expected the state of {name!r} in the snapshot, found none: give `also` the same names as then."
                )
            _put_back(thing, unpack(packed["also"][name]))
        if self.rng and packed["random"]:
            set_random_state(unpack(packed["random"]))
        _finish_copies()

    def _loose(self) -> list[torch.Tensor]:
        """Parameters that the optimizer trains outside the model."""
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
    """The snapshot that trials return to, in memory or in a file.

    Args:
        training: What it is of.
        file: File that holds it, written atomically; None keeps it in memory (pinned, if the model is on a GPU).
    """

    def __init__(self, training: Training, *, file: Path | None) -> None:
        self.training = training
        self.file = file
        self._packed: dict[str, Any] | None = None

    def save(self) -> None:
        """Capture the training; an interrupted capture leaves no snapshot."""
        old, self._packed = self._packed, None
        self.put(self.training.capture(old))

    def restore(self) -> None:
        """Restore the training."""
        self.training.restore(self.packed())

    def packed(self) -> dict[str, Any]:
        """The snapshot; its memory is reused by the next one."""
        if self._packed is not None:
            return self._packed
        if self.file is None:
            raise InputError("expected a snapshot to go back to, found none: the training has not begun.")
        packed: dict[str, Any] = load_file(self.file)
        return packed

    def put(self, packed: dict[str, Any]) -> None:
        """Store a snapshot captured elsewhere."""
        if self.file is None:
            self._packed = packed
        else:
            save_file(packed, self.file)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _copy_named(tensors: dict[str, Any], saved: dict[str, Any], kind: str) -> None:
    if tensors.keys() != saved.keys():
        name = sorted(tensors.keys() ^ saved.keys())[0]
        raise InputError(
            f"expected the {kind}s that were captured, found a difference at {name!r}: use the same model."
        )
    for name, tensor in tensors.items():
        copy_into(tensor, saved[name])


def _extra_state(model: torch.nn.Module) -> dict[str, Any]:
    """Module state outside of parameters and buffers."""
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
    """Wait for asynchronous copies to and from pinned memory."""
    if _cuda.is_initialized():
        torch.cuda.synchronize()


def random_state() -> dict[str, Any]:
    """State of all global random generators, as plain values and CPU tensors."""
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
    """Restore the state of :func:`random_state`."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Context that restores the random state afterwards."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


_TENSOR = "__tensor__"

_VALUES = (bool, int, float, complex, str, bytes, type(None))


def is_tensor(packed: object) -> bool:
    """Whether a packed value is a tensor."""
    return isinstance(packed, dict) and _TENSOR in packed


def pack(value: Any, reuse: Any = None) -> Any:
    """A copy of ``value`` on the CPU.

    Args:
        value: A tensor, a plain value, or dictionaries, lists and tuples of such.
        reuse: A tree packed earlier whose memory may be overwritten; where it does not fit it is ignored. Copies
            from a GPU into pinned memory are asynchronous: synchronize before they are read.
    """
    if isinstance(value, torch.Tensor):
        local = _local(value.detach())
        old = reuse[_TENSOR] if is_tensor(reuse) else None
        if old is None or old.shape != local.shape or old.dtype != local.dtype:
            old = torch.empty(local.shape, dtype=local.dtype, pin_memory=local.is_cuda)
        old.copy_(local, non_blocking=True)
        return {_TENSOR: old, "device": str(local.device), "sharded": isinstance(value, DTensor)}
    if isinstance(value, dict):
        olds = reuse if isinstance(reuse, dict) else {}
        return {key: pack(item, olds.get(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        kept = reuse if isinstance(reuse, list | tuple) and len(reuse) == len(value) else [None] * len(value)
        items = [pack(item, old) for item, old in zip(value, kept, strict=True)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, _VALUES):
        return value
    raise InputError(
        f"expected tensors, numbers, text, lists and dictionaries in the state to save, found {type(value).__name__}: "
        "give such an object to `also` with a state_dict of plain values."
    )


def unpack(packed: Any, *, current: Any = None, like: torch.Tensor | None = None) -> Any:
    """Copy of a packed value.

    Args:
        packed: What :func:`pack` returned; it is not changed and not referred to.
        current: The present value: tensors of it that fit are overwritten and returned.
        like: The parameter that the values belong to; shards become DTensors laid out as it is.
    """
    if is_tensor(packed):
        saved = packed[_TENSOR]
        if isinstance(current, torch.Tensor) and _fits(current, packed):
            copy_into(current, packed)
            return current
        local = torch.empty_like(saved, device=packed["device"], pin_memory=False).copy_(saved)
        if packed["sharded"] and isinstance(like, DTensor):
            return DTensor.from_local(
                local,
                like.device_mesh,
                like.placements,
                run_check=False,
                shape=like.shape,
                stride=like.stride(),
            )
        return local
    if isinstance(packed, dict):
        now = current if isinstance(current, dict) else {}
        return {key: unpack(item, current=now.get(key), like=like) for key, item in packed.items()}
    if isinstance(packed, list | tuple):
        olds = (
            current
            if isinstance(current, list | tuple) and len(current) == len(packed)
            else [None] * len(packed)
        )
        items = [unpack(item, current=old, like=like) for item, old in zip(packed, olds, strict=True)]
        return items if isinstance(packed, list) else tuple(items)
    return packed


def copy_into(tensor: torch.Tensor, packed: Any) -> None:
    """Overwrite a tensor (of a DTensor: this rank's shard) with its packed value."""
    if not _fits(tensor, packed):
        saved = packed[_TENSOR]
        local = _local(tensor)
        raise InputError(
            f"expected a tensor of {tuple(saved.shape)} {saved.dtype}, as was saved, found {tuple(local.shape)} "
            f"{local.dtype}: restore into the same model, sharded alike."
        )
    with torch.no_grad():
        _local(tensor).copy_(packed[_TENSOR], non_blocking=True)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a tensor."""
    if isinstance(tensor, DTensor):
        with torch.no_grad():
            return tensor.to_local()
    return tensor


def _fits(tensor: torch.Tensor, packed: Any) -> bool:
    saved, local = packed[_TENSOR], _local(tensor)
    sharded: bool = packed["sharded"]
    return (
        local.shape == saved.shape and local.dtype == saved.dtype and isinstance(tensor, DTensor) is sharded
    )
