"""Set up the shared-memory segment of the ranks of one host, and raise its faults.

All that the caller brings is a way to exchange a few bytes: ``exchange(data)`` gives every rank the ``data`` of all, in
rank order, whatever does it: MPI's ``comm.allgather``, a store of torch (:func:`store_exchange`), or a directory that
all ranks see (:func:`directory_exchange`).

The segment is an anonymous file, which cannot be left behind. Where the others cannot reach rank 0's files (another
process namespace) or there are no such files (outside Linux), it is a file in a directory of memory, whose name is
removed as soon as all ranks have opened it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from coppice.decoding import decodable
from coppice.errors import CoppiceError
from coppice.files import write_atomically
from coppice.native import _run
from coppice.run.engines.engine import check_rank
from coppice.run.errors import Mismatch, PeerLost, RunError, TimedOut

Exchange = Callable[[bytes], list[bytes]]
_PREFIX = "coppice-"
_STALE_AFTER_S = 60.0
_POLL_S = 0.002


def store_exchange(store: Any, rank: int, ranks: int, *, prefix: str = "coppice-shm") -> Exchange:
    """Exchange over a store with ``set(key, bytes)`` and a blocking ``get(key)``, such as torch's.

    Args:
        store: The store. Its own timeout says how long to wait for other ranks.
        prefix: What keys begin with; every group needs another one.
    """
    rounds = 0

    def exchange(data: bytes) -> list[bytes]:
        nonlocal rounds
        rounds += 1
        store.set(f"{prefix}/{rounds}/{rank}", data)
        return [bytes(store.get(f"{prefix}/{rounds}/{peer}")) for peer in range(ranks)]

    return exchange


def directory_exchange(
    directory: str | os.PathLike[str], rank: int, ranks: int, *, timeout_s: float = 300.0
) -> Exchange:
    """Exchange over files in a fresh directory that all ranks see.

    Args:
        directory: The directory; made if it is not there.
        timeout_s: Longest time to wait for another rank, in seconds.
    """
    folder, rounds = Path(directory), 0

    def exchange(data: bytes) -> list[bytes]:
        nonlocal rounds
        rounds += 1
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"{rounds}.{rank}", data)
        end = time.monotonic() + timeout_s
        paths = [folder / f"{rounds}.{peer}" for peer in range(ranks)]
        for peer, path in enumerate(paths):
            while not path.exists():
                if time.monotonic() > end:
                    raise TimedOut(
                        f"rank {peer} did not come to {folder} within {timeout_s:g} s: start it, or see its output."
                    )
                time.sleep(_POLL_S)
        return [path.read_bytes() for path in paths]

    return exchange


class _SegmentCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank says of itself before anything is shared."""

    version: str
    layout: int
    host: str
    rank: int
    ranks: int


