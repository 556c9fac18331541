"""What is known of a host: its topology, a log of NCCL from it, or what `lspci -vv` printed there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from coppice.doctor.framework import Need, Rulebook
from coppice.doctor.job_facts import TuningFile
from coppice.logs.lines import LogLine, log_lines
from coppice.selection.nccl.boxes import Box, each_box
from coppice.topology.model import NodeKind, Topology
from coppice.topology.readers import read
from coppice.topology.slots import Slot

_LSPCI = re.compile(r"(?m)^\s*(LnkSta|LnkCap|ACSCtl):")
_LOG = re.compile(r"(?m)NCCL (INFO|WARN) ")
_DEVICE = re.compile(r"(?P<busid>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (?P<what>.+)")


class NicPath(NamedTuple):
    """The way of a GPU to a NIC inside a host."""

    nic: int  # Node of the NIC
    kind: str  # PIX, PXB, PHB or SYS, as `nvidia-smi topo -m` names them
    gb_per_s: float  # Its narrowest link


class PciDevice(NamedTuple):
    """A device in the output of lspci."""

    busid: str
    what: str  # Its class and name
    line: int
    fields: dict[str, str]  # LnkCap, LnkSta, ACSCtl


@dataclass(frozen=True, eq=False)
class HostWiring:
    """GPUs and NICs of one host, with the ways between them."""

    topology: Topology
    box: Box
    name: str  # Of the host
    alike: int  # Hosts that are wired like this one, itself included

    @cached_property
    def gpus(self) -> list[int]:
        """Places of the GPUs that are ranks."""
        return list(self.box.ranks)

    @cached_property
    def nics(self) -> list[int]:
        """Places of the NICs."""
        return [p for p in range(len(self.box.nodes)) if self.box.kind(p) is NodeKind.NIC]

    def id(self, place: int) -> str:
        """Name of a node."""
        return self.topology.node_ids[self.box.nodes[place]]

    def slot(self, place: int) -> Slot | None:
        """Slot of a node, None where it is not known."""
        text = self.box.slot(place)
        return None if text is None else Slot.of(text)

    def paths(self, gpu: int) -> list[NicPath]:
        """Ways of a GPU to all NICs over PCIe switches and processors, by fewest links."""
        box, reached = self.box, {gpu: ([gpu], float("inf"))}
        ring = [gpu]
        while ring:
            beyond = []
            for place in ring:
                for other, rate in self._near.get(place, ()):
                    if other not in reached:
                        way, width = reached[place]
                        reached[other] = ([*way, other], min(width, rate))
                        if other in box.bridges:
                            beyond.append(other)
            ring = beyond
        found = []
        for nic in self.nics:
            if nic in reached:
                way, rate = reached[nic]
                found.append(NicPath(nic, self._kind(way[1:-1]), rate))
        return sorted(found, key=lambda path: (_KINDS.index(path.kind), path.nic))

    def _kind(self, between: list[int]) -> str:
        cpus = sum(self.box.is_cpu(place) for place in between)
        return "SYS" if cpus > 1 else "PHB" if cpus else "PXB" if len(between) > 1 else "PIX"

    @cached_property
    def _near(self) -> dict[int, list[tuple[int, float]]]:
        found: dict[int, list[tuple[int, float]]] = {}
        for (a, b), rate in self.box.links.items():
            if (a, b) not in self.box.gpu_links and not {a, b} & self.box.gpu_switches:
                found.setdefault(a, []).append((b, float(rate)))
        return found

    def processor(self, place: int) -> str | None:
        """The processor that is nearest to a node, None where none is known."""
        seen, ring = {place}, [place]
        while ring:
            ring = [other for each in ring for other, _ in self._near.get(each, ()) if other not in seen]
            seen.update(ring)
            cpus = sorted(self.id(each) for each in ring if self.box.is_cpu(each))
            if cpus:
                return cpus[0]
            ring = [each for each in ring if each in self.box.bridges]
        return None

    def pcie(self, place: int) -> float | None:
        """Rate of the PCIe link of a GPU or NIC, None where there is none."""
        return max(
            (rate for other, rate in self._near.get(place, ()) if other in self.box.bridges), default=None
        )

    def port(self, nic: int) -> float | None:
        """Rate of the port of a NIC, None where it is not known."""
        cables = [float(rate) for place, rate in self.box.cables if place == nic]
        if cables:
            return sum(cables)
        slot = self.slot(nic)
        return None if slot is None or len(slot.steps) < 2 else float(slot.steps[-1].gb_per_s)

    def nvlink(self, gpu: int) -> float:
        """Rate of all NVLinks of a GPU."""
        return float(sum(rate for (a, _), rate in self.box.gpu_links.items() if a == gpu))

    @property
    def where(self) -> str:
        """The host in words."""
        return self.name if self.alike == 1 else f"{self.name} (and {self.alike - 1} hosts like it)"


_KINDS = ("PIX", "PXB", "PHB", "SYS")


@dataclass(frozen=True, eq=False, kw_only=True)
class HostFile(TuningFile):
    """What is known of hosts, under examination."""

    given: Topology | None = None  # The topology itself, where there is no file of it

    @cached_property
    def is_log(self) -> bool:
        """Whether the file is a log of NCCL or RCCL."""
        return self.given is None and _LOG.search(self.text) is not None

    @cached_property
    def is_lspci(self) -> bool:
        """Whether the file is the output of lspci."""
        return self.given is None and not self.is_log and _LSPCI.search(self.text) is not None

    @cached_property
    def topology(self) -> Topology | None:
        """The topology, from the file or the one given with it."""
        if self.given is not None:
            return self.given
        if self.is_log or self.is_lspci:
            return self.facts.topology
        return read(self.data, name=Path(self.file).stem).topology

    @cached_property
    def hosts(self) -> list[HostWiring]:
        """Hosts whose PCIe is known, each kind once."""
        if self.topology is None:
            return []
        kinds: dict[bytes, list[Box]] = {}
        for key, box in each_box(self.topology):
            if box.bridges:
                kinds.setdefault(key, []).append(box)
        return [
            HostWiring(self.topology, boxes[0], _host_of(self.topology, boxes[0]), len(boxes))
            for boxes in kinds.values()
        ]

    @cached_property
    def lines(self) -> list[LogLine]:
        """Lines of the log, without what launchers put before them."""
        return list(log_lines(self.text)) if self.is_log else []

    def devices(self) -> Iterator[PciDevice]:
        """Devices of lspci's output."""
        device: PciDevice | None = None
        for number, line in enumerate(self.text.splitlines(), start=1):
            match = _DEVICE.match(line)
            if match:
                if device is not None:
                    yield device
                device = PciDevice(match["busid"], match["what"], number, {})
            elif device is not None:
                name, colon, value = line.strip().partition(":")
                if colon and name in ("LnkCap", "LnkSta", "ACSCtl"):
                    device.fields[name] = value.strip()
        if device is not None:
            yield device


def _host_of(topology: Topology, box: Box) -> str:
    host = int(topology.host[box.nodes[0]])
    return topology.name if host < 0 else topology.hosts[host]


HOST_RULES = Rulebook[HostFile]()
"""Rules about hosts."""

WIRING = Need("a topology with PCIe (NCCL's XML, `nvidia-smi topo -m`)", lambda file: bool(file.hosts))
RUN_LOG = Need("a log of a run (NCCL_DEBUG=INFO)", lambda file: file.is_log)
PCI_LIST = Need("what `lspci -vv` prints as root", lambda file: file.is_lspci)
