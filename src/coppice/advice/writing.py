"""Files that carry advice, each judged by the doctor before it is written, and each with its undo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from pathlib import Path

from coppice.advice.changes import Change
from coppice.advice.measured import is_sure
from coppice.collectives import Collective
from coppice.doctor import JobFacts, diagnose
from coppice.errors import InputError
from coppice.export.open_mpi.rules_file import form_of, version_of
from coppice.export.open_mpi.writer import SUFFIXES, OmpiRule, merged, rules_file
from coppice.files import write_atomically
from coppice.fitting.open_mpi import OmpiChoice
from coppice.topology.model import Topology
from coppice.tuning.exports import export_table
from coppice.tuning.fit import Fit, SizeRule
from coppice.tuning.mpi_switch import MPICH_FUNCTIONS
from coppice.tuning.table import UNDO, RuleTable


@dataclass(frozen=True, kw_only=True)
class AdvisedFile:
    """A file that carries a change."""

    name: str
    what: str  # What it is for, and how it is used
    undo: str  # How it is taken back
    text: str  # Its content
    judged: str  # What the doctor found of it


FORMS = {"nccl": "nccl-tuner", "rccl": "rccl-csv", "open-mpi": "ompi-rules", "mpich": "mpich-env"}
"""Forms in which libraries read rules."""

_NAMES = {"nccl": "tuner.csv", "rccl": "tuner.csv", "open-mpi": "rules", "mpich": "mpich.env"}


def environment_file(changes: Sequence[Change]) -> Iterator[AdvisedFile]:
    """Variables to set and unset, for a shell; nothing where none changes."""
    lines, undo = [], []
    for change in changes:
        for name, value in change.sets.items():
            lines.append(f"unset {name}" if value is None else f"export {name}={value}")
            undo.append(change.undo)
    if lines:
        yield AdvisedFile(
            name="environment.sh",
            what="`. environment.sh` before the job is launched",
            undo="; ".join(undo),
            text="".join(f"{line}\n" for line in [*(f"# undo: {each}" for each in undo), *lines]),
            judged="nothing to judge: variables of the job",
        )


def measured_file(fit: Fit | None) -> Iterator[AdvisedFile]:
    """Rules that measurements prove, in the form of their library; nothing where none does."""
    if fit is None:
        return
    made_of = RuleTable.of(fit)
    table = replace(made_of, rules=tuple(_sure(rule, fit) for rule in made_of.rules))
    if not table.changed or table.library not in FORMS:
        return
    form = FORMS[table.library]
    made = export_table(table, form)
    name = _NAMES[table.library]
    yield AdvisedFile(
        name=name if "." in name else f"{name}{made.suffix}",
        what="; ".join(note for note in made.notes if not note.startswith("undo: ")),
        undo=UNDO[form],
        text=made.text,
        judged=f"no errors as {form}",
    )


def _sure(rule: SizeRule, fit: Fit) -> SizeRule:
    """The rule, or the default in place of a choice whose gain is sure at none of its sizes."""
    own = (size for size in fit.sizes.get(rule.shape, ()) if size.size_bytes in rule.sizes)
    if rule.choice is None or any(size.taken is not None and is_sure(size.taken.verdict) for size in own):
        return rule
    return replace(rule, choice=None, gain=1.0, low=1.0, high=1.0, noise=0.0)


def simulated_rules(
    topology: Topology, choices: Mapping[Collective, Sequence[OmpiChoice]], version: str
) -> Iterator[AdvisedFile]:
    """A rules file of Open MPI for simulated choices; nothing where all are its own."""
    lists = {
        collective: {topology.num_ranks: merged(_rules(own, topology.num_ranks))}
        for collective, own in choices.items()
        if any(choice.id for choice in own)
    }
    if not lists:
        return
    known = version_of(version or None)
    undo = UNDO["ompi-rules"]
    text = rules_file(
        lists, version=known, comments=["simulated: measure before you rely on it", f"undo: {undo}"]
    )
    hosts = max(1, len(set(topology.host[topology.rank_nodes].tolist())))
    facts = JobFacts(shapes=((hosts, topology.num_ranks),), version=known)
    diagnosis = diagnose(text.encode(), "ompi-rules", file="the rules", options=facts)
    diagnosis.require_ok()
    warned = [f"{each.severity.value} {each.rule}: {each.fix}" for each in diagnosis.findings]
    yield AdvisedFile(
        name=f"rules{SUFFIXES[form_of(known)]}",
        what=(
            "OMPI_MCA_coll_tuned_use_dynamic_rules=1 OMPI_MCA_coll_tuned_dynamic_rules_filename=FILE "
            "OMPI_MCA_coll=^han"
        ),
        undo=undo,
        text=text,
        judged="; ".join(["no errors as ompi-rules", *warned]),
    )


def _rules(choices: Sequence[OmpiChoice], ranks: int) -> Iterator[OmpiRule]:
    """Rules that meet at the geometric mean of neighbouring sizes; beyond the last size Open MPI decides.

    The first one reaches down to the largest buffer of whole blocks, since that is what a call of about its size has.
    """
    before = None
    for choice in sorted(choices, key=lambda each: each.size_bytes):
        first = 0 if before is None else isqrt(before * choice.size_bytes) + 1
        if before is None and choice.id:
            yield OmpiRule(first_bytes=0, id=0)
            first = choice.size_bytes - choice.size_bytes % (ranks * _WIDEST)
        yield OmpiRule(
            first_bytes=first, id=choice.id, fanout=choice.fanout, segment_bytes=choice.segment_bytes
        )
        before = choice.size_bytes
    if before is not None:
        yield OmpiRule(first_bytes=before + 1, id=0)


_WIDEST = 16
"""Bytes of the widest usual element, a complex number of double precision."""


def simulated_variables(topology: Topology, chosen: Mapping[Collective, str]) -> Iterator[AdvisedFile]:
    """Variables of MPICH for simulated choices; nothing where it is left to itself."""
    lines = []
    for collective, algorithm in sorted(chosen.items()):
        if algorithm:
            stem = f"MPIR_CVAR_{MPICH_FUNCTIONS[collective]}"
            lines += [f"{stem}_INTRA_ALGORITHM={algorithm}", f"{stem}_DEVICE_COLLECTIVE=0"]
    if not lines:
        return
    undo = UNDO["mpich-env"]
    head = ["# simulated: measure before you rely on it", f"# undo: {undo}"]
    text = "".join(f"{line}\n" for line in [*head, *lines])
    hosts = max(1, len(set(topology.host[topology.rank_nodes].tolist())))
    facts = JobFacts(shapes=((hosts, topology.num_ranks),))
    diagnosis = diagnose(text.encode(), "mpich-env", file="the variables", options=facts)
    diagnosis.require_ok()
    yield AdvisedFile(
        name="mpich.env",
        what="`set -a; . mpich.env; set +a` before mpiexec",
        undo=undo,
        text=text,
        judged="no errors as mpich-env",
    )


def write_files(files: Sequence[AdvisedFile], folder: Path) -> list[Path]:
    """Write files into a folder, which is made if it is not there; each is whole or as it was.

    Raises:
        InputError: If one cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the directory {folder} ({error.strerror or error}): choose another place."
        ) from None
    for each in files:
        write_atomically(folder / each.name, each.text.encode())
    return [folder / each.name for each in files]