class _Word(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank says at one attempt: where the segment is, or why there is none."""

    path: str = ""
    error: str = ""


def join(
    rank: int, ranks: int, exchange: Exchange, *, places: Sequence[str], sizes: tuple[int, int, int]
) -> _run.ShmRank:
    """Map the segment shared by all ranks; collective over the ranks.

    Args:
        exchange: Gives every rank what all ranks give.
        places: Directories to make the segment's file in, tried in turn; an empty one stands for an anonymous file.
        sizes: Bytes of a staging slot, number of slots, bytes of a ring.
    """
    from coppice.version import __version__

    check_rank(rank, ranks)
    host = _host()
    card = _SegmentCard(version=__version__, layout=_run.SHM_LAYOUT, host=host, rank=rank, ranks=ranks)
    _compare(card, exchange(msgspec.json.encode(card)))
    number = int.from_bytes(hashlib.blake2b(host.encode(), digest_size=8).digest(), "little")
    told: list[str] = []
    for place in places:
        end, errors = _attempt(place, rank, ranks, exchange, number, sizes)
        if end is not None:
            return end
        told.append(f"{place or 'an anonymous file'} ({'; '.join(errors)})")
    raise RunError(
        f"expected shared memory for {ranks} ranks of this host, found none: {', then '.join(told)}: make room "
        "there, or name another directory in memory with COPPICE_SHM_DIR."
    )


def usual_places() -> list[str]:
    """Default directories of segments."""
    if directory := os.environ.get("COPPICE_SHM_DIR"):
        return [directory]
    return ["", "/dev/shm"] if sys.platform == "linux" else [tempfile.gettempdir()]


def _host() -> str:
    """What only processes of one boot of one host have in common."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return os.uname().nodename


def _compare(own: _SegmentCard, found: list[bytes]) -> None:
    """Every rank must be of the same group, version and host."""
    for peer, data in enumerate(found):
        try:
            card = msgspec.json.decode(data, type=decodable(_SegmentCard))
        except msgspec.MsgspecError as error:
            raise Mismatch(
                f"expected the card of rank {peer} of a shared memory group, found something else: {error}."
            ) from error
        for name in ("version", "layout", "host", "ranks"):
            if getattr(card, name) != getattr(own, name):
                raise Mismatch(
                    f"expected {name} {getattr(own, name)} on rank {peer} as on rank {own.rank}, found "
                    f"{getattr(card, name)}: shared memory joins ranks of one host and one version of Coppice."
                )
        if card.rank != peer:
            raise Mismatch(
                f"expected rank {peer} at place {peer} of the exchange, found rank {card.rank}: give each its own."
            )
    if len(found) != own.ranks:
        raise Mismatch(
            f"expected {own.ranks} ranks in the exchange, found {len(found)}: use one of the same group."
        )


def _attempt(
    place: str, rank: int, ranks: int, exchange: Exchange, host: int, sizes: tuple[int, int, int]
) -> tuple[_run.ShmRank | None, list[str]]:
    """The segment in one place, or what ranks say against it: the same answer on all ranks."""
    end: _run.ShmRank | None = None
    word = _Word()
    if rank == 0:
        path = ""
        if place:
            _sweep(Path(place))
            path = str(Path(place) / f"{_PREFIX}{secrets.token_hex(8)}")
        try:
            end = _run.shm_create(path, ranks, host, *sizes)
            word = _Word(path=end.path)
        except CoppiceError as error:
            word = _Word(error=str(error))
    try:
        offer = msgspec.json.decode(exchange(msgspec.json.encode(word))[0], type=decodable(_Word))
        word = offer
        if rank != 0 and not offer.error:
            try:
                end = _run.shm_open(offer.path, rank, ranks, host)
            except CoppiceError as error:
                word = _Word(error=str(error))
        words = [
            msgspec.json.decode(data, type=decodable(_Word)) for data in exchange(msgspec.json.encode(word))
        ]
    finally:
        if rank == 0 and end is not None:
            end.unlink()
    errors = sorted({f"rank {peer}: {each.error}" for peer, each in enumerate(words) if each.error})
    if offer.error:
        errors = [f"rank 0: {offer.error}"]
    return (None, errors) if errors else (end, [])


def _sweep(directory: Path) -> None:
    """Remove segments that a killed rank 0 has left: old ones on which no process holds a lock."""
    with contextlib.suppress(OSError):
        for path in directory.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError), path.open("r+b") as file:
                if time.time() - path.stat().st_mtime > _STALE_AFTER_S:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()


Fault = tuple[int, int, int]
"""Kind as in the native core, the rank at fault, and the rank that found it."""

_LOST, _LEFT, _TIMED_OUT, _MISMATCH, _FULL, _INTERRUPTED = range(1, 7)

_REASONS = {_LOST: "has ended", _LEFT: "has closed its engine", _INTERRUPTED: "has given up"}


def raise_fault(fault: Fault | None, rank: int, what: str, timeout_s: float) -> None:
    """Raise the segment's fault, if any.

    Args:
        fault: What the native core says, None if all is well.
        timeout_s: How long it was ready to wait, in seconds.

    Examples:
        >>> raise_fault(None, 0, "all_reduce", 60)
        >>> raise_fault((1, 2, 0), 0, "a barrier", 60)
        Traceback (most recent call last):
        coppice.run.errors.PeerLost: rank 2 has ended while rank 0 needed it for a barrier: see the output of that rank.
    """
    if fault is None:
        return
    kind, culprit, by = fault
    if kind == _TIMED_OUT:
        if culprit == rank:
            msg = f"rank {rank} came too late to {what}: the other ranks have given up waiting."
        else:
            msg = (
                f"rank {culprit} did not do its part of {what} within {timeout_s:g} s: see what that rank does, "
                "or allow more time."
            )
        raise TimedOut(msg)
    if kind == _MISMATCH:
        raise Mismatch(
            f"expected the same {what} on all ranks, found that rank {by} and rank {culprit} differ in the "
            "collective, its size, type, operation or root: make the same calls on all ranks."
        )
    if kind == _FULL:
        raise RunError(
            f"expected memory for the data of {what}, found none left for rank {culprit}: make room where the "
            "segment lies, or name another directory in memory with COPPICE_SHM_DIR."
        )
    raise PeerLost(
        f"rank {culprit} {_REASONS[kind]} while rank {rank} needed it for {what}: see the output of that rank."
    )
