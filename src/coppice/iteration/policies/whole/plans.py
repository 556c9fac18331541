"""All plans of a small graph of operations, one by one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from coppice.iteration.policies.whole.motifs import GraphOperation, MotifChoice, MotifPlan
from coppice.iteration.policies.whole.operations import OperationGraph

MOVES = ("pieces", "way", "channel", "order")
"""What a plan may settle otherwise than the plain one."""


class PlanSpace:
    """The plans of a graph of operations that settle some things.

    Examples:
        >>> from coppice.iteration.policies.whole.operations import Channel, Motif
        >>> sums = Motif(kind="all_reduce", amount=8.0, channels=("NIC", "host"))
        >>> operation = GraphOperation(name="sums", ways=((sums,),), decision="sums")
        >>> graph = OperationGraph(operations=(operation,), channels={"NIC": Channel(), "host": Channel()})
        >>> PlanSpace(graph, pieces=(1, 2, 4)).count()
        6
    """

    def __init__(
        self, graph: OperationGraph, *, pieces: Sequence[int] = (1,), moves: Sequence[str] = MOVES
    ) -> None:
        self.graph = graph  # The graph
        # Numbers of pieces that an operation may be cut in
        self.pieces = tuple(pieces) if "pieces" in moves else (1,)
        self.moves = frozenset(moves)  # What may be settled, of :data:`MOVES`
        self._decisions = graph.decisions()

    def choices(self, operation: GraphOperation) -> list[MotifChoice]:
        """All that can be settled of an operation, the plain choice first."""
        ways = range(len(operation.ways) if "way" in self.moves else 1)
        found = []
        for way, pieces in itertools.product(ways, self.pieces):
            options = [
                range(len(motif.channels) if "channel" in self.moves else 1) for motif in operation.ways[way]
            ]
            for channels in itertools.product(*options):
                # What is missing is 0: one name for each choice.
                kept = channels[: max((at + 1 for at, each in enumerate(channels) if each), default=0)]
                found.append(MotifChoice(pieces=pieces, way=way, channels=kept))
        return sorted(found, key=lambda each: each != MotifChoice())

    def count(self) -> int:
        """How many plans there are."""
        each = math.prod(len(self.choices(operation)) for operation in self._decisions.values())
        return each * (math.factorial(len(self._decisions)) if "order" in self.moves else 1)

    def plans(self) -> Iterator[MotifPlan]:
        """All of them, the plain one first."""
        names = list(self._decisions)
        orders: Iterator[tuple[str, ...]] = itertools.permutations(names)
        rows = [self.choices(operation) for operation in self._decisions.values()]
        for number, order in enumerate(orders if "order" in self.moves else [()]):
            ranks = {name: rank for rank, name in enumerate(order)} if number else {}
            for row in itertools.product(*rows):
                choices = {
                    name: choice for name, choice in zip(names, row, strict=True) if choice != MotifChoice()
                }
                yield MotifPlan(choices=choices, ranks=ranks)

    def best(self) -> tuple[MotifPlan, float]:
        """The first of those that take least, and its time."""
        found, least = MotifPlan(), math.inf
        for plan in self.plans():
            seconds = self.graph.seconds(plan)
            if seconds < least:
                found, least = plan, seconds
        return found, least
