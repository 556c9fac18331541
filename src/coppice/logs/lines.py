r"""Split a log into lines, stripping prefixes of launchers, log collectors, mail and debuggers.

Every reader of logs works on these lines, so that a prefix hides nothing from one reader that another one sees. A
prefix is known by its form (Open MPI's ``[1,0]<stdout>:``, ``[0] ``, ``0: ``, ``[default0]:``, ``pod | ``, ``> ``, time
stamps), or learned: what stands before at least two of the lines that every benchmark prints (``# Using devices``, the
names of columns, ...) is taken away from all lines that begin like it, digits aside. Lines of NCCL and of a debugger
that begin in the middle of another line are separated from it. Colours are dropped.

Logs inside JSON, as containers and log collectors keep them: the text of all records, in order.

Docker writes ``{"log": "...\\n", "stream": ..., "time": ...}`` line by line, CloudWatch answers with ``{"events":
[{"timestamp": ..., "message": "..."}]}``, other collectors write ``message`` or ``textPayload``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple


class LogLine(NamedTuple):
    """A line of a log."""

    number: int  # Its number in the file, from 1
    text: str  # The line without its prefix; columns stand where the program put them
    # The prefix without its time: equal for lines of one process where a launcher tells processes apart
    stream: str
    cut: bool  # Another line began here, so that the rest of this one may follow later


_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
_MARK = re.compile(
    r"#(?:\s+Rank\s+[0-9]+\s|\s*nThreads? [0-9]|\s*nccl-tests version|\s*Collective test|\s*Using devices"
    r"|\s+(?:size|bytes)\s+(?:count|N)\s|\s+\(B\)\s|\s+(?:out-of-place|in-place)\b|\s*Out of bounds values"
    r"|\s*Avg bus bandwidth)"
)
_SURE = re.compile(rf"NCCL (?:INFO|WARN) |{_MARK.pattern}")
_LONGEST_PREFIX = 200
_MOST_SHAPES = 16
_LEAST_LINES = 2
_MOST_PREFIXES = 6
_MOST_PARTS = 20

_TIMES = (
    (
        r"\[?[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]+)?"
        r"(?:Z| ?[+-][0-9]{2}:?[0-9]{2})?\]?(?:[:|,]| -)?(?:[ \t]|$|(?=[\[<]))"
    ),
    r"\[?[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]+)?\]?[:|]?(?:[ \t]|$|(?=[\[<]))",
    (
        r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} +[0-9]{1,2} [0-9]{2}:[0-9]{2}:[0-9]{2} (?:[A-Z]{2,5} )?[0-9]{4}"
        r"(?:[ \t]|$|(?=[\[<]))"
    ),
    r"[A-Z][a-z]{2} +[0-9]{1,2} [0-9]{2}:[0-9]{2}:[0-9]{2}[ \t]",
    r"\[ *[0-9]+\.[0-9]+\][ \t]",
)
_TAGS = (
    r"(?:> ?)+",  # quoted in mail
    r"(?:\[[^\[\]\s]{1,120}\])*<std(?:out|err|diag)>: ?",  # Open MPI --tag-output
    r"\[[0-9]{1,7}\] ?",  # MPICH and Intel MPI -prepend-rank
    r"\[[A-Za-z][\w.-]*[0-9]\]: ?",  # torchrun
    r" *[0-9]{1,7}:(?: |$)",  # srun --label
    r"[\w.-]{1,64} +\| ",  # docker compose
    r"\[pod/[^\]\s]+\] ",  # kubectl --prefix
    r"\((?:[\w.:-]+ )?pid=[0-9]+(?:, ip=[\w.:]+)?\) ",  # Ray
    r"std(?:out|err) [FP] ",  # container runtimes
    r"[A-Za-z][\w.-]{0,63}: (?=#|\s*[0-9]+\s+[0-9]+\s|\S+:[0-9]+:[0-9]+ \[)",  # pdsh, clush
)
_TIME = re.compile("|".join(_TIMES))
_KNOWN = re.compile("|".join((*_TIMES, *_TAGS)))
_KNOWN_AT_END = re.compile("(?:" + "|".join(_TAGS[1:-1]) + ")$")
_TIME_AT_END = re.compile("(?:" + "|".join(_TIMES) + ")$")

_PROCESS = re.compile(r"(\S+):[0-9]+:[0-9]+ +\[[0-9]+\] NCCL (?:INFO|WARN|TRACE|ERROR)\b")
_BEGINS = re.compile(
    r"(?<=[\s0-9\]/A])([A-Za-z][\w.-]*):[0-9]+:[0-9]+ +\[[0-9]+\] NCCL (?:INFO|WARN|TRACE|ERROR)\b"
)
_DEBUGGER = re.compile(r"\[(?:New Thread|Thread|Detaching|Attaching|Switching to) [^\[\]]{1,200}\]")


def is_log(text: str) -> bool:
    """Whether a text has several lines that benchmarks print or NCCL logs."""
    found = list(islice(_SURE.finditer(text), _LEAST_LINES))
    return len(found) == _LEAST_LINES and text.count("\n") >= _LEAST_LINES


def log_lines(text: str) -> tuple[LogLine, ...]:
    r"""Lines of a log without prefixes; parts of an interrupted line are rejoined.

    Examples:
        >>> [line.text for line in log_lines("[1,0]<stdout>:# Using devices\n> [0]    8  2")]
        ['# Using devices', '   8  2']
        >>> [line.text for line in log_lines("8 2 float sum -1n1:7:7 [0] NCCL INFO 8 Bytes")]
        ['8 2 float sum -1', 'n1:7:7 [0] NCCL INFO 8 Bytes']
    """
    raw = list(_raw(text))
    learned = _learned(raw)
    lines = [_freed(number, line, learned) for number, line in raw]
    hosts = {
        match[1] for line in lines if "NCCL" in line.text for match in [_PROCESS.match(line.text)] if match
    }
    return tuple(part for line in lines for part in _parts(line, hosts, learned))


def _raw(text: str) -> Iterator[tuple[int, str]]:
    """Lines as editors count them; what a carriage return overwrites counts as a line of its own."""
    for number, line in enumerate(text.split("\n"), start=1):
        plain = _COLOURS.sub("", line) if "\x1b" in line else line
        if "\r" not in plain:
            yield number, plain
            continue
        for part in plain.split("\r"):
            if part:
                yield number, part


def _learned(raw: list[tuple[int, str]]) -> re.Pattern[str] | None:
    """What stands before the lines that every benchmark prints, digits aside."""
    found: Counter[str] = Counter()
    for _, line in raw:
        match = _MARK.search(line) if "#" in line else None
        if match and 0 < match.start() <= _LONGEST_PREFIX and "NCCL " not in line[: match.start()]:
            found[_shape(line[: match.start()])] += 1
    shapes = [shape for shape, count in found.most_common(_MOST_SHAPES) if count >= _LEAST_LINES]
    return re.compile("|".join(sorted(shapes, key=len, reverse=True))) if shapes else None


def _shape(prefix: str) -> str:
    """An expression for all prefixes that are equal but for their numbers; blank space at the end is exact.

    >>> bool(re.fullmatch(_shape("Nov  8 17:00:00 n1: "), "Nov 12 09:30:01 n1: "))
    True
    """
    body = prefix.rstrip()
    words = [re.sub(r"[0-9]+", "[0-9]+", re.escape(word)) for word in re.split(r"\s+", body)]
    return r"[ \t]+".join(words) + re.escape(prefix[len(body) :])


def _freed(number: int, line: str, learned: re.Pattern[str] | None) -> LogLine:
    at, tags = 0, []
    for _ in range(_MOST_PREFIXES):
        match = learned.match(line, at) if learned is not None else None
        match = match if match and match.end() > at else _KNOWN.match(line, at)
        if match is None or match.end() == at:
            break
        tags.append(_TIME.sub("", match[0]).strip())
        at = match.end()
        if learned is not None and match.re is learned:
            break  # it reaches to where the program begins
    return LogLine(number, line[at:], " ".join(tag for tag in tags if tag), cut=False)


def _parts(line: LogLine, hosts: set[str], learned: re.Pattern[str] | None) -> Iterator[LogLine]:
    """A line, apart where others begin in its middle."""
    text = line.text
    for _ in range(_MOST_PARTS):
        inner = _inner(text, hosts)
        if inner is None:
            break
        start, end = inner
        head = text[:start]
        ends = [_KNOWN_AT_END, _TIME_AT_END]
        ends += [] if learned is None else [re.compile(f"(?:{learned.pattern})$")]
        for pattern in ends:
            for _ in range(_MOST_PREFIXES):
                match = pattern.search(head[-_LONGEST_PREFIX:])
                if match is None or not match[0].strip():
                    break
                head = head[: len(head) - len(match[0])]
        if head.strip():
            yield line._replace(text=head, cut=True)
        yield line._replace(text=text[start:end], cut=False)
        text = text[end:]
        if not text.strip():
            return
    yield line if text is line.text else line._replace(text=text)


def _inner(text: str, hosts: set[str]) -> tuple[int, int] | None:
    """Where a line of NCCL or of a debugger begins and ends inside another one."""
    if "NCCL" in text and not _PROCESS.match(text):
        for process in _PROCESS.finditer(text):
            known = [host for host in hosts if process[1].endswith(host)]
            if known:
                return process.end(1) - len(max(known, key=len)), len(text)
        begun = _BEGINS.search(text)
        if begun is not None:
            return begun.start(), len(text)
    if "Thread" in text or "Detaching" in text:
        told = _DEBUGGER.search(text)
        if told is not None and text[: told.start()].strip():
            return told.start(), told.end()
    return None


_KEYS = ("log", "message", "textPayload", "msg")


def unwrapped(text: str) -> str | None:
    r"""The log inside a JSON wrapper; None where a text is no such JSON.

    Examples:
        >>> unwrapped('{"log": "# Using\\n", "stream": "stdout"}\n{"log": "a", "time": "t"}\n')
        '# Using\na\n'
        >>> unwrapped('{"results": []}') is None
        True
    """
    first = text.lstrip()[:4096]
    if not first.startswith(("{", "[")) or not any(f'"{key}"' in first for key in _KEYS):
        return None
    try:
        whole = [json.loads(text)]
    except (ValueError, RecursionError):
        try:
            whole = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            return None
    if len(whole) == 1 and isinstance(whole[0], dict) and isinstance(whole[0].get("events"), list):
        whole = whole[0]["events"]
    elif len(whole) == 1 and isinstance(whole[0], list):
        whole = whole[0]
    parts = [_text(record) for record in whole]
    if not parts or None in parts:
        return None
    return "".join(part if part.endswith("\n") else f"{part}\n" for part in parts if part is not None)


def _text(record: Any) -> str | None:
    if not isinstance(record, dict):
        return None
    return next((record[key] for key in _KEYS if isinstance(record.get(key), str)), None)
