"""Time models: per-message costs and limits on top of link rates and latencies; named models and model files.

One model stands behind a time wherever it is shown: plans, simulations, comparisons, exports and reports take the same
one by default, and name it.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from coppice.arguments import checked
from coppice.decoding import decodable, decode_json
from coppice.errors import InputError
from coppice.files import read_bytes
from coppice.version import __version__


class Sharing(enum.StrEnum):
    """Link sharing discipline: FIFO or max-min fair."""

    FIFO = "fifo"
    """A link serves one message at a time, in order of arrival."""
    FAIR = "fair"
    """All messages on a link at once, at max-min fair rates."""


def protocol_text(name: str) -> str:
    """Display name of a protocol.

    >>> protocol_text("ll128"), protocol_text("simple")
    ('LL128', 'Simple')
    """
    return name.upper() if name.startswith("ll") else name.capitalize()


@dataclass(frozen=True, kw_only=True)
class Model:
    """Per-message costs and limits on top of link rates and latencies.

    The terms are those of LogGP (Alexandrov, Ionescu, Schauser and Scheiman, SPAA 1995): latency, and an occupancy of
    what handles messages at either end. Models with figures for libraries and machines have names: see
    :mod:`coppice.simulation.models`.

    Raises:
        InputError: If a value is out of range, or values contradict each other.

    Examples:
        >>> Model(send_engines=1, receive_engines=1).overhead_us
        1.0
    """

    name: str = "alpha-beta"  # What it is called in everything that shows a time
    # Time that every message takes before its first link, where a GPU sends it. A protocol has its own.
    overhead_us: float = 1.0
    launch_us: float = 0.0  # Time before the first message, on top of what a protocol takes to start
    # A rank begins a step of an algorithm when it has done the step before, as in MPI; otherwise only data
    # bind, as for the channels of a GPU library
    steps_bind: bool = True
    # What goes the same way in such a step is one message wherever it lies in memory; otherwise only chunks
    # that follow each other are, as with engines that copy nothing together before they send it
    packed: bool = True
    buffered: bool = False  # A sender goes on when a message has left it, not when it has arrived
    # Messages that a GPU handles at a time at its ends (thread blocks, cores); 0: any number, which makes an
    # occupancy a latency
    workers: int = 0
    # All GPUs share these workers, as processes that share the cores of one machine do
    shared_workers: bool = False
    send_us: float = 0.0  # Time for which a message occupies a worker of its sender
    receive_us: float = 0.0  # Likewise of its receiver
    copy_gb_per_s: float | None = None  # Rate at which a worker handles bytes; None: bytes cost it nothing
    # Buffers up to this size stay in the cache of a worker, which handles them at this rate; of longer ones
    # ever less does, and from twice the size on nothing, since every pass over a buffer evicts what the next
    # one needs first. 0: all bytes alike.
    cache_bytes: int = 0
    memory_gb_per_s: float | None = None  # Rate at which a worker handles what does not stay in its cache
    # Rate at which a GPU adds what it has received; None: adding takes no time
    reduce_gb_per_s: float | None = None
    # Names of the protocols of which the fastest is taken at each size; none: all bytes on the wire are data
    # (see :mod:`coppice.simulation.channels`)
    protocols: tuple[str, ...] = ()
    channels: int | None = None  # Channels of a GPU; None: as many as it takes
    # Data that a channel carries; None: the protocol's figure for the generation of the GPUs
    channel_gb_per_s: float | None = None
    # Generation of the GPUs; None: the topology's name tells it, or nothing that depends on it counts
    generation: str | None = None
    efficiency: float = 1.0  # Share of the rate of links that wires carry at best
    # Bytes that a link lets through at once after a rest, as what limits its rate by a bucket of tokens does:
    # the bucket, full at first, fills at the rate of the link (FIFO); 0: none
    burst_bytes: int = 0
    least_piece_bytes: int = 4096  # Chunks are not cut into smaller pieces than this
    sharing: Sharing = Sharing.FIFO  # How messages share a link
    # Switches forward whole messages only, instead of passing bytes on as they come (FIFO)
    store_and_forward: bool = False
    send_engines: int = 0  # Messages that a GPU can have under way at a time; 0 is any number
    # Messages that can be under way to a GPU, or be added there, at a time; 0 is any number
    receive_engines: int = 0

    def __post_init__(self) -> None:
        if self.sharing not in tuple(Sharing):
            raise InputError(f"expected sharing `fifo` or `fair`, found {self.sharing!r}.")
        object.__setattr__(self, "sharing", Sharing(self.sharing))
        object.__setattr__(self, "protocols", tuple(name.lower() for name in self.protocols))
        for name, what in (
            ("overhead_us", "an overhead"),
            ("launch_us", "a launch"),
            ("send_us", "an occupancy of senders"),
            ("receive_us", "an occupancy of receivers"),
        ):
            if not (isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise InputError(f"expected {what} of 0 or more microseconds, found {getattr(self, name)}.")
        for name in ("send_engines", "receive_engines", "workers"):
            if not 0 <= getattr(self, name) < 2**31:
                raise InputError(f"expected {name} of 0 (any number) or more, found {getattr(self, name)}.")
        for rate, what in (
            (self.reduce_gb_per_s, "adding"),
            (self.copy_gb_per_s, "copying"),
            (self.memory_gb_per_s, "copying"),
        ):
            if rate is not None and not (isfinite(rate) and rate > 0):
                raise InputError(
                    f"expected a rate of {what} above 0 GB/s, found {rate}: leave it out where {what} is free."
                )
        if not 0 < self.efficiency <= 1:
            raise InputError(f"expected an efficiency above 0 and up to 1, found {self.efficiency}.")
        if self.least_piece_bytes < 1:
            raise InputError(f"expected a least piece of 1 byte or more, found {self.least_piece_bytes}.")
        for name, amount in (("burst", self.burst_bytes), ("cache", self.cache_bytes)):
            if not 0 <= amount < 2**62:
                raise InputError(f"expected a {name} of 0 or more bytes, found {amount}.")
        if self.burst_bytes and self.sharing is Sharing.FAIR:
            raise InputError(
                "expected links without bursts with fair sharing, found `burst_bytes`: choose sharing `fifo`."
            )
        if bool(self.cache_bytes) is (self.memory_gb_per_s is None) or (
            self.cache_bytes and self.copy_gb_per_s is None
        ):
            raise InputError(
                "expected `cache_bytes`, `copy_gb_per_s` for what it holds and `memory_gb_per_s` for the rest, or no "
                "cache, found only some of them: give all three, or leave out the first and the last."
            )
        if self.store_and_forward and self.sharing is Sharing.FAIR:
            raise InputError(
                "expected cut-through switches with fair sharing, found store-and-forward: choose sharing `fifo`."
            )
        if self.copy_gb_per_s is not None and not self.workers:
            raise InputError(
                "expected a number of workers with a rate of copying, found any number: give `workers`."
            )

    def __repr__(self) -> str:
        return f"<model {self.text}>"

    @property
    def text(self) -> str:
        """Name and parameters in one line.

        Examples:
            >>> Model(send_us=0.5, workers=1).text
            'alpha-beta: 1 us per message beyond its links, 1 worker of a GPU for 0.5 us, fifo links'
        """
        parts = []
        if self.protocols:
            parts.append(" or ".join(map(protocol_text, self.protocols)))
        else:
            parts.append(f"{self.overhead_us:g} us per message beyond its links")
        if self.launch_us:
            parts.append(f"{self.launch_us:g} us to launch")
        if self.send_us or self.receive_us or self.copy_gb_per_s is not None:
            parts.append(self._workers_text())
        if self.efficiency < 1:
            parts.append(f"{100 * self.efficiency:.3g}% of the rate of links")
        if self.burst_bytes:
            parts.append(f"bursts of {self.burst_bytes:,} bytes")
        if self.channels is not None:
            parts.append(f"{self.channels} channels")
        if not self.packed:
            parts.append("one message for neighbouring chunks only")
        parts.append(f"{self.sharing} links")
        if self.store_and_forward:
            parts.append("store-and-forward switches")
        if self.send_engines or self.receive_engines:
            parts.append(
                f"{self.send_engines or 'any'} send and {self.receive_engines or 'any'} receive engines"
            )
        if self.reduce_gb_per_s is not None:
            parts.append(f"adding at {self.reduce_gb_per_s:g} GB/s")
        return f"{self.name}: {', '.join(parts)}"

    def copying_gb_per_s(self, size_bytes: int) -> float | None:
        """Rate at which a worker copies or reduces a buffer of that size; None where it is free.

        Args:
            size_bytes: What the collective works on, M.

        Examples:
            >>> model = Model(workers=1, copy_gb_per_s=16, cache_bytes=2**20, memory_gb_per_s=4)
            >>> [model.copying_gb_per_s(size) for size in (2**20, 3 * 2**19, 2**21)]
            [16.0, 6.4, 4.0]
        """
        if self.copy_gb_per_s is None or self.memory_gb_per_s is None:
            return self.copy_gb_per_s
        inside = min(1.0, max(0.0, 2 - size_bytes / self.cache_bytes))
        return 1 / (inside / self.copy_gb_per_s + (1 - inside) / self.memory_gb_per_s)

    def _workers_text(self) -> str:
        """Occupancy in words."""
        where = "of all GPUs together" if self.shared_workers else "of a GPU"
        each = "worker" if self.workers == 1 else "workers"
        spent = (
            f"{self.send_us:g} us"
            if self.send_us == self.receive_us or not self.receive_us
            else f"{self.send_us:g} and {self.receive_us:g} us"
        )
        copying = f" and {self.copy_gb_per_s:g} GB/s" if self.copy_gb_per_s is not None else ""
        if self.memory_gb_per_s is not None:
            copying += f" ({self.memory_gb_per_s:g} GB/s beyond {self.cache_bytes:,} bytes)"
        return f"{self.workers or 'any'} {each} {where} for {spent}{copying}"


ALPHA_BETA = Model()
"""Full rate of all wires, 1 us a message, any number of messages at a time: Hockney's model on every link."""


