"""Machines of a topology, as NCCL would read them from a topology file.

Where a file told the slots of GPUs and NICs, the PCIe tree is that of the file. Elsewhere switches and processors of
the topology make the tree; and where GPUs have NICs of their own without PCIe between them, each NIC shares a switch
with its GPU (with two GPUs, up to Ampere), as in the machines of that generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from coppice.selection.nccl.boxes import Box, boxes_of
from coppice.selection.nccl.building import WITHOUT_NETWORK, machine_of_box
from coppice.selection.nccl.communicator import BoxOfRanks
from coppice.selection.nccl.releases import constants
from coppice.topology.generation import GENERATIONS, capability_of, generation_of_capability, named_generation
from coppice.topology.model import Topology
from coppice.topology.readers.link_rates import RateClass, nvlink_gb_per_s

_OTHERWISE = "hopper"


@dataclass(frozen=True, kw_only=True)
class HostMachines:
    """Machines of a topology."""

    boxes: tuple[BoxOfRanks, ...]  # Machines with their ranks, equal ones once in memory
    generation: str | None  # `volta`, `ampere`, `hopper` or `blackwell`; None where nothing tells
    told_by: str  # What the generation was concluded from, where it is not recorded; empty otherwise
    cpu: str | None  # Maker of the processors, `mixed` where GPUs differ, None where nothing tells
    described: bool  # The PCIe tree is that of the topology, not that of usual machines
    nics: int  # Least number of network ports of a box


@lru_cache(maxsize=16)
def machines_of(topology: Topology, generation: str | None = None, cpu: str | None = None) -> HostMachines:
    """Machines of a topology, as NCCL would read them.

    Args:
        generation: Generation of the GPUs, where it is given.
        cpu: Maker of the processors, where it is given.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = machines_of(preset("dgx-a100", boxes=2))
        >>> found.generation, len(found.boxes), found.nics, len(found.boxes[0].machine.processors)
        ('ampere', 2, 8, 2)
    """
    boxes = boxes_of(topology)
    kinds = list({id(box): box for box in boxes}.values())
    capability, told_by = _capability(topology, kinds, generation)
    reckoned = generation_of_capability(capability) if capability is not None else _OTHERWISE
    made = {
        id(box): BoxOfRanks(
            machine=machine_of_box(
                box,
                capability=capability or GENERATIONS[_OTHERWISE],
                generation=reckoned,
                cpu=cpu,
                forced=generation is not None,
            ),
            gpus=tuple(str(place) for place in box.ranks),
        )
        for box in kinds
    }
    makers = {box.maker(rank) for box in kinds for rank in box.ranks}
    return HostMachines(
        boxes=tuple(made[id(box)] for box in boxes),
        generation=None if capability is None else reckoned,
        told_by=told_by,
        cpu=cpu or (makers.pop() if len(makers) == 1 else "mixed"),
        described=all(box.described for box in kinds),
        nics=min(sum(port is not WITHOUT_NETWORK for port in each.machine.ports) for each in made.values()),
    )


def _capability(topology: Topology, boxes: list[Box], generation: str | None) -> tuple[int | None, str]:
    """Compute capability of the GPUs, and what told it where it is not recorded."""
    recorded = capability_of(topology)
    if generation is not None:
        same = recorded is not None and generation_of_capability(recorded) == generation
        return recorded if same else GENERATIONS[generation], ""
    if recorded is not None:
        return recorded, ""
    rates = {
        sum((rate for (a, _), rate in box.gpu_links.items() if a == rank), Fraction(0))
        for box in boxes
        for rank in box.ranks
    }
    most = max(rates, default=Fraction(0))
    for name, capability in GENERATIONS.items():
        full = constants().most_nvlinks[name]
        if most in {full * nvlink_gb_per_s(capability, rates_class) for rates_class in RateClass}:
            return capability, f"the {float(most):g} GB/s of NVLink of a GPU"
    named = named_generation(topology)
    return (None, "") if named is None else (GENERATIONS[named], "the topology's name")
