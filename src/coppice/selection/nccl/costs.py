"""The cost model of NCCL: predicted time of every algorithm and protocol, term by term.

``time = latency + bytes / bandwidth``, with a latency and a bandwidth for each (collective, algorithm, protocol) that
follow from a few properties of the communicator and of the channels that its topology search found. The constants, and
where releases reckon differently, are those of :mod:`coppice.selection.nccl.releases`. Figures are double precision
here and single precision in NCCL: about six digits agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from coppice.collectives import Collective
from coppice.display import Brief
from coppice.selection.nccl.releases import constants
from coppice.topology.generation import GENERATIONS

if TYPE_CHECKING:
    from coppice.outputs.shapes.timing import CostCellJson


ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
_SERVED = {
    Collective.ALL_REDUCE: ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree"),
    Collective.ALL_GATHER: ("Ring", "PAT", "NVLS", "CollNetDirect"),
    Collective.REDUCE_SCATTER: ("Ring", "PAT", "NVLS", "CollNetDirect"),
    Collective.BROADCAST: ("Ring",),
    Collective.REDUCE: ("Ring",),
}
PATHS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
"""Classes of paths from the best to the worst."""


@dataclass(frozen=True, kw_only=True)
class Channels:
    """Result of the topology search for a pattern."""

    count: int  # Number of channels
    within: float  # GB/s of a channel inside a box
    across: float  # GB/s of a channel between boxes
    within_type: str = "NVL"  # Class of the worst path inside a box (NVL, PIX, ...)
    across_type: str = "PIX"  # Class of the worst path between a GPU and its NIC
    latency_us: float = 0.0  # Latency that the network itself states
    same: bool = True  # All channels take the GPUs in the same order

    def of(self, count: int) -> Channels:
        """So many of these channels."""
        return replace(self, count=count)


@dataclass(frozen=True, kw_only=True, repr=False)
class NcclCommunicator(Brief):
    """Properties of a communicator that the cost model uses."""

    ranks: int  # Number of ranks
    nodes: int  # Number of boxes (domains of NVLink)
    generation: str  # `volta`, `ampere`, `hopper` or `blackwell`
    cpu: str  # `intel`, `amd` or another name
    ring: Channels  # Channels of the ring
    tree: Channels  # Channels of the tree, which PAT uses as well
    nvls: Channels | None = None  # Channels of NVLS, None where the box has no NVLink SHARP
    collnet_direct: Channels | None = None  # Channels of CollNetDirect, None where the network cannot add
    collnet_chain: Channels | None = None  # Channels of CollNetChain, None likewise
    nvswitch: bool = True  # GPUs are joined by NVSwitches
    plain_tree: bool = False  # The tree has one NIC's traffic on one GPU (pattern `TREE`)
    mixed: bool = False  # GPUs differ in compute capability
    channels: int  # Channels of a kernel for rings and trees at most
    nvls_channels: int = 0  # Channels of a kernel for NVLS
    release: str = ""  # One of :func:`coppice.selection.nccl.releases.known_releases`; empty: the newest

    @property
    def per_node(self) -> float:
        """Ranks per box, on average."""
        return self.ranks / self.nodes

    @property
    def capability(self) -> int:
        """Compute capability times ten: 70, 80, 90, 100."""
        return GENERATIONS[self.generation]

    def of(self, algorithm: str) -> Channels | None:
        """Channels of an algorithm's pattern."""
        return {
            "Tree": self.tree,
            "Ring": self.ring,
            "CollNetDirect": self.collnet_direct,
            "CollNetChain": self.collnet_chain,
            "NVLS": self.nvls,
            "NVLSTree": self.nvls,
            "PAT": self.tree,
        }[algorithm]


