"""Compile a chunk program to a plan, and to a thread-block program.

The schedule says which rank sends which chunk to whom, copied or added. Slots, channels and thread blocks are left
behind. What waits in scratch memory to be added counts from the operation that adds it. A schedule knows one value of a
chunk at a rank, the latest; a program that sends an earlier one once more is no schedule.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from time import perf_counter
from typing import Any

import numpy as np

from coppice.arguments import checked
from coppice.bounds.describe import alternatives_record
from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound, load_rates, optimum_rates
from coppice.display import Brief
from coppice.errors import InputError, UnreachableError
from coppice.language.chunk_program import ChunkProgram
from coppice.language.source import read_chunk_program
from coppice.program.dialects.thread_blocks.cutting import PATIENT
from coppice.program.dialects.thread_blocks.operations.instructions import SlotOperation
from coppice.program.dialects.thread_blocks.operations.lower import lower_operations
from coppice.program.dialects.thread_blocks.program import Program, StepOp
from coppice.program.dialects.thread_blocks.verify import verify_program
from coppice.program.memory import ProgramMemory, memory_of
from coppice.program.moves import Move, StagedTrace, check_ranks, schedule_of_moves
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Op, Schedule
from coppice.schedule.verification.report import Report
from coppice.schedule.verification.transfers import verify_schedule
from coppice.schedule.verification.verify import verify_plan
from coppice.topology.load import load
from coppice.topology.model import Topology
from coppice.topology.presets import preset
from coppice.topology.routing import Router


def schedule_of(program: ChunkProgram, topology: Topology) -> Schedule:
    """Schedule of a checked program.

    Args:
        topology: Where its ranks are; messages take default routes.

    Returns:
        Transfers without steps if an order of rows says it all; otherwise with the fewest steps.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> program = ChunkProgram("broadcast", ranks=3)
        >>> first = program.chunk(0, "input", 0)
        >>> for rank in (1, 2):
        ...     _ = first.copy(rank, "output")
        >>> schedule_of(program, preset("star", gpus=3))
        Schedule(broadcast on 'star of 3': 1 chunk, 2 transfers)
    """
    layout = program.layout()
    check_ranks(layout, topology)
    operations = program.operations()
    trace = _OperationTrace(memory_of(layout, in_place=program.in_place), operations)
    trace.run()
    schedule = schedule_of_moves(layout, topology, trace.unit_moves())
    return schedule if program.demands is None else _without_empty(schedule, program.demands)


def _without_empty(schedule: Schedule, demands: Sequence[Sequence[int]]) -> Schedule:
    """The schedule without the chunks of blocks that nobody asks for."""
    weight = np.array(demands, dtype=np.int64).reshape(-1)
    kept = weight[schedule.chunk_slot] > 0
    number = np.cumsum(kept) - 1
    return replace(
        schedule,
        slot_weight=weight,
        chunk_slot=schedule.chunk_slot[kept],
        chunk_share=schedule.chunk_share[kept],
        chunk=number[schedule.chunk].astype(np.int32),
    )


class _OperationTrace(StagedTrace):
    """Carries out operations one after the other, and notes the moves of every chunk."""

    def __init__(self, memory: ProgramMemory, operations: Sequence[SlotOperation]) -> None:
        super().__init__(memory)
        self.memory, self.operations = memory, operations

    def strange(self, actor: int) -> InputError:
        """The error for an operation that handles another value than the one of its rank."""
        msg = (
            f"{self.operations[actor].where}: expected the latest value of a chunk at its rank, found an earlier one: "
            "a plan knows one value of each chunk at a rank; send or add it before it is added to."
        )
        return InputError(msg)

    def run(self) -> None:
        """Carry out all operations."""
        for number, each in enumerate(self.operations):
            src = int(self.memory.base[each.src_buffer, each.src_rank]) + each.src_offset
            dst = int(self.memory.base[each.dst_buffer, each.dst_rank]) + each.dst_offset
            for slot in range(each.count):
                if each.src_rank == each.dst_rank:
                    self._within(number, each, src + slot, dst + slot)
                else:
                    self._across(number, each, src + slot, dst + slot)

    def _within(self, number: int, each: SlotOperation, src: int, dst: int) -> None:
        if each.adds:
            self.words[dst] = self.reduce(number, each.dst_rank, src, dst, 2 * number)
            return
        self.staged.pop(dst, None)
        if src in self.staged:
            self.staged[dst] = self.staged[src]
        self.words[dst] = self.words[src]

    def _across(self, number: int, each: SlotOperation, src: int, dst: int) -> None:
        sender, receiver, value = each.src_rank, each.dst_rank, self.words[src]
        if src in self.staged:
            self.take(number, sender, value, src)
        if self.held.get((sender, self.chunk_of(value))) != value:
            raise self.strange(number)
        move = Move(sender, receiver, Op.REDUCE if each.adds else Op.COPY, 2 * number, 2 * number + 1)
        if not each.adds:
            self.arrive(receiver, value, dst, move)
            self.words[dst] = value
            return
        here = self.words[dst]
        if dst in self.staged:
            self.take(number, receiver, here, dst)
        self.add(number, receiver, here, value, move)
        self.words[dst] = here | value


PLANNER = "language"
"""What plans of this room are planned by."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class CompiledProgram(Brief):
    """Result of compiling a chunk program."""

    source: ChunkProgram  # The program that was written down
    plan: Plan  # Which rank sends which chunk to whom, with the bound of its problem: what every verb takes
    report: Report  # Its verification
    # Thread blocks, channels and steps, for as many instances and with the protocol that the source asks for,
    # verified; None for an all-to-all with demands, which no runtime takes
    program: Program | None
    seconds: Mapping[str, float] = field(default_factory=dict)  # Seconds by stage

    @property
    def schedule(self) -> Schedule:
        """The schedule of the plan."""
        body = self.plan.schedule
        if body is None:
            raise InputError("expected a schedule, found none: compile the program again.")
        return body

    def record(self) -> dict[str, Any]:
        """The figures as JSON values; those of a plan are named as in `coppice plan --json`."""
        plan, found = self.plan, self.plan.bound
        worst = self.report.worst_link
        busbw = plan.algbw_gb_per_s * plan.problem.busbw_factor
        return {
            **plan.problem.record(),
            **({} if found is None else _bound_record(found)),
            "planner": plan.planner,
            "parameters": dict(plan.parameters),
            **load_rates(plan.problem, plan.inv_rate),
            "planned_inv_rate": str(plan.inv_rate),
            "planned_algbw_gb_per_s": float(plan.algbw_gb_per_s),
            "planned_algbw_exact": str(plan.algbw_gb_per_s),
            "planned_busbw_gb_per_s": float(busbw),
            "optimal": self.report.optimal,
            "loss": str(self.loss),
            "max_link_load": None if self.report.max_link_load is None else str(self.report.max_link_load),
            "worst_link": None if worst < 0 else plan.topology.link_name(worst),
            "verified": self.report.ok,
            "planning_seconds": sum(self.seconds.values()) - self.seconds.get("verify", 0.0),
            "seconds": sum(self.seconds.values()) - self.seconds.get("verify", 0.0),
            "verify_seconds": self.seconds.get("verify", 0.0),
            "seconds_by_stage": dict(self.seconds),
            "operation_count": self.source.num_operations,
            "operations": self.source.num_operations,
            "chunks": self.source.num_chunks,
            "transfers": self.schedule.num_transfers,
            "in_place": self.source.in_place,
            "instances": self.source.instances,
            "protocol": self.source.protocol,
            **_program_record(self.program),
        }

    @property
    def loss(self) -> Fraction:
        """Relative loss of rate against the bound (0: none)."""
        found = self.plan.bound
        return (
            Fraction(0)
            if found is None or not self.plan.inv_rate
            else 1 - found.inv_rate / self.plan.inv_rate
        )


