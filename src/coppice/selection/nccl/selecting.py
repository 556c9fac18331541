"""Predict NCCL's pick: the algorithm and protocol with the least time in its cost model.

NCCL does not know the network beyond its NICs, nor what its constants miss: where its model promises less than the
links of the topology allow, the pick is still its pick, and the time is that of the bound.

The channels that NCCL's topology search finds follow in closed form for boxes whose GPUs and NICs are all alike. NCCL
tries speeds of a channel from a descending table, and keeps the speed and number of channels with the largest product.
Where all GPUs hang on NVSwitches and share the NICs evenly, how many channels fit is a matter of counting: a GPU passes
on what every channel carries, except where the channel comes from or goes to its NIC. Elsewhere it stands in for the
search: rings share what the narrowest cut of a box lets through.

No predicted time counts below our own bound: what the links of a topology allow, for the class that an algorithm is of.
Algorithms whose GPUs add are held against the plain bound, those whose switches add against the bound with the help of
these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from coppice.bounds.attainable import in_network_bound
from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.selection.nccl.system import MOST_CHANNELS
from coppice.selection.nccl_machine import NcclMachine, machine_of
from coppice.selection.nccl.costs import (
    PATHS,
    Channels,
    CostCell,
    NcclCommunicator,
    cells,
    constants,
)
from coppice.selection.selection import Selection, SelectionRequest
from coppice.topology.generation import GENERATIONS
from coppice.topology.model import NodeKind, Topology
from coppice.topology.operations import without_dead_ends
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


def searched(
    generation: str, *, nvlink: float, most: float, gpus: int, nics: int, nic: float, apart: bool = True
) -> tuple[Channels, Channels, Channels]:
    """Channels of ring, tree and NVLS on boxes with identical GPUs and NICs.

    Args:
        nvlink: GB/s of all NVLinks of a GPU, or of what joins GPUs instead of them.
        most: GB/s of the best path between two GPUs.
        nics: NICs in a box; 0 for a single box.
        nic: GB/s of a NIC.
        apart: What goes to NICs takes other links than what goes to GPUs.

    Examples:
        >>> ring, tree, nvls = searched("ampere", nvlink=240, most=240, gpus=8, nics=0, nic=0)
        >>> ring.count, ring.within, nvls.count
        (12, 20.0, 8)
    """
    data = constants()
    speeds = (data.speeds_across if nics else data.speeds_within)[generation]
    total, top = nvlink, (nic if nics else most)
    # Where a channel has its NIC, the GPU carries it in one direction only.
    share = (gpus - 1) / gpus if nics and apart else 1.0
    count, speed = 0, 0.0
    for tried in speeds:
        if speed and (count * speed >= total or tried / speed <= 0.49):
            break
        if tried > top:
            continue
        room = MOST_CHANNELS // 2 if gpus == 1 and nics else int(nvlink / (tried * share) + 1e-9)
        fits = min(MOST_CHANNELS // 2, room, int(nic / tried + 1e-9) * nics if nics else room)
        if fits * tried > count * speed:
            count, speed = fits, tried
    if not count:
        count, speed = 1, min(top, speeds[-1])
    if speed >= 25 and not (GENERATIONS[generation] > 80 and speed < 50 and count > 4):
        double = min(2 * count, MOST_CHANNELS // 2)
        speed, count = speed / -(-double // count), double
    across = "PXB" if nics else "PIX"
    ring = Channels(count=count, within=float(speed), across=float(speed), across_type=across, same=not nics)
    faster = [tried for tried in speeds if speed < tried <= min(most, 2 * speed) and tried * count <= nvlink]
    tree = Channels(
        count=count,
        within=float(max(faster, default=speed)) if nics else float(speed),
        across=float(speed),
        across_type=across,
        same=ring.same,
    )
    heads = min(32, gpus)
    pulls = [tried for tried in speeds if tried <= top and tried * (heads + 1) <= nvlink]
    pull = max(pulls, default=0.0)
    # The search then raises what NVLS sends between boxes, up to twice its pull or what a NIC takes.
    push = pull
    for tried in sorted(speeds):
        if push < tried and push < 2 * pull and (not nics or tried <= nic):
            push = tried
    nvls = Channels(
        count=heads if pulls and (not nics or nics >= heads) else 0,
        within=float(pull),
        across=float(push),
        across_type=across,
    )
    return ring, tree, nvls


_DIRECT = (Collective.ALL_TO_ALL, Collective.GATHER, Collective.SCATTER)


def select_by_cost(
    request: SelectionRequest,
    *,
    # Where it runs: GPUs, their links and NICs are read off it as far as it says them
    topology: Topology | None = None,
    # Properties of the communicator (see :data:`coppice.selection.nccl.selecting.SETTINGS`)
    settings: Mapping[str, str] | None = None,
    root: int = 0,  # Root rank, for the bound of a rooted collective
) -> Selection:
    """Pick of NCCL 2.30, with the predicted time of every algorithm and protocol."""
    collective = request.collective
    function = collective.dialects.nccl
    if function is None:
        raise InputError(f"NCCL has no {collective}: choose another collective, or a library of MPI.")
    if collective in _DIRECT or request.ranks == 1:
        return _without_model(request, function)
    inputs = inputs_of(request, topology, settings or {})
    found = cells(inputs.communicator, collective, request.size_bytes)
    if topology is not None:
        found = at_least_bound(found, topology, collective, request.size_bytes, root=root)
    best = min((cell for cell in found if cell.time_us is not None), key=lambda cell: cell.model_us)
    ours = constants().ours[collective].get(best.algorithm)
    return Selection(
        library="NCCL",
        version=constants().version,
        source=constants().source,
        function=function,
        collective=collective,
        ranks=request.ranks,
        size_bytes=request.size_bytes,
        component="cost model",
        algorithm=f"{best.algorithm}/{best.protocol}",
        runs_as=best.algorithm,
        ours=ours,
        parameters={"group": request.ranks // inputs.communicator.nodes} if ours == "nccl-tree" else {},
        reason=None if ours else constants().missing[best.algorithm],
        assumptions=inputs.assumptions,
        notes=_notes(inputs.communicator, best, request.size_bytes),
        cells=found,
    )


def _without_model(request: SelectionRequest, function: str) -> Selection:
    alone = request.ranks == 1
    return Selection(
        library="NCCL",
        version=constants().version,
        source=constants().source,
        function=function,
        collective=request.collective,
        ranks=request.ranks,
        size_bytes=request.size_bytes,
        component="no choice",
        algorithm="copy" if alone else "point-to-point",
        runs_as="copy" if alone else "point-to-point",
        ours=None if alone else constants().ours[request.collective]["p2p"],
        reason="one rank: nothing moves" if alone else None,
        notes=() if alone else ("NCCL sends and receives every block directly; there is nothing to choose",),
    )


def _notes(comm: NcclCommunicator, best: CostCell, size_bytes: int) -> tuple[str, ...]:
    """Channels and threads of the kernel, and what the model leaves out."""
    found = [
        "symmetric-memory and copy-engine kernels, registered buffers, tuner plugins and NCCL_ALGO are not modelled"
    ]
    if best.algorithm in ("Ring", "Tree", "CollNetChain", "PAT"):
        channels, threads = _kernel(comm, best, size_bytes)
        found.insert(
            0, f"the kernel takes {channels} of {comm.channels} channels, {threads} threads to move data each"
        )
    if best.promised_us is not None:
        found.insert(
            0,
            f"NCCL's cost model promises {best.promised_us:.4g} us by {best.algorithm}/{best.protocol}, less than the "
            "links of this topology allow: the time is that of the bound",
        )
    return tuple(found)


def _kernel(comm: NcclCommunicator, best: CostCell, size_bytes: int) -> tuple[int, int]:
    """Channels and threads: fewer for sizes that would leave each less than its threshold."""
    data = constants()
    threads, channels = data.most_threads[best.protocol], comm.channels
    if best.algorithm == "Ring" and best.protocol == "Simple":
        slow = comm.ring.within * comm.ring.count <= data.nic_gb_per_s_of_100_gbit
        threads = 256 if slow else threads
    threshold = data.thread_threshold_bytes[best.protocol]
    if best.algorithm == "Ring" and best.protocol == "LL":
        threshold *= comm.ranks
    while channels >= 2 and size_bytes < channels * threads * threshold:
        channels -= 1
    while size_bytes < channels * threads * threshold and threads % 128 == 0:
        threads //= 2
    threads = max(threads, 96)
    return channels, 640 if best.algorithm in ("Tree", "PAT") else threads


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
_OTHERWISE = "hopper"
"""Generation that is assumed where nothing tells one."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs of the cost model, and where each came from."""

    communicator: NcclCommunicator  # What the model takes
    assumptions: tuple[str, ...]  # What was read off or assumed


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


