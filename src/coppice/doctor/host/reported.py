"""Rules about what a run of NCCL or the kernel reports of a host."""

from __future__ import annotations

import re
from collections.abc import Iterator

from coppice.doctor.framework import WARNING, Complaint
from coppice.doctor.host.subject import HOST_RULES, PCI_LIST, RUN_LOG, HostFile
from coppice.text import plural
from coppice.topology.readers.link_rates import RateClass, pcie_gb_per_s

_P2P = re.compile(r"P2P is disabled between (?:NVLINK )?connected GPUs (\S+) and (\S+?)[.\s]", re.IGNORECASE)
_NO_P2P = re.compile(r"NCCL_P2P_(?P<name>DISABLE|LEVEL) set (?:by environment )?to (?P<value>\S+)")
_SHM = re.compile(r"Channel \d+(?:/\d+)? : (\d+)\[\S+\] -> (\d+)\[\S+\] via SHM")
_NET = re.compile(r"via NET/(IB|OFI|Libfabric|AWS Libfabric)/\d+(?P<direct>\S*)")
_NO_GDR = re.compile(r"GPU Direct RDMA Disabled for (?P<what>[^(]+?)\s*(?:\((?P<why>[^)]*)\))?\s*$")
_SOCKET = re.compile(r"Using network Socket")
_RING = re.compile(r"Channel (\d+)/(\d+) :((?:\s+\d+)+)\s*$")
_SPEED = re.compile(r"Speed ([0-9.]+GT/s)[^,]*, Width x(\d+)")
_BRIDGE = re.compile(r"PCI bridge", re.IGNORECASE)
_ACS = ("ReqRedir+", "CmpltRedir+", "SrcValid+")
_MATTERS = re.compile(
    r"VGA|3D controller|Processing accelerators|Infiniband|Ethernet|Network controller|PCI bridge", re.I
)


@HOST_RULES.rule("H10", WARNING, "GPUs that reach each other", "bytes go through host memory", needs=RUN_LOG)
def _peers(file: HostFile) -> Iterator[Complaint]:
    pairs: dict[frozenset[str], int] = {}
    shared: dict[tuple[str, str], int] = {}
    for number, text, _, _ in file.lines:
        if match := _P2P.search(text):
            pairs.setdefault(frozenset((match[1], match[2])), number)
        elif match := _SHM.search(text):
            shared.setdefault((match[1], match[2]), number)
        elif (match := _NO_P2P.search(text)) and _takes_p2p(match["name"], match["value"]):
            cost = f": {_PCIE_4:.3g} GB/s at most through host memory instead of NVLink or PCIe between GPUs"
            yield number, f"{match[0]}{cost}", f"unset NCCL_P2P_{match['name']}"
    if pairs or shared:
        what = f"P2P is disabled between {plural(len(pairs), 'pair')} of GPUs" if pairs else ""
        if shared:
            what += (
                ", and " if what else ""
            ) + f"{plural(len(shared), 'connection')} between GPUs of a host use SHM"
        line = min([*pairs.values(), *shared.values()])
        cost = f": {_PCIE_4:.3g} GB/s of PCIe 4 at most, twice over, in place of NVLink or PCIe P2P"
        yield (
            line,
            what + cost,
            "look at `nvidia-smi topo -p2p r`, at ACS (`lspci -vv`), IOMMU and container limits",
        )


def _takes_p2p(name: str, value: str) -> bool:
    """Whether a value takes P2P away: 1 disables, 0 is the level LOC.

    >>> _takes_p2p("DISABLE", "1"), _takes_p2p("DISABLE", "0"), _takes_p2p("LEVEL", "LOC"), _takes_p2p("LEVEL", "NVL")
    (True, False, True, False)
    """
    return value == "1" if name == "DISABLE" else value.upper() in ("LOC", "0")


_PCIE_4 = float(pcie_gb_per_s("16.0 GT/s PCIe", 16, RateClass.MEASURED))


@HOST_RULES.rule("H11", WARNING, "GPUDirect in the run", "bytes go through host memory", needs=RUN_LOG)
def _direct(file: HostFile) -> Iterator[Complaint]:
    plain, direct, first = 0, 0, 0
    for number, text, _, _ in file.lines:
        if match := _NET.search(text):
            if "GDRDMA" in match["direct"]:
                direct += 1
            else:
                plain, first = plain + 1, first or number
    why = next(
        ((number, match) for number, text, _, _ in file.lines if (match := _NO_GDR.search(text))), None
    )
    if plain:
        text = f"{plain} of {plain + direct} connections to other hosts go without GPUDirect: "
        text += (
            f"{_PCIE_4:.3g} GB/s of PCIe 4 at most, shared with host memory, which each byte crosses twice"
        )
        if why is not None:
            text += f" (line {why[0]}: {why[1]['why'] or why[1]['what']})"
        yield (
            first,
            text,
            "load nvidia-peermem; where the distance is PHB, set NCCL_NET_GDR_LEVEL=PHB and measure",
        )


