"""The workload of the literature on overlap: layers with times and gradients that all workers sum over one network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from coppice.errors import InputError
from coppice.files import read_bytes

__all__ = ["LayerWorkload", "read_workload"]


@dataclass(frozen=True, kw_only=True)
class LayerWorkload:
    """Layers of a model, the one nearest to the input first, and a network that carries a message at a time.

    A message of x bytes takes ``message_seconds + x / bytes_per_second``: an all-reduce of all workers.

    Attributes:
        forward: Seconds of the forward pass of each layer.
        backward: Seconds of its backward pass.
        bytes: Bytes of its gradients.
        bytes_per_second: What the network carries.
        message_seconds: What a message costs by itself.
        workers: Number of workers.

    Raises:
        InputError: If columns differ in length, there are no layers, or a number is out of range.

    Examples:
        >>> three = LayerWorkload(forward=(1, 1, 1), backward=(2, 2, 2), bytes=(2, 2, 8), bytes_per_second=1.0)
        >>> three.compute_seconds, three.message(8)
        (9, 8.0)
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    bytes: tuple[float, ...]
    bytes_per_second: float
    message_seconds: float = 0.0
    workers: int = 2

    def __post_init__(self) -> None:
        lengths = {"forward": len(self.forward), "backward": len(self.backward), "bytes": len(self.bytes)}
        if len(set(lengths.values())) != 1 or not self.forward:
            found = ", ".join(f"{count} in `{name}`" for name, count in lengths.items())
            msg = f"expected as many layers in forward, backward and bytes, and one at least, found {found}."
            raise InputError(msg)
        for name in lengths:
            for layer, value in enumerate(getattr(self, name)):
                if not (math.isfinite(value) and value >= 0):
                    msg = f"expected 0 or more, found {value} at $.{name}[{layer}]."
                    raise InputError(msg)
        if not (math.isfinite(self.bytes_per_second) and self.bytes_per_second > 0):
            msg = (
                f"expected more than 0 bytes per second, found {self.bytes_per_second} at $.bytes_per_second."
            )
            raise InputError(msg)
        if not (math.isfinite(self.message_seconds) and self.message_seconds >= 0):
            msg = f"expected 0 or more seconds for a message, found {self.message_seconds} at $.message_seconds."
            raise InputError(msg)
        if self.workers < 1:
            msg = f"expected 1 worker or more, found {self.workers} at $.workers."
            raise InputError(msg)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.forward)

    @property
    def compute_seconds(self) -> float:
        """Forward and backward pass."""
        return sum(self.forward) + sum(self.backward)

    def record(self) -> dict[str, Any]:
        """The workload as JSON values, as :func:`read_workload` takes it."""
        return {
            "forward": list(self.forward),
            "backward": list(self.backward),
            "bytes": list(self.bytes),
            "bytes_per_second": self.bytes_per_second,
            "message_seconds": self.message_seconds,
            "workers": self.workers,
        }

    def message(self, size_bytes: float) -> float:
        """Seconds of a message of so many bytes."""
        return self.message_seconds + size_bytes / self.bytes_per_second

    def lower_bound_seconds(self) -> float:
        """What no policy can beat that computes layer by layer and sums every gradient once an iteration.

        From the end of the backward pass of layer i until its next forward pass the network carries the gradients of
        layers 0 to i, in one message at least: they come after that backward pass, and are needed before that forward
        pass. All the while the device runs only layers below i, the rest of the iteration those from i on. So for every
        i an iteration takes the time of layers i and above on the device and those gradients on the network; and it
        takes as long as all gradients on the network.
        """
        carried = whole = 0.0
        above = self.compute_seconds
        for layer in range(self.layers):
            carried += self.bytes[layer]
            if carried:
                whole = max(whole, above + self.message(carried))
            above -= self.forward[layer] + self.backward[layer]
        sent = self.message(carried) if carried else 0.0
        return max(self.compute_seconds, sent, whole)


class _LayerFile(msgspec.Struct, forbid_unknown_fields=True):
    """The file."""

    forward: list[float]
    backward: list[float]
    bytes: list[float]
    bytes_per_second: float
    message_seconds: float = 0.0
    workers: int = 2


def read_workload(path: Path | str) -> LayerWorkload:
    """The workload in a JSON file; ``-`` is standard input.

    Its keys are the attributes of :class:`LayerWorkload`; ``message_seconds`` and ``workers`` may be left out.

    Raises:
        InputError: If the file is no such workload; the message has the place.
    """
    data = read_bytes(path, what="the workload")
    try:
        record = msgspec.json.decode(data, type=_LayerFile)
    except msgspec.DecodeError as error:
        msg = (
            f"expected a workload in {path} (forward, backward, bytes, bytes_per_second, message_seconds, workers), "
            f"found otherwise: {error}."
        )
        raise InputError(msg) from None
    try:
        return LayerWorkload(
            forward=tuple(record.forward),
            backward=tuple(record.backward),
            bytes=tuple(record.bytes),
            bytes_per_second=record.bytes_per_second,
            message_seconds=record.message_seconds,
            workers=record.workers,
        )
    except InputError as error:
        msg = f"{path}: {error}"
        raise InputError(msg) from None
