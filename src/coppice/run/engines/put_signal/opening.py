"""Choose and open the put/signal device of a launched process."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from coppice.errors import CoppiceError, InputError
from coppice.run.engines.engine import Engine
from coppice.run.engines.put_signal.device import PutSignalDevice
from coppice.run.engines.put_signal.emulated import EmulatedDevice
from coppice.run.engines.put_signal.engine import PutSignalEngine
from coppice.run.errors import PeerLost

DEVICES = ("nccl", "symmetric", "emulated")
DEVICE_VARIABLE = "COPPICE_PUT_SIGNAL"
"""Environment variable that names the device."""

_OLD_NAMES = {"twin": "emulated"}

GPU_COMMUNICATORS = 8
"""Communicators of programs on GPUs: with fewer, calls are not hidden behind bytes (benchmarks/put_signal.md)."""

_LOG = logging.getLogger("coppice")


def open_device(name: str, below: Engine, *, store: Any = None) -> PutSignalDevice:
    """Open a device for the ranks of an engine; collective over the ranks.

    Args:
        name: ``emulated``, ``symmetric`` (torch's symmetric memory) or ``nccl`` (through nccl4py).
        below: The engine, which exchanges what ranks must know of each other.
        store: Store of torch that these ranks have in common, for ``symmetric`` in a process group.
    """
    rank, ranks, exchange = below.rank, below.ranks, below.exchange
    if name == "emulated":
        return EmulatedDevice(rank, ranks, exchange)
    if name == "symmetric":
        from coppice.run.engines.put_signal.symmetric import SymmetricMemoryDevice

        return SymmetricMemoryDevice(rank, ranks, exchange, store=store)
    if name == "nccl":
        from coppice.run.engines.put_signal.nccl import NcclDevice

        return NcclDevice(rank, ranks, exchange)
    raise _unknown(name)


def put_signal_engine(
    below: Engine,  # Engine of the same ranks, which the new one closes
    *,
    timeout_s: float = 300.0,  # Longest wait for another rank in an exchange, in seconds
    devices: Sequence[str] = DEVICES,  # What to try, in this order, and what may be named
    store: Any = None,  # See :func:`open_device`
    left_to: str | None = None,  # Who carries out what puts cannot, for messages, if not the engine below
) -> PutSignalEngine:
    """Open a put/signal engine on NCCL, torch's symmetric memory or the emulated device; collective over the ranks.

    ``COPPICE_PUT_SIGNAL`` names the device instead. What ranks choose, they agree on: each device is tried out by all
    of them, and if one rank cannot have it, none uses it.
    """
    named = os.environ.get(DEVICE_VARIABLE)
    named = _OLD_NAMES.get(named, named) if named else None
    reasons: dict[str, str] = {}
    for name in (named,) if named else devices:
        engine, reason = None, ""
        try:
            _require(name, devices)
        except CoppiceError as found:
            reason = str(found)
        reason = _first(below.exchange(reason.encode()))
        if not reason:
            communicators = 1 if name == "emulated" else GPU_COMMUNICATORS
            try:
                engine = PutSignalEngine(
                    open_device(name, below, store=store),
                    below,
                    owns_below=False,
                    communicators=communicators,
                    left_to=left_to,
                    timeout_s=timeout_s,
                )
                engine.try_out(timeout_s)
            except PeerLost:
                raise
            except Exception as found:  # noqa: BLE001  (whatever a library raises that does not work here)
                words = str(found).splitlines() or [""]
                reason = (
                    str(found) if isinstance(found, CoppiceError) else f"{type(found).__name__}: {words[0]}"
                )
            reason = _first(below.exchange(reason.encode()))
        if not reason and engine is not None:
            engine.own_below()
            if reasons and below.rank == 0:
                _LOG.warning("%s puts and signals here. %s", engine.device.name, _reasons_text(reasons))
            return engine
        if engine is not None:
            engine.close()
        reasons[name] = reason
    if len(reasons) == 1:
        raise InputError(next(iter(reasons.values())))
    raise InputError(f"expected a device that puts between these ranks, found none. {_reasons_text(reasons)}")


def _first(answers: Sequence[bytes]) -> str:
    """The first reason that a rank has, or nothing."""
    return next((each.decode() for each in answers if each), "")


def _reasons_text(reasons: dict[str, str]) -> str:
    """Why devices are not used, for a message."""
    return " ".join(f"{name}: {reason}" for name, reason in reasons.items())


def _unknown(name: str, devices: Sequence[str] = DEVICES) -> InputError:
    return InputError(
        f"expected {DEVICE_VARIABLE} to name one of {', '.join(devices)}, found {name!r}: choose one of them."
    )


def _require(name: str, devices: Sequence[str]) -> None:
    """Refuse a device whose package or GPU this process has not, before ranks wait for each other in it."""
    if name not in devices:
        raise _unknown(name, devices)
    if name == "emulated":
        return
    from coppice.run.engines.put_signal.cuda import CudaStreams

    CudaStreams("NCCL" if name == "nccl" else "torch's symmetric memory")
    if name == "nccl":
        from coppice.run.engines.put_signal.nccl import nccl4py

        nccl4py()
