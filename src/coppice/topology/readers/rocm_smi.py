"""``rocm-smi --showtopo``: weights, link types and NUMA nodes of AMD GPUs.

Two GPUs are joined directly if their link type is XGMI and their weight that of one hop (15); the table of
hops says 1 for every pair on some systems and is not used. Pairs at two hops or more have no link of their
own. The text shows neither the number of links between two GPUs nor what one carries: where all pairs are
joined and the number of GPUs fits a board that is known (4 or 8) these are inferred, told as a warning, and
can be set by the options ``gpu``, ``xgmi_links`` and ``gpu_link_gb_per_s``; otherwise ``xgmi_links`` is
required. GPUs hang from the CPU of their NUMA node by PCIe, except those that are one with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from coppice.errors import InputError
from coppice.topology.model import Topology
from coppice.topology.readers.host_graph import HostGraph, MachinePart
from coppice.topology.readers.link_rates import GPU_MODELS, GpuModel
from coppice.topology.readers.reading import ReadOptions, WarningLog
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

__all__ = ["read_rocm_smi"]

_ONE_HOP = range(1, 16)
_TITLES = {"weight": "Weight between two GPUs", "type": "Link Type between two GPUs"}
_NUMA = re.compile(r"\s*GPU\[([0-9]{1,4})\]\s*:?\s*\(Topology\) Numa Node:\s*(-?[0-9]{1,10})\s*")
_MAX_NUMA = 4096


def read_rocm_smi(
    data: bytes, *, file: str, name: str, options: ReadOptions
) -> tuple[Topology, tuple[str, ...]]:
    """The topology of a machine from the text that ``rocm-smi --showtopo`` prints.

    Args:
        data: The text.
        file: Name of the file, for messages.
        name: Name of the topology and of its host.
        options: Rates, GPU model, links between two GPUs.

    Returns:
        The topology and the warnings.

    Raises:
        InputError: If a table is missing, cut or contradicts another, with the line; or if the number of xGMI
            links cannot be inferred.
    """
    lines = text_lines(data, file=file)
    return _RocmSmiReader(lines, file=file, name=name, options=options).read()


class _RocmSmiReader:
    def __init__(self, lines: Sequence[SmiLine], *, file: str, name: str, options: ReadOptions) -> None:
        self.file = file
        self.name = name
        self.options = options
        self.log = WarningLog(file)
        self.graph = HostGraph()
        self.weights = _section(lines, _TITLES["weight"], file=file)
        self.types = _section(lines, _TITLES["type"], file=file)
        self.gpus = list(self.weights.devices)
        found = (_NUMA.fullmatch(line.text) for line in lines)
        self.numa_nodes = {f"GPU{match[1]}": int(match[2]) for match in found if match is not None}

    def read(self) -> tuple[Topology, tuple[str, ...]]:
        nodes = {
            gpu: self.graph.add(gpu.lower(), MachinePart.GPU, host=self.name, rank=rank)
            for rank, gpu in enumerate(self.gpus)
        }
        direct = self.direct_pairs()
        model, links = self.model(direct)
        rate = self.options.link_rate(model)
        for a, b in direct:
            self.graph.connect(nodes[a], nodes[b], links * rate, duplex=False)
        if model.name != "mi300a":
            self.attach(nodes, model)
        source = f"rocm-smi --showtopo, {model.name} with {self.options.rates.value} rates"
        topology = self.graph.topology(self.name, options=self.options, source=source, where=self.file)
        return topology, self.log.sentences()

    def direct_pairs(self) -> list[tuple[str, str]]:
        """Ordered pairs of GPUs one xGMI hop apart."""
        if self.types.devices != self.weights.devices:
            msg = (
                f"the tables of weights and link types in {self.file} name different GPUs: run the tool "
                "again."
            )
            raise InputError(msg)
        pairs = []
        for a in self.gpus:
            for b in self.gpus:
                if a == b:
                    continue
                weight, link_type = self.cell(self.weights, a, b), self.cell(self.types, a, b)
                place = f"{self.file}:{self.weights.lines[a]}"
                if not (weight.isascii() and weight.isdigit() and len(weight) < 6):
                    msg = (
                        f"expected a weight between {a} and {b} at {place}, found {weight[:20]!r}: run the "
                        "tool again."
                    )
                    raise InputError(msg)
                if link_type not in ("XGMI", "PCIE"):
                    place = f"{self.file}:{self.types.lines[a]}"
                    msg = (
                        f"expected XGMI or PCIE between {a} and {b} at {place}, found {link_type[:20]!r}: "
                        "run the tool again."
                    )
                    raise InputError(msg)
                if link_type == "XGMI" and int(weight) in _ONE_HOP:
                    pairs.append((a, b))
        return pairs

    def cell(self, matrix: Matrix, a: str, b: str) -> str:
        value = matrix.cells.get((a, b))
        if value is None:
            msg = (
                f"expected a row for {a} in each table of {self.file}, found none: the text was cut; run "
                "the tool again."
            )
            raise InputError(msg)
        if matrix.cells.get((b, a), value) != value:
            msg = f"{a} to {b} differs from {b} to {a} at {self.file}:{matrix.lines[a]}: run the tool again."
            raise InputError(msg)
        return value

    def model(self, direct: list[tuple[str, str]]) -> tuple[GpuModel, int]:
        """The GPU model and the number of links between two GPUs that are joined."""
        count = len(self.gpus)
        model = self.options.gpu
        complete = count > 1 and len(direct) == count * (count - 1)
        if model is None:
            own_numa = len({self.numa_nodes.get(gpu) for gpu in self.gpus}) == count
            if count == 4 and complete:
                name = "mi300a" if own_numa else "mi100"
            else:
                name = "mi300x" if count == 8 and complete else "mi250"
            model = GPU_MODELS["mi100" if not direct else name]
            self.log.add(
                f"the GPU model is not in the text: {model.name} is assumed, and its rates for xGMI and PCIe "
                "(option gpu)"
            )
        if self.options.xgmi_links is not None or not direct:
            return model, self.options.xgmi_links or 1
        if complete and count in model.mesh:
            links = model.links // (count - 1)
            self.log.add(f"the number of xGMI links between two GPUs is not in the text: {links} is assumed")
            return model, links
        msg = (
            f"{self.file} does not show how many xGMI links join two GPUs, and they differ on such a machine "
            f"(model {model.name}, {count} GPUs): give a topology XML of RCCL, or `xgmi_links=1` if it is "
            "one for every pair."
        )
        raise InputError(msg)

    def attach(self, nodes: dict[str, str], model: GpuModel) -> None:
        rates = PcieRates.of(model, self.options)
        numa = {gpu: self.numa_nodes.get(gpu, 0) for gpu in self.gpus}
        known = {gpu: node if 0 <= node < _MAX_NUMA else 0 for gpu, node in numa.items()}
        pairs: dict[tuple[str, str], Distance] = {}
        attach(self.graph, nodes, pairs, host=self.name, numa=known, rates=rates)


def _section(lines: Sequence[SmiLine], title: str, *, file: str) -> Matrix:
    start = next((i for i, line in enumerate(lines) if title in line.text), None)
    matrix = None
    if start is not None:
        body = range(start + 1, len(lines))
        end = next((i for i in body if lines[i].text.lstrip().startswith("===")), len(lines))
        matrix = parse_matrix(lines[start + 1 : end], start=0, file=file)
    if matrix is None or not matrix.lines or not all(is_gpu(device) for device in matrix.devices):
        msg = f"{file} has no table {title!r}: give the output of `rocm-smi --showtopo`."
        raise InputError(msg)
    return matrix
