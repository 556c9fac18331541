"""Predict NCCL's pick: the algorithm and protocol with the least time in its cost model.

What NCCL finds follows from the machines of a topology by its own search (see the modules beside this one); settings
replace single results of it. NCCL does not know the network beyond its NICs, nor what its constants miss: where its
model promises less than the links of the topology allow, the pick is still its pick, and the time is that of the bound.

No predicted time counts below our own bound: what the links of a topology allow, for the class that an algorithm is of.
Algorithms whose GPUs add are held against the plain bound, those whose switches add against the bound with the help of
these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from coppice.bounds.attainable import in_network_bound
from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.selection.nccl.communicator import BoxOfRanks, FoundCommunicator, found_by
from coppice.selection.nccl.connect import kernel_channels
from coppice.selection.nccl.costs import PATHS, Channels, CostCell, NcclCommunicator, cells
from coppice.selection.nccl.kernel import KernelShape, kernel_of
from coppice.selection.nccl.machine import HostMachine
from coppice.selection.nccl.machines import HostMachines, machines_of
from coppice.selection.nccl.releases import constants
from coppice.selection.nccl.system import MOST_CHANNELS
from coppice.selection.selection import Selection, SelectionRequest
from coppice.topology.generation import GENERATIONS
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.operations import without_dead_ends
from coppice.topology.presets import preset
from coppice.topology.readers.link_rates import RateClass, nvlink_gb_per_s

_NVSWITCHES_ADD = ("NVLS", "NVLSTree")
_NETWORK_ADDS = ("CollNetDirect", "CollNetChain")


def at_least_bound(
    cells: tuple[CostCell, ...], topology: Topology, collective: Collective, size_bytes: int, *, root: int = 0
) -> tuple[CostCell, ...]:
    """Raise the predicted times that are below the bound of their class.

    Args:
        size_bytes: M (see :mod:`coppice.collectives`).
        root: Root rank of a rooted collective.
    """
    plain = least_us(topology, collective, size_bytes, "", root)
    found = []
    for cell in cells:
        # With the help of switches the bound is no higher, and takes longer to compute.
        if cell.time_us is None or Fraction(cell.time_us) >= plain:
            found.append(cell)
        else:
            found.append(_capped(cell, least_us(topology, collective, size_bytes, cell.algorithm, root)))
    return tuple(found)


def least_us(
    topology: Topology, collective: Collective, size_bytes: int, algorithm: str, root: int = 0
) -> Fraction:
    """Lower bound in microseconds on schedules of an algorithm's class.

    Args:
        root: Root rank of a rooted collective.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> box = preset("dgx-h100")
        >>> [float(least_us(box, Collective.ALL_REDUCE, 450_000, name)) for name in ("Ring", "NVLS")]
        [1.75, 1.0]
    """
    who = "network" if algorithm in _NETWORK_ADDS else "declared" if algorithm in _NVSWITCHES_ADD else "none"
    return _us_per_byte(topology, collective, root if collective.rooted else None, who) * size_bytes


@lru_cache(maxsize=64)
def _us_per_byte(topology: Topology, collective: Collective, root: int | None, adding: str) -> Fraction:
    """Microseconds for a byte of M at the bound; ``adding`` says whose switches may copy and add."""
    if adding == "network":
        switches = topology.kind == NodeKind.SWITCH
        topology = replace(
            topology, multicast=topology.multicast | switches, aggregate=topology.aggregate | switches
        )
    problem = Problem(topology=without_dead_ends(topology), collective=collective, root=root)
    inv_rate = bound_of(problem).inv_rate if adding == "none" else in_network_bound(problem).inv_rate
    return inv_rate / problem.shards / 1000


def _capped(cell: CostCell, least: Fraction) -> CostCell:
    time_us = cell.time_us or 0.0
    if Fraction(time_us) >= least:
        return cell
    words = f"NCCL's model promises {time_us:.6g} us, less than the links allow: the bound's time stands"
    return replace(cell, time_us=float(least), promised_us=time_us, terms=(*cell.terms, words))


_DIRECT = (Collective.ALL_TO_ALL, Collective.GATHER, Collective.SCATTER)


def select_by_cost(
    request: SelectionRequest,
    *,
    # Where it runs: GPUs, their links and NICs are read off it as far as it says them
    topology: Topology | None = None,
    # Properties of the communicator (see :data:`coppice.selection.nccl.selecting.SETTINGS`)
    settings: Mapping[str, str] | None = None,
    root: int = 0,  # Root rank, for the bound of a rooted collective
    release: str = "",  # One of :func:`coppice.selection.nccl.releases.known_releases`; empty: the newest
) -> Selection:
    """Pick of NCCL, with the predicted time of every algorithm and protocol."""
    collective = request.collective
    function = collective.dialects.nccl
    if function is None:
        raise InputError(f"NCCL has no {collective}: choose another collective, or a library of MPI.")
    if collective in _DIRECT or request.ranks == 1:
        known = constants(release)
        return without_choice(
            request,
            function,
            "NCCL",
            version=known.version,
            source=known.source,
            ours=known.ours[request.collective].get("p2p", "linear"),
        )
    inputs = inputs_of(request, topology, settings or {}, release=release)
    comm = inputs.communicator
    found = cells(comm, collective, request.size_bytes)
    if topology is not None:
        found = at_least_bound(found, topology, collective, request.size_bytes, root=root)
    best = min((cell for cell in found if cell.time_us is not None), key=lambda cell: cell.model_us)
    kernel = kernel_of(
        comm, collective, best.algorithm, best.protocol, request.size_bytes, request.element_bytes
    )
    ours = constants().ours[collective].get(best.algorithm)
    reason = None if ours else constants().missing[best.algorithm]
    if ours == "nccl-tree" and not inputs.even:
        ours, reason = (
            None,
            "boxes have different numbers of ranks: the catalogue has NCCL's tree for equal ones",
        )
    return Selection(
        library="NCCL",
        version=constants(release).version,
        source=constants(release).source,
        function=function,
        collective=collective,
        ranks=request.ranks,
        size_bytes=request.size_bytes,
        component="cost model",
        algorithm=f"{best.algorithm}/{best.protocol}",
        runs_as=best.algorithm,
        ours=ours,
        parameters={"group": request.ranks // comm.nodes} if ours == "nccl-tree" else {},
        reason=reason,
        assumptions=inputs.assumptions,
        notes=_notes(comm, best, kernel),
        cells=found,
        channels=kernel.channels,
        channels_filled=kernel.filled,
        threads=kernel.threads,
        found=inputs.found,
    )


def without_choice(
    request: SelectionRequest, function: str, library: str, *, version: str, source: str, ours: str
) -> Selection:
    """A call that a library's cost model does not know: a copy for one rank, else every block is sent directly."""
    alone = request.ranks == 1
    return Selection(
        library=library,
        version=version,
        source=source,
        function=function,
        collective=request.collective,
        ranks=request.ranks,
        size_bytes=request.size_bytes,
        component="no choice",
        algorithm="copy" if alone else "point-to-point",
        runs_as="copy" if alone else "point-to-point",
        ours=None if alone else ours,
        reason="one rank: nothing moves" if alone else None,
        notes=()
        if alone
        else (f"{library} sends and receives every block directly; there is nothing to choose",),
    )


