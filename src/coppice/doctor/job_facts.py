"""Facts about the job that uses a tuning file, and tuning files as subjects of rules.

Tuning files are those that libraries read as they are shipped: tuner tables, graphs and topologies of NCCL, rings and
trees of RCCL, rules of Open MPI, variables of MPICH. Libraries check little of them. The more is known of the job (its
topology, shapes of its communicators, a log, a dump), the more rules can be decided.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coppice.doctor.framework import Need, Subject
from coppice.errors import InputError
from coppice.export.formats import Dialect
from coppice.files import read_bytes
from coppice.text import suggestion
from coppice.topology.model import NodeKind, Topology

if TYPE_CHECKING:
    from coppice.logs.records import Log, LoggedCommunicator

OPTIONS: Mapping[str, str] = {
    "dialect": f"of a tuner table: {', '.join(Dialect)}",
    "topology": "preset or file: where the job runs",
    "boxes": "number of boxes: of that preset, or hosts of the job",
    "log": "log of NCCL, with its cost model, channels and plug-ins",
    "dump": "the library's own dump of graphs or of the topology",
    "shapes": "communicators of the job, NODESxRANKS such as 4x32,1x8",
    "channels": "channels of its communicators",
    "version": "version of the library, such as 2.27.7, 5.0.11, or rccl-2.21.5",
    "gpus": "GPUs of a host",
    "nics": "names of the NICs in the plug-in's list, such as mlx5_0,mlx5_1",
    "max_connections": "CUDA_DEVICE_MAX_CONNECTIONS of the job",
    "environment": "settings of the job, such as NCCL_RMA_DISABLE=1,NCCL_WIN_ENABLE=0",
}
"""What can be told of a job as text, with its meaning."""

_SHAPE = re.compile(r"([0-9]{1,6})x([0-9]{1,7})")
_VERSION = re.compile(r"(rccl-|nccl-)?([0-9]{1,3}(?:\.[0-9]{1,3}){0,2})")


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """Facts about the job: topology, shapes of communicators, versions, logs."""

    dialect: Dialect | None = None  # Dialect of a tuner table, None takes the one that the table shows
    topology: Topology | None = None  # Where the job runs
    log: Log | None = None  # A log of the job (:func:`coppice.logs.reading.read_log`)
    # Content of the library's own dump: of graphs for a graph file, of the topology for a topology file
    dump: bytes | None = None
    shapes: tuple[tuple[int, int], ...] = ()  # Communicators of the job: (nodes, ranks)
    channels: int | None = None  # Channels of its communicators
    version: tuple[int, ...] | None = None  # Version of the library, (2, 27, 7)
    rccl: bool = False  # The library is RCCL
    gpus: int | None = None  # GPUs of a host
    boxes: int | None = None  # Hosts of the job
    nics: tuple[str, ...] = ()  # Names of the NICs in the network plug-in's list
    max_connections: int | None = None  # CUDA_DEVICE_MAX_CONNECTIONS
    environment: Mapping[str, str] = field(default_factory=dict)  # Settings of the job
    warnings: tuple[str, ...] = ()  # What the readers of the topology and of the log remark

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> JobFacts:
        """Parse facts from option texts.

        Args:
            options: Texts by the keys of :data:`OPTIONS`.

        Raises:
            InputError: If a key is unknown or a value cannot be read.

        Examples:
            >>> JobFacts.parse({"shapes": "4x32,1x8", "version": "2.27.7"}).known_shapes == {(4, 32), (1, 8)}
            True
        """
        for key in options:
            if key not in OPTIONS:
                raise InputError(f"the doctor has no option {key!r}: {suggestion(key, OPTIONS)}")
        dialect = options.get("dialect")
        if dialect is not None and dialect not in list(Dialect):
            raise InputError(f"expected dialect={'|'.join(Dialect)}, found {dialect!r}.")
        version = _VERSION.fullmatch(options.get("version", ""))
        if "version" in options and version is None:
            raise InputError(f"expected version such as 2.27.7 or rccl-2.21.5, found {options['version']!r}.")
        reading = log = None
        boxes = _number(options, "boxes")
        if "topology" in options:
            from coppice.topology.sources import resolve_reading

            reading = resolve_reading(options["topology"], boxes=boxes)
        if "log" in options:
            from coppice.logs.reading import read_log

            log = read_log(options["log"])
        return cls(
            dialect=None if dialect is None else Dialect(dialect),
            topology=None if reading is None else reading.topology,
            log=log,
            dump=read_bytes(options["dump"]) if "dump" in options else None,
            shapes=_shapes(options.get("shapes")),
            channels=_number(options, "channels"),
            version=None if version is None else tuple(map(int, version[2].split("."))),
            rccl=version is not None and version[1] == "rccl-",
            gpus=_number(options, "gpus"),
            boxes=boxes,
            nics=tuple(part.strip() for part in options["nics"].split(",")) if "nics" in options else (),
            max_connections=_number(options, "max_connections"),
            environment=_settings(options.get("environment")),
            warnings=(*(() if reading is None else reading.warnings), *(() if log is None else log.warnings)),
        )

    @property
    def communicators(self) -> tuple[LoggedCommunicator, ...]:
        """Communicators in the log."""
        return () if self.log is None else self.log.communicators

    @property
    def known_shapes(self) -> frozenset[tuple[int, int]]:
        """Known shapes of the job's communicators: (nodes, ranks)."""
        found = set(self.shapes)
        found |= {
            (c.nodes, c.ranks) for c in self.communicators if c.nodes is not None and c.ranks is not None
        }
        if not found and self.topology is not None:
            found.add((max(1, len(self.hosts)), self.topology.num_ranks))
        if not found and self.gpus is not None and self.boxes is not None:
            found.add((self.boxes, self.boxes * self.gpus))
        return frozenset(found)

    @property
    def hosts(self) -> frozenset[int]:
        """Hosts of the topology with ranks."""
        return (
            frozenset()
            if self.topology is None
            else frozenset(self.topology.host[self.topology.rank_nodes].tolist())
        )

    @property
    def gpus_of_host(self) -> int | None:
        """GPUs per host, None where unknown or unequal."""
        if self.gpus is not None or self.topology is None:
            return self.gpus
        hosts = self.topology.host[self.topology.kind == NodeKind.GPU].tolist()
        counts = {hosts.count(host) for host in set(hosts)}
        return counts.pop() if len(counts) == 1 else None

    @property
    def known_version(self) -> tuple[int, ...] | None:
        """Library version, from the options or the log."""
        if self.version is not None or self.log is None or self.log.version is None:
            return self.version
        return tuple(map(int, self.log.version.split(".")))

    @property
    def most_channels(self) -> int:
        """Maximum channels of a communicator: 128 in RCCL, 64 in NCCL, 32 before 2.25."""
        if self.rccl:
            return 128
        version = self.known_version
        return 32 if version is not None and version < (2, 25) else 64