def _bound_record(found: Bound) -> dict[str, Any]:
    """The bound, and the cut that sets it."""
    return {
        **optimum_rates(found.problem, found.inv_rate),
        **found.rates_record(),
        **alternatives_record(found),
    }


def _program_record(program: Program | None) -> dict[str, Any]:
    """The figures of thread blocks, None where there are none."""
    if program is None:
        names = ("thread_blocks", "channels", "steps", "most_steps", "steps_by_type", "max_bytes")
        return dict.fromkeys(names)
    return {
        "thread_blocks": program.most_blocks,
        "channels": program.num_channels,
        "steps": program.num_steps,
        "most_steps": program.most_steps,
        "steps_by_type": {
            StepOp(op).name.lower(): count for op, count in sorted(Counter(program.op.tolist()).items())
        },
        "max_bytes": program.max_bytes,
    }


@checked
def compile_program(
    source: Any,
    *,
    topology: Any = None,
    parameters: Mapping[str, Any] | None = None,
    relay_gpus: bool = False,
    on_stage: Callable[[str], None] = lambda _: None,
) -> CompiledProgram:
    """Compile and verify a chunk program, or a file with one.

    A file is Python that is executed, with all rights of the caller: compile only what you would run.

    Args:
        source: A :class:`ChunkProgram`, or the name of a file with one (``-`` is standard input): a name ``program``,
            which is a :class:`ChunkProgram` or a function that returns one.
        topology: Where its ranks are, as :func:`coppice.load` takes it, or a function that makes it; None is what the
            program names, or all ranks at one switch. A function ``program`` that has a parameter ``ranks`` or
            ``topology`` gets it from here.
        parameters: Arguments of the function ``program``, as values or as text.
        relay_gpus: Default routes may lead through other GPUs, where there is no other way.
        on_stage: Called with what goes on.

    Raises:
        CheckError: If the program has a race, reads what is not there, deadlocks by its hints, or ends with a wrong
            result; with file and line.
        InputError: If there is no program, or it cannot be compiled; with file and line where these are known.

    Examples:
        >>> program = ChunkProgram("all_gather", ranks=4)
        >>> for rank in range(4):
        ...     block = program.chunk(rank, "output", rank)
        ...     for step in range(1, 4):
        ...         block = block.copy((rank + step) % 4, "output")
        >>> made = compile_program(program)
        >>> made.report.ok, made.program.most_blocks, made.record()["planned_algbw_gb_per_s"]
        (True, 1, 1.3333333333333333)
    """
    seconds: dict[str, float] = {}
    start = perf_counter()

    def stage(name: str, words: str) -> None:
        nonlocal start
        now = perf_counter()
        if name:
            seconds[name] = now - start
        start = now
        on_stage(words)

    place = None if topology is None else topology() if callable(topology) else load(topology)
    stage("", "running the program")
    if isinstance(source, ChunkProgram):
        if parameters:
            raise InputError(
                "expected `parameters` with a file, found a ChunkProgram with them: leave them out."
            )
        program = source
    elif isinstance(source, str | os.PathLike):
        known = {} if place is None else {"ranks": place.num_ranks, "topology": place}
        program = read_chunk_program(source, parameters=parameters, known=known)
    else:
        raise InputError(
            f"expected a ChunkProgram or the name of a file with one, found {type(source).__name__}."
        )
    program.check()
    stage("trace", "following the chunks")
    place = place or _own_topology(program)
    schedule = schedule_of(program, place)
    _check_routes(program, place, relay_gpus=relay_gpus)
    stage("schedule", "making thread blocks")
    lowered = per_rank_program(program) if program.demands is None else None
    stage("program", "looking for the bound")
    problem = Problem(
        schedule.topology,
        program.collective,
        root=None if program.root < 0 else program.root,
        demands=program.demands,
    )
    found = bound_of(problem)
    stage("bound", "verifying the plan")
    counted = verify_schedule(schedule, demands=program.demands, relay_gpus=relay_gpus)
    counted.require_ok()
    plan = Plan(
        problem=problem,
        inv_rate=counted.inv_rate or Fraction(0),
        schedule=schedule,
        bound=found,
        planner=PLANNER,
        parameters={
            "program": program.name,
            "chunks": program.num_chunks,
            "in_place": program.in_place,
            "instances": program.instances,
            "protocol": program.protocol,
            **({"relay_gpus": True} if relay_gpus else {}),
        },
    )
    report = verify_plan(plan)
    report.require_ok()
    stage("verify", "done")
    return CompiledProgram(source=program, plan=plan, report=report, program=lowered, seconds=seconds)


