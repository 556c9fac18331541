"""Simulate what a library picks: its algorithm in its protocol, on the channels, rings and trees of its own search.

A library estimates the time of its pick by a cost model of its own (:mod:`coppice.selection`). The simulation here has
the links of the topology instead, and knows what they share. Both are told, with the names of their models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from typing import Any

from coppice.bounds.attainable import in_network_optimum
from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.collectives import Collective
from coppice.comparison.measurement import AlgorithmVariant, Bodies, doubled_parameter, fastest_run
from coppice.errors import InputError, UnreachableError
from coppice.planners.algorithms.algorithm import Value
from coppice.planners.algorithms.catalogue import find
from coppice.planners.algorithms.parts.found_orders import orders_text
from coppice.schedule.forest import Forest
from coppice.schedule.loads import body_loads
from coppice.schedule.plan import Plan
from coppice.selection import Selection, select
from coppice.selection.nccl.communicator import FoundCommunicator
from coppice.selection.nccl.connect import TreeNode
from coppice.simulation.models import Model
from coppice.simulation.simulated import Simulated, simulate_sizes
from coppice.simulation.timeline import Timeline
from coppice.topology.generation import GENERATIONS


@dataclass(frozen=True, eq=False, kw_only=True)
class LibraryRun:
    """A library's pick at one size as it runs: its schedule, and its simulated time."""

    selection: Selection  # The pick
    plan: Plan  # Its schedule; not verified
    model: Model  # What simulates it: that of the simulation, in the pick's protocol and channels
    timeline: Timeline  # How it goes, without the links of single messages

    @property
    def time_us(self) -> float:
        """Simulated time."""
        return self.timeline.time_us


class LibraryRuns:
    """Runs of a library's picks for one problem.

    Args:
        problem: What the library performs.
        model: What simulates it.

    Examples:
        >>> from coppice.selection import select
        >>> from coppice.simulation.models import model_of
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(topology=preset("dgx-a100", boxes=2), collective="all_reduce")
        >>> run = LibraryRuns(problem, model_of()).of(select("nccl", "all_reduce", 2**12, topology=problem.topology))
        >>> run.selection.algorithm, run.plan.planner, run.model.protocols, run.model.channels
        ('Tree/LL', 'nccl-tree', ('ll',), 1)
    """

    def __init__(self, problem: Problem, model: Model) -> None:
        self.problem, self.model = problem, model
        self._plain: Bound = bound_of(problem)
        self._bodies: dict[tuple[str, tuple[tuple[str, Value], ...]], Bodies] = {}

    def of(self, selection: Selection) -> LibraryRun:
        """Simulate a pick.

        Raises:
            InputError: If the catalogue lacks its algorithm, or that does not fit the topology.
        """
        if selection.ours is None:
            raise InputError(
                f"expected a pick of {selection.library} with a schedule here, found {selection.algorithm}: "
                f"{selection.reason}; choose another size or collective."
            )
        bodies = self._made(selection.ours, parameters_of(selection))
        model = LibraryWay.of(selection).limited(self.model)
        body, values, timeline = fastest_run(bodies, selection.size_bytes, model)
        plan = Plan(
            problem=self.problem,
            inv_rate=body_loads(body, self.problem).inv_rate,
            forest=body if isinstance(body, Forest) else None,
            schedule=None if isinstance(body, Forest) else body,
            bound=self._helped if isinstance(body, Forest) else self._plain,
            planner=selection.ours,
            parameters={**values, "relay_gpus": bodies.candidate.relay_gpus},
        )
        return LibraryRun(selection=selection, plan=plan, model=model, timeline=timeline)

    @cached_property
    def _helped(self) -> Bound:
        """The bound where switches copy and add."""
        return in_network_optimum(self._plain)

    def _made(self, name: str, parameters: Mapping[str, Value]) -> Bodies:
        """Schedules of an algorithm; GPUs pass data on only where nothing else joins those that exchange it."""
        key = (name, tuple(sorted(parameters.items())))
        if key not in self._bodies:
            variant = variant_of(name, parameters, self.problem.collective)
            made = Bodies(self.problem, variant, self._plain)
            try:
                made.body(1)
            except UnreachableError:
                made = Bodies(self.problem, replace(variant, relay_gpus=True), self._plain)
                made.body(1)
            self._bodies[key] = made
        return self._bodies[key]


