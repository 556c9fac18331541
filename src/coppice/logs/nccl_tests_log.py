"""Join the measurements of nccl-tests and rccl-tests (text or JSON) with the library's log lines.

Where the same text holds the choices of the library (``NCCL_DEBUG_SUBSYS=TUNING``), a row gets the algorithm, protocol
and channels that all calls of its collective and count had. Where it holds none, the environment may still tell: a
single algorithm in ``NCCL_ALGO`` and a single protocol in ``NCCL_PROTO`` are what ran.

The file keeps the arguments and the whole environment of the run. Only variables of NCCL and RCCL are kept; the rest
is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.logs.json_text import integer, mapping, number, text_of
from coppice.logs.records import FORCING, LoggedDecision, LoggedMeasurement, collective_named, own_name
from coppice.logs.rows import (
    WORD_BYTES,
    Figures,
    IterationSpread,
    NcclTestsHalf,
    NcclTestsRank,
    NcclTestsRow,
    NcclTestsTable,
    agree,
    factor_contradicts,
    figures_of,
)
from coppice.text import plural

_PROGRAM = re.compile(r"([A-Za-z]\w*?_perf(?:_mpi)?)(?:\.exe)?$")
_OTHER_PROGRAMS = ("sendrecv", "hypercube", "alltoallv", "all_reduce_bias")
_CHANNELS = (("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"), ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"))


def collective_of(program: str | None, given: Collective | None, *, file: str) -> Collective | None:
    """Collective that an nccl-tests program measures; None for other programs.

    Args:
        program: Its name or path, None where the text does not tell.
        file: Name of the file, for messages.

    Examples:
        >>> collective_of("./build/all_gather_perf_mpi", None, file="log").value
        'all_gather'
    """
    match = _PROGRAM.search(program or "")
    named = None if match is None else collective_named(match[1])
    other = match is not None and match[1].removesuffix("_mpi").removesuffix("_perf") in _OTHER_PROGRAMS
    if given is not None and named is None and not other:
        return given
    if match is None:
        raise InputError(f"{file} does not say which collective was run: give it (`collective=all_reduce`).")
    return named


def shape_of(table: NcclTestsTable) -> tuple[int | None, int | None]:
    """Ranks and hosts of a communicator, from the listed ranks; None where unequal or missing.

    Runs that were mixed each have their own communicator, and so has every group of a run.
    """
    groups: dict[tuple[int, int], list[NcclTestsRank]] = {}
    for run, devices in enumerate(table.devices):
        for device in devices:
            groups.setdefault((run, device.group), []).append(device)
    shapes = {(len(group), len({device.host for device in group})) for group in groups.values()}
    return shapes.pop() if len(shapes) == 1 and not table.devices_cut else (None, None)


def mixed_runs(table: NcclTestsTable, *, file: str) -> str:
    """Warning that a table mixes rows of several runs; empty if it does not."""
    lists = table.devices
    if len(lists) < 2:
        return ""
    first = lists[0]
    ranks = f"rank {first[0].rank}" if len(first) == 1 else f"ranks {first[0].rank} to {first[-1].rank}"
    hosts = list(dict.fromkeys(device.host for devices in lists for device in devices))
    where = f" ({', '.join(hosts[:4])}{', ...' if len(hosts) > 4 else ''})"
    keys = [(row.size_bytes, row.type, row.redop, row.root) for row in table.rows]
    if len(set(keys)) == len(keys):
        return (
            f"{file} lists {ranks} {len(lists)} times{where}, but no size twice: its rows are taken for one of "
            "these runs; where one run of all was meant, build nccl-tests with MPI=1"
        )
    sizes = {len(devices) for devices in lists}
    each = f"of {plural(sizes.pop(), 'rank')} each" if len(sizes) == 1 else "of unequal numbers of ranks"
    return (
        f"{file} lists {ranks} {len(lists)} times{where}: these are {len(lists)} runs {each} at the same time, whose "
        f"rows are mixed, not one run of {sum(len(devices) for devices in lists)} ranks: build nccl-tests with MPI=1 "
        "for that"
    )


def only(settings: Mapping[str, str], collective: Collective) -> tuple[str | None, str | None, int | None]:
    """Algorithm, protocol and channels forced by the environment.

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
    shape: tuple[int | None, int | None],  # Ranks and nodes of the communicator
    settings: Mapping[str, str],
    told: bool,  # The text would show settings, if there were any
    # Choices of the library in the same run; those without a collective are taken for this one's
    decisions: Sequence[LoggedDecision] = (),
) -> list[LoggedMeasurement]:
    """Rows of a table as measurements."""
    chosen = _chosen(decisions, collective, shape[0])
    forced = any(name in settings for name in FORCING) if told or settings else None
    found: list[LoggedMeasurement] = []
    for row in table.rows:
        cells = chosen.get((True, _rank_bytes(row)), set()) | chosen.get((False, row.size_bytes), set())
        algorithm, protocol, channels = next(iter(cells)) if len(cells) == 1 else only(settings, collective)
        found += [
            LoggedMeasurement(
                collective=collective,
                ranks=shape[0] if row.ranks is None else row.ranks,
                nodes=shape[1] if row.nodes is None else row.nodes,
                size_bytes=row.size_bytes,
                time_us=run.time_us,
                algorithm=algorithm,
                protocol=protocol,
                channels=channels,
                forced=forced,
                in_place=in_place,
                wrong=run.wrong,
                type=row.type,
                iterations=run.iterations,
                file=file,
                line=row.line,
            )
            for run, in_place in row.halves
        ]
    return found


