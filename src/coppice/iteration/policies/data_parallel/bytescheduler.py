"""ByteScheduler (Peng et al., SOSP 2019): partitions, priorities and credit.

Messages are cut into partitions; the one of the layer that is needed first goes first. What the transport has taken
on cannot be overtaken, so a partition is given to it only while there is credit: bytes that are not acknowledged. A
partition is started while any credit is left, so credit may fall below 0 by one partition, and gets its bytes back
when it is acknowledged.

Little credit is stop and wait: prompt preemption, and a gap of a round trip for each partition. Much credit is a
queue: no gaps, and an urgent partition waits for all that is in flight. With partitions of p bytes and room for n of
them at a time the throughput is min(bandwidth, n p / (p / bandwidth + round trip)); an urgent one waits for about
credit / bandwidth. Without credit, cost of messages theta: T <= T_opt + S theta / p + p / bandwidth + theta, least
at p = sqrt(S theta bandwidth). Without cost and with endless cutting the priority of layers is optimal, as the paper
is reported to prove (on a chain it is earliest due date: `due_dates`).

The partition and the credit are tuned by Bayesian optimization (section 5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt
from typing import Any, ClassVar

import msgspec
import numpy as np

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.data_parallel.priority import Priority
from coppice.iteration.policies.data_parallel.tuning import tuned_settings
from coppice.iteration.policies.policy import PositiveBytes
from coppice.iteration.step.plan import Message


def optimal_partition_bytes(workload: LayerWorkload) -> float:
    """Partition size that minimises the bound; 0: messages have no overhead.

    Examples:
        >>> ten = LayerWorkload(
        ...     forward=(1,) * 10, backward=(2,) * 10, bytes=(3,) * 10, bytes_per_second=1, message_seconds=0.05
        ... )
        >>> round(optimal_partition_bytes(ten), 4)
        1.2247
    """
    return sqrt(sum(workload.bytes) * workload.message_seconds * workload.bytes_per_second)


class CreditOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Partition size and credit; the defaults are for all-reduces of elements of 4 bytes."""

    partition_bytes: PositiveBytes = 32e6  # Bytes of a partition at most
    credit_bytes: PositiveBytes = 64e6  # Bytes in flight


class ByteScheduler(Priority):
    """Send partitions by priority, with as many in flight as there is credit."""

    name = "bytescheduler"
    about = "partitions by priority within a window of credit (ByteScheduler, SOSP'19)"
    assumes = "an optimizer that updates layer by layer, and one order for all ranks"
    options: ClassVar[type[msgspec.Struct]] = CreditOptions
    tuning_trials: ClassVar[tuple[int, int]] = (10, 30)

    def messages(self, workload: LayerWorkload) -> Sequence[Message]:
        """Partitions that wait for credit."""
        return [
            replace(
                message,
                credit_bytes=self.settings.credit_bytes,
                acknowledgement_seconds=workload.round_trip_seconds,
            )
            for message in super().messages(workload)
        ]

    def choices(self, workload: LayerWorkload) -> Sequence[Mapping[str, Any]]:
        """Grid of 12 partition sizes by 6 credits."""
        largest = max(workload.bytes)
        if not largest:
            return []
        return [
            {"partition_bytes": float(size), "credit_bytes": float(size * room)}
            for size in np.geomspace(largest / 64, largest, 12)
            for room in (1, 2, 3, 4, 8, 16)
        ]

    def tune(self, workload: LayerWorkload) -> dict[str, Any]:
        """Tune partition size and credit by Bayesian optimization: 30 trials on a grid of 12 by 6."""
        return tuned_settings(self, workload, self.choices(workload), *self.tuning_trials)
