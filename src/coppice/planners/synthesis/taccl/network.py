"""Communication sketches, and the logical topology of a sketch: its routes, their costs, and who may use them.

Costs of a chunk are alpha + beta, in microseconds: from the topology's latencies and rates, or from a file as TACCL
reads it, whose costs are those of one chunk.

Communication sketches: links to use, switches, relays of chunks, and symmetries. The format is that of TACCL's files.
GPUs are numbered inside a box, which is one node of the sketch; a pair ``[offset, size]`` says that ranks may be turned
by ``offset`` inside every group of ``size`` (NSDI'23, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from coppice.decoding import decodable, decode_json
from coppice.errors import InputError, UnreachableError
from coppice.files import read_bytes
from coppice.planners.synthesis.mip.routes import Route, route_of, routes_of
from coppice.planners.synthesis.timed import Piece
from coppice.topology.model import Topology
from coppice.topology.readers.document import DuplicateKey
from coppice.topology.readers.json_yaml import parse_json
from coppice.topology.routing import Router


class IntranodeSketch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sketch within a box."""

    # `none`; `switch`; `minmax` and `maxmin` even the load of the links out
    strategy: Literal["none", "switch", "minmax", "maxmin"]
    switches: tuple[tuple[int, ...], ...] = ()  # GPUs of each switch
    # For each switch: use few connections, many, or any number
    switch_hyperedge_strategy: tuple[Literal["uc-min", "uc-max", "freedom"], ...] = ()


class InternodeSketch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sketch between boxes."""

    strategy: Literal["relay"]  # `relay`: some GPUs send for the others
    # Receivers in other boxes of each sender, or `direct-map` or `fully-connected`
    internode_conn: dict[str, tuple[int, ...]] | Literal["direct-map", "fully-connected"]
    # For each sender the GPUs whose chunks it sends; None: any sender sends any chunk
    gpus_to_sender_rev_map: dict[str, tuple[int, ...]] | None = None
    enforce_ordering: bool = False  # A sender sends its own chunks first


class Hyperparameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numeric parameters of a sketch."""

    input_chunkup: int = 1  # Chunks of each rank's block
    heuristic: int | None = None  # Number of the ordering heuristic in TACCL; here all are tried


