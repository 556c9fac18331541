"""SyCCL: combine sketches over the dimensions of a symmetric network to a schedule.

"SyCCL: Exploiting Symmetry for Efficient Collective Communication Scheduling", SIGCOMM 2025; written from its published
outline. A *sketch* is an order of dimensions. In stage after stage every rank that holds a block sends it to the other
ranks of its group in the stage's dimension, until all ranks have it: ``rail > box`` first crosses the network and then
spreads what came inside the boxes. What a group has to do in a stage is a small all-gather. It is solved once for each
kind of group, by the forest planner on the group's own links (within 1% of its optimum, in as few trees as that takes),
and mapped to all groups of the kind.

Every sketch loads the links of its dimensions in other proportions. A linear program, solved exactly, says how much of
each block goes by which sketch, so that the busiest link is done as early as possible: that balances the dimensions. A
reduce-scatter is an all-gather on the network with every link turned round, backwards in time; an all-reduce is both.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import msgspec
import numpy as np
from numpy.typing import NDArray

from coppice.bounds.lp.program import Constraint, LinearProgram
from coppice.bounds.network import check_problem
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.synthesis.syccl.dimensions import (
    Dimension,
    GroupSolver,
    SolvedDimension,
    coordinate_systems,
    whole,
)
from coppice.planners.synthesis.synthesizing import Request, Status, Synthesis, SynthesisMethod
from coppice.planners.synthesis.timed import TimedTransfers, joined, reversed_in_time, timed_schedule
from coppice.rows import offsets, ranges
from coppice.schedule.schedule import Op
from coppice.text import percent_text, plural
from coppice.topology.model import Topology

MOST_TRANSFERS = 2**23
MOST_AXES = 4


class SycclOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of SyCCL."""

    # Trees from each rank of a group; None: the fewest within 1% of the optimum of the group
    trees: int | None = None
    group: int = 128  # Ranks that a group may have, beyond which its problem is not small
    # Mix sketches, which gives the best rate; False takes the best one alone: fewer chunks, for short
    # messages
    mix: bool = True


@dataclass(frozen=True, eq=False, kw_only=True)
class _Sketch:
    """An order of dimensions, with the load of each link for a unit from every rank."""

    stages: tuple[SolvedDimension, ...]
    load: NDArray[np.int64]
    scale: int

    @property
    def name(self) -> str:
        return " > ".join(stage.dimension.name for stage in self.stages)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Direction:
    """The all-gather of one direction: sketches and how much goes by each."""

    topology: Topology
    shares: tuple[tuple[_Sketch, Fraction], ...]
    sketches: int
    solved: int
    interrupted: bool

    @property
    def cuts(self) -> set[Fraction]:
        """Where a block is cut."""
        found, begin = {Fraction(0)}, Fraction(0)
        for sketch, share in self.shares:
            found |= {begin + share * end for stage in sketch.stages for end in stage.ends}
            begin += share
        return found

    def at(self, where: Fraction) -> tuple[_Sketch, Fraction]:
        """The sketch of a place in a block, and the place within its part."""
        begin = Fraction(0)
        for sketch, share in self.shares:
            if where < begin + share:
                return sketch, (where - begin) / share
            begin += share
        raise AssertionError(where)


def synthesize_syccl(request: Request) -> Synthesis:
    """Schedule of the best combination of sketches.

    Args:
        request: The problem with :class:`SycclOptions`.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(preset("dgx-a100", boxes=2), Collective.ALL_GATHER)
        >>> found = synthesize_syccl(Request(problem=problem, options=SycclOptions()))
        >>> dict(found.words)["sketches"]
        '97.8% rail > box, 2.2% box > rail, of 8'
    """
    problem, options = request.problem, request.options
    check_problem(problem)
    if problem.weights is not None and len(set(problem.weights)) > 1:
        raise InputError(
            "syccl moves blocks of one size, found different `weights`: leave them out, or plan by forest."
        )
    for name, value in (("trees", options.trees), ("group", options.group)):
        if value is not None and not 1 <= value <= 2**16:
            raise InputError(f"expected `{name}` to be a number of 1 or more, found {value}: give one.")
    collective, ranks = problem.collective, problem.topology.num_ranks
    directions = []
    if collective.reduces:
        directions.append(_direction(problem.topology.transposed(), request))
    if collective is not Collective.REDUCE_SCATTER:
        directions.append(_direction(problem.topology, request))
    cuts = sorted(set().union(*(direction.cuts for direction in directions)) | {Fraction(1)})
    pieces = len(cuts) - 1
    if pieces * ranks * max(ranks - 1, 1) * len(directions) > MOST_TRANSFERS:
        raise InputError(
            f"syccl makes up to {MOST_TRANSFERS:,} transfers, found {plural(pieces, 'chunk')} of each of "
            f"{ranks} blocks: use fewer trees (`trees=1`)."
        )
    made = [_transfers(direction, cuts) for direction in directions]
    if collective.reduces:
        transfers, start, nodes = made[0]
        made[0] = (reversed_in_time(transfers), *_turned(start, nodes))
    transfers, path_start, path_nodes = made[0]
    if len(made) == 2:
        second, second_start, second_nodes = made[1]
        transfers = joined(transfers, second, paths_before=len(path_start) - 1)
        path_start = np.concatenate([path_start, path_start[-1] + second_start[1:]])
        path_nodes = np.concatenate([path_nodes, second_nodes])
    common = lcm(*(cut.denominator for cut in cuts))
    share = np.array([int((b - a) * common) for a, b in itertools.pairwise(cuts)], dtype=np.int64)
    schedule = timed_schedule(
        problem,
        transfers,
        chunk_slot=np.repeat(np.arange(ranks), pieces),
        chunk_share=np.tile(share, ranks),
        path_start=path_start,
        path_nodes=path_nodes,
    )
    mixes = [" and ".join(f"{sketch.name}: {share}" for sketch, share in each.shares) for each in directions]
    return Synthesis(
        status=Status.SAT,
        body=schedule,
        parameters={"trees": options.trees, "group": options.group, "mix": options.mix},
        interrupted=any(each.interrupted for each in directions),
        details={
            "sketches": [
                {
                    "stage_names": sketch.name.split(" > "),
                    "stages": sketch.name.split(" > "),
                    "data_share": str(share),
                    "share": str(share),
                }
                for sketch, share in directions[-1].shares
            ],
            "sketches_tried": directions[-1].sketches,
            "group_problems": directions[-1].solved,
            "chunks": pieces,
        },
        words=_words(directions, mixes, pieces),
    )


