"""Saved tensors of operations: kept, or dropped and recomputed before they are needed.

The graph of autograd is that of the operations as they are; only the tensors saved in it are other ones
(``torch.autograd.graph.saved_tensors_hooks``). In the place of a tensor that a dropped operation saved there is the
call of the operation and a number; in the place of one that a later operation saved of its output, the call and where
in the output it lies. Computing again runs the operation once more, with the random numbers and types of mixed
precision as they were, and fills them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from coppice.errors import InputError


@dataclass(frozen=True, eq=False)
class DeviceState:
    """Snapshot of generators and autocast."""

    device: torch.device  # The device of activations
    generator: torch.Tensor  # State of the generator of the host
    of_device: torch.Tensor | None  # State of that of the device, if it is not the host
    casts: tuple[dict[str, Any], ...]  # Arguments of `torch.autocast` for the host and for the device

    @classmethod
    def now(cls, device: torch.device) -> DeviceState:
        """Snapshot of a device and of the host."""
        of_device = None
        if device.type != "cpu":
            of_device = torch.get_device_module(device).get_rng_state(device)
        return cls(
            device=device,
            generator=torch.get_rng_state(),
            of_device=of_device,
            casts=tuple(
                {
                    "device_type": kind,
                    "enabled": torch.is_autocast_enabled(kind),
                    "dtype": torch.get_autocast_dtype(kind),
                    "cache_enabled": torch.is_autocast_cache_enabled(),
                }
                for kind in dict.fromkeys(("cpu", device.type))
            ),
        )

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Context with the snapshot restored; the state before is restored afterwards."""
        devices = [] if self.of_device is None else [self.device]
        kind = "cuda" if self.device.type == "cpu" else self.device.type
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=devices, device_type=kind))
            torch.set_rng_state(self.generator)
            if self.of_device is not None:
                torch.get_device_module(self.device).set_rng_state(self.of_device, self.device)
            for cast in self.casts:
                stack.enter_context(torch.autocast(**cast))
            yield


@dataclass(frozen=True, eq=False)
class _Inside:
    """Tensor saved by a dropped operation."""

    call: DroppedCall
    number: int


@dataclass(frozen=True, eq=False)
class _OfOutput:
    """View of a dropped operation's output."""

    call: DroppedCall
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class DroppedCall:
    """An operation whose activations are dropped, with the means to recompute it.

    Args:
        name: Of the operation.
        module: The operation.
        given: Its input, as saved.
        needs_gradient: Whether the input does.
        device: Of the input.
    """

    def __init__(
        self, name: str, module: nn.Module, given: Any, *, needs_gradient: bool, device: torch.device
    ) -> None:
        self.name = name
        # Bytes of what it saved and of its output, if operations take that, but for what it was given
        self.size_bytes = 0
        self.wanted = False  # Something takes what it computes again
        self.computed = False  # It has been computed again, and not released
        self._module, self._given, self._needs_gradient = module, given, needs_gradient
        self._state = DeviceState.now(device)
        self._saved: list[tuple[torch.Size, torch.dtype] | None] = []
        self._found: list[torch.Tensor | None] = []
        self._output: torch.Tensor | None = None

    def save(self, tensor: torch.Tensor, *, inside: bool) -> Any:
        """Count a saved tensor; return its replacement, if it belongs to the operation."""
        self._saved.append((tensor.shape, tensor.dtype) if inside else None)
        self.wanted |= inside
        return _Inside(self, len(self._saved) - 1)

    def recompute(self) -> None:
        """Recompute, unless done."""
        if self.computed:
            return
        if self._given is None:
            raise InputError(
                "expected one backward pass for a forward pass, found another: run it forward again."
            )
        x = unpack(self._given).detach().requires_grad_(self._needs_gradient)
        found: list[torch.Tensor | None] = []

        def fill(tensor: torch.Tensor) -> int:
            number = len(found)
            expected = self._saved[number] if number < len(self._saved) else None
            if expected is not None and expected != (tensor.shape, tensor.dtype):
                raise self._changed()
            found.append(tensor.detach() if expected is not None else None)
            return number

        with self._state.restored(), torch.enable_grad(), saved_tensors_hooks(fill, unpack):
            output: torch.Tensor = self._module(x)
        if len(found) != len(self._saved):
            raise self._changed()
        self._found, self._output, self.computed = found, output.detach(), True

    def found(self, number: int) -> torch.Tensor:
        """Saved tensor, recomputed if necessary."""
        self.recompute()
        tensor = self._found[number]
        if tensor is None:
            raise self._changed()
        return tensor

    def output(self) -> torch.Tensor:
        """Output, recomputed if necessary."""
        self.recompute()
        if self._output is None:
            raise self._changed()
        return self._output

    def release(self) -> None:
        """Release inputs and recomputed tensors."""
        self._given, self._found, self._output, self.computed = None, [], None, False

    def _changed(self) -> InputError:
        return InputError(
            f"expected operation {self.name} to do the same when it is computed again, found that it saves other "
            "tensors: let it depend on its input, its weights and random numbers alone."
        )


