"""Read events that NCCL's example profiler plug-in writes (Chrome's trace format): what proxies waited for.

A proxy moves the pieces of one channel to or from one peer. In sending it waits for room in its buffers, for its own
GPU, and for the network; in receiving for room, for the network (and with it for the peer), and for its GPU. Events
stand nested in the file: collective, proxy operation, steps. The end of a collective is that of its last child.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from coppice.logs.json_text import integer, json_objects, text_of

_CATEGORIES = ("GROUP", "COLL", "P2P", "PROXY", "NET", "GPU")
_WAITS = {
    "SendBufferWait": "room",
    "SendGpuWait": "own GPU",
    "SendWait": "network",
    "RecvBufferWait": "room",
    "RecvWait": "peer",
    "RecvFlushWait": "flush",
    "RecvGpuWait": "own GPU",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfiledCall:
    """A collective of one rank."""

    communicator: str
    number: int
    rank: int
    operation: str  # As NCCL names it, such as AllReduce
    count: int  # Elements
    type: str  # Of an element
    algorithm: str
    protocol: str
    start_us: float
    stop_us: float | None  # None where the file ends before


@dataclass(frozen=True, kw_only=True, slots=True)
class ProxyWait:
    """What one proxy operation waited for, added over its steps."""

    communicator: str
    rank: int
    peer: int
    channel: int
    sending: bool
    moved_bytes: int
    waited_us: dict[str, float]  # By what it waited for: room, own GPU, network, peer, flush


def is_profile(value: Any) -> bool:
    """Whether a JSON value is an event of the profiler plug-in."""
    return isinstance(value, dict) and value.get("cat") in _CATEGORIES and value.get("ph") in ("b", "e")


def profile_events(text: str, *, file: str) -> list[tuple[int, dict[str, Any]]] | None:
    """Events with their lines, None where a text has none; the list need not be closed, as when a job was killed."""
    body = text.lstrip()
    if not body.startswith(("[", "{")) or '"cat"' not in body[:4096]:
        return None
    body = body.removeprefix("[").rstrip().removesuffix("]").rstrip().rstrip(",").removesuffix("{}")
    found = list(json_objects(body, file=file, warnings=[]))
    return found if found and is_profile(found[0][1]) else None


def read_profile(
    events: Iterable[tuple[int, dict[str, Any]]], *, file: str
) -> tuple[tuple[ProfiledCall, ...], tuple[ProxyWait, ...]]:
    """Collectives and waits of one file.

    Raises:
        InputError: If an event lacks what its kind has.
    """
    calls: list[ProfiledCall] = []
    waits: list[ProxyWait] = []
    open_call: ProfiledCall | None = None
    open_wait: ProxyWait | None = None
    since: dict[tuple[str, int], float] = {}
    for line, event in events:
        if not is_profile(event):
            continue
        where = f"{file}:{line}"
        kind, name, begins = event["cat"], text_of(event, "name", where), event["ph"] == "b"
        at = _time(event)
        if kind == "COLL" and begins:
            if open_call is not None:
                calls.append(open_call)
            own = _arguments(event)
            open_call = ProfiledCall(
                communicator=str(integer(own, "CommHash", where, high=1 << 64)),
                number=integer(own, "SeqNum", where),
                rank=integer(own, "Rank", where, high=1 << 24),
                operation=name[:40],
                count=integer(own, "Count", where),
                type=str(own.get("Datatype", ""))[:20],
                algorithm=str(own.get("Algorithm", ""))[:20],
                protocol=str(own.get("Protocol", ""))[:20],
                start_us=at,
                stop_us=None,
            )
        elif kind == "COLL" and open_call is not None:
            calls.append(_stopped(open_call, at))
            open_call = None
        elif kind == "PROXY" and name in ("Send", "Recv") and begins and open_call is not None:
            own = _arguments(event)
            open_wait = ProxyWait(
                communicator=open_call.communicator,
                rank=open_call.rank,
                peer=integer(own, "Peer", where, high=1 << 24),
                channel=integer(own, "Channel", where, high=1 << 16),
                sending=name == "Send",
                moved_bytes=integer(own, "transSize", where) if "transSize" in own else 0,
                waited_us={},
            )
        elif kind == "PROXY" and name in ("Send", "Recv") and open_wait is not None:
            waits.append(open_wait)
            open_wait = None
        elif kind == "NET" and name in _WAITS and open_wait is not None:
            key = (name, integer(event, "id", where))
            if begins:
                since[key] = at
            elif key in since:
                what = _WAITS[name]
                waited = max(0.0, at - since.pop(key))
                open_wait.waited_us[what] = open_wait.waited_us.get(what, 0.0) + waited
    calls += [] if open_call is None else [open_call]
    waits += [] if open_wait is None else [open_wait]
    return tuple(calls), tuple(waits)


def _stopped(call: ProfiledCall, at: float) -> ProfiledCall:
    return replace(call, stop_us=at)


def _arguments(event: dict[str, Any]) -> dict[str, Any]:
    found = event.get("args")
    return found if isinstance(found, dict) else {}


def _time(event: dict[str, Any]) -> float:
    value = event.get("ts")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
