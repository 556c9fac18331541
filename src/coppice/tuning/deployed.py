"""The environment in which a library uses a table of rules, as `coppice tune check` measures it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from coppice.errors import InputError
from coppice.tuning.exports import export_table
from coppice.tuning.records import Run, read_runs
from coppice.tuning.sweep import sweep_mpi
from coppice.tuning.table import RuleTable
from coppice.tuning.worker import Spec

__all__ = ["deployed_environment", "measured_again"]


def deployed_environment(table: RuleTable, directory: Path) -> dict[str, str]:
    """Variables of the rules, whose files are written to a directory.

    For Open MPI without ``coll=^han``: the default is measured in the same process, with han where it comes first.

    Args:
        table: The table, of Open MPI or MPICH.
        directory: Where files may be written.

    Raises:
        InputError: If the table is of another library, or cannot be exported.
    """
    if table.library == "open-mpi":
        file = directory / "rules.conf"
        file.write_text(export_table(table, "ompi-rules").text)
        return {
            "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
            "OMPI_MCA_coll_tuned_dynamic_rules_filename": str(file),
        }
    if table.library == "mpich":
        lines = export_table(table, "mpich-env").text.splitlines()
        return dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    msg = (
        f"rules of {table.library} are measured with nccl-tests: sweep again with the plugin and the table, and check "
        "those measurements without --ranks and --lab."
    )
    raise InputError(msg)


def measured_again(
    rules: RuleTable,
    known: Sequence[Run],
    *,
    rounds: int,
    ranks: int = 0,
    lab: str | None = None,
    launcher: str | None = None,
    options: Sequence[str] = (),
) -> tuple[Run, ...]:
    """Measurements of the library with the rules in use, at the collectives and sizes of others.

    Args:
        rules: The rules.
        known: The others.
        rounds: Rounds of the sweep.
        ranks: Number of ranks, see :func:`coppice.tuning.sweep.sweep_mpi`.
        lab: Lab to run in.
        launcher: Path of the launcher.
        options: Further words for the launcher.
    """
    with tempfile.TemporaryDirectory(prefix="coppice-tune-") as directory:
        output = Path(directory) / "runs.jsonl"
        sweep_mpi(
            Spec(
                library=rules.library,
                collectives=list(dict.fromkeys(run.collective for run in known)),
                sizes=sorted({run.size_bytes for run in known}),
                rounds=rounds,
                output=str(output),
                deployed=True,
            ),
            ranks=ranks,
            lab=lab,
            launcher=launcher,
            options=options,
            environment=deployed_environment(rules, Path(directory)),
        )
        return read_runs([output])