@dataclass(frozen=True, kw_only=True, repr=False)
class CostCell(Brief):
    """Predicted time of one algorithm with one protocol."""

    algorithm: str  # NCCL's name of the algorithm
    protocol: str  # NCCL's name of the protocol
    # Predicted time, None where it is not available; not less than the links allow where these are known
    time_us: float | None = None
    latency_us: float = 0.0  # Its latency term
    gb_per_s: float = 0.0  # Its algorithm bandwidth: `bytes / (1000 gb_per_s)` is the other term
    terms: tuple[str, ...] = ()  # How latency and bandwidth come about, in words with the numbers put in
    unavailable: str | None = None  # Why it is not available
    # What the library's model promises, where that is less than the links allow
    promised_us: float | None = None

    @property
    def model_us(self) -> float:
        """Time by the library's own model, which decides its pick, without the bound."""
        return (self.time_us or 0.0) if self.promised_us is None else self.promised_us

    def record(self) -> CostCellJson:
        """The cell as JSON values."""
        return {
            "algorithm": self.algorithm,
            "protocol": self.protocol,
            "time_us": self.time_us,
            "promised_us": self.promised_us,
            "latency_us": self.latency_us,
            "rate_gb_per_s": self.gb_per_s,
            "gb_per_s": self.gb_per_s,
            "terms": list(self.terms),
            "unavailable": self.unavailable,
        }


def cells(comm: NcclCommunicator, collective: Collective, size_bytes: int) -> tuple[CostCell, ...]:
    """Every algorithm and protocol for ``collective``, in NCCL's order.

    Args:
        comm: The communicator, of two ranks or more.
        collective: All-reduce, all-gather, reduce-scatter, broadcast or reduce.
        size_bytes: M (see :mod:`coppice.collectives`), which is NCCL's own count of bytes.
    """
    found = []
    rules = constants(comm.release).rules
    gathers = collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    absent = {
        "PAT": not rules.pat_share,
        "NVLS": gathers and not rules.nvls_gather_share,
        "CollNetDirect": gathers and not rules.collnet_gathers,
    }
    for algorithm in (name for name in ALGORITHMS if name in _SERVED[collective] and not absent.get(name)):
        for protocol in PROTOCOLS:
            channels = comm.of(algorithm)
            reason = _unavailable(comm, collective, algorithm, protocol)
            if channels is None or reason is not None:
                found.append(CostCell(algorithm=algorithm, protocol=protocol, unavailable=reason))
            else:
                found.append(_cell(comm, collective, algorithm, protocol, channels, size_bytes))
    return tuple(found)


def _unavailable(comm: NcclCommunicator, collective: Collective, algorithm: str, protocol: str) -> str | None:
    """Why a cell is not available, or None."""
    channels = comm.of(algorithm)
    if algorithm not in ("Tree", "Ring") and protocol != "Simple":
        return f"{algorithm} has the protocol Simple only"
    if algorithm == "PAT":
        return None if comm.nodes == comm.ranks else "PAT is for one rank in each box"
    if algorithm == "NVLSTree" and comm.nodes == 1:
        return "NVLSTree is for several boxes"
    if algorithm == "NVLS" and comm.nodes > 1 and comm.collnet_direct is None:
        return "NVLS across boxes needs a network that adds (CollNet), which is off by default"
    if channels is None:
        if algorithm.startswith("NVLS"):
            return "NVLS needs NVSwitches that add, and Hopper or later"
        return "the network does not add, or NCCL_COLLNET_ENABLE is not set"
    if algorithm.startswith("NVLS") and channels.count < 2:
        return f"NVLS needs 2 channels or more, found {channels.count}"
    if algorithm.startswith("NVLS") and not min(channels.within, channels.across):
        return "its channels have no rate"
    if algorithm.startswith("CollNet") and math.ceil(comm.per_node) > 8:
        return f"CollNet takes up to 8 GPUs in a box, found {math.ceil(comm.per_node)}"
    if algorithm == "CollNetDirect" and not comm.nvswitch:
        return "CollNetDirect needs NVSwitches"
    if algorithm in ("NVLS", "CollNetDirect") and collective is not Collective.ALL_REDUCE and comm.nodes > 1:
        return "a network plugin would have to perform it itself, with one NIC for each GPU"
    if protocol == "LL128":
        return _no_ll128(comm, channels)
    return None


