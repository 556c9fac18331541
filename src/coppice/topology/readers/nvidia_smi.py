"""``nvidia-smi topo -m``: the matrix of NVLinks and PCIe distances.

The text counts the NVLinks between every two GPUs but not what a link carries, nor whether switches stand
between. Both are inferred, told as warnings, and can be set:

* A GPU cannot have more than 18 NVLinks, so GPUs whose rows add up to more share theirs through NVSwitches;
  each then has as many links to the switches as its cells say (NV12: 12). Otherwise the links are direct. The
  same holds with the number of links of the model that the option ``gpu`` names.
* The model is the one that the text around the matrix names, else it follows from the number of links (6: V100,
  12: A100, 18: H100, and 8 with switches: A800), and with it the rates of NVLink, PCIe, sockets and NICs;
  the options ``gpu``, ``gpu_link_gb_per_s``, ``pcie_gb_per_s``, ``socket_gb_per_s`` and ``nic_gb_per_s`` replace them.

The matrix hides how two GPUs with NVLinks are joined on PCIe; devices that they share and their NUMA nodes
tell. NICs that share nothing with a GPU hang from a CPU of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from coppice.errors import InputError
from coppice.text import shortened
from coppice.topology.model import Topology
from coppice.topology.readers.host_graph import HostGraph, MachinePart
from coppice.topology.readers.link_rates import GPU_MODELS, GpuModel
from coppice.topology.readers.reading import Groups, ReadOptions, WarningLog, checked_id
from coppice.topology.readers.smi_pcie import Distance, PcieRates, attach
from coppice.topology.readers.smi_table import (
    NVIDIA_NAMES,
    Matrix,
    SmiLine,
    is_gpu,
    named_model,
    parse_matrices,
    reported_model,
    text_lines,
)

_MOST_LINKS = 18
_BY_LINKS = ((6, "v100"), (12, "a100"), (_MOST_LINKS, "h100"))
_DISTANCES = {
    "PIX": Distance.ONE_SWITCH,
    "PSB": Distance.ONE_SWITCH,
    "PXB": Distance.SWITCHES,
    "PHB": Distance.CPU,
    "NODE": Distance.CPU,
    "SYS": Distance.SOCKETS,
    "SOC": Distance.SOCKETS,
}
_NVLINKS = re.compile(r"NV([0-9]{1,3})")
_CELL = re.compile(r"X|NV[0-9]{1,3}|PIX|PSB|PXB|PHB|NODE|SYS|SOC")
_PEER_ACCESS = frozenset(("OK", "CNS", "GNS", "TNS", "NS", "DR", "U"))
_SHOWN_NICS = re.compile(r"([0-9]{1,6}) NICs? found in the topology, only displaying ([0-9]{1,6})")
_LEGEND = re.compile(r"\s*(NIC[0-9]{1,4}):\s*(\S+)\s*")


def read_nvidia_smi(
    data: bytes, *, file: str, name: str, options: ReadOptions
) -> tuple[Topology, tuple[str, ...]]:
    """The topology of a machine from the text that ``nvidia-smi topo -m`` prints.

    Args:
        data: The text, possibly with terminal colours; columns separated by tabs or spaces.
        file: Name of the file, for messages.
        name: Name of the topology and of its host.

    Returns:
        The topology and the warnings.
    """
    lines = text_lines(data, file=file)
    log = WarningLog(file)
    found = parse_matrices(lines, cell=_CELL, file=file, log=log)
    tables = [table for table in found if table.lines]
    if found and not tables:
        raise InputError(
            f"no row follows the header of the matrix at {file}:{found[0].start}: the text was cut or wrapped; "
            "write it to a file (`nvidia-smi topo -m > topo.txt`)."
        )
    if not tables:
        raise InputError(f"{file} holds no matrix of GPUs: give the output of `nvidia-smi topo -m`.")
    matrix = _only_matrix(tables, file=file, log=log)
    return _NvidiaSmiReader(matrix, lines, file=file, name=name, options=options, log=log).read()


def _only_matrix(tables: Sequence[Matrix], *, file: str, log: WarningLog) -> Matrix:
    """The matrix of the machine; other tables are told, and several machines refused."""
    matrices = [table for table in tables if not _PEER_ACCESS & set(table.cells.values())]
    for table in tables:
        if table not in matrices:
            log.add("a table of what peers may access (`topo -p2p`) is left out", table.start)
    if not matrices:
        raise InputError(
            f"{file}:{tables[0].start} is a table of what peers may access, which knows no distances: give the "
            "output of `nvidia-smi topo -m`."
        )
    first = matrices[0]
    for other in matrices[1:]:
        if (other.devices, other.cells, other.extra) != (first.devices, first.cells, first.extra):
            raise InputError(
                f"expected the matrix of one machine in {file}, found one at line {first.start} and another one "
                f"at line {other.start}: give a file for each, with the output of `nvidia-smi topo -m` alone."
            )
    if len(matrices) > 1:
        log.add(f"the matrix stands there {len(matrices)} times and is read once", matrices[1].start)
    return first


class _NvidiaSmiReader:
    def __init__(
        self,
        matrix: Matrix,
        lines: Sequence[SmiLine],
        *,
        file: str,
        name: str,
        options: ReadOptions,
        log: WarningLog,
    ) -> None:
        self.matrix = matrix
        self.file = file
        self.name = name
        self.options = options
        self.log = log
        self.graph = HostGraph()
        self.gpus = [device for device in matrix.devices if is_gpu(device)]
        self.nvlinks: dict[tuple[str, str], int] = {}
        self.pairs: dict[tuple[str, str], Distance] = {}
        self.numa: dict[str, int] = {}
        found = (_LEGEND.fullmatch(line.text) for line in lines[matrix.end :])
        self.legend = {match[1]: match[2] for match in found if match is not None}
        self.named = None if options.gpu is not None else named_model(lines, NVIDIA_NAMES, log)
        self.tell_left_out(lines)

    def read(self) -> tuple[Topology, tuple[str, ...]]:
        self.read_cells()
        self.numa = self.numa_nodes()
        nodes = {
            gpu: self.graph.add(gpu.lower(), MachinePart.GPU, host=self.name, rank=rank)
            for rank, gpu in enumerate(self.gpus)
        }
        model = self.model()
        if self.options.gpu is not None:  # a guess by the number of links stands in no file as a fact
            self.graph.are_of(nodes.values(), model.arch)
        self.join_gpus(nodes, model)
        for device in self.matrix.devices:
            if device not in nodes:
                nic = checked_id(self.legend.get(device, device), where=self.file)
                nodes[device] = self.graph.add(nic, MachinePart.NIC, host=self.name)
        self.attach(nodes, model)
        of = (
            model.name
            if self.options.gpu or self.named or (self.nvlinks and not self.options.no_gpu_links)
            else "PCIe"
        )
        source = f"nvidia-smi topo -m, {of} with {self.options.rates.value} rates"
        topology = self.graph.topology(self.name, options=self.options, source=source, where=self.file)
        return topology, self.log.sentences()

    def tell_left_out(self, lines: Sequence[SmiLine]) -> None:
        """NICs that the text knows of but that have no column or no row."""
        nics = [device for device in self.matrix.devices if not is_gpu(device)]
        for line in lines:
            shown = _SHOWN_NICS.search(line.text)
            if shown is not None:
                all_nics, displayed = int(shown[1]), int(shown[2])
                self.log.add(
                    f"{all_nics - displayed} of the {all_nics} NICs of the machine are not in the matrix and are "
                    "left out",
                    line.number,
                )
        unseen = [nic for nic in self.legend if nic not in nics]
        if unseen:
            self.log.add(f"{shortened(unseen, 8)} of the legend have no column and are left out")
        without_row = [nic for nic in nics if nic not in self.matrix.lines]
        if without_row:
            self.log.add(
                f"{shortened(without_row, 8)} have no row, so how near NICs are to each other is not known"
            )

    def read_cells(self) -> None:
        """Split the matrix into NVLink counts and PCIe distances, and check that both halves agree."""
        for gpu in self.gpus:
            if gpu not in self.matrix.lines:
                raise InputError(
                    f"expected a row for {gpu} in {self.file}, found none: the text was cut; run the tool "
                    "again."
                )
        for (row, column), cell in self.matrix.cells.items():
            place = f"{self.file}:{self.matrix.lines[row]}"
            if (row == column) != (cell == "X"):
                raise InputError(
                    f"expected X where {row} meets itself and only there, found {cell[:20]!r} for "
                    f"{column[:40]} at {place}."
                )
            if row == column:
                continue
            mirrored = self.matrix.cells.get((column, row), cell)
            if mirrored != cell:
                raise InputError(
                    f"{row[:40]} to {column[:40]} is {cell[:20]!r} at {place} but {mirrored[:20]!r} the "
                    "other way round: run the tool again."
                )
            links = _NVLINKS.fullmatch(cell)
            if links is not None and is_gpu(row) and is_gpu(column) and 0 < int(links[1]) <= _MOST_LINKS:
                self.nvlinks[row, column] = int(links[1])
            elif cell in _DISTANCES:
                self.pairs[row, column] = _DISTANCES[cell]
            else:
                raise InputError(
                    f"expected NV1 .. NV{_MOST_LINKS}, PIX, PXB, PHB, NODE or SYS between {row[:40]} and "
                    f"{column[:40]}, found {cell[:20]!r} at {place}: run the tool again."
                )

    def model(self) -> GpuModel:
        """The GPU model, given, named in the text around the matrix, or guessed from the number of NVLinks."""
        if not self.nvlinks and not self.options.no_gpu_links and len(self.gpus) > 1:
            rates_only = (
                f", and gpu={self.options.gpu.name} sets rates only: give the output of `topo -m`"
                if self.options.gpu is not None
                else ""
            )
            self.log.add(
                "no NVLink is listed (`topo -mp` never lists them): the GPUs are joined by PCIe only"
                + rates_only
            )
        told = reported_model(
            self.options, self.named, self.log, text=f"the matrix of {self.file}", amd=False
        )
        if told is not None:
            return told
        most = max(self.nvlinks.values(), default=0)
        if self.options.no_gpu_links or not most:
            self.tell_guess("gen 4", "the PCIe generation")
            return GPU_MODELS["a100"]
        row_sum = max((sum(self.row(gpu).values()) for gpu in self.gpus), default=0)
        links = row_sum if row_sum <= _MOST_LINKS else most
        model = GPU_MODELS[next(name for limit, name in _BY_LINKS if links <= limit)]
        if row_sum > _MOST_LINKS and links == GPU_MODELS["a800"].links:
            model = GPU_MODELS["a800"]
        others = [
            other.name
            for other in GPU_MODELS.values()
            if other.links == links and not other.xgmi and other.link != model.link
        ]
        also = f" ({', '.join(others)} would show as many)" if others else ""
        self.tell_guess(f"{links} links per GPU are taken for model {model.name}{also}", "the GPU model")
        return model

    def tell_guess(self, guess: str, unknown: str) -> None:
        """Tell which rates a guess is behind; where all are given there is nothing to tell."""
        options = self.options
        nics = len(self.gpus) < len(self.matrix.devices)
        rates = {
            "gpu_link_gb_per_s": ("NVLink", bool(self.nvlinks) and not options.no_gpu_links),
            "pcie_gb_per_s": ("PCIe", True),
            "socket_gb_per_s": (
                "sockets",
                Distance.SOCKETS in self.pairs.values() or len(set(self.numa.values())) > 1,
            ),
            "nic_gb_per_s": ("NICs", nics),
        }
        assumed = [name for key, (name, used) in rates.items() if used and getattr(options, key) is None]
        by_number = bool(self.nvlinks) and not options.no_gpu_links
        if by_number and assumed:
            self.log.add(
                f"{unknown} is not in the text: {guess}, and its rates for {', '.join(assumed)} (`gpu=NAME` sets them)"
            )
        elif assumed:
            what = f"{guess} is assumed" if options.pcie_gb_per_s is None else "a machine of gen 4 is assumed"
            others = [name for name in assumed if name != "PCIe"]
            more = f", and the usual rates for {', '.join(others)}" if others else ""
            keys = ["gpu", *(key for key in rates if rates[key][0] in assumed)]
            named = ", ".join(f"`{key}=VALUE`" for key in keys)
            self.log.add(f"{unknown} is not in the text: {what}{more} ({named} set them)")

    def row(self, gpu: str) -> dict[str, int]:
        """NVLinks of a GPU, by peer."""
        if self.options.no_gpu_links:
            return {}
        return {peer: self.nvlinks[gpu, peer] for peer in self.gpus if (gpu, peer) in self.nvlinks}

    def join_gpus(self, nodes: dict[str, str], model: GpuModel) -> None:
        """NVLinks: for each set of connected GPUs, direct ones, or uplinks to a switch."""
        rate = self.options.link_rate(model)
        islands = Groups(self.gpus)
        for a, b in self.nvlinks:
            islands.join(a, b)
        groups: dict[object, list[str]] = {}
        for gpu in self.gpus:
            groups.setdefault(islands.find(gpu), []).append(gpu)
        for group in groups.values():
            rows = {gpu: self.row(gpu) for gpu in group}
            if max(sum(row.values()) for row in rows.values()) > model.links:
                self.join_by_switch(rows, nodes, model, rate)
            else:
                for a, row in rows.items():
                    for b, count in row.items():
                        self.graph.connect(nodes[a], nodes[b], count * rate, duplex=False)
            if len(group) == 1 and self.nvlinks and not self.options.no_gpu_links:
                self.log.add(
                    f"{group[0]} has no NVLink while others have: is it degraded?",
                    self.matrix.lines[group[0]],
                )

    def join_by_switch(
        self, rows: dict[str, dict[str, int]], nodes: dict[str, str], model: GpuModel, rate: Fraction
    ) -> None:
        uplinks = {gpu: max(row.values()) for gpu, row in rows.items()}
        for gpu, row in rows.items():
            if len(row) != len(rows) - 1 or uplinks[gpu] > model.links:
                raise InputError(
                    f"the NVLinks of {gpu} at {self.file}:{self.matrix.lines[gpu]} are neither direct (at "
                    f"most {model.links} for "
                    f"model {model.name}) nor those of a switch machine: name the model (`gpu=...`)."
                )
        switch = self.graph.add(
            "nvswitch", MachinePart.GPU_SWITCH, host=self.name, in_network=model.multicast
        )
        most = max(uplinks.values())
        if most < model.links and (self.options.gpu is not None or self.named is not None):
            self.log.add(
                f"the GPUs have {most} links each where model {model.name} has {model.links}: is it another model, or "
                "degraded?"
            )
        for gpu, links in uplinks.items():
            self.graph.connect(nodes[gpu], switch, links * rate)
            if links < most:
                self.log.add(
                    f"{gpu} has {links} links to the NVSwitches, others {most}: is it degraded?",
                    self.matrix.lines[gpu],
                )

    def attach(self, nodes: dict[str, str], model: GpuModel) -> None:
        rates = PcieRates.of(model, self.options)
        done = attach(self.graph, nodes, self.pairs, host=self.name, numa=self.numa, rates=rates)
        if done.far:
            shown = ", ".join(nodes[device] for device in done.far[:8]) + (
                " ..." if len(done.far) > 8 else ""
            )
            self.log.add(f"{shown} share no PCIe switch or CPU with a GPU and hang from CPUs of their own")
        if done.nearer is not None:
            a, b = done.nearer
            cell = self.matrix.cells[a, b]
            self.log.add(
                f"{a[:40]} and {b[:40]} are {cell} apart by the matrix but nearer by NUMA node or by other "
                "devices: "
                "taken as nearer",
                self.matrix.lines[a],
            )

    def numa_nodes(self) -> dict[str, int]:
        """NUMA node of each GPU; where the text has only CPU lists, equal lists count as one node."""
        result: dict[str, int] = {}
        lists: dict[str, int] = {}
        below = {gpu: self.matrix.extra[gpu] for gpu in self.gpus}
        for gpu, cells in below.items():
            text = cells.get("NUMA Affinity", "")
            if text.isascii() and text.isdigit() and len(text) < 5:
                result[gpu] = int(text)
            elif text and text != "N/A":
                self.log.add(
                    f"the NUMA affinity {text[:20]!r} is not one node: left out", self.matrix.lines[gpu]
                )
        if not result:
            for gpu, cells in below.items():
                cpus = cells.get("CPU Affinity", "")
                if cpus[:1].isdigit():
                    result[gpu] = lists.setdefault(cpus, len(lists))
        return result
