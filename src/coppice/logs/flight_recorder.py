"""Read dumps of PyTorch's flight recorder: the last collectives of one rank, with their states and callers.

A dump is a pickle (``TORCH_FR_DUMP_TEMP_FILE``, ``torch._C._distributed_c10d._dump_nccl_trace()``) or the same as JSON.
A pickle can run any program, so nothing but plain containers, texts and numbers is read from it: a dump that names a
class or a function is refused. Sequence numbers of a group count its collectives on every rank alike, which is how
dumps of several ranks are joined.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from coppice.errors import InputError
from coppice.logs.json_text import integer, text_of

_MOST_FRAMES = 64
_MOST_ENTRIES = 1_000_000
_OWN = re.compile(r"(?:^|/)(?:torch|site-packages|dist-packages)/")

STATES = ("scheduled", "started", "completed")
"""States of a call, in their order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedCall:
    """A call of one rank in the flight recorder."""

    group: str  # Name of the process group
    number: int  # Sequence number of the collective in the group; of the message between two ranks where it is one
    operation: str  # Such as all_reduce
    sizes: tuple[tuple[int, ...], ...]  # Shapes of the inputs
    types: tuple[str, ...]  # Types of their elements
    state: str  # scheduled, started or completed
    message: bool  # A message between two ranks, no collective
    created_ns: int | None  # When it was called, by the host's clock; None where not given
    duration_ms: float | None  # Time on the GPU, None without TORCH_NCCL_ENABLE_TIMING
    caller: str  # File, line and function that called it; empty where not given


@dataclass(frozen=True, kw_only=True)
class FlightRecording:
    """The dump of one rank."""

    file: str
    rank: int
    groups: Mapping[str, tuple[str, tuple[int, ...]]]  # Description and ranks of each process group
    # Last collective that was called and completed, by group; without what the recorder does not know
    called: Mapping[str, int]
    completed: Mapping[str, int]
    calls: tuple[RecordedCall, ...]


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that makes no objects of classes."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module[:60]}.{name[:60]}")

    def persistent_load(self, pid: Any) -> NoReturn:  # noqa: ARG002 (of the protocol)
        raise pickle.UnpicklingError("it refers to objects elsewhere")


def is_pickle(data: bytes) -> bool:
    """Whether bytes are a pickle of protocol 2 or later."""
    return len(data) > 3 and data[0] == 0x80 and 2 <= data[1] <= 5 and data.rstrip(b"\n")[-1:] == b"."


def unpickled(data: bytes, *, file: str) -> Any:
    """Read a pickle of plain containers.

    Raises:
        InputError: If it is none, or is made of anything else.

    Examples:
        >>> unpickled(pickle.dumps({"version": "2.10", "entries": [(1, "a")]}), file="x")
        {'version': '2.10', 'entries': [(1, 'a')]}
        >>> unpickled(pickle.dumps(Path("x")), file="x")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        coppice.errors.InputError: expected a pickle of plain containers in x, found ...
    """
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # noqa: BLE001 (a pickle that is broken raises whatever its instructions lead to)
        words = str(error)[:120] or type(error).__name__
        raise InputError(
            f"expected a pickle of plain containers in {file}, found another ({words}): give a dump of the flight "
            "recorder as PyTorch writes it."
        ) from None


def is_recording(value: Any) -> bool:
    """Whether a value is a dump of the flight recorder."""
    return isinstance(value, dict) and "entries" in value and ("pg_config" in value or "pg_status" in value)