def _notes(comm: NcclCommunicator, best: CostCell, kernel: KernelShape) -> tuple[str, ...]:
    """Channels and threads of the kernel, and what the model leaves out."""
    all_channels = comm.nvls_channels if best.algorithm.startswith("NVLS") else comm.channels
    words = f"the kernel takes {kernel.channels} of {all_channels} channels, {kernel.threads} threads to move data each"
    if kernel.filled < kernel.channels:
        words += f"; its scheduler has data for {kernel.filled} of them"
    found = [
        words,
        "symmetric-memory and copy-engine kernels, registered buffers, tuner plugins and NCCL_ALGO are not modelled",
    ]
    if best.promised_us is not None:
        found.insert(
            0,
            f"NCCL's cost model promises {best.promised_us:.4g} us by {best.algorithm}/{best.protocol}, less than the "
            "links of this topology allow: the time is that of the bound",
        )
    return tuple(found)


SETTINGS = {
    "generation": "GPU generation: volta, ampere, hopper or blackwell",
    "cpu": "vendor of the processors: intel, amd or other",
    "channels": "channels that the search found for rings and trees",
    "bw_intra": "GB/s of a channel inside a box",
    "bw_inter": "GB/s of a channel between boxes",
    "tree_bw_intra": "the same inside a box for trees, where it differs",
    "nvls_channels": "channels of NVLS; 0 turns it off",
    "nvls_bw_intra": "GB/s of a channel of NVLS inside a box",
    "nvls_bw_inter": "GB/s of a channel of NVLS between boxes",
    "type_intra": "worst path between GPUs of a box: NVL, PIX, PXB, PHB, SYS",
    "type_inter": "worst path between a GPU and its NIC: PIX, PXB, PXN, PHB, SYS",
    "latency_inter": "latency that the network plugin states, in microseconds",
    "same_channels": "all channels take the GPUs in the same order: yes or no",
    "collnet": "the network adds (NCCL_COLLNET_ENABLE): yes or no",
}
"""What may be given, with its meaning."""

