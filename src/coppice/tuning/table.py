"""Rule table of a fit: CSV that people can edit, input of exports and checks.

Whatever a library is made to read can be taken back, and every output says how.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.files import file_name, read_text
from coppice.run.planned import TUNING_VARIABLE
from coppice.tuning.fit import NO_END, Fit, SizeRule
from coppice.tuning.records import CallShape, LibraryChoice
from coppice.version import __version__

LIBRARIES = ("open-mpi", "mpich", "nccl", "rccl", "put-signal")
"""Libraries that can be tuned; the last is what puts, beside the library's own collectives."""

UNDO: Mapping[str, str] = {
    "nccl-tuner": "unset NCCL_TUNER_PLUGIN",
    "rccl-csv": "unset NCCL_TUNER_CONFIG_FILE",
    "ompi-rules": "unset OMPI_MCA_coll_tuned_use_dynamic_rules (and leave out its --mca options)",
    "mpich-env": "unset the variables of the file",
    "put-signal-rules": f"unset {TUNING_VARIABLE}",
}
"""How each export is taken back."""

_OF_LIBRARY = {
    "nccl": "nccl-tuner",
    "rccl": "rccl-csv",
    "open-mpi": "ompi-rules",
    "mpich": "mpich-env",
    "put-signal": "put-signal-rules",
}

DEFAULT = "default"

_FORMAT = "coppice tuning table 1"
_COLUMNS = [
    *("collective", "nodes", "ranks", "first_bytes", "last_bytes"),
    *("algorithm", "number", "protocol", "channels", "segment_bytes"),
    *("gain", "gain_low", "gain_high", "bound_share", "sizes"),
]


@dataclass(frozen=True, kw_only=True)
class RuleTable:
    """Rules for one library."""

    library: str  # One of :data:`LIBRARIES`
    version: str  # Version that was measured, empty where nothing says so
    topology: str  # Name and hash of the topology, empty where none was given
    rules: tuple[SizeRule, ...]  # The rules; ranges of one shape do not overlap

    @classmethod
    def of(cls, fit: Fit, *, topology: str = "") -> RuleTable:
        """The rules of a fit."""
        return cls(library=fit.library, version=fit.version, topology=topology, rules=fit.rules)

    @property
    def changed(self) -> tuple[SizeRule, ...]:
        """Rules that differ from the default."""
        return tuple(rule for rule in self.rules if rule.choice is not None)


def undo_line(library: str) -> str:
    """How to undo the export for a library, in one line.

    Args:
        library: One of :data:`LIBRARIES`.

    Examples:
        >>> undo_line("rccl")
        'undo: unset NCCL_TUNER_CONFIG_FILE'
    """
    return f"undo: {UNDO[_OF_LIBRARY[library]]}"


