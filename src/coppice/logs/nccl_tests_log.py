"""Measurements from what nccl-tests and rccl-tests print or write as JSON, joined with what the library logged.

Where the same text holds the choices of the library (``NCCL_DEBUG_SUBSYS=TUNING``), a row gets the algorithm, protocol
and channels that all calls of its collective and count had. Where it holds none, the environment may still tell: a
single algorithm in ``NCCL_ALGO`` and a single protocol in ``NCCL_PROTO`` are what ran.

The file keeps the arguments and the whole environment of the run. Only variables of NCCL and RCCL are kept; the rest
is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.logs.json_text import integer, mapping, number, text_of
from coppice.logs.nccl_tests import NcclTestsHalf, NcclTestsRank, NcclTestsRow, NcclTestsTable
from coppice.logs.records import FORCING, LoggedDecision, LoggedMeasurement, collective_named, own_name

__all__ = [
    "WORD_BYTES",
    "NcclTestsFile",
    "collective_of",
    "is_tests_file",
    "only",
    "read_tests_file",
    "rows_measured",
    "shape_of",
]

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


_OURS = ("NCCL_", "NCCLX_", "RCCL_")
_MOST_RANKS = 1 << 24


class NcclTestsFile(NamedTuple):
    """What the file says.

    Attributes:
        table: The rows; their lines are numbers of results, from 1.
        version: Version of the library, such as ``2.27.7``, None where not given.
        settings: Variables of NCCL and RCCL.
    """

    table: NcclTestsTable
    version: str | None
    settings: dict[str, str]


def is_tests_file(value: Any) -> bool:
    """Whether a JSON value is such a file."""
    return isinstance(value, dict) and "results" in value and ("config" in value or "args" in value)


def read_tests_file(value: Any, *, file: str) -> NcclTestsFile:
    """The records of a file.

    Args:
        value: Its JSON value.
        file: Its name, for messages.

    Raises:
        InputError: If something is missing or no number, with its place (``$.results[3].in_place``).

    Examples:
        >>> run = {"time": 10.5, "alg_bw": 0.1, "bus_bw": 0.2, "nwrong": 0.0}
        >>> row = {"size": 1024, "count": 256, "type": "float", "redop": "sum", "root": "    -1",
        ...        "out_of_place": run, "in_place": run}
        >>> read_tests_file({"args": ["all_reduce_perf"], "results": [row]}, file="a").table.rows[0].size_bytes
        1024
    """
    results = value["results"]
    if not isinstance(results, list) or not results:
        msg = f"expected a list of results in {file} ($.results), found none: was the run cut off?"
        raise InputError(msg)
    rows = tuple(
        _row(each, where, at)
        for at, (where, each) in enumerate(_objects(results, f"{file}: $.results"), start=1)
    )
    config = value.get("config")
    listed = config.get("devices") if isinstance(config, dict) else None
    listed = listed if isinstance(listed, list) else []
    devices = tuple(_device(each, where) for where, each in _objects(listed, f"{file}: $.config.devices"))
    arguments = value.get("args")
    program = (
        arguments[0] if isinstance(arguments, list) and arguments and isinstance(arguments[0], str) else None
    )
    wrong = value.get("out_of_bounds")
    busbw = value.get("average_bus_bandwidth")
    table = NcclTestsTable(
        rows=rows,
        devices=devices,
        wrong=integer(wrong, "count", f"{file}: $.out_of_bounds") if isinstance(wrong, dict) else None,
        avg_busbw_gb_per_s=_average(busbw, f"{file}: $.average_bus_bandwidth"),
        program=program,
    )
    return NcclTestsFile(table, _version(value.get("nccl_version")), _settings(value.get("env")))


def _average(value: Any, where: str) -> float | None:
    if not isinstance(value, dict) or value.get("bandwidth") == "nan":
        return None
    return number(value, "bandwidth", where)


def _objects(values: list[Any], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) of a list."""
    for at, value in enumerate(values):
        if not isinstance(value, dict):
            msg = f"expected an object at {where}[{at}], found {str(value)[:40]!r}."
            raise InputError(msg)
        yield f"{where}[{at}]", value


def _row(value: dict[str, Any], where: str, at: int) -> NcclTestsRow:
    return NcclTestsRow(
        size_bytes=integer(value, "size", where),
        count=integer(value, "count", where),
        type=text_of(value, "type", where),
        redop=text_of(value, "redop", where),
        root=integer(value, "root", where, low=-1, high=_MOST_RANKS),
        out_of_place=_run(value, "out_of_place", where),
        in_place=_run(value, "in_place", where),
        line=at,
    )


def _run(value: dict[str, Any], key: str, where: str) -> NcclTestsHalf | None:
    if value.get(key) is None:
        return None
    run, place = mapping(value, key, where), f"{where}.{key}"
    wrong = None if run.get("nwrong") is None else number(run, "nwrong", place)
    return NcclTestsHalf(
        time_us=number(run, "time" if "time" in run else "cpu_time", place),
        algbw_gb_per_s=number(run, "alg_bw", place),
        busbw_gb_per_s=number(run, "bus_bw", place),
        wrong=None if wrong is None else int(wrong),
    )


def _device(value: dict[str, Any], where: str) -> NcclTestsRank:
    return NcclTestsRank(
        rank=integer(value, "rank", where, high=_MOST_RANKS),
        pid=integer(value, "pid", where),
        host=text_of(value, "hostname", where),
        device=integer(value, "device", where),
        bus_id=text_of(value, "device_hex", where),
        name=text_of(value, "device_info", where),
        group=integer(value, "group", where) if "group" in value else 0,
    )


def _version(code: Any) -> str | None:
    """Text of a version code: 22707 is 2.27.7, 2804 (before 2.9) is 2.8.4.

    >>> _version(22707), _version(2804), _version("x")
    ('2.27.7', '2.8.4', None)
    """
    if not isinstance(code, int) or isinstance(code, bool) or not 1000 <= code < 1_000_000:
        return None
    if code < 10_000:
        return f"{code // 1000}.{code // 100 % 10}.{code % 100}"
    return f"{code // 10_000}.{code // 100 % 100}.{code % 100}"


def _settings(env: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in env if isinstance(env, list) else []:
        if isinstance(text, str) and text.startswith(_OURS):
            name, _, value = text.partition("=")
            found[name] = value[:1000]
    return found
