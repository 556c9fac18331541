"""Strict readers of the three dialects of tuner tables, and what each library then does with a call.

Written from the formats alone: nothing of the exporter is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

COLLECTIVES = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"}
ALGORITHMS = {"tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"}
PROTOCOLS = {"ll", "ll128", "simple"}
INTERVAL = re.compile(r"\*|(\d+)|([\[(])(\d*),(\d*)([\])])")


@dataclass(frozen=True)
class Line:
    collective: str
    sizes: range
    algorithm: str
    protocol: str
    channels: int
    nodes: range
    ranks: range


@dataclass(frozen=True)
class Call:
    collective: str
    size: int
    nodes: int
    ranks: int


EVERYTHING = range(2**64)


def _lines(text: str) -> list[str]:
    assert text.endswith("\n")
    assert "\r" not in text
    for line in text.splitlines():
        assert len(line) <= 255
        assert line == line.strip()
        assert line
    return [line for line in text.splitlines() if not line.startswith("#")]


def _words(collective: str, algorithm: str, protocol: str) -> None:
    assert collective in COLLECTIVES
    assert algorithm in ALGORITHMS
    assert protocol in PROTOCOLS


def read_bytes_dialect(text: str, *, rccl: bool) -> list[Line]:
    """The columns of the example plugin and of RCCL."""
    found = []
    for line in _lines(text):
        fields = line.split(",")
        assert 8 <= len(fields) <= 10
        assert all(fields)
        collective, low, high, algorithm, protocol, channels, nodes, ranks = fields[:8]
        assert fields[8:] in ([], ["-1"], ["-1", "-1"])
        _words(collective, algorithm, protocol)
        assert 0 <= int(low) <= int(high) < 2**64
        if rccl:
            assert algorithm in ("tree", "ring", "pat")
            assert int(channels) == -1 or 1 <= int(channels) <= 127
        else:
            assert 0 <= int(channels) <= 127, "-1 is one channel"
        found.append(
            Line(
                collective,
                range(int(low), int(high) + 1),
                algorithm,
                protocol,
                int(channels),
                EVERYTHING if nodes == "-1" else range(int(nodes), int(nodes) + 1),
                EVERYTHING if ranks == "-1" else range(int(ranks), int(ranks) + 1),
            )
        )
    return found


def _interval(text: str) -> range:
    match = INTERVAL.fullmatch(text)
    assert match is not None, text
    if text == "*":
        return EVERYTHING
    if match[1] is not None:
        return range(int(match[1]), int(match[1]) + 1)
    low = int(match[3] or 0) + (match[2] == "(" and bool(match[3]))
    high = 2**64 if not match[4] else int(match[4]) + (match[5] == "]")
    assert low < high, text
    return range(low, high)


def read_ncclx(text: str) -> list[Line]:
    """Intervals of bytes per rank; ``ranks`` of a line are those of one node."""
    found = []
    for line in _lines(text):
        fields = re.split(r",(?![^\[(]*[\])])", line)
        assert len(fields) == 7, "the seven columns that all versions have"
        collective, sizes, algorithm, protocol, channels, nodes, ranks = fields
        _words(collective, algorithm, protocol)
        assert int(channels) == -1 or 1 <= int(channels) <= 127
        found.append(
            Line(
                collective,
                _interval(sizes),
                algorithm,
                protocol,
                int(channels),
                _interval(nodes),
                _interval(ranks),
            )
        )
    return found


def picked(
    lines: list[Line], call: Call, *, ncclx: bool = False, missing: frozenset[tuple[str, str]] = frozenset()
) -> Line | None:
    """The first line that holds and whose combination is not missing on the machine."""
    size = call.size // call.ranks if ncclx else call.size
    ranks = call.ranks // call.nodes if ncclx else call.ranks
    for line in lines:
        if (
            line.collective == call.collective
            and size in line.sizes
            and call.nodes in line.nodes
            and ranks in line.ranks
            and (line.algorithm, line.protocol) not in missing
        ):
            return line
    return None
