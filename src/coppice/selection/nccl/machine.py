"""A machine as NCCL's topology file describes it: processors, PCIe switches, GPUs and NICs, and which of them are used.

Rates are those that NCCL reckons with, in GB/s per direction. The order of parts is that of the file: NCCL numbers
GPUs and NICs by it. Each rank keeps its own GPU and all NICs of the file, drops what leads to none of them, and the
ranks of a machine then merge what they kept, so that parts which only later ranks need come last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

NVSWITCH = "nvswitch"
"""Target of NVLinks that end at an NVSwitch: NCCL takes all NVSwitches of a machine for one."""
PROCESSOR = "cpu"
"""Target of NVLinks that end at the processor."""


@dataclass(frozen=True, kw_only=True)
class PluginPort:
    """A port of the network, as the network plug-in reports it."""

    dev: int  # Number of the device
    gb_per_s: float  # Rate
    latency_us: float = 0.0  # Latency that it states
    port: int = 0  # Number of the port on its NIC
    guid: str = ""  # Identity of the NIC; empty where each port is one of its own
    gdr: bool = True  # It reads and writes memory of GPUs
    adds: bool = False  # Its network adds (CollNet)


@dataclass(frozen=True, kw_only=True)
class Nic:
    """A NIC with its ports."""

    key: str  # Name, unique in the machine
    gb_per_s: float | None  # PCIe; None for a network without a PCIe device
    ports: tuple[PluginPort, ...]


@dataclass(frozen=True, kw_only=True)
class MachineGpu:
    """A GPU with its NVLinks."""

    key: str  # Name, unique in the machine
    dev: int  # Number of the device
    capability: int  # Compute capability times ten
    gb_per_s: float  # PCIe
    gdr: bool = True  # NICs may read and write its memory
    # Name of a GPU, NVSWITCH or PROCESSOR, and GB/s of all NVLinks to it
    nvlinks: tuple[tuple[str, float], ...] = ()
    c2c_gb_per_s: float = 0.0  # Link between chips to its processor


@dataclass(frozen=True, kw_only=True)
class PcieSwitch:
    """A PCIe switch and what hangs on it."""

    key: str  # Name, unique in the machine
    gb_per_s: float  # PCIe towards the processor
    parts: tuple[Part, ...]
    peers: tuple[str, ...] = ()  # PCIe switches to which it has links of its own


Part = PcieSwitch | MachineGpu | Nic


@dataclass(frozen=True, kw_only=True)
class Processor:
    """A processor (NUMA node) and what hangs on it."""

    key: str  # Name, unique in the machine
    maker: str | None  # `intel`, `amd`, `zhaoxin`, `arm`, `ibm`, or None
    gb_per_s: float  # What it sends to each other processor
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class HostMachine:
    """A machine."""

    processors: tuple[Processor, ...]
    multicast: bool = False  # Its NVSwitches copy and add

    @property
    def gpus(self) -> list[MachineGpu]:
        """All GPUs, in the order of the file."""
        return [part for part in self._leaves() if isinstance(part, MachineGpu)]

    @property
    def ports(self) -> list[PluginPort]:
        """All ports, in the order of the file."""
        return [port for part in self._leaves() if isinstance(part, Nic) for port in part.ports]

    def _leaves(self) -> list[MachineGpu | Nic]:
        found: list[MachineGpu | Nic] = []
        stack: list[Part] = [
            part for processor in reversed(self.processors) for part in reversed(processor.parts)
        ]
        while stack:
            part = stack.pop()
            if isinstance(part, PcieSwitch):
                stack.extend(reversed(part.parts))
            else:
                found.append(part)
        return found

    def adding(self) -> HostMachine:
        """The same machine, with a network that adds at every port."""

        def adds(part: MachineGpu | Nic) -> Part:
            if isinstance(part, MachineGpu):
                return part
            return replace(part, ports=tuple(replace(port, adds=True) for port in part.ports))

        return self._changed(adds)

    def with_nvlinks(self, factor: float) -> HostMachine:
        """The same machine, whose NVLinks have so many times the rate."""

        def scaled(part: MachineGpu | Nic) -> Part:
            if isinstance(part, Nic):
                return part
            return replace(part, nvlinks=tuple((target, rate * factor) for target, rate in part.nvlinks))

        return self._changed(scaled)

    def _changed(self, change: Callable[[MachineGpu | Nic], Part]) -> HostMachine:
        """The machine with other GPUs and NICs."""

        def made(part: Part) -> Part:
            if isinstance(part, PcieSwitch):
                return replace(part, parts=tuple(made(each) for each in part.parts))
            return change(part)

        return replace(
            self,
            processors=tuple(
                replace(each, parts=tuple(made(part) for part in each.parts)) for each in self.processors
            ),
        )

    def used(self, gpus: list[str]) -> HostMachine:
        """The machine as the ranks with these GPUs see it together.

        Args:
            gpus: Names of the GPUs, in the order of the ranks.

        Examples:
            >>> gpus = [MachineGpu(key=f"gpu{i}", dev=i, capability=80, gb_per_s=24.0) for i in range(2)]
            >>> nic = Nic(key="nic", gb_per_s=24.0, ports=(PluginPort(dev=0, gb_per_s=25.0),))
            >>> one = Processor(key="cpu", maker="amd", gb_per_s=16.0, parts=(*gpus, nic))
            >>> used = HostMachine(processors=(one,)).used(["gpu1", "gpu0"])
            >>> [part.key for part in used.processors[0].parts]
            ['gpu1', 'nic', 'gpu0']
        """
        merged: _KeptPart = _KeptPart(part=None)
        for gpu in gpus:
            for processor in self.processors:
                kept = _kept(processor, gpu)
                if kept is not None:
                    merged.merge(kept)
        processors = []
        for each in merged.below.values():
            assert isinstance(each.part, Processor)
            processors.append(replace(each.part, parts=each.parts()))
        return replace(self, processors=tuple(processors))


@dataclass
class _KeptPart:
    """A part that is used, with what is used below it by name."""

    part: Processor | Part | None
    below: dict[str, _KeptPart] = field(default_factory=dict)

    def merge(self, other: _KeptPart) -> None:
        assert other.part is not None
        mine = self.below.get(other.part.key)
        if mine is None:
            self.below[other.part.key] = other
        else:
            for each in other.below.values():
                mine.merge(each)

    def parts(self) -> tuple[Part, ...]:
        found: list[Part] = []
        for each in self.below.values():
            part = each.part
            assert part is not None
            assert not isinstance(part, Processor)
            found.append(replace(part, parts=each.parts()) if isinstance(part, PcieSwitch) else part)
        return tuple(found)


def _kept(part: Processor | Part, gpu: str) -> _KeptPart | None:
    """What a rank keeps: its GPU, every port of the network, and what leads to them."""
    if isinstance(part, MachineGpu):
        return _KeptPart(part) if part.key == gpu else None
    if isinstance(part, Nic):
        return _KeptPart(part) if part.ports else None
    found = _KeptPart(part)
    for each in part.parts:
        kept = _kept(each, gpu)
        if kept is not None:
            found.below[each.key] = kept
    return found if found.below else None
