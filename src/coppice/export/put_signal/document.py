"""Read and write put/signal programs: JSON with a call per line, and the set-up that engines must ensure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NoReturn

import numpy as np

from coppice.arguments import shown
from coppice.collectives import Collective
from coppice.decoding import decode_json
from coppice.errors import InputError
from coppice.program.dialects.put_signal.program import PutSignalAct, PutSignalCall, PutSignalProgram
from coppice.program.memory import Buffer

FORMAT = "coppice-put-signal"
_FORMAT_MEMBER = re.compile(rb'"format"\s*:\s*"' + FORMAT.encode() + b'"')
_VERSION = 1
_MOST_NUMBER = 2**53
_NAMES = {Buffer.INPUT: "input", Buffer.OUTPUT: "output", Buffer.SCRATCH: "staging"}
_BUFFERS = {name: int(buffer) for buffer, name in _NAMES.items()}
_WORDS = {PutSignalCall.TRANSFER: "transfer", PutSignalCall.WAIT: "wait", PutSignalCall.LOCAL: "local"}
_COLUMNS = (
    "act", "peer", "context", "signal", "count", "source_buffer", "source", "addend_buffer", "addend",
    "target_buffer", "target",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PutSignalSetup:
    """Set-up that engines must ensure; requirements differ by library version."""

    # Every rank signals itself and waits before the first run, on every communicator, since the first call of
    # a communicator is collective up to NCCL 2.30
    warm_up: bool = True
    whole_allocations: bool = True  # Windows begin where their allocations begin
    equal_windows: bool = True  # Windows are as large as the largest rank's
    capture: bool = False  # Runs are captured as CUDA graphs, all communicators and all ranks or none
    nonblocking: bool = False  # Communicators are non-blocking
    per_thread_stream: bool = False  # Streams are `cudaStreamPerThread`
    # The engine has a trace and a time limit of its own, since the libraries' do not see these calls
    watchdog: bool = True


@dataclass(frozen=True, kw_only=True)
class PutSignalFile:
    """Content of a put/signal file."""

    program: PutSignalProgram  # The program, as it stands there: nothing of it is believed
    setup: PutSignalSetup  # What engines must see to
    provenance: Mapping[str, Any] = field(default_factory=dict)  # Who made it of what


def is_put_signal(data: bytes) -> bool:
    """Whether a JSON file is a put/signal program, by its ``format``, at any position.

    >>> is_put_signal(b'{"format": "coppice-put-signal", "version": 1}'), is_put_signal(b'{"gpus": []}')
    (True, False)
    """
    return data[:4096].lstrip().startswith(b"{") and _FORMAT_MEMBER.search(data) is not None


def put_signal_json(
    program: PutSignalProgram,
    setup: PutSignalSetup | None = None,
    *,
    provenance: Mapping[str, Any] | None = None,
) -> str:
    """Encode a program, deterministically."""
    head = {
        "format": FORMAT,
        "version": _VERSION,
        "provenance": dict(provenance or {}),
        "name": program.name,
        "collective": program.collective.value,
        "ranks": program.num_ranks,
        "root": program.root,
        "chunks": program.num_chunks,
        "in_place": program.in_place,
        "out_of_place": program.out_of_place,
        "staging": program.staging.tolist(),
        "setup": asdict(setup or PutSignalSetup()),
    }
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    ranks = [",\n".join(f"    {call}" for call in calls) for calls in _calls(program)]
    body = ",\n".join(f"   [\n{calls}\n   ]" if calls else "   []" for calls in ranks)
    return "{\n" + "\n".join(lines) + f'\n  "calls": [\n{body}\n  ]\n}}\n'


def _calls(program: PutSignalProgram) -> Iterator[list[str]]:
    """The calls of each rank."""
    columns = {key: getattr(program, key).tolist() for key in _COLUMNS}
    kinds, streams, lines = (c.tolist() for c in (program.call_kind, program.stream, program.communicator))
    start, ranks = program.call_start.tolist(), program.rank_start.tolist()
    for rank in range(program.num_ranks):
        made = []
        for call in range(ranks[rank], ranks[rank + 1]):
            rows = [_row(columns, op) for op in range(start[call], start[call + 1])]
            head: dict[str, Any] = {"stream": streams[call]}
            if kinds[call] != PutSignalCall.LOCAL:
                head["communicator"] = lines[call]
            made.append(json.dumps({**head, _WORDS[PutSignalCall(kinds[call])]: rows}))
        yield made


def _row(columns: Mapping[str, list[int]], op: int) -> list[Any]:
    """An operation."""

    def place(which: str) -> list[Any]:
        return [_NAMES[Buffer(columns[f"{which}_buffer"][op])], columns[which][op]]

    peer, ends = columns["peer"][op], [columns["signal"][op], columns["context"][op]]
    count = columns["count"][op]
    match columns["act"][op]:
        case PutSignalAct.PUT:
            return ["put", peer, *place("source"), *place("target"), count, *ends]
        case PutSignalAct.SIGNAL:
            return ["signal", peer, *ends]
        case PutSignalAct.WAIT:
            return ["wait", peer, count, *ends]
        case PutSignalAct.COPY:
            return ["copy", *place("source"), *place("target"), count]
        case _:
            return ["sum", *place("source"), *place("addend"), *place("target"), count]


_FORMS = {
    "put": (
        PutSignalAct.PUT,
        ("peer", "source_buffer", "source", "target_buffer", "target", "count", "signal", "context"),
    ),
    "signal": (PutSignalAct.SIGNAL, ("peer", "signal", "context")),
    "wait": (PutSignalAct.WAIT, ("peer", "count", "signal", "context")),
    "copy": (PutSignalAct.COPY, ("source_buffer", "source", "target_buffer", "target", "count")),
    "sum": (
        PutSignalAct.SUM,
        ("source_buffer", "source", "addend_buffer", "addend", "target_buffer", "target", "count"),
    ),
}  # fmt: skip
"""Members of each operation after its name."""


def parse_put_signal(data: bytes, *, file: str) -> PutSignalFile:
    """Parse a file.

    Args:
        data: Its bytes.
    """
    tree = decode_json(data, object, lambda fault: f"{file} is {fault}: export the plan again.")
    return _Reader(tree, file).read()


class _Reader:
    def __init__(self, tree: Any, file: str) -> None:
        self.tree, self.file = tree, file

    def refuse(self, path: str, expected: str, found: Any) -> NoReturn:
        raise InputError(f"{self.file} {path}: expected {expected}, found {shown(found)}.")

    def member(self, key: str, kind: type | tuple[type, ...], words: str) -> Any:
        """A member of the top that must be there."""
        value = self.tree.get(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.refuse(f"$.{key}", words, value)
        return value

    def number(self, value: Any, path: str, low: int, words: str) -> int:
        """A whole number of at least ``low``."""
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value < _MOST_NUMBER:
            self.refuse(path, words, value)
        return value

    def read(self) -> PutSignalFile:
        found = self.tree.get("format") if isinstance(self.tree, dict) else self.tree
        if found != FORMAT:
            raise InputError(
                f"{self.file} $.format: expected {FORMAT!r}, found {shown(found)}: make one of a plan with "
                "`coppice export PLAN --to put-signal`."
            )
        if self.tree.get("version") != _VERSION:
            self.refuse(
                "$.version", f"{_VERSION}, as this version of Coppice reads", self.tree.get("version")
            )
        name = self.member("name", str, "a name")
        try:
            collective = Collective(self.member("collective", str, "the name of a collective"))
        except ValueError:
            self.refuse("$.collective", f"one of {', '.join(Collective)}", self.tree["collective"])
        ranks = self.number(self.tree.get("ranks"), "$.ranks", 1, "a number of ranks")
        chunks = self.number(self.tree.get("chunks"), "$.chunks", 1, "a number of chunks")
        root = self.number(self.tree.get("root"), "$.root", -1, "a rank, or -1")
        staging = self.member("staging", list, "a list of the slots of staging memory of each rank")
        calls = self.member("calls", list, "a list of the calls of each rank")
        for key, line in (("staging", staging), ("calls", calls)):
            if len(line) != ranks:
                self.refuse(f"$.{key}", f"{ranks} members, one for each rank", len(line))
        slots = [self.number(each, f"$.staging[{at}]", 0, "slots") for at, each in enumerate(staging)]
        columns = self.calls(calls)
        program = PutSignalProgram(
            collective=collective,
            num_ranks=ranks,
            num_chunks=chunks,
            root=root,
            in_place=self.member("in_place", bool, "true or false"),
            out_of_place=self.member("out_of_place", bool, "true or false"),
            staging=np.array(slots, dtype=np.int64),
            name=name,
            **{key: np.array(column, dtype=np.int64) for key, column in columns.items()},
        )
        return PutSignalFile(
            program=program, setup=self.setup(), provenance=self.member("provenance", dict, "an object")
        )

    def setup(self) -> PutSignalSetup:
        given = self.member("setup", dict, "an object")
        known = {each.name for each in fields(PutSignalSetup)}
        for key, value in given.items():
            if key not in known or not isinstance(value, bool):
                self.refuse(f"$.setup.{key}", f"true or false for one of {', '.join(sorted(known))}", value)
        return PutSignalSetup(**given)

    def calls(self, ranks: list[Any]) -> dict[str, list[int]]:
        """The columns of all calls and operations."""
        columns: dict[str, list[int]] = {key: [] for key in _COLUMNS}
        columns |= {"rank_start": [0], "call_start": [0], "stream": [], "communicator": []}
        kinds = {word: kind for kind, word in _WORDS.items()}
        for rank, calls in enumerate(ranks):
            if not isinstance(calls, list):
                self.refuse(f"$.calls[{rank}]", "a list of calls", calls)
            for number, call in enumerate(calls):
                path = f"$.calls[{rank}][{number}]"
                word = next((word for word in kinds if isinstance(call, dict) and word in call), None)
                wanted = {"stream", word} | (set() if word == "local" else {"communicator"})
                if word is None or set(call) != wanted:
                    self.refuse(
                        path, "a stream, and a transfer or wait with its communicator, or a local call", call
                    )
                columns["stream"].append(self.number(call["stream"], f"{path}.stream", 0, "a stream"))
                line = call.get("communicator", -1)
                if word != "local":
                    self.number(line, f"{path}.communicator", 0, "a communicator")
                columns["communicator"].append(line)
                rows = call[word]
                if not isinstance(rows, list) or not rows:
                    self.refuse(f"{path}.{word}", "one operation or more", rows)
                for place, row in enumerate(rows):
                    self.row(row, columns, (path, word, place))
                columns["call_start"].append(len(columns["act"]))
            columns["rank_start"].append(len(columns["stream"]))
        return columns

    def row(self, row: Any, columns: dict[str, list[int]], at: tuple[str, str, int]) -> None:
        """One operation, at (path of its call, kind, place)."""

        def path() -> str:
            return f"{at[0]}.{at[1]}[{at[2]}]"

        form = _FORMS.get(row[0]) if isinstance(row, list) and row and isinstance(row[0], str) else None
        if form is None or len(row) != len(form[1]) + 1:
            self.refuse(path(), f"an operation ({', '.join(_FORMS)}) with its members", row)
        act, keys = form
        found = {"peer": -1, "source_buffer": -1, "addend_buffer": -1, "target_buffer": -1, "act": int(act)}
        for key, value in zip(keys, row[1:], strict=True):
            if key.endswith("_buffer"):
                if not isinstance(value, str) or value not in _BUFFERS:
                    self.refuse(path(), f"a buffer ({', '.join(_BUFFERS)})", value)
                found[key] = _BUFFERS[value]
            elif not isinstance(value, int) or isinstance(value, bool) or abs(value) >= _MOST_NUMBER:
                self.refuse(path(), f"a whole number for the {key}", value)
            else:
                found[key] = value
        for key in _COLUMNS:
            columns[key].append(found.get(key, 0))