_DEFAULT_BOX = "dgx-h100"
_MOST_GPUS_OF_MACHINE = 16
"""What the largest machines with NVSwitches of their own hold."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs of the cost model, and where each came from."""

    communicator: NcclCommunicator  # What the model takes
    assumptions: tuple[str, ...]  # What was read off or assumed
    found: FoundCommunicator  # What NCCL's search finds, before settings
    even: bool  # All boxes have the same number of ranks


@dataclass(frozen=True)
class _Given:
    """The settings, read by what they mean."""

    settings: Mapping[str, str]

    def text(self, key: str, default: str, choices: tuple[str, ...] | None = None) -> str:
        value = self.settings.get(key, default)
        if choices is not None and value not in choices:
            raise InputError(
                f"expected {key} to be {', '.join(choices[:-1])} or {choices[-1]}, found {value!r}."
            )
        return value

    def optional(self, key: str, choices: tuple[str, ...] | None = None) -> str | None:
        return self.text(key, "", choices) if key in self.settings else None

    def number(self, key: str, default: float) -> float:
        text = self.settings.get(key)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < 1e6:
            raise InputError(f"expected {key} to be a number of 0 or more ({SETTINGS[key]}), found {text!r}.")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        return self.text(key, "yes" if default else "no", ("yes", "no")) == "yes"


