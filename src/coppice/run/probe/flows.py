"""Measure the flows of probes between the running ranks: all of a round at once, each with a rate of its own.

A flow is sent in pieces, and its rate is that of all pieces but the first, by the times at which they arrive: start-up
and the bursts that shapers let through do not count. Sizes are chosen so that all flows of a round take equally long
where nothing is slow: flows of equal expected rates get one size, by what their median takes in a trial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from coppice.decoding import decodable
from coppice.diagnosis.design import ProbeDesign
from coppice.errors import InputError
from coppice.run.engines.engine import Engine, StreamingEngine

PIECES = 16
"""Pieces of a flow."""

FIRST = 4
"""Pieces that do not count."""

SECONDS = 0.25
"""Time of a round in which nothing is slow."""

MOST_BYTES = 1 << 28
"""Largest size of a flow."""

MOST_OVER = 1.25
"""Times the expected rate that a flow may have: what seems faster had arrived before anybody looked."""

_LEAST_PIECE = 1 << 10
_TRIALS = 4
_COALESCED = 8.0
_NEAR = 1.5
"""A trial whose time is that near to the one wanted is enough."""


class FlowRound(msgspec.Struct, frozen=True):
    """Flows that run at once."""

    pairs: list[tuple[int, int]]  # Sender and receiver of each
    expected: list[float]  # Rate of each with nothing slow, GB/s


def measure_design(
    engine: Engine,
    design: ProbeDesign | None,
    *,
    rounds: int = 3,
    seconds: float = SECONDS,
    timeout_s: float = 60.0,
    progress: Callable[[int, int], None] | None = None,
) -> list[NDArray[np.float64]]:
    """Measure all flows of a design; collective over the ranks of an engine.

    Args:
        engine: What moves the data: torch or mpi.
        design: The probes, on rank 0; other ranks get them from there.
        rounds: Measurements of each flow.
        seconds: Time of a round in which nothing is slow.
        timeout_s: Longest wait for another rank.
        progress: Called with the numbers of rounds done and of all.

    Returns:
        For each round the rates of its flows in GB/s, a row each with a column a measurement; equal on all ranks.

    Raises:
        InputError: If the engine cannot time single flows, or the design is of other ranks.
        RunError: If a rank is gone or does not answer.
    """
    if not isinstance(engine, StreamingEngine):
        raise InputError(f"expected the engine torch or mpi, found {engine.name}: choose one of them.")
    own = b"" if design is None or engine.rank else msgspec.json.encode(_rounds_of(design))
    told = msgspec.json.decode(engine.exchange(own)[0], type=decodable(list[FlowRound]))
    ranks = 1 + max(rank for each in told for pair in each.pairs for rank in pair)
    if ranks > engine.ranks:
        raise InputError(f"expected {ranks} processes for these probes, found {engine.ranks}: start as many.")
    found = []
    for place, each in enumerate(told):
        found.append(_measure(engine, each, rounds=rounds, seconds=seconds, timeout_s=timeout_s))
        if progress is not None:
            progress(place + 1, len(told))
    return found


def _rounds_of(design: ProbeDesign) -> list[FlowRound]:
    return [
        FlowRound(list(zip(each.src.tolist(), each.dst.tolist(), strict=True)), rate.tolist())
        for each, rate in zip(design.rounds, design.healthy, strict=True)
    ]


def _measure(
    engine: StreamingEngine, flows: FlowRound, *, rounds: int, seconds: float, timeout_s: float
) -> NDArray[np.float64]:
    """Rates of the flows of a round: trials find the sizes, then it is measured."""
    expected = np.array(flows.expected)
    classes = np.unique(expected, return_inverse=True)[1]
    size = np.clip(expected * 1e9 * seconds / 4, PIECES * _LEAST_PIECE, 1 << 20)
    for _ in range(_TRIALS):
        rate = _rates(engine, flows.pairs, size, timeout_s)
        typical = np.array([np.median(rate[classes == each]) for each in classes])
        typical = np.minimum(typical, MOST_OVER * expected)
        wanted = np.clip(typical * 1e9 * seconds, PIECES * _LEAST_PIECE, MOST_BYTES)
        near = np.maximum(wanted / size, size / wanted).max() < _NEAR
        size = wanted
        if near:
            break
    return np.stack([_rates(engine, flows.pairs, size, timeout_s) for _ in range(rounds)], axis=1)


def _rate(piece_bytes: int, arrived: NDArray[np.float64]) -> float:
    """Rate in GB/s by the seconds at which pieces had arrived.

    Where a process had no processor for a while, pieces seem to arrive at once when it goes on: then all of them count,
    from the start.

    Examples:
        >>> round(_rate(1000, np.arange(1, 17) * 1e-3 + 0.1), 6), round(_rate(1000, np.full(16, 0.016)), 6)
        (0.001, 0.001)
    """
    took = max(float(arrived[-1] - arrived[FIRST - 1]), 1e-9)
    rate = (PIECES - FIRST) * piece_bytes / took / 1e9
    whole = PIECES * piece_bytes / max(float(arrived[-1]), 1e-9) / 1e9
    return rate if rate < _COALESCED * whole else whole


def _rates(
    engine: StreamingEngine, pairs: Sequence[tuple[int, int]], size: NDArray[np.float64], timeout_s: float
) -> NDArray[np.float64]:
    """Rate of each flow in GB/s, all at once."""
    leaving = next((place for place, pair in enumerate(pairs) if pair[0] == engine.rank), None)
    arriving = next((place for place, pair in enumerate(pairs) if pair[1] == engine.rank), None)
    piece = (size / PIECES).astype(np.int64)
    out = None if leaving is None else np.ones((PIECES, piece[leaving]), dtype=np.uint8)
    into = None if arriving is None else np.zeros((PIECES, piece[arriving]), dtype=np.uint8)
    dst = engine.rank if leaving is None else pairs[leaving][1]
    src = engine.rank if arriving is None else pairs[arriving][0]
    engine.exchange(b"")
    rate = 0.0
    if out is not None or into is not None:
        arrived = engine.stream(out=out, dst=dst, into=into, src=src, timeout_s=timeout_s)
        if arriving is not None:
            rate = _rate(int(piece[arriving]), arrived)
    told = [
        msgspec.json.decode(each, type=decodable(float))
        for each in engine.exchange(msgspec.json.encode(rate))
    ]
    return np.array([told[dst] for _, dst in pairs])
