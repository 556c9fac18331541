"""Programs of calls: ranks agree, rank 0 chooses and plans once, and every rank lowers and caches its program.

Files are plan files (:mod:`coppice.schedule.files.plan_file`) with their own checksum. One that is damaged, of another
version or for something else is made again; a directory that cannot be written costs time, not the run.

The number of pieces of a chunk (pipelining) follows from the measured cost of a message and the simulated time.

Rules that select a put/signal algorithm, or the library's own, by collective and size. `coppice tune export TABLE --to
put-signal-rules` writes them; ``COPPICE_TUNING`` names the file for the torch backend. A size between two measured ones
belongs to the rule that `coppice tune fit` gave it: the ranges of two rules meet at the geometric mean of the sizes
where they were measured. What no rule names is left to the library: sizes further out than half a step, other
collectives, other numbers of ranks or nodes.
"""

from __future__ import annotations

import hashlib
import math
import os
import statistics
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.decoding import decodable, decode_json
from coppice.errors import CoppiceError, InputError
from coppice.files import file_name, read_bytes, write_atomically
from coppice.planners.planning import plan
from coppice.planners.replanning import replan_after_faults
from coppice.program.dialects.rank.lower import lower_rank, ring_program, schedule_of
from coppice.program.dialects.rank.program import RankProgram
from coppice.run.communicator.groups import Value, agree
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.engine import Engine, LearningEngine
from coppice.schedule.files.plan_file import decode_plan, encode_plan, read_plan
from coppice.schedule.files.set_file import PlanSet, is_plan_set, read_plan_set
from coppice.schedule.forest import Forest
from coppice.schedule.lower import chunk_bounds
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.verify import verify_plan
from coppice.topology.model import Topology

TUNING_VARIABLE = "COPPICE_TUNING"
"""Environment variable that names the file."""

_FORMAT = "coppice-put-signal-rules"


class AlgorithmRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Algorithm for a range of sizes."""

    collective: Collective  # The collective
    nodes: int  # Hosts that the group spans
    ranks: int  # Its ranks
    first_bytes: int  # Least M, included
    last_bytes: int  # Largest M, included
    algorithm: str  # `forest` or a name of the catalogue


class AlgorithmRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules of a file."""

    format: str = _FORMAT  # Always the same
    version: int = 1  # 1
    notes: tuple[str, ...] = ()  # Where it comes from, in words
    # The rules; ranges of one collective, number of nodes and of ranks do not overlap
    rules: tuple[AlgorithmRule, ...] = ()

    @property
    def sha256(self) -> str:
        """Hash of the rules, independent of formatting."""
        return hashlib.sha256(msgspec.json.encode(self.rules)).hexdigest()

    def choice(self, collective: Collective, *, nodes: int, ranks: int, size_bytes: int) -> str | None:
        """Algorithm of a call, None for the library's own.

        Examples:
            >>> rule = AlgorithmRule(
            ...     collective="all_reduce", nodes=1, ranks=4, first_bytes=100, last_bytes=200, algorithm="ring"
            ... )
            >>> rules = AlgorithmRules(rules=(rule,))
            >>> [rules.choice(Collective.ALL_REDUCE, nodes=1, ranks=4, size_bytes=size) for size in (99, 100, 201)]
            [None, 'ring', None]
        """
        return next(
            (
                rule.algorithm
                for rule in self.rules
                if (rule.collective, rule.nodes, rule.ranks) == (collective, nodes, ranks)
                and rule.first_bytes <= size_bytes <= rule.last_bytes
            ),
            None,
        )


def encode_rules(rules: AlgorithmRules) -> str:
    """Encode rules."""
    return msgspec.json.format(msgspec.json.encode(rules), indent=2).decode() + "\n"


def read_rules(path: str | os.PathLike[str]) -> AlgorithmRules:
    """Read rules from a file."""
    data = read_bytes(path, hint="give a file of `coppice tune export --to put-signal-rules`")
    return decode_rules(data, file=file_name(path))