def per_rank_program(program: ChunkProgram, *, fused: bool = True) -> Program:
    """Thread blocks, channels and steps of a checked program, verified with the semantics of runtimes.

    Args:
        program: The program.
        fused: Steps may receive and add, and receive and send. Otherwise sums go by way of scratch memory.

    Raises:
        CheckError: If what its hints ask for cannot be had or deadlocks; with file and line.
        InputError: If its hints contradict each other.
    """
    made = lower_operations(
        program.operations(),
        program.layout(),
        in_place=program.in_place,
        instances=program.instances,
        fused=fused,
        name=program.name,
        protocol=program.protocol,
    )
    verify_program(made, buffers=PATIENT).require_ok()
    return made


def _check_routes(program: ChunkProgram, topology: Topology, *, relay_gpus: bool) -> None:
    """Refuse a message that no path leads along."""
    first = {
        (each.src_rank, each.dst_rank): each.where
        for each in reversed(program.operations())
        if each.src_rank != each.dst_rank
    }
    pairs = np.array(sorted(first, key=lambda pair: pair[::-1]), dtype=np.int64).reshape(-1, 2)
    router = Router(topology, relay_gpus=relay_gpus)
    try:
        router.paths(pairs[:, 0], pairs[:, 1], np.zeros(len(pairs), dtype=np.int64))
    except UnreachableError:
        for pair in pairs:
            try:
                router.paths(pair[:1], pair[1:], np.zeros(1, dtype=np.int64))
            except UnreachableError as error:
                src, dst = (int(rank) for rank in pair)
                raise UnreachableError(
                    f"{first[src, dst]}: the message from rank {src} to rank {dst} has no way: {error}"
                ) from None


def _own_topology(program: ChunkProgram) -> Topology:
    if program.topology is None:
        return preset("star", gpus=program.ranks)
    return load(program.topology)
