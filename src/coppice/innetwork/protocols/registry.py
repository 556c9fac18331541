"""Every protocol by name."""

from __future__ import annotations

from coppice.errors import InputError
from coppice.innetwork.protocols.atp import ATP
from coppice.innetwork.protocols.camdoop import CAMDOOP
from coppice.innetwork.protocols.fpisa import FPISA
from coppice.innetwork.protocols.netagg import NETAGG
from coppice.innetwork.protocols.netreduce import NETREDUCE
from coppice.innetwork.protocols.protocol import SwitchProtocol
from coppice.innetwork.protocols.sharp import SHARP
from coppice.innetwork.protocols.streaming import STREAMING
from coppice.innetwork.protocols.switchagg import SWITCHAGG
from coppice.innetwork.protocols.switchml import SWITCHML
from coppice.text import suggestion

# One line each, in alphabetical order.
PROTOCOLS: dict[str, SwitchProtocol] = {
    each.name: each
    for each in (
        ATP,
        CAMDOOP,
        FPISA,
        NETAGG,
        NETREDUCE,
        SHARP,
        STREAMING,
        SWITCHAGG,
        SWITCHML,
    )
}  # fmt: skip


def find_protocol(name: str) -> SwitchProtocol:
    """The protocol of that name.

    >>> find_protocol("switchml").most_workers
    32
    """
    found = PROTOCOLS.get(name)
    if found is None:
        raise InputError(
            f"expected a protocol of aggregation in the network, found {name!r}: {suggestion(name, PROTOCOLS)}"
        )
    return found
