"""The environment in which a library uses a table of rules, as `coppice tune check` measures it."""

from __future__ import annotations

from pathlib import Path

from coppice.errors import InputError
from coppice.tuning.exports import export_table
from coppice.tuning.table import RuleTable

__all__ = ["deployed_environment"]


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
