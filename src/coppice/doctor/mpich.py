"""Doctor rules for MPICH environment files: valid names and values, and the calls they affect.

MPICH reads its variables from the environment when it starts: what it does not know it passes over, and a value that it
does not know ends the job. Names, values and effects are those of 5.0.2.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources

import msgspec

from coppice.decoding import decodable
from coppice.doctor.framework import ERROR, NOTE, WARNING, Complaint, Rulebook, Severity
from coppice.doctor.job_facts import MPI_SHAPES, JobFacts, TuningFile
from coppice.errors import InputError
from coppice.text import nearest

_PREFIXES = ("MPIR_CVAR_", "MPIR_PARAM_", "MPICH_")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_YES = ("1", "yes", "YES", "true", "TRUE", "on", "ON")
_NO = ("0", "no", "NO", "false", "FALSE", "off", "OFF")
_POWER = (
    "ALLGATHER recursive_doubling",
    "ALLGATHERV recursive_doubling",
    "REDUCE_SCATTER_BLOCK noncommutative",
)
_ASSERTS = "REDUCE_SCATTER noncommutative"
_ARGUMENTS = {
    "ALLREDUCE ccl": (WARNING, "it needs a build with NCCL or RCCL, and buffers of a GPU"),
    "ALLREDUCE reduce_scatter_allgather": (
        NOTE,
        "it needs an operation of MPI, and an element for each rank",
    ),
    "ALLTOALL pairwise_sendrecv_replace": (WARNING, "it is for calls with MPI_IN_PLACE"),
    "ALLTOALLV pairwise_sendrecv_replace": (WARNING, "it is for calls with MPI_IN_PLACE"),
    "ALLTOALLW pairwise_sendrecv_replace": (WARNING, "it is for calls with MPI_IN_PLACE"),
    "REDUCE reduce_scatter_gather": (NOTE, "it needs an operation of MPI, and an element for each rank"),
}
"""Algorithms that cannot serve all calls, with how bad that is and why."""


class _Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Variables of MPICH."""

    version: str  # Whose they are
    source: str  # Where they come from
    variables: dict[str, list[str]]  # Names without their prefix, with their values where these have names


@cache
def _known() -> _Known:
    data = resources.files("coppice.doctor").joinpath("data", "mpich_variables.json")
    return msgspec.json.decode(data.read_bytes(), type=decodable(_Known))


@dataclass(frozen=True)
class _Setting:
    """A variable of MPICH that a file sets."""

    line: int  # Where
    name: str  # As written
    stem: str  # Without its prefix
    value: str  # Its value
    plain: bool  # Nothing in it is for the shell to put in

    @property
    def collective(self) -> str | None:
        """The collective whose algorithm it names."""
        stem = self.stem.removesuffix("_INTRA_ALGORITHM")
        return stem if stem != self.stem and f"{stem}_DEVICE_COLLECTIVE" in _known().variables else None

    @property
    def chosen(self) -> str:
        """``COLLECTIVE algorithm``, empty where it leaves the choice to MPICH or names no algorithm."""
        known = _known().variables.get(self.stem, [])
        own = self.collective is not None and self.value in known and self.value != "auto"
        return f"{self.collective} {self.value}" if own else ""


@dataclass(frozen=True)
class _Environment:
    settings: tuple[_Setting, ...]
    bad: tuple[tuple[int, str, str], ...]


