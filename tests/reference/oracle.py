"""The entries of the forest oracle as topologies, for parametrised tests with readable ids."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from coppice.topology.model import Link, Node, NodeKind, Topology
from support.shared_data import forest_oracle

ENTRIES: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in forest_oracle()}
NAMES = list(ENTRIES)
SAMPLED_NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] if at % 3 else []) for at, name in enumerate(NAMES)
]
"""All of them, two thirds among the slow tests: where each takes a second."""


def oracle_topology(name: str) -> Topology:
    """The topology of an entry: compute nodes are ranks in the order given, then the switches."""
    entry = ENTRIES[name]
    nodes = [Node(id=v) for v in entry["compute"]]
    nodes += [Node(id=v, kind=NodeKind.SWITCH) for v in entry["switches"]]
    links = (Link(src=a, dst=b, gb_per_s=Fraction(rate), duplex=False) for a, b, rate in entry["edges"])
    return Topology.of(name, nodes, links)
