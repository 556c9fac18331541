"""Programs of calls: ranks agree on a call, rank 0 plans it once, and every rank lowers and keeps its own program.

Files are plan files (:mod:`coppice.schedule.files.plan_file`) with their own checksum. One that is damaged, of another
version or for something else is made again; a directory that cannot be written costs time, not the run.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.decoding import decodable
from coppice.errors import CoppiceError, InputError
from coppice.files import write_atomically
from coppice.planners.planning import plan
from coppice.run.communicator.groups import Value, agree
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.engine import Engine, LearningEngine
from coppice.run.programs.lower import lower_rank
from coppice.run.programs.pieces import choose_pieces, measure_overhead_us, piece_elements
from coppice.run.programs.rank_program import RankProgram
from coppice.schedule.files.plan_file import decode_plan, encode_plan
from coppice.schedule.forest import Forest
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule
from coppice.topology.model import Topology

PROGRAMS_KEPT = 256
"""Programs that a rank keeps; the one that was used longest ago goes first."""

FOREST = "forest"


@dataclass(frozen=True, kw_only=True)
class CallRequest:
    """What a call asks for; equal on all ranks."""

    collective: Collective  # The collective
    count: int  # M in elements
    dtype: DataType  # Type of the elements
    op: ReduceOp  # The reduction
    root: int | None  # Root rank, or None
    in_place: bool  # Input and output are one memory

    def record(self) -> dict[str, Value]:
        """Its values by name."""
        return {
            "count": self.count,
            "dtype": self.dtype.value,
            "op": self.op.value if self.collective.reduces else None,
            "root": self.root,
            "in_place": self.in_place,
        }


class _Answer(msgspec.Struct):
    """What rank 0 tells the others: an error, or how many pieces and, the first time, the plan."""

    error: str = ""
    pieces: int = 1
    plan: bytes = b""


class RankPrograms:
    """The programs of one rank on one topology.

    Args:
        engine: The group.
        topology: Its ranks are those of the group.
        algorithm: ``forest`` for the optimal planner of each collective, or a name of the catalogue.
        pieces: Pieces of every chunk, or ``auto`` for what the simulator finds best.
        cache_dir: Where plans are kept, see :func:`~coppice.run.programs.planned.cache_directory`.
        timeout_s: Longest wait for another rank while the cost of a message is measured, in seconds.
    """

    def __init__(
        self,
        engine: Engine,
        topology: Topology,
        *,
        algorithm: str,
        pieces: int | str,
        cache_dir: str | os.PathLike[str] | None,
        timeout_s: float,
    ) -> None:
        self._engine, self._topology = engine, topology
        self._algorithm, self._pieces, self._timeout_s = algorithm, pieces, timeout_s
        self._cache = PlanCache(cache_dir)
        self._programs: OrderedDict[CallRequest, RankProgram] = OrderedDict()
        self._bodies: dict[tuple[Collective, int | None], Schedule | Forest] = {}
        self._chosen: dict[tuple[Collective, int | None, int], int] = {}
        self._overhead_us = 0.0

    def known(self, request: CallRequest) -> RankProgram | None:
        """The program, if it was made before."""
        found = self._programs.get(request)
        if found is not None:
            self._programs.move_to_end(request)
        return found

    def make(self, request: CallRequest) -> RankProgram:
        """Agree on the request, and make its program; all ranks call this."""
        agree(self._engine.exchange, request.collective.value, request.record())
        if self._pieces == "auto" and not self._overhead_us:
            self._overhead_us = measure_overhead_us(self._engine, timeout_s=self._timeout_s)
        body, pieces = self._planned(request)
        self._bodies[request.collective, request.root] = body
        program = lower_rank(
            body,
            self._engine.rank,
            request.count,
            in_place=request.in_place,
            piece_elements=piece_elements(body, request.count, pieces),
        )
        if isinstance(self._engine, LearningEngine):
            self._engine.learn(program, body)
        self._programs[request] = program
        while len(self._programs) > PROGRAMS_KEPT:
            self._programs.popitem(last=False)
        return program

    def _planned(self, request: CallRequest) -> tuple[Schedule | Forest, int]:
        """Plan and pieces, as rank 0 has them."""
        mine = b""
        key = (request.collective, request.root)
        if self._engine.rank == 0:
            mine = msgspec.msgpack.encode(self._answer(request, tell=key not in self._bodies))
        answer = msgspec.msgpack.decode(self._engine.exchange(mine)[0], type=decodable(_Answer))
        if answer.error:
            raise InputError(answer.error)
        if key in self._bodies:
            return self._bodies[key], answer.pieces
        return decode_plan(zlib.decompress(answer.plan), name="the plan of rank 0").body, answer.pieces

    def _answer(self, request: CallRequest, *, tell: bool) -> _Answer:
        """What rank 0 says; it must answer, whatever happens."""
        key = (request.collective, request.root)
        try:
            if not tell:
                return _Answer(pieces=self._chosen_pieces(request, self._bodies[key]))
            made = self._plan(request)
            return _Answer(
                pieces=self._chosen_pieces(request, made.body), plan=zlib.compress(encode_plan(made), 1)
            )
        except CoppiceError as error:
            return _Answer(error=str(error))
        except Exception as error:  # noqa: BLE001  (the others wait for an answer)
            return _Answer(error=f"rank 0 cannot plan {request.collective}: {type(error).__name__}: {error}")

    def _plan(self, request: CallRequest) -> Plan:
        problem = Problem(topology=self._topology, collective=request.collective, root=request.root)
        default = self._algorithm == FOREST or request.collective is Collective.BARRIER
        name = None if default else self._algorithm
        # Messages find their way through other machines by themselves, where an algorithm asks for them.
        relayed = not default or request.collective is Collective.BARRIER

        def make() -> Plan:
            return plan(problem, algorithm=name, relay_gpus=relayed, ring=False).plan

        return self._cache.plan(problem, FOREST if default else self._algorithm, make)

    def _chosen_pieces(self, request: CallRequest, body: Schedule | Forest) -> int:
        """Pieces for the power of two at or above the size."""
        if self._pieces != "auto":
            return int(self._pieces)
        size_bytes = 1 << max(0, request.count * request.dtype.itemsize - 1).bit_length()
        key = (request.collective, request.root, size_bytes)
        if key not in self._chosen:
            self._chosen[key] = choose_pieces(body, size_bytes, self._overhead_us)
        return self._chosen[key]


def cache_directory(given: str | os.PathLike[str] | None = None) -> Path:
    """Where plans are kept: as given, or ``$COPPICE_CACHE``, ``$XDG_CACHE_HOME/coppice`` or ``~/.cache/coppice``.

    Examples:
        >>> cache_directory("/somewhere").as_posix()
        '/somewhere'
    """
    if given is not None:
        return Path(given)
    if os.environ.get("COPPICE_CACHE"):
        return Path(os.environ["COPPICE_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "coppice"


class PlanCache:
    """Plans in a directory.

    Args:
        directory: Where they are; None as :func:`cache_directory` says. It is made when something is first kept.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self.directory = cache_directory(directory) / "plans"

    def path(self, problem: Problem, algorithm: str) -> Path:
        """File of the plan of ``problem`` by ``algorithm`` made by this version."""
        from coppice.version import __version__

        fields = (
            __version__,
            problem.topology.sha256,
            problem.collective.value,
            problem.root,
            problem.weights,
            problem.demands,
            algorithm,
        )
        name = hashlib.sha256(msgspec.json.encode(fields)).hexdigest()
        return self.directory / f"{problem.collective}-{name[:32]}.json"

    def plan(self, problem: Problem, algorithm: str, make: Callable[[], Plan]) -> Plan:
        """The plan that is kept, or what ``make`` returns, which is then kept.

        Args:
            algorithm: Name of the planner and its options.
        """
        path = self.path(problem, algorithm)
        found = _read(path, problem)
        if found is not None:
            return found
        made = make()
        data = encode_plan(made)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
        except (OSError, InputError):
            return made
        return made


def _read(path: Path, problem: Problem) -> Plan | None:
    """The plan in a file, if it is one for ``problem``."""
    try:
        found = decode_plan(path.read_bytes(), name=str(path))
    except (OSError, InputError):
        return None
    theirs, root = found.problem, -1 if problem.root is None else problem.root
    same = (
        theirs.collective is problem.collective
        and (-1 if theirs.root is None else theirs.root) == root
        and theirs.topology.sha256 == problem.topology.sha256
        and theirs.weights == problem.weights
        and theirs.demands == problem.demands
    )
    return found if same else None