@dataclass(frozen=True, eq=False, kw_only=True)
class TuningFile(Subject):
    """A tuning file under examination."""

    data: bytes  # Bytes of the file
    facts: JobFacts = field(default_factory=JobFacts)  # What is known of the job

    @property
    def text(self) -> str:
        """The file as text."""
        return self.data.decode("utf-8", errors="replace").removeprefix("\ufeff")

    def kind(self, target: str) -> str:
        """Detected kind of the file."""
        return target


def _shapes_known(file: TuningFile) -> bool:
    return bool(file.facts.known_shapes)


SHAPES = Need("shapes, a topology, gpus and boxes, or a log", _shapes_known)
MPI_SHAPES = Need("shapes or a topology", _shapes_known)
LOG = Need("a log", lambda file: file.facts.log is not None)
DUMP = Need("a dump", lambda file: file.facts.dump is not None)


def _number(values: Mapping[str, str], key: str) -> int | None:
    text = values.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text)):
        raise InputError(f"expected {key} as a number of 1 or more, found {text!r}.")
    return int(text)


def _shapes(text: str | None) -> tuple[tuple[int, int], ...]:
    found = []
    for part in [] if text is None else text.split(","):
        match = _SHAPE.fullmatch(part.strip())
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise InputError(
                f"expected shapes as NODESxRANKS such as 4x32 (32 ranks in all), found {part!r}."
            )
        found.append((int(match[1]), int(match[2])))
    return tuple(found)


def _settings(text: str | None) -> dict[str, str]:
    found = {}
    for part in [] if text is None else text.split(","):
        name, equals, value = part.strip().partition("=")
        if not name or not equals:
            raise InputError(f"expected environment as NAME=VALUE,NAME=VALUE, found {part!r}.")
        found[name] = value
    return found
