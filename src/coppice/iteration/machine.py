"""A cluster as a training job sees it: boxes of GPUs, the rates that they reach, and what collectives take.

Collectives are rings, inside a box or across boxes, where the groups of a box share its NICs. What operators of layers
take is in :mod:`coppice.iteration.workload.times`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coppice.iteration.costs.group import CollectiveCosts, RankGroup, crossing
from coppice.iteration.devices import KERNELS, POWER, UNCAPPED, Calibration, Cap, Device
from coppice.iteration.frameworks import MEGATRON, Framework
from coppice.iteration.measured.table import DeviceTable


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Boxes of GPUs on a non-blocking network."""

    device: Device  # The GPUs
    nic_bytes_per_second: float  # What the NICs of a box send together, in one direction
    calibration: Calibration  # What was measured on such GPUs
    # How much faster than with 16 bits matrix products are in the precision of the job
    precision: float = 1.0
    # What such a GPU reached when it was measured, which takes the place of constants of the calibration
    table: DeviceTable | None = None
    shares_nics: bool = False  # A box has fewer NICs than GPUs
    # What a GPU sends directly to GPUs outside of its group in a box, by ranks and stride of the group
    apart: tuple[tuple[tuple[int, int], float], ...] = ()
    # Where the times of collectives come from; None: rings by formula and calibration
    costs: CollectiveCosts | None = None
    framework: Framework = MEGATRON  # What the job is run with
    cap: Cap = UNCAPPED  # Limits of the power and of the clock of its GPUs

    @property
    def calibrated(self) -> Cluster:
        """The same cluster with closed-form collectives."""
        return self if self.costs is None else replace(self, costs=None)

    @property
    def clock_shares(self) -> tuple[float, float, float]:
        """Share of the clock that capped GPUs keep in products: the least, as taken, and the most.

        Measured GPUs are as they were measured.

        Examples:
            >>> [round(each, 2) for each in capped(box_of("H100"), Cap(power_watts=500)).clock_shares]
            [0.71, 0.85, 0.89]
            >>> capped(box_of("A100-80G"), Cap(clock_mhz=1410)).clock_shares, box_of("H100").clock_shares
            ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0))
        """
        if self.table is not None:
            return 1.0, 1.0, 1.0
        device, cap = self.device, self.cap
        watts = cap.power_watts or device.limit_watts
        power = min(1.0, watts / device.power_watts) if watts and device.power_watts else 1.0
        clock = min(1.0, cap.clock_mhz / device.clock_mhz) if cap.clock_mhz and device.clock_mhz else 1.0
        least, taken, most = (min(clock, power**each) for each in POWER)
        return least, taken, most

    @property
    def clock_share(self) -> float:
        """Share of the clock that capped GPUs are taken to keep in products."""
        return self.clock_shares[1]

    @property
    def host_seconds(self) -> float:
        """CPU launch time of a pass over a layer."""
        if self.table is not None and self.table.launch_seconds:
            return KERNELS * self.table.launch_seconds
        return self.framework.host_seconds

    @property
    def gradient_share(self) -> float:
        """Share of the rate of NICs that gradient all-reduces reach."""
        return self.framework.gradient_share or self.calibration.gradient_share

    @property
    def memory_rate(self) -> float:
        """Memory bandwidth in bytes per second."""
        if self.table is not None:
            return self.table.memory_rate
        return self.device.memory_bytes_per_second * self.calibration.memory_share

    def near_rate(self, ranks: int, stride: int) -> float:
        """Rate of a GPU to its neighbours in the box, in bytes per second."""
        own = self.device.link_bytes_per_second - dict(self.apart).get((ranks, stride), 0.0)
        return own * self.calibration.near_share

    def ring_seconds(
        self, size_bytes: float, ranks: int, stride: int, *, rounds: int = 2, share: float = 0.0
    ) -> float:
        """Time of concurrent ring all-gathers or reduce-scatters (1 round) or all-reduces (2 rounds).

        All groups do so at once; those of a box share its NICs. Where GPUs share NICs, a group with some GPUs of a box
        has one at most at each of them: its ring comes in there and leaves from the GPU of another, the way of which to
        that NIC crosses the processors of the box, at half the rate.

        Args:
            size_bytes: Bytes of the whole buffer of a rank.
            rounds: 1 or 2.
            share: Share of the rate of NICs; 0: that of all communication but gradients.
        """
        if ranks == 1:
            return 0.0
        if self.costs is not None:
            name = "all_reduce" if rounds == 2 else "all_gather"
            return self.costs.cost(name, size_bytes, RankGroup(ranks, stride), gradients=share > 0).seconds
        constants, hops = self.calibration, rounds * (ranks - 1)
        moved = hops / ranks * size_bytes
        inside = min(ranks, max(1, self.device.box // stride))
        near = moved / self.near_rate(inside, stride)
        groups = crossing(ranks, stride, self.device.box).groups
        if not groups:
            return constants.near_seconds + near
        if self.shares_nics and 1 < inside < self.device.box:
            groups *= 2
        far = moved * groups / (self.nic_bytes_per_second * (share or constants.far_share))
        waits = (constants.near_seconds if inside > 1 else 0.0) + constants.far_seconds * hops
        return waits + max(near if inside > 1 else 0.0, far)

    def replicas_seconds(
        self, size_bytes: float, ranks: int, sharing: int, stride: int, *, collective: str = "all_reduce"
    ) -> float:
        """Time of a collective between replicas; where groups of them shard, in groups and then across.

        Args:
            size_bytes: Bytes of the whole buffer of a rank.
            ranks: Number of replicas.
            sharing: Number of neighbours that shard together.
            stride: Ranks from a replica to the next one.
            collective: `all_reduce`; `reduce_scatter`, which sums shares across groups; or `all_gather` in groups.
        """
        rounds, share = 2 if collective == "all_reduce" else 1, self.gradient_share
        inside = self.ring_seconds(size_bytes, sharing, stride, rounds=rounds, share=share)
        groups = ranks // sharing
        if groups == 1 or collective == "all_gather":
            return inside
        return inside + self.ring_seconds(size_bytes / sharing, groups, stride * sharing, share=share)

    def sum_seconds(self, size_bytes: float, ranks: int, *, split: bool) -> float:
        """Time of all-reduces in groups of adjacent ranks.

        Args:
            size_bytes: Bytes of the whole buffer of a rank.
            split: By a reduce-scatter and an all-gather, as sequence parallelism does; rings take as long.
        """
        if self.costs is None or not split or ranks == 1:
            return self.ring_seconds(size_bytes, ranks, 1)
        names = ("reduce_scatter", "all_gather")
        return sum(self.costs.cost(name, size_bytes, RankGroup(ranks, 1)).seconds for name in names)

    def exchange_seconds(
        self, size_bytes: float, ranks: int, stride: int, *, once: float | None = None
    ) -> float:
        """Time of a balanced all-to-all.

        All groups at a stride do so at once. What stays in a box crosses its links, the rest the NICs that its GPUs
        share; both at the same time. Where what goes to a box goes there once, a GPU of it hands it on to the others.

        Args:
            size_bytes: Bytes of the whole buffer of a rank.
            once: Share of what leaves a box that does, where nothing goes to a box more than once; None: all.
        """
        if ranks == 1 or not size_bytes:
            return 0.0
        inside = min(ranks, max(1, self.device.box // stride))
        fans_out = once is not None and inside < ranks
        if self.costs is not None:
            if not fans_out or once is None:
                return self.costs.cost("all_to_all", size_bytes, RankGroup(ranks, stride)).seconds
            crossed = self.costs.cost("all_to_all", once * size_bytes, RankGroup(ranks, stride)).seconds
            if inside == 1:
                return crossed
            return crossed + self.costs.cost("all_to_all", size_bytes, RankGroup(inside, stride)).seconds
        constants = self.calibration
        near = size_bytes * (inside - 1) / (inside if fans_out else ranks) / self.near_rate(inside, stride)
        out = crossing(ranks, stride, self.device.box)
        if not out.groups:
            return constants.near_seconds + near
        far = size_bytes * out.exchanged / (self.nic_bytes_per_second * constants.far_share)
        far *= 1.0 if once is None else once
        return constants.near_seconds + constants.far_seconds * out.outside + max(near, far)

    def send_seconds(self, size_bytes: float, stride: int, ranks: int = 2) -> float:
        """Time of concurrent sends of all ranks to their successors in strided groups."""
        if self.costs is not None:
            return self.costs.cost("send", size_bytes, RankGroup(ranks, stride)).seconds
        constants = self.calibration
        near = size_bytes / self.near_rate(2, stride) if stride < self.device.box else 0.0
        sends = crossing(ranks, stride, self.device.box).sends
        if not sends:
            return constants.near_seconds + near
        far = size_bytes * sends / (self.nic_bytes_per_second * constants.far_share)
        return constants.near_seconds + constants.far_seconds + max(near, far)