def _read(text: str, file: str) -> _Environment:
    settings: list[_Setting] = []
    bad: list[tuple[int, str, str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if "\r" in line:
            bad.append(
                (
                    number,
                    "the line ends with a carriage return, which becomes part of the value",
                    "use dos2unix",
                )
            )
        try:
            words = shlex.split(line.replace("\r", ""), comments=True)
        except ValueError:
            bad.append((number, "a quote is not closed", "close it on the same line"))
            continue
        if words[:1] == ["set"]:
            continue
        for word in words[1:] if words[:1] == ["export"] else words:
            match = _ASSIGNMENT.fullmatch(word)
            if match is None:
                bad.append(
                    (number, f"{word[:40]!r} sets nothing", "write NAME=VALUE without blanks around =")
                )
                continue
            name = match[1]
            prefix = next((each for each in _PREFIXES if name.startswith(each)), None)
            if prefix is not None or "CVAR" in name:
                stem = name.removeprefix(prefix or "")
                plain = not re.search(r"[$`]", match[2])
                settings.append(_Setting(number, name, stem, match[2], plain))
    if not settings:
        raise InputError(f"{file} sets no variable of MPICH: give a file with lines MPIR_CVAR_NAME=VALUE.")
    return _Environment(tuple(settings), tuple(bad))


class MpichVariables(TuningFile):
    """An environment file for MPICH."""

    @cached_property
    def environment(self) -> _Environment:
        """All variables set."""
        return _read(self.text, self.file)

    @property
    def last(self) -> dict[str, _Setting]:
        """Effective setting of each variable."""
        return {each.stem: each for each in self.environment.settings}


RULES = Rulebook[MpichVariables]()
"""Rules about variables of MPICH."""


def _severity(facts: JobFacts) -> Severity:
    """Of what MPICH 5.0 does not know: another version may."""
    return ERROR if facts.version is None or facts.version[:2] == (5, 0) else WARNING


@RULES.rule("M01", ERROR, "lines that a shell reads", "the variable is not set, or not to this value")
def _lines(file: MpichVariables) -> Iterator[Complaint]:
    yield from file.environment.bad


@RULES.rule("M02", ERROR, "variables that exist", "MPICH passes over others without a word")
def _names(file: MpichVariables) -> Iterator[Complaint]:
    known = _known()
    for each in file.environment.settings:
        if each.stem not in known.variables or not each.name.startswith(_PREFIXES):
            near = nearest(each.stem, known.variables)
            text = f"MPICH {known.version} has no variable {each.name}"
            fix = f"write MPIR_CVAR_{near}, if that is meant" if near else "remove it"
            yield _severity(file.facts), each.line, text, fix


@RULES.rule("M03", ERROR, "values that exist", "MPI_Init ends the job")
def _values(file: MpichVariables) -> Iterator[Complaint]:
    known = _known()
    for each in file.environment.settings:
        values = known.variables.get(each.stem, [])
        if each.stem.endswith("_DEVICE_COLLECTIVE") and each.stem in known.variables:
            values = [*_NO, *_YES]
        if each.plain and values and each.value not in values:
            near = nearest(each.value, values, cutoff=0.5)
            text = f"{each.value[:40]!r} is no value of {each.name} in MPICH {known.version}"
            fix = f"write {near}, if that is meant" if near else f"write one of {', '.join(values)}"
            yield _severity(file.facts), each.line, text, fix


@RULES.rule("M04", NOTE, "all sizes and communicators", "a variable has no conditions")
def _everywhere(file: MpichVariables) -> Iterator[Complaint]:
    chosen = [each for each in file.last.values() if each.chosen]
    if chosen:
        names = ", ".join(each.chosen.split()[0].lower() for each in chosen)
        text = f"algorithms hold for all sizes and all communicators: {names}"
        yield (chosen[0].line, text, "measure all sizes and communicators of the job (`coppice tune check`)")


@RULES.rule(
    "M05",
    WARNING,
    "the device's collectives",
    "it may split calls by nodes, and the algorithm then serves the parts",
)
def _device(file: MpichVariables) -> Iterator[Complaint]:
    last = file.last
    every = last.get("DEVICE_COLLECTIVES")
    wide = sorted((n, ranks) for n, ranks in file.facts.known_shapes if 1 < n < ranks)
    for each in last.values():
        own = last.get(f"{each.collective}_DEVICE_COLLECTIVE")
        off = own is not None and own.value in _NO
        if not each.chosen or (every is not None and every.value == "none"):
            continue
        if every is not None and every.value == "all":
            text = f"{every.name}=all puts the device first for {each.chosen.split()[0].lower()}"
            yield WARNING, every.line, text, "leave it out, or write none"
        elif not off and not (file.facts.known_shapes and not wide):
            where = f"on {wide[0][0]} nodes with {wide[0][1]} ranks" if wide else "on several nodes"
            text = f"{where} the device comes before {each.value} for {each.chosen.split()[0].lower()}"
            fix = f"set MPIR_CVAR_{each.collective}_DEVICE_COLLECTIVE=0, too"
            yield WARNING if wide else NOTE, each.line, text, fix


@RULES.rule(
    "M06",
    ERROR,
    "algorithms for these ranks",
    "MPICH falls back without a word, or ends the job",
    needs=MPI_SHAPES,
)
def _ranks(file: MpichVariables) -> Iterator[Complaint]:
    shapes = sorted(file.facts.known_shapes)
    odd = next((ranks for _, ranks in shapes if ranks & (ranks - 1)), None)
    flat = next(((n, ranks) for n, ranks in shapes if n in (1, ranks)), None)
    for each in file.last.values():
        fix = "name another algorithm"
        if odd is not None and each.chosen == _ASSERTS:
            text = f"{each.value} needs a power of two of ranks: the job is ended on {odd}"
            yield ERROR, each.line, text, fix
        elif odd is not None and each.chosen in _POWER:
            text = f"{each.value} needs a power of two of ranks: on {odd} MPICH takes its own choice"
            yield WARNING, each.line, text, fix
        elif flat is not None and each.chosen.endswith(" smp"):
            nodes = "one node" if flat[0] == 1 else f"{flat[0]} nodes with a rank each"
            yield WARNING, each.line, f"smp needs several nodes with several ranks, found {nodes}", fix


@RULES.rule("M07", ERROR, "algorithms for these calls", "MPICH falls back without a word")
def _arguments(file: MpichVariables) -> Iterator[Complaint]:
    for each in file.last.values():
        if each.chosen in _ARGUMENTS:
            severity, why = _ARGUMENTS[each.chosen]
            text = f"{each.value} of {each.chosen.split()[0].lower()} does not serve all calls: {why}"
            yield (
                severity,
                each.line,
                text,
                "set MPIR_CVAR_COLLECTIVE_FALLBACK=print to see where it is not taken",
            )


@RULES.rule("M08", WARNING, "every variable once", "the last one holds")
def _twice(file: MpichVariables) -> Iterator[Complaint]:
    seen: dict[str, _Setting] = {}
    for each in file.environment.settings:
        before = seen.get(each.stem)
        if before is not None and before.name == each.name:
            text = f"{each.name} is set at line {before.line} already: this value holds"
            yield each.line, text, "keep one of them"
        elif before is not None:
            text = f"{each.name} and {before.name} (line {before.line}) are names of one variable"
            yield each.line, text, "keep one of them"
        seen[each.stem] = each
