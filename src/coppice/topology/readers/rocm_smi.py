"""``rocm-smi --showtopo``: weights, link types and NUMA nodes of AMD GPUs.

Two GPUs are joined directly if their link type is XGMI and their weight that of one hop (15); the table of
hops says 1 for every pair on some systems and is not used. Pairs at two hops or more have no link of their
own. The text shows neither the number of links between two GPUs nor what one carries. The model is the one that the
text around the tables names, else guessed from their shape and told. Where all pairs are joined and the number of GPUs
fits a board of the model, or the pairs are those of the well-known node of four MI250X, the numbers of links are those
of that board, told as a warning; otherwise ``xgmi_links`` is required. The options ``gpu``, ``xgmi_links`` and
``gpu_link_gb_per_s`` replace what is inferred. GPUs hang from the CPU of their NUMA node by PCIe, except those that
are one with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from coppice.errors import InputError
from coppice.topology.model import Topology
from coppice.topology.readers.host_graph import HostGraph, MachinePart
from coppice.topology.readers.link_rates import GPU_MODELS, GpuModel
from coppice.topology.readers.reading import ReadOptions, WarningLog
from coppice.topology.readers.smi_pcie import Distance, PcieRates, attach
from coppice.topology.readers.smi_table import (
    AMD_NAMES,
    Matrix,
    SmiLine,
    is_gpu,
    named_model,
    parse_matrices,
    reported_model,
    text_lines,
)

_ONE_HOP = range(1, 16)
_CELL = re.compile(r"[0-9]{1,5}|XGMI|PCIE")
_MI250X_NODE = {
    **dict.fromkeys(((0, 1), (2, 3), (4, 5), (6, 7)), 4),
    **dict.fromkeys(((0, 6), (2, 4)), 2),
    **dict.fromkeys(((0, 2), (1, 3), (1, 5), (3, 7), (4, 6), (5, 7)), 1),
}
"""xGMI links between the 8 dies of 4 MI250X, as on the nodes of Frontier and LUMI."""
_TITLES = {"weight": "Weight between two GPUs", "type": "Link Type between two GPUs"}
_NUMA = re.compile(r"\s*GPU\[([0-9]{1,4})\]\s*:?\s*\(Topology\) Numa Node:\s*(-?[0-9]{1,10})\s*")
_MAX_NUMA = 4096


def read_rocm_smi(
    data: bytes, *, file: str, name: str, options: ReadOptions
) -> tuple[Topology, tuple[str, ...]]:
    """The topology of a machine from the text that ``rocm-smi --showtopo`` prints.

    Args:
        file: Name of the file, for messages.
        name: Name of the topology and of its host.
        options: Rates, GPU model, links between two GPUs.

    Returns:
        The topology and the warnings.
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
        self.weights = _section(lines, _TITLES["weight"], file=file, log=self.log)
        self.types = _section(lines, _TITLES["type"], file=file, log=self.log)
        self.gpus = list(self.weights.devices)
        self.named = None if options.gpu is not None else named_model(lines, AMD_NAMES, self.log)
        found = (_NUMA.fullmatch(line.text) for line in lines)
        self.numa_nodes = {f"GPU{match[1]}": int(match[2]) for match in found if match is not None}

    def read(self) -> tuple[Topology, tuple[str, ...]]:
        nodes = {
            gpu: self.graph.add(gpu.lower(), MachinePart.GPU, host=self.name, rank=rank)
            for rank, gpu in enumerate(self.gpus)
        }
        direct = self.direct_pairs()
        model = self.model(direct)
        self.graph.are_of(nodes.values(), model.arch)
        rate = self.options.link_rate(model)
        for (a, b), links in self.links(direct, model).items():
            self.graph.connect(nodes[a], nodes[b], links * rate, duplex=False)
        if model.name != "mi300a":
            self.attach(nodes, model)
        known = bool(direct) or self.options.gpu is not None or self.named is not None
        of = model.name if known else "PCIe"
        source = f"rocm-smi --showtopo, {of} with {self.options.rates.value} rates"
        topology = self.graph.topology(self.name, options=self.options, source=source, where=self.file)
        return topology, self.log.sentences()

    def direct_pairs(self) -> list[tuple[str, str]]:
        """Ordered pairs of GPUs one xGMI hop apart."""
        if self.types.devices != self.weights.devices:
            raise InputError(
                f"the tables of weights and link types in {self.file} name different GPUs: run the tool "
                "again."
            )
        pairs = []
        for a in self.gpus:
            for b in self.gpus:
                if a == b:
                    continue
                weight, link_type = self.cell(self.weights, a, b), self.cell(self.types, a, b)
                place = f"{self.file}:{self.weights.lines[a]}"
                if not (weight.isascii() and weight.isdigit() and len(weight) < 6):
                    raise InputError(
                        f"expected a weight between {a} and {b} at {place}, found {weight[:20]!r}: run the "
                        "tool again."
                    )
                if link_type not in ("XGMI", "PCIE"):
                    place = f"{self.file}:{self.types.lines[a]}"
                    raise InputError(
                        f"expected XGMI or PCIE between {a} and {b} at {place}, found {link_type[:20]!r}: "
                        "run the tool again."
                    )
                if link_type == "XGMI" and int(weight) in _ONE_HOP:
                    pairs.append((a, b))
        return pairs

    def cell(self, matrix: Matrix, a: str, b: str) -> str:
        value = matrix.cells.get((a, b))
        if value is None:
            raise InputError(
                f"expected a row for {a} in each table of {self.file}, found none: the text was cut; run "
                "the tool again."
            )
        if matrix.cells.get((b, a), value) != value:
            what = "weight" if matrix is self.weights else "link type"
            raise InputError(
                f"the {what} from {a} to {b} is {value[:20]} at {self.file}:{matrix.lines[a]} but from {b} to {a} "
                f"{matrix.cells[b, a][:20]}: run the tool again, or give a topology XML of RCCL."
            )
        return value

    def model(self, direct: list[tuple[str, str]]) -> GpuModel:
        """The GPU model, given, named in the text around the tables, or guessed from their shape."""
        told = reported_model(self.options, self.named, self.log, text=f"the tables of {self.file}", amd=True)
        if told is not None:
            return told
        count = len(self.gpus)
        own_numa = len({self.numa_nodes.get(gpu) for gpu in self.gpus}) == count
        if count == 4 and self.complete(direct):
            name = "mi300a" if own_numa else "mi100"
        else:
            name = "mi300x" if count == 8 and self.complete(direct) else "mi250" if direct else "mi100"
        options = self.options
        sockets = len(set(self.numa_nodes.values())) > 1 and options.socket_gb_per_s is None
        assumed = [
            *(["xGMI"] if direct and options.gpu_link_gb_per_s is None else []),
            *(["PCIe"] if options.pcie_gb_per_s is None and name != "mi300a" else []),
            *(["sockets"] if sockets and name != "mi300a" else []),
        ]
        if assumed and direct:
            self.log.add(
                f"the GPU model is not in the text: {name} is assumed, and its rates for {', '.join(assumed)} "
                "(`gpu=NAME` sets it)"
            )
        elif assumed:
            self.log.add(
                "no xGMI link is listed: the GPUs are joined by PCIe only, and its generation is not in the text: gen "
                f"4 is assumed, with its usual rates for {', '.join(assumed)} (`gpu=NAME`, "
                "`pcie_gb_per_s=RATE`, `socket_gb_per_s=RATE` set them)"
            )
        return GPU_MODELS[name]

    def complete(self, direct: list[tuple[str, str]]) -> bool:
        """Whether every two GPUs are joined."""
        return len(direct) == len(self.gpus) * (len(self.gpus) - 1)

    def links(self, direct: list[tuple[str, str]], model: GpuModel) -> dict[tuple[str, str], int]:
        """Numbers of xGMI links of the pairs that are joined, as given or as known boards have them."""
        number = {gpu: place for place, gpu in enumerate(self.gpus)}
        known = {
            (a, b): _MI250X_NODE.get((min(number[a], number[b]), max(number[a], number[b])), 0)
            for a, b in direct
        }
        is_node = model.name == "mi250" and len(self.gpus) == 8 and len(direct) == 24 and all(known.values())
        given = self.options.xgmi_links
        if given is not None or not direct:
            if is_node:
                self.log.add(
                    f"xgmi_links={given} is taken for every pair, but on the known node of 4 MI250X packages with "
                    "these pairs it is 4 within a package and 1 or 2 between: leave the option out"
                )
            elif self.complete(direct) and len(self.gpus) in model.mesh:
                usual = model.links // (len(self.gpus) - 1)
                if direct and given != usual:
                    self.log.add(
                        f"xgmi_links={given} is taken for every pair, but boards of {len(self.gpus)} GPUs of model "
                        f"{model.name} have {usual}"
                    )
            elif direct:
                self.log.add(
                    f"xgmi_links={given} is taken for every pair, but where not all GPUs are joined the numbers "
                    "often differ: a topology XML of RCCL has them"
                )
            return dict.fromkeys(direct, given or 1)
        if is_node:
            self.log.add(
                "the number of xGMI links between two GPUs is not in the text: those of the known node of 4 MI250X "
                "packages are taken, 4 within a package, 2 for 0-6 and 2-4, 1 otherwise"
            )
            return known
        if self.complete(direct) and len(self.gpus) in model.mesh:
            links = model.links // (len(self.gpus) - 1)
            self.log.add(f"the number of xGMI links between two GPUs is not in the text: {links} is assumed")
            return dict.fromkeys(direct, links)
        raise InputError(
            f"{self.file} does not show how many xGMI links join two GPUs, and no board of {len(self.gpus)} GPUs of "
            f"model {model.name} with these pairs is known: give a topology XML of RCCL, a native file with the "
            "links (docs/topology-formats.md), or `xgmi_links=N` if the number is the same for every pair."
        )

    def attach(self, nodes: dict[str, str], model: GpuModel) -> None:
        rates = PcieRates.of(model, self.options)
        numa = {gpu: self.numa_nodes.get(gpu, 0) for gpu in self.gpus}
        known = {gpu: node if 0 <= node < _MAX_NUMA else 0 for gpu, node in numa.items()}
        pairs: dict[tuple[str, str], Distance] = {}
        attach(self.graph, nodes, pairs, host=self.name, numa=known, rates=rates)


def _section(lines: Sequence[SmiLine], title: str, *, file: str, log: WarningLog) -> Matrix:
    """The table below a title; where the text has several such tables they have to be equal."""
    found: list[Matrix] = []
    for start, line in enumerate(lines):
        if title in line.text:
            body = range(start + 1, len(lines))
            end = next((i for i in body if lines[i].text.lstrip().startswith("===")), len(lines))
            found += parse_matrices(lines[start + 1 : end], cell=_CELL, file=file, log=log)[:1]
    matrix = next(iter(found), None)
    if matrix is None or not matrix.lines or not all(is_gpu(device) for device in matrix.devices):
        raise InputError(f"{file} has no table {title!r}: give the output of `rocm-smi --showtopo`.")
    for other in found[1:]:
        if (other.devices, other.cells) != (matrix.devices, matrix.cells):
            raise InputError(
                f"expected the tables of one machine in {file}, found {title!r} at line {matrix.start} and another "
                f"one at line {other.start}: give a file for each machine."
            )
    return matrix
