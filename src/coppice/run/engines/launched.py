"""Open the engine of a process that a launcher started: torchrun, mpirun, or the lab."""

from __future__ import annotations

import os
from collections.abc import Mapping

from coppice.errors import InputError
from coppice.run.engines.engine import Engine

ENGINES = ("torch", "mpi", "shm", "put-signal")

_MPI_SIGNS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_SIZE")
_EITHER = ("shm", "put-signal")
"""Engines for both launchers."""
_TORCH_SIGNS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def engine_name(asked: str | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Detect the engine by how this process was launched.

    Args:
        asked: What the user chose, or None.
        environment: Variables of the process (default: its own).

    Raises:
        InputError: If the engine does not exist, or no launcher started this process.

    Examples:
        >>> engine_name(environment={"OMPI_COMM_WORLD_SIZE": "4"})
        'mpi'
    """
    variables = os.environ if environment is None else environment
    if asked is not None and asked not in ENGINES:
        raise InputError(f"expected `engine` {', '.join(ENGINES)}, found {asked!r}: choose one of them.")
    by_torch = all(sign in variables for sign in _TORCH_SIGNS)
    if not by_torch and (asked == "torch" or (asked in _EITHER and not by_mpi(variables))):
        missing = next(sign for sign in _TORCH_SIGNS if sign not in variables)
        raise InputError(
            f"expected the variables of torchrun for the engine {asked}, found no {missing}: start with "
            "`torchrun --nproc-per-node N -m coppice ...`."
        )
    if asked is None and not by_torch and not by_mpi(variables):
        raise InputError(
            "expected to be started by a launcher, found none: use `torchrun --nproc-per-node N -m coppice ...` or "
            "`mpirun -n N coppice ...`."
        )
    return asked or ("torch" if by_torch else "mpi")


def open_engine(name: str, *, timeout_s: float = 300.0) -> Engine:
    """Open the engine; collective over the ranks.

    Raises:
        MissingExtraError: If its package is not installed.
        RunError: If the other ranks do not answer.
    """
    if name == "mpi":
        from coppice.run.engines.mpi import MpiEngine

        return MpiEngine(exchange_timeout_s=timeout_s)
    if name == "put-signal":
        from coppice.run.engines.put_signal.opening import put_signal_engine

        return put_signal_engine(
            open_engine("mpi" if by_mpi(os.environ) else "torch", timeout_s=timeout_s), timeout_s=timeout_s
        )
    if name == "shm":
        from coppice.run.engines.shared_memory import ShmEngine

        if by_mpi(os.environ):
            import mpi4py.MPI

            world = mpi4py.MPI.COMM_WORLD
            return ShmEngine.connect(
                world.Get_rank(), world.Get_size(), world.allgather, exchange_timeout_s=timeout_s
            )
        from coppice.run.engines.torch.engine import TorchEngine

        met = TorchEngine.from_environment(timeout_s=timeout_s)
        try:
            return ShmEngine.connect(met.rank, met.ranks, met.exchange, exchange_timeout_s=timeout_s)
        finally:
            met.close()
    from coppice.run.engines.torch.engine import TorchEngine

    return TorchEngine.from_environment(timeout_s=timeout_s)


def by_mpi(environment: Mapping[str, str]) -> bool:
    """Whether an MPI launcher started the process."""
    return any(sign in environment for sign in _MPI_SIGNS)
