"""Rules about jobs that hang or end: the flight recorder, RAS, PyTorch's watchdog."""

from __future__ import annotations

import re
from collections.abc import Iterator

from coppice.diagnosis.recorded.records import RUN_RULES, RunRecords
from coppice.diagnosis.recorded.stopping import mismatches, stopped
from coppice.doctor.framework import ERROR, NOTE, Complaint, Need
from coppice.logs.ras import RasRank
from coppice.text import plural

RECORDINGS = Need("dumps of PyTorch's flight recorder", lambda records: bool(records.recordings))
RAS = Need("a report of RAS (ncclras -f json)", lambda records: bool(records.reports))
TEXTS = Need("a log of the job", lambda records: bool(records.texts))

_MOST = 8
_WATCHDOG = re.compile(
    r"Rank (?P<rank>[0-9]+)\].{0,40}?Watchdog caught collective operation timeout: WorkNCCL\(SeqNum="
    r"(?P<number>[0-9]+), OpType=(?P<operation>\w+)",
    re.IGNORECASE,
)
_STATUS = re.compile(
    r"Rank (?P<rank>[0-9]+)\].*?last enqueued work: (?P<called>[0-9]+), last completed work: (?P<done>[0-9]+)",
    re.IGNORECASE,
)


def ranks_in_words(ranks: list[int] | tuple[int, ...]) -> str:
    """Ranks as text, runs of them together.

    Examples:
        >>> ranks_in_words([0, 1, 2, 5]), ranks_in_words([3])
        ('ranks 0-2, 5', 'rank 3')
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    more = f" and {len(words) - _MOST} more" if len(words) > _MOST else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(words[:_MOST])}{more}"


@RUN_RULES.rule("S01", ERROR, "no rank that others wait for", "the job hangs", needs=RECORDINGS)
def _stopped(records: RunRecords) -> Iterator[Complaint]:
    for each in stopped(records):
        where = f"; its last call: {each.caller}" if each.caller else ""
        if each.why == "no dump":
            text = f"rank {each.rank} of {each.description} left no dump, and others wait in {each.operation}"
            fix = "look whether its process still runs: it ended, or holds Python's lock"
        elif each.why == "not launched":
            text = (
                f"rank {each.rank} called {each.operation} {each.others} of {each.description} as the others did, but "
                f"its GPU has not come to it{where}"
            )
            fix = "look what runs on its stream before: a kernel or a copy that does not end"
        else:
            text = (
                f"rank {each.rank} stopped after collective {each.called} of {each.description}, others called "
                f"{each.others} and wait in {each.operation}{where}"
            )
            fix = (
                "look what this rank does between the two calls (py-spy dump): input, a branch, an exception"
            )
        if each.waits_in:
            yield (
                NOTE,
                (each.file, 0),
                f"{text}; it waits itself in group {each.waits_in}",
                "look at that group first",
            )
        else:
            yield (each.file, 0), text, fix


@RUN_RULES.rule(
    "S02", ERROR, "collectives that match over ranks", "ranks hang or get wrong values", needs=RECORDINGS
)
def _mismatched(records: RunRecords) -> Iterator[Complaint]:
    for each in mismatches(records):
        ways = [f"{ranks_in_words(ranks)}: {words}" for words, ranks in each.calls.items()]
        called = f" (called at {each.caller})" if each.caller else ""
        text = f"collective {each.number} of group {each.group} differs over ranks: {'; '.join(ways[:4])}{called}"
        yield (each.file, 0), text, "make all ranks call the same collectives with equal shapes in one order"


def _by_communicator(records: RunRecords) -> Iterator[tuple[str, str, list[RasRank]]]:
    for report in records.reports:
        groups: dict[str, list[RasRank]] = {}
        for rank in report.ranks:
            groups.setdefault(rank.communicator, []).append(rank)
        for name, ranks in groups.items():
            yield report.file, name, ranks


@RUN_RULES.rule("S03", ERROR, "equal counts of collectives", "others wait for those behind", needs=RAS)
def _counts(records: RunRecords) -> Iterator[Complaint]:
    for file, name, ranks in _by_communicator(records):
        for kind in dict.fromkeys(kind for rank in ranks for kind in rank.counts):
            told = [(rank, rank.counts[kind]) for rank in ranks if kind in rank.counts]
            least, most = min(count for _, count in told), max(count for _, count in told)
            if least < most:
                behind = [rank for rank, count in told if count == least]
                who = behind[0].where if len(behind) == 1 else ranks_in_words([each.rank for each in behind])
                text = f"{who} of communicator {name} called {kind} {plural(least, 'time')}, others {most}"
                fix = (
                    "ask once more: a running job catches up; in one that hangs it stopped first: look at it"
                )
                yield (file, 0), text, fix


@RUN_RULES.rule("S04", ERROR, "ranks that answer", "their processes are gone or stuck", needs=RAS)
def _missing(records: RunRecords) -> Iterator[Complaint]:
    for file, name, ranks in _by_communicator(records):
        for rank in ranks:
            if not rank.answers:
                what = "is considered dead" if rank.dead else "does not answer"
                text = f"{rank.where} of communicator {name} {what}"
                yield (file, 0), text, f"look at {rank.host}: the process, the kernel's log, its network"


@RUN_RULES.rule("S05", ERROR, "communicators without errors", "their collectives never end", needs=RAS)
def _failed(records: RunRecords) -> Iterator[Complaint]:
    for file, name, ranks in _by_communicator(records):
        for rank in ranks:
            words = [f"has the asynchronous error {rank.failed}"] if rank.failed else []
            words += ["was aborted"] if rank.aborted else []
            words += [] if rank.started else ["has not finished its initialisation"]
            if words:
                text = f"{rank.where} of communicator {name} {' and '.join(words)}"
                yield (file, 0), text, "look into the log of this rank for NCCL WARN"


@RUN_RULES.rule("S06", ERROR, "no timeouts of the watchdog", "the job is aborted", needs=TEXTS)
def _timeouts(records: RunRecords) -> Iterator[Complaint]:
    caught: dict[int, tuple[int, str, str, int]] = {}
    told: dict[int, int] = {}
    for file, line in records.spoken():
        whole = f"{line.stream} {line.text}"  # the rank may stand in what was taken for a prefix
        if match := _WATCHDOG.search(whole):
            number = int(match["number"][:15])
            caught.setdefault(int(match["rank"][:9]), (number, match["operation"].lower(), file, line.number))
        if match := _STATUS.search(whole):
            told[int(match["rank"][:9])] = int(match["called"][:15])
    if not caught:
        return
    number, operation, file, at = min(caught.values())
    behind = sorted({rank for rank, called in told.items() if called < number})
    later = sorted(rank for rank, (own, _, _, _) in caught.items() if own > number)
    text = f"{ranks_in_words(list(caught))} gave up collective {number} ({operation}) after its timeout"
    if later:
        text = (
            f"{ranks_in_words([rank for rank in caught if rank not in later])} gave up collective {number} "
            f"({operation}) after its timeout, {ranks_in_words(later)} later ones"
        )
    if behind:
        text += f"; {ranks_in_words(behind)} had not called it"
        fix = "look what these ranks did: the others waited for them"
    else:
        known = max(caught) + 1
        silent = [rank for rank in range(known) if rank not in caught]
        text += f"; {ranks_in_words(silent)} did not complain" if silent else ""
        fix = "look at ranks that did not complain first, and at dumps: set TORCH_FR_BUFFER_SIZE=2000"
    yield (file, at), text, fix