def read_recording(value: Any, *, file: str) -> FlightRecording:
    """The dump of a rank; its file name ends with the rank, as PyTorch names it.

    Args:
        value: What the pickle or the JSON holds.

    Raises:
        InputError: If it is no dump, or nothing tells whose it is.

    Examples:
        >>> entry = {"process_group": ("0", "default_pg"), "collective_seq_id": 3, "profiling_name": "nccl:all_reduce",
        ...          "state": "started", "input_sizes": [[8]]}
        >>> found = read_recording({"pg_config": {"0": {"desc": "default_pg", "ranks": "[0, 1]"}}, "entries": [entry]},
        ...                        file="nccl_trace_rank_1")
        >>> found.rank, found.groups, found.calls[0].operation, found.calls[0].number
        (1, {'0': ('default_pg', (0, 1))}, 'all_reduce', 3)
    """
    if not is_recording(value):
        raise InputError(f"expected a dump of the flight recorder in {file}, found something else.")
    named = re.findall(r"[0-9]+", Path(file).stem)
    if "rank" not in value and not named:
        raise InputError(
            f"expected the name of {file} to end with its rank, such as nccl_trace_rank_3: rename it, for the dump "
            "does not tell."
        )
    rank = integer(value, "rank", file, high=1 << 24) if "rank" in value else int(named[-1][:9])
    groups: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, group in _dict(value.get("pg_config"), "pg_config", file).items():
        own = _dict(group, f"pg_config[{str(name)[:20]!r}]", file)
        members = tuple(int(each) for each in re.findall(r"[0-9]{1,9}", str(own.get("ranks", ""))[: 1 << 24]))
        groups[str(name)] = (str(own.get("desc", ""))[:80], members)
    entries = value["entries"]
    if not isinstance(entries, list | tuple) or len(entries) > _MOST_ENTRIES:
        raise InputError(f"expected a list `entries` in {file}, found {type(entries).__name__}.")
    calls = tuple(_call(entry, f"{file} entries[{place}]") for place, entry in enumerate(entries))
    # The state of groups goes by number, all else by name
    names = {str(entry.get("pg_id")): call.group for entry, call in zip(entries, calls, strict=True)}
    called: dict[str, int] = {}
    completed: dict[str, int] = {}
    for group_id, status in _dict(value.get("pg_status"), "pg_status", file).items():
        own = _dict(status, f"pg_status[{str(group_id)[:20]!r}]", file)
        name = names.get(str(group_id), str(group_id))
        for key, kept in (("last_enqueued_collective", called), ("last_completed_collective", completed)):
            if key in own and (number := integer(own, key, file, low=-1)) >= 0:
                kept[name] = number
    return FlightRecording(
        file=file, rank=rank, groups=groups, called=called, completed=completed, calls=calls
    )


def _call(entry: Any, where: str) -> RecordedCall:
    own = _dict(entry, "an entry", where)
    group = own.get("process_group")
    name = group[0] if isinstance(group, list | tuple) and group else own.get("pg_id", "")
    message = own.get("is_p2p") is True or own.get("is_p2p") == "true"
    state = text_of(own, "state", where)
    if state not in STATES:
        raise InputError(f"expected `state` as one of {', '.join(STATES)} at {where}, found {state[:20]!r}.")
    if (
        own.get("retired") is True or own.get("retired") == "true"
    ):  # the watchdog saw its end; gloo tells no more
        state = "completed"
    sizes = own.get("input_sizes")
    types = own.get("input_dtypes")
    duration = own.get("duration_ms")
    timed = isinstance(duration, int | float) and not isinstance(duration, bool) and 0 < duration < 1e12
    created = own.get("time_created_ns")
    return RecordedCall(
        group=str(name)[:200],
        number=integer(own, "p2p_seq_id" if message else "collective_seq_id", where),
        operation=text_of(own, "profiling_name", where).partition(":")[2][:80]
        or text_of(own, "profiling_name", where)[:80],
        sizes=tuple(_shape(each) for each in _rows(sizes)),
        types=tuple(str(each)[:20] for each in _rows(types)),
        state=state,
        message=message,
        created_ns=created if isinstance(created, int) and created > 0 else None,
        duration_ms=float(duration) if timed and duration is not None else None,
        caller=_caller(own.get("frames")),
    )


def _rows(value: Any) -> tuple[Any, ...]:
    return tuple(value[:64]) if isinstance(value, list | tuple) else ()


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(each for each in _rows(value) if isinstance(each, int))


def _caller(frames: Any) -> str:
    """The innermost frame outside PyTorch."""
    found = ""
    for frame in _rows(frames)[:_MOST_FRAMES]:
        if isinstance(frame, dict):
            file = str(frame.get("filename", ""))[-200:]
            words = f"{file}:{frame.get('line', 0)} in {str(frame.get('name', ''))[:80]}"
            if not _OWN.search(file):
                return words
            found = found or words
    return found


def _dict(value: Any, what: str, where: str) -> dict[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(
            f"expected {what} of a dump in {where}, found {type(value).__name__}: is the file whole?"
        )
    return value
