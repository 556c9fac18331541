"""Layer-wise workload of the overlap literature: layers with times and gradients, all-reduced over one network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from coppice.decoding import JSON_FAULTS, decodable, json_fault
from coppice.errors import InputError
from coppice.files import read_bytes


@dataclass(frozen=True, kw_only=True)
class LayerWorkload:
    """Layers of a model, the first nearest to the input, and a network that sends one message at a time.

    A message of x bytes takes ``message_seconds + x / bytes_per_second``: an all-reduce of all workers.

    Raises:
        InputError: If columns differ in length, there are no layers, or a number is out of range.

    Examples:
        >>> three = LayerWorkload(forward=(1, 1, 1), backward=(2, 2, 2), bytes=(2, 2, 8), bytes_per_second=1.0)
        >>> three.compute_seconds, three.message(8)
        (9, 8.0)
    """

    forward: tuple[float, ...]  # Seconds of the forward pass of each layer
    backward: tuple[float, ...]  # Seconds of its backward pass
    bytes: tuple[float, ...]  # Bytes of its gradients
    bytes_per_second: float  # What the network carries
    message_seconds: float = 0.0  # What a message costs by itself
    workers: int = 2  # Number of workers
    # Layers that each layer takes its input from, all before it; empty: each from the one before it
    inputs: tuple[tuple[int, ...], ...] = ()
    # Seconds of each backward pass that the gradients of weights take; empty: half of it
    weight_backward: tuple[float, ...] = ()
    # Whether the gradients of its weights can be made apart from that of its input; empty: of each layer
    separable: tuple[bool, ...] = ()
    # Rows and columns of each layer that is a fully connected matrix, None for others; empty: none is
    matrices: tuple[tuple[int, int] | None, ...] = ()
    samples: int = 1  # Rows of the input of fully connected layers on a worker
    element_bytes: float = 4  # Bytes of an element of gradients
    dtypes: tuple[str, ...] = ()  # Type of the gradients of each layer; empty: all alike
    # Time from the end of a message until its sender knows that it has arrived
    round_trip_seconds: float = 0.0

    def __post_init__(self) -> None:
        lengths = {"forward": len(self.forward), "backward": len(self.backward), "bytes": len(self.bytes)}
        if len(set(lengths.values())) != 1 or not self.forward:
            found = ", ".join(f"{count} in `{name}`" for name, count in lengths.items())
            raise InputError(
                f"expected as many layers in forward, backward and bytes, and one at least, found {found}."
            )
        for name in lengths:
            for layer, value in enumerate(getattr(self, name)):
                if not (math.isfinite(value) and value >= 0):
                    raise InputError(f"expected 0 or more, found {value} at $.{name}[{layer}].")
        if not (math.isfinite(self.bytes_per_second) and self.bytes_per_second > 0):
            raise InputError(
                f"expected more than 0 bytes per second, found {self.bytes_per_second} at $.bytes_per_second."
            )
        if not (math.isfinite(self.message_seconds) and self.message_seconds >= 0):
            raise InputError(
                f"expected 0 or more seconds for a message, found {self.message_seconds} at $.message_seconds."
            )
        for name in ("workers", "samples"):
            if getattr(self, name) < 1:
                raise InputError(f"expected 1 or more, found {getattr(self, name)} at $.{name}.")
        if not (math.isfinite(self.element_bytes) and self.element_bytes > 0):
            raise InputError(
                f"expected more than 0 bytes for an element, found {self.element_bytes} at $.element_bytes."
            )
        if not (math.isfinite(self.round_trip_seconds) and self.round_trip_seconds >= 0):
            raise InputError(
                f"expected 0 or more seconds, found {self.round_trip_seconds} at $.round_trip_seconds."
            )
        self._check_columns()

    def _check_columns(self) -> None:
        """Check the optional columns."""
        for name in ("inputs", "weight_backward", "separable", "matrices", "dtypes"):
            column = getattr(self, name)
            if column and len(column) != self.layers:
                raise InputError(
                    f"expected none or one for each of {self.layers} layers, found {len(column)} at $.{name}."
                )
        for layer, before in enumerate(self.inputs):
            wrong = [each for each in before if not 0 <= each < layer]
            if wrong:
                raise InputError(
                    f"expected layers before layer {layer}, found {wrong[0]} at $.inputs[{layer}]."
                )
        for layer, seconds in enumerate(self.weight_backward):
            if not 0 <= seconds <= self.backward[layer]:
                raise InputError(
                    f"expected 0 to {self.backward[layer]} seconds, those of the backward pass, found {seconds} at "
                    f"$.weight_backward[{layer}]."
                )
        for layer, shape in enumerate(self.matrices):
            if shape is None:
                continue
            size = shape[0] * shape[1] * self.element_bytes
            if min(shape) < 1 or size > self.bytes[layer] * (1 + 1e-9):
                raise InputError(
                    f"expected a matrix within the {self.bytes[layer]:g} bytes of its layer, found "
                    f"{shape[0]} x {shape[1]} elements at $.matrices[{layer}]."
                )

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.forward)

    @property
    def compute_seconds(self) -> float:
        """Forward and backward time."""
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
        """Time of a message."""
        return self.message_seconds + size_bytes / self.bytes_per_second

    def inputs_of(self, layer: int) -> tuple[int, ...]:
        """Predecessors of a layer."""
        if self.inputs:
            return self.inputs[layer]
        return (layer - 1,) if layer else ()

    @property
    def roots(self) -> tuple[int, ...]:
        """Layers without predecessor."""
        return tuple(layer for layer in range(self.layers) if not self.inputs_of(layer))

    def is_separable(self, layer: int) -> bool:
        """Whether a layer's weight gradients are separable from its input gradient."""
        return not self.separable or self.separable[layer]

    def weight_seconds(self, layer: int) -> float:
        """Time of the weight-gradient part of a backward pass."""
        return self.weight_backward[layer] if self.weight_backward else self.backward[layer] / 2

    def following(self, column: Sequence[float]) -> list[float]:
        """Per layer, the sum of a column over it and its transitive successors."""
        if not self.inputs:
            return list(accumulate(reversed(column)))[::-1]
        behind: list[set[int]] = [{layer} for layer in range(self.layers)]
        for layer in reversed(range(self.layers)):
            for before in self.inputs[layer]:
                behind[before] |= behind[layer]
        return [sum(column[each] for each in sorted(own)) for own in behind]

    def preceding(self, column: Sequence[float]) -> list[float]:
        """Per layer, the sum of a column over it and its transitive predecessors."""
        if not self.inputs:
            return list(accumulate(column))
        before: list[set[int]] = []
        for layer in range(self.layers):
            before.append({layer}.union(*(before[each] for each in self.inputs[layer])))
        return [sum(column[each] for each in sorted(own)) for own in before]

    def lower_bound_seconds(self) -> float:
        """Lower bound on layer-by-layer execution with one all-reduce of every gradient.

        From the end of the backward pass of layer i until its next forward pass the network carries the gradients of
        layer i and of all that it needs (in a chain layers 0 to i), in one message at least: their backward passes come
        after that of layer i or are it, and their forward passes before that of layer i. The rest of the iteration, the
        device runs the forward passes of layer i and of what needs it, and the backward passes of layers i and above.
        So for every i an iteration takes the time of all these; and it takes as long as all gradients on the network.
        """
        found = self.compute_seconds
        above = sum(self.backward)
        for layer, (forward, carried) in enumerate(
            zip(self.following(self.forward), self.preceding(self.bytes), strict=True)
        ):
            if carried:
                found = max(found, forward + above + self.message(carried))
            above -= self.backward[layer]
        every = sum(self.bytes)
        return max(found, self.message(every) if every else 0.0)


_LayerFile = msgspec.defstruct(
    "LayerFile",
    [
        (each.name, kind) if each.default is MISSING else (each.name, kind, each.default)
        for each, kind in zip(fields(LayerWorkload), get_type_hints(LayerWorkload).values(), strict=True)
    ],
    forbid_unknown_fields=True,
)
"""A workload file: the fields of a workload, and no others."""


def read_workload(path: Path | str) -> LayerWorkload:
    """Read a workload from a JSON file; ``-`` is standard input.

    Its keys are the attributes of :class:`LayerWorkload`; those with defaults may be left out.
    """
    data = read_bytes(path, what="the workload")
    try:
        record = msgspec.json.decode(data, type=decodable(_LayerFile))
    except JSON_FAULTS as error:
        raise InputError(
            f"expected a workload in {path} (forward, backward, bytes, bytes_per_second, message_seconds, workers; "
            f"docs/iteration.md lists more), found otherwise: {json_fault(error, data)}."
        ) from None
    try:
        return LayerWorkload(**msgspec.structs.asdict(record))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