def inputs_of(request: SelectionRequest, topology: Topology | None, settings: Mapping[str, str]) -> Inputs:
    """Derive the inputs of the cost model for a call.

    Args:
        request: The call, of two ranks or more.
        topology: Where it runs, or None.
        settings: Properties that are given: keys of :data:`SETTINGS`.
    """
    for key in settings:
        if key not in SETTINGS:
            raise InputError(f"NCCL's cost model has no input {key!r}, only: {', '.join(SETTINGS)}.")
    given = _Given(settings)
    words: list[str] = []
    known = _known_box(given, words) if topology is None else None
    if topology is None:
        nodes, gpus = _boxes(request, constants().boxes[known or ""].gpus, words)
        machine = _machine_of_box(known or "", gpus, several=nodes > 1)
    else:
        nodes, gpus = _boxes(request, request.ranks, words)
        machine = machine_of(
            topology, settings.get("generation") and given.text("generation", "", tuple(GENERATIONS))
        )
        _check_machine(machine, topology, several=nodes > 1)
    generation = machine.generation or _OTHERWISE
    cpu = machine.cpu or constants().usual_cpu[generation]
    if machine.generation is None:
        words.append(f"GPUs of {generation} (nothing here tells: `generation` says it)")
    elif machine.told_by:
        words.append(f"GPUs of {generation}, by {machine.told_by} (`generation` says otherwise)")
    if machine.within_type != "NVL":
        words.append(
            f"no NVLink joins all GPUs of a box: paths of class {machine.within_type}, rings as the narrowest cut of "
            "the box allows (NCCL would search)"
        )
    elif not machine.nvswitch:
        words.append("direct NVLinks: rings of single links, as many as links (NCCL would search)")
    several = nodes > 1
    found = searched(
        generation,
        nvlink=machine.within_gb_per_s,
        most=machine.path_gb_per_s,
        gpus=gpus,
        nics=machine.nics if several else 0,
        nic=machine.nic_gb_per_s,
        apart=machine.within_type == "NVL",
    )
    ring, tree, nvls = _settled(found, given, machine, words)
    if several and machine.across_type is None and "type_inter" not in settings:
        words.append(f"paths between GPUs and NICs of class {ring.across_type}")
    if machine.cpu is None and "cpu" not in settings:
        words.append(f"processors of {cpu}")
    adds = given.flag("collnet", default=False) and several
    if adds:
        words.append("CollNet with the channels of the tree (NCCL would search for them)")
    return Inputs(
        communicator=NcclCommunicator(
            ranks=request.ranks,
            nodes=nodes,
            generation=generation,
            cpu=given.text("cpu", cpu),
            ring=ring,
            tree=tree,
            nvls=nvls if machine.adds and constants().nvls_efficiency[generation] and gpus > 1 else None,
            collnet_direct=tree if adds else None,
            collnet_chain=tree if adds else None,
            nvswitch=machine.nvswitch,
            plain_tree=several and gpus == 1,
        ),
        assumptions=tuple(words),
    )


