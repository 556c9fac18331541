"""Rules about the wiring of GPUs and NICs, from a topology."""

from __future__ import annotations

from collections.abc import Iterator

from coppice.doctor.framework import NOTE, WARNING, Complaint
from coppice.doctor.host.subject import HOST_RULES, WIRING, HostFile, HostWiring
from coppice.selection.nccl.boxes import Box
from coppice.text import plural, shortened
from coppice.topology.generation import GENERATIONS

_NEAR = ("PIX", "PXB")


def _first(gpus: list[str]) -> str:
    return shortened(gpus, 4)


@HOST_RULES.rule(
    "H01", NOTE, "a NIC behind the PCIe switch of each GPU", "bytes cross the processor", needs=WIRING
)
def _switches(file: HostFile) -> Iterator[Complaint]:
    for host in file.hosts:
        far = {gpu: paths[0] for gpu in host.gpus if (paths := host.paths(gpu)) and paths[0].kind == "PHB"}
        if far:
            rate = max(path.gb_per_s for path in far.values())
            text = (
                f"{_first([host.id(gpu) for gpu in far])} of {host.where} share no PCIe switch with a NIC (PHB): up to "
                f"{rate:.3g} GB/s of each go through host memory, and NCCL does not use LL128 between hosts"
            )
            yield 0, text, "set NCCL_NET_GDR_LEVEL=PHB and measure, or move NICs to the switches of the GPUs"


@HOST_RULES.rule("H02", WARNING, "a NIC on the NUMA node of each GPU", "bytes cross sockets", needs=WIRING)
def _sockets(file: HostFile) -> Iterator[Complaint]:
    for host in file.hosts:
        far = {gpu: paths[0] for gpu in host.gpus if (paths := host.paths(gpu)) and paths[0].kind == "SYS"}
        if not far:
            continue
        across = min(path.gb_per_s for path in far.values())
        own = max(host.pcie(gpu) or 0.0 for gpu in far)
        text = (
            f"{_first([host.id(gpu) for gpu in far])} of {host.where} reach NICs across sockets only: "
            f"{across / len(far):.3g} GB/s for each of {plural(len(far), 'GPU')} when all send, instead of {own:.3g}"
        )
        yield 0, text, "bind those ranks to GPUs beside NICs, or move a NIC to their socket"


@HOST_RULES.rule(
    "H03", WARNING, "PCIe as wide and fast as that of its like", "the device is slower", needs=WIRING
)
def _downgraded(file: HostFile) -> Iterator[Complaint]:
    for host in file.hosts:
        for what, places in (("GPU", host.gpus), ("NIC", host.nics)):
            kinds: dict[float | None, list[int]] = {}
            for place in places:
                kinds.setdefault(host.port(place) if what == "NIC" else None, []).append(place)
            for members in kinds.values():
                rates = {place: rate for place in members if (rate := host.pcie(place)) is not None}
                usual = max(rates.values(), default=0.0)
                slow = [place for place, rate in rates.items() if rate < usual]
                if slow:
                    least = min(rates[place] for place in slow)
                    text = (
                        f"{_first([host.id(place) for place in slow])} of {host.where} have {least:.3g} GB/s of PCIe, "
                        f"the other {what}s {usual:.3g}: {usual - least:.3g} GB/s less each"
                    )
                    yield (
                        0,
                        text,
                        "compare LnkSta with LnkCap (`lspci -vv`) under load, and reseat the device or its riser",
                    )


@HOST_RULES.rule(
    "H04", NOTE, "slots as fast as the ports of their NICs", "the port never fills", needs=WIRING
)
def _slots(file: HostFile) -> Iterator[Complaint]:
    for host in file.hosts:
        narrow: dict[tuple[float, float], list[str]] = {}
        for nic in host.nics:
            port, pcie = host.port(nic), host.pcie(nic)
            # Nominal ports against measured slots: a port of 100 Gbit/s fills a slot that carries 12 GB/s.
            if port is not None and pcie is not None and pcie < port * _FILLS:
                narrow.setdefault((port, pcie), []).append(host.id(nic))
        for (port, pcie), names in narrow.items():
            text = (
                f"{_first(names)} of {host.where}: ports of {port:.3g} GB/s in slots of {pcie:.3g}: "
                f"{port - pcie:.3g} GB/s of each are never used"
            )
            yield 0, text, "put the NIC into a faster slot, or count with the slot"


_FILLS = 0.9


