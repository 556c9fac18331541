"""Logical topology of a sketch: its routes, their costs, and who may use them.

Costs of a chunk are alpha + beta, in microseconds: from the topology's latencies and rates, or from a file as TACCL
reads it, whose costs are those of one chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import msgspec
import numpy as np
from numpy.typing import NDArray

from coppice.decoding import decode_json
from coppice.errors import InputError, UnreachableError
from coppice.files import read_bytes
from coppice.planners.synthesis.mip.routes import Route, route_of, routes_of
from coppice.planners.synthesis.mip.timed import Piece
from coppice.planners.synthesis.taccl.sketch import (
    CommunicationSketch,
    Hyperparameters,
    InternodeSketch,
    IntranodeSketch,
    turned_rank,
)
from coppice.topology.model import Topology
from coppice.topology.routing import Router

_Matrix = tuple[tuple[float, ...], ...]


class LinkProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Alpha and beta by kind of link, in microseconds."""

    alpha: float  # Latency inside a box
    gpus_per_node: int  # GPUs of a box
    node_betas_list: tuple[float, ...] = ()  # Time on each kind of link inside a box, the fastest first
    betas: _Matrix | None = None  # The same for every pair, `betas[to][from]`; None: by kind
    remote_alpha: float | None = None  # Latency between boxes
    remote_beta: float | None = None  # Time on a NIC
    name: str = ""  # Free text
    nics_per_node: int = 0  # NICs of a box
    node_invbws_list: tuple[float, ...] = ()  # alpha + beta of each kind, which follow from the others
    invbws: _Matrix | None = None  # The same for every pair
    links: _Matrix | None = None  # Links of every pair
    remote_invbw: float | None = None  # remote_alpha + remote_beta

    def inside(self, src: int, dst: int, rate: Fraction, rates: tuple[Fraction, ...]) -> float:
        """Beta of a link within a box.

        Args:
            rates: Rates of all kinds of links, the fastest first.
        """
        if self.betas is not None:
            return self.betas[dst][src]
        return sorted(self.node_betas_list)[rates.index(rate)]