def inputs_of(
    request: SelectionRequest,
    topology: Topology | None,
    settings: Mapping[str, str],
    *,
    release: str = "",
) -> Inputs:
    """Derive the inputs of the cost model for a call.

    Args:
        request: The call, of two ranks or more.
        topology: Where it runs, or None.
        settings: Properties that are given: keys of :data:`SETTINGS`.
        release: One of :func:`coppice.selection.nccl.releases.known_releases`; empty: the newest.
    """
    for key in settings:
        if key not in SETTINGS:
            raise InputError(f"NCCL's cost model has no input {key!r}, only: {', '.join(SETTINGS)}.")
    given = _Given(settings)
    words: list[str] = []
    if topology is None:
        usual = _known_box(given, words)
        nodes, gpus = _boxes(request, constants().boxes[usual].gpus, words)
        machines = _usual_machines(usual, gpus, nodes)
    else:
        if request.ranks_per_box is None:
            words.append("all ranks share one box")
        machines = machines_of(
            topology, given.optional("generation", tuple(GENERATIONS)), given.optional("cpu")
        )
        _check_machines(machines, topology)
    generation = machines.generation or "hopper"
    if machines.generation is None:
        words.append(f"GPUs of {generation} (nothing here tells: `generation` says it)")
    elif machines.told_by:
        words.append(f"GPUs of {generation}, by {machines.told_by} (`generation` says otherwise)")
    several = len(machines.boxes) > 1
    adds = given.flag("collnet", default=False) and several
    boxes = machines.boxes
    if adds:
        boxes = _changed(boxes, HostMachine.adding)
        words.append("a network that adds at every NIC")
    known = constants(release)
    if known.version != constants().version:
        words.append(
            f"channels by the search and for kernels as in {constants().version}, with rates of {known.version}"
        )
        factor = known.nvlink_gb_per_s[generation] / constants().nvlink_gb_per_s[generation]
        if factor != 1:
            boxes = _changed(boxes, lambda machine: machine.with_nvlinks(factor))
    found = found_by(boxes, collnet=adds, release=release)
    comm = _settled(found, given, several=several, words=words)
    if several and not machines.described and "type_inter" not in settings:
        words.append(
            f"NICs beside their GPUs as in usual machines, at paths of class {comm.ring.across_type}"
        )
    if max(len(box.gpus) for box in boxes) > _MOST_GPUS_OF_MACHINE and topology is not None:
        words.append(
            "machines that one NVLink domain joins (MNNVL) searched as one, as NCCL does; its picks there were never "
            "observed"
        )
    if machines.cpu is None and "cpu" not in settings:
        words.append(f"processors of {comm.cpu}")
    if "cpu" in settings:
        comm = replace(comm, cpu=settings["cpu"])
    sizes = {len(box.gpus) for box in boxes}
    return Inputs(communicator=comm, assumptions=tuple(words), found=found, even=len(sizes) == 1)


def _changed(
    boxes: tuple[BoxOfRanks, ...], change: Callable[[HostMachine], HostMachine]
) -> tuple[BoxOfRanks, ...]:
    """The boxes with other machines, equal ones once in memory."""
    made = {id(box): replace(box, machine=change(box.machine)) for box in boxes}
    return tuple(made[id(box)] for box in boxes)


def found_on(topology: Topology) -> FoundCommunicator:
    """What NCCL's search finds for all ranks of a topology, where nothing is given."""
    machines = machines_of(topology)
    _check_machines(machines, topology)
    return found_by(machines.boxes)


def _settled(found: FoundCommunicator, given: _Given, *, several: bool, words: list[str]) -> NcclCommunicator:
    """What the search found, where nothing else is given."""
    comm = found.communicator
    ring, tree, nvls = comm.ring, comm.tree, comm.nvls
    count = int(given.number("channels", ring.count))
    if count < 1 or count > MOST_CHANNELS // 2:
        raise InputError(
            f"expected channels to be 1 .. {MOST_CHANNELS // 2} (as the search counts them), found {count}."
        )
    within, across = given.number("bw_intra", ring.within), given.number("bw_inter", ring.across)
    tree_within = given.number("tree_bw_intra", within if "bw_intra" in given.settings else tree.within)
    tree_across = given.number("bw_inter", tree.across)
    if "bw_intra" in given.settings and "bw_inter" not in given.settings and not several:
        across, tree_across = within, tree_within
    if min(within, tree_within, *(given.number(key, 1.0) for key in ("bw_inter", "bw_intra"))) <= 0:
        raise InputError("expected bw_intra, bw_inter and tree_bw_intra to be more than 0 GB/s.")
    if not {"channels", "bw_intra", "bw_inter"} <= set(given.settings):
        words.append(
            f"rings and trees of {count} channels, {within:g} GB/s inside and {across:g} GB/s between boxes"
        )
    if several and "latency_inter" not in given.settings and not ring.latency_us:
        words.append("a network that states no latency of its own")

    def made(channels: Channels, count: int, within: float, across: float) -> Channels:
        return Channels(
            count=count,
            within=within,
            across=across,
            within_type=given.text("type_intra", channels.within_type, PATHS),
            across_type=given.text("type_inter", channels.across_type, PATHS),
            latency_us=given.number("latency_inter", channels.latency_us),
            same=given.flag("same_channels", default=channels.same),
        )

    ring = made(ring, count, within, across)
    nvls_count = int(given.number("nvls_channels", nvls.count if nvls is not None else 0))
    return replace(
        comm,
        ring=ring,
        tree=made(tree, count, tree_within, tree_across),
        nvls=None
        if nvls is None or not nvls_count
        else made(
            nvls,
            nvls_count,
            given.number("nvls_bw_intra", nvls.within),
            given.number("nvls_bw_inter", nvls.across),
        ),
        channels=comm.channels
        if (count, within) == (comm.ring.count, comm.ring.within)
        else len(kernel_channels(count, capability=comm.capability, boxes=comm.nodes, within=within)),
    )


