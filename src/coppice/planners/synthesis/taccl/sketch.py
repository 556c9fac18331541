"""Communication sketches: links to use, switches, relays of chunks, and symmetries.

The format is that of TACCL's files. GPUs are numbered inside a box, which is one node of the sketch; a pair
``[offset, size]`` says that ranks may be turned by ``offset`` inside every group of ``size`` (NSDI'23, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.files import read_bytes
from coppice.topology.readers.document import DuplicateKey
from coppice.topology.readers.json_yaml import parse_json


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
