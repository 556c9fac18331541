"""Doctor rules of stock NCCL for put/signal programs: what a version refuses, loses, or deadlocks on.

NCCL checks little of what it is asked to do one-sidedly: neither the peer of a wait nor where a put ends, and it never
knows whether anybody waits for a signal. Kinds of rules:

    V   what versions bring
    W   windows and the set-up of communicators
    U   the program itself, which nobody but the verifier judges
    D   how the job runs it
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd

import numpy as np

from coppice.doctor.framework import (
    ERROR,
    NCCL,
    NOTE,
    WARNING,
    Complaint,
    Diagnosis,
    Need,
    Rulebook,
    Subject,
    run,
)
from coppice.doctor.job_facts import JobFacts
from coppice.export.put_signal.document import PutSignalFile, parse_put_signal
from coppice.program.dialects.put_signal.order import call_order, is_graph_safe
from coppice.program.dialects.put_signal.program import PutSignalAct, PutSignalCall, PutSignalProgram
from coppice.program.dialects.put_signal.structure import check_form
from coppice.program.dialects.put_signal.verify import verify_put_signal
from coppice.program.memory import all_sizes
from coppice.rows import begins_run
from coppice.schedule.verification.report import Findings
from coppice.text import plural

_IN_FLIGHT = 256
_OFF = {"NCCL_RMA_DISABLE": "1", "NCCL_WIN_ENABLE": "0", "NCCL_CUMEM_ENABLE": "0", "NCCL_CROSS_NIC": "0"}
"""Settings by which a job has no one-sided calls; the last one between hosts only."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PutSignalJob(Subject):
    """A put/signal program and the facts about its job."""

    content: PutSignalFile  # The file
    facts: JobFacts = field(default_factory=JobFacts)  # What is known of the job

    @property
    def program(self) -> PutSignalProgram:
        """The program."""
        return self.content.program

    @property
    def version(self) -> tuple[int, ...]:
        """Library version; only for rules that need it."""
        return self.facts.known_version or ()

    @property
    def library(self) -> str:
        """Name of the library."""
        return "RCCL" if self.facts.rccl else "NCCL"

    @cached_property
    def form(self) -> tuple[str, ...]:
        """Violations of the format."""
        findings = Findings()
        check_form(self.program, findings)
        return tuple(findings.failures)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Mismatched counts and deadlock cycles; empty if the format is invalid."""
        findings = Findings()
        if not self.form:
            call_order(self.program, findings)
        return tuple(findings.failures)


RULES: Rulebook[PutSignalJob] = Rulebook()
_MOST_CONNECTIONS = 32
"""More hardware queues than these CUDA does not take."""
_VERSION = Need("--nccl VERSION, or a log", lambda job: job.facts.known_version is not None)


def _before(job: PutSignalJob, *version: int) -> bool:
    """Whether the library is older than a version; of a version without a patch the oldest counts."""
    return job.version < version


@RULES.rule("V01", ERROR, "one-sided calls since 2.29.2", "there is no such function", needs=_VERSION)
def _has_calls(job: PutSignalJob) -> Iterator[Complaint]:
    if _before(job, 2, 29, 2):
        yield 0, "the library has no puts and signals", f"take {job.library} 2.30.7 or later"


@RULES.rule("V02", ERROR, "one signal and context until 2.31.2", "the call is refused", needs=_VERSION)
def _indices(job: PutSignalJob) -> Iterator[Complaint]:
    signal, context = int(job.program.signal.max(initial=0)), int(job.program.context.max(initial=0))
    if (signal or context) and _before(job, 2, 31, 2):
        text = f"it uses signal indices up to {signal} and contexts up to {context}, and only 0 is taken"
        yield 0, text, f"export with `signals=1`, or take {job.library} 2.31.2"
    elif signal or context:
        yield (
            NOTE,
            0,
            f"it needs numRmaSig {signal + 1} and numRmaCtx {context + 1}",
            "set them in ncclConfig_t",
        )


@RULES.rule("V03", ERROR, "graphs since 2.30.3", "capturing fails", needs=_VERSION)
def _capture(job: PutSignalJob) -> Iterator[Complaint]:
    if job.content.setup.capture and _before(job, 2, 30, 3):
        yield (
            0,
            "it is to be captured as a graph",
            f"set capture to false in $.setup, or take {job.library} 2.30.3",
        )


@RULES.rule(
    "V04",
    ERROR,
    "256 puts in flight to a peer before 2.30.7",
    "one may be lost, and its receiver hangs",
    needs=_VERSION,
)
def _in_flight(job: PutSignalJob) -> Iterator[Complaint]:
    program = job.program
    if not _before(job, 2, 30, 7):
        return
    sends = np.flatnonzero(program.act <= PutSignalAct.SIGNAL)
    keys, count = np.unique(
        np.stack([program.call_of[sends], program.peer[sends]]), axis=1, return_counts=True
    )
    for at in np.flatnonzero(count > _IN_FLIGHT).tolist():
        call, peer = keys[:, at].tolist()
        text = (
            f"{program.place(int(program.call_start[call]))} begins {count[at]} to rank {peer} in one group"
        )
        yield (
            0,
            text,
            f"export with `graphs=yes`, which puts one after the other, or take {job.library} 2.30.7",
        )


@RULES.rule("V05", WARNING, "waves of copies since 2.30.7", "each put is a copy of its own", needs=_VERSION)
def _waves(job: PutSignalJob) -> Iterator[Complaint]:
    if not _before(job, 2, 29, 2) and _before(job, 2, 30, 7):
        yield (
            0,
            "the library carries out the puts of a group one after the other",
            f"take {job.library} 2.30.7 or later",
        )


@RULES.rule("V06", WARNING, "data before their signals", "results are wrong now and then", needs=_VERSION)
def _arrivals(job: PutSignalJob) -> Iterator[Complaint]:
    """An open report of GB300 with NCCL 2.30: puts by copy engines, outside of graphs, between ranks of one host."""
    topology = job.facts.topology
    if job.facts.rccl or job.content.setup.capture or _before(job, 2, 30):
        return
    hosts = None if topology is None else topology.host[topology.rank_nodes]
    if hosts is not None and len(hosts) == len(np.unique(hosts)):
        return  # no copy engine is used
    concerned = topology is not None and "b300" in topology.name.lower()
    if not concerned and not _before(job, 2, 31):
        return
    text = (
        "a user of GB300 with 2.30 saw waits end while data of puts within a host were missing (NVIDIA/nccl issue "
        "2375, open in September 2026)"
    )
    fix = "run `coppice probe --engine put-signal`, which looks for it, or set capture to true in $.setup"
    yield WARNING if concerned else NOTE, 0, text, fix


@RULES.rule(
    "W01", ERROR, "the first call of a communicator is collective", "it waits for all ranks", needs=_VERSION
)
def _warm_up(job: PutSignalJob) -> Iterator[Complaint]:
    if job.content.setup.warm_up or not _before(job, 2, 31):
        return
    program = job.program
    remote = program.call_kind != PutSignalCall.LOCAL
    for line in range(program.num_communicators):
        users = set(program.call_rank[remote & (program.communicator == line)].tolist())
        idle = sorted(set(range(program.num_ranks)) - users)
        fix = "set warm_up to true in $.setup"
        if idle:
            yield 0, f"rank {idle[0]} never calls communicator {line} ({len(idle)} such ranks)", fix
        else:
            yield WARNING, 0, f"the first run on communicator {line} has a barrier in it", fix


@RULES.rule(
    "W02", ERROR, "windows at the base of allocations before 2.31.2", "puts land elsewhere", needs=_VERSION
)
def _allocations(job: PutSignalJob) -> Iterator[Complaint]:
    if not job.content.setup.whole_allocations and _before(job, 2, 31, 2):
        yield 0, "windows may begin inside an allocation", "set whole_allocations to true in $.setup"


@RULES.rule("W03", ERROR, "windows of equal size before 2.30.7", "registration fails", needs=_VERSION)
def _equal(job: PutSignalJob) -> Iterator[Complaint]:
    if job.content.setup.equal_windows or not _before(job, 2, 30, 7):
        return
    for name, sizes in zip(("input", "output", "staging"), all_sizes(job.program).tolist(), strict=True):
        if len(set(sizes)) > 1:
            text = f"{name} windows have {min(sizes)} to {max(sizes)} slots"
            yield 0, text, "set equal_windows to true in $.setup"


@RULES.rule("W04", ERROR, "settings that switch one-sided calls off", "every put is refused")
def _settings(job: PutSignalJob) -> Iterator[Complaint]:
    for name, value in job.facts.environment.items():
        if _OFF.get(name) == value or (name == "numRmaCtx" and value == "0"):
            yield 0, f"{name}={value}", f"leave {name} out"


@RULES.rule(
    "W05", WARNING, "ranks of a box follow each other, equally many in each", "the others use the NIC"
)
def _teams(job: PutSignalJob) -> Iterator[Complaint]:
    topology = job.facts.topology
    if topology is None or topology.num_ranks != job.program.num_ranks:
        return
    hosts = topology.host[topology.rank_nodes]
    lengths = np.diff(np.append(np.flatnonzero(begins_run(hosts)), len(hosts))).tolist()
    team = gcd(*lengths)
    if team < max(np.bincount(hosts - hosts.min()).tolist()):
        text = (
            f"boxes have runs of {min(lengths)} to {max(lengths)} ranks, so that {team} of them form a team"
        )
        yield 0, text, "number ranks box by box, with as many ranks in each"


@RULES.rule("U01", ERROR, "operands within the peer's window", "memory is overwritten, unchecked")
def _operands(job: PutSignalJob) -> Iterator[Complaint]:
    yield from (
        (0, text.rstrip("."), "export the plan again") for text in job.form if " names rank " not in text
    )


@RULES.rule("U02", ERROR, "peers that exist", "a wait for a rank that is not there never ends, unchecked")
def _peers(job: PutSignalJob) -> Iterator[Complaint]:
    yield from ((0, text.rstrip("."), "export the plan again") for text in job.form if " names rank " in text)


@RULES.rule(
    "U03", ERROR, "as many signals as waits take", "a wait never ends, or the next run begins too early"
)
def _counts(job: PutSignalJob) -> Iterator[Complaint]:
    circles = tuple(text for text in job.order if "deadlocks" in text)
    yield from ((0, text.rstrip("."), "export the plan again") for text in job.order if text not in circles)


@RULES.rule(
    "U04", ERROR, "no circle of waiting in the order of issue", "ranks wait for each other without end"
)
def _circles(job: PutSignalJob) -> Iterator[Complaint]:
    yield from ((0, text.rstrip("."), "export the plan again") for text in job.order if "deadlocks" in text)


@RULES.rule("U05", ERROR, "no put overwrites what is still in use", "results are wrong, now and then")
def _credits(job: PutSignalJob) -> Iterator[Complaint]:
    if not job.form and not job.order:
        report = verify_put_signal(job.program)
        yield from ((0, text.rstrip("."), "export the plan again") for text in report.failures)


@RULES.rule("U06", ERROR, "in a graph a counter holds one signal", "ranks wait for each other without end")
def _graphs(job: PutSignalJob) -> Iterator[Complaint]:
    if job.content.setup.capture and not job.form and not job.order and not is_graph_safe(job.program):
        text = "ranks put more than once to each other before they wait, and it is to be captured"
        yield 0, text, "export with `graphs=yes`, or set capture to false in $.setup"


@RULES.rule("D01", WARNING, "a connection for each stream", "transfers and kernels wait for each other")
def _connections(job: PutSignalJob) -> Iterator[Complaint]:
    have = job.facts.max_connections
    streams = job.program.num_streams
    if have is not None and have <= streams:
        own = f"{plural(streams, 'stream')} of the program and those of the job"
        more = f"set it to {max(8, streams + 1)} or more"
        fewer = f"export with fewer than {_MOST_CONNECTIONS} `communicators`"
        text = f"CUDA_DEVICE_MAX_CONNECTIONS={have}, with {own}"
        yield 0, text, more if streams < _MOST_CONNECTIONS else fewer


@RULES.rule("D02", WARNING, "puts of a step in one group", "between boxes each waits for the network")
def _grouped(job: PutSignalJob) -> Iterator[Complaint]:
    program = job.program
    alone = 0
    for rank in range(program.num_ranks):
        last: dict[int, tuple[int, int]] = {}
        for call in range(int(program.rank_start[rank]), int(program.rank_start[rank + 1])):
            kind, line = int(program.call_kind[call]), int(program.communicator[call])
            if kind == PutSignalCall.LOCAL:
                continue
            before = last.get(line)
            alone += before is not None and before[0] == kind == PutSignalCall.TRANSFER
            last[line] = (kind, call)
    if alone:
        text = f"{alone} transfers follow another one of their communicator with no wait between them"
        yield 0, text, "join them in one call"


@RULES.rule("D03", WARNING, "a communicator for each stream", "its streams never overlap")
def _queues(job: PutSignalJob) -> Iterator[Complaint]:
    program = job.program
    remote = program.call_kind != PutSignalCall.LOCAL
    pairs = np.unique(np.stack([program.communicator[remote], program.stream[remote]]), axis=1)
    lines, streams = np.unique(pairs[0], return_counts=True)
    for line, count in zip(lines.tolist(), streams.tolist(), strict=True):
        if count > 1:
            text = f"communicator {line} is used from {count} streams, and is one queue"
            yield 0, text, "export with `communicators`, which takes a communicator for each"


@RULES.rule(
    "D04", WARNING, "no per-thread stream with non-blocking communicators", "calls come in the wrong order"
)
def _per_thread(job: PutSignalJob) -> Iterator[Complaint]:
    if job.content.setup.nonblocking and job.content.setup.per_thread_stream:
        yield (
            0,
            "communicators are non-blocking and streams cudaStreamPerThread",
            "create streams of your own",
        )


@RULES.rule("D05", WARNING, "a trace and a time limit of one's own", "a hang shows nowhere")
def _watchdog(job: PutSignalJob) -> Iterator[Complaint]:
    if not job.content.setup.watchdog:
        text = "profilers, RAS counters and flight recorders do not see one-sided calls"
        yield 0, text, "set watchdog to true in $.setup"


def diagnose_put_signal(data: bytes, *, file: str, facts: JobFacts) -> Diagnosis:
    """Check a put/signal program.

    Args:
        data: The bytes.
        facts: What is known of the job.
    """
    version = facts.known_version
    words = "" if version is None else f" {'.'.join(map(str, version))}"
    job = PutSignalJob(file=file, content=parse_put_signal(data, file=file), facts=facts)
    return run(job, RULES, target=NCCL, heading=f"for {job.library}{words}", runtime=job.library)
