"""Export a rule table in its library's format, checked by the doctor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coppice.collectives import Collective
from coppice.doctor import JobFacts, diagnose
from coppice.errors import InputError
from coppice.export.formats import Dialect, Exported
from coppice.export.nccl.tuner import tuner_table
from coppice.export.open_mpi.rules_file import FOR_EVER, form_of, version_of
from coppice.export.open_mpi.writer import SUFFIXES, OmpiRule, merged, rules_file
from coppice.fitting.nccl_tuner import TunerRule
from coppice.run.planned import TUNING_VARIABLE, AlgorithmRule, AlgorithmRules, decode_rules, encode_rules
from coppice.selection.tables import FUNCTIONS
from coppice.tuning.fit import SizeRule
from coppice.tuning.mpi_switch import CHAIN_FANOUT, MPICH_FUNCTIONS
from coppice.tuning.table import UNDO, RuleTable
from coppice.version import __version__

FORMS = tuple(UNDO)
"""What a table can be exported to."""

_LIBRARY = {
    "nccl-tuner": "nccl",
    "rccl-csv": "rccl",
    "ompi-rules": "open-mpi",
    "mpich-env": "mpich",
    "put-signal-rules": "put-signal",
}
_OMPI_USE = (
    "use: OMPI_MCA_coll_tuned_use_dynamic_rules=1 OMPI_MCA_coll_tuned_dynamic_rules_filename=FILE OMPI_MCA_coll=^han "
    "(or the same with --mca); han, which rules do not reach, is then off for everything: run `coppice tune check`"
)
_DIALECT = {"nccl-tuner": Dialect.COPPICE, "rccl-csv": Dialect.RCCL_BUILTIN}


def export_table(table: RuleTable, form: str) -> Exported:
    """Export a rule table for its library.

    Args:
        form: One of :data:`FORMS`.

    Returns:
        The text, and how to use and undo it.
    """
    if form not in FORMS:
        raise InputError(f"expected a form that is one of {', '.join(FORMS)}, found {form!r}.")
    if table.library != _LIBRARY[form]:
        raise InputError(
            f"{form} is for {_LIBRARY[form]}, the table is for {table.library}: export it to the form of its library."
        )
    if not table.changed:
        raise InputError(
            "no rule beats the default: there is nothing to export, the library already does what is best."
        )
    writer: Mapping[str, Callable[[RuleTable, str], Exported]] = {
        "nccl-tuner": _tuner,
        "rccl-csv": _tuner,
        "ompi-rules": _ompi,
        "mpich-env": _mpich,
        "put-signal-rules": _put_signal,
    }
    made = writer[form](table, form)
    return Exported(text=made.text, notes=(*made.notes, f"undo: {UNDO[form]}"), suffix=made.suffix)


def _head(table: RuleTable) -> list[str]:
    words = f"measured with {table.library} {table.version}".rstrip()
    return [f"by coppice {__version__}, {words}", *([f"topology {table.topology}"] if table.topology else [])]


def _job_facts(table: RuleTable) -> JobFacts:
    """What the doctor is told of the communicators."""
    return JobFacts(shapes=tuple(sorted({(rule.shape.nodes, rule.shape.ranks) for rule in table.rules})))


def _tuner(table: RuleTable, form: str) -> Exported:
    dialect = _DIALECT[form]
    rules = [
        TunerRule(
            collective=rule.shape.collective,
            first_bytes=rule.first_bytes,
            last_bytes=rule.last_bytes,
            nodes=rule.shape.nodes,
            ranks=rule.shape.ranks,
            algorithm=rule.choice.algorithm,
            protocol=rule.choice.protocol,
            channels=rule.choice.channels or None,
            gain=rule.gain,
        )
        for rule in table.changed
        if rule.choice is not None
    ]
    first, *more = _head(table)
    comments = [f"tuner table ({dialect}) {first}", *more]
    comments += [f"library {table.version}"] if table.version else []
    text = tuner_table(rules, dialect, comments=[*comments, f"undo: {UNDO[form]}"])
    diagnose(text.encode(), "nccl-tuner", file="the table", options=JobFacts(dialect=dialect)).require_ok()
    use = {
        Dialect.COPPICE: "use: NCCL_TUNER_PLUGIN=libnccl-tuner-coppice.so (`coppice tune plugin build`) and "
        "COPPICE_TUNER_TABLE=FILE on every host",
        Dialect.RCCL_BUILTIN: "use: NCCL_TUNER_CONFIG_FILE=FILE on every host, RCCL 2.28.3 and later; it replaces the "
        "tables that RCCL brings along",
    }
    return Exported(text=text, notes=(f"{len(rules)} rules", use[dialect]), suffix=".csv")


def _put_signal(table: RuleTable, form: str) -> Exported:
    rules = AlgorithmRules(
        notes=(*_head(table), f"undo: {UNDO[form]}"),
        rules=tuple(
            AlgorithmRule(
                collective=rule.shape.collective,
                nodes=rule.shape.nodes,
                ranks=rule.shape.ranks,
                first_bytes=rule.first_bytes,
                last_bytes=rule.last_bytes,
                algorithm=rule.choice.algorithm,
            )
            for rule in table.changed
            if rule.choice is not None
        ),
    )
    text = encode_rules(rules)
    decode_rules(text.encode(), file="the table")
    use = f"use: {TUNING_VARIABLE}=FILE on every host, for init_process_group('coppice')"
    return Exported(text=text, notes=(f"{len(rules.rules)} rules", use), suffix=".json")


def _ompi(table: RuleTable, form: str) -> Exported:
    shapes: dict[Collective, dict[int, list[SizeRule]]] = {}
    nodes: dict[tuple[Collective, int], int] = {}
    for rule in sorted(table.rules, key=lambda each: (each.shape, each.first_bytes)):
        shape = rule.shape
        if nodes.setdefault((shape.collective, shape.ranks), shape.nodes) != shape.nodes:
            raise InputError(
                f"rules files of Open MPI do not tell nodes apart, found {shape.ranks} ranks on different numbers of "
                f"nodes for {shape.collective}: remove one of them from the table."
            )
        if shape.collective not in FUNCTIONS:
            raise InputError(f"rules files of Open MPI have no {shape.collective}: remove it from the table.")
        shapes.setdefault(shape.collective, {}).setdefault(shape.ranks, []).append(rule)
    changed = {
        collective: {ranks: _ompi_rules(rules) for ranks, rules in own.items()}
        for collective, own in shapes.items()
        if any(rule.choice is not None for rules in own.values() for rule in rules)
    }
    version = version_of(table.version or "5.0")
    text = rules_file(changed, version=version, comments=[*_head(table), f"undo: {UNDO[form]}"])
    given = replace(_job_facts(table), version=version)
    diagnose(text.encode(), form, file="the rules", options=given).require_ok()
    return Exported(
        text=text, notes=(f"{len(table.changed)} rules", _OMPI_USE), suffix=SUFFIXES[form_of(version)]
    )


def _ompi_rules(rules: Sequence[SizeRule]) -> tuple[OmpiRule, ...]:
    """Rules of a number of ranks: from 0 bytes on, and Open MPI's own choice (0) wherever no rule holds."""
    found = {0: OmpiRule(first_bytes=0, id=0)}
    for rule in rules:  # what begins where another ends counts
        choice = rule.choice
        if choice is None:
            made = OmpiRule(first_bytes=rule.first_bytes, id=0)
        elif not choice.number:
            raise InputError(
                f"{choice} has no number in the table, by which rules files name it: fit measurements of a sweep."
            )
        else:
            made = OmpiRule(
                first_bytes=rule.first_bytes,
                id=choice.number,
                fanout=CHAIN_FANOUT if choice.algorithm == "chain" else 0,
                segment_bytes=choice.segment_bytes,
            )
        after = rule.last_bytes + 1
        found |= {made.first_bytes: made, after: OmpiRule(first_bytes=after, id=0)}
    return merged(rule for start, rule in sorted(found.items()) if start <= FOR_EVER)


