"""Tensor-parallel degree per block: exact optimum under a memory limit.

Source: the planner of Oases (arXiv 2305.16121), there an integer program for a general solver.

Theory. With half batches (:mod:`~coppice.iteration.policies.tensor.half_batches`) a block of degree d computes comp
seconds a half and sums comm seconds. Beside its two sums run its own second half and the first half of the next block:

    max(comp(i), comm(i)) + max(comp(i + 1), comm(i))

a pass, forwards in order and backwards in the opposite one, where the first half includes what is computed again of
both; the first half of the first block and the last sum are alone. (The published planner has comp with what is
computed again of one half: then ``backward`` includes it and ``again`` is 0.) Where degrees d and e of neighbours
differ, activations are gathered anew, e / d times what the sum takes, and nothing overlaps there:
+ comm(i) e / d + min(comp(i + 1), comm(i)). Blocks take bytes each, at most 95 % of a device by default. The cost of a
plan is what simulation says (:mod:`~coppice.iteration.policies.tensor.half_batches`).

The cost is a sum over neighbours, so that the best plan is found block by block: for every degree of the last block
all pairs of (seconds, bytes) are kept that no other beats in both. That is exact, in whole numbers of 2^-34 s. The
released code then keeps two degrees and one block where they change (``one_cut``).

The tables of a transformer: a group of N GPUs runs a micro-batch. With degree d a block lies on d of them, and N / d
replicas inside the group share the micro-batch out: products are as large, sums carry d / N of the activations over
fewer ranks, and each GPU holds N / d times the parameters. Attention and MLP of a layer are a block each, taken to be
alike. Times are those of a step with half of the micro-batch, so that products of halves reach less of the peak;
gradient all-reduces between replicas inside the group are left out, as in the source. Bytes: what a block keeps of
the micro-batch, and 16 for each parameter, states of mixed-precision Adam included (Rajbhandari et al., SC 2020).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from coppice.errors import InputError
from coppice.iteration.layout import Layout
from coppice.iteration.machine import Cluster
from coppice.iteration.policies.tensor.policy import tensor_exchanges
from coppice.iteration.step.blocks import transformer_blocks
from coppice.iteration.step.plan import FORWARD, LayerBlock
from coppice.iteration.transformer import Transformer

_TICKS = 2**34
_Table = list[list[int]]  # blocks by degrees
_Label = tuple[int, int, tuple[int, ...]]  # ticks, bytes, places of degrees


@dataclass(frozen=True, kw_only=True)
class DegreePlan:
    """Optimal degrees."""

    degrees: tuple[int, ...]  # Degree of each block
    seconds: float  # Cost of a training step
    memory_bytes: int  # Bytes that the blocks take


@dataclass(frozen=True, kw_only=True)
class TransformerBytes:
    """Bytes of a block as the released planner counts them: 12 activations and five times its parameters."""

    batch: int  # Sequences
    seq: int  # Tokens of a sequence
    hidden: int  # Width
    parameter_bytes: int  # Bytes of its parameters

    def of(self, degree: int) -> int:
        """Bytes of a block on one rank, by degree."""
        return -(-(12 * self.batch * self.seq * self.hidden + 5 * self.parameter_bytes) // degree)


@dataclass(frozen=True, kw_only=True)
class DegreeProblem:
    """Blocks and their possible degrees.

    Raises:
        InputError: If tables are not of blocks by degrees, or there are no blocks.

    Examples:
        >>> problem = DegreeProblem(
        ...     degrees=(1, 2),
        ...     forward=[[4.0, 2.0]] * 3,
        ...     backward=[[8.0, 4.0]] * 3,
        ...     sums=[[0.0, 3.0]] * 3,
        ...     memory=[[10, 5]] * 3,
        ...     device_bytes=100,
        ... )
        >>> problem.solve().degrees, problem.solve().seconds
        ((2, 2, 2), 47.0)
    """

    degrees: Sequence[int]  # The degrees to choose from
    forward: Sequence[Sequence[float]]  # Seconds of half a forward pass, of each block with each degree
    backward: Sequence[Sequence[float]]  # Seconds of half a backward pass
    sums: Sequence[Sequence[float]]  # Seconds of the sum of a half
    memory: Sequence[Sequence[int]]  # Bytes of each block with each degree
    device_bytes: int  # Memory of a device
    # Seconds of half of what is computed again before it; empty: nothing
    recompute: Sequence[Sequence[float]] = ()
    share: float = 0.95  # Share of it that blocks may take

    def __post_init__(self) -> None:
        blocks = len(self.forward)
        for name in ("forward", "backward", "sums", "memory", *(["recompute"] if self.recompute else [])):
            table = getattr(self, name)
            if not blocks or len(table) != blocks or any(len(row) != len(self.degrees) for row in table):
                raise InputError(
                    f"expected 1 block or more and {len(self.degrees)} degrees of each in `{name}`, found "
                    f"{[len(row) for row in table]}."
                )

    @property
    def budget(self) -> int:
        """Memory limit of the blocks."""
        return math.floor(self.share * self.device_bytes)

    def cost(self, choice: Sequence[int]) -> float:
        """Time of a plan, given as indices into ``degrees``."""
        costs = _Costs.of(self)
        total = costs.first(choice[0])
        for block, (own, following) in enumerate(itertools.pairwise(choice)):
            total += costs.pair(block, own, following)
        return costs.seconds(total + costs.last(choice[-1]))

    def solve(self, *, one_cut: bool = False) -> DegreePlan:
        """Fastest plan that fits; ties go to the fewest bytes, then to the first degrees.

        Args:
            one_cut: Two degrees at most: one up to some block, the other from there on.
        """
        found = self._one_cut() if one_cut else self._chain()
        if found is None:
            least = sum(min(row) for row in self.memory)
            raise InputError(
                f"expected a device with room for {least} bytes of blocks or more, found {self.budget}."
            )
        ticks, used, choice = found
        return DegreePlan(
            degrees=tuple(self.degrees[each] for each in choice),
            seconds=_Costs.of(self).seconds(ticks),
            memory_bytes=used,
        )

    def _chain(self) -> _Label | None:
        """Dynamic programming block by block over Pareto-optimal partial plans."""
        costs, places = _Costs.of(self), range(len(self.degrees))
        rest = [0]
        for row in reversed(self.memory):
            rest.append(rest[-1] + min(row))
        rest.reverse()
        kept: list[list[_Label]] = []
        for place in places:
            used = self.memory[0][place]
            fits = used + rest[1] <= self.budget
            kept.append([(costs.first(place), used, (place,))] if fits else [])
        for block in range(1, len(self.forward)):
            kept = [
                _undominated(
                    (
                        ticks + costs.pair(block - 1, own, place),
                        used + self.memory[block][place],
                        (*choice, place),
                    )
                    for own in places
                    for ticks, used, choice in kept[own]
                    if used + self.memory[block][place] + rest[block + 1] <= self.budget
                )
                for place in places
            ]
        ends = [
            (ticks + costs.last(place), used, choice)
            for place in places
            for ticks, used, choice in kept[place]
        ]
        return min(ends, default=None)

    def _one_cut(self) -> _Label | None:
        """All plans with one change of degree, by prefix and suffix sums."""
        costs, places, count = _Costs.of(self), range(len(self.degrees)), len(self.forward)
        ahead = {place: [(costs.first(place), self.memory[0][place])] for place in places}
        behind = {place: [(costs.last(place), self.memory[-1][place])] for place in places}
        for place in places:
            for block in range(1, count):
                ticks, used = ahead[place][-1]
                pair = costs.pair(block - 1, place, place)
                ahead[place].append((ticks + pair, used + self.memory[block][place]))
                ticks, used = behind[place][-1]
                pair = costs.pair(count - 1 - block, place, place)
                behind[place].append((ticks + pair, used + self.memory[count - 1 - block][place]))
        ends = []
        for first in places:
            ticks, used = ahead[first][-1]
            ends.append((ticks + costs.last(first), used, (first,) * count))
            for then in places:
                for cut in range(1, count) if then != first else ():
                    before, after = ahead[first][cut - 1], behind[then][count - cut - 1]
                    ticks = before[0] + costs.pair(cut - 1, first, then) + after[0]
                    ends.append((ticks, before[1] + after[1], (first,) * cut + (then,) * (count - cut)))
        return min((each for each in ends if each[1] <= self.budget), default=None)


@dataclass(frozen=True)
class _Costs:
    """Costs as integers: ticks times the least common multiple of the degrees."""

    degrees: Sequence[int]  # The degrees
    scale: int  # Least common multiple of them
    # Computation of the first half of blocks by degrees, forward and backward
    first_half: tuple[_Table, _Table]
    second_half: tuple[_Table, _Table]  # The same of the second half
    sums: _Table  # Sums of blocks by degrees

    @classmethod
    def of(cls, problem: DegreeProblem) -> _Costs:
        """Costs of a problem."""

        def ticks(table: Sequence[Sequence[float]]) -> _Table:
            return [[round(each * _TICKS) for each in row] for row in table]

        forward, backward = ticks(problem.forward), ticks(problem.backward)
        both = backward
        if problem.recompute:
            again = ticks(problem.recompute)
            both = [
                [b + 2 * a for b, a in zip(*rows, strict=True)] for rows in zip(backward, again, strict=True)
            ]
        return cls(
            degrees=problem.degrees,
            scale=math.lcm(*problem.degrees),
            first_half=(forward, both),
            second_half=(forward, backward),
            sums=ticks(problem.sums),
        )

    def seconds(self, cost: int) -> float:
        """Time of a cost."""
        return cost / (self.scale * _TICKS)

    def first(self, place: int) -> int:
        """Terms of the first block only: exposed first half and last all-reduce, overlapped halves."""
        return self.scale * (self.first_half[0][0][place] + self._own(0, place) + self.sums[0][place])

    def last(self, place: int) -> int:
        """Terms of the last block only."""
        return self.scale * (self.first_half[1][-1][place] + self.sums[-1][place])

    def _own(self, block: int, place: int) -> int:
        """Second half of a block overlapped with the all-reduce of its first, in both passes."""
        return sum(max(table[block][place], self.sums[block][place]) for table in self.second_half)

    def pair(self, block: int, own: int, following: int) -> int:
        """Terms between a block and the next one, in both passes, and the overlapped halves of the next one."""
        cost = self.scale * self._own(block + 1, following)
        forward = (self.sums[block][own], self.first_half[0][block + 1][following], own, following)
        backward = (self.sums[block + 1][following], self.first_half[1][block][own], following, own)
        for comm, comp, source, target in (forward, backward):
            cost += self.scale * max(comp, comm)
            if source != target:
                again = self.scale // self.degrees[source] * self.degrees[target]
                cost += comm * again + self.scale * min(comp, comm)
        return cost


def _undominated(labels: Iterable[_Label]) -> list[_Label]:
    """Pareto-optimal partial plans by time and bytes."""
    kept: list[_Label] = []
    for label in sorted(labels):
        if not kept or label[1] < kept[-1][1]:
            kept.append(label)
    return kept


_STATES = 16  # bytes of a parameter, its gradient and the states of Adam


def degree_problem(
    model: Transformer, layout: Layout, cluster: Cluster, degrees: Sequence[int]
) -> DegreeProblem:
    """Blocks of a transformer on a tensor-parallel group, with the times of each degree.

    Args:
        layout: How the job lies on the GPUs; ``tensor`` is the size of the group.

    Examples:
        >>> from coppice.iteration.machine import cluster_of
        >>> from coppice.iteration.models import model_named
        >>> from coppice.topology.presets import preset
        >>> from coppice.iteration.layout import Recompute
        >>> layout = Layout(tensor=8, micro_batch=16, global_batch=16, recompute=Recompute.FULL)
        >>> cluster = cluster_of(preset("dgx-a100"))
        >>> plan = degree_problem(model_named("gpt-18b"), layout, cluster, (2, 4, 8)).solve()
        >>> {degree: plan.degrees.count(degree) for degree in (2, 4, 8)}
        {2: 0, 4: 67, 8: 13}
    """
    tables = [_halved(model, layout, cluster, degree) for degree in degrees]
    blocks = 2 * model.layers  # two blocks a layer, of which each runs in halves

    def rows(column: Sequence[float]) -> list[list[float]]:
        return [list(column)] * blocks

    sums = [
        sum(each.seconds for each in tensor_exchanges(half, FORWARD)) / 2 if degree > 1 else 0.0
        for half, degree in zip(tables, degrees, strict=True)
    ]
    sizes = [round((2 * half.activation_bytes + _STATES * half.parameters) / 2) for half in tables]
    return DegreeProblem(
        degrees=degrees,
        forward=rows([half.forward / 2 for half in tables]),
        backward=rows([(half.input_gradient + half.weight_gradient) / 2 for half in tables]),
        recompute=rows([half.recompute / 2 for half in tables]),
        sums=rows(sums),
        memory=[sizes] * blocks,
        device_bytes=int(cluster.device.memory_bytes),
    )


def _halved(model: Transformer, layout: Layout, cluster: Cluster, degree: int) -> LayerBlock:
    """Layer on half of the micro-batch of a replica inside the group."""
    if degree < 1 or layout.tensor % degree:
        raise InputError(f"expected degrees that divide a group of {layout.tensor} GPUs, found {degree}.")
    sequences, left = divmod(layout.micro_batch * degree, 2 * layout.tensor)
    if left or not sequences:
        needed = f"a multiple of {2 * layout.tensor // degree} sequences for degree {degree}"
        raise InputError(f"expected a micro-batch of {needed}, found {layout.micro_batch}.")
    replicas = layout.data * layout.tensor // degree
    own = replace(
        layout, tensor=degree, data=replicas, micro_batch=sequences, global_batch=sequences * replicas
    )
    return transformer_blocks(model, own, cluster)[1]
