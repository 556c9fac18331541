"""A cluster as a training job sees it: boxes of GPUs, the rates that they reach, and what collectives take.

Collectives are rings, inside a box or across boxes, where the groups of a box share its NICs. What operators of layers
take is in :mod:`coppice.iteration.workload.times`. Clusters are made from topologies and data sheets.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.iteration.costs.group import CollectiveCosts, RankGroup, crossing
from coppice.iteration.devices import (
    CALIBRATIONS,
    DEVICES,
    KERNELS,
    POWER,
    UNCAPPED,
    Calibration,
    Cap,
    Device,
)
from coppice.iteration.frameworks import MEGATRON, Framework
from coppice.iteration.measured.table import DeviceTable
from coppice.text import suggestion
from coppice.topology.model import Link, Node, NodeKind, Topology


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

    def link_loads(
        self,
        collective: str,
        size_bytes: float,
        group: RankGroup,
        seconds: float,
        *,
        once: float | None = None,
    ) -> Mapping[str, float]:
        """Share of the time for which links inside boxes and NICs are busy at full rate.

        Args:
            size_bytes: Bytes of the whole buffer of a rank.
            seconds: Time that the collective takes.
            once: Of an all-to-all the share of what leaves a box that does, where nothing goes to a box more than once,
                and fans out there; None: all.
        """
        if group.ranks == 1 or not (size_bytes and seconds and math.isfinite(seconds)):
            return {}
        if self.costs is not None:
            return self.costs.cost(collective, size_bytes, group).loads
        box, out = self.device.box, crossing(group.ranks, group.stride, self.device.box)
        inside = min(group.ranks, max(1, box // group.stride))
        if collective == "send":
            near, far = float(group.stride < box), float(out.sends)
        elif collective == "all_to_all":
            fans_out = once is not None and inside < group.ranks
            near = (inside - 1) / (inside if fans_out else group.ranks)
            far = out.exchanged * (1.0 if once is None else once)
        else:
            moved = ROUNDS[collective] * (group.ranks - 1) / group.ranks
            near, far = moved * (inside > 1), moved * out.groups
        busy = {
            "NVLink": near * size_bytes / self.device.link_bytes_per_second if near else 0.0,
            "NIC": far * size_bytes / self.nic_bytes_per_second if far else 0.0,
        }
        return {name: min(1.0, used / seconds) for name, used in busy.items() if used}


ROUNDS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}
"""Times that the ring of a collective goes around."""
_NAMED = {
    "gb300": "GB300",
    "gb200": "GB200",
    "b200": "B200",
    "h100": "H100",
    "h200": "H200",
    "a100": "A100-80G",
    "1v": "V100",
    "v100": "V100",
    "mi300x": "MI300X",
    "mi250x": "MI250X",
}
CONSTANTS = {
    "A100": "A100-80G",
    "H100-96G": "H100",
    "H200": "H100",
    "GB200": "B200",
    "GB300": "B200",
    "MI250X": "A100-80G",
    "MI300X": "H100",
}
"""Whose constants a device takes that has none of its own."""


def constants_borrowed(cluster: Cluster) -> str:
    """GPU whose fitted constants a cluster uses instead of its own; empty if they are its own.

    Examples:
        >>> constants_borrowed(box_of("H200"))
        'constants of H200 are those fitted to H100: none are fitted to it, so times of another chip may be far off'
        >>> constants_borrowed(box_of("H100"))
        ''
    """
    name = cluster.device.name
    measured = cluster.table is not None
    if name in CONSTANTS:
        what = f"constants {'of collectives ' if measured else ''}of {name} are those fitted to {CONSTANTS[name]}"
    elif name not in CALIBRATIONS:
        what = f"constants of collectives of {name} are general ones"
    else:
        return ""
    return f"{what}: none are fitted to it, so times of another chip may be far off"


def gpu_text(cluster: Cluster) -> str:
    """GPU of a cluster in words, with the share of its clock that a capped one keeps.

    Examples:
        >>> gpu_text(box_of("A100-80G")), gpu_text(capped(box_of("H100"), Cap(power_watts=500)))
        ('A100-80G', 'H100, capped at 500 W: 85% of its clock (71% to 89%)')
    """
    device, cap = cluster.device, cluster.cap
    limits = [f"{watts:g} W" for watts in [cap.power_watts or device.limit_watts] if watts]
    limits += [f"{cap.clock_mhz:g} MHz"] if cap.clock_mhz else []
    if not limits or cluster.table is not None:
        return device.name
    least, taken, most = cluster.clock_shares
    words = f"{device.name}, capped at {' and '.join(limits)}: {taken:.0%} of its clock"
    return words if least == most else f"{words} ({least:.0%} to {most:.0%})"


def device_in(name: str) -> str | None:
    """Device named in the topology's name.

    Examples:
        >>> device_in("4 x dgx-a100"), device_in("ring")
        ('A100-80G', None)
    """
    return next((device for word, device in _NAMED.items() if word in name.lower()), None)


def box_of(device: str) -> Cluster:
    """Box of GPUs from their data sheet, without a network.

    Examples:
        >>> box_of("H100").device.box
        8
    """
    if device not in DEVICES:
        raise InputError(
            f"expected a device ({', '.join(DEVICES)}), found {device!r}: {suggestion(device, list(DEVICES))}."
        )
    sheet = DEVICES[device]
    rate = sheet.link_bytes_per_second * sheet.box
    return Cluster(
        device=sheet,
        nic_bytes_per_second=rate,
        calibration=CALIBRATIONS.get(CONSTANTS.get(device, device)) or Calibration(),
    )


def cluster_of(topology: Topology, device: str | DeviceTable | None = None) -> Cluster:
    """Cluster of a topology.

    Links of a GPU and of the NICs of a box have the rates of the topology; peaks and constants are the device's.

    Args:
        device: Name of the GPUs, or what one of them reached when it was measured; None takes it from the name of
            the topology.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = cluster_of(preset("dgx-a100", boxes=4))
        >>> found.device.name, found.device.box, found.device.link_bytes_per_second, found.nic_bytes_per_second
        ('A100-80G', 8, 300000000000.0, 200000000000.0)
    """
    table = device if isinstance(device, DeviceTable) else None
    name = device if isinstance(device, str) else device_in(topology.name)
    if table is not None:
        name = table.device or device_in(table.name) or name
    if table is not None and name not in DEVICES:
        sheet = Device(
            name=table.name,
            flops=table.most_flops,
            memory_bytes_per_second=table.memory_rate,
            memory_bytes=table.memory_bytes,
            link_bytes_per_second=0.0,
        )
        return _cluster(topology, sheet, Calibration(), table)
    if name not in DEVICES:
        found = (
            f"topology {topology.name!r}"
            if not isinstance(device, str)
            else f"{device!r}: {suggestion(device, list(DEVICES))}"
        )
        raise InputError(
            f"expected a device ({', '.join(DEVICES)}) to name, found {found}: name one (`device=A100-80G`)."
        )
    return _cluster(
        topology, DEVICES[name], CALIBRATIONS.get(CONSTANTS.get(name, name)) or Calibration(), table
    )


def capped(cluster: Cluster, cap: Cap) -> Cluster:
    """A cluster whose GPUs have a limit of their power or clock.

    Computation follows the clock; memory, links and the host do not.

    Raises:
        InputError: If nothing says what the limit leaves of such a GPU.

    Examples:
        >>> capped(box_of("H100"), Cap(clock_mhz=915)).clock_share
        0.5
    """
    for name, given, known in (
        ("power_watts", cap.power_watts, cluster.device.power_watts),
        ("clock_mhz", cap.clock_mhz, cluster.device.clock_mhz),
    ):
        if given and cluster.table is not None:
            raise InputError(
                f"`cluster.{name}`: expected GPUs from a data sheet, found measured ones ({cluster.table.name}): "
                "measure them under that limit."
            )
        if given and not known:
            raise InputError(
                f"`cluster.{name}`: expected a GPU whose data sheet has it, found {cluster.device.name}: leave it out."
            )
    return replace(cluster, cap=cap)


def _let_through(topology: Topology) -> float:
    """Bytes a second that the network carries from any set of boxes to the others and back."""
    boxes = sorted(set(topology.host[topology.rank_nodes].tolist()))
    place = {host: str(number) for number, host in enumerate(boxes)}
    ends = [place.get(int(topology.host[v]), name) for v, name in enumerate(topology.node_ids)]
    nodes = [Node(id=name) for name in place.values()]
    nodes += [
        Node(id=name, kind=NodeKind.SWITCH) for name in dict.fromkeys(ends) if name not in place.values()
    ]
    links = [
        Link(src=ends[a], dst=ends[b], gb_per_s=Fraction(units, topology.denominator), duplex=False)
        for a, b, units in zip(
            topology.src.tolist(), topology.dst.tolist(), topology.capacity.tolist(), strict=True
        )
        if ends[a] != ends[b]
    ]
    network = Topology.of(topology.name, nodes, links)
    ways = (Collective.BROADCAST, Collective.REDUCE)
    return min(float(bound_of(Problem(network, way, root=0)).algbw_gb_per_s) * 1e9 for way in ways)


def _no_more_than(rate: float, most: float, whose: str, where: str) -> float:
    """Rate of calibrated rings, capped at what the topology carries, with a note where it is."""
    if rate <= most * (1 + 1e-9):
        return rate
    warnings.warn(
        f"{whose} send {rate / 1e9:.6g} GB/s and the network lets {most / 1e9:.6g} GB/s through {where}: calibrated "
        "rings are reckoned with the latter (`collectives=nccl` simulates them).",
        stacklevel=4,
    )
    return most


def _cluster(
    topology: Topology, sheet: Device, calibration: Calibration, table: DeviceTable | None
) -> Cluster:
    """Cluster of a topology with the GPUs of a data sheet."""
    ranks = np.flatnonzero(topology.rank >= 0)
    boxes = np.unique(topology.host[ranks], return_counts=True)
    if len(set(boxes[1].tolist())) > 1:
        raise InputError(
            f"expected boxes with as many GPUs each, found {', '.join(map(str, sorted(set(boxes[1].tolist()))))}."
        )
    rates = topology.capacity / topology.denominator * 1e9
    from_host, to_host = topology.host[topology.src], topology.host[topology.dst]
    from_gpu, leaves = topology.rank[topology.src] >= 0, (from_host >= 0) & (from_host != to_host)
    nics = float(rates[leaves].sum()) / len(boxes[0])
    # What GPUs send to NICs of their box leaves it, as much as these carry.
    relayed = float(rates[leaves & ~from_gpu].sum())
    links = (float(rates[from_gpu & (from_host == to_host)].sum()) - relayed) / len(ranks)
    if len(boxes[0]) > 1:
        nics = _no_more_than(
            nics, _let_through(topology), f"the NICs of a box of {topology.name}", "between boxes"
        )
    own = replace(
        sheet,
        memory_bytes=(table and table.memory_bytes) or sheet.memory_bytes,
        link_bytes_per_second=links,
        box=int(boxes[1][0]),
    )
    return Cluster(
        device=own,
        nic_bytes_per_second=nics or links * own.box,
        calibration=calibration,
        table=table,
        shares_nics=0 < int(leaves.sum()) < len(ranks),
        apart=_apart(topology, own.box),
    )


def _apart(topology: Topology, box: int) -> tuple[tuple[tuple[int, int], float], ...]:
    """Peak rate from a GPU directly to GPUs of its box outside its group, by ranks and stride of groups.

    A group whose members have no path to each other but through other GPUs counts as one with all links.
    """
    src, dst = topology.rank[topology.src], topology.rank[topology.dst]
    direct = (src >= 0) & (dst >= 0) & (src // box == dst // box)
    if not direct.any():
        return ()
    rates = topology.capacity / topology.denominator * 1e9
    degrees = [each for each in range(1, box + 1) if box % each == 0]
    found: dict[tuple[int, int], float] = {}
    for stride in degrees:
        for ranks in (each for each in degrees if each > 1 and each * stride <= box):
            group = (
                np.arange(topology.num_ranks) // (stride * ranks) * stride
                + np.arange(topology.num_ranks) % stride
            )
            out = np.zeros((2, topology.num_ranks))
            for row, chosen in enumerate((direct, direct & (group[src] != group[dst]))):
                np.add.at(out[row], src[chosen], rates[chosen])
            if (out[1] < out[0]).all() and out[1].any():
                found[ranks, stride] = float(out[1].max())
    return tuple(found.items())
