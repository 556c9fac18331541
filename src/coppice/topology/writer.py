"""Writes the native topology file: exact, readable, the same bytes for the same topology.

Rates that are short decimals are written as numbers, others as fractions in quotes (``"75/7"``); the two
directions of a link that agree are written once. One node or link stands on a line, so that two files compare
well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from coppice.files import write_atomically
from coppice.topology.model import NodeKind, Topology
from coppice.topology.readers.document import FORMAT, VERSION

__all__ = ["topology_document", "topology_json", "write_topology"]

_MAX_DECIMALS = 6
_MAX_DIGITS = 15


def topology_document(topology: Topology) -> dict[str, Any]:
    """The native document of ``topology``: mappings, lists, text and numbers that JSON can hold.

    Args:
        topology: What to describe; reading the document back gives an equal topology.

    Examples:
        >>> from coppice.topology.model import Link, Node
        >>> pair = Topology.of("pair", [Node(id="a"), Node(id="b")],
        ...                    [Link(src="a", dst="b", gb_per_s=Fraction(75, 2))])
        >>> topology_document(pair)["links"]
        [{'from': 'a', 'to': 'b', 'gb_per_s': 37.5}]
    """
    document: dict[str, Any] = {"format": FORMAT, "version": VERSION, "name": topology.name}
    if topology.source:
        document["source"] = topology.source
    document["nodes"] = list(_nodes(topology))
    document["links"] = list(_links(topology))
    return document


def topology_json(topology: Topology) -> bytes:
    """The native JSON file of ``topology``, ending with a line feed.

    >>> from coppice.topology.model import Node
    >>> print(topology_json(Topology.of("one", [Node(id="a")], [])).decode(), end="")
    {
      "format": "coppice-topology",
      "version": 1,
      "name": "one",
      "nodes": [
        {"id": "a", "kind": "gpu"}
      ],
      "links": []
    }
    """
    parts = []
    for key, value in topology_document(topology).items():
        if isinstance(value, list) and value:
            rows = ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in value)
            parts.append(f'  "{key}": [\n{rows}\n  ]')
        else:
            parts.append(f'  "{key}": {json.dumps(value, ensure_ascii=False)}')
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def write_topology(topology: Topology, path: str | os.PathLike[str]) -> None:
    """Write the native JSON file; an interrupted write leaves the old file, or none.

    Args:
        topology: What to write.
        path: Where.

    Raises:
        InputError: If the file cannot be written.
    """
    write_atomically(path, topology_json(topology))


def _nodes(topology: Topology) -> Iterator[dict[str, Any]]:
    gpus = np.flatnonzero(topology.kind == NodeKind.GPU)
    default_ranks = np.array_equal(topology.rank[gpus], np.arange(len(gpus)))
    for node in topology.nodes():
        row: dict[str, Any] = {"id": node.id, "kind": node.kind.name.lower()}
        if node.host is not None:
            row["host"] = node.host
        if node.kind is NodeKind.GPU and not default_ranks:
            row["rank"] = -1 if node.rank is None else node.rank
        if node.multicast:
            row["multicast"] = True
        if node.aggregate:
            row["aggregate"] = True
        yield row


def _links(topology: Topology) -> Iterator[dict[str, Any]]:
    columns = (topology.src, topology.dst, topology.capacity, topology.latency_us)
    reverse = topology.link_index
    for src, dst, capacity, latency in zip(*(column.tolist() for column in columns), strict=True):
        back = reverse.get((dst, src))
        both = (
            back is not None and topology.capacity[back] == capacity and topology.latency_us[back] == latency
        )
        if both and dst < src:
            continue
        row: dict[str, Any] = {
            "from": topology.node_ids[src],
            "to": topology.node_ids[dst],
            "gb_per_s": _rate(Fraction(capacity, topology.denominator)),
        }
        if latency:
            row["latency_us"] = int(latency) if latency.is_integer() and latency < 2**53 else latency
        if not both:
            row["duplex"] = False
        yield row


def _rate(rate: Fraction) -> int | float | str:
    """A number where any JSON reader gets it exactly from its decimal text, else a fraction as text."""
    if rate.denominator == 1 and rate.numerator < 10**_MAX_DIGITS:
        return rate.numerator
    scaled = rate * 10**_MAX_DECIMALS
    if scaled.denominator == 1 and scaled.numerator < 10**_MAX_DIGITS and rate > Fraction(1, 1000):
        return float(rate)
    return f"{rate.numerator}/{rate.denominator}"
