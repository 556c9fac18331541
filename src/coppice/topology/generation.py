"""Generation of NVIDIA GPUs in a topology, from its name, its nodes or an option."""

from __future__ import annotations

import re

from coppice.errors import InputError
from coppice.topology.model import Topology

GENERATIONS = {"volta": 70, "ampere": 80, "hopper": 90, "blackwell": 100}
"""Generations whose links and channels are known, with the compute capability times ten from which GPUs count to it."""

_MODELS = {
    "volta": ("v100", "dgx-1v", "dgx1v", "ndv2"),
    "ampere": ("a100",),
    "hopper": ("h100", "h200"),
    "blackwell": ("b200", "b300", "gb200", "gb300"),
}
"""What names of topologies call them."""

_SM = re.compile(r"sm_?([0-9]{2,3})[a-z]?")


def generation_of(topology: Topology, name: str | None = None) -> str:
    """Generation of the GPUs: the one named, else that of the nodes, else that in the topology's name.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> generation_of(preset("dgx-h100", boxes=2))
        'hopper'
    """
    known = tuple(GENERATIONS)
    if name is not None:
        if name.lower() in known:
            return name.lower()
        raise InputError(f"expected a generation of GPUs of {', '.join(known)}, found {name!r}.")
    try:
        capability = capability_of(topology)
    except InputError:
        found = None
    else:
        found = named_generation(topology) if capability is None else generation_of_capability(capability)
    if found is None:
        raise InputError(
            f"expected the GPUs of {topology.name} to be known by their `arch` (such as sm_90) or by its name: give "
            f"their generation (`gpu={'|'.join(known)}`), or the rate of a channel (`channel_rate`)."
        )
    return found


def capability_of(topology: Topology) -> int | None:
    """Lowest CUDA compute capability among the ranks, times ten; None where the topology does not record it.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> capability_of(preset("dgx-b200")), capability_of(preset("ring"))
        (100, None)
    """
    if not topology.arch:
        return None
    found = None
    for node in topology.rank_nodes.tolist():
        arch = topology.arch[node]
        if arch is None:
            continue
        match = _SM.fullmatch(arch)
        if match is None:
            raise InputError(
                f"expected GPUs of NVIDIA, found {arch[:40]} ({topology.node_ids[node]} of {topology.name}): NCCL does "
                "not run there, and a log of RCCL (`coppice select --log`) tells RCCL's choice."
            )
        found = min(int(match[1]), found or int(match[1]))
    return found


def generation_of_capability(capability: int) -> str:
    """Map a compute capability to a generation as NCCL does: the newest that it reaches, else the oldest.

    >>> [generation_of_capability(each) for each in (60, 70, 89, 90, 103, 120)]
    ['volta', 'volta', 'ampere', 'hopper', 'blackwell', 'blackwell']
    """
    reached = [name for name, least in GENERATIONS.items() if least <= capability]
    return max(reached, key=GENERATIONS.__getitem__, default="volta")


def named_generation(topology: Topology) -> str | None:
    """Generation of the GPU model that the topology's name contains."""
    text = topology.name.lower()
    for generation, models in _MODELS.items():
        if any(model in text for model in models):
            return generation
    return None
