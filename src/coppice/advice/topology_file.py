"""What NCCL sees of a host by its own dump, and the topology file that corrects it.

A dump (``NCCL_TOPO_DUMP_FILE``) has what NCCL found of PCIe, GPUs and ports. Where the ports of the cluster have other
rates, as in virtual machines whose ports state none of their own, NCCL searches channels for rates that are not there.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from coppice.advice.changes import Change
from coppice.advice.writing import AdvisedFile
from coppice.doctor import JobFacts, diagnose
from coppice.errors import InputError
from coppice.export.formats import NcclTopoXmlOptions
from coppice.export.nccl.topo_xml import export_nccl_topo_xml
from coppice.topology.composition.compose import Host, compose, default_ports, repeated
from coppice.topology.composition.fabric import SwitchFabric
from coppice.topology.load import load
from coppice.topology.model import Topology

UNDO = "unset NCCL_TOPO_FILE"
NAME = "topology.xml"


def is_dump(data: bytes) -> bool:
    """Whether a file is a dump of a host by NCCL.

    Examples:
        >>> is_dump(b'<system version="1">'), is_dump(b"n1:7:7 [0] NCCL INFO")
        (True, False)
    """
    return re.match(rb"\s*(<\?xml[^>]*>\s*)?<system\b", data) is not None


def seen_in(data: bytes, topology: Topology, *, file: str) -> Topology:
    """The cluster as NCCL sees it whose hosts are all as a dump.

    Raises:
        InputError: If the dump cannot be read, or has not the ranks of a host of the cluster.
    """
    box = load(data.decode(errors="replace"))
    hosts = max(1, len(set(topology.host[topology.rank_nodes].tolist())))
    if box.num_ranks * hosts != topology.num_ranks:
        raise InputError(
            f"expected a dump of a host of {topology.name} with {topology.num_ranks / hosts:g} GPUs, found "
            f"{box.num_ranks} in {file}: give the dump of one of its hosts."
        )
    if hosts == 1:
        return box
    return compose(
        repeated(Host(name="box", topology=box, ports=default_ports(box)), hosts),
        SwitchFabric(),
        name=topology.name,
        source=box.source,
    )


def topology_files(
    topology: Topology, dumps: Mapping[str, bytes]
) -> Iterator[tuple[Topology, Change | None, AdvisedFile | None]]:
    """What NCCL sees by each dump, and the file that gives it the rates of the cluster's ports, where they differ.

    Args:
        topology: The cluster, with the rates that its ports have.
        dumps: Contents of the dumps, by the names of their files.

    Raises:
        InputError: If a dump cannot be read, is of another host, or has ports that the cluster has not.
    """
    for name, data in dumps.items():
        seen = seen_in(data, topology, file=name)
        made = None
        with tempfile.TemporaryDirectory(prefix="coppice-advise-") as folder:
            base = Path(folder) / "dump.xml"
            base.write_bytes(data)
            if seen.num_ranks > box_ranks(topology):
                made = export_nccl_topo_xml(
                    topology, NcclTopoXmlOptions(base=base, rails=("none",), speeds=True)
                )
        if made is None or not any("Mbit/s instead of" in note for note in made.notes):
            yield seen, None, None
            continue
        corrected = made.text.encode()
        diagnosis = diagnose(corrected, "nccl-topo", file="the topology", options=JobFacts(dump=data))
        diagnosis.require_ok()
        words = "; ".join(note for note in made.notes if "Mbit/s instead of" in note)
        change = Change(
            name="topology file",
            what=f"NCCL_TOPO_FILE={NAME}: {words}",
            undo=UNDO,
            sees=seen_in(corrected, topology, file=NAME),
        )
        file = AdvisedFile(
            name=NAME,
            what="NCCL_TOPO_FILE=FILE on every host; compare what NCCL makes of it with NCCL_TOPO_DUMP_FILE",
            undo=UNDO,
            text=made.text,
            judged="; ".join(
                [
                    "no errors as nccl-topo",
                    *(f"{each.severity.value} {each.rule}" for each in diagnosis.findings),
                ]
            ),
        )
        yield seen, change, file


def box_ranks(topology: Topology) -> int:
    """Ranks of the largest host."""
    hosts: list[int] = topology.host[topology.rank_nodes].tolist()
    return max(hosts.count(host) for host in set(hosts))
