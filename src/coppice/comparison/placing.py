"""Map parallel axes (data, tensor, pipeline) to devices, and choose a reduction program along each.

After P2 (N. Xie, T. Norman, D. Grewe, D. Vytiniotis, MLSys 2022): all placements of the axes on the hierarchy of a
cluster, and for each all programs of a few collectives that reduce its groups. A program is timed call by call: each
call is simulated with all groups at once, which share the network, and calls follow each other. Beside it stands a
bound that no all-reduce of all these groups can beat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.arguments import checked
from coppice.comparison.placed import PlacedAxes, PlacementResult, Reduced, TimedProgram, verified_groups
from coppice.errors import InputError, UnreachableError
from coppice.planners.algorithms.parts.boxes import boxes, hop_costs, short_tour
from coppice.planners.synthesis.p2.group_bounds import groups_bound
from coppice.planners.synthesis.p2.lowering import (
    block_counts,
    call_alone,
    chunks_of,
    schedule_of_all,
    shares_of,
)
from coppice.planners.synthesis.p2.placements import (
    AxisPlacement,
    default_placement,
    parse_counts,
    placements,
)
from coppice.planners.synthesis.p2.reductions import ReductionCall, programs
from coppice.simulation.models import Model, model_of
from coppice.simulation.simulator import fastest
from coppice.text import size_of
from coppice.topology.load import load
from coppice.topology.model import Topology

_FEW_ROUNDS, _MORE_ROUNDS = 6, 12
"""A call of more rounds than the second number is simulated for both numbers, and goes on as from one to the other."""

_MOST_DEPTH = 4

_MOST_TOURED = 128
"""GPUs of one box that are put in the order of a short tour."""


def hierarchy_of(topology: Topology) -> tuple[dict[str, int], tuple[int, ...]]:
    """Levels of a topology (boxes and GPUs), and the ranks in their order.

    GPUs that are linked directly come in the order of a short tour, so that neighbours are linked.

    Where boxes differ, or there is one, the only level is that of the GPUs.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> hierarchy_of(preset("dgx-a100", boxes=2))
        ({'node': 2, 'gpu': 8}, (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
    """
    found = boxes(topology)
    ranks = tuple(rank for box in found for rank in box)
    if len(found) == 1 and 1 < len(ranks) <= _MOST_TOURED:
        ranks = tuple(short_tour(hop_costs(topology, range(len(ranks)))))
    if len(found) == 1 or len({len(box) for box in found}) != 1 or len(found[0]) == 1:
        return {"gpu": len(ranks)}, ranks if len(found) == 1 else tuple(range(len(ranks)))
    return {"node": len(found), "gpu": len(found[0])}, ranks


def _asked(
    reduce: str | Sequence[str], axes: Mapping[str, int], size: int | str
) -> list[tuple[tuple[str, ...], int]]:
    """Axes and bytes of each reduction, of every axis; those of 0 bytes are left out."""
    texts = reduce.split(",") if isinstance(reduce, str) else list(reduce)
    found = []
    for text in texts:
        names, _, own = text.partition("=")
        chosen = tuple(name.strip() for name in names.split("+"))
        for name in chosen:
            if name not in axes:
                known = ", ".join(axes)
                raise InputError(
                    f"expected axes to `reduce` of {known}, found {name[:40]!r}: name some of these."
                )
        if len(set(chosen)) != len(chosen):
            raise InputError(
                f"expected each axis once in a reduction (`reduce`), found {text[:40]!r}: name it once."
            )
        found.append((chosen, size_of(own.strip() or size)))
    named = {name for chosen, _ in found for name in chosen}
    silent = [name for name, members in axes.items() if members > 1 and name not in named]
    if silent:
        given = ",".join([*texts, silent[0]])
        raise InputError(
            f"expected what every axis exchanges (`reduce`), found nothing of {', '.join(silent)}: the placement that "
            f"suits the others alone may be the worst for it; give its bytes too, as `reduce={given}=16M`, or "
            f"{silent[0]}=0 if it exchanges nothing."
        )
    found = [each for each in found if each[1]]
    if not found:
        raise InputError("expected a size of 1 byte or more to reduce, found 0: give another (`size=64M`).")
    return found


@checked
def placement(
    topology: Any,
    *,
    axes: Mapping[str, int] | str,
    reduce: Sequence[str] | str,
    size: int | str = "64M",
    hierarchy: Mapping[str, int] | str | None = None,
    model: Model | str | PathLike[str] | None = None,
    most_calls: int = 5,
    relay_gpus: bool = False,
    on_stage: Callable[[str], None] | None = None,
) -> PlacementResult:
    """Time all mappings of parallel axes to the devices of a cluster, each with all reduction programs.

    Args:
        topology: The cluster: what :func:`coppice.load` takes.
        axes: Size of each axis, the slowest first: ``dp=4,tp=8`` or a mapping.
        reduce: Axes to all-reduce along: ``dp``; ``dp+tp`` for both together; ``dp,tp`` for one after the other, each
            perhaps with its own bytes, as ``dp=64M,tp=16M``. Every axis of two or more has to occur; ``tp=0`` says
            that one exchanges nothing.
        size: M in bytes of each group, also as text such as ``64M``.
        hierarchy: Levels of the cluster from the outside in, such as ``node=4,gpu=8``; None takes boxes and GPUs.
        model: What messages cost: a model, its name, or a file with one; None is the default.
        most_calls: Most calls of a program, 1 to 5.
        relay_gpus: GPUs may pass on what is not theirs where no path of switches and NICs exists.
        on_stage: Called with a few words as the search goes on.

    Raises:
        InputError: If the axes do not fill the cluster, or an option does not fit.
        UnreachableError: If the network carries no program of any placement without GPUs that relay.

    Examples:
        >>> found = placement("dgx-h100", axes="dp=2,tp=4", reduce="dp,tp=16M")
        >>> found.number, found.best.program
        (1, 'all_reduce; all_reduce')
    """
    cluster = load(topology)
    named = parse_counts(axes, option="axes")
    levels, devices = hierarchy_of(cluster)
    if hierarchy is not None:
        levels = (
            parse_counts(hierarchy, option="hierarchy") if isinstance(hierarchy, str) else dict(hierarchy)
        )
        if prod(levels.values()) != cluster.num_ranks:
            counts = ",".join(f"{name}={n}" for name, n in levels.items())
            there = f"{cluster.num_ranks} GPUs of {cluster.name}"
            raise InputError(
                f"expected a `hierarchy` of the {there}, found {counts}: change it, or choose ranks (`ranks`)."
            )
    if not 1 <= most_calls <= 5:
        raise InputError(
            f"expected 1 to 5 calls at most in a program, found {most_calls}: choose one of these (`most_calls=5`)."
        )
    asked = _asked(reduce, named, size)
    every = placements(named, levels)
    usual = default_placement(named, levels)
    chosen_model = replace(model_of(model), steps_bind=True)
    search = _PlacementSearch(
        cluster, np.array(devices, dtype=np.int64), levels, chosen_model, most_calls, relay_gpus
    )
    placed: list[PlacedAxes] = []
    interrupted = False
    refused: UnreachableError | None = None
    try:
        for number, each in enumerate(sorted(every, key=lambda one: one != usual)):
            if on_stage is not None:
                on_stage(f"placement {number + 1} of {len(every)}")
            try:
                placed.append(search.placed(each, asked))
            except UnreachableError as error:
                refused = refused or error
    except KeyboardInterrupt:
        if not placed:
            raise
        interrupted = True
    if not placed and refused is not None:
        raise refused
    default = next((each for each in placed if each.placement == usual), None)
    order = sorted(placed, key=lambda each: (each.time_us, each.placement.matrix))
    found = PlacementResult(
        topology=cluster,
        hierarchy=levels,
        devices=devices,
        axes=named,
        model=chosen_model,
        placed=tuple(order),
        default=default,
        number=len(every),
        interrupted=interrupted,
    )
    if on_stage is not None:
        on_stage("verifying the best")
    return replace(found, verified=verified_groups(found))


_CallKey = tuple[bytes, tuple[int, ...], ReductionCall, Fraction, int]
"""Groups, levels, call, share of the data, bytes."""


@dataclass(eq=False)
class _PlacementSearch:
    """Times programs of placements, call by call, and keeps what each call takes."""

    topology: Topology
    devices: NDArray[np.int64]
    levels: dict[str, int]
    model: Model
    most_calls: int
    relay_gpus: bool
    _known: dict[_CallKey, tuple[float, int] | UnreachableError] = field(default_factory=dict)

    def placed(self, each: AxisPlacement, asked: Sequence[tuple[tuple[str, ...], int]]) -> PlacedAxes:
        """One placement with all its reductions."""
        reductions = tuple(self._reduced(each, axes, size) for axes, size in asked)
        return PlacedAxes(placement=each, reductions=reductions)

    def _reduced(self, each: AxisPlacement, axes: tuple[str, ...], size_bytes: int) -> Reduced:
        groups = self.devices[each.groups(axes)]
        shape = each.shape(axes)
        if len(shape) > _MOST_DEPTH:
            raise InputError(
                f"expected groups of at most {_MOST_DEPTH} levels, found {len(shape)}: give fewer levels "
                "(`hierarchy=node=4,gpu=8`)."
            )
        names, sizes = tuple(name for name, _ in shape), tuple(n for _, n in shape)
        most = self.most_calls if len(shape) < _MOST_DEPTH else min(self.most_calls, 3)
        timed: list[TimedProgram] = []
        refused: list[UnreachableError] = []
        for program in programs(len(shape), most):
            times = []
            for instruction, share in zip(program, shares_of(program, sizes), strict=True):
                found = self._call_us(groups, sizes, instruction, share, size_bytes)
                if isinstance(found, UnreachableError):
                    refused.append(found)
                    break
                times.append(found)
            else:
                call_us, blocks = tuple(us for us, _ in times), tuple(count for _, count in times)
                timed.append(TimedProgram(program=program, levels=names, call_us=call_us, blocks=blocks))
        if not timed:
            raise refused[0]
        limit = groups_bound(self.topology, groups, self._divisions())
        return Reduced(
            axes=axes,
            size_bytes=size_bytes,
            groups=groups,
            shape=shape,
            bound_us=float(limit.ns_per_byte * size_bytes) / 1000,
            bound_words=limit.words,
            programs=tuple(sorted(timed, key=lambda one: (one.time_us, len(one.program)))),
            left_out=len(refused),
        )

    def _divisions(self) -> list[tuple[str, list[list[int]]]]:
        """The ranks divided as far as each level."""
        found, sizes = [], list(self.levels.values())
        for depth, name in enumerate(self.levels, 1):
            parts = prod(sizes[:depth])
            found.append((name, self.devices.reshape(parts, -1).tolist()))
        return found

    def _call_us(
        self,
        groups: NDArray[np.int64],
        sizes: tuple[int, ...],
        instruction: ReductionCall,
        share: Fraction,
        size_bytes: int,
    ) -> tuple[float, int] | UnreachableError:
        """What a call takes with all groups at once, and in how many blocks, or why the network does not carry it."""
        key = (groups.tobytes(), sizes, instruction, share, size_bytes)
        if key not in self._known:
            try:
                best = (math.inf, 0)
                for blocks in block_counts(
                    instruction
                ):  # more blocks help up to a number, and then they cost
                    found = self._simulated(groups, sizes, instruction, share, size_bytes, blocks)
                    if found >= best[0]:
                        break
                    best = found, blocks
                self._known[key] = best
            except UnreachableError as error:
                self._known[key] = error
        return self._known[key]

    def _simulated(
        self,
        groups: NDArray[np.int64],
        sizes: tuple[int, ...],
        instruction: ReductionCall,
        share: Fraction,
        size_bytes: int,
        blocks: int,
    ) -> float:
        def time_us(most_rounds: int) -> tuple[float, int]:
            chunks = chunks_of((instruction,), sizes, (blocks,))
            call = call_alone(instruction, sizes, share, most_rounds=most_rounds, blocks=blocks)
            everywhere = schedule_of_all(self.topology, groups, [call], chunks, relay_gpus=self.relay_gpus)
            total = size_bytes * len(groups)
            timeline = fastest(everywhere, total, model=self.model, pieces=1, keep_hops=False)
            return timeline.time_us, call.rounds

        more, rounds = time_us(_MORE_ROUNDS)
        if rounds <= _MORE_ROUNDS:
            return more
        few, _ = time_us(_FEW_ROUNDS)
        return more + (more - few) / (_MORE_ROUNDS - _FEW_ROUNDS) * (rounds - _MORE_ROUNDS)
