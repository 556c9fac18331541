"""Execute named collectives by a plan: :func:`execute_plan`, and the task graph for planners.

groups = PhaseGroups(ranks_of_box=8)
work = {"sums": CollectiveBuffers("all_reduce", gradients), "tokens": CollectiveBuffers("all_to_all", x, y)}
graph = collective_graph(work, groups, network=measured_network(work, groups))
ordered = agreed_plan(graph, "syndicate")
execute_plan(ordered, work, groups)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from coppice.errors import InputError
from coppice.iteration.policies.whole.operations import (
    Channel,
    CollectivePhase,
    GraphOperation,
    OperationGraph,
)
from coppice.iteration.policies.whole.partition import PLAIN, collective_decompositions
from coppice.training.torch.whole.executors import TaskExecutor, TaskRun
from coppice.training.torch.whole.grids import BETWEEN, INSIDE, PhaseGroups
from coppice.training.torch.whole.orders import OrderedPlan
from coppice.training.torch.whole.templates import CollectiveBuffers, PhaseStep, piece_steps

ComputedPiece = Callable[[int, int], None]
"""Computes a piece: its number, and how many there are."""
NETWORK: Mapping[str, tuple[float, float]] = {INSIDE: (50e9, 5e-6), BETWEEN: (25e9, 10e-6)}
"""Bytes per second of a rank, and seconds of a step, unless told or measured."""


def network_channels(network: Mapping[str, tuple[float, float]]) -> dict[str, Channel]:
    """Channels of a network.

    Args:
        network: Bytes per second and seconds of a step of each; names are ``inside`` and ``between``, and those
            with a word more, such as ``between 1``, are further connections of that kind.
    """
    for name, (rate, start) in network.items():
        if name.split(" ")[0] not in (INSIDE, BETWEEN):
            raise InputError(
                f"expected channels named inside or between, such as 'between 1', found {name!r}."
            )
        if not (rate > 0 and start >= 0):
            raise InputError(
                f"expected a rate above 0 and a start of 0 s or more of {name}, found {rate} and {start}."
            )
    return {
        name: Channel(units_per_second=rate, start_seconds=start) for name, (rate, start) in network.items()
    }


def exchange_operation(
    name: str,
    buffers: CollectiveBuffers,
    groups: PhaseGroups,
    channels: Mapping[str, Channel],
    **settings: Any,
) -> GraphOperation:
    """Operation of a collective, with all its decompositions."""
    grid = groups.of(buffers.group)
    ranks = grid.nodes * grid.ranks_of_node
    buffers.require_parts(ranks)
    rows = {
        role: tuple(each for each in channels if each.split(" ")[0] == role) for role in (INSIDE, BETWEEN)
    }
    if ranks == 1:
        names = rows[INSIDE] or rows[BETWEEN]
        decompositions: tuple[tuple[CollectivePhase, ...], ...] = (
            (CollectivePhase(kind=buffers.collective, amount=0.0, channels=names, starts=0),),
        )
        labels: tuple[str, ...] = (PLAIN,)
    else:
        decompositions, labels = collective_decompositions(
            buffers.collective,
            float(buffers.size_bytes),
            nodes=grid.nodes,
            ranks_of_node=grid.ranks_of_node,
            inside=rows[INSIDE],
            between=rows[BETWEEN],
        )
    return GraphOperation(
        name=name,
        decompositions=decompositions,
        labels=labels,
        size_bytes=float(buffers.size_bytes),
        **settings,
    )


def collective_graph(
    work: Mapping[str, CollectiveBuffers],
    groups: PhaseGroups,
    *,
    network: Mapping[str, tuple[float, float]] = NETWORK,
    after: Mapping[str, tuple[str, ...]] | None = None,
) -> OperationGraph:
    """Task graph of independent named collectives.

    Args:
        work: The collectives, in the order in which they are submitted.
        groups: Where they run.
        network: Bytes per second and seconds of a step of each channel.
        after: Names of those that each waits for.

    Raises:
        InputError: If tensors do not fit the ranks, or channels or names are not known.
    """
    channels = network_channels(network)
    number = {name: at for at, name in enumerate(work)}
    waits = {name: (after or {}).get(name, ()) for name in work}
    for name, row in waits.items():
        for other in row:
            if other not in number:
                raise InputError(
                    f"expected {name} after collectives that there are ({', '.join(work)}), found {other!r}."
                )
    return OperationGraph(
        operations=tuple(
            exchange_operation(
                name,
                buffers,
                groups,
                channels,
                decision=name,
                after=tuple(number[each] for each in waits[name]),
            )
            for name, buffers in work.items()
        ),
        channels=channels,
    )


def collective_run(
    ordered: OrderedPlan,
    operation: int,
    buffers: CollectiveBuffers,
    groups: PhaseGroups,
    *,
    # The buffers of each piece, asked for when it starts; None: parts of the whole
    of_piece: Callable[[int], CollectiveBuffers] | None = None,
) -> TaskRun:
    """Executor of a collective's phases under a plan; creates the process groups needed."""
    grid = groups.of(buffers.group)
    pieces, label = ordered.pieces(operation), ordered.label(operation)
    each = ordered.graph.operations[operation]
    phases = list(ordered.graph.phases(each, ordered.plan))
    steps = piece_steps(buffers, label, grid, groups.rank)
    if [phase.kind for phase, _ in phases] != [step.kind for step in steps]:
        raise InputError(
            f"expected {each.name} as {', '.join(step.kind for step in steps)} (the {label} decomposition of "
            f"{buffers.collective} of {grid.nodes} x {grid.ranks_of_node} ranks), found "
            f"{', '.join(phase.kind for phase, _ in phases)} in the plan."
        )
    where = [
        groups.group(channel, grid.part(groups.rank, step.role))
        for step, (_, channel) in zip(steps, phases, strict=True)
    ]
    rows: dict[int, tuple[PhaseStep, ...]] = {}

    def run(piece: int, phase: int) -> None:
        if piece not in rows:
            if of_piece is None:
                rows[piece] = piece_steps(buffers, label, grid, groups.rank, piece=piece, pieces=pieces)
            else:
                rows[piece] = piece_steps(of_piece(piece), label, grid, groups.rank)
        rows[piece][phase].run(where[phase])

    return run