def _no_ll128(comm: NcclCommunicator, channels: Channels) -> str | None:
    worst, rules = "PXN" if comm.capability >= 90 else "PXB", constants(comm.release).rules
    if comm.capability > rules.ll128_most_capability:
        return f"LL128 goes up to compute capability {rules.ll128_most_capability / 10:g} in this release"
    if comm.capability < 70:
        return "LL128 needs Volta or later"
    if comm.mixed and comm.capability < rules.ll128_mixed_from:
        later = " before Hopper" if rules.ll128_mixed_from == GENERATIONS["hopper"] else ""
        return f"LL128 needs GPUs of one compute capability{later}"
    if comm.nodes > 1 and PATHS.index(channels.across_type) > PATHS.index(worst):
        return f"LL128 needs paths to NICs of class {worst} or better, found {channels.across_type}"
    if PATHS.index(channels.within_type) > PATHS.index("NVB"):
        return f"LL128 needs NVLink between GPUs, found {channels.within_type}"
    return None


def _cell(
    comm: NcclCommunicator,
    collective: Collective,
    algorithm: str,
    protocol: str,
    channels: Channels,
    size_bytes: int,
) -> CostCell:
    bandwidth, rate_terms = _bandwidth(comm, collective, algorithm, protocol, channels)
    latency, words = latency_terms(comm, collective, algorithm, protocol, channels, constants(comm.release))
    return corrected_cell(
        CostCell(
            algorithm=algorithm,
            protocol=protocol,
            latency_us=latency,
            gb_per_s=bandwidth,
            terms=(*words, *rate_terms),
        ),
        collective,
        size_bytes,
        ranks=comm.ranks,
        channels=comm.channels,
        several=comm.nodes > 1,
        capability=comm.capability,
        common_cpu=comm.cpu in ("intel", "amd"),
        release=comm.release,
    )


def corrected_cell(
    cell: CostCell,
    collective: Collective,
    size_bytes: int,
    *,
    ranks: int,
    channels: int,
    several: bool,
    capability: int,
    common_cpu: bool,
    release: str = "",
) -> CostCell:
    """Time a cell of NCCL's table at a size, with the corrections that all-reduces get there.

    Args:
        cell: Latency and bandwidth as the table has them.
        size_bytes: M (see :mod:`coppice.collectives`), which is NCCL's own count of bytes.
        ranks: Ranks of the communicator.
        channels: All channels of the communicator.
        several: Ranks are in several boxes.
        capability: Compute capability times ten.
        common_cpu: Processors are Intel's or AMD's.
        release: One of :func:`coppice.selection.nccl.releases.known_releases`; empty: the newest.

    Examples:
        >>> table = CostCell(algorithm="Ring", protocol="Simple", latency_us=10.0, gb_per_s=100.0)
        >>> box = {"ranks": 16, "channels": 16, "capability": 90, "common_cpu": True}
        >>> [corrected_cell(table, Collective.ALL_REDUCE, 2**20, several=x, **box).time_us for x in (False, True)]
        [20.48576, 24.48576]
    """
    latency, bandwidth, terms = cell.latency_us, cell.gb_per_s, list(cell.terms)
    if collective is Collective.ALL_REDUCE:
        blackwell = capability >= GENERATIONS["blackwell"] and common_cpu
        blackwell = blackwell and constants(release).rules.nvls_tree_correction
        factor = _correction(cell.algorithm, cell.protocol, size_bytes, nvls_tree=blackwell)
        if factor is not None:
            bandwidth *= factor
            terms.append(f"tree correction at this size: x {factor:g}")
        part = size_bytes // (channels * ranks)
        if (
            cell.algorithm == "Ring"
            and cell.protocol == "Simple"
            and several
            and part >= _LEAST_PLATEAU_BYTES
        ):
            before = capability < GENERATIONS["ampere"]
            plateau = constants().plateau["before_ampere" if before else "ampere_and_later"]
            latency *= plateau
            terms.append(f"plateau: {part} bytes per channel and rank >= 64: latency x {plateau:g}")
    return replace(
        cell,
        time_us=latency + size_bytes / (1000 * bandwidth),
        latency_us=latency,
        gb_per_s=bandwidth,
        terms=tuple(terms),
    )


