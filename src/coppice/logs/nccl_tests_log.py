"""Measurements from what nccl-tests and rccl-tests print, joined with what the library logged beside them.

Where the same text holds the choices of the library (``NCCL_DEBUG_SUBSYS=TUNING``), a row gets the algorithm, protocol
and channels that all calls of its collective and count had. Where it holds none, the environment may still tell: a
single algorithm in ``NCCL_ALGO`` and a single protocol in ``NCCL_PROTO`` are what ran.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.logs.nccl_tests import NcclTestsRank, NcclTestsRow, NcclTestsTable
from coppice.logs.records import FORCING, LoggedDecision, LoggedMeasurement, collective_named, own_name

__all__ = ["WORD_BYTES", "collective_of", "only", "rows_measured", "shape_of"]

WORD_BYTES = {
    "int8": 1, "uint8": 1, "fp8": 1, "f8e4m3": 1, "f8e5m2": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
    "half": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float": 4,
    "int64": 8, "uint64": 8, "double": 8,
}  # fmt: skip
"""Bytes of an element, by the name that nccl-tests gives its type."""

_PROGRAM = re.compile(r"([A-Za-z]\w*?_perf(?:_mpi)?)(?:\.exe)?$")
_CHANNELS = (("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"), ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"))


def collective_of(program: str | None, given: Collective | None, *, file: str) -> Collective | None:
    """What a program of nccl-tests measures; None for programs that measure none of the known collectives.

    Args:
        program: Its name or path, None where the text does not tell.
        given: What the user says.
        file: Name of the file, for messages.

    Raises:
        InputError: If nobody says.

    Examples:
        >>> collective_of("./build/all_gather_perf_mpi", None, file="log").value
        'all_gather'
    """
    if given is not None:
        return given
    match = _PROGRAM.search(program or "")
    if match is None:
        msg = f"{file} does not say which collective was run: give it (`collective=all_reduce`)."
        raise InputError(msg)
    return collective_named(match[1])


def shape_of(devices: Sequence[NcclTestsRank]) -> tuple[int | None, int | None]:
    """Ranks and hosts of a communicator, from the ranks that a run lists; None where groups are unequal or none are."""
    groups: dict[int, list[NcclTestsRank]] = {}
    for device in devices:
        groups.setdefault(device.group, []).append(device)
    shapes = {(len(group), len({device.host for device in group})) for group in groups.values()}
    return shapes.pop() if len(shapes) == 1 else (None, None)


def only(settings: Mapping[str, str], collective: Collective) -> tuple[str | None, str | None, int | None]:
    """Algorithm, protocol and channels that the environment leaves no choice of.

    Examples:
        >>> only({"NCCL_ALGO": "allreduce:Tree", "NCCL_PROTO": "LL128"}, Collective.ALL_REDUCE)
        ('tree', 'll128', None)
        >>> only({"NCCL_ALGO": "^Tree", "NCCL_PROTO": "LL,LL128"}, Collective.ALL_REDUCE)
        (None, None, None)
    """
    channels = None
    for least, most in _CHANNELS:
        text = settings.get(least, "")
        if text and text == settings.get(most) and text.isascii() and text.isdigit() and len(text) < 4:
            channels = int(text)
    return (
        _single(settings.get("NCCL_ALGO"), collective),
        _single(settings.get("NCCL_PROTO"), collective),
        channels,
    )


def _single(text: str | None, collective: Collective) -> str | None:
    chosen: str | None = None
    for part in (text or "").split(";"):
        function, colon, names = part.rpartition(":")
        if not colon or collective_named(function.strip()) is collective:
            chosen = names.strip()
    return own_name(chosen) if chosen else None


def rows_measured(
    table: NcclTestsTable,
    collective: Collective,
    *,
    file: str,
    shape: tuple[int | None, int | None],
    settings: Mapping[str, str],
    told: bool,
    decisions: Sequence[LoggedDecision] = (),
) -> list[LoggedMeasurement]:
    """The rows of a table as measurements.

    Args:
        table: The table.
        collective: What was run.
        file: Name of the file.
        shape: Ranks and nodes of the communicator.
        settings: Variables that were set.
        told: The text would show settings, if there were any.
        decisions: Choices of the library in the same run.
    """
    ranks, nodes = shape
    chosen: dict[int, set[tuple[str, str, int | None]]] = {}
    for decision in decisions:
        if decision.collective is collective and decision.ranks in (None, ranks):
            cell = (decision.algorithm, decision.protocol, decision.channels)
            chosen.setdefault(decision.rank_bytes, set()).add(cell)
    forced = any(name in settings for name in FORCING) if told or settings else None
    found: list[LoggedMeasurement] = []
    for row in table.rows:
        cells = chosen.get(_rank_bytes(row), set())
        algorithm, protocol, channels = next(iter(cells)) if len(cells) == 1 else only(settings, collective)
        for run, in_place in ((row.out_of_place, False), (row.in_place, True)):
            if run is None:
                continue
            found.append(
                LoggedMeasurement(
                    collective=collective,
                    ranks=ranks,
                    nodes=nodes,
                    size_bytes=row.size_bytes,
                    time_us=run.time_us,
                    algorithm=algorithm,
                    protocol=protocol,
                    channels=channels,
                    forced=forced,
                    in_place=in_place,
                    wrong=run.wrong,
                    type=row.type,
                    file=file,
                    line=row.line,
                )
            )
    return found


def _rank_bytes(row: NcclTestsRow) -> int:
    """Bytes of a rank's count, -1 for types of unknown size."""
    return row.count * WORD_BYTES.get(row.type, -1) if row.type in WORD_BYTES else -1
