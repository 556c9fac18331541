"""Times of bodies that are compared at a size, none of which is simulated twice in the same protocol and pieces.

A search comes to the same schedule in many ways: a forest is looked at for several sizes, its mirror before it is put
in order and before it is reworked, and an algorithm of the catalogue is made again once it is taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import sha256
from weakref import WeakKeyDictionary

import numpy as np

from coppice.schedule.forest import Forest
from coppice.schedule.messages import RoutedBody, routed_body
from coppice.schedule.schedule import Schedule
from coppice.simulation.models import Model
from coppice.simulation.simulator import MOST_PIECES, KnownTrials, TimedTrial, searched


class KnownTimes:
    """Trials of bodies under a model, by what they carry out.

    Examples:
        >>> from coppice.planners.planning import plan
        >>> from coppice.simulation.models import model_of
        >>> times = KnownTimes(model_of("alpha-beta"))
        >>> bodies = [plan("ring", "all_gather").plan.body for _ in range(2)]
        >>> [times.fastest(body, 2**20).pieces for body in bodies], len(times)
        ([1, 1], 2)
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._rows: WeakKeyDictionary[Schedule | Forest, tuple[RoutedBody, bytes]] = WeakKeyDictionary()
        self._trials: dict[tuple[bytes, int], KnownTrials] = {}

    def __len__(self) -> int:
        """Trials that were made."""
        return sum(map(len, self._trials.values()))

    def fastest(
        self,
        body: Schedule | Forest,
        size_bytes: int,
        *,
        most: int = MOST_PIECES,
        enough_us: float = 0.0,
        below_us: float = math.inf,
        give_up_us: float = math.inf,
        least_us: Mapping[str | None, float] | None = None,
        gain: float = 0.0,
    ) -> TimedTrial:
        """The trial that :func:`coppice.simulation.simulator.fastest` finds, whose arguments these are.

        Args:
            gain: Where there is a time to undercut, all further doublings of the pieces together are to save more than
                this share of the time.
        """
        if body not in self._rows:
            made = routed_body(body)
            self._rows[body] = made, _digest(made)
        rows, digest = self._rows[body]
        found = searched(
            rows,
            size_bytes,
            self.model,
            pieces=None,
            most=most,
            enough_us=enough_us,
            below_us=below_us,
            give_up_us=give_up_us,
            least_us=least_us,
            gain=gain,
            known=self._trials.setdefault((digest, size_bytes), {}),
        ).best
        assert found is not None
        return found


def _digest(rows: RoutedBody) -> bytes:
    """What bodies have in common that take the same time in any number of pieces."""
    schedule, topology, digest = rows.schedule, rows.topology, sha256(rows.schedule.collective.value.encode())
    for column in (
        *(schedule.slot_weight, schedule.chunk_slot, schedule.chunk_share, schedule.src, schedule.dst),
        *(schedule.chunk, schedule.op, schedule.step, schedule.path, schedule.after_start, schedule.after),
        *(rows.routes.nodes, rows.routes.links, rows.routes.link_start),
        *(topology.src, topology.dst, topology.capacity, topology.latency_us, topology.rank),
    ):
        digest.update(f"{column.dtype.str} {column.shape}".encode() + np.ascontiguousarray(column).tobytes())
    return digest.digest()
