"""Running a script under the MPI libraries that `make setup` puts beside the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARIES = ("open-mpi", "mpich")
QUICK_LIBRARIES = ("open-mpi", pytest.param("mpich", marks=pytest.mark.slow))
"""For tests of ours that do the same under both."""
HOME = Path(os.environ.get("COPPICE_MPI", Path(sys.prefix) / "mpi"))


def reason_to_skip(library: str) -> str | None:
    """Why nothing can be run under this library here, or None."""
    if not (HOME / library / "bin" / "mpiexec").exists():
        return f"{library} is not at {HOME / library}: `make setup` installs it"
    return None


def environment(library: str) -> dict[str, str]:
    """Variables with which mpi4py finds the library."""
    home = HOME / library
    if library == "open-mpi":
        return {
            "OPAL_PREFIX": str(home),
            "MPI4PY_MPIABI": "openmpi",
            "MPI4PY_LIBMPI": str(home / "lib" / "libmpi.so"),
            "OMPI_MCA_mpi_yield_when_idle": "1",
        }
    return {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(home / "lib")}


def run_mpi(
    library: str,
    ranks: int,
    command: list[str],
    *,
    timeout_s: float = 120,
    options: tuple[str, ...] = (),
    variables: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a Python command on so many ranks of this machine."""
    launcher = [str(HOME / library / "bin" / "mpiexec"), "-n", str(ranks), *options]
    if library == "open-mpi":
        launcher[1:1] = ["--allow-run-as-root", "--oversubscribe"]
    return subprocess.run(
        [*launcher, sys.executable, *command],
        # An unbuffered rank writes a line and its end apart, and MPICH's launcher then joins the lines of two ranks.
        env={
            **os.environ,
            **environment(library),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "",
            **(variables or {}),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
    )
