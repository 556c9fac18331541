"""Networks of this machine for ranks of the MPI libraries; they need Linux and root."""

from __future__ import annotations

import os
import sys
from fractions import Fraction

from coppice.errors import InputError
from coppice.run.lab.blueprint import draw
from coppice.run.lab.namespaces import build, remove
from coppice.topology.model import Link, Node, Topology
from run.engines.mpi.launching import reason_to_skip

NAME = f"m{os.getpid() % 10**6}"
"""Of the network of this process."""


def mesh(ranks: int) -> Topology:
    """A link between all pairs of ranks."""
    pairs = [(one, other) for one in range(ranks) for other in range(one + 1, ranks)]
    return Topology.of(
        f"mesh of {ranks}",
        [Node(id=f"gpu{rank}") for rank in range(ranks)],
        [Link(src=f"gpu{one}", dst=f"gpu{other}", gb_per_s=Fraction(1, 8)) for one, other in pairs],
    )


def reason_to_skip_network(library: str) -> str | None:
    """Why no ranks of this library can run in a network here, or None."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "a network of this machine needs Linux and root"
    missing = reason_to_skip(library)
    if missing is not None:
        return missing
    try:
        build(NAME, draw(mesh(2), Fraction(1)))
    except (InputError, OSError) as error:
        return f"this kernel builds no lab: {error}"
    remove(NAME)
    return None