def read_profile(path: str, gpus: int, kinds: int, *, crosses: bool) -> LinkProfile:
    """Read a profile from a file.

    Args:
        kinds: Kinds of links inside a box, by their rates.
        crosses: Whether there are links between boxes.
    """
    data = read_bytes(path, what="a link profile")
    found = decode_json(
        data,
        LinkProfile,
        lambda fault: f"{path}: expected a link profile as TACCL reads it, found otherwise: {fault}.",
    )
    if found.gpus_per_node != gpus:
        raise InputError(
            f"{path}: expected $.gpus_per_node to be {gpus}, as the topology has, found {found.gpus_per_node}."
        )
    square = found.betas is None or (
        len(found.betas) == gpus and all(len(row) == gpus for row in found.betas)
    )
    if not square:
        raise InputError(f"{path}: expected $.betas to be a matrix of {gpus} x {gpus}, found another.")
    if found.betas is None and len(found.node_betas_list) != kinds:
        raise InputError(
            f"{path}: expected $.node_betas_list to have {kinds} costs, one for each rate of the topology's links "
            f"inside a box, found {len(found.node_betas_list)}."
        )
    if crosses and (found.remote_alpha is None or found.remote_beta is None):
        raise InputError(
            f"{path}: expected $.remote_alpha and $.remote_beta for links between boxes, found none: add them."
        )
    return found


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Source of link costs."""

    chunk_bytes: int  # Size of a chunk
    alpha_us: float | None = None  # Latency inside a box, in place of the topology's
    remote_alpha_us: float | None = None  # Latency between boxes, likewise
    profile: str | None = None  # File with costs in place of the topology's rates and latencies


@dataclass(frozen=True, eq=False, kw_only=True)
class SketchedNetwork:
    """Routes of a sketch; make one with :meth:`of`."""

    topology: Topology  # The network
    sketch: CommunicationSketch  # The sketch
    gpus: int  # GPUs of a box
    routes: tuple[Route, ...]  # The ways that the sketch leaves
    alpha: tuple[float, ...]  # Latency of each route in microseconds
    beta: tuple[float, ...]  # Time of a chunk on each route, without it
    # For each route, its links and the ports of the sketch's switches by number, with the time of a chunk there
    use: tuple[dict[int, float], ...]

    @classmethod
    def of(cls, topology: Topology, sketch: CommunicationSketch, costs: Costs) -> SketchedNetwork:
        """Routes of ``topology`` that ``sketch`` allows."""
        gpus = max(1, topology.num_ranks // sketch.nnodes)
        routes = [route for route in routes_of(topology) if route.src // gpus == route.dst // gpus]
        routes += _between(topology, sketch, gpus)
        inside = [route for route in routes if route.src // gpus == route.dst // gpus]
        rates = tuple(sorted({route.gb_per_s for route in inside}, reverse=True))
        crosses = len(inside) < len(routes)
        profile = (
            None if costs.profile is None else read_profile(costs.profile, gpus, len(rates), crosses=crosses)
        )
        alpha, beta = [], []
        for route in routes:
            remote = route.src // gpus != route.dst // gpus
            given = costs.remote_alpha_us if remote else costs.alpha_us
            if profile is None:
                latency = route.latency_us
                time = float(costs.chunk_bytes / (1000 * route.gb_per_s))
            elif remote:
                latency, time = profile.remote_alpha or 0.0, profile.remote_beta or 0.0
            else:
                latency = profile.alpha
                time = profile.inside(route.src % gpus, route.dst % gpus, route.gb_per_s, rates)
            alpha.append(latency if given is None else given)
            beta.append(time)
        ports = _ports(topology, sketch, gpus, routes)
        use = []
        for number, route in enumerate(routes):
            own = {
                e: beta[number] * float(route.gb_per_s / topology.gb_per_s(e)) for e in route.links
            }  # wider links are busy for less
            use.append(own | dict.fromkeys(ports[number], beta[number]))
        return cls(
            topology=topology,
            sketch=sketch,
            gpus=gpus,
            routes=tuple(routes),
            alpha=tuple(alpha),
            beta=tuple(beta),
            use=tuple(use),
        )

    def cost(self, route: int) -> float:
        """Cost alpha + beta of a chunk on a route."""
        return self.alpha[route] + self.beta[route]

    def occupied(self, route: int) -> dict[int, float]:
        """Time that a chunk on a route occupies each link and port."""
        return {resource: self.alpha[route] + time for resource, time in self.use[route].items()}

    def crosses(self, route: int) -> bool:
        """Whether a route connects two boxes."""
        return self.routes[route].src // self.gpus != self.routes[route].dst // self.gpus

    def boxes_to_reach(self, piece: Piece) -> set[int]:
        """Destination boxes of a chunk."""
        return {target // self.gpus for target in piece.targets} - {piece.source // self.gpus}

    def allowed(self, pieces: Sequence[Piece]) -> NDArray[np.bool_]:
        """``[p, l]``: whether the sketch allows chunk p on route l."""
        table: NDArray[np.bool_] = np.ones((len(pieces), len(self.routes)), dtype=np.bool_)
        for p, piece in enumerate(pieces):
            home = piece.source // self.gpus
            senders = self.sketch.senders_of(piece.source % self.gpus, self.gpus)
            wanted = self.boxes_to_reach(piece)
            for number, route in enumerate(self.routes):
                box, other = route.src // self.gpus, route.dst // self.gpus
                if box != other:
                    table[p, number] = box == home and other in wanted and route.src % self.gpus in senders
                else:
                    table[p, number] = box == home or box in wanted
                if route.dst == piece.source:
                    table[p, number] = False
        return table


def _between(topology: Topology, sketch: CommunicationSketch, gpus: int) -> list[Route]:
    """The routes between boxes that the sketch names."""
    router = Router(topology)
    routes = []
    connections = sketch.connections(gpus)
    boxes = range(sketch.nnodes)
    for a, b in product(boxes, boxes):
        if a == b:
            continue
        for sender, receivers in sorted(connections.items()):
            for receiver in receivers:
                src, dst = a * gpus + sender, b * gpus + receiver
                try:
                    routes.append(route_of(topology, router.path(src, dst)))
                except UnreachableError as error:
                    place = "$.internode_sketch.internode_conn"
                    raise InputError(
                        f"the sketch connects rank {src} with rank {dst} at {place}: {error}"
                    ) from None
    return routes


def _ports(
    topology: Topology, sketch: CommunicationSketch, gpus: int, routes: Sequence[Route]
) -> list[list[int]]:
    """Ports of the sketch's switches that each route uses, numbered after the links."""
    found: list[list[int]] = [[] for _ in routes]
    if sketch.intranode_sketch.strategy != "switch":
        return found
    for i, members in enumerate(sketch.intranode_sketch.switches):
        for number, route in enumerate(routes):
            if route.src // gpus == route.dst // gpus and {route.src % gpus, route.dst % gpus} <= set(
                members
            ):
                first = topology.num_links + 2 * i * topology.num_ranks
                found[number] = [first + 2 * route.src, first + 2 * route.dst + 1]
    return found