FORMAT = "coppice-model"


class NamedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A time model with a description."""

    model: Model  # The figures
    about: str  # What it is a model of, in words
    sources: dict[str, str]  # Where the figures come from, by their names


class _ModelsFile(msgspec.Struct, frozen=True):
    """The data file."""

    default: str
    models: dict[str, dict[str, Any]]


def named_models() -> dict[str, NamedModel]:
    """All named models, the default first.

    >>> list(named_models())
    ['nccl-2.30', 'msccl', 'mpi-tcp', 'shm', 'alpha-beta', 'ideal']
    """
    return dict(_named())


@checked
def model_of(name: Model | str | os.PathLike[str] | None = None) -> Model:
    """Look up a model by name, or read it from a file; None is the default.

    Args:
        name: A name of :func:`named_models`, a file of the format ``coppice-model``, or a model as it is.

    Raises:
        InputError: If there is no such model, or the file is none.

    Examples:
        >>> model_of("alpha-beta").overhead_us
        1.0
        >>> model_of("ideal").text
        'ideal: 0 us per message beyond its links, fifo links'
    """
    if name is None:
        return DEFAULT_MODEL
    if isinstance(name, Model):
        return name
    if isinstance(name, str) and name in _named():
        return _named()[name].model
    if isinstance(name, str) and Path(name).suffix != ".json" and not Path(name).exists():
        raise InputError(f"expected a model of {', '.join(_named())}, or a file, found {name!r}.")
    return _from_file(name)


def model_bytes(model: Model, *, about: str = "", sources: dict[str, str] | None = None) -> bytes:
    r"""Encode a model as a file that :func:`model_of` reads.

    Args:
        about: What it is a model of.

    Examples:
        >>> model_bytes(Model(name="mine"))[:40]
        b'{\n  "format": "coppice-model",\n  "versio'
    """
    plain = asdict(Model())
    changed = {key: value for key, value in asdict(model).items() if key == "name" or value != plain[key]}
    head = {"format": FORMAT, "version": 1, "provenance": f"coppice {__version__}", "about": about}
    text = msgspec.json.encode({**head, **changed, "sources": sources or {}})
    return msgspec.json.format(text, indent=2) + b"\n"


_FIELDS = {field.name for field in fields(Model)}


def _made(values: dict[str, Any], where: str) -> NamedModel:
    """A model from JSON values."""
    unknown = sorted(set(values) - _FIELDS - {"about", "sources"})
    if unknown:
        raise InputError(f"{where}: expected fields of {', '.join(sorted(_FIELDS))}, found {unknown[0]!r}.")
    try:
        return msgspec.convert(
            {
                "model": {key: value for key, value in values.items() if key in _FIELDS},
                "about": values.get("about", ""),
                "sources": values.get("sources", {}),
            },
            decodable(NamedModel),
        )
    except (msgspec.ValidationError, InputError) as error:
        raise InputError(f"{where}: {error}") from None


def _from_file(path: str | os.PathLike[str]) -> Model:
    """The model in a file."""
    data = read_bytes(path)
    words = f"expected {path} to be a model in JSON, found something else"
    values = decode_json(data, dict[str, Any], lambda fault: f"{words} ({fault}).")
    return model_from(values, str(path))


def model_from(members: Mapping[str, Any], path: str) -> Model:
    """The model that the members of a model file describe.

    Args:
        path: Where they stand, for messages.

    Raises:
        InputError: If they describe none.

    Examples:
        >>> model_from({"format": "coppice-model", "version": 1, "overhead_us": 2}, "mine.json").overhead_us
        2.0
    """
    values = dict(members)
    if (values.pop("format", None), values.pop("version", None)) != (FORMAT, 1):
        raise InputError(f"expected {path} to be of the format {FORMAT!r}, version 1, found something else.")
    values.pop("provenance", None)
    return _made(values, path).model


def model_members(model: Model) -> dict[str, Any]:
    """The members of a file of a model, as :func:`model_from` takes them.

    Examples:
        >>> model_from(model_members(model_of("mpi-tcp")), "memory") == model_of("mpi-tcp")
        True
    """
    found: dict[str, Any] = msgspec.json.decode(model_bytes(model))
    return found


@cache
def _named() -> dict[str, NamedModel]:
    data = files("coppice.simulation").joinpath("data/models.json").read_bytes()
    table = msgspec.json.decode(data, type=decodable(_ModelsFile))
    names = sorted(table.models, key=lambda name: name != table.default)
    return {name: _made({"name": name, **table.models[name]}, f"model {name}") for name in names}


DEFAULT_MODEL = next(iter(_named().values())).model
"""A GPU library of the make of NCCL."""