@HOST_RULES.rule("H12", WARNING, "the fast network in use", "TCP carries what NICs could", needs=RUN_LOG)
def _sockets(file: HostFile) -> Iterator[Complaint]:
    for number, text, _, _ in file.lines:
        if _SOCKET.search(text):
            ports = (
                []
                if file.topology is None
                else [rate for host in file.hosts for nic in host.nics if (rate := host.port(nic))]
            )
            cost = f": {sum(ports):.4g} GB/s of NICs are not used as such" if ports else ""
            fix = "look for `NET/IB : No device found` above, NCCL_IB_DISABLE, NCCL_NET, missing verbs in the container"
            yield number, f"NCCL uses sockets between hosts{cost}", fix
            return


@HOST_RULES.rule(
    "H13",
    WARNING,
    "rings that cross sockets no more than needed",
    "sockets carry every crossing",
    needs=RUN_LOG,
)
def _rings(file: HostFile) -> Iterator[Complaint]:
    places = _sockets_of_ranks(file)
    seen: set[tuple[int, ...]] = set()
    for number, text, _, _ in file.lines:
        match = _RING.search(text)
        ring = tuple(map(int, match[3].split())) if match else ()
        if not match or ring in seen or not set(ring) <= set(places):
            continue
        seen.add(ring)
        crossed = sum(places[a] != places[b] for a, b in zip(ring, (*ring[1:], ring[0]), strict=True))
        used = len({places[rank] for rank in ring})
        needed = 0 if used == 1 else used
        if crossed > needed:
            rate = _socket_rate(file)
            cost = (
                f"{rate / crossed:.3g} GB/s for each crossing instead of {rate / needed:.3g}"
                if needed
                else ""
            )
            text = f"ring {match[1]} crosses sockets {crossed} times, {needed} are enough: {cost}"
            yield (
                number,
                text,
                "give ranks of a socket neighbouring numbers, or look why NCCL found no better ring (links lost)",
            )


def _sockets_of_ranks(file: HostFile) -> dict[int, str]:
    """Processor of each rank of one host, where NVLinks do not join them."""
    found: dict[int, str] = {}
    if file.topology is None or len(file.hosts) != 1:
        return found
    (host,) = file.hosts
    if host.box.gpu_links:
        return found
    for rank, gpu in enumerate(host.gpus):
        cpu = host.processor(gpu)
        if cpu is not None:
            found[rank] = cpu
    return found


def _socket_rate(file: HostFile) -> float:
    box = file.hosts[0].box
    rates = [float(rate) for (a, b), rate in box.links.items() if box.is_cpu(a) and box.is_cpu(b)]
    return min(rates, default=0.0)


@HOST_RULES.rule(
    "H14", WARNING, "ACS off on PCIe bridges", "P2P and GPUDirect go by the root complex", needs=PCI_LIST
)
def _acs(file: HostFile) -> Iterator[Complaint]:
    on = [
        each
        for each in file.devices()
        if _BRIDGE.search(each.what) and any(word in each.fields.get("ACSCtl", "") for word in _ACS)
    ]
    if on:
        rates = [rate for each in on if (rate := _rate(each.fields.get("LnkSta", ""))) is not None]
        cost = f" at up to {max(rates):.3g} GB/s each" if rates else ""
        text = f"ACS redirects traffic on {plural(len(on), 'PCIe bridge')}{cost}: it passes the processor"
        fix = "switch ACS off in the firmware, or `setpci -s BRIDGE ECAP_ACS+0x6.w=0000`; undo by a reboot"
        yield on[0].line, text, fix


@HOST_RULES.rule(
    "H15", WARNING, "PCIe links at their width and speed", "the device is slower", needs=PCI_LIST
)
def _trained(file: HostFile) -> Iterator[Complaint]:
    for each in file.devices():
        able, now = _rate(each.fields.get("LnkCap", "")), _rate(each.fields.get("LnkSta", ""))
        if _MATTERS.search(each.what) and able is not None and now is not None and now < able:
            text = (
                f"{each.busid} ({each.what.partition(':')[0]}) runs at {now:.3g} GB/s of PCIe, it could {able:.3g}: "
                f"{able - now:.3g} GB/s less"
            )
            fix = (
                "GPUs lower the speed while idle: look again under load; then reseat it, or look at its slot"
            )
            yield each.line, text, fix


def _rate(text: str) -> float | None:
    """GB/s of a link in lspci's words."""
    match = _SPEED.search(text)
    if match is None:
        return None
    speed = match[1].removesuffix("GT/s")
    return float(pcie_gb_per_s(f"{float(speed):.1f} GT/s PCIe", int(match[2]), RateClass.MEASURED))
