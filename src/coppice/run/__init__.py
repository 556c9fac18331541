"""Run schedules: lower them to per-rank programs, and execute these by engines and communicators.

    Communicator       collectives over arrays, planned for a topology
    open_engine        the engine of a process that torchrun, mpirun or the lab started
    NumpyEngine ...    the engines: threads, shared memory, MPI and torch.distributed
    run_ranks          a function on every rank of a group of threads, to try things out
    lower_for_run      the programs of all ranks of a schedule; ``check_programs`` judges them
    bench              algorithms beside each other, as :class:`BenchRow`
    probe_network      the network between the ranks, measured

A module is loaded when one of its names is first used: MPI and torch are not needed by what does not run on them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coppice.program.dialects.rank.lower import lower_for_run
    from coppice.program.dialects.rank.program import RankProgram
    from coppice.program.dialects.rank.verify import check_programs
    from coppice.run.bench.measuring import BenchRow, bench
    from coppice.run.communicator.communicator import Communicator
    from coppice.run.engines.datatype import DataType, ReduceOp
    from coppice.run.engines.engine import Engine
    from coppice.run.engines.interpreter import interpret
    from coppice.run.engines.launched import engine_name, open_engine
    from coppice.run.engines.mpi import MpiEngine
    from coppice.run.engines.numpy import NumpyEngine, numpy_engines, run_ranks
    from coppice.run.engines.shared_memory import ShmEngine, shm_engines
    from coppice.run.engines.torch.engine import TorchEngine
    from coppice.run.errors import Mismatch, PeerLost, RunError, TimedOut
    from coppice.run.probe.network import Probed, probe_network

__all__ = [
    "BenchRow",
    "Communicator",
    "DataType",
    "Engine",
    "Mismatch",
    "MpiEngine",
    "NumpyEngine",
    "PeerLost",
    "Probed",
    "RankProgram",
    "ReduceOp",
    "RunError",
    "ShmEngine",
    "TimedOut",
    "TorchEngine",
    "bench",
    "check_programs",
    "engine_name",
    "interpret",
    "lower_for_run",
    "numpy_engines",
    "open_engine",
    "probe_network",
    "run_ranks",
    "shm_engines",
]

_NAMES = {
    "bench.measuring": ("BenchRow",),
    "communicator.communicator": ("Communicator",),
    "engines.datatype": ("DataType", "ReduceOp"),
    "engines.engine": ("Engine",),
    "engines.interpreter": ("interpret",),
    "engines.launched": ("engine_name", "open_engine"),
    "engines.mpi": ("MpiEngine",),
    "engines.numpy": ("NumpyEngine", "numpy_engines", "run_ranks"),
    "engines.shared_memory": ("ShmEngine", "shm_engines"),
    "engines.torch.engine": ("TorchEngine",),
    "errors": ("Mismatch", "PeerLost", "RunError", "TimedOut"),
    "probe.network": ("Probed", "probe_network"),
    "..program.dialects.rank.verify": ("check_programs",),
    "..program.dialects.rank.lower": ("lower_for_run",),
    "..program.dialects.rank.program": ("RankProgram",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """A name when it is first used."""
    if name == "bench":
        return import_module(f"{__name__}.bench")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES[name]
    return getattr(import_module(module if module.startswith(".") else f".{module}", __name__), name)
