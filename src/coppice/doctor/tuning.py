"""Will a library as it is shipped read this tuning file, and do what its author meant? If not: why, and what to do.

Files: tuner tables, graphs (``NCCL_GRAPH_FILE``), topologies (``NCCL_TOPO_FILE``), rings and trees of RCCL, rules of
Open MPI, variables of MPICH. Libraries check little of them. The more is known of the job (its topology, shapes of its
communicators, a log, a dump), the more rules can be decided; a rule that lacks what it needs is silent, and the
diagnosis says which ones and what they lack.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from coppice.doctor.msccl.diagnose import Finding, Severity
from coppice.errors import CheckError, InputError
from coppice.export.nccl.tuner import Dialect
from coppice.logs.records import Communicator, Log
from coppice.text import suggestion
from coppice.topology.model import NodeKind, Topology

__all__ = [
    "Artefact",
    "Case",
    "Complaint",
    "Given",
    "TuningDiagnosis",
    "TuningRule",
    "diagnose_tuning",
    "tuning_rules",
]

_MOST_OF_A_RULE = 20


class Artefact(enum.StrEnum):
    """Kinds of tuning files."""

    NCCL_TUNER = "nccl-tuner"
    NCCL_GRAPH = "nccl-graph"
    NCCL_TOPO = "nccl-topo"
    RCCL_RINGS = "rccl-rings"
    RCCL_TREES = "rccl-trees"
    OMPI_RULES = "ompi-rules"
    MPICH_ENV = "mpich-env"


@dataclass(frozen=True, kw_only=True)
class Given:
    """What is known of the job beside the file.

    Attributes:
        dialect: Dialect of a tuner table, None takes the one that the table shows.
        topology: Where the job runs.
        log: A log of the job (:func:`coppice.logs.reading.read_log`).
        dump: Content of the library's own dump: of graphs for a graph file, of the topology for a topology file.
        shapes: Communicators of the job: (nodes, ranks).
        channels: Channels of its communicators.
        version: Version of the library, (2, 27, 7).
        rccl: The library is RCCL.
        gpus: GPUs of a host.
        nics: Names of the NICs in the network plug-in's list.
    """

    dialect: Dialect | None = None
    topology: Topology | None = None
    log: Log | None = None
    dump: bytes | None = None
    shapes: tuple[tuple[int, int], ...] = ()
    channels: int | None = None
    version: tuple[int, ...] | None = None
    rccl: bool = False
    gpus: int | None = None
    nics: tuple[str, ...] = ()

    @property
    def communicators(self) -> tuple[Communicator, ...]:
        """Communicators of the log."""
        return () if self.log is None else self.log.communicators

    @property
    def known_shapes(self) -> frozenset[tuple[int, int]]:
        """Communicators of the job, as far as anything tells: (nodes, ranks)."""
        found = set(self.shapes)
        found |= {
            (c.nodes, c.ranks) for c in self.communicators if c.nodes is not None and c.ranks is not None
        }
        if not found and self.topology is not None:
            found.add((max(1, len(self.hosts)), self.topology.num_ranks))
        return frozenset(found)

    @property
    def hosts(self) -> frozenset[int]:
        """Hosts of the topology that have ranks."""
        return (
            frozenset()
            if self.topology is None
            else frozenset(self.topology.host[self.topology.rank_nodes].tolist())
        )

    @property
    def gpus_of_host(self) -> int | None:
        """GPUs of a host, None where nothing tells or hosts differ."""
        if self.gpus is not None or self.topology is None:
            return self.gpus
        hosts = self.topology.host[self.topology.kind == NodeKind.GPU].tolist()
        counts = {hosts.count(host) for host in set(hosts)}
        return counts.pop() if len(counts) == 1 else None

    @property
    def known_version(self) -> tuple[int, ...] | None:
        """Version of the library, as given or as the log says."""
        if self.version is not None or self.log is None or self.log.version is None:
            return self.version
        return tuple(map(int, self.log.version.split(".")))

    @property
    def most_channels(self) -> int:
        """Most channels of a communicator: 128 in RCCL, 64 in NCCL, 32 before 2.25."""
        if self.rccl:
            return 128
        version = self.known_version
        return 32 if version is not None and version < (2, 25) else 64


@dataclass(frozen=True, eq=False, kw_only=True)
class Case:
    """What rules look at.

    Attributes:
        data: Bytes of the file.
        file: Its name.
        given: What is known of the job.
    """

    data: bytes
    file: str
    given: Given = field(default_factory=Given)

    @property
    def text(self) -> str:
        """The file as text."""
        return self.data.decode("utf-8", errors="replace").removeprefix("\ufeff")


Complaint = tuple[Severity, int, str, str]
"""(how bad, line or 0, what is wrong, what to do)"""


@dataclass(frozen=True)
class TuningRule:
    """A rule.

    Attributes:
        id: Short id, such as ``T03``.
        title: The rule in a few words.
        why: What happens where it is broken.
        check: Yields the complaints about a case.
        needs: What it cannot be decided without, as a predicate on what is given; None for nothing.
        lacks: What to give, in words, where it needs something.
    """

    id: str
    title: str
    why: str
    check: Callable[[Case], Iterator[Complaint]]
    needs: Callable[[Given], bool] | None = None
    lacks: str = ""


@dataclass(frozen=True, kw_only=True)
class TuningDiagnosis:
    """What the doctor found.

    Attributes:
        file: The file.
        artefact: What it is.
        findings: All findings, errors first, then by line.
        hidden: Findings left out, by rule, where a rule found very many.
        undecided: Rules that could not be decided, with what they lack.
    """

    file: str
    artefact: Artefact
    findings: tuple[Finding, ...]
    hidden: Mapping[str, int]
    undecided: Mapping[str, str]

    @property
    def ok(self) -> bool:
        """No finding is an error."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)

    def require_ok(self) -> None:
        """Refuse a file with errors.

        Raises:
            CheckError: With the first one.
        """
        errors = [finding for finding in self.findings if finding.severity is Severity.ERROR]
        if not errors:
            return
        first = errors[0]
        place = f"{self.file}:{first.line}" if first.line else self.file
        more = f" ({len(errors) - 1} further errors)" if len(errors) > 1 else ""
        msg = f"{place} breaks rule {first.rule} of {self.artefact}: {first.text}; {first.fix}{more}."
        raise CheckError(msg)


