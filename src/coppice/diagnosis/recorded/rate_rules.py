"""Rules about times of collectives: against what is achievable, over sizes, over iterations, over ranks."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from itertools import pairwise

from coppice.diagnosis.recorded.achieved import AchievedRate, achieved, by_shape
from coppice.diagnosis.recorded.chance import trend
from coppice.diagnosis.recorded.records import RUN_RULES, RunRecords
from coppice.diagnosis.recorded.waiting import LEAST_SHARE, late_ranks, slow_operations
from coppice.doctor.framework import ERROR, NOTE, WARNING, Complaint, Need
from coppice.logs.records import LoggedMeasurement
from coppice.text import plural, short_size

TIMES = Need(
    "times of collectives",
    lambda records: bool(records.profiled or any(log.measurements for log in records.logs)),
)
ITERATIONS = Need(
    "times of single iterations (nccl-tests -J with -I)",
    lambda records: any(_iterated(each) for log in records.logs for each in log.measurements),
)
KERNELS = Need(
    "times of kernels on several ranks (the inspector, or the flight recorder with TORCH_NCCL_ENABLE_TIMING=1)",
    lambda records: len({call.rank for call in records.calls}) > 1,
)
PROXIES = Need(
    "events of NCCL's profiler plug-in with NCCL_PROFILE_EVENT_MASK=30", lambda records: bool(records.waits)
)

HALF = 0.5
"""Share of what is achievable below which a rate is worth a word: no tuning of a healthy network is so far off."""

LARGE_BYTES = 1 << 20
"""Sizes from which on bandwidth is what counts."""

SPIKE = 1.5
"""Times the median of iterations, from which on a single one stands out."""


def _iterated(each: LoggedMeasurement) -> bool:
    return each.iterations is not None and len(each.iterations.times_us) - each.iterations.skipped >= 8


@RUN_RULES.rule("A01", WARNING, "rates that grow with size", "large messages are slower", needs=TIMES)
def _collapse(records: RunRecords) -> Iterator[Complaint]:
    for rates in by_shape(achieved(records)).values():
        best: AchievedRate | None = None
        for place, each in enumerate(rates):
            after = rates[place : place + 2]
            if best is not None and all(one.algbw_gb_per_s < HALF * best.algbw_gb_per_s for one in after):
                text = (
                    f"{_words(each)}: from {short_size(each.size_bytes)} on {each.algbw_gb_per_s:.4g} GB/s, at "
                    f"{short_size(best.size_bytes)} still {best.algbw_gb_per_s:.4g}{_changed(records, best, each)}"
                )
                fix = (
                    "compare algorithm, protocol and channels at the two sizes (NCCL_DEBUG_SUBSYS=TUNING); congestion "
                    "of the network (PFC, adaptive routing, NCCL_IB_TC) hits large messages alone"
                )
                yield (each.file, each.line), text, fix
                break
            if best is None or each.algbw_gb_per_s > best.algbw_gb_per_s:
                best = each


def _changed(records: RunRecords, small: AchievedRate, large: AchievedRate) -> str:
    """What the library chose at two sizes."""

    def chosen(size: int) -> set[str]:
        return {
            f"{each.algorithm}/{each.protocol}"
            for log in records.logs
            for each in log.decisions
            if each.size_bytes == size and each.collective in (None, small.collective)
        }

    before, after = chosen(small.size_bytes), chosen(large.size_bytes)
    if not before or not after:
        return ""
    if before == after:
        return f", by {' and '.join(sorted(after))} as before: the network, not the choice"
    return f", by {' and '.join(sorted(after))} instead of {' and '.join(sorted(before))}"


@RUN_RULES.rule("A02", WARNING, "what is achievable", "half or more of the time is lost", needs=TIMES)
def _slow(records: RunRecords) -> Iterator[Complaint]:
    for rates in by_shape(achieved(records)).values():
        slow = [
            (share, each)
            for each in rates
            if each.size_bytes >= LARGE_BYTES
            and each.kernels
            and (share := each.share_of_optimum or each.share_of_model) is not None
            and share < HALF
        ]
        if slow:
            _, each = slow[-1]
            models = [
                (each.least_us, each.least_model),
                (each.library_us, each.library_model),
            ]
            told = [f"{time:.4g} us by the {name}" for time, name in models if time is not None]
            text = (
                f"{_words(each)}, {short_size(each.size_bytes)}: {each.time_us:.4g} us, {' and '.join(told)}; so at "
                f"{plural(len(slow), 'size')}"
            )
            fix = "find the slow part: `coppice diagnose design` with this topology; look at rules H10 to H13 and V01"
            yield (each.file, each.line), text, fix


@RUN_RULES.rule("A03", NOTE, "rates that ends alone allow", "", needs=TIMES)
def _faster(records: RunRecords) -> Iterator[Complaint]:
    for rates in by_shape(achieved(records)).values():
        above = [each for each in rates if each.share_of_optimum is not None and each.share_of_optimum > 1.02]
        if above:
            each = above[-1]
            text = (
                f"{_words(each)}, {short_size(each.size_bytes)}: {each.time_us:.4g} us is below the "
                f"{each.least_us:.4g} us of the {each.least_model}"
            )
            fix = (
                "describe switches that add and copy (NVLS, SHARP), or this machine's rates, in the topology"
            )
            yield (each.file, each.line), text, fix


@RUN_RULES.rule(
    "A04", WARNING, "odd numbers of nodes as fast as even ones", "half of the NICs rest", needs=TIMES
)
def _odd(records: RunRecords) -> Iterator[Complaint]:
    series: dict[object, dict[int, AchievedRate]] = {}
    for each in achieved(records):
        if (
            each.nodes is not None
            and each.nodes > 1
            and each.size_bytes >= LARGE_BYTES
            and each.busbw_gb_per_s
        ):
            key = (each.collective, each.size_bytes)
            series.setdefault(key, {})[each.nodes] = each
    found: dict[tuple[object, int], tuple[AchievedRate, float]] = {}
    for by_nodes in series.values():
        even = [each.busbw_gb_per_s or 0.0 for nodes, each in by_nodes.items() if nodes % 2 == 0]
        for nodes, each in by_nodes.items():
            own = each.busbw_gb_per_s or 0.0
            if nodes % 2 and len(even) > 1 and own < 0.6 * min(even):
                found[each.collective, nodes] = (each, min(even))
    for (collective, nodes), (each, even_rate) in found.items():
        text = (
            f"{collective} has a bus bandwidth of {each.busbw_gb_per_s:.4g} GB/s on {nodes} nodes, {even_rate:.4g} or "
            "more on even numbers: rings that alternate between NICs do not close over an odd number of nodes"
        )
        yield (
            (each.file, each.line),
            text,
            "set NCCL_CROSS_NIC=1, or use an even number of nodes; the network allows more",
        )


@RUN_RULES.rule("A05", WARNING, "iterations that are alike", "the slowest count in a job", needs=ITERATIONS)
def _spikes(records: RunRecords) -> Iterator[Complaint]:
    for each in _timed(records):
        times = _counted(each)
        median = statistics.median(times)
        spread = 1.4826 * statistics.median(abs(time - median) for time in times)
        high = [place for place, time in enumerate(times) if time > max(SPIKE * median, median + 6 * spread)]
        if high:
            gaps = {b - a for a, b in pairwise(high)}
            every = f", every {gaps.pop()} iterations" if len(high) > 2 and len(gaps) == 1 else ""
            text = (
                f"{each.collective}, {short_size(each.size_bytes)}: {len(high)} of {len(times)} iterations take "
                f"{max(times) / median:.3g} times the median of {median:.4g} us{every}"
            )
            fix = "look for what else runs then: other jobs on the network, daemons on the cores of proxies, ECMP"
            yield (each.file, each.line), text, fix


@RUN_RULES.rule("A06", WARNING, "iterations without a trend", "it grows slower as it runs", needs=ITERATIONS)
def _drift(records: RunRecords) -> Iterator[Complaint]:
    for each in _timed(records):
        times = _counted(each)
        chance, rise = trend(times)
        share = rise / statistics.median(times)
        if chance < 1e-3 and share > 0.05:
            text = (
                f"{each.collective}, {short_size(each.size_bytes)}: {100 * share:.3g}% slower at the last than at the "
                f"first of {len(times)} iterations"
            )
            yield (
                (each.file, each.line),
                text,
                "look at clocks and temperatures (`nvidia-smi -q -d CLOCK,PERFORMANCE`)",
            )


def _timed(records: RunRecords) -> list[LoggedMeasurement]:
    return [each for log in records.logs for each in log.measurements if _iterated(each)]


def _counted(each: LoggedMeasurement) -> tuple[float, ...]:
    return () if each.iterations is None else each.iterations.times_us[each.iterations.skipped :]


@RUN_RULES.rule("A07", ERROR, "right values", "results are wrong", needs=TIMES)
def _wrong(records: RunRecords) -> Iterator[Complaint]:
    for log in records.logs:
        wrong = [each for each in log.measurements if each.wrong]
        if wrong:
            count = sum(each.wrong or 0 for each in wrong)
            first = short_size(wrong[0].size_bytes)
            text = (
                f"{plural(count, 'wrong value')} in {plural(len(wrong), 'measurement')}, the first at {first}"
            )
            fix = "take GPUs and NICs apart until it vanishes (dcgmi diag -r 3, another NCCL_ALGO, NCCL_PROTO=Simple)"
            yield (log.file, wrong[0].line), text, fix


@RUN_RULES.rule("A08", NOTE, "times of kernels", "", needs=TIMES)
def _host_clock(records: RunRecords) -> Iterator[Complaint]:
    for log in records.logs:
        clocks = {each.clock for each in log.measurements if not each.of_kernels}
        if clocks:
            count = sum(not each.of_kernels for each in log.measurements)
            text = f"{plural(count, 'time')} by the host around the call: launching counts, who waits is not told"
            yield (
                (log.file, 0),
                text,
                "let the inspector time kernels (coll_timing_source kernel_gpu or kernel_cpu)",
            )


@RUN_RULES.rule("M01", WARNING, "files of one run", "figures are not what they seem")
def _doubts(records: RunRecords) -> Iterator[Complaint]:
    for log in records.logs:
        for words in log.warnings:
            if "no times of kernels" not in words and "wrong value" not in words:
                severity = WARNING if re.search(r"\bruns\b", words) else NOTE
                text = words.removeprefix(log.file).lstrip(": ")
                yield severity, (log.file, 0), text, "give the whole file of one run"


@RUN_RULES.rule("W01", WARNING, "ranks that come together", "all others wait for it", needs=KERNELS)
def _late(records: RunRecords) -> Iterator[Complaint]:
    for each in late_ranks(records):
        if each.sure:
            text = (
                f"rank {each.rank} came last into {each.last} of {each.calls} collectives of group {each.communicator} "
                f"({each.ranks} ranks): others waited {each.wait_us:.4g} us each time, {100 * each.share:.3g}% of all"
            )
            fix = "look at what it does between collectives: input, clocks of its GPU, a process beside it"
            yield (each.file, 0), text, fix


@RUN_RULES.rule(
    "W02", WARNING, "channels alike", "the slowest channel is what a collective takes", needs=PROXIES
)
def _channels(records: RunRecords) -> Iterator[Complaint]:
    yield from _slow_operations(
        records, (("rank", "network"), ("channel", "network"), ("peer", "peer")), sending=None
    )


@RUN_RULES.rule(
    "W03", WARNING, "GPUs that keep up with their proxies", "the network waits for it", needs=PROXIES
)
def _own_gpu(records: RunRecords) -> Iterator[Complaint]:
    yield from _slow_operations(records, (("rank", "own GPU"),), sending=True)


def _slow_operations(
    records: RunRecords, kinds: tuple[tuple[str, str], ...], *, sending: bool | None
) -> Iterator[Complaint]:
    """The surest of all operations that wait longer; what follows from it is not told again."""
    waits = [each for each in records.waits if sending in (None, each.sending)]
    found = [
        (slow, what)
        for by, what in kinds
        for slow in slow_operations(waits, by, what)
        if _worth(slow.median_us, slow.others_us)
    ]
    if found:
        slow, what = min(found, key=lambda each: each[0].p_value)
        each = "a megabyte" if what in ("network", "peer") else "each time"
        text = (
            f"{plural(slow.waits, 'operation')} of {slow.what} waited for {_WAITED[what]} {slow.median_us:.4g} us "
            f"{each} (median), others {slow.others_us:.4g}"
        )
        file = records.profiled[0][0] if records.profiled else records.files[0]
        yield (file, 0), text, _FIXES[what]


def _worth(own: float, others: float) -> bool:
    return own > (1 + LEAST_SHARE) * others


_WAITED = {"network": "the network", "peer": "their peer", "own GPU": "their own GPU"}
_FIXES = {
    "network": "look at NIC, cable and switch port of it (`ethtool -S`, `mlxlink`), and at other traffic there",
    "peer": "look at the peer: its GPU is late, or its NIC slow",
    "own GPU": "look at this GPU: kernels beside the collective, clocks, fewer SMs left for NCCL",
}


def _words(each: AchievedRate) -> str:
    group = "" if each.ranks is None else f" of {plural(each.ranks, 'rank')}"
    nodes = "" if each.nodes is None else f" on {plural(each.nodes, 'node')}"
    return f"{each.collective}{group}{nodes}"
