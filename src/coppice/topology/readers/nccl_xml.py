"""NCCL and RCCL topology XML: what ``NCCL_TOPO_DUMP_FILE`` writes, and the skeletons that clouds ship.

The tree of ``system``, ``cpu``, ``pci``, ``gpu``, ``nic`` and ``net`` elements becomes host bridges (one per
NUMA node, every two of a host linked), PCIe bridges, GPUs and NICs; ``nvlink``, ``xgmi`` and ``c2c`` elements
become links between GPUs, to one node that stands for all NVSwitches, or to the CPU. The rules are those of
the runtimes: a link between two GPUs is listed by each end, one direction each; a width of 0 counts as 16
lanes; an unknown speed as 8 GT/s; a port without speed as 10 Gbit/s; functions of one NIC share its PCIe
link; two-level Broadcom switches work as one.

Decisions where a file contradicts itself:

* NVLinks that end at their own GPU (some virtual machines) hide which GPUs they really join: refused, unless
  the option ``self_links=drop`` asks to read on without them.
* Skeletons (PCI classes only, no ``gpu`` element) lack the GPU links: refused, unless the option ``gpu``
  names the model (``pcie`` for none): the links are then those of the board that carries so many of them.
* A port faster than any NIC gets the rate of its PCIe link, with a warning.

The factor 6/5 that the runtimes put on traffic between GPUs through Intel CPUs is no property of a link and
is left out.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import NamedTuple

from coppice.errors import InputError
from coppice.recognising import recognised
from coppice.topology.model import Topology
from coppice.topology.readers.gpu_links import GpuEntry, bus_id, link_gpus
from coppice.topology.readers.host_graph import HostGraph, MachinePart
from coppice.topology.readers.link_rates import (
    DEFAULT_NET_MBIT_PER_S,
    LOCAL_GB_PER_S,
    MAX_NET_MBIT_PER_S,
    RateClass,
    cpu_maker,
    inter_socket_gb_per_s,
    nvlink_gb_per_s,
    pcie_gb_per_s,
    pcie_speed_known,
)
from coppice.topology.readers.reading import ReadOptions, WarningLog, checked_id
from coppice.topology.readers.xml_tree import Element, parse_xml
from coppice.topology.slots import Slot

_GPU_CLASSES = ("0x03", "0x12")
_NIC_CLASS = "0x02"
_FORMER_GCN = {"910": "90a"}
"""Numbers of architectures in older files of RCCL, by what they are called since."""
_CPU_CLASS = "0x068001"
_NVSWITCH_CLASSES = ("0x068000", "0x068001")


def read_nccl_xml(
    data: bytes, *, file: str, name: str, options: ReadOptions
) -> tuple[Topology, tuple[str, ...]]:
    """The topology of a machine from NCCL or RCCL topology XML.

    Args:
        file: Name of the file, for messages.
        name: Name of the topology and of its host.
        options: Rates, completion of skeletons and the like.

    Returns:
        The topology and the warnings.
    """
    root = parse_xml(data, file=file)
    if root.tag != "system":
        found = recognised(data) or f"<{root.tag[:40]}>"
        raise InputError(
            f"expected <system> at {root.where}, found {found}: give the file that NCCL_TOPO_DUMP_FILE writes."
        )
    return _NcclXmlReader(file=file, name=name, options=options, root=root).read()


class _NicDraft:
    """One NIC: functions of one PCI device, with all their network ports."""

    def __init__(self, *, parent: str, host: str, busid: str, gb_per_s: Fraction | None, line: int) -> None:
        self.parent = parent
        self.host = host
        self.busid = busid
        self.gb_per_s = gb_per_s
        self.line = line
        self.ports: list[Element] = []
        self.slots: list[Slot] = []  # Of each port, up to the NIC; of the NIC itself where it has no port


class _Unclassed(NamedTuple):
    """A device below a PCIe switch of which the file says nothing but its link."""

    element: Element
    parent: str
    cpu: str
    host: str
    busid: str
    gb_per_s: Fraction
    slot: Slot


class _NcclXmlReader:
    def __init__(self, *, file: str, name: str, options: ReadOptions, root: Element) -> None:
        self.file = file
        self.name = name
        self.options = options
        self.root = root
        self.graph = HostGraph()
        self.log = WarningLog(file)
        self.gpus: list[GpuEntry] = []
        self.nics: dict[tuple[str, str, str], _NicDraft] = {}
        self.bridges: dict[tuple[str, str], str] = {}
        self.unclassed: list[_Unclassed] = []
        self.hosts: dict[str, str] = {}
        self.cpu_rates: dict[str, Fraction] = {}
        self.cpu_makers: dict[str, str | None] = {}
        self.pcilinks: list[tuple[str, str, Element]] = []
        self.places = itertools.count()
        self.devs: dict[str, int] = {}

    def read(self) -> tuple[Topology, tuple[str, ...]]:
        cpus = self.root.named("cpu")
        hashes = list(dict.fromkeys(cpu.text("host_hash", "") for cpu in cpus))
        self.hosts = {
            text: self.name if len(hashes) == 1 else f"{self.name}.{i}" for i, text in enumerate(hashes)
        }
        for cpu in cpus:
            self.cpu(cpu)
        if not self.gpus:
            self.place_gpus()
        self.drop_unranked()
        self.name_gpus()
        link_gpus(self.graph, self.gpus, file=self.file, options=self.options, log=self.log)
        for nic in self.nics.values():
            self.add_nic(nic)
        for bridge, host, element in self.pcilinks:
            target = self.bridges.get((host, bus_id(element.text("target"))))
            if target is not None and target != bridge:
                self.graph.connect(bridge, target, LOCAL_GB_PER_S, duplex=False)
        self.graph.connect_cpus(self.cpu_rates)
        source = f"{'RCCL' if self.root.text('version', '') == '2' else 'NCCL'} topology XML, "
        source += f"{self.options.rates.value} rates"
        topology = self.graph.topology(self.name, options=self.options, source=source, where=self.file)
        return topology, self.log.sentences()

    def cpu(self, element: Element) -> None:
        host = self.hosts[element.text("host_hash", "")]
        numa = element.integer("numaid", low=-1, high=2**31, default=0)
        prefix = f"{host}/" if len(self.hosts) > 1 else ""
        cpu = self.graph.add(f"{prefix}cpu{max(numa, 0)}", MachinePart.CPU, host=host)
        rate = self.options.socket_gb_per_s
        if rate is None:
            rate = inter_socket_gb_per_s(
                element.text("arch", ""),
                element.text("vendor", ""),
                element.integer("familyid", low=-(2**31), high=2**31, default=0),
                element.integer("modelid", low=-(2**31), high=2**31, default=0),
            )
            if rate == LOCAL_GB_PER_S and len(self.root.named("cpu")) > 1:
                self.log.add(
                    f"the maker of a CPU is unknown, so {LOCAL_GB_PER_S} GB/s between sockets are taken, as "
                    "the runtimes do (`socket_gb_per_s=RATE` sets it)",
                    element.line,
                )
        self.cpu_rates[cpu] = rate
        maker = cpu_maker(element.text("arch", ""), element.text("vendor", ""))
        self.cpu_makers[cpu] = maker
        slot = Slot().below(next(self.places), f"cpu{numa}", rate, maker=maker)
        for child in element.children:
            if child.tag == "pci":
                self.pci(child, parent=cpu, cpu=cpu, host=host, switch_generation=0, slot=slot)
            elif child.tag == "nic":
                self.nic(child, parent=cpu, host=host, busid=f"cpu{numa}", cpu=cpu, gb_per_s=None, slot=slot)

    def pci(
        self, element: Element, *, parent: str, cpu: str, host: str, switch_generation: int, slot: Slot
    ) -> None:
        busid = bus_id(element.text("busid"))
        device_class = element.text("class", "").lower()
        gpu_elements, nic_elements = element.named("gpu"), element.named("nic")
        if device_class.startswith(_NVSWITCH_CLASSES) and not gpu_elements:
            return
        gb_per_s = self.pcie_rate(element)
        place, above = next(self.places), slot
        slot = above.below(place, busid, _measured(element), peers=_peers(element))
        if gpu_elements or device_class.startswith(_GPU_CLASSES):
            if len(gpu_elements) > 1:
                raise InputError(
                    f"expected one <gpu> at {element.where}, found {len(gpu_elements)}: partitions are not "
                    "supported."
                )
            self.gpus.append(
                GpuEntry(
                    pci=element,
                    element=gpu_elements[0] if gpu_elements else None,
                    busid=busid,
                    host=host,
                    cpu=cpu,
                    parent=parent,
                    pcie_gb_per_s=gb_per_s,
                    slot=slot,
                )
            )
        elif nic_elements or device_class.startswith(_NIC_CLASS):
            for nic in nic_elements or [element]:
                self.nic(nic, parent=parent, host=host, busid=busid, cpu=cpu, gb_per_s=gb_per_s, slot=slot)
        elif (
            not device_class and not element.children and self.graph.drafts[parent].part is MachinePart.BRIDGE
        ):
            self.unclassed.append(_Unclassed(element, parent, cpu, host, busid, gb_per_s, above))
        else:
            generation = _broadcom_generation(element, level=1)
            if switch_generation and generation == switch_generation:
                bridge, inside, slot = parent, 0, above
            else:
                prefix = f"{host}/" if len(self.hosts) > 1 else ""
                name = checked_id(f"{prefix}pcie-{busid}", where=element.where)
                bridge = self.graph.add(name, MachinePart.BRIDGE, host=host)
                self.bridges.setdefault((host, busid), bridge)
                self.graph.connect(parent, bridge, gb_per_s)
                inside = _broadcom_generation(element, level=0)
            for child in element.named("pci"):
                self.pci(child, parent=bridge, cpu=cpu, host=host, switch_generation=inside, slot=slot)
            self.pcilinks.extend((bridge, host, child) for child in element.named("pcilink"))

    def place_gpus(self) -> None:
        """Complete a skeleton that names neither GPUs nor classes: a GPU of the given model beside each group of NICs.

        Clouds ship such files, in which PCIe switches hold the NICs of one GPU each and the runtime finds the rest.
        """
        groups: dict[str, list[_Unclassed]] = {}
        for device in self.unclassed:
            groups.setdefault(device.parent, []).append(device)
        if not groups:
            raise InputError(
                f"{self.file} describes no GPU: give the file that NCCL_TOPO_DUMP_FILE writes in a running "
                "job."
            )
        found = f"{len(self.unclassed)} devices without a class on {len(groups)} PCIe switches"
        model = self.options.gpu
        if model is None:
            raise InputError(
                f"{self.file} describes no GPU but {found} (first at {self.unclassed[0].element.where}): give the "
                "file that NCCL_TOPO_DUMP_FILE writes in a running job, or name the model (`gpu=h100`) to place one "
                "beside each such group of NICs."
            )
        self.log.add(
            f"it describes no GPU but {found}: these are taken for NICs, and beside each such group a GPU of model "
            f"{model.name} is placed"
        )
        for parent, devices in groups.items():
            first = devices[0]
            self.gpus.append(
                GpuEntry(
                    pci=first.element,
                    element=None,
                    busid=f"beside {first.busid}",
                    host=first.host,
                    cpu=first.cpu,
                    parent=parent,
                    pcie_gb_per_s=pcie_gb_per_s(model.pcie_speed, 16, self.options.rates),
                    slot=first.slot.below(
                        next(self.places),
                        f"beside {first.busid}",
                        pcie_gb_per_s(model.pcie_speed, 16, RateClass.MEASURED),
                    ),
                )
            )
            for device in devices:
                self.nic(
                    device.element,
                    parent=parent,
                    host=device.host,
                    busid=device.busid,
                    cpu=device.cpu,
                    gb_per_s=device.gb_per_s,
                    slot=device.slot.below(next(self.places), device.busid, _measured(device.element)),
                )

    def pcie_rate(self, element: Element) -> Fraction:
        speed = element.text("link_speed", "")
        width = element.integer("link_width", low=0, high=64, default=0)
        if not pcie_speed_known(speed):
            self.log.add(f"the PCIe speed {speed[:40]!r} is unknown and taken for 8 GT/s", element.line)
        elif speed.startswith("2.5 "):
            self.log.add(
                "a PCIe link claims 2.5 GT/s, as idle and virtual devices do: check its rate", element.line
            )
        if width == 0:
            self.log.add("a PCIe width of 0 is taken for 16", element.line)
        return pcie_gb_per_s(speed, width, self.options.rates)

    def nic(
        self,
        element: Element,
        *,
        parent: str,
        host: str,
        busid: str,
        cpu: str,
        gb_per_s: Fraction | None,
        slot: Slot,
    ) -> None:
        device = busid.rpartition(".")[0] or busid
        draft = self.nics.get((host, cpu, device))
        if draft is None:
            draft = _NicDraft(parent=parent, host=host, busid=busid, gb_per_s=gb_per_s, line=element.line)
            self.nics[host, cpu, device] = draft
        for port in element.named("net"):
            if port.attributes.get("dev") is not None and port.text("net", "1") != "0":
                draft.ports.append(port)
                draft.slots.append(slot)
        if not draft.ports:
            draft.slots = [slot]

    def add_nic(self, nic: _NicDraft) -> None:
        prefix = f"{nic.host}/" if len(self.hosts) > 1 else ""
        if not nic.ports:
            if any(other.ports for other in self.nics.values()):
                self.log.add("a NIC without a port of the network is left out, as the runtimes do", nic.line)
                return
            if self.options.nic_gb_per_s is None:
                self.log.add("no network speed is given: NICs get the rate of their PCIe link", nic.line)
            name = checked_id(f"{prefix}nic-{nic.busid}", where=f"{self.file}:{nic.line}")
            rate = self.capped(self.options.nic_gb_per_s, nic.gb_per_s)
            dev = self.devs.setdefault(nic.host, 0)
            self.devs[nic.host] += 1
            port_rate = self.options.nic_gb_per_s or rate
            text = nic.slots[0].below(next(self.places), name, port_rate, dev=dev).text
            node = self.graph.add(name, MachinePart.NIC, host=nic.host, slot=text)
            self.graph.connect(nic.parent, node, rate)
            return
        parent, pcie = nic.parent, nic.gb_per_s
        if len(nic.ports) > 1 and pcie is not None:
            parent = self.graph.add(f"{prefix}pcie-{nic.busid}", MachinePart.BRIDGE, host=nic.host)
            self.graph.connect(nic.parent, parent, pcie)
        for port, slot in zip(nic.ports, nic.slots, strict=True):
            default = f"nic{port.text('dev')[:20]}"
            name = checked_id(prefix + (port.text("name", "") or default), where=port.where)
            speed = self.port_rate(port, pcie)
            node = self.graph.add(
                name, MachinePart.NIC, host=nic.host, slot=self.port_slot(port, slot, name, speed or pcie)
            )
            self.graph.connect(parent, node, self.capped(speed, pcie))
            self.graph.latency_us[node] = min(float(port.number("latency", default=Fraction(0))), 1e6)

    def port_slot(self, port: Element, slot: Slot, name: str, rate: Fraction | None) -> str:
        """Slot of a port, with what NCCL reads of it."""
        return slot.below(
            next(self.places),
            name,
            LOCAL_GB_PER_S if rate is None else rate,
            dev=port.text("dev"),
            port=port.attributes.get("port"),
            guid=port.attributes.get("guid"),
            gdr=port.attributes.get("gdr"),
            coll=port.attributes.get("coll"),
        ).text

    def capped(self, rate: Fraction | None, pcie: Fraction | None) -> Fraction:
        rates = [value for value in (rate, pcie) if value is not None]
        return min(rates) if rates else LOCAL_GB_PER_S

    def port_rate(self, port: Element, pcie: Fraction | None) -> Fraction | None:
        if self.options.nic_gb_per_s is not None:
            return self.options.nic_gb_per_s
        speed = port.integer("speed", low=-(2**62), high=2**62, default=0)
        if speed <= 0:
            self.log.add(f"a port without speed is taken for {DEFAULT_NET_MBIT_PER_S} Mbit/s", port.line)
            speed = DEFAULT_NET_MBIT_PER_S
        if speed > MAX_NET_MBIT_PER_S:
            if pcie is None:
                raise InputError(
                    f"no NIC has {speed} Mbit/s ({port.where}): mend the file or set the option nic_gb_per_s."
                )
            self.log.add(
                f"no NIC has {speed} Mbit/s: the rate of its PCIe link ({float(pcie):g} GB/s) is taken",
                port.line,
            )
            return None
        return Fraction(speed, 8000)

    def drop_unranked(self) -> None:
        """As the runtimes do: once one GPU has a <gpu> element with a rank, those without take no part."""
        ranked = [gpu for gpu in self.gpus if gpu.element is not None and "rank" in gpu.element.attributes]
        listed = [gpu for gpu in self.gpus if gpu.element is not None]
        kept = ranked or listed
        if kept and len(kept) < len(self.gpus):
            kept_pci = {id(gpu.pci) for gpu in kept}
            for gpu in self.gpus:
                if id(gpu.pci) not in kept_pci:
                    self.log.add("a GPU without rank takes no part and is left out", gpu.pci.line)
            self.gpus = kept

    def name_gpus(self) -> None:
        """Order the GPUs by rank, then device number, then place; name them by device number."""
        for gpu in self.gpus:
            element = gpu.element
            gpu.rank = 0 if element is None else element.integer("rank", low=-1, high=2**31, default=0)
            gpu.device = 0 if element is None else element.integer("dev", low=-1, high=2**31, default=0)
        if all(gpu.rank < 0 for gpu in self.gpus):
            for gpu in self.gpus:
                gpu.rank = 0
        place = {id(gpu): i for i, gpu in enumerate(self.gpus)}
        self.gpus.sort(key=lambda gpu: (gpu.rank < 0, gpu.rank, gpu.device))
        seen: set[tuple[str, str]] = set()
        by_device = len({(gpu.host, gpu.device) for gpu in self.gpus}) == len(self.gpus)
        for position, gpu in enumerate(self.gpus):
            if (gpu.host, gpu.busid) in seen:
                raise InputError(
                    f"two GPUs have the bus id {gpu.busid[:40]} (second at {gpu.pci.where}): give each its "
                    "own."
                )
            seen.add((gpu.host, gpu.busid))
            prefix = f"{gpu.host}/" if len(self.hosts) > 1 else ""
            gpu.id = self.graph.add(
                f"{prefix}gpu{gpu.device if by_device else position}",
                MachinePart.GPU,
                host=gpu.host,
                rank=position if gpu.rank >= 0 else None,
                arch=self.arch(gpu),
                cpu=self.cpu_makers[gpu.cpu],
                slot=self.gpu_slot(gpu, place[id(gpu)]),
            )
            self.graph.connect(gpu.parent, gpu.id, gpu.pcie_gb_per_s)

    def gpu_slot(self, gpu: GpuEntry, place: int) -> str:
        """Slot of a GPU, with what NCCL reads of it; drivers number GPUs without a number in the order of the file."""
        *above, last = gpu.slot.steps
        element = gpu.element
        facts: dict[str, object] = {"dev": place if element is None else element.text("dev", str(place))}
        if element is not None:
            facts["gdr"] = element.attributes.get("gdr")
            c2c = sum(
                link.integer("count", low=0, high=1024) * link.integer("bw", low=0, high=10**9)
                for link in element.named("c2c")
            )
            facts["c2c"] = f"{c2c / 1000:g}" if c2c else None
            links = sum(
                link.integer("count", low=0, high=1024)
                for link in element.named("nvlink")
                if link.text("tclass", "").lower().startswith(_CPU_CLASS)
            )
            each = nvlink_gb_per_s(element.integer("sm", low=0, high=10_000, default=0), RateClass.MEASURED)
            facts["cpu_nvlink"] = f"{float(links * each):g}" if links else None
            own = sum(
                link.integer("count", low=0, high=1024)
                for link in element.named("nvlink")
                if bus_id(link.text("target", "")) == gpu.busid
            )
            facts["own_nvlink"] = f"{float(own * each):g}" if own else None
        return Slot(tuple(above)).below(last.place, last.name, last.gb_per_s, **facts).text

    def arch(self, gpu: GpuEntry) -> str | None:
        """Architecture of a GPU; files of RCCL have an ``sm`` as well, which means nothing there."""
        if gpu.element is None:
            return None if self.options.gpu is None else self.options.gpu.arch
        digits = gpu.element.text("gcn", "").lower().partition(":")[0].removeprefix("gfx")
        if digits:
            return f"gfx{_FORMER_GCN.get(digits, digits)[:20]}"
        capability = gpu.element.integer("sm", low=0, high=10_000, default=0)
        return f"sm_{capability}" if capability else None


def _measured(element: Element) -> Fraction:
    """Rate of a PCIe link as the runtimes count it."""
    width = element.integer("link_width", low=0, high=64, default=0)
    return pcie_gb_per_s(element.text("link_speed", ""), width, RateClass.MEASURED)


def _peers(element: Element) -> str | None:
    """PCIe switches that a switch has links of its own to."""
    return "+".join(bus_id(link.text("target")) for link in element.named("pcilink")) or None


def _broadcom_generation(element: Element, *, level: int) -> int:
    """4 or 5 for Broadcom switches that show two levels but carry the full rate across all ports, else 0."""
    parts = [
        element.text(key, "").lower().removeprefix("0x").rjust(4, "0")
        for key in ("vendor", "device", "subsystem_vendor", "subsystem_device")
    ]
    identity = "".join(parts)[:13]
    if identity == "1000c0101000a":
        return 4
    return 5 if identity == f"1000c0301000{level}" else 0
