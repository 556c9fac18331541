"""Wire protocols of GPU runtimes: what part of the wire is data, what a message costs, what a channel carries.

The figures are data with their sources, in ``data/protocols.json``: those with which NCCL predicts its own times. A
protocol is *nominal* where nothing of this is counted; what remains when it is counted is called *achievable*.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import msgspec
import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.topology.model import Topology

__all__ = ["Protocol", "generation_of", "num_boxes", "protocol", "protocols"]


class Protocol(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A way to put messages on the wire.

    Attributes:
        about: What it is, in words.
        data_bytes: Bytes of data in a line.
        wire_bytes: Bytes that this line takes on the wire.
        start_us: Cost of starting a collective, once.
        box_us: Latency of a message between GPUs of one box, its links included.
        network_us: Latency of a message between boxes, its links included.
        channel_gb_per_s: Data that one channel of a GPU carries, by generation of GPU: in 1 box, 2 boxes, more.
        gpu_gb_per_s: Data that all channels of a GPU carry together, likewise.
        sources: Where each figure stands.
    """

    about: str
    data_bytes: int
    wire_bytes: int
    start_us: float
    box_us: float
    network_us: float
    channel_gb_per_s: dict[str, tuple[float, float, float]]
    gpu_gb_per_s: dict[str, tuple[float, float, float]]
    sources: dict[str, str]

    @property
    def efficiency(self) -> float:
        """Share of the wire that is data."""
        return self.data_bytes / self.wire_bytes

    def on_wire(self, size_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes on the wire for so many bytes of data: whole lines.

        Examples:
            >>> protocol("ll128").on_wire(np.array([0, 1, 120, 121])).tolist()
            [0, 128, 128, 256]
        """
        lines = -(-size_bytes // self.data_bytes)
        return np.asarray(lines * self.wire_bytes, dtype=np.int64)

    def channel_limit(self, generation: str, boxes: int) -> float | None:
        """GB/s of data that a channel carries, or None where no limit is known."""
        return _at_scale(self.channel_gb_per_s.get(generation), boxes)

    def gpu_limit(self, generation: str, boxes: int) -> float | None:
        """GB/s of data that all channels of a GPU carry together, or None where no limit is known."""
        return _at_scale(self.gpu_gb_per_s.get(generation), boxes)


@dataclass(frozen=True)
class _Table:
    """The data file."""

    source: str
    scales: list[str]
    generations: dict[str, list[str]]
    protocols: dict[str, Protocol]


def protocols() -> dict[str, Protocol]:
    """All protocols by name.

    >>> {name: each.efficiency for name, each in protocols().items()}
    {'simple': 1.0, 'll': 0.5, 'll128': 0.9375}
    """
    return dict(_table().protocols)


def protocol(name: str) -> Protocol:
    """The protocol called ``name``, in any case of letters.

    Raises:
        InputError: If there is none.
    """
    found = _table().protocols.get(name.lower())
    if found is None:
        msg = f"expected a protocol of {', '.join(_table().protocols)}, found {name!r}."
        raise InputError(msg)
    return found


def generation_of(topology: Topology, name: str | None = None) -> str:
    """Generation of the GPUs: the one called ``name``, or the one that the topology's name tells.

    Raises:
        InputError: If there is no such generation, or the topology's name does not tell one.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> generation_of(preset("dgx-h100", boxes=2))
        'hopper'
    """
    known = _table().generations
    if name is not None:
        if name.lower() in known:
            return name.lower()
        msg = f"expected a generation of GPUs of {', '.join(known)}, found {name!r}."
        raise InputError(msg)
    text = topology.name.lower()
    for generation, models in known.items():
        if any(model in text for model in models):
            return generation
    msg = (
        f"expected the GPUs of {topology.name} to be known by its name: give their generation "
        f"(`gpu={'|'.join(known)}`), or the rate of a channel (`channel_rate`)."
    )
    raise InputError(msg)


def num_boxes(topology: Topology) -> int:
    """Boxes that the ranks stand in; GPUs of no host are boxes of their own."""
    host = topology.host[topology.rank_nodes]
    return len(np.unique(host[host >= 0])) + int((host < 0).sum())


def _at_scale(row: tuple[float, float, float] | None, boxes: int) -> float | None:
    return None if row is None else row[min(boxes, 3) - 1]


@cache
def _table() -> _Table:
    data = files("coppice.simulation").joinpath("data/protocols.json").read_bytes()
    return msgspec.json.decode(data, type=_Table)
