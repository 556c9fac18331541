"""The lines that describe a box to the emulated CUDA runtime (``box.h``), of the first host of a topology."""

from __future__ import annotations

import numpy as np

from coppice.topology.model import NodeKind, Topology

_LINK_GB_PER_S = {70: 25, 80: 25, 90: 25, 100: 50}
_GPU_BYTES = 80 * 2**30


def box_of(topology: Topology, *, gpus: int | None = None, driver: int = 13000) -> str:
    """Describe the GPUs of the topology's first host, and what NVLink joins them with.

    Args:
        topology: Its GPUs name their architecture, or count as H100.
        gpus: Only the first ones; all if None.
        driver: Version of the driver that the box has, as CUDA numbers it.
    """
    hosted = topology.host == topology.host[int(np.argmax(topology.kind == NodeKind.GPU))]
    inside = [node for node in range(topology.num_nodes) if hosted[node]]
    boxed = [node for node in inside if topology.kind[node] == NodeKind.GPU][:gpus]
    switches = [node for node in inside if topology.kind[node] == NodeKind.SWITCH]
    addresses = {node: f"0000:{0x07 + 0x10 * at:02x}:00.0" for at, node in enumerate(boxed)}
    addresses |= {node: f"0001:{0xC0 + at:02x}:00.0" for at, node in enumerate(switches)}
    archs = [topology.arch[node] if topology.arch else None for node in boxed]
    capabilities = [int((arch or "sm_90").removeprefix("sm_")) for arch in archs]
    lines = [f"driver {driver}"]
    for at, (node, capability) in enumerate(zip(boxed, capabilities, strict=True)):
        shared = int(any(topology.multicast[each] for each in switches) and capability >= 90)
        numa = 2 * at // len(boxed)
        lines.append(f"gpu {addresses[node]} {capability} {_GPU_BYTES} {numa} {shared} Emulated-{capability}")
    for at, (node, capability) in enumerate(zip(boxed, capabilities, strict=True)):
        for link in np.flatnonzero(topology.src == node):
            there = int(topology.dst[link])
            if there not in addresses:
                continue
            rate = topology.gb_per_s(int(link))
            kind = "switch" if there in switches else "gpu"
            lines += [f"link {at} {addresses[there]} {kind}"] * max(
                1, round(rate / _LINK_GB_PER_S[capability])
            )
    return "\n".join(lines) + "\n"
