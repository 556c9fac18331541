"""The channels that NCCL's topology search finds, in closed form, for boxes whose GPUs and NICs are all alike.

NCCL tries speeds of a channel from a descending table, and keeps the speed and number of channels with the largest
product. Where all GPUs hang on NVSwitches and share the NICs evenly, how many channels fit is a matter of counting: a
GPU passes on what every channel carries, except where the channel comes from or goes to its NIC. Elsewhere it stands in
for the search: rings share what the narrowest cut of a box lets through.
"""

from __future__ import annotations

from coppice.selection.nccl_data import constants
from coppice.selection.nccl_model import MOST_CHANNELS, Channels
from coppice.topology.generation import GENERATIONS


def searched(
    generation: str, *, nvlink: float, most: float, gpus: int, nics: int, nic: float, apart: bool = True
) -> tuple[Channels, Channels, Channels]:
    """Channels of ring, tree and NVLS on boxes whose GPUs and NICs are all alike.

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