def decode_rules(data: bytes, *, file: str) -> AlgorithmRules:
    """Decode rules."""
    words = f"{file} holds no rules for puts and signals"
    found = decode_json(
        data, AlgorithmRules, lambda fault: f"{words} ({fault}): `coppice tune export` writes them."
    )
    if (found.format, found.version) != (_FORMAT, 1):
        raise InputError(
            f"expected {_FORMAT} of version 1 in {file}, found {found.format} of version {found.version}."
        )
    ordered = sorted(
        found.rules, key=lambda rule: (rule.collective, rule.nodes, rule.ranks, rule.first_bytes)
    )
    for rule in ordered:
        if not 0 <= rule.first_bytes <= rule.last_bytes or not rule.algorithm:
            raise InputError(
                f"expected sizes from a first to a last and an algorithm in {file}, found {rule}."
            )
    for before, after in pairwise(ordered):
        alike = (before.collective, before.nodes, before.ranks) == (
            after.collective,
            after.nodes,
            after.ranks,
        )
        if alike and after.first_bytes <= before.last_bytes:
            raise InputError(
                f"expected ranges that do not overlap in {file}, found {before} and {after}: keep one of them."
            )
    return found


MOST_TRANSFERS = 2_000_000
"""Pieces are tried while the simulated transfers, pieces counted, stay below this."""
_MOST_PIECES = 256
_PATIENCE = 2
_STEPS, _WIDTH, _ROUNDS = 32, 9, 7
_LEAST_US = 0.05
_LEAST_PIECE_BYTES = 32 * 1024
_IN_THE_WAY = 0.5
_HARDLY_MORE = 1.05
_ROOM = 0.75


