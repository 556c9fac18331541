"""GPU links of a topology XML: NVLink, xGMI and those to the CPU (c2c); completion of skeletons."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from coppice.errors import InputError
from coppice.topology.readers.host_graph import HostGraph, MachinePart
from coppice.topology.readers.link_rates import GpuModel, nvlink_gb_per_s, xgmi_gb_per_s
from coppice.topology.readers.reading import ReadOptions, WarningLog
from coppice.topology.readers.xml_tree import Element
from coppice.topology.slots import Slot

_CPU_CLASS = "0x068001"
_GPU_CLASSES = ("0x03", "0x12")
_NVLS_CAPABILITY = 90


@dataclass(slots=True)
class GpuEntry:
    """A GPU of the file."""

    pci: Element  # Its `pci` element
    element: Element | None  # Its `gpu` element, or None in a skeleton
    busid: str  # Bus id in one spelling
    host: str  # Name of its host
    cpu: str  # Node of its CPU
    parent: str  # Node that its PCIe link leads to
    pcie_gb_per_s: Fraction  # Rate of that link
    rank: int = 0  # Rank in the file
    device: int = 0  # Device number in the file
    id: str = ""  # Its node
    slot: Slot = field(default_factory=Slot)  # Way from the processor to its PCIe device


def link_gpus(
    graph: HostGraph, gpus: list[GpuEntry], *, file: str, options: ReadOptions, log: WarningLog
) -> None:
    """Add the GPU links that the file lists, or those implied by the option ``gpu`` where it lists none."""
    _Linker(graph=graph, gpus=gpus, options=options, log=log).link()
    bare = [gpu for gpu in gpus if not graph.gpu_degree(gpu.id)]
    if len(bare) < len(gpus):
        if options.gpu is not None or options.no_gpu_links:
            log.add("the option gpu is not needed: the file lists the links of the GPUs")
        for gpu in bare:
            log.add("a GPU lists no NVLink or xGMI link while others do: is it degraded?", gpu.pci.line)
        return
    if options.gpu is not None:
        complete_with_model(graph, [gpu.id for gpu in gpus], options.gpu, options=options, where=file)
        listed = [gpu.element for gpu in gpus if gpu.element is not None]
        if listed:
            capability = listed[0].integer("sm", low=0, high=10_000, default=0)
            if capability and nvlink_gb_per_s(capability, options.rates) != options.gpu.link.at(
                options.rates
            ):
                log.add(
                    f"the GPUs have compute capability {capability / 10}, whose NVLinks are not those of gpu="
                    f"{options.gpu.name}: is it another model?",
                    listed[0].line,
                )
            log.add(
                f"no NVLink or xGMI link is listed: those of a board of {len(gpus)} GPUs of model {options.gpu.name} "
                "are taken"
            )
    elif not options.no_gpu_links:
        if all(gpu.element is None for gpu in gpus):
            raise InputError(
                f"{file} names its {len(gpus)} GPUs by PCI class only (first at {gpus[0].pci.where}), so "
                "their NVLink or xGMI links are missing: name the model (`gpu=a100`, `gpu=pcie` for none) or "
                "give a full dump."
            )
        if len(gpus) > 1:
            log.add("no NVLink or xGMI link is listed: the GPUs are joined by PCIe only")


def complete_with_model(
    graph: HostGraph, gpus: list[str], model: GpuModel, *, options: ReadOptions, where: str
) -> None:
    """Add the GPU links of the boards with so many GPUs of this model."""
    link = options.link_rate(model)
    if len(gpus) in model.mesh:
        each = model.links // (len(gpus) - 1) * link
        for position, a in enumerate(gpus):
            for b in gpus[:position]:
                graph.connect(a, b, each)
    elif len(gpus) in model.switched:
        host = graph.drafts[gpus[0]].host
        switch = graph.add("nvswitch", MachinePart.GPU_SWITCH, host=host, in_network=model.multicast)
        for gpu in gpus:
            graph.connect(gpu, switch, model.links * link)
    else:
        raise InputError(
            f"no known board joins {len(gpus)} GPUs of model {model.name} ({where}): give a full dump "
            "(NCCL_TOPO_DUMP_FILE), or `gpu=pcie` to plan without their own links."
        )


class _Linker:
    def __init__(
        self, *, graph: HostGraph, gpus: list[GpuEntry], options: ReadOptions, log: WarningLog
    ) -> None:
        self.graph = graph
        self.gpus = gpus
        self.options = options
        self.log = log
        self.by_busid = {(gpu.host, gpu.busid): gpu for gpu in gpus}
        self.direct: dict[tuple[str, str], int] = {}
        self.uplinks: dict[str, int] = {}
        self.switch: str | None = None

    def link(self) -> None:
        for gpu in self.gpus:
            for element in [] if gpu.element is None else gpu.element.children:
                if element.tag in ("nvlink", "xgmi"):
                    self.entry(gpu, element)
                elif element.tag == "c2c":
                    count = element.integer("count", low=0, high=1024)
                    mbyte_per_s = element.integer("bw", low=0, high=10**9)
                    self.graph.connect(gpu.id, gpu.cpu, Fraction(count * mbyte_per_s, 1000))
        for (a, b), count in self.direct.items():
            if self.direct.get((b, a), 0) < count:
                self.log.add(f"{a} lists more links to {b} than {b} to it: each direction is taken as listed")
        if len(set(self.uplinks.values())) > 1:
            most = max(self.uplinks.values())
            for gpu_id, count in self.uplinks.items():
                if count < most:
                    self.log.add(
                        f"{gpu_id} has {count} links to the NVSwitches, others {most}: is it degraded?"
                    )

    def entry(self, gpu: GpuEntry, element: Element) -> None:
        count = element.integer("count", low=0, high=1024)
        device_class = element.text("tclass", "").lower()
        rate = count * self.link_rate(gpu, element)
        peer = self.by_busid.get((gpu.host, bus_id(element.text("target", ""))))
        if device_class.startswith(_GPU_CLASSES) or (not device_class and peer is not None):
            if peer is gpu:
                self.self_link(gpu, element)
            elif peer is None:
                self.log.add("a link leads to a GPU that the file does not describe: left out", element.line)
            else:
                self.graph.connect(gpu.id, peer.id, rate, duplex=False)
                self.direct[gpu.id, peer.id] = self.direct.get((gpu.id, peer.id), 0) + count
        elif device_class.startswith(_CPU_CLASS):
            self.graph.connect(gpu.id, gpu.cpu, rate)
        elif device_class:
            if self.switch is None:
                self.switch = self.graph.add(
                    "nvswitch", MachinePart.GPU_SWITCH, host=gpu.host, in_network=self.copies_in_switch()
                )
            self.graph.connect(gpu.id, self.switch, rate)
            self.uplinks[gpu.id] = self.uplinks.get(gpu.id, 0) + count
        else:
            raise InputError(
                f"<{element.tag}> at {element.where} has no tclass and an unknown target: add its tclass."
            )

    def self_link(self, gpu: GpuEntry, element: Element) -> None:
        if self.options.self_links != "drop":
            raise InputError(
                f"the link at {element.where} leads from GPU {gpu.busid} to itself, so its real peer is "
                "unknown (some virtual machines report this): mend the targets, or read on without such "
                "links (`self_links=drop`)."
            )
        self.log.add("a link from a GPU to itself is left out", element.line)

    def link_rate(self, gpu: GpuEntry, element: Element) -> Fraction:
        if self.options.gpu_link_gb_per_s is not None:
            return self.options.gpu_link_gb_per_s
        owner = gpu.element if gpu.element is not None else gpu.pci
        if element.tag == "xgmi":
            return xgmi_gb_per_s(owner.text("gcn", "").lower(), self.options.rates)
        return nvlink_gb_per_s(owner.integer("sm", low=0, high=10_000), self.options.rates)

    def copies_in_switch(self) -> bool:
        """NVSwitches of the generation of compute capability 9.0 and later copy and add (NVLink SHARP)."""
        capabilities = [
            gpu.element.integer("sm", low=0, high=10_000, default=0)
            for gpu in self.gpus
            if gpu.element is not None
        ]
        return min(capabilities, default=0) >= _NVLS_CAPABILITY


def bus_id(text: str) -> str:
    """Normalise a PCI bus id: lower case, four digits of domain unless it needs more.

    >>> bus_id("00000000:0F:00.0")
    '0000:0f:00.0'
    """
    domain, colon, rest = text.strip().lower().partition(":")
    if not colon or ":" not in rest:
        return text.strip().lower()[:64]
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}"[:64]
