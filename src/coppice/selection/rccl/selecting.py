"""Predict RCCL's pick: NCCL's cost model with RCCL's constants on the rings of a known board, then RCCL's own limits.

``time = latency + bytes / bandwidth`` as for NCCL (:mod:`coppice.selection.nccl.costs`), with these differences: the
bandwidth is a share of what all xGMI links of a GPU carry, whatever NICs there are, with a correction for each size;
over several boxes the size alone decides the protocol where the constants have limits; MI300 and MI350 send small
all-gathers directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.selection.nccl.communicator import FoundBox, FoundCommunicator
from coppice.selection.nccl.costs import (
    PROTOCOLS,
    Channels,
    CostCell,
    NcclCommunicator,
    latency_terms,
    ring_steps,
)
from coppice.selection.nccl.graph import ChannelGraph, ChannelPattern
from coppice.selection.nccl.searching import BoxGraphs
from coppice.selection.nccl.selecting import at_least_bound, without_choice
from coppice.selection.rccl.boards import (
    MatchedBoard,
    TuningModel,
    architecture_of,
    boards_of,
    constants,
    tuning_of,
)
from coppice.selection.selection import Selection, SelectionRequest
from coppice.topology.model import Topology

_OURS = {"Ring": "nccl-ring", "Tree": "nccl-tree"}
_DIRECT = (Collective.ALL_TO_ALL, Collective.GATHER, Collective.SCATTER)
_BROADCAST_SHARE = 1.65
_TREE_OF_MORE_BOXES = 3.8

SETTINGS = {
    "generation": "GPU generation: gfx90a, gfx942 or gfx950",
    "ll128": "LL128 is on: yes or no",
}
"""What may be given, with its meaning."""


def select_rccl(
    request: SelectionRequest,
    *,
    topology: Topology | None,  # Where it runs
    settings: Mapping[str, str],  # Keys of :data:`SETTINGS`
    root: int = 0,  # Root rank, for the bound of a rooted collective
) -> Selection:
    """Pick of RCCL, with the predicted time of every algorithm and protocol.

    Raises:
        InputError: If nothing tells where it runs, or RCCL does not know the GPUs or the board.
    """
    collective, size_bytes = request.collective, request.size_bytes
    function = collective.dialects.nccl
    if function is None:
        raise InputError(f"RCCL has no {collective}: choose another collective, or a library of MPI.")
    for key in settings:
        if key not in SETTINGS:
            raise InputError(f"RCCL's cost model has no input {key!r}, only: {', '.join(SETTINGS)}.")
    if topology is None:
        raise InputError(
            "expected a topology for RCCL, whose rings belong to boards, found a number of ranks: name one, such as "
            "mi300x."
        )
    architecture = settings.get("generation") or architecture_of(topology)
    if architecture not in constants().tuning_of:
        raise InputError(
            f"expected AMD GPUs of {', '.join(constants().tuning_of)} for RCCL, found "
            f"{architecture or 'others'} on {topology.name}: choose another library, or say which (`generation`)."
        )
    assert architecture is not None
    if collective in _DIRECT or request.ranks == 1:
        plain = _plain(request, function)
        return replace(plain, notes=(*plain.notes, *_files(request, architecture, several=request.boxes > 1)))
    boards = boards_of(topology, architecture)
    words = [
        f"board {name}: its rings are a table of RCCL"
        for name in dict.fromkeys(each.board.name for each in boards)
    ]
    several = len(boards) > 1
    ll128 = boards[0].board.ll128 or (several and architecture != "gfx90a")
    if "ll128" in settings:
        ll128 = settings["ll128"] == "yes"
    elif several:
        words.append(f"LL128 {'on' if ll128 else 'off'} between boxes (`ll128` says otherwise)")
    found = _found(boards, architecture)
    comm, tuning = found.communicator, tuning_of(boards[0].board, architecture)
    cells = tuple(
        _cell(comm, tuning, architecture, collective, algorithm, protocol, size_bytes, ll128=ll128)
        for algorithm in ("Tree", "Ring")
        if algorithm == "Ring" or collective is Collective.ALL_REDUCE
        for protocol in PROTOCOLS
    )
    cells = at_least_bound(cells, topology, collective, size_bytes, root=root)
    fastest = min((cell for cell in cells if cell.time_us is not None), key=lambda cell: cell.model_us)
    protocol, why = _protocol(fastest.protocol, request, comm, tuning, architecture, ll128=ll128)
    best = next(cell for cell in cells if (cell.algorithm, cell.protocol) == (fastest.algorithm, protocol))
    direct = constants().direct_all_gather_bytes.get(architecture, -1)
    if architecture == "gfx950" and several:
        direct = comm.nodes * 2097152 if comm.nodes < 64 else direct
    if collective is Collective.ALL_GATHER and size_bytes <= direct and request.ranks % 8 == 0:
        return replace(
            _plain(request, function),
            component="limits of sizes",
            algorithm="Direct/Simple",
            runs_as="Direct",
            ours="direct",
            assumptions=tuple(words),
            notes=(
                f"an all-gather of up to {direct:,} bytes goes directly from each rank to each",
                _LEFT_OUT,
            ),
        )
    channels = _channels(comm, tuning, request, best)
    return Selection(
        library="RCCL",
        version=constants().version,
        source=constants().source,
        function=function,
        collective=collective,
        ranks=request.ranks,
        size_bytes=size_bytes,
        component="cost model",
        algorithm=f"{best.algorithm}/{best.protocol}",
        runs_as=best.algorithm,
        ours=_OURS[best.algorithm],
        assumptions=tuple(words),
        notes=(
            *why,
            f"the kernel takes {channels} of {comm.channels} channels, {constants().threads} threads each",
            *_files(request, architecture, several=several),
            _LEFT_OUT,
        ),
        cells=cells,
        taken=best,
        channels=channels,
        channels_filled=channels,
        threads=constants().threads,
        found=found,
    )


_LEFT_OUT = (
    "MSCCL++, DDA and symmetric-memory kernels, copy engines, hierarchical exchanges from 8 boxes on, tuner plugins "
    "and NCCL_ALGO are not modelled"
)


def _files(request: SelectionRequest, architecture: str, *, several: bool) -> tuple[str, ...]:
    """Programs for MSCCL that RCCL ships for a call."""
    if several or architecture != "gfx942":
        return ()
    names = [
        each.name
        for each in constants().msccl_files
        if each.collective == request.collective.value
        and each.gpus == request.ranks
        and each.least_bytes <= request.size_bytes <= each.most_bytes
    ]
    if not names:
        return ()
    return (
        f"with MSCCL on (the default of RCCL 2.18 to 2.27, ROCm 5.7 to 7.10) {' or '.join(names)} runs instead",
    )


def _plain(request: SelectionRequest, function: str) -> Selection:
    known = constants()
    return without_choice(
        request, function, "RCCL", version=known.version, source=known.source, ours="linear"
    )


def _found(boards: list[MatchedBoard], architecture: str) -> FoundCommunicator:
    """Channels of the boards as NCCL's search would give them: odd boxes go round the other way, on the same rails."""
    boxes, ranks, start = [], [], 0
    count = min(len(each.rings) for each in boards)
    for number, each in enumerate(boards):
        back = number % 2
        orders = tuple(ring[::-1] if back else ring for ring in each.rings)
        ports = tuple(pair[::-1] if back else pair for pair in each.ports)
        rate = each.gb_per_s / len(each.rings)
        ring = ChannelGraph(
            pattern=ChannelPattern.RING,
            count=len(orders),
            within=rate,
            across=rate,
            orders=orders,
            ports=ports,
        )
        # Trees are chains of the rings as they stand, whatever the box.
        tree = replace(ring, pattern=ChannelPattern.BALANCED_TREE, orders=each.rings, ports=each.ports)
        size = each.board.gpus
        boxes.append(
            FoundBox(
                members=tuple(range(size)),
                graphs=BoxGraphs(ring=ring, tree=tree, nvls=None, collnet_chain=None, collnet_direct=None),
                capability=80,  # rings and trees are joined as for GPUs before Hopper
                most_capability=80,
                maker="amd",
                nvswitch=False,
                least_net_gb_per_s=0.0,
            )
        )
        ranks.append(tuple(range(start, start + size)))
        start += size
    rate = min(each.gb_per_s for each in boards) / count
    channels = Channels(count=count, within=rate, across=rate)
    comm = NcclCommunicator(
        ranks=start,
        nodes=len(boards),
        generation=architecture,
        cpu="amd",
        ring=channels,
        tree=channels,
        nvswitch=False,
        channels=_all_channels(count, architecture, ranks=start, several=len(boards) > 1),
    )
    return FoundCommunicator(communicator=comm, boxes=tuple(boxes), ranks=tuple(ranks), collnet=False)


