"""Rules about variables: those that differ between processes, and those that cost time."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator

from coppice.collectives import Collective
from coppice.diagnosis.recorded.chance import binomial_tail
from coppice.diagnosis.recorded.hanging_rules import TEXTS
from coppice.diagnosis.recorded.records import RUN_RULES, RunRecords, process_of
from coppice.doctor.framework import WARNING, Complaint, Need
from coppice.logs.records import FORCING, LoggedMeasurement
from coppice.text import plural, short_size

_SETTING = re.compile(r"NCCL INFO ((?:NCCL|NCCLX|RCCL)_\w+) set (?:by environment )?to (.*)$")
_OWN = re.compile(r"_(?:FILE|HOSTID|DEBUG|DEBUG_SUBSYS|IFNAME|COMM_ID|DIR)$|^NCCL_DEBUG")
"""Variables that may differ between processes."""

_Call = tuple[Collective, int | None, int | None, int, bool | None, bool]

FORCED_TIMES = Need(
    "times with and without forced choices (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,ENV)",
    lambda records: {True, False} <= {each.forced for log in records.logs for each in log.measurements},
)


@RUN_RULES.rule("V01", WARNING, "variables that agree", "ranks may choose differently, and hang", needs=TEXTS)
def _differing(records: RunRecords) -> Iterator[Complaint]:
    told: dict[tuple[str, str], dict[str, str]] = {}
    first: dict[tuple[str, str], tuple[str, int]] = {}
    for file, line in records.spoken():
        match = _SETTING.search(line.text)
        process = process_of(line.text)
        if match and process and not _OWN.search(match[1]):
            told.setdefault(process, {})[match[1]] = match[2].strip().rstrip(".")[:80]
            first.setdefault((process[0], f"{process[1]} {match[1]}"), (file, line.number))
    for name in sorted({name for own in told.values() for name in own}):
        values: dict[str, list[tuple[str, str]]] = {}
        for process, own in told.items():
            values.setdefault(own.get(name, "not set"), []).append(process)
        if len(values) < 2:
            continue
        order = sorted(values.items(), key=lambda each: (-len(each[1]), each[0]))
        words = []
        for value, some in order[:3]:
            hosts = list(dict.fromkeys(host for host, _ in some))
            where = f" on {', '.join(hosts[:3])}{', ...' if len(hosts) > 3 else ''}"
            words.append(f"{value} in {plural(len(some), 'process')}{where}")
        spot = next(place for key, place in first.items() if key[1].endswith(f" {name}"))
        yield spot, f"{name} is {'; '.join(words)}", "give all processes one environment"


@RUN_RULES.rule(
    "V02", WARNING, "forced choices that help", "the library's own choice is faster", needs=FORCED_TIMES
)
def _forced(records: RunRecords) -> Iterator[Complaint]:
    own: dict[_Call, list[float]] = {}
    forced: dict[str, dict[_Call, list[float]]] = {}
    files: dict[str, LoggedMeasurement] = {}
    for log in records.logs:
        names = ", ".join(f"{name}={value}" for name, value in log.settings.items() if name in FORCING)
        for each in log.measurements:
            key = (each.collective, each.ranks, each.nodes, each.size_bytes, each.in_place, each.of_kernels)
            if each.forced is False:
                own.setdefault(key, []).append(each.time_us)
            elif each.forced and names:
                forced.setdefault(names, {}).setdefault(key, []).append(each.time_us)
                files.setdefault(names, each)
    for names, rows in forced.items():
        both = [key for key in rows if key in own]
        ratios = [statistics.median(rows[key]) / statistics.median(own[key]) for key in both]
        slower = [(ratio, key) for ratio, key in zip(ratios, both, strict=True) if ratio > 1]
        # By chance as many sizes are slower as faster
        if slower and binomial_tail(len(slower), len(both), 0.5) < 0.01:
            ratio, key = max(slower, key=lambda each: each[0])
            text = (
                f"{names} makes {key[0]} slower at {len(slower)} of {plural(len(both), 'size')}: "
                f"{ratio:.3g} times the default's time at {short_size(key[3])}"
            )
            yield (files[names].file, files[names].line), text, "unset it"