def _settled(
    found: tuple[Channels, Channels, Channels], given: _Given, machine: NcclMachine, words: list[str]
) -> tuple[Channels, Channels, Channels]:
    """What the search found, where nothing else is given."""
    ring, tree, nvls = found
    within_type = given.text("type_intra", machine.within_type, PATHS)
    across_type = given.text("type_inter", machine.across_type or ring.across_type, PATHS)
    latency_us = given.number("latency_inter", 0.0)
    same = given.flag("same_channels", default=ring.same)

    def made(count: int, within: float, across: float) -> Channels:
        return Channels(
            count=count,
            within=within,
            across=across,
            within_type=within_type,
            across_type=across_type,
            latency_us=latency_us,
            same=same,
        )

    count = int(given.number("channels", ring.count))
    if count < 1 or count > MOST_CHANNELS // 2:
        raise InputError(
            f"expected channels to be 1 .. {MOST_CHANNELS // 2} (as the search counts them), found {count}."
        )
    within, across = given.number("bw_intra", ring.within), given.number("bw_inter", ring.across)
    tree_within = given.number("tree_bw_intra", within if "bw_intra" in given.settings else tree.within)
    if min(within, across, tree_within) <= 0:
        raise InputError("expected bw_intra, bw_inter and tree_bw_intra to be more than 0 GB/s.")
    if not {"channels", "bw_intra", "bw_inter"} <= set(given.settings):
        words.append(
            f"rings and trees of {count} channels, {within:g} GB/s inside and {across:g} GB/s between boxes"
        )
    if "latency_inter" not in given.settings and ring.across_type != "PIX":
        words.append("a network that states no latency of its own")
    return (
        made(count, within, across),
        made(count, tree_within, across),
        made(
            int(given.number("nvls_channels", nvls.count)),
            given.number("nvls_bw_intra", nvls.within),
            given.number("nvls_bw_inter", nvls.across),
        ),
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


def _machine_of_box(name: str, gpus: int, *, several: bool) -> NcclMachine:
    """A known kind of box of which so many GPUs are used."""
    box = constants().boxes[name]
    link = float(nvlink_gb_per_s(GENERATIONS[box.generation], RateClass.MEASURED))
    return NcclMachine(
        generation=box.generation,
        told_by="",
        cpu=None,
        nvswitch=box.nvswitch,
        adds=box.nvswitch and constants().nvls_efficiency[box.generation] > 0,
        within_gb_per_s=box.links * link,
        path_gb_per_s=box.links * link if box.nvswitch else link,
        within_type="NVL",
        across_type=None,
        nics=max(1, min(box.nics, box.nics * gpus // box.gpus)) if several else 0,
        nic_gb_per_s=box.nic_gbit / 100 * constants().nic_gb_per_s_of_100_gbit,
    )


def _check_machine(machine: NcclMachine, topology: Topology, *, several: bool) -> None:
    if several and not machine.nics:
        raise InputError(
            f"NCCL's cost model expects a NIC in every box of {topology.name}, found a box whose ranks reach none: "
            "join it to the network."
        )


def _boxes(request: SelectionRequest, most: int, words: list[str]) -> tuple[int, int]:
    """Number of boxes and ranks in each; ``most`` of those that nothing is known of share one."""
    if not request.even:
        raise InputError(
            "NCCL's cost model is for equal boxes here: choose ranks that divide evenly (`ranks`)."
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
