"""Sweep NCCL and RCCL through nccl-tests (rccl-tests), one process a choice and round; the tuner plugin in Python.

The choice is made by the library's own variables (NCCL_ALGO, NCCL_PROTO), or by a tuner table with one line for
everything, read by Coppice's plugin or by RCCL itself; a table never selects what the library has switched off. In each
round the default runs first, then every choice, in an order that changes; a time of a choice and the default of its
round make a pair. Lines are appended after every run, and a sweep that was stopped goes on with what is missing.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.export.formats import Dialect
from coppice.export.nccl.tuner_reader import ANY, TunerLine, read_tuner_table
from coppice.fitting.nccl_tuner import ALGORITHMS, COLLECTIVES, MOST_CHANNELS, PROTOCOLS, impossible
from coppice.logs.reading import parse_log
from coppice.logs.records import LoggedMeasurement
from coppice.run.processes import stop
from coppice.tuning.fit import NO_END
from coppice.tuning.logged import ALGORITHM_NAMES, PROTOCOL_NAMES
from coppice.tuning.records import LibraryChoice, TimedRun, append, reopen

TABLE_VARIABLE = "COPPICE_TUNER_TABLE"
"""Variable that names the table."""

_OFFSET, _PRIME = 0xCBF29CE484222325, 0x100000001B3


def fingerprint(data: bytes) -> str:
    """Fingerprint of a table that the plugin prints at communicator creation: equal tables, equal prints.

    Examples:
        >>> fingerprint(b"")
        'cbf29ce484222325'
    """
    value = _OFFSET
    for byte in data:
        value = (value ^ byte) * _PRIME % 2**64
    return f"{value:016x}"


_MOST_LINE = 255


@dataclass(frozen=True, kw_only=True)
class PluginTable:
    """Rules of a tuner table."""

    lines: tuple[TunerLine, ...]  # Lines with a rule, in order

    def decide(
        self,
        collective: str,  # In the spelling of tuner tables
        size_bytes: int,
        *,
        nodes: int,
        ranks: int,
        # Pairs of algorithm and protocol that the library offers for the call
        available: Container[tuple[str, str]],
    ) -> TunerLine | None:
        r"""Matching rule of a call, None where the library decides.

        Examples:
            >>> table = load_table(b"allreduce,0,1023,nvls,simple,-1,-1,8\nallreduce,0,4095,ring,ll,4,-1,-1\n")
            >>> table.decide("allreduce", 512, nodes=1, ranks=8, available=[("ring", "ll")]).channels
            4
            >>> table.decide("allreduce", 4096, nodes=1, ranks=8, available=[("ring", "ll")])
        """
        for line in self.lines:
            if (
                line.collective == collective
                and line.sizes[0] <= size_bytes <= line.sizes[1]
                and line.nodes[0] <= nodes <= line.nodes[1]
                and line.ranks[0] <= ranks <= line.ranks[1]
                and (line.algorithm, line.protocol) in available
            ):
                return line
        return None


def load_table(data: bytes, *, file: str = "table") -> PluginTable:
    r"""Read a table with the strictness of the plugin.

    Examples:
        >>> load_table(b"allreduce,0,1023,ring,ll,0,-1,8\n", file="t.csv")
        Traceback (most recent call last):
        coppice.errors.InputError: t.csv:1: channels of 1 to 127 or -1 are expected, found 0.
    """
    text = data.decode("utf-8", errors="replace").removeprefix("\ufeff")
    table = read_tuner_table(text, Dialect.COPPICE)
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if len(raw.removesuffix(b"\r")) > _MOST_LINE:
            raise InputError(
                f"{file}:{number}: lines of up to {_MOST_LINE} bytes are expected, found a longer one."
            )
    for line in table.lines:
        reason = _refusal(line)
        if reason is not None:
            raise InputError(f"{file}:{line.number}: {reason}.")
    if not table.lines:
        raise InputError(f"{file} holds no rule: expected one at least.")
    return PluginTable(lines=table.lines)


def _refusal(line: TunerLine) -> str | None:
    """Why the plugin refuses a line, or None."""
    if line.problem is not None:
        return line.problem
    for word, known in (
        (line.collective, tuple(COLLECTIVES.values())),
        (line.algorithm, tuple(ALGORITHMS.values())),
        (line.protocol, PROTOCOLS),
    ):
        if word not in known:
            return f"one of {', '.join(known)} is expected, found {word[:40]!r}"
    if line.channels != -1 and not 1 <= line.channels <= MOST_CHANNELS:
        return f"channels of 1 to {MOST_CHANNELS} or -1 are expected, found {line.channels}"
    if line.pipe != ANY or line.buffers != ANY:
        return "numPipeOps and regBuff of -1 are expected: ranks may differ in them"
    for name, span in (("nodes", line.nodes), ("ranks", line.ranks)):
        if span != ANY and not 1 <= span[0] < 2**31:
            return f"{name} of 1 or more or -1 are expected, found {span[0]}"
    return None


_RCCL = ("tree", "ring")
_LAST_WORDS_S = 2.0


@dataclass(frozen=True, kw_only=True)
class NcclSpec:
    """What a sweep measures."""

    library: str  # `nccl` or `rccl`
    collectives: tuple[Collective, ...]  # The collectives
    first_bytes: int  # Smallest size
    last_bytes: int  # Largest size
    factor: int  # From one size to the next
    rounds: int  # Measured rounds
    output: Path  # File that lines are appended to
    programs: Path  # Directory of nccl-tests
    launcher: str = ""  # Words before the program, such as `mpirun -np 16`
    gpus: int = 1  # GPUs of each process
    channels: tuple[int, ...] = ()  # Numbers of channels to try beside the library's own
    # The plugin, where a table is to make the choice; `builtin` for RCCL's own reader of tables
    plugin: str | None = None
    # Try LL128 also where a variable forces it: that may corrupt data on machines that do not have it
    ll128: bool = False


def choices_of(spec: NcclSpec, collective: Collective) -> tuple[LibraryChoice, ...]:
    """Choices that can be forced for a collective.

    Examples:
        >>> spec = NcclSpec(library="rccl", collectives=(), first_bytes=1, last_bytes=1, factor=2, rounds=1,
        ...                 output=Path("r"), programs=Path("."))
        >>> [str(choice) for choice in choices_of(spec, Collective.ALL_REDUCE)]
        ['tree ll', 'tree simple', 'ring ll', 'ring simple']
    """
    return tuple(
        LibraryChoice(algorithm, protocol, channels)
        for algorithm in (ALGORITHMS.values() if spec.library == "nccl" else _RCCL)
        for protocol in PROTOCOLS
        if impossible(collective, algorithm, protocol) is None
        if protocol != "ll128" or spec.ll128 or spec.plugin is not None
        for channels in (0, *spec.channels)
    )


def settings_of(spec: NcclSpec, choice: LibraryChoice | None, *, table: Path) -> dict[str, str]:
    """Environment variables that force a choice; user settings are kept for the default.

    Args:
        choice: The choice, None is the default.
        table: Where a tuner table may be written.
    """
    if choice is None:
        return {}
    if spec.plugin is not None:
        rest = f"{choice.algorithm},{choice.protocol},{choice.channels or -1},-1,-1"
        lines = (f"{word},0,{NO_END},{rest}\n" for word in COLLECTIVES.values())
        table.write_text("".join(lines))
        if spec.plugin == "builtin":
            return {"NCCL_TUNER_CONFIG_FILE": str(table)}
        return {"NCCL_TUNER_PLUGIN": spec.plugin, TABLE_VARIABLE: str(table)}
    found = {"NCCL_ALGO": ALGORITHM_NAMES[choice.algorithm], "NCCL_PROTO": PROTOCOL_NAMES[choice.protocol]}
    if choice.channels:
        ends = ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS")
        ends = ends if spec.library == "nccl" else ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")
        found |= dict.fromkeys(ends, str(choice.channels))
    return found


def sweep_nccl(
    spec: NcclSpec, *, say: Callable[[str], None] | None = None, timeout_s: float | None = None
) -> None:
    """Run a sweep; runs already in the output file are skipped.

    Args:
        say: Told in words what was run.
        timeout_s: Longest time of one run of a program.
    """
    _check(spec)
    counts = _done(spec)
    refused: set[tuple[Collective, LibraryChoice]] = set()
    with tempfile.TemporaryDirectory(prefix="coppice-tune-") as directory:
        for collective in spec.collectives:
            choices = choices_of(spec, collective)
            for number in range(spec.rounds):
                turn = number % len(choices)
                missing = [
                    choice
                    for choice in choices[turn:] + choices[:turn]
                    if counts.get((collective, choice), 0) <= number and (collective, choice) not in refused
                ]
                if not missing:
                    continue
                table = Path(directory) / "table.csv"
                base, version, said = _measure(spec, collective, None, table, timeout_s)
                if not base:
                    raise CheckError(f"the default of {collective} did not run: {said}; mend that first.")
                for choice in missing:
                    found, _, said = _measure(spec, collective, choice, table, timeout_s)
                    if not found:
                        refused.add((collective, choice))
                    append(spec.output, _paired(spec, choice, base, found, version, said))
                    if say is not None:
                        say(
                            f"{collective} by {choice}, round {number + 1}: {len(found)} sizes{said and f', {said}'}"
                        )


def _check(spec: NcclSpec) -> None:
    wrong = [collective for collective in spec.collectives if collective not in COLLECTIVES]
    if wrong or not spec.collectives:
        known = ", ".join(COLLECTIVES)
        raise InputError(
            f"expected collectives that a tuner is asked about ({known}), found {', '.join(wrong) or 'none'}."
        )
    if spec.rounds < 1 or any(not 1 <= count <= MOST_CHANNELS for count in spec.channels):
        found = f"found {spec.rounds} and {spec.channels}"
        raise InputError(f"expected a round at least and channels of 1 to {MOST_CHANNELS}, {found}.")
    for collective in spec.collectives:
        program = _program(spec, collective)
        if not os.access(program, os.X_OK):
            raise InputError(
                f"expected nccl-tests at {program}, found no program: name their directory with `tests=DIR`."
            )


def _program(spec: NcclSpec, collective: Collective) -> Path:
    return (spec.programs / (collective.dialects.nccl_tests or "")).absolute()


def _done(spec: NcclSpec) -> dict[tuple[Collective, LibraryChoice], int]:
    """Rounds that every choice has at all its sizes; what failed is tried again."""
    repeats: dict[tuple[Collective, LibraryChoice], dict[int, int]] = {}
    for run in reopen(spec.output):
        sizes = repeats.setdefault((run.collective, run.choice), {})
        sizes[run.size_bytes] = sizes.get(run.size_bytes, 0) + len(run.time_us)
    return {key: min(sizes.values()) for key, sizes in repeats.items()}


def _measure(
    spec: NcclSpec, collective: Collective, choice: LibraryChoice | None, table: Path, timeout_s: float | None
) -> tuple[list[LoggedMeasurement], str, str]:
    """Out-of-place rows of one run, the library's version, and what went wrong."""
    settings = {"NCCL_DEBUG": "VERSION", **settings_of(spec, choice, table=table)}
    command = [
        *shlex.split(spec.launcher),
        "env",
        *(f"{key}={value}" for key, value in settings.items()),
        str(_program(spec, collective)),
        *("-b", str(spec.first_bytes), "-e", str(spec.last_bytes), "-f", str(spec.factor)),
        *("-g", str(spec.gpus), "-c", "1"),
    ]
    text, said = _output_of(command, timeout_s)
    if said:
        return [], "", said
    name = f"the output of {_program(spec, collective).name}"
    try:
        log = parse_log(text, file=name, collective=collective)
    except InputError as error:
        return [], "", str(error)
    rows = [row for row in log.measurements if not row.in_place]
    if any(row.ranks is None or row.nodes is None for row in rows):
        return [], "", f"{name} does not list its ranks"
    if len({(row.size_bytes, row.type) for row in rows}) < len(rows):
        return (
            [],
            "",
            f"{name} has a size twice, as where each process runs alone: build nccl-tests with MPI=1",
        )
    return rows, log.version or "", "" if rows else f"{name} has no times"


