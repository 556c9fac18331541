"""Advice as one page of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from coppice.advice.advise import LIBRARIES, LibraryAdvice
from coppice.advice.measured import SLOW, slow_rows
from coppice.advice.rows import SMALL_BYTES, WORTH, AdviceRow, by_ranges
from coppice.advice.step import ChannelBudget
from coppice.text import columns, plural, short_size, time_text


def page_lines(advice: LibraryAdvice, *, max_width: int | None = None) -> list[str]:
    """The page, line by line; columns left out to fit ``max_width`` are named below their table."""
    name = f"{LIBRARIES[advice.library]} {advice.version}".rstrip()
    lines = [
        f"{name} on {advice.topology.name} ({plural(advice.topology.num_ranks, 'rank')})",
        f"  version from {advice.version_from}" if advice.version_from else "  version not known",
        *(f"  assumed: {words}" for words in advice.assumptions),
    ]
    lines += ["", *_verdict(advice)]
    for _, members in groupby(
        advice.rows, key=lambda row: (row.group, row.collective, row.ranks, row.nodes, row.model)
    ):
        rows = list(members)
        one = rows[0]
        who = "" if one.group == "all" else f" of {one.group}"
        shape = f"{plural(one.ranks, 'rank')} on {plural(one.nodes, 'node')}"
        lines += ["", f"{one.collective}{who}, {shape}: {one.model}"]
        lines += [f"  {line}" for line in _table(rows, max_width)]
    lines += _step(advice, max_width) + _small(advice, max_width)
    lines += _hosts(advice)
    if advice.changes:
        lines += ["", "what to change"]
        for change in advice.changes:
            gained = [row.gain for row in advice.gaining if row.change in (change.name, "all changes")]
            words = f"up to {max(gained):.3g} times as fast" if gained else "nothing by itself"
            if advice.step is not None and change in advice.step.changes:
                step = advice.step
                times = (_time(1e6 * seconds) for seconds in (step.best_seconds, step.unlimited_seconds))
                words = "an iteration takes {} instead of {}".format(*times)
            lines += [f"  {change.what}: {words}", f"    undo: {change.undo}"]
    if advice.files:
        lines += ["", "files" if advice.folder is not None else "files (--write DIR writes them)"]
        for each in advice.files:
            place = each.name if advice.folder is None else f"{advice.folder}/{each.name}"
            lines += [f"  {place}: {each.what}; {each.judged}", f"    undo: {each.undo}"]
    lines += ["", "try it", *(f"  {line}" for line in trial_lines(advice))]
    if advice.notes:
        lines += ["", *(f"note: {words}" for words in advice.notes)]
    return lines


def _kind(row: AdviceRow) -> tuple[object, ...]:
    """What rows of one table have in common."""
    return (row.group, row.collective, row.ranks, row.nodes, row.model)


def _verdict(advice: LibraryAdvice) -> Iterator[str]:
    """The answer in a sentence or two."""
    known = [row for row in advice.rows if row.picked_us is not None]
    gaining = advice.gaining
    if not known:
        yield "nothing is known of its times here (see the notes)"
        return
    library = LIBRARIES[advice.library]
    if advice.library == "rccl" and all(row.model.endswith("cost model") for row in known):
        yield f"what {library} picks by its own model; what would be better takes a log or times (see the notes)"
        return
    if not gaining:
        calls = plural(len(known), "call")
        words = f"the pick of {library} is within {WORTH:.0%} of the best it can do in all {calls}"
        fewer = advice.step is not None and bool(advice.step.changes)
        slow = slow_rows(advice.rows)
        if fewer:
            words += "; the step of the job wants fewer channels"
        yield words if fewer or slow else f"nothing to change: {words}"
        if slow:
            measured = sum(row.reckoned_us is not None for row in advice.rows)
            times, most = max(
                (((row.picked_us or 0.0) / (row.reckoned_us or 1.0), row) for row in slow), key=itemgetter(0)
            )
            call = f"{most.collective} of {short_size(most.size_bytes)}"
            yield (
                f"{plural(len(slow), 'measured call')} of {measured} take {SLOW:g} times what {library} reckons with "
                f"and more, {times:.2g} times at most ({call}): not the choice, the host or the network holds them up"
            )
        return
    most = max(gaining, key=lambda row: row.gain)
    yield (
        f"{library} could be faster in {len(gaining)} of {plural(len(known), 'call')}, {most.gain:.3g} times at most: "
        f"{most.collective} of {short_size(most.size_bytes)} by {most.best} instead of {most.picked}"
        + (f" ({most.change})" if most.change else "")
    )


def _table(rows: Sequence[AdviceRow], max_width: int | None) -> list[str]:
    """Rows of one collective, neighbouring sizes together; what they have in common stands once."""
    cells: list[tuple[str, ...]] = [("size", "picks", "time", "best", "time", "gain", "why")]
    for span, run in by_ranges(rows):
        times, best_times = ([time(row) for row in (run[0], run[-1])] for time in (_picked, _best))
        gains = [f"{gain:.3g}x" for gain in (min(row.gain for row in run), max(row.gain for row in run))]
        better = run[0].saves
        cells.append(
            (
                span,
                run[0].picked,
                _span(times),
                run[0].best if better else "-",
                _span(best_times) if better else "-",
                _span(gains) if better else "-",
                run[0].why,
            )
        )
    sides = "rlrlrrl"
    if not any(row.saves for row in rows):
        cells, sides = [(*row[:3], row[6]) for row in cells], "rlrl"
    shared = {row[-1] for row in cells[1:]}
    below = [shared.pop()] if len(shared) == 1 else []
    if below:
        cells = [row[:-1] for row in cells]
    room = None if max_width is None else max_width - 2
    spare = [] if below else [len(cells[0]) - 1]
    return columns(cells, sides[: len(cells[0])], max_width=room, spare=spare) + below


def _step(advice: LibraryAdvice, max_width: int | None) -> list[str]:
    """The step of a job, before and after the changes."""
    step = advice.step
    if step is None:
        return []
    before, after = (_time(1e6 * seconds) for seconds in (step.picked_seconds, step.best_seconds))
    words = f"an iteration takes {before}"
    words += (
        f", {after} after all changes"
        if step.best_seconds < step.picked_seconds
        else ", and no less after changes"
    )
    lines = ["", f"step of {step.name}: {words} (each group by itself, as NCCL reckons)"]
    for _, members in groupby(step.rows, key=_kind):
        rows = list(members)
        lines.append(f"  {rows[0].collective} of {rows[0].group}")
        lines += [f"    {line}" for line in _table(rows, max_width)]
    return lines + _budget_lines(step.budgets, max_width)


def _budget_lines(budgets: Sequence[ChannelBudget], max_width: int | None) -> list[str]:
    """Limits on channels, with what they make of the collectives and of the step."""
    if not any(each.channels is not None for each in budgets):
        return []
    cells: list[tuple[str, ...]] = [("channels of", "at most", "their collectives", "iteration")]
    for _, members in groupby(budgets, key=lambda each: each.group):
        free, *limits = members
        best = min((each.seconds for each in limits), default=0.0)
        for each in (free, *(each for each in limits if each is limits[0] or each.seconds == best)):
            most = "NCCL's own" if each.channels is None else str(each.channels)
            cells.append((each.group, most, _time(each.exchange_us), _time(1e6 * each.seconds)))
    room = None if max_width is None else max_width - 4
    return [
        "  channels, each of which takes a processor from products beside it",
        *(f"    {line}" for line in columns(cells, "lrrr", max_width=room)),
    ]


def _small(advice: LibraryAdvice, max_width: int | None) -> list[str]:
    """Messages in which waiting counts more than bandwidth: protocols, trees against rings, tails."""
    rows = [row for row in advice.rows if row.size_bytes < SMALL_BYTES and (row.latency_us or row.p99_us)]
    if not rows:
        return []
    cells: list[tuple[str, ...]] = [
        ("collective", "size", "picks", "time", "waits", "next best", "time", "p99")
    ]
    for row in rows:
        share = (
            "-" if not row.picked_us or row.latency_us is None else f"{row.latency_us / row.picked_us:.0%}"
        )
        cells.append(
            (
                *(str(row.collective), short_size(row.size_bytes), row.picked, _time(row.picked_us), share),
                *(row.rival or "-", _time(row.rival_us), _time(row.p99_us)),
            )
        )
    room = None if max_width is None else max_width - 2
    if not any(row.p99_us for row in rows):
        cells = [row[:-1] for row in cells]
    table = columns(cells, "lrlrrlrr"[: len(cells[0])], max_width=room)
    words = "waits: share of the time that does not depend on the size: launch, protocol, messages in a row"
    return ["", "small messages", *(f"  {line}" for line in (*table, words))]


def _hosts(advice: LibraryAdvice) -> list[str]:
    """What was found of hosts."""
    lines = []
    for one in advice.hosts:
        for finding in one.findings:
            place = f"{finding.place(one.file)}: " if finding.line else ""
            lines.append(f"  {finding.severity.value:<7}  {finding.rule}  {place}{finding.text}")
            lines.append(f"                fix: {finding.fix}")
    judged = [one.file for one in advice.hosts if len(one.undecided) < MOST_UNDECIDED]
    if lines or judged:
        lines = lines or [f"  nothing found in {', '.join(judged)}"]
        return ["", "hosts", *lines]
    return []


MOST_UNDECIDED = 15
"""A file of which no rule about hosts could be decided."""


def trial_lines(advice: LibraryAdvice) -> list[str]:
    """How to try the advice in five minutes, and how to see that it worked."""
    ranks = advice.topology.num_ranks
    if advice.library in ("open-mpi", "mpich"):
        names = ",".join(dict.fromkeys(str(row.collective) for row in advice.rows))
        sizes = sorted({row.size_bytes for row in advice.rows})
        span = f"-b {short_size(sizes[0])} -e {short_size(sizes[-1])}" if sizes else ""
        what = f"--library {advice.library} --collective {names}"
        return [
            f"coppice tune sweep {what} {span} --num-ranks {ranks} -o runs.jsonl",
            "coppice tune fit runs.jsonl -o table.csv",
            f"coppice tune check table.csv runs.jsonl --num-ranks {ranks}",
            "it worked where the last command says no slower size and exits with 0",
        ]
    worst = max(advice.gaining, key=lambda row: row.gain, default=None)
    program = "all_reduce_perf" if worst is None else f"{worst.collective}_perf"
    sets = " ".join(
        f"-u {name}" if value is None else f"{name}={value}"
        for change in advice.changes
        for name, value in change.sets.items()
    )
    before = f"mpirun -np {ranks} {program} -b 1K -e 1G -f 4 -g 1"
    after = f"mpirun -np {ranks} env {sets} {program} -b 1K -e 1G -f 4 -g 1" if sets else before
    lines = [f"before: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING {before} | tee before.log"]
    # A limit in the options of a process group shows in the job alone.
    own = () if advice.step is None else advice.step.changes
    changed = bool(sets) or any(change not in own for change in advice.changes)
    if changed:
        lines.append(f"after:  NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING {after} | tee after.log")
    files = "before.log after.log" if changed else "before.log"
    return [*lines, f"it worked where the column `time` is lower: coppice logs {files}"]


def _time(time_us: float | None) -> str:
    return "-" if time_us is None else time_text(time_us)


def _picked(row: AdviceRow) -> str:
    return _time(row.picked_us)


def _best(row: AdviceRow) -> str:
    return _time(row.best_us)


def _span(texts: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys(texts))