def _words(
    directions: Sequence[_Direction], mixes: Sequence[str], pieces: int
) -> tuple[tuple[str, str], ...]:
    last = directions[-1]
    parts = ", ".join(f"{percent_text(share)} {sketch.name}" for sketch, share in last.shares)
    words = [("sketches", f"{parts or 'none'}, of {last.sketches}")]
    if len(set(mixes)) > 1:
        first = directions[0]
        parts = ", ".join(f"{percent_text(share)} {sketch.name}" for sketch, share in first.shares)
        words.insert(0, ("sketches of the sum", parts))
    words.append(("groups", f"{plural(last.solved, 'kind')} solved; {plural(pieces, 'chunk')} of a block"))
    return tuple(words)


def _direction(topology: Topology, request: Request) -> _Direction:
    """The best mix of sketches for an all-gather on a network."""
    options = request.options
    if topology.num_ranks == 1:
        return _Direction(topology=topology, shares=(), sketches=0, solved=0, interrupted=False)
    solver = GroupSolver(topology, options.trees)
    sketches: list[_Sketch] = []
    best: tuple[Fraction, tuple[tuple[_Sketch, Fraction], ...]] | None = None
    interrupted = False
    reason: InputError | None = None
    try:
        for dimensions in _systems(topology):
            late = request.deadline is not None and time.monotonic() > request.deadline
            if best is not None and (late or len(dimensions) < 2):
                break
            try:
                sketches += _sketches(dimensions, solver, request)
            except UnreachableError as error:
                reason = error
                continue
            found = _balanced(topology, sketches, mix=options.mix) if sketches else None
            # More ways to cut the network count only where they are faster: theirs have more stages.
            if found is not None and (best is None or found[0] > best[0]):
                best = found
    except KeyboardInterrupt:
        if best is None:
            raise
        interrupted = True
    if best is None:
        if reason is not None:
            raise reason
        raise InputError(
            f"syccl needs dimensions with groups of at most {options.group} ranks (`group`), found none in the "
            f"{topology.num_ranks} ranks of {topology.name}: plan it with another method."
        )
    return _Direction(
        topology=topology,
        shares=best[1],
        sketches=len(sketches),
        solved=solver.solved,
        interrupted=interrupted,
    )


def _systems(topology: Topology) -> Iterator[list[Dimension]]:
    """Coordinates of the ranks; after them, where nothing else serves, all ranks as one group."""
    yield from coordinate_systems(topology)
    yield [whole(topology)]