def encode_table(table: RuleTable) -> str:
    """Encode a table."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for rule in table.rules:
        choice = rule.choice or LibraryChoice(DEFAULT)
        writer.writerow(
            (
                *(
                    rule.shape.collective,
                    rule.shape.nodes,
                    rule.shape.ranks,
                    rule.first_bytes,
                    rule.last_bytes,
                ),
                *(choice.algorithm, choice.number or "", choice.protocol),
                *(choice.channels or "", choice.segment_bytes or ""),
                *(f"{value:.4g}" for value in (rule.gain, rule.low, rule.high)),
                "" if rule.reached is None else f"{rule.reached:.4g}",
                " ".join(map(str, rule.sizes)),
            )
        )
    body = text.getvalue()
    head = [
        f"{_FORMAT}, by coppice {__version__}",
        f"library {table.library} {table.version}".rstrip(),
        *([f"topology {table.topology}"] if table.topology else []),
        f"sha256 of the lines below: {hashlib.sha256(body.encode()).hexdigest()}",
    ]
    return "".join(f"# {line}\n" for line in head) + body


def read_table(path: str | os.PathLike[str]) -> RuleTable:
    """Read a table from a file."""
    return decode_table(read_text(path, hint="give a table of `coppice tune fit`"), file=file_name(path))


def decode_table(text: str, *, file: str = "table") -> RuleTable:
    """Decode a table.

    Args:
        text: What :func:`encode_table` writes, edited or not.
    """
    lines = text.splitlines()
    head = [line.lstrip("# ") for line in lines if line.startswith("#")]
    library = next((line.split()[1:] for line in head if line.startswith("library ")), [])
    if not any(line.startswith(_FORMAT) for line in head) or not library or library[0] not in LIBRARIES:
        raise InputError(
            f"{file} is no tuning table: expected `# {_FORMAT}` and `# library NAME`; `coppice tune fit` writes them."
        )
    rows = [(at, line) for at, line in enumerate(lines, start=1) if line.strip() and not line.startswith("#")]
    if not rows or rows[0][1].split(",") != _COLUMNS:
        raise InputError(
            f"expected the columns {','.join(_COLUMNS)} in {file}: keep the line that names them."
        )
    rules: list[SizeRule] = []
    for number, line in rows[1:]:
        fields = next(csv.reader([line]))
        if len(fields) != len(_COLUMNS):
            raise InputError(f"expected {len(_COLUMNS)} fields at {file}:{number}, found {len(fields)}.")
        rules.append(_rule(dict(zip(_COLUMNS, map(str.strip, fields), strict=True)), f"{file}:{number}"))
    _refuse_overlaps(rules, file)
    return RuleTable(
        library=library[0],
        version=" ".join(library[1:]),
        topology=next((line.removeprefix("topology ") for line in head if line.startswith("topology ")), ""),
        rules=tuple(rules),
    )


def _rule(row: Mapping[str, str], where: str) -> SizeRule:
    try:
        collective = Collective.named(row["collective"])
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    nodes = _integer(row, "nodes", where, low=1)
    first = _integer(row, "first_bytes", where, low=0)
    own = LibraryChoice(
        algorithm=row["algorithm"],
        protocol=row["protocol"],
        channels=_integer(row, "channels", where, low=0) if row["channels"] else 0,
        segment_bytes=_integer(row, "segment_bytes", where, low=0) if row["segment_bytes"] else 0,
        number=_integer(row, "number", where, low=0) if row["number"] else 0,
    )
    if not own.algorithm.replace("_", "").replace("-", "").isalnum():
        raise InputError(f"expected the name of an algorithm at {where}, found {own.algorithm!r}.")
    gain = _number(row, "gain", where)
    low, high = _number(row, "gain_low", where), _number(row, "gain_high", where)
    return SizeRule(
        shape=CallShape(collective, nodes, _integer(row, "ranks", where, low=max(2, nodes))),
        first_bytes=first,
        last_bytes=_integer(row, "last_bytes", where, low=first),
        choice=None if own.algorithm == DEFAULT else own,
        gain=gain,
        low=low,
        high=high,
        noise=(high - low) / 2,
        reached=_number(row, "bound_share", where) if row["bound_share"] else None,
        sizes=tuple(_integer({"sizes": each}, "sizes", where, low=0) for each in row["sizes"].split()),
    )


def _integer(row: Mapping[str, str], name: str, where: str, *, low: int) -> int:
    text = row[name]
    if text.isascii() and text.isdigit() and len(text) <= 20 and low <= int(text) <= NO_END:
        return int(text)
    raise InputError(f"expected {name} as an integer of {low} or more at {where}, found {text[:40]!r}.")


def _number(row: Mapping[str, str], name: str, where: str) -> float:
    try:
        value = float(row[name])
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"expected {name} as a number above 0 at {where}, found {row[name][:40]!r}.")
    return value


def _refuse_overlaps(rules: Sequence[SizeRule], file: str) -> None:
    for rule, after in zip(
        ordered := sorted(rules, key=lambda each: (each.shape, each.first_bytes)), ordered[1:], strict=False
    ):
        if rule.shape == after.shape and after.first_bytes <= rule.last_bytes:
            raise InputError(
                f"expected ranges of {rule.shape} in {file} that do not overlap, found {rule.first_bytes} .. "
                f"{rule.last_bytes} and {after.first_bytes} .. {after.last_bytes}: part them."
            )
