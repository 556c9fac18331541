"""``nvidia-smi topo -m``: the matrix of NVLinks and PCIe distances.

The text counts the NVLinks between every two GPUs but not what a link carries, nor whether switches stand
between. Both are inferred, told as warnings, and can be set:

* A GPU cannot have more than 18 NVLinks, so GPUs whose rows add up to more share theirs through NVSwitches;
  each then has as many links to the switches as its cells say (NV12: 12). Otherwise the links are direct. The
  same holds with the number of links of the model that the option ``gpu`` names.
* The model follows from the number of links (6: V100, 12: A100, 18: H100), and with it the rates of NVLink,
  PCIe, sockets and NICs; the options ``gpu``, ``gpu_link_gb_per_s``, ``pcie_gb_per_s``, ``socket_gb_per_s``
  and ``nic_gb_per_s`` replace them.

The matrix hides how two GPUs with NVLinks are joined on PCIe; devices that they share and their NUMA nodes
tell. NICs that share nothing with a GPU hang from a CPU of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from coppice.errors import InputError
from coppice.topology.model import Topology
from coppice.topology.readers.groups import Groups
from coppice.topology.readers.host_graph import HostGraph, MachinePart
from coppice.topology.readers.link_rates import GPU_MODELS, GpuModel
from coppice.topology.readers.reading import ReadOptions, WarningLog, checked_id
from coppice.topology.readers.smi_table import (
    Distance,
    Matrix,
    PcieRates,
    SmiLine,
    attach,
    is_gpu,
    parse_matrix,
    text_lines,
)

__all__ = ["read_nvidia_smi"]

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
_LEGEND = re.compile(r"\s*(NIC[0-9]{1,4}):\s*(\S+)\s*")


def read_nvidia_smi(
    data: bytes, *, file: str, name: str, options: ReadOptions
) -> tuple[Topology, tuple[str, ...]]:
    """The topology of a machine from the text that ``nvidia-smi topo -m`` prints.

    Args:
        data: The text, possibly with terminal colours; columns separated by tabs or spaces.
        file: Name of the file, for messages.
        name: Name of the topology and of its host.
        options: Rates and GPU model.

    Returns:
        The topology and the warnings.

    Raises:
        InputError: If there is no such matrix or it contradicts itself, with the line.
    """
    lines = text_lines(data, file=file)
    matrix = parse_matrix(lines, start=0, file=file)
    if matrix is None or not matrix.lines:
        msg = f"{file} holds no matrix of GPUs: give the output of `nvidia-smi topo -m`."
        raise InputError(msg)
    return _NvidiaSmiReader(matrix, lines, file=file, name=name, options=options).read()


class _NvidiaSmiReader:
    def __init__(
        self, matrix: Matrix, lines: Sequence[SmiLine], *, file: str, name: str, options: ReadOptions
    ) -> None:
        self.matrix = matrix
        self.file = file
        self.name = name
        self.options = options
        self.log = WarningLog(file)
        self.graph = HostGraph()
        self.gpus = [device for device in matrix.devices if is_gpu(device)]
        self.nvlinks: dict[tuple[str, str], int] = {}
        self.pairs: dict[tuple[str, str], Distance] = {}
        found = (_LEGEND.fullmatch(line.text) for line in lines[matrix.end :])
        self.legend = {match[1]: match[2] for match in found if match is not None}

    def read(self) -> tuple[Topology, tuple[str, ...]]:
        self.read_cells()
        nodes = {
            gpu: self.graph.add(gpu.lower(), MachinePart.GPU, host=self.name, rank=rank)
            for rank, gpu in enumerate(self.gpus)
        }
        model = self.model()
        self.join_gpus(nodes, model)
        for device in self.matrix.devices:
            if device not in nodes:
                nic = checked_id(self.legend.get(device, device), where=self.file)
                nodes[device] = self.graph.add(nic, MachinePart.NIC, host=self.name)
        self.attach(nodes, model)
        source = f"nvidia-smi topo -m, {model.name} with {self.options.rates.value} rates"
        topology = self.graph.topology(self.name, options=self.options, source=source, where=self.file)
        return topology, self.log.sentences()

    def read_cells(self) -> None:
        """Split the matrix into NVLink counts and PCIe distances, and check that both halves agree."""
        for gpu in self.gpus:
            if gpu not in self.matrix.lines:
                msg = (
                    f"expected a row for {gpu} in {self.file}, found none: the text was cut; run the tool "
                    "again."
                )
                raise InputError(msg)
        for (row, column), cell in self.matrix.cells.items():
            place = f"{self.file}:{self.matrix.lines[row]}"
            if (row == column) != (cell == "X"):
                msg = (
                    f"expected X where {row} meets itself and only there, found {cell[:20]!r} for "
                    f"{column[:40]} at {place}."
                )
                raise InputError(msg)
            if row == column:
                continue
            mirrored = self.matrix.cells.get((column, row), cell)
            if mirrored != cell:
                msg = (
                    f"{row[:40]} to {column[:40]} is {cell[:20]!r} at {place} but {mirrored[:20]!r} the "
                    "other way round: run the tool again."
                )
                raise InputError(msg)
            links = _NVLINKS.fullmatch(cell)
            if links is not None and is_gpu(row) and is_gpu(column) and 0 < int(links[1]) <= _MOST_LINKS:
                self.nvlinks[row, column] = int(links[1])
            elif cell in _DISTANCES:
                self.pairs[row, column] = _DISTANCES[cell]
            else:
                msg = (
                    f"expected NV1 .. NV{_MOST_LINKS}, PIX, PXB, PHB, NODE or SYS between {row[:40]} and "
                    f"{column[:40]}, found {cell[:20]!r} at {place}: run the tool again."
                )
                raise InputError(msg)

    def model(self) -> GpuModel:
        if self.options.gpu is not None:
            return self.options.gpu
        most = max(self.nvlinks.values(), default=0)
        row_sum = max((sum(self.row(gpu).values()) for gpu in self.gpus), default=0)
        if self.options.no_gpu_links or not most:
            if not self.options.no_gpu_links and len(self.gpus) > 1:
                self.log.add(
                    "no NVLink is listed (`topo -mp` never lists them): the GPUs are joined by PCIe only"
                )
            model = GPU_MODELS["a100"]
            self.log.add(
                "the PCIe generation is not in the text: gen 4 is assumed (options gpu, pcie_gb_per_s)"
            )
            return model
        links = row_sum if row_sum <= _MOST_LINKS else most
        model = GPU_MODELS[next(name for limit, name in _BY_LINKS if links <= limit)]
        self.log.add(
            f"the GPU model is not in the text: {links} links per GPU are taken for model {model.name}, and "
            "its rates for NVLink, PCIe, sockets and NICs (option gpu)"
        )
        return model

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
                msg = (
                    f"the NVLinks of {gpu} at {self.file}:{self.matrix.lines[gpu]} are neither direct (at "
                    f"most {model.links} for "
                    f"model {model.name}) nor those of a switch machine: name the model (`gpu=...`)."
                )
                raise InputError(msg)
        switch = self.graph.add(
            "nvswitch", MachinePart.GPU_SWITCH, host=self.name, in_network=model.multicast
        )
        most = max(uplinks.values())
        for gpu, links in uplinks.items():
            self.graph.connect(nodes[gpu], switch, links * rate)
            if links < most:
                self.log.add(
                    f"{gpu} has {links} links to the NVSwitches, others {most}: is it degraded?",
                    self.matrix.lines[gpu],
                )

    def attach(self, nodes: dict[str, str], model: GpuModel) -> None:
        rates = PcieRates.of(model, self.options)
        done = attach(self.graph, nodes, self.pairs, host=self.name, numa=self.numa(), rates=rates)
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

    def numa(self) -> dict[str, int]:
        """NUMA node of each GPU; where the text has only CPU lists, equal lists count as one node."""
        columns = [name for name in ("CPU Affinity", "NUMA Affinity") if name in self.matrix.extra_columns]
        result: dict[str, int] = {}
        lists: dict[str, int] = {}
        for gpu in self.gpus:
            values = self.matrix.extra[gpu]
            if "NUMA Affinity" in columns:
                text = values[len(columns) - 1] if len(values) >= len(columns) else ""
                if text.isascii() and text.isdigit() and len(text) < 5:
                    result[gpu] = int(text)
            elif columns and values and values[0][:1].isdigit():
                result[gpu] = lists.setdefault(values[0], len(lists))
        return result
