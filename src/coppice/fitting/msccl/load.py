"""What one thread block has to carry, and what it can: why plans are run in several instances."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.errors import InputError
from coppice.program.two_sided.program import Program
from coppice.simulation.protocols import generation_of, num_boxes, protocol
from coppice.topology.model import Topology

__all__ = ["block_gb_per_s", "busiest_gb_per_s"]


def busiest_gb_per_s(program: Program, algbw_gb_per_s: Fraction) -> Fraction:
    """What the thread block that sends most must send, in GB/s, for the program to run at a rate.

    Args:
        program: The program.
        algbw_gb_per_s: M / time that it is to reach.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.planning import plan
        >>> from coppice.program.two_sided.lower import lower_to_program
        >>> from coppice.topology.presets import preset
        >>> made = plan(Problem(topology=preset("ring", gpus=4), collective=Collective.ALL_GATHER), ring=False).plan
        >>> busiest_gb_per_s(lower_to_program(made.body, channels=1), made.algbw_gb_per_s)
        Fraction(1, 1)
    """
    moved = np.bincount(program.step_block[program.sends], weights=program.count[program.sends], minlength=1)
    return Fraction(int(moved.max()), program.num_chunks) * algbw_gb_per_s


def block_gb_per_s(topology: Topology, protocol_name: str) -> float | None:
    """Data that one thread block sends per second, in GB/s, as far as the tables of the library know the GPUs.

    Args:
        topology: Whose GPUs; their generation is told by its name.
        protocol_name: ``Simple``, ``LL`` or ``LL128``.
    """
    try:
        return protocol(protocol_name).channel_limit(generation_of(topology), num_boxes(topology))
    except InputError:
        return None
