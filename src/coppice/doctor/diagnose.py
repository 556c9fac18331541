"""Check whether a library or runtime will load a file and do what its author intended.

The target says who reads the file, or what kind of file it is; where none is given, the content tells if it can.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from coppice.arguments import also_named, checked
from coppice.doctor.framework import MSCCLPP, NCCL, Diagnosis, DoctorRule, Rulebook, run
from coppice.doctor.job_facts import JobFacts, TuningFile
from coppice.errors import InputError
from coppice.export.formats import MSCCL_RUNTIMES
from coppice.files import file_name, read_bytes
from coppice.text import parse_sizes, suggestion

_TUNING: Mapping[str, tuple[str, str, str]] = {
    "nccl-tuner": ("coppice.doctor.nccl", "TunerTable", "TUNER_RULES"),
    "nccl-graph": ("coppice.doctor.nccl", "NcclGraphFile", "GRAPH_RULES"),
    "nccl-topo": ("coppice.doctor.nccl", "NcclTopoFile", "TOPO_RULES"),
    "rccl-rings": ("coppice.doctor.rccl", "RcclVariables", "RING_RULES"),
    "rccl-trees": ("coppice.doctor.rccl", "RcclVariables", "TREE_RULES"),
    "ompi-rules": ("coppice.doctor.open_mpi", "OmpiRulesFile", "RULES"),
    "mpich-env": ("coppice.doctor.mpich", "MpichVariables", "RULES"),
    "host": ("coppice.doctor.host", "HostFile", "HOST_RULES"),
}
"""Where the file as rules see it and the rules of each kind are; the module is loaded when such a file comes."""

_BY_SIZE = ("nccl-tuner", "ompi-rules")

TUNING_TARGETS = tuple(_TUNING)
"""Kinds of tuning files."""

TARGETS = (*MSCCL_RUNTIMES, MSCCLPP, NCCL, *TUNING_TARGETS)
"""Runtimes that read MSCCL XML, the executor of MSCCL++, stock NCCL (programs of puts and signals), and kinds of tuning
files."""

_TELLS = (
    (r"<graphs\b", "nccl-graph"),
    (r"<system\b", "nccl-topo"),
    (r"(?m)^\s*(?:export\s+)?NCCL_RINGS=", "rccl-rings"),
    (r"(?m)^\s*(?:export\s+)?RCCL_TREES=", "rccl-trees"),
    (r"(?m)^\s*(?:export\s+)?MPIR_CVAR_\w+=", "mpich-env"),
)


@also_named(num_ranks="ranks")
@checked
def diagnose(
    source: str | bytes | os.PathLike[str],
    target: str | None = None,
    *,
    ranks: int | None = None,
    sizes: str | Iterable[int] = (),
    options: JobFacts | Mapping[str, str] | None = None,
    file: str | None = None,
) -> Diagnosis:
    r"""Check a file against the rules of its target.

    Args:
        source: The file; ``-`` is standard input. Bytes are its content, and so is a text of several lines.
        target: One of :data:`TARGETS`; None where the content tells.
        ranks: Ranks of the communicator, for MSCCL XML and MSCCL++; None leaves that open.
        sizes: Message sizes M in bytes at which it is to be used, for the same, as nccl-tests counts them; or as text,
            such as ``1M:1G``. Of tuner tables and rules of Open MPI: sizes for which to tell what holds.
        options: For tuning files and programs of puts and signals: what is known of the job, or texts for
            :meth:`coppice.doctor.job_facts.JobFacts.parse`.
        file: Name for messages, where ``source`` is the content.

    Raises:
        InputError: If the file cannot be read or is none of that kind at all, or an argument is none of those.

    Examples:
        >>> table = b"allreduce,0,18446744073709551615,ring,simple,0,-1,-1\n"
        >>> found = diagnose(table, "nccl-tuner", options={"dialect": "rccl-builtin"})
        >>> found.ok, [(finding.rule, finding.line) for finding in found.findings]
        (True, [('T03', 1)])
    """
    if target is not None:
        _check_target(target)
    wanted = _sizes(sizes)
    if ranks is not None and ranks < 1:
        raise InputError(f"expected `ranks` as a number of 1 or more, found {ranks!r}.")
    data, name = _content(source, file)
    target = target or _told(data, name)
    told = (*TUNING_TARGETS, NCCL)
    if target in told and ranks is not None:
        raise InputError(
            f"`ranks` is for MSCCL XML and MSCCL++: tell the doctor of {target} files by `options` (shapes=2x16)."
        )
    if wanted and target in told and target not in _BY_SIZE:
        raise InputError(
            f"`sizes` is for files that choose by size ({', '.join(_BY_SIZE)}), and {target} does not: leave it out."
        )
    if target not in told and options:
        raise InputError("`options` is for tuning files and nccl: give `ranks` and `sizes` for MSCCL XML.")
    facts = options if isinstance(options, JobFacts) else JobFacts.parse(options or {})
    if target == MSCCLPP:
        from coppice.doctor.mscclpp import diagnose_mscclpp

        beside = not _is_content(source) and os.fspath(source) == name
        return diagnose_mscclpp(data, file=name, ranks=ranks, sizes=wanted, beside=beside)
    if target == NCCL:
        from coppice.doctor.put_signal import diagnose_put_signal

        return diagnose_put_signal(data, file=name, facts=facts)
    if target in MSCCL_RUNTIMES:
        from coppice.doctor.msccl import diagnose_msccl

        return diagnose_msccl(data, target, file=name, ranks=ranks, sizes=wanted)
    kind, rules = _tuning(target)
    subject = kind(data=data, file=name, facts=facts)
    if wanted and not facts.known_shapes:
        raise InputError(
            f"`sizes` tells what holds for communicators of the job: name them by `options` (shapes=2x16, {target})."
        )
    coverage = subject.coverage(wanted) if wanted else ()
    return run(subject, rules, target=target, heading=f"as {subject.kind(target)}", coverage=coverage)


@checked
def rules_for(target: str) -> tuple[DoctorRule[Any], ...]:
    """Rules of a target, in the order of their ids.

    Raises:
        InputError: If there is no such target.

    Examples:
        >>> [rule.id for rule in rules_for("rccl-trees")]
        ['R02', 'R03', 'R04']
    """
    _check_target(target)
    if target in _TUNING:
        return tuple(_tuning(target)[1])
    name = "msccl" if target in MSCCL_RUNTIMES else "put_signal" if target == NCCL else target
    return tuple(import_module(f"coppice.doctor.{name}").RULES)


def _tuning(target: str) -> tuple[type[TuningFile], Rulebook[Any]]:
    """A kind of tuning files, and its rules."""
    home, kind, rules = _TUNING[target]
    module = import_module(home)
    return getattr(module, kind), getattr(module, rules)


def _check_target(target: str) -> None:
    if target not in TARGETS:
        raise InputError(f"the doctor has no target {target[:40]!r}: {suggestion(target, TARGETS)}")


def _sizes(sizes: str | Iterable[Any]) -> tuple[int, ...]:
    if isinstance(sizes, str):
        return parse_sizes(sizes, option="`sizes`")
    found = tuple(sizes)
    if not all(isinstance(size, int) and size >= 0 for size in found):
        raise InputError(
            f"expected sizes of 0 bytes or more, found {str(sizes)[:60]}: give a list of integers, or text."
        )
    return found


def _content(source: str | bytes | os.PathLike[str], file: str | None) -> tuple[bytes, str]:
    """Bytes of what is to be examined, and a name for messages."""
    if isinstance(source, bytes):
        return source, file or "the file"
    if _is_content(source):
        return str(source).encode(), file or "the file"
    return read_bytes(source), file or file_name(source)


def _is_content(source: str | bytes | os.PathLike[str]) -> bool:
    """It is no path."""
    text = isinstance(source, str) and ("\n" in source or source.startswith(("<", "{")))
    return text or isinstance(source, bytes)


def _told(data: bytes, file: str) -> str:
    """The target that the content tells."""
    from coppice.export.mscclpp.document import is_mscclpp
    from coppice.export.put_signal.document import is_put_signal

    if is_put_signal(data):
        return NCCL
    if is_mscclpp(data):
        return MSCCLPP
    text = data[: 1 << 16].decode("utf-8", errors="replace")
    found = [target for pattern, target in _TELLS if re.search(pattern, text)]
    if len(found) == 1:
        return found[0]
    known = MSCCL_RUNTIMES if "<algo" in text else TARGETS
    raise InputError(f"{file} does not tell who is to read it: give `target`, one of {', '.join(known)}.")