class PlanExecutor:
    """Execute a plan repeatedly; :func:`execute_plan` does so once.

    Args:
        ordered: The plan, agreed upon by all ranks.
        groups: Where collectives run.
        device: Where tensors lie.
        timeout_s: Longest wait for a task.
    """

    def __init__(
        self, ordered: OrderedPlan, groups: PhaseGroups, device: torch.device, *, timeout_s: float = 600.0
    ) -> None:
        self.ordered, self._groups = ordered, groups
        names = [name for name in ordered.graph.channels if name.split(" ")[0] in (INSIDE, BETWEEN)]
        self._executor = TaskExecutor(ordered, names, device, timeout_s)

    @property
    def launched(self) -> dict[str, list[str]]:
        """Names of the last run's tasks in launch order, by channel."""
        return self._executor.launched

    def run(self, work: Mapping[str, CollectiveBuffers | ComputedPiece]) -> None:
        """Run all tasks, and wait for them.

        Args:
            work: For each operation its buffers, or what computes a piece.

        Raises:
            InputError: If something is missing, or does not suit the plan.
            CheckError: If a rank does not answer.
        """
        runs: dict[int, TaskRun] = {}
        for number, operation in enumerate(self.ordered.graph.operations):
            if operation.name not in work:
                raise InputError(f"expected buffers of {operation.name}, or what computes it, found none.")
            own = work[operation.name]
            if isinstance(own, CollectiveBuffers):
                runs[number] = collective_run(self.ordered, number, own, self._groups)
            else:
                runs[number] = _computed(own, self.ordered.pieces(number))
        self._executor.begin(runs)
        self._executor.advance()
        self._executor.wait_all()

    def close(self) -> None:
        """Stop its threads."""
        self._executor.close()


def _computed(own: ComputedPiece, pieces: int) -> TaskRun:
    return lambda piece, _: own(piece, pieces)


def execute_plan(
    ordered: OrderedPlan,
    work: Mapping[str, CollectiveBuffers | ComputedPiece],
    groups: PhaseGroups,
    *,
    timeout_s: float = 600.0,
) -> dict[str, list[str]]:
    """Execute a plan; collective over the ranks.

    Args:
        ordered: The plan, agreed upon by all ranks (``agreed_plan``).
        work: For each operation its buffers, or a function that computes a piece (its number, and how many there are).
        groups: Where collectives run.
        timeout_s: Longest wait for a task.

    Returns:
        Names of the tasks in the order in which each channel started them.

    Raises:
        InputError: If something is missing, or does not suit the plan.
        CheckError: If a rank does not answer.

    Examples:
        >>> import torch.distributed as dist
        >>> store = dist.HashStore()
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=store)
        >>> groups, x = PhaseGroups(), torch.ones(4)
        >>> work = {"sums": CollectiveBuffers("all_reduce", x)}
        >>> execute_plan(OrderedPlan.of(collective_graph(work, groups)), work, groups)
        {'inside': ['sums 0.0'], 'between': []}
        >>> dist.destroy_process_group()
    """
    device = next(
        (each.tensor.device for each in work.values() if isinstance(each, CollectiveBuffers)),
        torch.device("cpu"),
    )
    executor = PlanExecutor(ordered, groups, device, timeout_s=timeout_s)
    try:
        executor.run(work)
        return executor.launched
    finally:
        executor.close()
