"""Groups of ranks: settings, topology of the group, and agreement between its ranks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from coppice.decoding import decodable
from coppice.run.errors import Mismatch
from coppice.topology.model import Topology
from coppice.topology.operations import subset

AUTO = "auto"
"""What the engine does by itself where its ranks share memory, forests elsewhere."""


@dataclass(frozen=True, kw_only=True)
class GroupSettings:
    """Options of :class:`~coppice.run.communicator.communicator.Communicator`, explained there."""

    algorithm: str
    pieces: int | str
    cache_dir: str | os.PathLike[str] | None
    timeout_s: float
    check_every_call: bool
    fall_back: bool = True
    adapt: bool = False

    def record(self, topology: Topology) -> dict[str, Value]:
        """Values that must be equal on all ranks; timeout and cache directory may differ."""
        from coppice.version import __version__

        return {
            "version": __version__,
            "topology": topology.sha256,
            "algorithm": self.algorithm,
            "pieces": self.pieces,
            "check_every_call": self.check_every_call,
            "fall_back": self.fall_back,
            "adapt": self.adapt,
        }

    def defect(self, topology: Topology, ranks: int) -> str:
        """Why they are invalid for a group of so many ranks, or nothing.

        Examples:
            >>> from coppice.topology.presets import preset
            >>> settings = GroupSettings(
            ...     algorithm=AUTO, pieces=0, cache_dir=None, timeout_s=300, check_every_call=False
            ... )
            >>> settings.defect(preset("ring", gpus=4), 4)
            'expected `auto` or 1 piece or more, found 0.'
        """
        if topology.num_ranks != ranks:
            return (
                f"expected a topology of {ranks} ranks, found {topology.num_ranks} in {topology.name}: start as "
                "many processes as it has GPUs."
            )
        if self.pieces != "auto" and not (isinstance(self.pieces, int) and self.pieces >= 1):
            return f"expected `auto` or 1 piece or more, found {self.pieces!r}."
        if not self.timeout_s > 0:
            return f"expected a timeout above 0 s, found {self.timeout_s}."
        return ""


def topology_of(topology: Topology, ranks: Sequence[int]) -> Topology:
    """Topology of a group: its ranks in the given order, without the other GPUs.

    Other GPUs stay, to pass on what is not theirs, only where the group's ranks do not reach each other without them.

    Examples:
        Opposite GPUs of a ring reach each other through the others only:

        >>> from coppice.topology.presets import preset
        >>> ring = preset("ring", gpus=4)
        >>> topology_of(ring, [0, 1]).num_nodes, topology_of(ring, [0, 2]).num_nodes
        (2, 4)
    """
    alone = subset(topology, ranks)
    return alone if _joined(alone) else subset(topology, ranks, relays=True)


def _joined(topology: Topology) -> bool:
    """Every rank reaches every other one."""
    for forward in (True, False):
        source, target = (topology.src, topology.dst) if forward else (topology.dst, topology.src)
        reached = np.zeros(topology.num_nodes, dtype=np.bool_)
        reached[topology.rank_nodes[0]] = True
        known = 0
        while known < int(reached.sum()):
            known = int(reached.sum())
            reached[target[reached[source]]] = True
        if not reached[topology.rank_nodes].all():
            return False
    return True


Value = str | int | bool | None


class _Card(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank says of itself."""

    what: str
    record: dict[str, Value]
    error: str
    own: Value


def agree(
    # Gives every rank the bytes of all, in rank order: that of an engine, or of a store
    exchange: Callable[[bytes], list[bytes]],
    what: str,  # What the ranks are about to do, for messages
    record: Mapping[str, Value],  # Values by name, which must be the same on all ranks
    *,
    error: str = "",  # Why this rank cannot take part, empty if it can
    own: Value = None,
) -> list[Value]:
    """Check that ``record`` is equal on all ranks.

    Returns:
        ``own`` of every rank.

    Examples:
        >>> from coppice.run.engines.numpy import run_ranks
        >>> def work(engine):
        ...     agree(engine.exchange, "all_reduce", {"count": 5 if engine.rank else 6})
        >>> found = run_ranks(3, work)
        >>> print(str(found[2])[:82])
        all_reduce differs between ranks: expected count 5 as on rank 1, found 6 on rank 0
    """
    mine = msgspec.json.encode(_Card(what=what, record=dict(record), error=error, own=own))
    try:
        cards = [msgspec.json.decode(card, type=decodable(_Card)) for card in exchange(mine)]
    except msgspec.MsgspecError as found:
        raise Mismatch(
            f"expected what another rank is about to do, found something else ({found}): run one version everywhere."
        ) from None
    for rank, card in enumerate(cards):
        if card.error:
            raise Mismatch(f"rank {rank} cannot take part in {card.what}: {card.error}")
    keys = [msgspec.json.encode((card.what, card.record), order="sorted") for card in cards]
    if len(set(keys)) == 1:
        return [card.own for card in cards]
    usual = Counter(keys).most_common(1)[0][0]
    model = keys.index(usual)
    odd = next(rank for rank, key in enumerate(keys) if key != usual)
    if cards[odd].what != cards[model].what:
        raise Mismatch(
            f"ranks do different things: expected {cards[model].what} as on rank {model}, found "
            f"{cards[odd].what} on rank {odd}; make the same calls in the same order on all ranks."
        )
    wanted, other = cards[model].record, cards[odd].record
    names = [name for name in {**wanted, **other} if wanted.get(name) != other.get(name)]
    here = ", ".join(f"{name} {_word(wanted.get(name))}" for name in names)
    there = ", ".join(_word(other.get(name)) for name in names)
    raise Mismatch(
        f"{what} differs between ranks: expected {here} as on rank {model}, found {there} on rank {odd}; "
        "make the same call on all ranks."
    )


def _word(value: Value) -> str:
    return "none" if value is None else str(value)


def host_of_process() -> str:
    """Host id, equal for processes that can share memory: same boot and network namespace."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"  # noqa: PTH116  (a link that leads nowhere)
    return os.uname().nodename
