"""Link profiles: what a chunk costs on a link, alpha + beta, in microseconds.

They come from the topology's latencies and rates, or from a file as TACCL reads it, whose costs are those of one chunk.
"""

from __future__ import annotations

from fractions import Fraction

import msgspec

from coppice.decoding import JSON_FAULTS, decodable, json_fault
from coppice.errors import InputError
from coppice.files import read_bytes

_Matrix = tuple[tuple[float, ...], ...]


class LinkProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of one chunk in microseconds."""

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
        """The beta of a link inside a box.

        Args:
            rates: Rates of all kinds of links, the fastest first.
        """
        if self.betas is not None:
            return self.betas[dst][src]
        return sorted(self.node_betas_list)[rates.index(rate)]


def read_profile(path: str, gpus: int, kinds: int, *, crosses: bool) -> LinkProfile:
    """The profile of a file.

    Args:
        kinds: Kinds of links inside a box, by their rates.
        crosses: Whether there are links between boxes.
    """
    data = read_bytes(path, what="a link profile")
    try:
        found = msgspec.json.decode(data, type=decodable(LinkProfile))
    except JSON_FAULTS as error:
        raise InputError(
            f"{path}: expected a link profile as TACCL reads it, found otherwise: {json_fault(error, data)}."
        ) from None
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