def tuning_rules(artefact: Artefact) -> tuple[TuningRule, ...]:
    """The rules for a kind of file, in the order of their ids."""
    from coppice.export import (
        doctor_graph,
        doctor_mpich,
        doctor_nccl_text,
        doctor_ompi,
        doctor_rccl,
        doctor_topo,
        doctor_tuner,
    )

    found: dict[Artefact, tuple[TuningRule, ...]] = {
        Artefact.NCCL_TUNER: doctor_tuner.RULES,
        Artefact.NCCL_GRAPH: (*doctor_graph.RULES, *doctor_nccl_text.RULES),
        Artefact.NCCL_TOPO: (*doctor_topo.RULES, *doctor_nccl_text.RULES),
        Artefact.RCCL_RINGS: doctor_rccl.RING_RULES,
        Artefact.RCCL_TREES: doctor_rccl.TREE_RULES,
        Artefact.OMPI_RULES: doctor_ompi.RULES,
        Artefact.MPICH_ENV: doctor_mpich.RULES,
    }
    return found[artefact]


def diagnose_tuning(data: bytes, artefact: str, *, file: str, given: Given | None = None) -> TuningDiagnosis:
    r"""Examine a tuning file.

    Args:
        data: Its bytes.
        artefact: What it is, one of :class:`Artefact`.
        file: Its name, for messages.
        given: What is known of the job.

    Raises:
        InputError: If the file is none of that kind at all.

    Examples:
        >>> table = b"allreduce,0,18446744073709551615,ring,simple,0,-1,-1\n"
        >>> found = diagnose_tuning(table, "nccl-tuner", file="t.csv", given=Given(dialect=Dialect.RCCL_BUILTIN))
        >>> [(finding.rule, finding.line) for finding in found.findings]
        [('T03', 1)]
    """
    if artefact not in list(Artefact):
        msg = f"there is no kind of tuning file {artefact!r}: {suggestion(artefact, Artefact)}"
        raise InputError(msg)
    case = Case(data=data, file=file, given=given or Given())
    findings: list[Finding] = []
    hidden: dict[str, int] = {}
    undecided: dict[str, str] = {}
    for rule in tuning_rules(Artefact(artefact)):
        if rule.needs is not None and not rule.needs(case.given):
            undecided[rule.id] = rule.lacks
            continue
        for at, (severity, line, text, fix) in enumerate(rule.check(case)):
            if at < _MOST_OF_A_RULE:
                findings.append(Finding(rule=rule.id, severity=severity, line=line, text=text, fix=fix))
            else:
                hidden[rule.id] = hidden.get(rule.id, 0) + 1
    order = list(Severity)
    findings.sort(key=lambda finding: (order.index(finding.severity), finding.line, finding.rule))
    return TuningDiagnosis(
        file=file, artefact=Artefact(artefact), findings=tuple(findings), hidden=hidden, undecided=undecided
    )
