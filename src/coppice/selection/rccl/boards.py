"""Boards that RCCL knows: their rings are a table in it, found by the numbers of links between all pairs of GPUs.

RCCL compares a machine with its list of boards and takes the rings of the first one that fits under some numbering of
the GPUs; it searches only where none does, which is not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from importlib import resources

import msgspec

from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.selection.nccl.boxes import Box, each_box
from coppice.topology.model import Topology
from coppice.topology.readers.link_rates import RateClass, xgmi_gb_per_s


class KnownBoard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A board of RCCL's list."""

    name: str  # As RCCL calls it
    gpus: int  # Number of GPUs (dies)
    nics: int  # Number of NICs
    links: list[list[int]]  # Pairs of GPUs with their number of links
    rings: list[str]  # Rings through the GPUs, such as `N0 0 1 2 3 N1`: NICs that they come in and leave by
    tuning: str | None  # Constants of the cost model; None: those of the generation
    ll128: bool  # LL128 is on


class TuningModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Constants of the cost model for some boards; columns by protocol: LL, LL128, Simple."""

    hardware_latency_us: dict[str, dict[str, list[float]]]  # By kind of link and algorithm
    share: list[dict[str, list[float]]]  # Of the rate of all channels, for up to 2 boxes and for more
    tree_correction: dict[str, list[float]]  # By protocol and size in powers of two from 64 bytes
    ring_correction: dict[str, list[float]]  # Likewise, of rings over several boxes
    protocols: dict[
        str, dict[str, list[int]]
    ]  # Over several boxes: bytes above and up to which a protocol is taken
    channels: dict[
        str, list[list[int]]
    ]  # Over several boxes: bytes a rank above and up to which so many are taken


class ShippedProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program for MSCCL that RCCL ships."""

    name: str  # Of the file
    collective: str
    gpus: int
    protocol: str
    channels: int
    least_bytes: int
    most_bytes: int
    in_place: bool
    out_of_place: bool