def _sketches(dimensions: Sequence[Dimension], solver: GroupSolver, request: Request) -> list[_Sketch]:
    """All orders of some dimensions."""
    if max(each.size for each in dimensions) > request.options.group or len(dimensions) > MOST_AXES:
        return []
    solved = []
    for each in dimensions:
        request.report(f"solving groups of {each.size} along {each.name}")
        solved.append(solver.solve(each))
    scale = lcm(*(each.scale for each in solved))
    found = []
    for order in itertools.permutations(solved):
        load, held = np.zeros_like(order[0].load), 1
        for stage in order:
            load = load + stage.load * (held * (scale // stage.scale))
            held *= stage.dimension.size
        found.append(_Sketch(stages=order, load=load, scale=scale))
    return found


def _balanced(
    topology: Topology, sketches: Sequence[_Sketch], *, mix: bool
) -> tuple[Fraction, tuple[tuple[_Sketch, Fraction], ...]]:
    """How much of each block goes by which sketch, so that the busiest link is done as early as possible.

    With y = share / time: maximise the sum of y, so that no link has more load than capacity.

    Returns:
        One over the time of a unit from every rank, and the shares, the largest first.
    """
    common = lcm(*(sketch.scale for sketch in sketches))
    load = np.stack([sketch.load * (common // sketch.scale) for sketch in sketches], axis=1)
    rows = np.unique(np.concatenate([topology.capacity[:, None], load], axis=1), axis=0)
    columns = np.arange(len(sketches), dtype=np.int32)
    program = LinearProgram([1] * len(sketches), [None] * len(sketches))
    program.add_rows(
        [
            Constraint(column=columns[row[1:] > 0], value=row[1:][row[1:] > 0], bound=int(row[0]))
            for row in rows
            if row[1:].any()
        ]
    )
    vertex = program.exact_vertex() if mix and program.solve() is not None else None
    if vertex is None:  # one alone is asked for, or no basis was found in floats
        rates = [min(Fraction(int(row[0]), int(row[i + 1])) for row in rows if row[i + 1]) for i in columns]
        values = [rate if i == rates.index(max(rates)) else Fraction(0) for i, rate in enumerate(rates)]
    else:
        values = vertex.values
    total = sum(values, Fraction(0))
    parts = [(sketch, y / total) for sketch, y in zip(sketches, values, strict=True) if y]
    return total * common, tuple(sorted(parts, key=lambda part: -part[1]))


def _transfers(
    direction: _Direction, cuts: Sequence[Fraction]
) -> tuple[TimedTransfers, NDArray[np.int64], NDArray[np.int32]]:
    """All transfers of an all-gather, their times being the number of transfers before them, and the paths."""
    ranks, pieces = direction.topology.num_ranks, len(cuts) - 1
    dimensions = list(dict.fromkeys(stage for sketch, _ in direction.shares for stage in sketch.stages))
    base, path_start, path_nodes = _paths(dimensions)
    columns: list[tuple[NDArray[np.int64], ...]] = []
    for piece, where in enumerate(cuts[:-1] if direction.shares else ()):
        sketch, inside = direction.at(where)
        holders = np.arange(ranks)[:, None]
        before = 0
        for stage in sketch.stages:
            dimension = stage.dimension
            group = dimension.group[holders]
            members = dimension.members[group]  # block, holder, place
            rows = _edges(stage, inside)[stage.kind[group], dimension.place[holders]]  # ..., edge, column
            parent, child, path, depth = np.moveaxis(rows, -1, 0)
            chunk = np.broadcast_to((np.arange(ranks) * pieces + piece)[:, None, None], parent.shape)
            columns.append(
                tuple(
                    column.reshape(-1)
                    for column in (
                        before + depth,
                        chunk,
                        np.take_along_axis(members, parent, axis=-1),
                        np.take_along_axis(members, child, axis=-1),
                        base[id(stage)][group][..., None] + path,
                    )
                )
            )
            before += int(depth.max(initial=-1)) + 1
            holders = members.reshape(ranks, -1)
    start, chunk, src, dst, path = (
        np.concatenate([each[i] for each in columns]) if columns else np.zeros(0, dtype=np.int64)
        for i in range(5)
    )
    transfers = TimedTransfers(
        start=start,
        end=start + 1,
        chunk=chunk,
        src=src,
        dst=dst,
        path=path,
        op=np.full(len(start), Op.COPY, dtype=np.int8),
    )
    return transfers, path_start, path_nodes


def _edges(stage: SolvedDimension, where: Fraction) -> NDArray[np.int64]:
    """``[kind, place, edge]``: parent, child, path and depth of the tree of that place."""
    found = []
    for trees in stage.kinds:
        own = trees.at(where)
        found.append(
            np.stack([trees.parent[own], trees.child[own], trees.path[own], trees.depth[own]], axis=-1)
        )
    return np.stack(found)


def _paths(
    dimensions: Sequence[SolvedDimension],
) -> tuple[dict[int, NDArray[np.int64]], NDArray[np.int64], NDArray[np.int32]]:
    """The first path of each group by dimension, and the paths of all groups."""
    base, lengths, nodes, count = {}, [], [], 0
    for solved in dimensions:
        first = []
        for which, own in zip(solved.kind.tolist(), solved.nodes, strict=True):
            trees = solved.kinds[which]
            first.append(count)
            count += len(trees.path_start) - 1
            lengths.append(np.diff(trees.path_start))
            nodes.append(own[trees.path_nodes])
        base[id(solved)] = np.array(first, dtype=np.int64)
    none = [np.zeros(0, dtype=np.int64)]
    return base, offsets(np.concatenate(lengths or none)), np.concatenate(nodes or none).astype(np.int32)


def _turned(
    path_start: NDArray[np.int64], path_nodes: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """All paths the other way."""
    lengths = np.diff(path_start)
    backwards = np.repeat(path_start[:-1] + path_start[1:] - 1, lengths) - ranges(path_start[:-1], lengths)
    return path_start, path_nodes[backwards]


METHOD = SynthesisMethod(
    name="syccl",
    about="sketches over the dimensions of a symmetric network, balanced by a linear program (SyCCL, SIGCOMM 2025)",
    collectives=(Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE),
    options=SycclOptions,
    run=synthesize_syccl,
)
