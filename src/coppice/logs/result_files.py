"""Read result files of rccl-tests (``-x FILE -Z csv`` and ``-Z json``) and mscclpp-test (``-o``).

One record is one measurement. Versions of rccl-tests wrote CSV with a header that lacks the column ``nodes``, so that
every later value stands under the title before its own: such a file is read only where its figures confirm where the
missing column was. Any other file whose rows have more or fewer values than the header is refused.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.logs.columns import BLANK
from coppice.logs.records import Log, LoggedMeasurement, collective_named
from coppice.logs.rows import agree, factor_contradicts, figures_of
from coppice.text import plural

_KEYS = {
    "name": "collective", "collective": "collective", "nodes": "nodes", "ranks": "ranks", "gpus": "gpus",
    "rankspernode": "ranks_per_node", "gpusperrank": "gpus_per_rank", "size": "size", "type": "type",
    "inplace": "in_place", "time": "time", "algbw": "algbw", "busbw": "busbw", "wrong": "wrong", "#wrong": "wrong",
    "redop": "redop", "numcycle": "cycle", "kernel": "kernel",
}  # fmt: skip
_NEEDED = ("collective", "size", "time", "algbw", "busbw")
_MOST = 1 << 24
_DIGITS = 18


def is_csv(text: str) -> bool:
    """Whether a text is a CSV of results."""
    titles = text[:2000].lstrip().split("\n", 1)[0].lower().split(",")
    names = {_KEYS.get(title.strip().strip('"')) for title in titles}
    return len(titles) > 5 and all(name in names for name in _NEEDED)


def is_result(value: Any) -> bool:
    """Whether a JSON value is a result record."""
    return isinstance(value, dict) and all(
        name in {_KEYS.get(str(key).lower()) for key in value} for name in _NEEDED
    )


def read_results(values: Iterable[tuple[int, Any]], *, file: str) -> Log:
    """Records of a JSON-lines file."""
    records: list[tuple[int, dict[str, Any]]] = []
    for line, value in values:
        if not is_result(value):
            raise InputError(
                f"expected a result with {', '.join(_NEEDED)} at {file}:{line}, found {str(value)[:40]!r}."
            )
        records.append((line, {_KEYS.get(key.lower(), key): each for key, each in value.items()}))
    whose = "mscclpp-test" if any("kernel" in record for _, record in records) else "rccl-tests"
    return _log(records, file, f"JSON lines of {whose}")


def read_csv(text: str, *, file: str) -> Log:
    r"""Records of a CSV file.

    Examples:
        >>> text = ("numCycle,collective,nodes,ranks,rankspernode,gpusperrank,size,type,redop,inplace,time,algbw,busbw,"
        ...         "wrong\n0,AllReduce,1,8,8,1,1048576,float,sum,0,55.66,18.84,32.97,0\n")
        >>> found, = read_csv(text, file="x.csv").measurements
        >>> found.ranks, found.size_bytes, found.time_us, found.in_place
        (8, 1048576, 55.66, False)
    """
    reader = csv.reader(text.splitlines())
    titles: list[str] = []
    records: list[tuple[int, dict[str, Any]]] = []
    lacking = False
    try:
        for row in reader:
            if not any(word.strip() for word in row):
                continue
            where = f"{file}:{reader.line_num}"
            if not titles or [word.strip().lower() for word in row] == [title.lower() for title in titles]:
                titles = [word.strip() for word in row]
                continue
            names = [_KEYS.get(title.lower(), title) for title in titles]
            if len(row) == len(names) + 1 and "nodes" not in names and "ranks" in names:
                names.insert(names.index("ranks"), "nodes")
                lacking = True
            if len(row) != len(names):
                raise InputError(
                    f"expected {len(titles)} values at {where}, as the header names, found {len(row)}: which value "
                    "belongs to which name is not sure, so mend the header."
                )
            records.append((reader.line_num, dict(zip(names, (word.strip() for word in row), strict=True))))
    except csv.Error as error:
        raise InputError(f"{file}:{reader.line_num} is no CSV ({error}): is the file complete?") from None
    if not records:
        raise InputError(f"{file} holds the header of a CSV of rccl-tests and no row: was the run cut off?")
    found = _log(records, file, "CSV of rccl-tests", doubtful=lacking)
    if not lacking:
        return found
    note = (
        f"{file}: the header lacks the column nodes, a known fault of rccl-tests: it was put before ranks, which the "
        "figures confirm"
    )
    return replace(found, warnings=(note, *found.warnings))


def _log(
    records: Sequence[tuple[int, Mapping[str, Any]]], file: str, kind: str, *, doubtful: bool = False
) -> Log:
    """The log of records; where their names are doubtful, the figures have to confirm them."""
    found: list[LoggedMeasurement] = []
    other: dict[str, int] = {}
    confirmed = False
    for line, record in records:
        name = str(record["collective"])
        collective = collective_named(name)
        if collective is None:
            other[name[:40]] = other.get(name[:40], 0) + 1
            continue
        measurement, sure = _measurement(record, collective, file, line)
        found.append(measurement)
        confirmed = confirmed or (sure and measurement.ranks is not None)
    if doubtful and not confirmed:
        raise InputError(
            f"expected values that confirm where the header of {file} lacks a column, found none: bandwidths have too "
            "few digits to tell, so mend the header."
        )
    warnings = [
        f"{file}: left out: {plural(count, 'record')} of {name}, no known collective"
        for name, count in other.items()
    ]
    wrong = sum(each.wrong or 0 for each in found)
    if wrong:
        warnings.append(f"{file}: {plural(wrong, 'wrong value')}")
    return Log(file=file, kind=kind, measurements=tuple(found), warnings=tuple(warnings))


def _measurement(
    record: Mapping[str, Any], collective: Collective, file: str, line: int
) -> tuple[LoggedMeasurement, bool]:
    """The measurement of a record, and whether its figures confirm it."""
    where = f"{file}:{line}"
    size = _integer(record, "size", where)
    ranks, nodes = _shape(record, where)
    figures = figures_of(size, *(_digits(record[name]) for name in ("time", "algbw", "busbw")))
    if figures is None or min(figures.time[0], figures.algbw[0], figures.busbw[0]) < 0:
        found = ", ".join(str(record[name])[:20] for name in ("time", "algbw", "busbw"))
        raise InputError(f"expected time, algbw and busbw as numbers of 0 or more at {where}, found {found}.")
    confirmed = agree(figures)
    against = "" if ranks is None else factor_contradicts([figures], collective, ranks)
    if confirmed is False or against:
        raise InputError(
            f"expected values that fit their names at {where}, found {against or 'size / time is not algbw'}: are they "
            "shifted against the header? mend it, or leave the line out."
        )
    measurement = LoggedMeasurement(
        collective=collective,
        ranks=ranks,
        nodes=nodes,
        size_bytes=size,
        time_us=float(record["time"]),
        in_place=None if "in_place" not in record else bool(_integer(record, "in_place", where)),
        wrong=None if record.get("wrong", "N/A") in BLANK else _integer(record, "wrong", where),
        type=str(record["type"]) if "type" in record else None,
        file=file,
        line=line,
    )
    return measurement, bool(confirmed)


def _shape(record: Mapping[str, Any], where: str) -> tuple[int | None, int | None]:
    """GPUs and nodes: of one process without MPI, else of all ranks, each of which may have several GPUs."""
    if "ranks" not in record:
        return (_integer(record, "gpus", where, low=1), 1) if "gpus" in record else (None, None)
    ranks = _integer(record, "ranks", where, low=1)
    each = _integer(record, "gpus_per_rank", where, low=1) if "gpus_per_rank" in record else 1
    nodes = _integer(record, "nodes", where, low=1) if "nodes" in record else None
    if "ranks_per_node" in record:
        per_node = _integer(record, "ranks_per_node", where, low=1)
        if nodes is None and ranks % per_node == 0:
            nodes = ranks // per_node
        elif nodes != ranks // per_node:
            raise InputError(
                f"expected nodes, ranks and ranks of a node that fit each other at {where}, found {nodes}, {ranks} and "
                f"{per_node}: values may be shifted against the header, so mend it."
            )
    return ranks * each, nodes


def _integer(record: Mapping[str, Any], name: str, where: str, *, low: int = 0) -> int:
    value = record[name]
    text = str(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else ""
    if (
        text.isascii()
        and text.isdecimal()
        and len(text) <= 18
        and low <= int(text)
        and (name == "size" or int(text) < _MOST)
    ):
        return int(text)
    raise InputError(f"expected {name} as an integer of {low} or more at {where}, found {str(value)[:40]!r}.")


def _digits(value: Any) -> str:
    """A figure as it stands; a number of JSON with all its digits, of which the last few are rounding."""
    if isinstance(value, float):
        return format(Decimal(f"{value:.6g}"), "f")
    return str(value)[:40] if isinstance(value, (int, str)) and not isinstance(value, bool) else "none"
