"""Read logs of NCCL and RCCL (``NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING``): cost model, choices, settings.

Lines of many processes may be mixed, and torn where several write at once: a line is known by its process, and what
begins like a known line but cannot be read becomes a warning with its number, for the rest is worth reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from coppice.collectives import Collective
from coppice.logs.lines import LogLine
from coppice.logs.records import (
    TUNED,
    Log,
    LoggedCell,
    LoggedCommunicator,
    LoggedDecision,
    collective_named,
    count_untuned,
    own_name,
)

_LINE = re.compile(r"^(?P<head>.*?)NCCL (?:INFO|WARN) (?P<rest>.*)$")
_PROCESS = re.compile(r"(\S+?):(\d+):(\d+)\s+\[\d+\]\s*$")
_COMM = re.compile(r"comm (\S+) rank (\d+) nRanks (\d+) nNodes (\d+) localRanks (\d+)", re.IGNORECASE)
_CHANNELS = re.compile(r"(?:comm \S+,\s*)?(\d+) coll channels\b")
_VERSION = re.compile(r"(?:NCCL|RCCL) version (?P<version>\d+\.\d+(?:\.\d+)?)")
_SETTING = re.compile(r"((?:NCCL|NCCLX|RCCL)_\w+) set (?:by environment )?to (.*)$")
_TUNER = re.compile(r"TUNER/Plugin: Using (?:tuner plugin )?(.+?)(?: \(v\d+\))?\s*$")
_NO_TUNER = re.compile(r"TUNER/Plugin: (?:Could not find|Failed to find)")
_CHOICE = re.compile(
    r"(?P<name>\w+): (?P<bytes>\d+) Bytes -> Algo (?P<algo>\w+)\s+proto (?P<proto>\w+)\s+"
    r"channel\{Lo\.\.Hi\}=\{(?P<lo>\d+)\.\.(?P<hi>\d+)\}(?:.*?\bcomm (?P<comm>\S+))?"
)
_OLD_CHOICE = re.compile(r"(\d+) Bytes -> Algo (\d+) proto (\d+) time (\S+)")
_BESIDE = re.compile(r"(?P<name>\w+)(?: \[(?P<path>[\w ]+)\]: |: opCount )")
_CELL = re.compile(r"\s*(\d+\.\d+)/\s*(\d+\.\d+)\s*")
_ROW = re.compile(r"\s*(\w+) \|")
_PAIR = re.compile(r"\s*(\w+)\s*/\s*(\w+)\s*")

_OLD_ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
_OLD_PROTOCOLS = ("ll", "ll128", "simple")
_MOST_WARNINGS = 20


@dataclass
class _CommunicatorDraft:
    """A communicator as one thread of a process prints it."""

    ranks: int | None
    nodes: int | None
    line: int
    channels: int | None = None
    cells: list[LoggedCell] = field(default_factory=list)


def read_nccl_log(lines: Iterable[LogLine], *, file: str) -> Log:
    """Parse the NCCL or RCCL lines of a log; other lines are skipped.

    Args:
        lines: The log (:func:`coppice.logs.lines.log_lines`).

    Examples:
        >>> from coppice.logs.lines import log_lines
        >>> text = "n1:7:7 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15}"
        >>> found = read_nccl_log(log_lines(text), file="log")
        >>> choice, = found.decisions
        >>> choice.collective.value, choice.size_bytes, choice.algorithm, choice.protocol, choice.channels
        ('all_reduce', 1048576, 'ring', 'll128', 16)
    """
    reader = _NcclLogReader(file)
    for number, text, _, _ in lines:
        match = _LINE.match(text) if "NCCL" in text else None
        if match:
            reader.line(match["head"], match["rest"], number)
        elif "NCCL version" in text or "RCCL version" in text:
            reader.version(text)
    return reader.done()


Key = tuple[str, str, str]


class _NcclLogReader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.lines = 0
        self.library_version: str | None = None
        self.tuner: str | None = None
        self.settings: dict[str, str] = {}
        self.beside: dict[str, int] = {}
        self.warnings: list[str] = []
        self.drafts: list[_CommunicatorDraft] = []
        self.current: dict[Key, _CommunicatorDraft] = {}
        self.by_process: dict[tuple[str, str], list[_CommunicatorDraft]] = {}
        self.by_name: dict[tuple[str, str, str], _CommunicatorDraft] = {}
        self.algorithms: dict[Key, list[str]] = {}
        self.columns: dict[Key, list[tuple[str, str]]] = {}
        self.counts: dict[LoggedDecision, tuple[int, int]] = {}
        self.hidden = 0

    def line(self, head: str, rest: str, number: int) -> None:
        self.lines += 1
        process = _PROCESS.search(head)
        key: Key = (process[1], process[2], process[3]) if process else ("", "", "")
        if "Bytes ->" in rest:
            self.choice(rest, key, number)
        elif "|" in rest:
            self.table(rest, key, number)
        elif "nRanks" in rest or "nranks" in rest:
            self.communicator(rest, key, number)
        elif "coll channels" in rest:
            match = _CHANNELS.search(rest)
            if match and key in self.current:
                self.current[key].channels = int(match[1])
        else:
            self.said(rest)

    def said(self, rest: str) -> None:
        """Settings, plugins, version, and calls that no tuner sees."""
        setting = _SETTING.match(rest)
        beside = _BESIDE.match(rest)
        if setting:
            self.settings[setting[1]] = setting[2].strip().rstrip(".")[:1000]
        elif "version" in rest:
            self.version(rest)
        elif rest.startswith("TUNER/Plugin"):
            using = _TUNER.match(rest)
            if using:
                self.tuner = using[1]
            elif _NO_TUNER.match(rest) and self.tuner is None:
                self.tuner = ""
        elif beside and (beside["path"] or beside["name"] not in TUNED):
            self.aside(beside["name"], beside["path"])

    def aside(self, name: str, path: str | None) -> None:
        what = f"{name} by {path.lower()}" if path else name
        if len(what) < 60:
            count_untuned(self.beside, what)

    def version(self, text: str) -> None:
        match = _VERSION.search(text)
        if match and self.library_version is None:
            self.library_version = match["version"]

    def communicator(self, rest: str, key: Key, number: int) -> None:
        match = _COMM.search(rest)
        if not match or any(len(match[group]) > 9 for group in (2, 3, 4)):
            return
        draft = _CommunicatorDraft(ranks=int(match[3]), nodes=int(match[4]), line=number)
        self.current[key] = draft
        if int(match[2]) == 0:
            self.by_process.setdefault(key[:2], []).append(draft)
            self.by_name[(*key[:2], match[1])] = draft
        self.drafts.append(draft)

    def table(self, rest: str, key: Key, number: int) -> None:
        cells = rest.split("|")
        title = cells[0].strip()
        body = [cell for cell in cells[1:] if cell.strip()]
        if title == "Algorithm":
            self.algorithms[key] = [cell.strip() for cell in body]
        elif title == "Protocol":
            self.header(key, [cell.strip() for cell in body], number)
        elif title == "Latency/AlgBw":
            pairs = [_PAIR.fullmatch(cell) for cell in body]
            names = [(own_name(pair[1]), own_name(pair[2])) for pair in pairs if pair]
            self.columns[key] = [(a, p) for a, p in names if a and p]
            if len(self.columns[key]) != len(body):
                self.unread(number, "the head of a table of the cost model")
        elif collective_named(title) is not None and title in TUNED and _ROW.match(rest):
            self.row(title, body, key, number)

    def header(self, key: Key, protocols: list[str], number: int) -> None:
        """The line of protocols below that of algorithms.

        NCCL prints the protocols of three algorithms in every block, also where a block has fewer, such as the last one
        with PAT alone; the rows below have cells for the algorithms that are there.
        """
        algorithms = [own_name(name) for name in self.algorithms.pop(key, [])]
        names = [own_name(name) for name in protocols]
        each = next((n for n in range(1, len(names) + 1) if names == names[:n] * (len(names) // n)), 0)
        if not each or None in algorithms or None in names or not 0 < len(algorithms) * each <= len(names):
            self.columns.pop(key, None)
            self.unread(number, "the head of a table of the cost model")
            return
        self.columns[key] = [
            (algorithm, protocol)
            for algorithm in algorithms
            for protocol in names[:each]
            if algorithm and protocol
        ]

    def row(self, title: str, body: list[str], key: Key, number: int) -> None:
        columns = self.columns.get(key, [])
        values = [_CELL.fullmatch(cell) for cell in body]
        collective = collective_named(title)
        if not columns or len(values) != len(columns) or collective is None:
            self.unread(number, f"a row of the cost model ({len(columns)} columns, {len(values)} cells)")
            return
        draft = self.current.get(key)
        if draft is None:
            draft = _CommunicatorDraft(ranks=None, nodes=None, line=number)
            self.current[key] = draft
            self.drafts.append(draft)
        for (algorithm, protocol), match in zip(columns, values, strict=True):
            if match is None or len(match[1]) > 20 or len(match[2]) > 20:
                self.unread(number, "a cell of the cost model")
                return
            draft.cells.append(
                LoggedCell(
                    collective=collective,
                    algorithm=algorithm,
                    protocol=protocol,
                    latency_us=float(match[1]),
                    gb_per_s=float(match[2]),
                    line=number,
                )
            )

    def choice(self, rest: str, key: Key, number: int) -> None:
        match = _CHOICE.match(" ".join(rest.replace(":", ": ", 1).split()))
        if match:
            name, collective = match["name"], collective_named(match["name"])
            algorithm, protocol = own_name(match["algo"]), own_name(match["proto"])
            low, high = (int(match[group]) if len(match[group]) < 6 else -1 for group in ("lo", "hi"))
            if len(match["bytes"]) > 18 or not 0 <= low <= high:
                self.unread(number, "a choice")
            elif name not in TUNED or collective is None or algorithm is None or protocol is None:
                self.aside(name, None)
            else:
                owner = self.owner(key, match["comm"])
                self.count(
                    _decision(
                        collective, match["bytes"], owner, (algorithm, protocol), channels=high - low + 1
                    ),
                    number,
                )
            return
        old = _OLD_CHOICE.match(rest.strip())
        if old and len(old[1]) < 19 and len(old[2]) < 3 and len(old[3]) < 3:
            algorithm_id, protocol_id = int(old[2]), int(old[3])
            time = _time(old[4])
            if algorithm_id < len(_OLD_ALGORITHMS) and protocol_id < len(_OLD_PROTOCOLS) and time is not None:
                names = (_OLD_ALGORITHMS[algorithm_id], _OLD_PROTOCOLS[protocol_id])
                self.count(_decision(None, old[1], self.owner(key, None), names, time_us=time), number)
                return
        beside = _BESIDE.match(rest)
        if beside and beside["path"]:
            self.aside(beside["name"], beside["path"])
        else:
            self.unread(number, "a choice")

    def owner(self, key: Key, name: str | None) -> _CommunicatorDraft | None:
        """The communicator that a choice is about, where that is sure."""
        if name is not None and (*key[:2], name) in self.by_name:
            return self.by_name[(*key[:2], name)]
        drafts = self.by_process.get(key[:2], [])
        return drafts[0] if len({(draft.ranks, draft.nodes) for draft in drafts}) == 1 else None

    def count(self, decision: LoggedDecision, number: int) -> None:
        first, calls = self.counts.get(decision, (number, 0))
        self.counts[decision] = (first, calls + 1)

    def unread(self, number: int, what: str) -> None:
        if len(self.warnings) < _MOST_WARNINGS:
            self.warnings.append(f"{self.file}:{number} begins like {what} and is none: passed over")
        else:
            self.hidden += 1

    def done(self) -> Log:
        communicators: dict[tuple[object, ...], LoggedCommunicator] = {}
        tabled = {(draft.ranks, draft.nodes) for draft in self.drafts if draft.cells}
        for draft in self.drafts:
            if not draft.cells and (draft.ranks, draft.nodes) in tabled:
                continue
            what = (
                draft.ranks,
                draft.nodes,
                draft.channels,
                tuple((c.latency_us, c.gb_per_s) for c in draft.cells),
            )
            found = LoggedCommunicator(
                ranks=draft.ranks,
                nodes=draft.nodes,
                channels=draft.channels,
                cells=tuple(draft.cells),
                line=draft.line,
            )
            communicators.setdefault(what, found)
        if self.hidden:
            self.warnings.append(f"{self.file} has {self.hidden} further lines that could not be read")
        return Log(
            file=self.file,
            kind="log of NCCL" if self.lines else "",
            decisions=tuple(
                replace(decision, calls=calls, line=line) for decision, (line, calls) in self.counts.items()
            ),
            communicators=tuple(communicators.values()),
            version=self.library_version,
            tuner=self.tuner,
            settings=self.settings,
            beside=self.beside,
            warnings=tuple(self.warnings),
        )


def _decision(
    collective: Collective | None,
    size: str,
    owner: _CommunicatorDraft | None,
    names: tuple[str, str],
    *,
    channels: int | None = None,
    time_us: float | None = None,
) -> LoggedDecision:
    return LoggedDecision(
        collective=collective,
        rank_bytes=int(size),
        ranks=None if owner is None else owner.ranks,
        nodes=None if owner is None else owner.nodes,
        algorithm=names[0],
        protocol=names[1],
        channels=channels,
        time_us=time_us,
        calls=0,
        line=0,
    )


def _time(text: str) -> float | None:
    """A time, or None."""
    try:
        value = float(text[:32])
    except ValueError:
        return None
    return value if 0 <= value < 1e12 else None
