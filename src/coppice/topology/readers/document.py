"""Read and write the native topology document, checked field by field, with JSON paths in the messages.

JSON and YAML files differ only in how the tree of mappings and lists is spelt; both hand that tree to
:func:`topology_from_document`, and so may any file that embeds a topology. Numbers with a fraction arrive as
:class:`NumberText`, the text that stood in the file, so that 0.1 means 1/10.

Rates that are short decimals are written as numbers, others as fractions in quotes (``"75/7"``); the two
directions of a link that agree are written once. One node or link stands on a line, so that two files compare
well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.files import write_atomically
from coppice.text import suggestion
from coppice.topology.model import Link, Node, NodeKind, Topology, exact_rate
from coppice.topology.readers.reading import ReadOptions, checked_id
from coppice.topology.slots import Slot

FORMAT = "coppice-topology"
VERSION = 1

_TOP_KEYS = ("format", "version", "name", "source", "nodes", "links")
_NODE_KEYS = ("id", "kind", "host", "rank", "multicast", "aggregate", "arch", "cpu", "slot")
_LINK_KEYS = ("from", "to", "gb_per_s", "latency_us", "duplex")
_KINDS = {kind.name.lower(): kind for kind in NodeKind}
_MAX_RANK = 2**31
_SHOWN = 64
_HUGE = 10**15
_MAX_SOURCE = 1000


class NumberText(str):
    """A number as written, before it is parsed."""

    __slots__ = ()


class DuplicateKey:
    """Placeholder for a mapping with a repeated key, so that the message can name its place."""

    def __init__(self, key: str) -> None:
        self.key = key


def topology_from_document(
    document: object,  # Mappings, lists, strings, numbers and truth values, as JSON has them
    *,
    # Path of the document in its file, for messages; such as `box.json $` or `plan.json $.topology`
    where: str = "$",
    name: str | None = None,
    default_name: str = "topology",  # Stands in where the document has no name
    # `round` and `self_links` have a meaning here; None where another file holds the document
    options: ReadOptions | None = None,
) -> Topology:
    """Build the topology that a native document describes.

    Examples:
        >>> box = topology_from_document({
        ...     "format": "coppice-topology", "version": 1, "name": "pair",
        ...     "nodes": [{"id": "a", "kind": "gpu"}, {"id": "b", "kind": "gpu"}],
        ...     "links": [{"from": "a", "to": "b", "gb_per_s": "75/2"}]})
        >>> box.num_ranks, box.gb_per_s(0)
        (2, Fraction(75, 2))
    """
    reader = _DocumentReader(where=where, options=options)
    return reader.topology(document, name=name, default_name=default_name)


class _DocumentReader:
    def __init__(self, *, where: str, options: ReadOptions | None) -> None:
        self.where = where
        self.options = options or ReadOptions()
        self.embedded = options is None
        self.rates: dict[object, Fraction] = {}

    def topology(self, document: object, *, name: str | None, default_name: str) -> Topology:
        if isinstance(document, Mapping):
            self.check_format(document)
        top = self.mapping(document, "", _TOP_KEYS)
        own_name = self.string(top, "", "name", default=default_name)
        source = top.get("source", "")
        if not isinstance(source, str) or len(source) > _MAX_SOURCE or not source.isprintable():
            self.fail(
                ".source",
                f"text of at most {_MAX_SOURCE} printable characters",
                source,
                "shorten or remove it",
            )
        nodes = [
            self.node(value, f".nodes[{i}]") for i, value in enumerate(self.sequence(top, ".nodes", "nodes"))
        ]
        ids: dict[str, int] = {}
        for position, node in enumerate(nodes):
            if ids.setdefault(node.id, position) != position:
                raise InputError(
                    f"node ids must be unique: {self.where}.nodes[{position}].id repeats {node.id!r}; "
                    "rename one."
                )
        links = [
            self.link(value, f".links[{i}]", ids)
            for i, value in enumerate(self.sequence(top, ".links", "links"))
        ]
        return Topology.of(name or own_name, _with_relays(nodes), links, source=source)

    def check_format(self, top: Mapping[str, Any]) -> None:
        found = top.get("format")
        if found != FORMAT:
            hint = {
                "coppice-plan": "this is a plan; give the topology it was made for",
                "coppice-cluster": "this is a cluster description: compose it first",
            }.get(found if isinstance(found, str) else "", f"begin the file with format: {FORMAT}")
            self.fail(".format", repr(FORMAT), found, hint)
        version = top.get("version")
        if isinstance(version, int) and not isinstance(version, bool) and version > VERSION:
            raise InputError(
                f"{self.where}.version is {version}, newer than {VERSION}, which this Coppice reads: "
                "upgrade Coppice."
            )
        if version != VERSION or isinstance(version, bool):
            self.fail(".version", str(VERSION), version, "set it")

    def node(self, value: object, path: str) -> Node:
        row = self.mapping(value, path, _NODE_KEYS)
        kind = row.get("kind", "gpu")
        if not isinstance(kind, str) or kind not in _KINDS:
            self.fail(f"{path}.kind", f"one of {', '.join(_KINDS)}", kind, "choose one")
        rank = row.get("rank")
        if rank is not None and not (
            isinstance(rank, int) and not isinstance(rank, bool) and -1 <= rank < _MAX_RANK
        ):
            self.fail(f"{path}.rank", "an integer 0 or more, or -1 for a relay", rank, "mend it")
        if rank is not None and kind != "gpu":
            self.fail(f"{path}.rank", f"no rank on a {kind}", rank, "only GPUs have ranks: remove it")
        return Node(
            id=self.string(row, path, "id"),
            kind=_KINDS[kind],
            host=None if row.get("host") is None else self.string(row, path, "host"),
            rank=rank,
            multicast=self.truth(row, path, "multicast", default=False),
            aggregate=self.truth(row, path, "aggregate", default=False),
            arch=self.of_gpu(row, path, "arch"),
            cpu=self.of_gpu(row, path, "cpu"),
            slot=self.slot(row, path, kind),
        )

    def of_gpu(self, row: Mapping[str, Any], path: str, key: str) -> str | None:
        """What only GPUs may say."""
        if row.get(key) is None:
            return None
        if row.get("kind", "gpu") != "gpu":
            kind = row["kind"]
            self.fail(f"{path}.{key}", f"no {key} on a {kind}", row[key], "only GPUs have one: remove it")
        return self.string(row, path, key)

    def slot(self, row: Mapping[str, Any], path: str, kind: str) -> str | None:
        """Place in the PCIe tree of the machine, which GPUs and NICs have."""
        if row.get("slot") is None:
            return None
        if kind == "switch":
            self.fail(
                f"{path}.slot", "no slot on a switch", row["slot"], "only GPUs and NICs have one: remove it"
            )
        text = self.string(row, path, "slot")
        try:
            return Slot.of(text).text
        except InputError:
            self.fail(
                f"{path}.slot",
                "steps PLACE.NAME@GB_PER_S joined by /",
                text,
                "remove it, or read the machine's file",
            )

    def link(self, value: object, path: str, ids: Mapping[str, int]) -> Link:
        row = self.mapping(value, path, _LINK_KEYS)
        ends = []
        for key in ("from", "to"):
            end = row.get(key)
            if not isinstance(end, str) or isinstance(end, NumberText):
                self.fail(f"{path}.{key}", "the id of a node", end, "name one")
            if end not in ids:
                raise InputError(
                    f"{self.where}{path}.{key} names an unknown node {end[:80]!r}: {_near(end, ids)}"
                )
            ends.append(end)
        if ends[0] == ends[1] and self.options.self_links != "drop":
            hint = "remove it"
            if not self.embedded:  # what stands inside another file has no options
                hint += ", or read on without it with `self_links=drop`"
            raise InputError(f"{self.where}{path} leads from {ends[0]!r} to itself: {hint}.")
        latency = row.get("latency_us", 0)
        return Link(
            src=ends[0],
            dst=ends[1],
            gb_per_s=self.rate(row.get("gb_per_s"), f"{path}.gb_per_s"),
            latency_us=float(self.number(latency, f"{path}.latency_us", "a latency in microseconds")),
            duplex=self.truth(row, path, "duplex", default=True),
        )

    def rate(self, value: object, path: str) -> Fraction:
        key = (type(value), value) if isinstance(value, (str, int, float, Decimal, Fraction)) else None
        if key is not None and key in self.rates:
            return self.rates[key]
        rate = self.number(value, path, 'a rate in GB/s as a number or a fraction like "75/2"')
        rate = self.options.rounded(rate, where=self.where + path)
        if key is not None:
            self.rates[key] = rate
        return rate

    def number(self, value: object, path: str, what: str) -> Fraction:
        """A number >= 0, exactly; float and Decimal count as the decimal they print as."""
        if isinstance(value, bool) or not isinstance(value, (str, int, float, Decimal, Fraction)):
            self.fail(path, what, value, "give one")
        huge = isinstance(value, int) and abs(value) >= _HUGE
        text = f"at least {_HUGE:.0e}" if huge else str(value)
        try:
            number = Fraction(_HUGE) if huge else exact_rate(text, where=self.where + path)
        except InputError:
            self.fail(path, f"{what}, 0 or more", NumberText(text), "mend it")
        if number >= _HUGE:
            self.fail(path, what, NumberText(text), "check its unit")
        return number

    def mapping(self, value: object, path: str, keys: Sequence[str]) -> Mapping[str, Any]:
        if isinstance(value, DuplicateKey):
            raise InputError(f"{self.where}{path} has the key {value.key[:80]!r} twice: keep one.")
        if not isinstance(value, Mapping):
            self.fail(path, f"an object with keys among {', '.join(keys)}", value, "see the file format")
        for key in value:
            if key not in keys:
                raise InputError(
                    f"{self.where}{path} has an unknown key {str(key)[:80]!r}: {suggestion(str(key), keys)}"
                )
        return value

    def sequence(self, top: Mapping[str, Any], path: str, key: str) -> Sequence[Any]:
        value = top.get(key)
        if not isinstance(value, (list, tuple)):
            self.fail(path, "a list", value, "give one")
        return value

    def string(self, row: Mapping[str, Any], path: str, key: str, default: str | None = None) -> str:
        value = row.get(key, default)
        if not isinstance(value, str) or isinstance(value, NumberText):
            self.fail(f"{path}.{key}", "text", value, "put it in quotes")
        return checked_id(value, where=f"{self.where}{path}.{key}")

    def truth(self, row: Mapping[str, Any], path: str, key: str, *, default: bool) -> bool:
        value = row.get(key, default)
        if not isinstance(value, bool):
            self.fail(f"{path}.{key}", "true or false", value, "mend it")
        return value

    def fail(self, path: str, expected: str, found: object, hint: str) -> NoReturn:
        raise InputError(f"expected {expected} at {self.where}{path}, found {_described(found)}: {hint}.")


def _described(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, DuplicateKey):
        return f"an object with the key {value.key[:80]!r} twice"
    if isinstance(value, NumberText):
        return str(value)[:_SHOWN]
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    if isinstance(value, int) and abs(value) >= _HUGE:
        return f"a number of {_HUGE:.0e} or more"
    return repr(value)[:_SHOWN]


def _near(end: str, ids: Mapping[str, int]) -> str:
    known = list(ids)[:1000]
    return suggestion(end, known) if 0 < len(known) <= 8 else "add it to nodes or mend the name."


def _with_relays(nodes: list[Node]) -> list[Node]:
    """Ranks for the GPUs without one where the only ranks given are -1; None for relays."""
    if all(node.rank is None or node.rank >= 0 for node in nodes):
        return nodes
    given = any(node.rank is not None and node.rank >= 0 for node in nodes)
    result: list[Node] = []
    following = 0
    for node in nodes:
        rank = node.rank
        if rank is None and node.kind is NodeKind.GPU and not given:
            rank, following = following, following + 1
        result.append(replace(node, rank=None if rank == -1 else rank))
    if not given and not following:
        raise InputError("every GPU has rank -1 (a relay), so no GPU takes part: give at least one a rank.")
    return result


_MAX_DECIMALS = 6
_MAX_DIGITS = 15


def topology_document(topology: Topology) -> dict[str, Any]:
    """Encode ``topology`` as a native document: mappings, lists, text and numbers that JSON can hold.

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
    """Encode ``topology`` as a native JSON file, ending with a line feed.

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


@checked
def write_topology(topology: Topology, path: str | os.PathLike[str]) -> None:
    """Write the native JSON file; an interrupted write leaves the old file, or none.

    Args:
        topology: The topology.
        path: File to write.

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
        if node.arch is not None:
            row["arch"] = node.arch
        if node.cpu is not None:
            row["cpu"] = node.cpu
        if node.slot is not None:
            row["slot"] = node.slot
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
