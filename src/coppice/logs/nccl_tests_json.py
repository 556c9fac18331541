"""The JSON file of nccl-tests (``-J``, file versions 1 and 2) as the same records as the printed table.

The file keeps the arguments and the whole environment of the run. Only variables of NCCL and RCCL are kept; the rest
is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from coppice.errors import InputError
from coppice.logs.json_text import integer, mapping, number, text_of
from coppice.logs.nccl_tests import NcclTestsHalf, NcclTestsRank, NcclTestsRow, NcclTestsTable

__all__ = ["NcclTestsFile", "is_tests_file", "read_tests_file"]

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
