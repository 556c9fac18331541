"""The schedules of a candidate, and how far their chunks may be cut."""

from __future__ import annotations

import numpy as np

from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.comparison.candidates import AlgorithmVariant
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import Value
from coppice.planners.choice import FOREST, Choice, make_body
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.schedule import Schedule, routed
from coppice.topology.model import NodeKind

__all__ = ["LEAST_PIECE_BYTES", "Bodies", "most_pieces", "relays"]

LEAST_PIECE_BYTES = 4096
"""Chunks are cut into pieces and segments of this size on average, or larger ones: the simulated GPUs start any number
of messages at no cost but delay, and real ones do not."""

MOST_PIECES = 256
MAX_ROWS = 2**20
FEW_PIECES = 16
"""Cutting makes at most ``MAX_ROWS`` transfers, but up to ``FEW_PIECES`` pieces of every chunk in any case."""


class Bodies:
    """Schedules of a candidate by the value of its doubled parameter, each made once.

    Args:
        problem: What they implement.
        candidate: The algorithm with its fixed parameters.
        plain: The problem's bound.
    """

    def __init__(self, problem: Problem, candidate: AlgorithmVariant, plain: Bound) -> None:
        self.problem = problem
        self.candidate = candidate
        self._plain = plain
        self._made: dict[int, Forest | Schedule] = {}

    def parameters(self, doubled: int) -> dict[str, Value]:
        """All parameters for a value of the doubled one."""
        values = dict(self.candidate.parameters)
        if self.candidate.doubled is not None:
            values[self.candidate.doubled] = doubled
        return values

    def body(self, doubled: int) -> Forest | Schedule:
        """The schedule for a value of the doubled parameter, ready for many simulations.

        Raises:
            InputError: If the algorithm does not apply.
        """
        if doubled not in self._made:
            candidate = self.candidate
            choice = Choice.of(
                self.problem,
                algorithm=candidate.algorithm,
                parameters=self.parameters(doubled),
                order=candidate.order,
                relay_gpus=candidate.relay_gpus,
                trees=None,
                tolerance=None,
                in_network=candidate.in_network and candidate.algorithm == FOREST,
            )
            body = _ready(make_body(self.problem, choice, self._plain).body)
            if isinstance(body, Forest) and not candidate.in_network:
                msg = f"{candidate.algorithm} lets switches copy and add: allow that with `in_network`."
                raise InputError(msg)
            self._made[doubled] = body
        return self._made[doubled]


def most_pieces(body: Forest | Schedule, size_bytes: int) -> int:
    """Number of pieces into which every chunk may be cut before they get too small or too many."""
    if isinstance(body, Schedule):
        chunks, rows = body.num_chunks, body.num_transfers
    else:
        chunks, rows = body.num_trees * body.num_images, body.num_edges * body.num_images
    by_size = size_bytes // (LEAST_PIECE_BYTES * max(chunks, 1))
    return max(1, min(MOST_PIECES, by_size, max(FEW_PIECES, MAX_ROWS // max(rows, 1))))


def relays(body: Forest | Schedule) -> bool:
    """Whether a path passes through GPUs on its way."""
    inner = np.ones(len(body.path_nodes), dtype=np.bool_)
    inner[body.path_start[:-1]] = False
    inner[body.path_start[1:] - 1] = False
    return bool((body.topology.kind[body.path_nodes[inner]] == NodeKind.GPU).any())


def _ready(body: Forest | Schedule) -> Forest | Schedule:
    """The same with what every simulation needs: trees as transfers, and a route for each.

    Trees that branch at switches stay as they are.
    """
    if isinstance(body, Forest):
        if body.branches_at_switches:
            return body
        body = lower(body)
    return routed(body)