def _mpich(table: RuleTable, form: str) -> Exported:
    chosen: dict[Collective, SizeRule] = {}
    for rule in table.changed:
        collective = rule.shape.collective
        known = chosen.setdefault(collective, rule)
        if known.choice != rule.choice:
            raise InputError(
                f"a variable of MPICH holds for all sizes and communicators, found {known.choice} and {rule.choice} "
                f"for {collective}: keep one of them in the table."
            )
        if collective not in MPICH_FUNCTIONS:
            raise InputError(f"there is no variable of MPICH for {collective}: remove it from the table.")
    kept = {rule.shape.collective for rule in table.rules if rule.choice is None} & set(chosen)
    lines = [f"# {line}" for line in (*_head(table), f"undo: {UNDO[form]}")]
    for collective, rule in sorted(chosen.items()):
        if rule.choice is not None:
            stem = f"MPIR_CVAR_{MPICH_FUNCTIONS[collective]}"
            lines += [f"{stem}_INTRA_ALGORITHM={rule.choice.algorithm}", f"{stem}_DEVICE_COLLECTIVE=0"]
    notes = [
        f"{len(chosen)} collectives",
        "use: set -a; . FILE; set +a (the launcher hands the variables on)",
    ]
    notes += [f"{each} changes at sizes or shapes, too, whose rule is the default" for each in sorted(kept)]
    text = "".join(f"{line}\n" for line in lines)
    diagnose(text.encode(), form, file="the variables", options=_job_facts(table)).require_ok()
    return Exported(text=text, notes=tuple(notes), suffix=".env")


def deployed_environment(table: RuleTable, directory: Path) -> dict[str, str]:
    """Environment variables that activate the rules, whose files are written to a directory.

    For Open MPI without ``coll=^han``: the default is measured in the same process, with han where it comes first.

    Args:
        table: The table, of Open MPI or MPICH.
    """
    if table.library == "open-mpi":
        made = export_table(table, "ompi-rules")
        file = directory / f"rules{made.suffix}"
        file.write_text(made.text)
        return {
            "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
            "OMPI_MCA_coll_tuned_dynamic_rules_filename": str(file),
        }
    if table.library == "mpich":
        lines = export_table(table, "mpich-env").text.splitlines()
        return dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    raise InputError(
        f"rules of {table.library} are measured with nccl-tests: sweep again with the plugin and the table, and check "
        "those measurements without `ranks` and `lab`."
    )
