"""Names of nodes: what somebody may have meant by one that a topology does not have."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import NamedTuple

from coppice.topology.model import NodeKind, Topology

PRESET_NIC = "nic"
"""NICs of presets are called so, with their number in the box: ``box1/nic0``."""

_KIND_OF_WORD = {
    **dict.fromkeys(
        (PRESET_NIC, "mlx", "mlx5_", "hca", "ib", "eth", "ens", "hfi", "rdma", "bnxt_re"), NodeKind.NIC
    ),
    **dict.fromkeys(("gpu", "rank", "die", "cuda"), NodeKind.GPU),
    **dict.fromkeys(("nvswitch", "switch", "rail", "leaf", "spine", "core", "pcie", "cpu"), NodeKind.SWITCH),
}
_LEAST_LIKENESS = 0.6
_MOST_NODES = 4096


class _NodeName(NamedTuple):
    """A name in parts: ``box1/nic0`` is nic number 0 of box1."""

    host: str
    word: str
    number: int | None

    @classmethod
    def of(cls, name: str) -> _NodeName:
        host, _, last = name[:200].rpartition("/")
        digits = re.search(r"[0-9]{0,9}$", last, re.ASCII)
        number = "" if digits is None else digits[0]
        return cls(host, last.removesuffix(number).lower(), int(number) if number else None)


def node_hint(topology: Topology, name: str) -> str:
    """The end of a message about a node that is not there: the node of the same kind and box that is most like it.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> node_hint(preset("dgx-a100", boxes=2), "box1/nic9")
        "did you mean 'box1/nic7'?"
        >>> node_hint(preset("dgx-h100", boxes=2), "box1/nic0")
        'its NICs are no nodes (presets may have `nics=node`): change links of its GPUs.'
    """
    wanted = _NodeName.of(name)
    names = topology.node_ids[:_MOST_NODES]
    kinds = [NodeKind(kind) for kind in topology.kind[:_MOST_NODES].tolist()]
    parts = [_NodeName.of(each) for each in names]
    by_word = dict(zip((part.word for part in parts), kinds, strict=True))
    kind = by_word.get(wanted.word, _KIND_OF_WORD.get(wanted.word))
    if kind is NodeKind.NIC and kind not in kinds:
        return "its NICs are no nodes (presets may have `nics=node`): change links of its GPUs."
    same = [v for v in range(len(names)) if kind is None or kinds[v] is kind]
    if not same:
        return "`coppice topology show` lists the nodes."
    best = min(same, key=lambda v: _distance(wanted, parts[v]))
    if kind is None and _likeness(wanted.word, parts[best].word) < _LEAST_LIKENESS:
        return "`coppice topology show` lists the nodes."
    return f"did you mean {names[best]!r}?"


def _distance(wanted: _NodeName, found: _NodeName) -> tuple[float, float, int]:
    """Words that differ count first, then boxes, then numbers."""
    numbers = (wanted.number, found.number)
    apart = 0 if numbers[0] == numbers[1] else 1 + abs((wanted.number or 0) - (found.number or 0))
    return 1 - _likeness(wanted.word, found.word), 1 - _likeness(wanted.host, found.host), apart


def _likeness(a: str, b: str) -> float:
    return 1.0 if a == b else SequenceMatcher(None, a, b).ratio()
