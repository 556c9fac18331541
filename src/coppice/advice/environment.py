"""What variables of NCCL leave of its choice, as far as its cost model and its search of channels know them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from coppice.advice.changes import Change
from coppice.advice.channels import LIMITS, most_channels
from coppice.collectives import Collective
from coppice.logs.records import collective_named, own_name
from coppice.selection.nccl.boxes import each_box
from coppice.selection.nccl.costs import CostCell
from coppice.topology.model import Topology
from coppice.topology.operations import remove_links
from coppice.topology.slots import Slot, SlotStep

RESTRICTING: Mapping[str, str] = {
    "NCCL_ALGO": "the algorithms that NCCL may pick",
    "NCCL_PROTO": "the protocols that NCCL may pick",
    "NCCL_NVLS_ENABLE": "NVLS, which adds in the NVSwitches",
    "NCCL_P2P_DISABLE": "NVLink and PCIe between GPUs",
    "NCCL_P2P_LEVEL": "NVLink and PCIe between GPUs",
    "NCCL_NET_GDR_LEVEL": "GPUDirect between GPUs and NICs",
    **dict.fromkeys(LIMITS, "channels, which carry a share of the bytes each"),
}
"""Variables that take something from NCCL, with what they take."""

_OFF = ("0", "LOC")


def restricts(name: str, value: str) -> bool:
    """Whether a variable takes something from NCCL.

    Examples:
        >>> restricts("NCCL_NVLS_ENABLE", "0"), restricts("NCCL_NVLS_ENABLE", "1"), restricts("NCCL_ALGO", "Ring")
        (True, False, True)
    """
    word = value.strip().upper()
    if name in ("NCCL_ALGO", "NCCL_PROTO"):
        return bool(word)
    if name == "NCCL_P2P_DISABLE":
        return word not in ("", "0")
    if name in LIMITS:
        return most_channels({name: value}) is not None
    return name in RESTRICTING and word in _OFF


def unset_changes(environment: Mapping[str, str]) -> Iterator[Change]:
    """A change for each variable that takes something from NCCL: to unset it."""
    for name, value in environment.items():
        if restricts(name, value):
            yield Change(
                name=f"unset {name}",
                what=f"unset {name} (it is {value}): it takes {RESTRICTING[name]}",
                undo=f"export {name}={value}",
                sets={name: None},
            )


def model_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Inputs of NCCL's cost model that variables change."""
    found = {}
    if restricts("NCCL_NVLS_ENABLE", environment.get("NCCL_NVLS_ENABLE", "1")):
        found["nvls_channels"] = "0"
    if environment.get("NCCL_COLLNET_ENABLE", "0").strip() == "1":
        found["collnet"] = "yes"
    return found


def as_seen(topology: Topology, environment: Mapping[str, str]) -> Topology:
    """The cluster as NCCL sees it under variables that hide links from it."""
    hides_links = any(
        restricts(name, environment.get(name, "")) for name in ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")
    )
    found = without_gpu_links(topology) if hides_links else topology
    if restricts("NCCL_NET_GDR_LEVEL", environment.get("NCCL_NET_GDR_LEVEL", "")):
        found = with_gpudirect(found, on=False)
    return found


def without_gpu_links(topology: Topology) -> Topology:
    """The cluster without NVLinks; unchanged where GPUs have no other way to each other."""
    pairs = {
        tuple(sorted((topology.node_ids[box.nodes[a]], topology.node_ids[box.nodes[b]])))
        for _, box in each_box(topology)
        if box.bridges
        for a, b in box.gpu_links
    }
    return remove_links(topology, [(a, b) for a, b in sorted(pairs)]) if pairs else topology


def with_gpudirect(topology: Topology, *, on: bool) -> Topology:
    """The cluster with GPUDirect between all GPUs and NICs whose slots are known, or without it."""
    if not topology.slot:
        return topology

    def step(each: SlotStep, place: int, last: int) -> SlotStep:
        if place != last:
            return each
        facts = tuple(fact for fact in each.facts if fact[0] != "gdr")
        return replace(each, facts=facts if on else (*facts, ("gdr", "0")))

    slots: list[str | None] = []
    for text in topology.slot:
        if text is None:
            slots.append(None)
            continue
        steps = Slot.of(text).steps
        slots.append(Slot(tuple(step(each, i, len(steps) - 1) for i, each in enumerate(steps))).text)
    return replace(topology, slot=tuple(slots))


def allowed(
    cells: tuple[CostCell, ...], collective: Collective, environment: Mapping[str, str]
) -> tuple[CostCell, ...]:
    """Cells that NCCL_ALGO and NCCL_PROTO leave; all of them where they leave none that is available.

    Examples:
        >>> ring, tree = (CostCell(algorithm=name, protocol="LL", time_us=1.0) for name in ("Ring", "Tree"))
        >>> [each.algorithm for each in allowed((ring, tree), Collective.ALL_REDUCE, {"NCCL_ALGO": "^Ring"})]
        ['Tree']
        >>> [each.algorithm for each in allowed((ring,), Collective.BROADCAST, {"NCCL_ALGO": "Tree"})]
        ['Ring']
    """
    kept = cells
    for name, part in (("NCCL_ALGO", "algorithm"), ("NCCL_PROTO", "protocol")):
        listed, excluded = _listed(environment.get(name, ""), collective)
        if listed:
            kept = tuple(each for each in kept if (own_name(getattr(each, part)) in listed) is not excluded)
    return kept if any(each.time_us is not None for each in kept) else cells


def _listed(text: str, collective: Collective) -> tuple[set[str | None], bool]:
    """Names of a list of NCCL for a collective, and whether they are excluded."""
    chosen = ""
    for part in text.split(";"):
        function, colon, names = part.rpartition(":")
        if not colon or collective_named(function.strip()) is collective:
            chosen = names.strip()
    excluded = chosen.startswith("^")
    return {own_name(name.strip()) for name in chosen.removeprefix("^").split(",") if name.strip()}, excluded