def _all_channels(count: int, architecture: str, *, ranks: int, several: bool) -> int:
    """Channels of the communicator: each ring twice, and more for few of them."""
    most = constants().most_channels[architecture]
    each = {2: 16, 4: 4}.get(ranks, 2) if architecture == "gfx942" else 2
    if architecture == "gfx90a":
        each = max(2 if several else 4, 4 // count)
    doubled = min(most, 2 * count if count <= most // 2 else count)
    return max(doubled, min(most // count, each) * count)


def _cell(
    comm: NcclCommunicator,
    tuning: TuningModel,
    architecture: str,
    collective: Collective,
    algorithm: str,
    protocol: str,
    size_bytes: int,
    *,
    ll128: bool,
) -> CostCell:
    within = comm.nodes == 1
    newer = architecture != "gfx90a"
    if protocol == "LL128" and not ll128:
        return CostCell(algorithm=algorithm, protocol=protocol, unavailable="LL128 is off on this board")
    if algorithm == "Tree" and protocol == "Simple" and newer and within:
        return CostCell(
            algorithm=algorithm, protocol=protocol, unavailable="trees have no Simple in one box here"
        )
    column = PROTOCOLS.index(protocol)
    share = tuning.share[0 if comm.nodes <= 2 else 1][algorithm][column]
    channels = comm.ring
    bus = channels.count * channels.within
    terms = [
        f"{channels.count} channels x {channels.within:.6g} GB/s = {bus:.6g} GB/s",
        f"share of it: x {share:g}",
    ]
    bus *= share
    if newer and within and (algorithm, protocol) == ("Ring", "LL") and collective.rooted:
        bus *= _BROADCAST_SHARE
        terms.append(f"broadcasts and reductions in one box: x {_BROADCAST_SHARE:g}")
    ratio = comm.ranks / ring_steps(collective, comm.ranks) if algorithm == "Ring" else 0.5
    bus *= ratio
    terms.append(f"from bus to algorithm bandwidth: x {ratio:.6g} = {bus:.6g} GB/s")
    corrections = tuning.tree_correction if algorithm == "Tree" else tuning.ring_correction
    if algorithm == "Tree" or not within:
        power = min(max((size_bytes >> 6).bit_length() - 1, 0), len(corrections[protocol]) - 1)
        bus *= corrections[protocol][power]
        terms.append(f"correction at this size: x {corrections[protocol][power]:g}")
    if not bus:
        return CostCell(
            algorithm=algorithm, protocol=protocol, unavailable="the constants have no rate for it"
        )
    latency, words = latency_terms(
        comm, collective, algorithm, protocol, channels, _Latencies(tuning.hardware_latency_us)
    )
    return CostCell(
        algorithm=algorithm,
        protocol=protocol,
        time_us=latency + size_bytes / (1000 * bus),
        latency_us=latency,
        gb_per_s=bus,
        terms=(*words, *terms),
    )


class _Latencies:
    """Latencies of a tuning model, as NCCL's model takes them."""

    def __init__(self, hardware_latency_us: Mapping[str, Mapping[str, list[float]]]) -> None:
        self.hardware_latency_us = hardware_latency_us
        self.base_latency_us = constants().base_latency_us
        self.net_overhead_us = constants().net_overhead_us


def _protocol(
    picked: str,
    request: SelectionRequest,
    comm: NcclCommunicator,
    tuning: TuningModel,
    architecture: str,
    *,
    ll128: bool,
) -> tuple[str, tuple[str, ...]]:
    """The protocol after RCCL's limits, and which one decided."""
    collective = request.collective
    shared = collective is not Collective.ALL_REDUCE
    bytes_ = request.size_bytes // comm.ranks if shared else request.size_bytes
    each = "bytes a rank" if shared else "bytes"
    if comm.nodes == 1:
        limit = constants().ll_within_box_bytes.get(architecture, {}).get(collective.value, -1)
        if bytes_ <= limit:
            return "LL", (f"one box takes LL up to {limit:,} {each}",)
        return picked, ()
    limits = tuning.protocols.get(collective.value)
    if limits is None:
        return picked, ()
    found, why = "Simple", "Simple beyond the limits of LL and LL128"
    least, most = limits["LL"]
    if least < bytes_ <= most:
        found, why = "LL", f"LL up to {most:,} {each}"
    least, most = limits["LL128"]
    if not shared and comm.nodes > 2:
        most = int(most * _TREE_OF_MORE_BOXES)
    if ll128 and least < bytes_ <= most:
        found, why = "LL128", f"LL128 above {least:,} and up to {most:,} {each}"
    return found, (f"between boxes the size decides the protocol: {why}",)


def _channels(comm: NcclCommunicator, tuning: TuningModel, request: SelectionRequest, best: CostCell) -> int:
    """Channels of a call: as many as get enough data, or those that the constants set."""
    threshold = constants().thread_threshold_bytes[best.protocol]
    if (best.algorithm, best.protocol) == ("Ring", "LL"):
        threshold *= comm.ranks
    each = constants().threads * threshold
    found = max(1, min(comm.channels, request.size_bytes // each))
    if comm.nodes > 1 and comm.ranks > comm.nodes:
        shard = -(-request.size_bytes // comm.ranks)
        for least, most, count in tuning.channels.get(request.collective.value, []):
            if least < shard <= most and count <= comm.channels:
                found = count
    return found