def _output_of(command: Sequence[str], timeout_s: float | None) -> tuple[bytes, str]:
    """What a program printed, and how it failed, if it did; nothing of it stays behind."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise InputError(
            f"cannot start {command[0]} ({error.strerror or error}): check `launcher`."
        ) from None
    try:
        out, complaint = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return b"", f"it still ran after {timeout_s:g} s"
    finally:
        stop([process], last_words_s=_LAST_WORDS_S)
    if process.returncode:
        words = complaint.decode(errors="replace").strip().splitlines() or [""]
        return b"", f"exit code {process.returncode} {words[-1][:120]}".strip()
    return out, ""


def _paired(
    spec: NcclSpec,
    choice: LibraryChoice,
    base: Sequence[LoggedMeasurement],
    found: Sequence[LoggedMeasurement],
    version: str,
    said: str,
) -> Iterator[TimedRun]:
    """Runs of one sample each, or refusals."""
    times: Mapping[int, LoggedMeasurement] = {row.size_bytes: row for row in found}
    for row in base:
        own = times.get(row.size_bytes)
        yield TimedRun(
            library=spec.library,
            version=version,
            collective=row.collective,
            nodes=row.nodes or 1,
            ranks=row.ranks or 2,
            size_bytes=row.size_bytes,
            choice=choice,
            default_us=() if own is None else (row.time_us,),
            time_us=() if own is None else (own.time_us,),
            wrong=0 if own is None else (own.wrong or 0),
            refusal="" if own is not None else said or "this size was not run",
            origin="measured by nccl-tests",
        )