_LEAST_PLATEAU_BYTES = 64


def _correction(algorithm: str, protocol: str, size_bytes: int, *, nvls_tree: bool) -> float | None:
    """Factor on the rate of trees, by size in powers of two from 64 bytes."""
    power = (size_bytes >> 6).bit_length() - 1
    table = constants().tree_correction[protocol]
    # NCCL leaves the last entry of the table to NVLSTree.
    if algorithm == "Tree" and 0 <= power < len(table) - 1:
        return table[power]
    return table[power] if algorithm == "NVLSTree" and nvls_tree and 0 <= power < len(table) else None


def _bandwidth(
    comm: NcclCommunicator, collective: Collective, algorithm: str, protocol: str, channels: Channels
) -> tuple[float, list[str]]:
    """Algorithm bandwidth in GB/s, before corrections by size."""
    data, generation = constants(comm.release), comm.generation
    rules, gathers = data.rules, collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    column = min(comm.nodes, 3) - 1
    row = generation if comm.nodes == 1 else data.ll_rows_across_nodes.get(comm.cpu, "volta")
    ll_most = data.ll_gb_per_s[row][column]
    collnet = algorithm.startswith("CollNet")
    terms: list[str] = []
    each = channels.within if comm.nodes <= 2 or collnet else channels.across
    if algorithm.startswith("NVLS"):
        each, words = _nvls_rate(comm, collective, algorithm, channels, column)
        terms.append(words)
    bus = channels.count * each
    terms += [f"{channels.count} channels x {each:.6g} GB/s = {bus:.6g} GB/s"]

    limits = {
        name: channels.count * rates[generation][column]
        for name, rates in (
            ("ring LL128", data.ring_ll128_gb_per_s_per_channel),
            ("tree LL128", data.tree_ll128_gb_per_s_per_channel),
            ("tree", data.tree_gb_per_s_per_channel),
        )
    }

    def least(name: str, value: float, limit: float) -> float:
        terms.append(f"{name}: min({value:.6g}, {limit:.6g}) GB/s")
        return min(value, limit)

    if algorithm == "Ring" and protocol == "LL":
        sums = comm.nodes > 1 or collective in (Collective.ALL_REDUCE, Collective.REDUCE)
        share = rules.ring_ll_share[0 if sums else 1]
        name = "half" if share == 0.5 else f"{share:.4g}"
        bus = least(f"{name} of it, and the limit of LL", bus * share, ll_most)
    if algorithm == "Ring" and protocol == "LL128":
        share = rules.ring_ll128_share_alone if comm.per_node < 2 else 0.92
        bus = least(f"{share:.0%} of it, and LL128 per channel", bus * share, limits["ring LL128"])
    if algorithm == "Tree":
        bus = least("92% of it, and trees per channel", bus * 0.92, limits["tree"])
    if algorithm == "Tree" and protocol == "LL":
        bus = least("1/3.8 of it, and the limit of LL", bus / 3.8, ll_most)
    if algorithm == "Tree" and protocol == "LL128":
        share = 7 / 9 if comm.nodes == 1 else 120 / 128
        bus = least(f"{share:.4g} of it, and LL128 per channel", bus * share, limits["tree LL128"])
    if algorithm == "Tree" and comm.plain_tree:
        bus *= 0.85
        terms.append(f"plain tree pattern: x 0.85 = {bus:.6g} GB/s")
    if algorithm == "PAT":
        bus *= rules.pat_share
        terms.append(f"PAT: x {rules.pat_share:g} = {bus:.6g} GB/s")
    if algorithm == "CollNetDirect":
        if collective is Collective.ALL_REDUCE:
            factor = comm.per_node / channels.count
            factor -= (factor - 1) / 2
            bus = bus / factor * (0.85 if comm.capability >= 90 else 1.0)
        else:
            bus = comm.per_node * min(channels.within, channels.across * 0.9)
        terms.append(f"heads and NICs: {bus:.6g} GB/s")
    ratio = _algorithm_share(comm, collective, algorithm) if algorithm == "Ring" or not gathers else 1.0
    if gathers and algorithm == "NVLS":
        ratio = rules.nvls_gather_share
    if algorithm == "Ring" or not gathers or ratio != 1:
        bus *= ratio
        terms.append(f"from bus to algorithm bandwidth: x {ratio:.6g} = {bus:.6g} GB/s")
    return bus, terms


