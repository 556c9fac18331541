"""Readers of topologies: coppice JSON and YAML, NCCL/RCCL XML, nvidia-smi and rocm-smi text, networkx.

:func:`read` gives a topology together with what the reader had to assume; :func:`read_file` gives just the
topology. Both find the format by the content. XML and smi text describe the inside of one machine: GPUs,
NVSwitches, NICs, PCIe switches and CPUs, all on one host that bears the name of the topology.

Options (texts); each format takes note of those that concern it:

* ``rates``: ``measured`` (default; what the runtimes reckon with) or ``nominal`` (data sheets)
* ``round``: decimals to which rates in GB/s are rounded
* ``gpu``: GPU model, such as ``a100``, or ``pcie`` for GPUs without links of their own
* ``gpu_link_gb_per_s``: rate of one NVLink or xGMI link
* ``pcie_gb_per_s``: rate of the PCIe links of an smi text
* ``socket_gb_per_s``: rate between two CPU sockets
* ``nic_gb_per_s``: rate of every NIC
* ``xgmi_links``: xGMI links between two GPUs of a rocm-smi text
* ``pcie``: ``keep`` (default); ``nics``: GPUs reach NICs over PCIe, but not each other; ``drop``: only GPUs and
  their own links
* ``self_links``: ``refuse`` (default) or ``drop``: NVLinks from a GPU to itself
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from coppice.files import file_name, read_bytes
from coppice.topology.model import Topology
from coppice.topology.readers.document import topology_from_document
from coppice.topology.readers.json_yaml import parse_json, parse_yaml
from coppice.topology.readers.networkx_graph import from_networkx, to_networkx
from coppice.topology.readers.reading import Reading, ReadOptions, TopologyFormat, sniff

__all__ = ["ReadOptions", "Reading", "TopologyFormat", "from_networkx", "read", "read_file", "to_networkx"]

_MACHINE_READERS = {
    TopologyFormat.NCCL_XML: "nccl_xml",
    TopologyFormat.NVIDIA_SMI: "nvidia_smi",
    TopologyFormat.ROCM_SMI: "rocm_smi",
}
"""Modules of readers of one machine, each loaded when such a text comes."""


def read(
    source: str | os.PathLike[str] | bytes,  # Path of the file, `-` for standard input, or its content
    *,
    # Name of the topology; None takes the one in the file, else the name of the file
    name: str | None = None,
    options: Mapping[str, str] | None = None,  # Options as texts, see the list of this module
) -> Reading:
    r"""Read a topology file of any format.

    Returns:
        The topology, the format that was found, and warnings.

    Examples:
        >>> text = b"GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4 X\n"
        >>> reading = read(text, name="pair", options={"gpu": "a6000", "pcie": "drop"})
        >>> reading.format, reading.topology.num_ranks, reading.topology.gb_per_s(0)
        ('nvidia-smi topo -m', 2, Fraction(48, 1))
    """
    parsed = ReadOptions.parse(options)
    if isinstance(source, bytes):
        data, file, stem = source, "input", "topology"
    else:
        data = read_bytes(source)
        is_stdin = os.fspath(source) == "-"
        file = file_name(source) if is_stdin else Path(source).name
        stem = "topology" if is_stdin else Path(source).stem
    found = sniff(data, file=file)
    default_name = stem if stem.isprintable() and len(stem) <= 200 else "topology"
    if found in _MACHINE_READERS:
        module = import_module(f"{__name__}.{_MACHINE_READERS[found]}")
        reader = getattr(module, f"read_{_MACHINE_READERS[found]}")
        topology, warnings = reader(data, file=file, name=name or default_name, options=parsed)
    else:
        document = (parse_json if found is TopologyFormat.JSON else parse_yaml)(data, file=file)
        topology = topology_from_document(
            document, where=f"{file} $", name=name, default_name=default_name, options=parsed
        )
        unused = sorted(set(options or ()) - {"round", "self_links"})
        warnings = ()
        if unused:
            warnings = (f"{file}: the options {', '.join(unused)} mean nothing for {found.value}.",)
    return Reading(topology=topology, format=found.value, warnings=warnings)


def read_file(
    source: str | os.PathLike[str] | bytes,  # Path of the file, `-` for standard input, or its content
    *,
    # Name of the topology; None takes the one in the file, else the name of the file
    name: str | None = None,
    options: Mapping[str, str] | None = None,  # Options as texts, see the list of this module
) -> Topology:
    """Read the topology of a file of any format; :func:`read` returns its warnings too."""
    return read(source, name=name, options=options).topology