def suited_sketch(topology: Topology) -> CommunicationSketch:
    """Default sketch of a topology: its boxes, disjoint links between boxes, and its symmetries.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> suited_sketch(preset("ndv2", boxes=2)).internode_sketch.internode_conn
        {'0': (1,)}
        >>> suited_sketch(preset("dgx-a100", boxes=2)).symmetry_offsets
        ((1, 8), (8, 16))
    """
    ranks = topology.num_ranks
    boxes = topology.host[topology.rank_nodes].tolist()
    count = len(set(boxes))
    gpus = ranks // count if count and ranks % count == 0 else 0
    if not gpus or count == 1 or boxes != [boxes[box * gpus] for box in range(count) for _ in range(gpus)]:
        return CommunicationSketch(nnodes=1, intranode_sketch=IntranodeSketch(strategy="none"))
    routes = routes_of(topology)
    crossing = [route for route in routes if route.src // gpus == 0 and route.dst // gpus == 1]
    if not crossing:
        return CommunicationSketch(nnodes=1, intranode_sketch=IntranodeSketch(strategy="none"))
    chosen = _apart([route for route in crossing if route.src % gpus == route.dst % gpus])
    if len(chosen) < 2:
        chosen = _apart(sorted(crossing, key=lambda route: route.src % gpus == route.dst % gpus))
    conn: dict[str, tuple[int, ...]] = {str(route.src % gpus): (route.dst % gpus,) for route in chosen}
    sketch = CommunicationSketch(
        nnodes=count,
        intranode_sketch=IntranodeSketch(strategy="none"),
        internode_sketch=InternodeSketch(strategy="relay", internode_conn=conn),
        hyperparameters=Hyperparameters(),
    )
    pairs = {
        (route.src, route.dst): (route.gb_per_s, route.latency_us) for route in routes if not route.crosses
    }
    try:
        pairs |= {
            (route.src, route.dst): (route.gb_per_s, route.latency_us)
            for route in _between(topology, sketch, gpus)
        }
    except InputError:
        return CommunicationSketch(nnodes=1, intranode_sketch=IntranodeSketch(strategy="none"))
    turns = [(offset, gpus) for offset in range(1, gpus) if gpus % offset == 0][:3]
    valid = [turn for turn in turns if _symmetric(pairs, *turn)][:1]
    valid += [turn for turn in [(gpus, ranks)] if _symmetric(pairs, *turn)]
    return msgspec.structs.replace(sketch, symmetry_offsets=tuple(valid))


def _apart(routes: Sequence[Route]) -> list[Route]:
    """Routes, the first ones first, that share no link and no GPU."""
    chosen: list[Route] = []
    for route in routes:
        if all(
            not set(route.links) & set(other.links) and route.src != other.src and route.dst != other.dst
            for other in chosen
        ):
            chosen.append(route)
    return chosen


def _symmetric(pairs: Mapping[tuple[int, int], object], offset: int, size: int) -> bool:
    """Whether turning takes every route to one that is alike, those between groups included: they bind the rest."""
    return all(
        pairs.get((turned_rank(src, offset, size), turned_rank(dst, offset, size))) == kind
        for (src, dst), kind in pairs.items()
    )
