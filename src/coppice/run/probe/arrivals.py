"""A canary for puts and signals: when a wait for a signal is over, are the data there that came before it?

Every rank puts a pattern that changes from round to round to each of its peers in turn. Behind the wait, on the same
stream, what has arrived is copied aside, and the copy is compared: what is still old was missing when the wait was
over, however soon it came. A user of NCCL 2.30 has seen that on GB300, with puts by copy engines outside of graphs
(NVIDIA/nccl issue 2375).
"""

from __future__ import annotations

import msgspec
import numpy as np

from coppice.decoding import decodable
from coppice.errors import CheckError
from coppice.run.engines.put_signal.device import Awaited, Put
from coppice.run.engines.put_signal.engine import PutSignalEngine
from coppice.run.errors import RunError
from coppice.text import plural

_BYTES = 1 << 20
_MOST_PEERS = 8
_PATTERNS = 251


def check_arrivals(
    engine: PutSignalEngine, *, rounds: int = 16, num_bytes: int = _BYTES, timeout_s: float = 60.0
) -> int:
    """Put, signal and look; every rank calls this.

    Args:
        engine: This rank's end of the group.
        timeout_s: Longest wait for another rank, in seconds.

    Returns:
        How many puts of all ranks were looked at.
    """
    rank, ranks, device = engine.rank, engine.ranks, engine.device
    engine.try_out(timeout_s, num_bytes=3 * num_bytes, communicators=1)
    found: list[tuple[int, int, int]] = []
    arrived = np.empty(num_bytes, dtype=np.uint8)
    shifts = range(1, min(ranks, _MOST_PEERS + 1))
    try:
        for number in range(rounds * len(shifts)):
            shift = shifts[number % len(shifts)]
            to, source = (rank + shift) % ranks, (rank - shift) % ranks
            device.write(0, np.full(num_bytes, _pattern(number, rank), dtype=np.uint8))
            engine.exchange(b"")  # all have looked at what came before
            device.begin()
            device.transfer(0, 0, [Put(to, 0, num_bytes, num_bytes, 0, 0)])
            device.wait(0, 0, [Awaited(source, 1, 0, 0)])
            device.copy(0, num_bytes, 2 * num_bytes, num_bytes)
            device.finish("a look at what has arrived", timeout_s)
            device.read(2 * num_bytes, arrived)
            old = int(np.count_nonzero(arrived != _pattern(number, source)))
            if old:
                found.append((number, source, old))
    except RunError as error:
        device.abort(str(error))
        raise
    told: list[list[tuple[int, int, int]]] = [
        msgspec.json.decode(each, type=decodable(list[tuple[int, int, int]]))
        for each in engine.exchange(msgspec.json.encode(found))
    ]
    count = sum(map(len, told))
    if count:
        receiver = next(each for each, entries in enumerate(told) if entries)
        number, source, old = told[receiver][0]
        raise CheckError(
            f"expected the data of a put when the wait for its signal is over, found {old} of {num_bytes} bytes still "
            f"old at rank {receiver}, from rank {source}, in round {number} ({plural(count, 'put')} of "
            f"{rounds * len(shifts) * ranks}): do not use puts of {device.name} here (NVIDIA/nccl issue 2375 tells of "
            "GB300 with NCCL 2.30), or capture them as a graph and probe again."
        )
    return rounds * len(shifts) * ranks


def _pattern(number: int, rank: int) -> int:
    """What a rank sends in a round: never what it, or its neighbours, sent in the rounds before."""
    return (number * 17 + rank) % _PATTERNS + 1
