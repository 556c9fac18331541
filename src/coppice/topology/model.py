"""The topology: an immutable capacitated directed graph of GPUs, switches and NICs.

A :class:`Topology` is a set of columns, one row per node and one row per directed link. Ids are row numbers;
names appear only at the edge. Capacities are exact: integers over one common denominator, in GB/s (1e9
bytes/s) per direction. Parallel links are merged, self links and links of capacity zero do not exist.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.display import Shown, loaded
from coppice.equality import ByContent
from coppice.errors import InputError
from coppice.text import plural

MAX_DENOMINATOR = 2**31


class NodeKind(enum.IntEnum):
    """What a node is. Only GPUs own data; switches and NICs forward."""

    GPU = 0
    SWITCH = 1
    NIC = 2

    @classmethod
    def named(cls, name: object) -> NodeKind:
        """The kind with a name.

        Examples:
            >>> NodeKind.named("switch")
            <NodeKind.SWITCH: 1>

        Raises:
            InputError: If there is none.
        """
        kinds = {each.name.lower(): each for each in cls}
        if not isinstance(name, str) or name.lower() not in kinds:
            raise InputError(f"expected a kind of node ({', '.join(kinds)}), found {name!r}.")
        return kinds[name.lower()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A node as given to :meth:`Topology.of`."""

    id: str  # Unique name
    kind: NodeKind = NodeKind.GPU  # GPU, switch or NIC; :meth:`Topology.of` takes names such as `switch` too
    host: str | None = None  # Name of the box that holds it, or None
    rank: int | None = None  # Rank of a GPU; None takes the order among the GPUs
    multicast: bool = False  # The hardware can copy one input to several outputs
    aggregate: bool = False  # The hardware can add several inputs into one output
    # Architecture of a GPU as compilers name it (`sm_90`, `gfx942`), or None where nothing tells it
    arch: str | None = None
    cpu: str | None = None  # Maker of the processors beside a GPU (`intel`, `amd`, `arm`), or None likewise
    slot: str | None = (
        None  # Place of a GPU or NIC in the PCIe tree of its machine (see `slots`), or None likewise
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A link as given to :meth:`Topology.of`; ``duplex`` means the same rate in each direction."""

    src: str
    dst: str
    gb_per_s: Fraction  # Rate in each direction, GB/s; :meth:`Topology.of` takes numbers and texts such as `75/2` too
    latency_us: float = 0.0
    duplex: bool = True


@dataclass(frozen=True, eq=False, kw_only=True)
class Topology(ByContent, Shown):
    """Immutable columns; build one with :meth:`of`."""

    name: str  # Free text
    node_ids: tuple[str, ...]  # Name of each node, unique
    kind: NDArray[np.int8]  # `kind[v]` is a :class:`NodeKind` (int8)
    host: NDArray[np.int32]  # `host[v]` indexes `hosts`, or is -1 (int32)
    hosts: tuple[str, ...]  # Names of the boxes
    rank: NDArray[np.int32]  # `rank[v]` is the rank of GPU v, or -1 (int32). Ranks are 0 .. N-1.
    multicast: NDArray[np.bool_]  # `multicast[v]`: node v can copy in hardware
    aggregate: NDArray[np.bool_]  # `aggregate[v]`: node v can add in hardware
    src: NDArray[np.int32]  # `src[e]` is the node that link e leaves (int32). Links are sorted by (src, dst).
    dst: NDArray[np.int32]  # `dst[e]` is the node that link e enters (int32)
    capacity: NDArray[np.int64]  # `capacity[e] / denominator` is the rate of link e in GB/s (int64, positive)
    denominator: int  # Common denominator of all capacities; gcd with them is 1
    latency_us: NDArray[np.float64]  # `latency_us[e]` is the latency of link e in microseconds (float64)
    source: str = field(default="")  # Where the figures come from (free text for reports)
    # `arch[v]` is the architecture of GPU v, or None; empty where none is known
    arch: tuple[str | None, ...] = ()
    # `cpu[v]` is the maker of the processors beside GPU v, or None; empty where none is known
    cpu: tuple[str | None, ...] = ()
    # `slot[v]` is the place of GPU or NIC v in the PCIe tree of its machine, or None; empty where none is known
    slot: tuple[str | None, ...] = ()

    def __post_init__(self) -> None:
        for column in (self.kind, self.host, self.rank, self.multicast, self.aggregate):
            column.setflags(write=False)
        for link_column in (self.src, self.dst, self.capacity, self.latency_us):
            link_column.setflags(write=False)

    def __repr__(self) -> str:
        """In short what it is.

        >>> from coppice.topology.presets import preset
        >>> preset("dgx-a100", boxes=2)
        Topology('2 x dgx-a100', 16 ranks on 2 hosts, 36 nodes, 96 links)
        """
        hosts = f" on {plural(len(self.hosts), 'host')}" if self.hosts else ""
        sizes = f"{plural(self.num_nodes, 'node')}, {plural(self.num_links, 'link')}"
        return f"Topology({self.name[:80]!r}, {plural(self.num_ranks, 'rank')}{hosts}, {sizes})"

    def to_networkx(self) -> Any:
        """This topology as a directed graph of networkx, which :func:`coppice.load` turns back into an equal one.

        Nodes carry ``kind``, ``host``, ``rank``, ``multicast``, ``aggregate``; edges ``gb_per_s`` as exact fractions
        and ``latency_us``.

        Raises:
            MissingExtraError: If networkx is not installed.
        """
        return loaded("coppice.topology.readers.networkx_graph:to_networkx")(self)

    @classmethod
    def of(cls, name: str, nodes: Sequence[Node], links: Iterable[Link], *, source: str = "") -> Topology:
        """Build a topology from described nodes and links.

        Parallel links add up (the largest latency of the bundle counts); links of rate zero and self links
        are dropped. Names of nodes must be unique, links must name existing nodes, rates must not be
        negative.

        Raises:
            InputError: With the offending node or link named.

        Examples:
            >>> pair = Topology.of("pair", [Node(id="a"), Node(id="b")],
            ...                    [Link(src="a", dst="b", gb_per_s=Fraction(25, 2))])
            >>> pair.num_ranks, pair.num_links, pair.gb_per_s(0)
            (2, 2, Fraction(25, 2))
        """
        nodes = [_with_kind(each) for each in nodes]
        index: dict[str, int] = {}
        for position, node in enumerate(nodes):
            if index.setdefault(node.id, position) != position:
                raise InputError(
                    f"node ids must be unique: nodes[{position}] repeats {node.id!r}; rename one of them."
                )
        merged: dict[tuple[int, int], tuple[Fraction, float]] = {}
        for position, link in enumerate(links):
            for end in (link.src, link.dst):
                if end not in index:
                    raise InputError(
                        f"links[{position}] names an unknown node {end!r}: add it or mend the name."
                    )
            link = _with_rate(link, position)
            if link.gb_per_s < 0:
                ends = f"{link.src} -> {link.dst}"
                raise InputError(f"links[{position}] ({ends}) has rate {link.gb_per_s} < 0: give it in GB/s.")
            if not 0 <= link.latency_us < float("inf"):
                raise InputError(
                    f"links[{position}] ({link.src} -> {link.dst}) needs a latency of 0 or more microseconds."
                )
            a, b = index[link.src], index[link.dst]
            if a == b or link.gb_per_s == 0:
                continue
            for key in ((a, b), (b, a)) if link.duplex else ((a, b),):
                parallel = merged.get(key)
                if parallel is None:
                    merged[key] = (link.gb_per_s, link.latency_us)
                else:
                    merged[key] = (parallel[0] + link.gb_per_s, max(parallel[1], link.latency_us))
        hosts = tuple(dict.fromkeys(node.host for node in nodes if node.host is not None))
        host_index = {host: position for position, host in enumerate(hosts)}
        keys = sorted(merged)
        rates = [merged[key][0] for key in keys]
        denominator = common_denominator(rates)
        return cls(
            name=name,
            node_ids=tuple(index),
            kind=np.array([node.kind for node in nodes], dtype=np.int8),
            host=np.array([-1 if n.host is None else host_index[n.host] for n in nodes], dtype=np.int32),
            hosts=hosts,
            rank=assign_ranks(nodes),
            multicast=np.array([node.multicast for node in nodes], dtype=np.bool_),
            aggregate=np.array([node.aggregate for node in nodes], dtype=np.bool_),
            src=np.array([key[0] for key in keys], dtype=np.int32),
            dst=np.array([key[1] for key in keys], dtype=np.int32),
            capacity=scaled(rates, denominator),
            denominator=denominator,
            latency_us=np.array([merged[key][1] for key in keys], dtype=np.float64),
            source=source,
            arch=_column([node.arch for node in nodes]),
            cpu=_column([node.cpu for node in nodes]),
            slot=_column([node.slot for node in nodes]),
        )

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all kinds."""
        return len(self.node_ids)

    @property
    def num_links(self) -> int:
        """Number of directed links."""
        return len(self.src)

    @cached_property
    def rank_nodes(self) -> NDArray[np.int32]:
        """``rank_nodes[r]`` is the node of rank r."""
        nodes = np.flatnonzero(self.rank >= 0).astype(np.int32)
        return nodes[np.argsort(self.rank[nodes], kind="stable")]

    @property
    def num_ranks(self) -> int:
        """Number of ranks (GPUs that take part)."""
        return len(self.rank_nodes)

    @cached_property
    def capacity_in(self) -> NDArray[np.int64]:
        """Capacity of all links that enter each node, in units of the topology."""
        return self._capacity_at(self.dst)

    @cached_property
    def capacity_out(self) -> NDArray[np.int64]:
        """Capacity of all links that leave each node, in units of the topology."""
        return self._capacity_at(self.src)

    def _capacity_at(self, ends: NDArray[np.int32]) -> NDArray[np.int64]:
        total = np.zeros(self.num_nodes, dtype=np.int64)
        np.add.at(total, ends, self.capacity)
        return total

    def gb_per_s(self, link: int) -> Fraction:
        """Exact rate of ``link`` in GB/s."""
        return Fraction(int(self.capacity[link]), self.denominator)

    def link_name(self, link: int) -> str:
        """Both ends of ``link``: ``gpu0 -> nvswitch``."""
        return f"{self.node_ids[self.src[link]]} -> {self.node_ids[self.dst[link]]}"

    @cached_property
    def link_index(self) -> dict[tuple[int, int], int]:
        """Link id by (src node, dst node)."""
        return {(a, b): e for e, (a, b) in enumerate(zip(self.src.tolist(), self.dst.tolist(), strict=True))}

    @cached_property
    def node_index(self) -> dict[str, int]:
        """Node id by name."""
        return {name: position for position, name in enumerate(self.node_ids)}

    def links(self) -> list[Link]:
        """The directed links as described values (``duplex`` false), in id order."""
        return [
            Link(
                src=self.node_ids[a],
                dst=self.node_ids[b],
                gb_per_s=Fraction(capacity, self.denominator),
                latency_us=latency,
                duplex=False,
            )
            for a, b, capacity, latency in zip(
                self.src.tolist(),
                self.dst.tolist(),
                self.capacity.tolist(),
                self.latency_us.tolist(),
                strict=True,
            )
        ]

    def nodes(self) -> list[Node]:
        """The nodes as described values, in id order."""
        return [
            Node(
                id=name,
                kind=NodeKind(kind),
                host=None if host < 0 else self.hosts[host],
                rank=None if rank < 0 else rank,
                multicast=multicast,
                aggregate=aggregate,
                arch=arch,
                cpu=cpu,
                slot=slot,
            )
            for name, kind, host, rank, multicast, aggregate, arch, cpu, slot in zip(
                self.node_ids,
                self.kind.tolist(),
                self.host.tolist(),
                self.rank.tolist(),
                self.multicast.tolist(),
                self.aggregate.tolist(),
                self.arch or (None,) * self.num_nodes,
                self.cpu or (None,) * self.num_nodes,
                self.slot or (None,) * self.num_nodes,
                strict=True,
            )
        ]

    def transposed(self) -> Topology:
        """The same nodes with every link reversed (multicast and in-switch reduction are swapped)."""
        order = np.lexsort((self.src, self.dst))
        return replace(
            self,
            src=self.dst[order],
            dst=self.src[order],
            capacity=self.capacity[order],
            latency_us=self.latency_us[order],
            multicast=self.aggregate,
            aggregate=self.multicast,
        )

    @cached_property
    def sha256(self) -> str:
        """Hash of everything that affects a plan: nodes, ranks, kinds, links, rates (not names and comments)."""
        digest = hashlib.sha256()
        for column in (self.kind, self.host, self.rank, self.multicast, self.aggregate, self.src, self.dst):
            digest.update(column.tobytes())
            digest.update(b"|")
        digest.update(self.capacity.tobytes() + str(self.denominator).encode() + self.latency_us.tobytes())
        digest.update("\0".join(self.node_ids).encode())
        return digest.hexdigest()


def _column(values: list[str | None]) -> tuple[str | None, ...]:
    """What is known of the nodes; empty where nothing is."""
    return tuple(values) if any(value is not None for value in values) else ()


def common_denominator(rates: Iterable[Fraction]) -> int:
    """Least common denominator of ``rates``."""
    denominator = 1
    for part in {rate.denominator for rate in rates}:
        denominator = lcm(denominator, part)
        if denominator > MAX_DENOMINATOR:
            raise InputError(
                f"the rates need a common denominator <= 2^31, found {denominator}: "
                "round them to a few digits (`round_digits=3`)."
            )
    return denominator


def scaled(rates: Sequence[Fraction], denominator: int) -> NDArray[np.int64]:
    """``rates`` as integers over ``denominator``, a multiple of all of theirs."""
    integers = [rate.numerator * (denominator // rate.denominator) for rate in rates]
    if sum(integers) >= 2**62:
        unit = f"1/{denominator} GB/s"
        raise InputError(
            f"the sum of all rates in units of {unit} must stay below 2^62: round them (`round_digits=3`)."
        )
    return np.array(integers, dtype=np.int64)


def assign_ranks(nodes: Sequence[Node]) -> NDArray[np.int32]:
    """Ranks of the nodes: as given, else in the order of the GPUs; must be 0 .. P - 1."""
    ranks = np.full(len(nodes), -1, dtype=np.int32)
    gpus = [v for v, node in enumerate(nodes) if node.kind == NodeKind.GPU]
    given = {v: rank for v, node in enumerate(nodes) if (rank := node.rank) is not None}
    for v in given:
        if nodes[v].kind != NodeKind.GPU:
            raise InputError(
                f"node {nodes[v].id!r} is a {nodes[v].kind.name.lower()} and cannot have a rank: remove it."
            )
    if not given:
        ranks[gpus] = np.arange(len(gpus))
        return ranks
    if sorted(given.values()) != list(range(len(given))):
        found = sorted(given.values())[:16]
        raise InputError(f"ranks must be 0 .. {len(given) - 1}, each once, found {found}: renumber them.")
    for v, rank in given.items():
        ranks[v] = rank
    return ranks


def _with_kind(node: Node) -> Node:
    """A node whose kind may be a text."""
    kind: Any = node.kind
    return node if isinstance(kind, NodeKind) else replace(node, kind=NodeKind.named(kind))


def _with_rate(link: Link, position: int) -> Link:
    """A link whose rate may be a number or a text."""
    rate: Any = link.gb_per_s
    if isinstance(rate, Fraction):
        return link
    return replace(link, gb_per_s=exact_rate(rate, where=f"links[{position}] ({link.src} -> {link.dst})"))


def exact_rate(value: int | float | str | Fraction, *, where: str) -> Fraction:
    """Read a rate exactly: a number as the decimal it was written as (0.1 is 1/10), or a fraction as text.

    Args:
        value: A number, or text such as ``"75/2"`` or ``"12.5"``.
        where: Place for the error message, such as ``$.links[3].gb_per_s``.

    Raises:
        InputError: If it is not a finite number of 0 or more.

    Examples:
        >>> exact_rate(0.1, where="$"), exact_rate("75/2", where="$")
        (Fraction(1, 10), Fraction(75, 2))
    """
    try:
        text = value if isinstance(value, str) else str(value)
        if len(text) > 64:
            raise ValueError
        exponent = text.lower().partition("e")[2]
        if exponent and abs(int(exponent)) > 30:
            raise ValueError
        rate = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise InputError(
            f'expected a rate in GB/s as a number or a fraction like "75/2", found {value!r} at {where}.'
        ) from None
    if rate < 0:
        raise InputError(f"expected a rate >= 0 GB/s, found {value} at {where}.")
    return rate
