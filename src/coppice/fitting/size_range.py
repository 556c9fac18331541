"""Find the size range in which a plan beats the library's default, so that a runtime uses its file there.

Both sides are simulated with one model of time, the default one unless another is asked for. The plan runs as its file
says: with its protocol, cut into as many passes as the runtime makes, since a chunk that does not fit into the buffer
of a connection is sent in several, and no faster than its busiest thread block can send. The library may choose ring or
tree and any protocol, with the best number of pieces, at every size anew. That is a model, and leans towards the
library.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import log

import numpy as np

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.choice import from_catalogue
from coppice.program.dialects.thread_blocks.cutting import NVIDIA
from coppice.program.dialects.thread_blocks.program import Program
from coppice.schedule.forest import Forest
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule
from coppice.simulation.channels import num_boxes, protocol
from coppice.simulation.models import DEFAULT_MODEL, Model, model_of, protocol_text
from coppice.simulation.simulator import fastest
from coppice.topology.generation import generation_of
from coppice.topology.model import Topology

ModelChoice = Model | str | os.PathLike[str]
"""A model of time, or its name or file, as :func:`~coppice.simulation.models.model_of` takes it."""

MODEL_KINDS = (Model, str, os.PathLike)
"""Its types, as ``isinstance`` takes them."""

LADDER = tuple(4**exponent for exponent in range(5, 17))
"""Sizes at which both sides are simulated, 1 KiB to 4 GiB; where they change places, one size in between as well."""

MOST_RANKS = 128
"""Up to this many ranks the range is found by itself: more take minutes to simulate."""

PASS_BYTES: Mapping[str, int] = {name: NVIDIA.pass_bytes(name) for name in ("Simple", "LL", "LL128")}
"""Bytes of a chunk that one pass carries with the library's buffers as they come."""

MOST_PIECES = 64
"""Pieces that the library's chunks are cut into at most."""

RIVALS: Mapping[Collective, tuple[tuple[str, ...], ...]] = {
    Collective.ALL_GATHER: (("nccl-ring", "ring"),),
    Collective.REDUCE_SCATTER: (("nccl-ring", "ring"),),
    Collective.ALL_REDUCE: (("nccl-ring", "ring"), ("nccl-tree", "double-binary-tree")),
    Collective.BROADCAST: (("nccl-ring", "chain"),),
    Collective.REDUCE: (("nccl-ring", "chain"),),
    Collective.ALL_TO_ALL: (("linear",),),
    Collective.GATHER: (("linear",),),
    Collective.SCATTER: (("linear-nb",),),
}
"""What the library does: of each group the first algorithm of the catalogue that the topology takes."""


@dataclass(frozen=True, kw_only=True)
class Matchup:
    """Simulated times of the plan and of the library's best algorithm at one size."""

    size_bytes: int  # M
    plan_us: float  # Time of the plan
    rival_us: float  # Time of the library's fastest
    rival: str  # Its algorithm and protocol, such as `nccl-ring with LL128`

    @property
    def gain(self) -> float:
        """Speed-up of the plan over the library."""
        return self.rival_us / self.plan_us

    @property
    def won(self) -> bool:
        """Whether the plan is faster."""
        return self.gain > 1


@dataclass(frozen=True, kw_only=True)
class WinningRange:
    """Size range in which the plan is to be used."""

    min_bytes: int  # Smallest size of the file: 0 where the plan wins at the smallest that was simulated
    # Largest size; where it wins at the largest that was simulated, that of the program (None: no limit)
    max_bytes: int | None
    matchups: tuple[Matchup, ...]  # What was simulated, by size
    model: Model = DEFAULT_MODEL  # The model of time behind them

    @property
    def inside(self) -> tuple[Matchup, ...]:
        """Matchups within the range."""
        high = self.matchups[-1].size_bytes if self.max_bytes is None else self.max_bytes
        return tuple(matchup for matchup in self.matchups if self.min_bytes <= matchup.size_bytes <= high)

    @property
    def below(self) -> Matchup | None:
        """Last matchup below the range, which the plan loses."""
        return max(
            (matchup for matchup in self.matchups if matchup.size_bytes < self.min_bytes),
            key=lambda matchup: matchup.size_bytes,
            default=None,
        )

    @property
    def above(self) -> Matchup | None:
        """First matchup above the range, which the plan loses."""
        if self.max_bytes is None:
            return None
        return next((matchup for matchup in self.matchups if matchup.size_bytes > self.max_bytes), None)