def _known_box(given: _Given, words: list[str]) -> str:
    """The kind of box that is assumed where nothing but a number of ranks is given."""
    boxes = constants().boxes
    name = _DEFAULT_BOX
    if "generation" in given.settings:
        asked = given.text("generation", "", tuple(GENERATIONS))
        name = next(each for each, box in boxes.items() if box.generation == asked)
    words.append(f"GPUs and boxes as in {name}")
    return name


def _usual_machines(name: str, gpus: int, nodes: int) -> HostMachines:
    """Machines of a known kind of which so many GPUs are used."""
    box = constants().boxes[name]
    if gpus > box.gpus and not box.nvswitch:
        raise InputError(
            f"expected up to {box.gpus} ranks in each {name}, found {gpus}: give a topology, or say fewer "
            "(`ranks_per_box`)."
        )
    one = _usual_box(name, max(gpus, box.gpus)) if box.nvswitch else preset(name, boxes=2)
    found = machines_of(one)
    used = BoxOfRanks(machine=found.boxes[0].machine, gpus=found.boxes[0].gpus[:gpus])
    return replace(found, boxes=(used,) * nodes, cpu=None)


def _usual_box(name: str, gpus: int) -> Topology:
    """A box of GPUs on an NVSwitch, each with a NIC."""
    box = constants().boxes[name]
    capability = GENERATIONS[box.generation]
    copies = constants().nvls_efficiency[box.generation] > 0
    nodes = [Node(id=f"gpu{i}", host="box", arch=f"sm_{capability}") for i in range(gpus)]
    nodes.append(Node(id="nvswitch", host="box", kind=NodeKind.SWITCH, multicast=copies, aggregate=copies))
    nodes.append(Node(id="network", kind=NodeKind.SWITCH))
    nvlink = box.links * nvlink_gb_per_s(capability, RateClass.MEASURED)
    links = [Link(src=f"gpu{i}", dst="nvswitch", gb_per_s=nvlink) for i in range(gpus)]
    links += [Link(src=f"gpu{i}", dst="network", gb_per_s=Fraction(box.nic_gbit, 8)) for i in range(gpus)]
    return Topology.of(name, nodes, links)


def _check_machines(machines: HostMachines, topology: Topology) -> None:
    if len(machines.boxes) > 1 and not machines.nics:
        raise InputError(
            f"NCCL's cost model expects a NIC in every box of {topology.name}, found a box whose ranks reach none: "
            "join it to the network."
        )


def _boxes(request: SelectionRequest, most: int, words: list[str]) -> tuple[int, int]:
    """Number of boxes and ranks in each; ``most`` of those that nothing is known of share one."""
    if not request.even:
        raise InputError(
            "NCCL's cost model is for equal boxes where no topology says what they are: choose ranks that divide "
            "evenly (`ranks`)."
        )
    if request.ranks_per_box is not None:
        return request.boxes, request.per_box
    if request.ranks <= most:
        words.append("all ranks share one box")
        return 1, request.ranks
    if request.ranks % most:
        raise InputError(
            f"expected ranks of one box (up to {most}) or a multiple of {most}, found {request.ranks}: "
            "say how many share a box (`ranks_per_box`)."
        )
    words.append(f"{request.ranks // most} boxes of {most} GPUs")
    return request.ranks // most, most