class SavedActivations:
    """Activations of one block in a forward pass.

    Args:
        fixed: Places of parameters and buffers.
    """

    def __init__(self, fixed: frozenset[int]) -> None:
        self.held: dict[int, int] = {}  # Bytes of what stays, by its place in memory; parameters do not count
        self._fixed = fixed
        # Outputs stay until the block is done, so that no other tensor gets their place.
        self._dropped: dict[int, tuple[DroppedCall, torch.Tensor]] = {}

    def keep(self, module: nn.Module, *tensors: torch.Tensor) -> Any:
        """Run an operation, keeping its saved tensors."""
        with saved_tensors_hooks(self.pack, unpack):
            return module(*tensors)

    def drop(
        self, name: str, module: nn.Module, x: torch.Tensor, *, taken: bool
    ) -> tuple[torch.Tensor, DroppedCall]:
        """Run an operation, keeping its input only."""
        call = DroppedCall(name, module, self.pack(x), needs_gradient=x.requires_grad, device=x.device)
        own: dict[int, torch.Tensor] = {}  # they stay for the time of the call, so that no two have one place
        given = _place(x)

        def pack(tensor: torch.Tensor) -> Any:
            place = _place(tensor)
            inside = place != given and place not in self._fixed
            if inside:
                own[place] = tensor.detach()
            replaced = call.save(tensor, inside=inside)
            return replaced if inside else self.pack(tensor)

        with saved_tensors_hooks(pack, unpack):
            output: torch.Tensor = module(x)
        place = _place(output)
        if taken and place != given:
            own[place] = output.detach()
            self._dropped[place] = call, output
        call.size_bytes = sum(each.untyped_storage().nbytes() for each in own.values())
        own.clear()  # hooks of saved tensors live as long as these
        return output, call

    def done(self) -> None:
        """Release outputs that nothing else keeps."""
        self._dropped.clear()

    def pack(self, tensor: torch.Tensor) -> Any:
        """Saved-tensor hook."""
        place = _place(tensor)
        if place in self._fixed:
            return tensor
        if place in self._dropped:
            call = self._dropped[place][0]
            call.wanted = True
            return _OfOutput(call, tensor.shape, tensor.stride(), int(tensor.storage_offset()))
        self.held[place] = tensor.untyped_storage().nbytes()
        return tensor.detach()


def unpack(saved: Any) -> torch.Tensor:
    """Saved tensor, recomputed if necessary."""
    if isinstance(saved, _Inside):
        return saved.call.found(saved.number)
    if isinstance(saved, _OfOutput):
        return saved.call.output().as_strided(saved.size, saved.stride, saved.offset)
    tensor: torch.Tensor = saved
    return tensor


def places(tensors: Sequence[torch.Tensor]) -> frozenset[int]:
    """Memory ranges of tensors."""
    return frozenset(_place(tensor) for tensor in tensors)


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
