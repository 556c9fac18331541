"""Which variable a library reads a tuning by, and how to take it back: every output says so."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["UNDO", "undo_line"]

UNDO: Mapping[str, str] = {
    "nccl-tuner": "unset NCCL_TUNER_PLUGIN",
    "rccl-csv": "unset NCCL_TUNER_CONFIG_FILE",
    "ompi-rules": "unset OMPI_MCA_coll_tuned_use_dynamic_rules (and leave out its --mca options)",
    "mpich-env": "unset the variables of the file",
}
"""How each export is taken back."""

_OF_LIBRARY = {"nccl": "nccl-tuner", "rccl": "rccl-csv", "open-mpi": "ompi-rules", "mpich": "mpich-env"}


def undo_line(library: str) -> str:
    """How to take back what is exported for a library, in one line.

    Args:
        library: One of :data:`coppice.tuning.table.LIBRARIES`.

    Examples:
        >>> undo_line("rccl")
        'undo: unset NCCL_TUNER_CONFIG_FILE'
    """
    return f"undo: {UNDO[_OF_LIBRARY[library]]}"