_Cell = tuple[str, str, int | None]


def _chosen(
    decisions: Sequence[LoggedDecision], collective: Collective, ranks: int | None
) -> dict[tuple[bool, int], set[_Cell]]:
    """Choices by (the log names the collective, bytes)."""
    found: dict[tuple[bool, int], set[_Cell]] = {}
    for decision in decisions:
        if decision.collective in (collective, None) and decision.ranks in (None, ranks):
            key = (decision.collective is not None, decision.rank_bytes)
            found.setdefault(key, set()).add((decision.algorithm, decision.protocol, decision.channels))
    return found


def doubts(
    table: NcclTestsTable, collective: Collective, *, file: str, shape: tuple[int | None, int | None]
) -> tuple[str, ...]:
    """Warnings about contradictory figures of a table.

    Args:
        shape: Ranks and nodes of the communicator.
    """
    rows = [(row, half.figures) for row in table.rows for half, _ in row.halves if half.figures is not None]
    found = []
    wrong = [row for row, figures in rows if agree(figures) is False]
    if wrong:
        found.append(
            f"{file}: in {len(wrong)} of {plural(len(rows), 'measurement')} size / time is not algbw, such as in line "
            f"{wrong[0].line}: are its columns shifted?"
        )
    by_ranks: dict[int, list[Figures]] = {}
    for row, figures in rows:
        ranks = row.ranks or shape[0]
        if ranks is not None:
            by_ranks.setdefault(ranks, []).append(figures)
    for ranks, members in by_ranks.items():
        if words := factor_contradicts(members, collective, ranks):
            found.append(
                f"{file}: {words}: was it another collective, or did several smaller runs go on at once?"
            )
    return tuple(found)


def _rank_bytes(row: NcclTestsRow) -> int:
    """Bytes of a rank's count, -1 for types of unknown size."""
    if row.count is None or row.type not in WORD_BYTES:
        return -1
    return row.count * WORD_BYTES[row.type]


_OURS = ("NCCL_", "NCCLX_", "RCCL_")
_MOST_RANKS = 1 << 24


class NcclTestsFile(NamedTuple):
    """Content of a JSON result file."""

    table: NcclTestsTable  # The rows; their lines are numbers of results, from 1
    version: str | None  # Version of the library, such as `2.27.7`, None where not given
    settings: dict[str, str]  # Variables of NCCL and RCCL


def is_tests_file(value: Any) -> bool:
    """Whether a JSON value is such a file."""
    return isinstance(value, dict) and "results" in value and ("config" in value or "args" in value)