def winning_range(
    plan: Plan,
    program: Program,  # Its program; the range holds no size above its `max_bytes`
    *,
    ladder: Sequence[int] = LADDER,
    # What messages of both sides cost, a model or its name or file
    # (:func:`~coppice.simulation.models.model_of`)
    model: ModelChoice | None = None,
    on_stage: Callable[[str], None] | None = None,
) -> WinningRange | None:
    """Interval of sizes with the largest gain of a plan over the library.

    A file has one range: where the plan wins at small and at large sizes but not quite in between, the range holds
    them all as long as that gains more than either part.

    Returns:
        The range; None where the plan wins nowhere.

    Examples:
        >>> from coppice.planners.planning import plan
        >>> from coppice.program.dialects.thread_blocks.lower import lower_to_program
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(topology=preset("dgx-a100"), collective=Collective.ALL_GATHER)
        >>> made = plan(problem, trees=1, ring=False).plan
        >>> program = lower_to_program(made.body, channels=4, instances=4)
        >>> found = winning_range(made, program, ladder=(2**12, 2**20, 2**28))
        >>> found.min_bytes, found.max_bytes, [matchup.won for matchup in found.matchups if matchup.size_bytes < 2**21]
        (262144, None, [False, False, False, True, True])
    """
    rivals, assumed = _rivals(plan.problem), model_of(model)
    matchups: dict[int, Matchup] = {}
    most = program.max_bytes
    ladder = [size for size in ladder if most is None or size <= most]

    def matchup(size: int) -> Matchup:
        if size not in matchups:
            if on_stage is not None:
                on_stage(f"comparing with the library at {size:,} bytes")
            own = _own_us(plan, program, size, assumed)
            least = min(_library_us(name, body, size, assumed) for name, body in rivals)
            matchups[size] = Matchup(size_bytes=size, plan_us=own, rival_us=least[0], rival=least[1])
        return matchups[size]

    for size in ladder:
        matchup(size)
    run = _best_run([matchup(size) for size in ladder])
    if not run:
        return None
    low, high = run[0].size_bytes, run[-1].size_bytes
    place = {size: number for number, size in enumerate(ladder)}
    if place[low]:
        low = _edge(matchup, ladder[place[low] - 1], low)
    if place[high] + 1 < len(ladder):
        high = _edge(matchup, ladder[place[high] + 1], high)
    return WinningRange(
        min_bytes=low if place.get(low) != 0 else 0,
        max_bytes=most if high == ladder[-1] else high,
        matchups=tuple(matchups[size] for size in sorted(matchups)),
        model=assumed,
    )


def _edge(matchup: Callable[[int], Matchup], lost: int, won: int) -> int:
    """The size nearest to ``lost`` at which the plan wins, to a factor of two."""
    while max(lost, won) > 2 * min(lost, won):
        middle = 2 ** ((lost.bit_length() + won.bit_length()) // 2 - 1)
        if not min(lost, won) < middle < max(lost, won):
            break
        lost, won = (lost, middle) if matchup(middle).won else (middle, won)
    return won


def _best_run(matchups: Sequence[Matchup]) -> list[Matchup]:
    """The matchups in a row that gain most in all, by the sum of the logarithms of their gains."""
    best: list[Matchup] = []
    run: list[Matchup] = []
    most = total = 0.0
    for each in matchups:
        if total <= 0:
            run, total = [], 0.0
        run, total = [*run, each], total + log(each.gain)
        if total > most:
            best, most = run, total
    return best


def _rivals(problem: Problem) -> list[tuple[str, Schedule | Forest]]:
    """What the library has."""
    found: list[tuple[str, Schedule | Forest]] = []
    refusals: list[str] = []
    for names in RIVALS[problem.collective]:
        for name in names:
            try:
                found.append((name, from_catalogue(problem, name).body))
            except InputError as error:
                refusals.append(str(error))
                continue
            break
    if not found:
        raise InputError(
            f"expected a ring or tree to compare with, found none that this topology takes: {refusals[0]}"
        )
    return found


def _library_us(name: str, body: Schedule | Forest, size: int, model: Model) -> tuple[float, str]:
    """Time of an algorithm of the library with its fastest protocol, and both names."""
    found = fastest(body, size, model=model, most=MOST_PIECES, keep_hops=False)
    protocol_words = "" if found.protocol is None else f" with {protocol_text(found.protocol)}"
    return found.time_us, f"{name}{protocol_words}"


def _own_us(plan: Plan, program: Program, size: int, model: Model) -> float:
    """Time of the plan as its file is run: in passes, and no faster than its busiest thread block can send.

    A model without protocols says what messages cost whatever the protocol of the file.
    """
    name = program.protocol
    chunk = -(-size // program.num_chunks)
    passes = max(1, -(-chunk // PASS_BYTES[name]))
    if model.protocols:
        model = replace(model, protocols=(name.lower(),))
    time_us = fastest(plan.body, size, model=model, pieces=passes, keep_hops=False).time_us
    carried = block_gb_per_s(plan.topology, name) if model.protocols else None
    if carried is None:
        return time_us
    share = float(busiest_gb_per_s(program, Fraction(1)))
    return max(time_us, protocol(name).start_us + size * share / carried / 1000)


def model_name(model: ModelChoice | None) -> str:
    """Name of a model; None is the default.

    >>> model_name(None)
    'nccl-2.30'
    """
    return model_of(model).name


def busiest_gb_per_s(program: Program, algbw_gb_per_s: Fraction) -> Fraction:
    """Rate in GB/s of the busiest thread block when the program runs at a rate.

    Args:
        algbw_gb_per_s: M / time that it is to reach.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.planning import plan
        >>> from coppice.program.dialects.thread_blocks.lower import lower_to_program
        >>> from coppice.topology.presets import preset
        >>> made = plan(Problem(topology=preset("ring", gpus=4), collective=Collective.ALL_GATHER), ring=False).plan
        >>> busiest_gb_per_s(lower_to_program(made.body, channels=1), made.algbw_gb_per_s)
        Fraction(1, 1)
    """
    moved = np.bincount(program.step_block[program.sends], weights=program.count[program.sends], minlength=1)
    return Fraction(int(moved.max()), program.num_chunks) * algbw_gb_per_s


def block_gb_per_s(topology: Topology, protocol_name: str) -> float | None:
    """Data rate of one thread block in GB/s, where the library's tables list the GPUs.

    Args:
        topology: Whose GPUs; their generation is told by what it records of them, or by its name.
        protocol_name: ``Simple``, ``LL`` or ``LL128``.
    """
    try:
        return protocol(protocol_name).channel_limit(generation_of(topology), num_boxes(topology))
    except InputError:
        return None