@HOST_RULES.rule("H05", NOTE, "a NIC for each GPU", "GPUs share a port", needs=WIRING)
def _shared(file: HostFile) -> Iterator[Complaint]:
    for host in file.hosts:
        near: dict[frozenset[int], list[int]] = {}
        for gpu in host.gpus:
            paths = host.paths(gpu)
            best = frozenset(path.nic for path in paths if path.kind == paths[0].kind)
            if best:
                near.setdefault(best, []).append(gpu)
        for nics, gpus in near.items():
            if len(nics) < len(gpus):
                rate = min(host.port(nic) or host.pcie(nic) or 0.0 for nic in nics)
                text = (
                    f"{_first([host.id(gpu) for gpu in gpus])} of {host.where} share "
                    f"{_first([host.id(nic) for nic in sorted(nics)])}: {rate * len(nics) / len(gpus):.3g} GB/s for "
                    f"each when all send, instead of {rate:.3g}"
                )
                yield 0, text, "nothing where the box is built so; else look for NICs that are lost (`lspci`)"


@HOST_RULES.rule("H06", NOTE, "NICs near GPUs", "NCCL may use them all the same", needs=WIRING)
def _idle(file: HostFile) -> Iterator[Complaint]:
    for host in file.hosts:
        used = {
            path.nic
            for gpu in host.gpus
            for paths in [host.paths(gpu)]
            for path in paths
            if path.kind == paths[0].kind
        }
        idle = [nic for nic in host.nics if nic not in used]
        if idle and used:
            names = [host.id(nic) for nic in idle]
            text = f"{_first(names)} of {host.where} are the nearest NICs of no GPU"
            listed = ",".join(name.rpartition("/")[2] for name in names)
            yield 0, text, f"where they are for storage, leave them out: NCCL_IB_HCA=^{listed}"


@HOST_RULES.rule(
    "H07", WARNING, "GPUDirect between GPUs and NICs", "bytes go through host memory", needs=WIRING
)
def _gpudirect(file: HostFile) -> Iterator[Complaint]:
    for host in file.hosts:
        for what, places in (("GPUs", host.gpus), ("NICs", host.nics)):
            off = [place for place in places if _gdr(host, place) == "0" and not _slow_port(host, place)]
            if off:
                rate = max(host.pcie(place) or 0.0 for place in off)
                text = (
                    f"GPUDirect is missing for {plural(len(off), what[:-1])} of {host.where} "
                    f"({_first([host.id(place) for place in off])}): {rate:.3g} GB/s of each cross host memory twice, "
                    "and NCCL does not use LL128 between hosts"
                )
                yield 0, text, "load nvidia-peermem (or a kernel with dma-buf), and look that ACS is off"


_OF_RDMA_GB_PER_S = 5
"""Ports below 40 Gbit/s are those of TCP, which has no GPUDirect."""


def _slow_port(host: HostWiring, place: int) -> bool:
    rate = host.port(place) if place in host.nics else None
    return rate is not None and rate < _OF_RDMA_GB_PER_S


def _gdr(host: HostWiring, place: int) -> str:
    slot = host.slot(place)
    return "" if slot is None else slot.steps[-1].fact("gdr")


@HOST_RULES.rule(
    "H08", WARNING, "as many NVLinks as its like", "rings are as slow as the slowest GPU", needs=WIRING
)
def _nvlinks(file: HostFile) -> Iterator[Complaint]:
    for host in file.hosts:
        rates = {gpu: host.nvlink(gpu) for gpu in host.gpus}
        usual = max(rates.values())
        many = 2 * sum(rate == usual for rate in rates.values()) >= len(rates)
        slow = [gpu for gpu, rate in rates.items() if rate < usual]
        for gpu in slow:
            text = (
                f"{host.id(gpu)} of {host.where} has {rates[gpu]:.4g} GB/s of NVLink, others {usual:.4g}: "
                f"{usual - rates[gpu]:.4g} GB/s less, for every ring of the host"
            )
            yield (
                WARNING if many else NOTE,
                0,
                text,
                "look at `nvidia-smi nvlink -s`, reset the GPU or its fabric, drain the host if it stays",
            )


@HOST_RULES.rule(
    "H09", NOTE, "NVLinks where GPUs of the kind have them", "GPUs are joined by PCIe only", needs=WIRING
)
def _without(file: HostFile) -> Iterator[Complaint]:
    for host in file.hosts:
        arch = _arch(host.box, host.gpus[0])
        if arch in _WITH_NVLINK and len(host.gpus) > 1 and not host.box.gpu_links:
            rate = max(host.pcie(gpu) or 0.0 for gpu in host.gpus)
            text = f"no GPU of {host.where} has an NVLink in the file: {rate:.3g} GB/s of PCIe join them"
            yield (
                0,
                text,
                "boards with NVLink: take a full dump, or name the model (`--set gpu=h100`); `topo -mp` lists none",
            )


_WITH_NVLINK = {f"sm_{capability}" for capability in GENERATIONS.values()}


def _arch(box: Box, place: int) -> str | None:
    return box.topology.arch[box.nodes[place]] if box.topology.arch else None