@dataclass(frozen=True, kw_only=True)
class LibraryWay:
    """How a library's pick goes over the links."""

    protocol: str = ""  # Protocol in lower case; empty: the model's fastest
    channels: int | None = None  # Channels that get data; None where no search told them
    generation: str = ""  # Generation of the GPUs, as the library took it

    @classmethod
    def of(cls, selection: Selection) -> LibraryWay:
        """Way of a pick."""
        cell, found = selection.cell, selection.found
        return cls(
            protocol="" if cell is None else cell.protocol.lower(),
            channels=None if found is None else selection.channels_filled,
            generation="" if found is None else found.communicator.generation,
        )

    def limited(self, model: Model) -> Model:
        """The model in this protocol and these channels alone, where it knows protocols."""
        if self.protocol not in model.protocols:
            return model
        model = replace(model, protocols=(self.protocol,))
        generation = model.generation or self.generation
        # Rates of channels are known of NVIDIA's GPUs alone.
        if self.channels is None or model.channels is not None or generation not in GENERATIONS:
            return model
        return replace(model, channels=self.channels, generation=generation)


def variant_of(name: str, parameters: Mapping[str, Value], collective: Collective) -> AlgorithmVariant:
    """What is simulated of a library's pick: the catalogue's algorithm, in as many segments as are fastest."""
    return AlgorithmVariant(
        algorithm=name,
        parameters=parameters,
        doubled=doubled_parameter(find(name, collective)),
        in_network=True,
    )


def parameters_of(selection: Selection) -> dict[str, Value]:
    """Parameters of the catalogue's algorithm: the rings and trees of the library's search where it has one."""
    found, count = selection.found, selection.channels_filled
    if found is None or count is None or selection.ours not in SEARCHED:
        return dict(selection.parameters)
    return orders_of(selection.ours, found, count)


SEARCHED = ("nccl-ring", "nccl-tree")
"""Algorithms of the catalogue whose orders of ranks are given by NCCL's search."""


def orders_of(name: str, found: FoundCommunicator, channels: int) -> dict[str, Value]:
    """Rings or trees of a communicator's first channels, as the parameter of an algorithm.

    Args:
        name: One of :data:`SEARCHED`.
        found: What NCCL's search finds.
        channels: Channels that get data.
    """
    made = found.connections
    taken = [channel % made.count for channel in range(channels)]
    if name == "nccl-ring":
        rings = [[(rank, made.ring_nics[each][rank]) for rank in made.rings[each]] for each in taken]
        return {"rings": orders_text(_shares(rings))}
    trees = [list(zip(parents_of(made.trees[each]), made.tree_nics[each], strict=True)) for each in taken]
    return {"trees": orders_text(_shares(trees), parents=True)}


def simulate_picks(
    problem: Problem,  # What the library performs
    library: str,  # One of :data:`coppice.selection.LIBRARIES`
    sizes: Sequence[int],  # Sizes M in bytes
    *,
    model: Model,  # What simulates it
    settings: Mapping[str, str] | None = None,  # Inputs of the library's cost model
    pieces: int | None = None,  # Pieces that every chunk is cut into; None takes the number that is fastest
    on_stage: Callable[[str], None] | None = None,  # Called with words before each size
    **options: Any,  # All other arguments of :func:`coppice.simulation.simulated.simulate_sizes`
) -> list[Simulated]:
    """Simulate what a library picks at every size.

    Raises:
        InputError: If the library has no such collective, or the catalogue lacks what it picks.
    """
    runs, rows = LibraryRuns(problem, model), []
    for size in sizes:
        if on_stage is not None:
            on_stage(f"simulating {size} bytes")
        picked = select(
            library, problem.collective, size, topology=problem.topology, root=problem.root, settings=settings
        )
        run = runs.of(picked)
        (row,) = simulate_sizes(
            run.plan, [size], model=run.model, pieces=pieces or run.timeline.pieces, **options
        )
        rows.append(replace(row, picked=picked))
    return rows


def parents_of(tree: Sequence[TreeNode]) -> tuple[int, ...]:
    """Parent of every rank of a tree; the root is its own.

    Examples:
        >>> parents_of([TreeNode(down=(1,)), TreeNode(up=0)])
        (0, 0)
    """
    return tuple(rank if node.up < 0 else node.up for rank, node in enumerate(tree))


def _shares(orders: Sequence[Sequence[tuple[int, int]]]) -> list[tuple[tuple[int, int], ...]]:
    """The fewest orders with the same shares: equal ones that all occur as often count once."""
    count = Counter(map(tuple, orders))
    each = gcd(*count.values())
    return [order for order, times in count.items() for _ in range(times // each)]