class CommunicationSketch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A communication sketch."""

    nnodes: int  # Number of boxes
    intranode_sketch: IntranodeSketch  # Inside a box
    internode_sketch: InternodeSketch | None = None  # Between boxes; None with one box
    # Which boxes send to which; only what TACCL takes by default, every box to every other
    multinode: dict[str, Any] | None = None
    symmetry_offsets: tuple[tuple[int, int], ...] = ()  # Symmetries `[offset, size]`
    hyperparameters: Hyperparameters = Hyperparameters()  # Chunks

    def checked(self, ranks: int, *, where: str) -> CommunicationSketch:
        """Return the sketch if it fits a number of ranks; refuse it otherwise."""
        if self.nnodes < 1 or ranks % self.nnodes:
            _refuse(where, "$.nnodes", f"a number of boxes that divides {ranks} ranks", self.nnodes)
        gpus = ranks // self.nnodes
        inside = self.intranode_sketch
        for i, members in enumerate(inside.switches):
            _check_gpus(members, gpus, where, f"$.intranode_sketch.switches[{i}]")
        strategies = len(inside.switch_hyperedge_strategy)
        if inside.strategy == "switch" and strategies != len(inside.switches):
            place = "$.intranode_sketch.switch_hyperedge_strategy"
            _refuse(where, place, f"one for each of {len(inside.switches)} switches", strategies)
        between = self.internode_sketch
        if self.nnodes > 1 and between is None:
            _refuse(where, "$.internode_sketch", f"how {self.nnodes} boxes are connected", "nothing")
        if between is not None:
            self._check_between(between, gpus, where)
        for i, (offset, size) in enumerate(self.symmetry_offsets):
            if size < 1 or ranks % size or not 0 <= offset < size:
                place = f"$.symmetry_offsets[{i}]"
                _refuse(
                    where, place, f"[offset, size] with a size that divides {ranks} ranks", [offset, size]
                )
        if self.hyperparameters.input_chunkup < 1:
            found = self.hyperparameters.input_chunkup
            _refuse(where, "$.hyperparameters.input_chunkup", "1 or more", found)
        if self.multinode is not None:
            found_multi = {key: self.multinode.get(key) for key in ("nnodes", "group_size")}
            if found_multi != {"nnodes": [1], "group_size": [self.nnodes]}:
                _refuse(where, "$.multinode", f"nnodes [1] and group_size [{self.nnodes}]", found_multi)
        return self

    def _check_between(self, between: InternodeSketch, gpus: int, where: str) -> None:
        place = "$.internode_sketch"
        if isinstance(between.internode_conn, Mapping):
            _check_map(between.internode_conn, gpus, where, f"{place}.internode_conn")
        senders = between.gpus_to_sender_rev_map
        if senders is not None:
            _check_map(senders, gpus, where, f"{place}.gpus_to_sender_rev_map")
            known = self.connections(gpus)
            for name in senders:
                if int(name) not in known:
                    _refuse(
                        where, f"{place}.gpus_to_sender_rev_map", "senders that internode_conn has", int(name)
                    )
            missing = sorted(set(range(gpus)) - {gpu for members in senders.values() for gpu in members})
            if missing:
                _refuse(
                    where, f"{place}.gpus_to_sender_rev_map", "a sender for every GPU", f"none for {missing}"
                )

    def connections(self, gpus: int) -> dict[int, tuple[int, ...]]:
        """Receivers of each sender, as local numbers in a box of so many GPUs."""
        if self.internode_sketch is None:
            return {}
        given = self.internode_sketch.internode_conn
        if given == "direct-map":
            return {gpu: (gpu,) for gpu in range(gpus)}
        if isinstance(given, str):
            return {gpu: tuple(range(gpus)) for gpu in range(gpus)}
        return {int(sender): receivers for sender, receivers in given.items()}

    def senders_of(self, gpu: int, gpus: int) -> tuple[int, ...]:
        """GPUs of a box that may send data of ``gpu`` to other boxes."""
        between = self.internode_sketch
        if between is None or between.gpus_to_sender_rev_map is None:
            return tuple(self.connections(gpus))
        return tuple(
            int(sender) for sender, members in between.gpus_to_sender_rev_map.items() if gpu in members
        )


def turned_rank(rank: int, offset: int, size: int) -> int:
    """Image of a rank under a symmetry ``[offset, size]``.

    >>> [turned_rank(r, 2, 4) for r in range(8)]
    [2, 3, 0, 1, 6, 7, 4, 5]
    """
    return rank // size * size + (rank % size + offset) % size


def read_sketch(path: str, ranks: int) -> CommunicationSketch:
    """Read a sketch from a file for a number of ranks."""
    try:
        tree = parse_json(read_bytes(path, what="a sketch file"), file=path)
        _refuse_repeated(tree, path, "$")
        sketch = msgspec.convert(tree, decodable(CommunicationSketch))
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: expected a sketch as TACCL reads it, found otherwise: {error}.") from None
    return sketch.checked(ranks, where=path)


def _refuse_repeated(tree: object, where: str, place: str) -> None:
    if isinstance(tree, DuplicateKey):
        _refuse(where, place, "every key once", f"{tree.key!r} twice")
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree if isinstance(tree, list) else ())
    for key, value in entries:
        _refuse_repeated(value, where, f"{place}[{key}]" if isinstance(tree, list) else f"{place}.{key}")


def _check_map(found: Mapping[str, tuple[int, ...]], gpus: int, where: str, place: str) -> None:
    for name, members in found.items():
        if not name.isdecimal() or int(name) >= gpus:
            _refuse(where, place, f"GPUs 0 .. {gpus - 1} of a box as keys", name)
        _check_gpus(members, gpus, where, f"{place}.{name}")


def _check_gpus(members: tuple[int, ...], gpus: int, where: str, place: str) -> None:
    wrong = [gpu for gpu in members if not 0 <= gpu < gpus]
    if wrong or len(set(members)) != len(members):
        _refuse(where, place, f"GPUs 0 .. {gpus - 1} of a box, each once", list(members))


def _refuse(where: str, place: str, expected: str, found: object) -> None:
    raise InputError(
        f"{where}: expected {expected} at {place}, found {found}: mend the sketch, or choose other boxes."
    )


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
