"""Topologies: the data model, presets, readers, composition and operations."""

from __future__ import annotations

from coppice.topology.composition.compose import Host, Port, compose, default_ports, gpu_ports, repeated
from coppice.topology.composition.fabric import (
    DirectFabric,
    DragonflyFabric,
    Fabric,
    FatTreeFabric,
    RailFabric,
    SwitchFabric,
)
from coppice.topology.model import Link, Node, NodeKind, Topology, exact_rate
from coppice.topology.operations import (
    find_node,
    merge_nodes,
    relabel,
    remove_links,
    remove_nodes,
    round_rates,
    scale,
    scale_nodes,
    set_link_rate,
    subset,
)
from coppice.topology.presets import PRESETS, preset
from coppice.topology.presets.clusters import dragonfly, fat_tree, pcie_box, star
from coppice.topology.presets.direct import (
    bipartite,
    circulant,
    complete,
    generalized_kautz,
    hypercube,
    mesh,
    path,
    petersen,
    random_balanced,
    ring,
    torus,
)
from coppice.topology.routing import Router
from coppice.topology.sources import resolve
from coppice.topology.summary import summarize

__all__ = [
    "PRESETS",
    "DirectFabric",
    "DragonflyFabric",
    "Fabric",
    "FatTreeFabric",
    "Host",
    "Link",
    "Node",
    "NodeKind",
    "Port",
    "RailFabric",
    "Router",
    "SwitchFabric",
    "Topology",
    "bipartite",
    "circulant",
    "complete",
    "compose",
    "default_ports",
    "dragonfly",
    "exact_rate",
    "fat_tree",
    "find_node",
    "generalized_kautz",
    "gpu_ports",
    "hypercube",
    "merge_nodes",
    "mesh",
    "path",
    "pcie_box",
    "petersen",
    "preset",
    "random_balanced",
    "relabel",
    "remove_links",
    "remove_nodes",
    "repeated",
    "resolve",
    "ring",
    "round_rates",
    "scale",
    "scale_nodes",
    "set_link_rate",
    "star",
    "subset",
    "summarize",
    "torus",
]
