"""Options of the torch backend, given by the program or by variables of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from coppice.errors import InputError

__all__ = ["ENGINES", "Options", "options_from"]

ENGINES = ("auto", "torch", "shm")
_SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the groups of a process carry out collectives; given to ``init_process_group(pg_options=...)``.

    What is None is taken from the environment, and otherwise has its default. All ranks need the same.

    Attributes:
        topology: A preset name or file; its rank r is rank r of the world. ``COPPICE_TOPOLOGY``; without one, ranks of
            one host use shared memory directly, others are planned as if on one switch.
        engine: ``auto``, ``torch`` (messages of gloo or NCCL) or ``shm`` (shared memory of one host).
            ``COPPICE_ENGINE``.
        algorithm: ``forest`` or a name of the catalogue. ``COPPICE_ALGORITHM``.
        threshold_bytes: Smaller tensors (M of :mod:`coppice.run.programs.rank_program`, in bytes) go to gloo or NCCL.
            ``COPPICE_THRESHOLD``; without one it is measured.
        cache_dir: Where plans are kept. ``COPPICE_CACHE``.
        check_every_call: Compare every planned call between the ranks before it runs, not only new ones.
            ``TORCH_DISTRIBUTED_DEBUG=DETAIL``.
    """

    topology: str | None = None
    engine: str | None = None
    algorithm: str | None = None
    threshold_bytes: int | None = None
    cache_dir: str | None = None
    check_every_call: bool | None = None


def options_from(given: Options | None, environment: Mapping[str, str] | None = None) -> Options:
    """The options with what the environment says in place of None.

    Args:
        given: What the program says.
        environment: Variables (default: those of this process).

    Raises:
        InputError: If a value is out of range.

    Examples:
        >>> found = options_from(Options(engine="shm"), {"COPPICE_ENGINE": "torch", "COPPICE_THRESHOLD": "64K"})
        >>> found.engine, found.threshold_bytes, found.topology
        ('shm', 65536, None)
    """
    variables = os.environ if environment is None else environment
    said = given or Options()
    threshold = said.threshold_bytes
    if threshold is None and (text := variables.get("COPPICE_THRESHOLD", "").strip()):
        threshold = _bytes(text)
    if threshold is not None and threshold < 0:
        msg = f"expected a threshold of 0 bytes or more, found {threshold}."
        raise InputError(msg)
    engine = said.engine or variables.get("COPPICE_ENGINE") or "auto"
    if engine not in ENGINES:
        msg = f"expected the engine {', '.join(ENGINES)}, found {engine!r}: choose one of them."
        raise InputError(msg)
    checked = said.check_every_call
    if checked is None:
        checked = variables.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL"
    return replace(
        said,
        topology=said.topology or variables.get("COPPICE_TOPOLOGY") or None,
        engine=engine,
        algorithm=said.algorithm or variables.get("COPPICE_ALGORITHM") or None,
        threshold_bytes=threshold,
        check_every_call=checked,
    )


def _bytes(text: str) -> int:
    """A number of bytes such as ``65536`` or ``64K``.

    Raises:
        InputError: If it is none.
    """
    number, factor = (text[:-1], _SUFFIXES[text[-1].upper()]) if text[-1].upper() in _SUFFIXES else (text, 1)
    if not number.isdecimal():
        msg = f"expected bytes such as 65536, 64K or 1M in COPPICE_THRESHOLD, found {text!r}."
        raise InputError(msg)
    return int(number) * factor