class RcclConstants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of ``data/rccl.json``."""

    version: str
    source: str
    base_latency_us: dict[str, list[float]]
    net_overhead_us: dict[str, float]
    xgmi_gb_per_s: dict[str, float]  # What RCCL reckons for a link
    tuning_of: dict[str, str]  # Constants of each generation
    most_channels: dict[str, int]
    thread_threshold_bytes: dict[str, int]
    threads: int
    direct_all_gather_bytes: dict[str, int]  # Up to which an all-gather goes directly
    ll_within_box_bytes: dict[str, dict[str, int]]  # Bytes a rank up to which one box takes LL
    msccl_files: list[ShippedProgram]  # For one box of MI300X
    tunings: dict[str, TuningModel]
    boards: list[KnownBoard]


@cache
def constants() -> RcclConstants:
    """Load the constants."""
    data = resources.files("coppice.selection").joinpath("data", "rccl.json")
    return msgspec.json.decode(data.read_bytes(), type=decodable(RcclConstants))


ARCHITECTURES = ("gfx90a", "gfx942", "gfx950")
"""Generations whose constants RCCL has: MI200, MI300 and MI350."""


@dataclass(frozen=True, kw_only=True)
class MatchedBoard:
    """A box of a topology, and the board that it is."""

    board: KnownBoard
    gpus: tuple[int, ...]  # Number in the box of each GPU of the board
    rings: tuple[tuple[int, ...], ...]  # GPUs of the box in order
    ports: tuple[tuple[int, int], ...]  # NICs in and out; empty without
    gb_per_s: float  # What RCCL reckons for all links of a GPU


def architecture_of(topology: Topology) -> str | None:
    """Generation of the GPUs where it is one whose constants RCCL has; None otherwise.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> architecture_of(preset("mi300x")), architecture_of(preset("dgx-h100"))
        ('gfx942', None)
    """
    if not topology.arch:
        return None
    found = {topology.arch[node] for node in topology.rank_nodes.tolist()}
    name = next(iter(found)) if len(found) == 1 else None
    return name if name in ARCHITECTURES else None


def boards_of(topology: Topology, architecture: str) -> list[MatchedBoard]:
    """The board of every box.

    Args:
        architecture: One of :data:`ARCHITECTURES`.

    Raises:
        InputError: If RCCL does not know the board of a box, so that it would search.
    """
    boxes = [box for _, box in each_box(topology)]
    return [
        _matched(_counts(box, architecture), _nics(box) if len(boxes) > 1 else 0, topology.name, architecture)
        for box in boxes
    ]


def _nics(box: Box) -> int:
    return len({place for place, _ in box.cables})


def _counts(box: Box, architecture: str) -> tuple[tuple[int, ...], ...]:
    """Number of links between all GPUs of a box, by rank."""
    nominal, measured = (
        xgmi_gb_per_s(architecture, rates) for rates in (RateClass.NOMINAL, RateClass.MEASURED)
    )
    number = {place: i for i, place in enumerate(box.ranks)}
    rates = {pair: rate for pair, rate in box.links.items() if number.keys() >= set(pair)}
    unit = nominal if all((rate / nominal).denominator == 1 for rate in rates.values()) else measured
    table = [[0] * len(number) for _ in number]
    for (a, b), rate in rates.items():
        table[number[a]][number[b]] = max(1, round(Fraction(rate) / unit))
    return tuple(tuple(row) for row in table)


@lru_cache(maxsize=64)
def _matched(counts: tuple[tuple[int, ...], ...], nics: int, name: str, architecture: str) -> MatchedBoard:
    known = [board for board in constants().boards if board.gpus == len(counts)]
    # One box has no NICs for RCCL; of boards that differ in NICs alone the one with as many, else the most, stands.
    known.sort(key=lambda board: (board.nics != nics, -board.nics) if nics else (board.nics, 0))
    for board in known:
        if bool(board.nics) != bool(nics):
            continue
        order = _numbering(_table(board), counts)
        if order is not None:
            rate = constants().xgmi_gb_per_s[architecture] * max(map(sum, counts))
            rings, ports = zip(*(_ring(text, order) for text in board.rings), strict=True)
            return MatchedBoard(
                board=board, gpus=order, rings=rings, ports=ports if all(ports) else (), gb_per_s=rate
            )
    boards = ", ".join(dict.fromkeys(board.name for board in known)) or "none of so many GPUs"
    raise InputError(
        f"expected a board that RCCL knows ({boards}), found other links between the {len(counts)} GPUs of a box of "
        f"{name}: RCCL searches there, which is not modelled; give its log (`log`)."
    )


def _table(board: KnownBoard) -> list[list[int]]:
    table = [[0] * board.gpus for _ in range(board.gpus)]
    for a, b, count in board.links:
        table[a][b] = table[b][a] = count
    return table


def _numbering(board: Sequence[Sequence[int]], counts: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """GPUs of a box in the order of a board's, so that all numbers of links agree; None where there is none."""
    size = len(board)
    if sorted(map(sorted, board)) != sorted(map(sorted, counts)):
        return None
    taken: list[int] = []

    def fits(gpu: int) -> bool:
        place = len(taken)
        return gpu not in taken and all(
            board[place][i] == counts[gpu][other] for i, other in enumerate(taken)
        )

    def placed() -> bool:
        if len(taken) == size:
            return True
        for gpu in sorted(range(size), key=lambda each: each != len(taken)):
            if fits(gpu):
                taken.append(gpu)
                if placed():
                    return True
                taken.pop()
        return False

    return tuple(taken) if placed() else None


def _ring(text: str, order: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, int] | tuple[()]]:
    words = text.split()
    nics = [int(word[1:]) for word in words if word.startswith("N")]
    ranks = tuple(order[int(word)] for word in words if not word.startswith("N"))
    return ranks, (nics[0], nics[-1]) if nics else ()


def tuning_of(board: KnownBoard, architecture: str) -> TuningModel:
    """Constants of a board: its own up to MI300, those of the generation from MI350 on."""
    data: Mapping[str, str] = constants().tuning_of
    name = data[architecture] if architecture == "gfx950" or board.tuning is None else board.tuning
    return constants().tunings[name]