def _algorithm_share(comm: NcclCommunicator, collective: Collective, algorithm: str) -> float:
    """Algorithm bandwidth over bus bandwidth."""
    rules = constants(comm.release).rules
    share = {"NVLS": rules.nvls_share, "NVLSTree": rules.nvls_tree_share}.get(algorithm, 0.0)
    if algorithm == "NVLSTree" and rules.nvls_by_boxes:
        return share * comm.nodes / (2 * (comm.nodes - 1))
    if share:
        return share
    return (
        comm.ranks / ring_steps(collective, comm.ranks) if algorithm in ("Ring", "NVLS", "NVLSTree") else 0.5
    )


def _nvls_rate(
    comm: NcclCommunicator, collective: Collective, algorithm: str, channels: Channels, column: int
) -> tuple[float, str]:
    """GB/s of a channel of NVLS: the least of inside the box, between boxes, and what a tree of it reaches."""
    data, count = constants(comm.release), channels.count
    if not data.rules.nvls_by_efficiency:
        return _nvls_rate_of_links(comm, collective, algorithm, channels)
    efficiency = data.nvls_efficiency[comm.generation]
    both = 2.0 if collective is Collective.ALL_REDUCE else (comm.per_node - 1) / comm.per_node
    within = channels.within * efficiency * (count - 1) / count * both
    across = channels.across * (2 if comm.nodes <= 2 and algorithm == "NVLSTree" else 1)
    limits = [within, across]
    if algorithm == "NVLSTree":
        limits.append(data.nvls_tree_gb_per_s_per_channel[comm.generation][column])
    inside = f"{channels.within:g} x {efficiency:g} x {count - 1}/{count} x {both:.4g}"
    return min(limits), f"a channel: min({inside} = {', '.join(f'{limit:.6g}' for limit in limits)}) GB/s"


def _nvls_rate_of_links(
    comm: NcclCommunicator, collective: Collective, algorithm: str, channels: Channels
) -> tuple[float, str]:
    """GB/s of a channel of NVLS before 2.28: of its slower links."""
    rules = constants(comm.release).rules
    within, across = channels.within, channels.across
    if rules.nvls_by_boxes:
        rate = within if comm.nodes <= 2 else across
        return rate, f"a channel: {rate:.6g} GB/s"
    if algorithm == "NVLSTree" and comm.nodes > 2:
        across /= 2
    elif collective is not Collective.ALL_REDUCE and rules.nvls_gathers_less_own:
        within, across = within * (comm.per_node - 1) / comm.per_node, across * 0.9
    return min(within, across), f"a channel: min({within:.6g}, {across:.6g}) GB/s"


class Latencies(Protocol):
    """Constants of a library that its latencies follow from."""

    @property
    def base_latency_us(self) -> Mapping[str, list[float]]:
        """By algorithm: a column for each protocol."""

    @property
    def hardware_latency_us(self) -> Mapping[str, Mapping[str, list[float]]]:
        """By kind of link and algorithm: a column for each protocol."""

    @property
    def net_overhead_us(self) -> Mapping[str, float]:
        """By maker of the processors."""


