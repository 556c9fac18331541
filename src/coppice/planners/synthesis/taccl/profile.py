"""Link profiles: what a chunk costs on a link, alpha + beta, in microseconds.

They come from the topology's latencies and rates, or from a file as TACCL reads it, whose costs are those of one chunk.
"""

from __future__ import annotations

from fractions import Fraction

import msgspec

from coppice.decoding import JSON_FAULTS, decodable, json_fault
from coppice.errors import InputError
from coppice.files import read_bytes

__all__ = ["LinkProfile", "read_profile"]

_Matrix = tuple[tuple[float, ...], ...]


class LinkProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of one chunk in microseconds.

    Attributes:
        alpha: Latency inside a box.
        gpus_per_node: GPUs of a box.
        node_betas_list: Time on each kind of link inside a box, the fastest first.
        betas: The same for every pair, ``betas[to][from]``; None: by kind.
        remote_alpha: Latency between boxes.
        remote_beta: Time on a NIC.
        name: Free text.
        nics_per_node: NICs of a box.
        node_invbws_list: alpha + beta of each kind, which follow from the others.
        invbws: The same for every pair.
        links: Links of every pair.
        remote_invbw: remote_alpha + remote_beta.
    """

    alpha: float
    gpus_per_node: int
    node_betas_list: tuple[float, ...] = ()
    betas: _Matrix | None = None
    remote_alpha: float | None = None
    remote_beta: float | None = None
    name: str = ""
    nics_per_node: int = 0
    node_invbws_list: tuple[float, ...] = ()
    invbws: _Matrix | None = None
    links: _Matrix | None = None
    remote_invbw: float | None = None

    def inside(self, src: int, dst: int, rate: Fraction, rates: tuple[Fraction, ...]) -> float:
        """The beta of a link inside a box.

        Args:
            src: Sending GPU in its box.
            dst: Receiving GPU.
            rate: Rate of the link.
            rates: Rates of all kinds of links, the fastest first.
        """
        if self.betas is not None:
            return self.betas[dst][src]
        return sorted(self.node_betas_list)[rates.index(rate)]


def read_profile(path: str, gpus: int, kinds: int, *, crosses: bool) -> LinkProfile:
    """The profile of a file.

    Args:
        path: The file.
        gpus: GPUs of a box.
        kinds: Kinds of links inside a box, by their rates.
        crosses: Whether there are links between boxes.

    Raises:
        InputError: If the file cannot be read, or is no profile that fits.
    """
    data = read_bytes(path, what="a link profile")
    try:
        found = msgspec.json.decode(data, type=decodable(LinkProfile))
    except JSON_FAULTS as error:
        msg = (
            f"{path}: expected a link profile as TACCL reads it, found otherwise: {json_fault(error, data)}."
        )
        raise InputError(msg) from None
    if found.gpus_per_node != gpus:
        msg = f"{path}: expected $.gpus_per_node to be {gpus}, as the topology has, found {found.gpus_per_node}."
        raise InputError(msg)
    square = found.betas is None or (
        len(found.betas) == gpus and all(len(row) == gpus for row in found.betas)
    )
    if not square:
        msg = f"{path}: expected $.betas to be a matrix of {gpus} x {gpus}, found another."
        raise InputError(msg)
    if found.betas is None and len(found.node_betas_list) != kinds:
        msg = (
            f"{path}: expected $.node_betas_list to have {kinds} costs, one for each rate of the topology's links "
            f"inside a box, found {len(found.node_betas_list)}."
        )
        raise InputError(msg)
    if crosses and (found.remote_alpha is None or found.remote_beta is None):
        msg = f"{path}: expected $.remote_alpha and $.remote_beta for links between boxes, found none: add them."
        raise InputError(msg)
    return found