def read_tests_file(value: Any, *, file: str) -> NcclTestsFile:
    """Records of a JSON result file.

    Examples:
        >>> run = {"time": 10.5, "alg_bw": 0.1, "bus_bw": 0.2, "nwrong": 0.0}
        >>> row = {"size": 1024, "count": 256, "type": "float", "redop": "sum", "root": "    -1",
        ...        "out_of_place": run, "in_place": run}
        >>> read_tests_file({"args": ["all_reduce_perf"], "results": [row]}, file="a").table.rows[0].size_bytes
        1024
    """
    results = value["results"]
    if not isinstance(results, list) or not results:
        raise InputError(
            f"expected a list of results in {file} ($.results), found none: was the run cut off?"
        )
    rows = tuple(
        _row(each, where, at)
        for at, (where, each) in enumerate(_objects(results, f"{file}: $.results"), start=1)
    )
    config = value.get("config")
    listed = config.get("devices") if isinstance(config, dict) else None
    listed = listed if isinstance(listed, list) else []
    devices = _all_ranks(
        [_device(each, where) for where, each in _objects(listed, f"{file}: $.config.devices")], config, file
    )
    arguments = value.get("args")
    program = (
        arguments[0] if isinstance(arguments, list) and arguments and isinstance(arguments[0], str) else None
    )
    wrong = value.get("out_of_bounds")
    busbw = value.get("average_bus_bandwidth")
    table = NcclTestsTable(
        rows=rows,
        devices=(devices,) if devices else (),
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
            raise InputError(f"expected an object at {where}[{at}], found {str(value)[:40]!r}.")
        yield f"{where}[{at}]", value


def _row(value: dict[str, Any], where: str, at: int) -> NcclTestsRow:
    size = integer(value, "size", where)
    return NcclTestsRow(
        size_bytes=size,
        count=integer(value, "count", where),
        type=text_of(value, "type", where),
        redop=text_of(value, "redop", where),
        root=integer(value, "root", where, low=-1, high=_MOST_RANKS),
        out_of_place=_run(value, "out_of_place", where, size),
        in_place=_run(value, "in_place", where, size),
        line=at,
    )


def _run(value: dict[str, Any], key: str, where: str, size: int) -> NcclTestsHalf | None:
    if value.get(key) is None:
        return None
    run, place = mapping(value, key, where), f"{where}.{key}"
    wrong = None if run.get("nwrong") is None else number(run, "nwrong", place)
    of_cpu = "time" not in run
    told = [number(run, name, place) for name in ("cpu_time" if of_cpu else "time", "alg_bw", "bus_bw")]
    return NcclTestsHalf(
        time_us=told[0],
        algbw_gb_per_s=told[1],
        busbw_gb_per_s=told[2],
        wrong=None if wrong is None else int(wrong),
        iterations=_iterations(value, f"{key}_per_iter", where),
        figures=None if of_cpu else figures_of(size, *map(_six_digits, told)),
    )


def _six_digits(value: float) -> str:
    """A figure with the digits that the file has."""
    return f"{value:.6f}"


def _iterations(value: dict[str, Any], key: str, where: str) -> IterationSpread | None:
    """Times of single iterations (``-I``), None where the file has none."""
    if value.get(key) is None:
        return None
    told, place = mapping(value, key, where), f"{where}.{key}"
    times = told.get("times_us", [])
    if not isinstance(times, list):
        raise InputError(f"expected a list of times at {place}.times_us, found {str(times)[:40]!r}.")
    return IterationSpread(
        least_us=number(told, "min_us", place),
        most_us=number(told, "max_us", place),
        p99_us=number(told, "p99_us", place),
        variation_percent=number(told, "cv_pct", place),
        times_us=tuple(number({"time": each}, "time", f"{place}.times_us") for each in times),
        skipped=integer(told, "skipped_iterations", place) if "skipped_iterations" in told else 0,
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


def _all_ranks(listed: list[NcclTestsRank], config: Any, file: str) -> tuple[NcclTestsRank, ...]:
    """The ranks of a run: the file lists the first one of each process only, so that the others have to be added."""
    each = 1
    for name in ("nthreads", "ngpus") if listed else ():
        each *= integer(config, name, f"{file}: $.config", low=1, high=1024) if name in config else 1
    if [device.rank for device in listed] != [each * number for number in range(len(listed))] or each > 1024:
        return tuple(listed)
    return tuple(
        replace(device, rank=device.rank + more, device=device.device + more)
        for device in listed
        for more in range(each)
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
