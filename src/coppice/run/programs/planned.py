"""Programs of calls: ranks agree on a call, rank 0 plans it once, and every rank lowers and keeps its own program."""

from __future__ import annotations

import os
import zlib
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import CoppiceError, InputError
from coppice.planners.planning import plan
from coppice.run.communicator.agreement import Value, agree
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.engine import Engine
from coppice.run.programs.lower import lower_rank
from coppice.run.programs.pieces import choose_pieces, measure_overhead_us, piece_elements
from coppice.run.programs.plan_cache import PlanCache
from coppice.run.programs.rank_program import RankProgram
from coppice.schedule.files.plan_file import decode_plan, encode_plan
from coppice.schedule.forest import Forest
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule
from coppice.topology.model import Topology

__all__ = ["CallRequest", "RankPrograms"]

PROGRAMS_KEPT = 256
"""Programs that a rank keeps; the one that was used longest ago goes first."""
FOREST = "forest"


@dataclass(frozen=True, kw_only=True)
class CallRequest:
    """What a call asks for; equal on all ranks.

    Attributes:
        collective: The collective.
        count: M in elements.
        dtype: Type of the elements.
        op: The reduction.
        root: Root rank, or None.
        in_place: Input and output are one memory.
    """

    collective: Collective
    count: int
    dtype: DataType
    op: ReduceOp
    root: int | None
    in_place: bool

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
        cache_dir: Where plans are kept, see :func:`~coppice.run.programs.plan_cache.cache_directory`.
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
        """Agree on the request, and make its program; all ranks call this.

        Raises:
            InputError: On every rank, if it cannot be planned.
            RunError: On every rank, if ranks ask for different things; or if a rank is gone.
        """
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
        answer = msgspec.msgpack.decode(self._engine.exchange(mine)[0], type=_Answer)
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