def latency_terms(
    comm: NcclCommunicator,
    collective: Collective,
    algorithm: str,
    protocol: str,
    channels: Channels,
    data: Latencies,
) -> tuple[float, list[str]]:
    """Latency in microseconds, before the plateau, and how it comes about.

    Args:
        channels: Channels of the algorithm's pattern.
        data: Constants of NCCL or of a library made of it.
    """
    column = PROTOCOLS.index(protocol)
    inside = "NVLINK" if channels.within_type == "NVL" else "PCI"
    base = data.base_latency_us[algorithm][column]
    # On POWER trees with Simple take a step over PCIe as rings do.
    as_ring = comm.cpu == "ibm" and (inside, algorithm, protocol) == ("PCI", "Tree", "Simple")
    within = data.hardware_latency_us[inside]["Ring" if as_ring else algorithm][column]
    rules = constants(comm.release).rules
    alone = comm.per_node == 1 and rules.tree_net_latency_alone
    net = data.hardware_latency_us["NET"]["Tree" if alone else algorithm][column]
    across = net + channels.latency_us * (2 if protocol == "Simple" else 1)
    depth = comm.nodes.bit_length() - 1
    mates = comm.ranks // comm.nodes - 1
    if algorithm == "Ring":
        return _ring_latency(
            comm, collective, protocol, channels, data, base=base, within=within, across=across
        )
    if algorithm == "Tree":
        more, words = (
            2 * (mates * within + depth * across),
            f"2 x ({mates} x {within:g} + {depth} x {across:g})",
        )
    elif algorithm == "CollNetDirect":
        each = rules.collnet_arity_us
        more = 2 * (min(1, mates) * within + mates * each) + across
        words = f"2 x ({min(1, mates)} x {within:g} + {mates} x {each:g}) + {across:g}"
    elif algorithm == "CollNetChain":
        more, words = 2 * mates * within + across, f"2 x {mates} x {within:g} + {across:g}"
    elif algorithm == "NVLS":
        more = within + (across if comm.nodes > 1 else 0.0)
        words = f"{within:g}" + (f" + {across:g}" if comm.nodes > 1 else "")
    elif algorithm == "NVLSTree":
        levels = comm.nodes - 1 if rules.nvls_by_boxes else depth
        more, words = within + 2 * levels * across, f"{within:g} + 2 x {levels} x {across:g}"
    else:
        more = depth * across / 3.5 + comm.ranks * 2.8
        words = f"{depth} x {across:g} / 3.5 + {comm.ranks} x 2.8"
    return base + more, [f"latency: {base:g} + {words} = {base + more:.6g} us"]


def _ring_latency(
    comm: NcclCommunicator,
    collective: Collective,
    protocol: str,
    channels: Channels,
    data: Latencies,
    *,
    base: float,
    within: float,
    across: float,
) -> tuple[float, list[str]]:
    column = PROTOCOLS.index(protocol)
    steps = ring_steps(collective, comm.ranks)
    if collective in (Collective.BROADCAST, Collective.REDUCE):
        inside = "NVLINK" if channels.within_type == "NVL" else "PCI"
        hardware = data.hardware_latency_us[inside if comm.nodes == 1 else "NET"]
        if channels.same:
            hop = hardware["Ring"][column]
            return base + hop, [f"latency: {base:g} + {hop:g} = {base + hop:.6g} us"]
        hop = hardware["Tree" if protocol == "Simple" else "Ring"][column]
        total = base + steps * hop
        return total, [f"latency: {base:g} + {steps} x {hop:g} = {total:.6g} us"]
    if comm.nodes > 1:
        overhead = data.net_overhead_us.get(comm.cpu, 1.0) * (3 if protocol == "Simple" else 1)
        within = max(within, overhead)
    far = 0 if comm.nodes == 1 else (comm.nodes - 1) * (2 if collective is Collective.ALL_REDUCE else 1)
    if far and collective is Collective.ALL_REDUCE:
        far += constants(comm.release).rules.ring_extra_crossings
    total = base + (steps - far) * within + far * across
    return total, [f"latency: {base:g} + {steps - far} x {within:g} + {far} x {across:g} = {total:.6g} us"]


def ring_steps(collective: Collective, ranks: int) -> int:
    """Count the steps of the ring: 2 (N - 1), N - 1, or N of a broadcast and a reduce."""
    if collective is Collective.ALL_REDUCE:
        return 2 * (ranks - 1)
    return ranks - 1 if collective.sharded else ranks
