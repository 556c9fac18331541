"""Rules about files by which Open MPI picks algorithms."""

from coppice.doctor.open_mpi import rules  # noqa: F401  (they join the table)
from coppice.doctor.open_mpi.file import RULES, OmpiRulesFile

__all__ = ["RULES", "OmpiRulesFile"]