def choose_pieces(plan: Schedule | Forest, size_bytes: int, overhead_us: float) -> int:
    """Fastest number of sub-chunks per chunk.

    The time is the simulated one, but not less than the busiest rank needs to post its messages. Posting is hidden
    behind the transfers only while it is short beside them: half of it, times its share of the time, is added. Tried
    are 1, 2, 4, .. until that has grown twice in a row; of equal times the fewest pieces count. Then chunks are cut
    further, by two or by one and a half, down to pieces of 32 KiB, as long as the transfers take hardly more time and
    posting fits into three quarters of it: what networks hold back in their queues delays whole pieces, and MPI
    libraries wait for the receiver before they send a longer one, which the simulator does not know.

    Args:
        size_bytes: M in bytes.
        overhead_us: What a message costs a rank beside its time on the links.

    Examples:
        A broadcast along a ring gains from pieces, but not when it is small:

        >>> from coppice.bounds.problem import Problem
        >>> from coppice.planners.planning import plan
        >>> from coppice.topology.presets import preset
        >>> made = plan(Problem(topology=preset("ring", gpus=8), collective=Collective.BROADCAST, root=0)).plan
        >>> choose_pieces(made.body, 1 << 10, 5.0), choose_pieces(made.body, 1 << 30, 5.0) > 8
        (1, True)
    """
    from coppice.simulation.models import Model
    from coppice.simulation.simulator import simulate

    schedule = schedule_of(plan)
    if not schedule.num_transfers or not size_bytes or schedule.collective is Collective.BARRIER:
        return 1
    if (schedule.step >= 0).any() and len(schedule.after):
        return 1
    ends = np.concatenate([schedule.src, schedule.dst])
    posted_us = int(np.bincount(ends).max()) * overhead_us
    most = max(1, min(_MOST_PIECES, MOST_TRANSFERS // schedule.num_transfers))
    model = Model(overhead_us=overhead_us)

    def moving_us(pieces: int) -> float:
        return simulate(schedule, size_bytes, model=model, pieces=pieces).time_us

    best, taken, least, last, worse, pieces = 1, math.inf, math.inf, math.inf, 0, 1
    while pieces <= most and worse < _PATIENCE and pieces * posted_us < least:
        time = max(moving_us(pieces), pieces * posted_us)
        found = time + _IN_THE_WAY * (pieces * posted_us) ** 2 / time
        worse = worse + 1 if found >= last else 0
        if found < least:
            best, taken, least = pieces, time, found
        last, pieces = found, 2 * pieces
    _, lengths = chunk_bounds(schedule, size_bytes)
    longest = int(lengths.max())

    def fits(pieces: int) -> bool:
        return (
            best < pieces <= most
            and longest >= pieces * _LEAST_PIECE_BYTES
            and pieces * posted_us <= _ROOM * taken
            and moving_us(pieces) <= _HARDLY_MORE * taken
        )

    while further := next(filter(fits, (2 * best, 3 * best // 2)), 0):
        best = further
    return best


def piece_elements(plan: Schedule | Forest, count: int, pieces: int) -> int | None:
    """Largest sub-chunk in elements if the largest chunk is cut into ``pieces``; None if that is 1."""
    if pieces <= 1:
        return None
    _, length = chunk_bounds(schedule_of(plan), count)
    longest = int(length.max()) if len(length) else 0
    return max(1, -(-longest // pieces))


def measure_overhead_us(engine: Engine, *, timeout_s: float) -> float:
    """Measure the cost of an additional message per step in microseconds, equal on all ranks.

    Every rank sends messages of one element to the next one, one at a time and then several at a time. The difference
    between the medians of the rounds counts, and of all ranks the median. Ranks that share cores keep each other
    waiting, and do so in a collective. It is at least a fifth of what a step with one message takes: on busy cores the
    difference drowns in noise, and a cost of nothing would cut plans to dust. An engine is measured once: what runs on
    it later is cut alike, whoever asks.
    """
    if engine.ranks == 1:
        return _LEAST_US
    if (known := _MEASURED_US.get(engine)) is not None:
        return known
    narrow, wide = (ring_program(engine.rank, engine.ranks, _STEPS, width) for width in (1, _WIDTH))
    empty = np.zeros(0, dtype=np.uint8)

    def seconds(program: RankProgram) -> float:
        begin = time.perf_counter()
        engine.run(program, empty, empty, dtype=DataType.UINT8, op=ReduceOp.SUM, timeout_s=timeout_s)
        return time.perf_counter() - begin

    seconds(wide)  # connections are made
    alone = statistics.median(seconds(narrow) for _ in range(_ROUNDS)) * 1e6
    together = statistics.median(seconds(wide) for _ in range(_ROUNDS)) * 1e6
    own = max(_LEAST_US, (together - alone) / (_STEPS * (_WIDTH - 1)), alone / _STEPS / 5)
    answers = engine.exchange(msgspec.json.encode(own))
    found = statistics.median(float(msgspec.json.decode(answer)) for answer in answers)
    _MEASURED_US[engine] = found
    return found


_MEASURED_US: WeakKeyDictionary[Engine, float] = WeakKeyDictionary()

PROGRAMS_KEPT = 256
"""Programs that a rank keeps; the one that was used longest ago goes first."""

FOREST = "forest"


@dataclass(frozen=True, kw_only=True)
class CallRequest:
    """Arguments of a call; equal on all ranks."""

    collective: Collective  # The collective
    count: int  # M in elements
    dtype: DataType  # Type of the elements
    op: ReduceOp  # The reduction
    root: int | None  # Root rank, or None
    in_place: bool  # Input and output are one memory

    def record(self) -> dict[str, Value]:
        """The arguments by name."""
        return {
            "count": self.count,
            "dtype": self.dtype.value,
            "op": self.op.value if self.collective.reduces else None,
            "root": self.root,
            "in_place": self.in_place,
        }


_PlanKey = tuple[Collective, int | None, int]
"""Collective, root, and number of the plan."""


class _Answer(msgspec.Struct):
    """What rank 0 tells the others: an error, or how many pieces, which plan and, the first time, the plan."""

    error: str = ""
    pieces: int = 1
    simulated_us: float = 0.0  # What the call takes by the simulation; 0 where nobody asks
    number: int = 0  # Of the plans of one collective, which a set has several of
    plan: bytes = b""


class RankPrograms:
    """Cached programs of one rank on one topology.

    Args:
        engine: The group.
        topology: Its ranks are those of the group.
        algorithm: ``forest`` for the optimal planner of each collective, a name of the catalogue, a plan file, or a set
            of plans, of which the one for the size of the message is taken.
        pieces: Pieces of every chunk, or ``auto`` for what the simulator finds best.
        cache_dir: Where plans are kept, see :func:`~coppice.run.planned.cache_directory`.
        timeout_s: Longest wait for another rank while the cost of a message is measured, in seconds.
        timed: Simulate every call that is planned, too (:meth:`simulated_s`).
        whole: Programs of the same ranks on the network before its faults: their trees are mended, as
            :func:`coppice.replan` does it, instead of planning from nothing.
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
        timed: bool = False,
        whole: RankPrograms | None = None,
    ) -> None:
        self._engine, self._topology = engine, topology
        self._timed, self._whole = timed, whole
        self._simulated_us: dict[CallRequest, float] = {}
        self._algorithm, self._pieces, self._timeout_s = algorithm, pieces, timeout_s
        self._cache = PlanCache(cache_dir)
        self._programs: OrderedDict[CallRequest, RankProgram] = OrderedDict()
        self._bodies: dict[_PlanKey, Schedule | Forest] = {}
        self._chosen: dict[tuple[_PlanKey, int], int] = {}
        self._set: PlanSet | None = None  # Of rank 0, once it is read
        self._overhead_us = 0.0

    def known(self, request: CallRequest) -> RankProgram | None:
        """Cached program, if any."""
        found = self._programs.get(request)
        if found is not None:
            self._programs.move_to_end(request)
        return found

    def make(self, request: CallRequest) -> RankProgram:
        """Agree on the request, and build its program; collective over the ranks."""
        agree(self._engine.exchange, request.collective.value, request.record())
        if self._pieces == "auto" and not self._overhead_us:
            self._overhead_us = measure_overhead_us(self._engine, timeout_s=self._timeout_s)
        body, pieces, self._simulated_us[request] = self._planned(request)
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
            del self._simulated_us[self._programs.popitem(last=False)[0]]
        return program

    def simulated_s(self, program: RankProgram) -> float:
        """Simulated time of a program in seconds; 0 where calls are not simulated, or the program is gone."""
        for request, found in reversed(self._programs.items()):
            if found is program:
                return self._simulated_us[request] / 1e6
        return 0.0

    def _planned(self, request: CallRequest) -> tuple[Schedule | Forest, int, float]:
        """Plan, pieces and simulated time, as rank 0 has them."""
        mine = b""
        if self._engine.rank == 0:
            mine = msgspec.msgpack.encode(self._answer(request))
        answer = msgspec.msgpack.decode(self._engine.exchange(mine)[0], type=decodable(_Answer))
        if answer.error:
            raise InputError(answer.error)
        key = (request.collective, request.root, answer.number)
        if key not in self._bodies:
            told = decode_plan(zlib.decompress(answer.plan), name="the plan of rank 0")
            self._bodies[key] = told.body
        return self._bodies[key], answer.pieces, answer.simulated_us

    def _answer(self, request: CallRequest) -> _Answer:
        """What rank 0 says; it must answer, whatever happens."""
        try:
            number = self._number(request)
            key = (request.collective, request.root, number)
            made = None if key in self._bodies else self.plan_for(request, number)
            body = self._bodies[key] if made is None else made.body
            pieces = self._chosen_pieces(request, key, body)
            return _Answer(
                pieces=pieces,
                simulated_us=self._simulated(request, body, pieces) if self._timed else 0.0,
                number=number,
                plan=b"" if made is None else zlib.compress(encode_plan(made), 1),
            )
        except CoppiceError as error:
            return _Answer(error=str(error))
        except Exception as error:  # noqa: BLE001  (the others wait for an answer)
            return _Answer(error=f"rank 0 cannot plan {request.collective}: {type(error).__name__}: {error}")

    def _number(self, request: CallRequest) -> int:
        """Which plan of a set is for the size of a call; 0 where there is no set."""
        if request.collective is Collective.BARRIER or not is_plan_set(self._algorithm):
            return 0
        if self._set is None:
            self._set = read_plan_set(self._algorithm)
        return self._set.plans.index(self._set.at(request.count * request.dtype.itemsize))

    def plan_for(self, request: CallRequest, number: int) -> Plan:
        """Plan of a call: of a file, of the cache, mended from that of the network before its faults, or made.

        Args:
            request: The call.
            number: Which plan of a set it is; 0 where there is no set.
        """
        problem = Problem(topology=self._topology, collective=request.collective, root=request.root)
        if self._set is not None and request.collective is not Collective.BARRIER:
            return _verified(self._set.plans[number], problem, self._algorithm)
        if is_plan_file(self._algorithm) and request.collective is not Collective.BARRIER:
            return plan_in_file(self._algorithm, problem)
        default = self._algorithm == FOREST or request.collective is Collective.BARRIER
        name = None if default else self._algorithm
        # Messages find their way through other machines by themselves, where an algorithm asks for them.
        relayed = not default or request.collective is Collective.BARRIER

        def make() -> Plan:
            return plan(problem, algorithm=name, relay_gpus=relayed, ring=False).plan

        if self._whole is not None and name is None and self._whole.is_before(self._topology):
            whole = self._whole.plan_for(request, number)
            if whole.forest is not None:
                return self._cache.plan(
                    problem,
                    f"{FOREST} of {whole.topology.sha256}",
                    lambda: replan_after_faults(whole, self._topology).plan,
                )
        return self._cache.plan(problem, FOREST if default else self._algorithm, make)

    def is_before(self, now: Topology) -> bool:
        """Whether these are programs of the ranks of a network under the names that they have there."""
        return [now.node_ids[v] for v in now.rank_nodes] == [
            self._topology.node_ids[v] for v in self._topology.rank_nodes
        ]

    def _simulated(self, request: CallRequest, body: Schedule | Forest, pieces: int) -> float:
        """Simulated time of a call in microseconds."""
        from coppice.simulation.models import Model
        from coppice.simulation.simulator import simulate

        size_bytes = request.count * request.dtype.itemsize
        if not size_bytes or request.collective is Collective.BARRIER:
            return 0.0
        model = Model(overhead_us=self._overhead_us or _LEAST_US)
        return simulate(schedule_of(body), size_bytes, model=model, pieces=pieces).time_us

    def _chosen_pieces(self, request: CallRequest, plan: _PlanKey, body: Schedule | Forest) -> int:
        """Pieces for the power of two at or above the size."""
        if self._pieces != "auto":
            return int(self._pieces)
        size_bytes = 1 << max(0, request.count * request.dtype.itemsize - 1).bit_length()
        key = (plan, size_bytes)
        if key not in self._chosen:
            self._chosen[key] = choose_pieces(body, size_bytes, self._overhead_us)
        return self._chosen[key]


def is_plan_file(algorithm: str | None) -> bool:
    """Whether an algorithm is the name of a plan file, or of a set of plans.

    Examples:
        >>> is_plan_file("plan.json"), is_plan_file("forest"), is_plan_file(None)
        (True, False, False)
    """
    return algorithm is not None and (algorithm.endswith(".json") or is_plan_set(algorithm))


def topology_in_file(file: str) -> Topology:
    """The topology of a plan file, or of a set of plans."""
    return read_plan_set(file).topology if is_plan_set(file) else read_plan(file).topology


def plan_in_file(file: str, problem: Problem) -> Plan:
    """Read the plan of a problem from a file, and verify it.

    Raises:
        InputError: If it is the plan of another problem.
        CheckError: If it does not do what it claims.
    """
    return _verified(read_plan(file), problem, file)


def _verified(found: Plan, problem: Problem, file: str) -> Plan:
    """The plan, if it is one of the problem and does what it claims."""
    if not _solves(found, problem):
        raise InputError(
            f"expected a plan of {problem.collective} on {problem.topology.name}, found another one in {file}: "
            "plan this collective on this topology."
        )
    verify_plan(found).require_ok()
    return found


def cache_directory(given: str | os.PathLike[str] | None = None) -> Path:
    """Directory of cached plans: as given, or ``$COPPICE_CACHE``, ``$XDG_CACHE_HOME/coppice`` or ``~/.cache/coppice``.

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
    """Plans cached in a directory.

    Args:
        directory: Where they are; None as :func:`cache_directory` says. It is made when something is first kept.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self.directory = cache_directory(directory) / "plans"

    def path(self, problem: Problem, algorithm: str) -> Path:
        """File of the plan of ``problem`` by ``algorithm`` in this version."""
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
        """Cached plan, or the result of ``make``, which is then stored.

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
    return found if _solves(found, problem) else None


def _solves(plan: Plan, problem: Problem) -> bool:
    """Whether a plan is one of a problem."""
    theirs, root = plan.problem, -1 if problem.root is None else problem.root
    return (
        theirs.collective is problem.collective
        and (-1 if theirs.root is None else theirs.root) == root
        and theirs.topology.sha256 == problem.topology.sha256
        and theirs.weights == problem.weights
        and theirs.demands == problem.demands
    )
