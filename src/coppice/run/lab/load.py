"""Whether the cores of this machine can carry the traffic of a lab without spoiling what is measured in it.

All ranks and the kernel's TCP share the cores. Measured on two cores: up to 10 Gbit/s arriving at 8 ranks a collective
reaches at least 90% of what the links allow, at 16 ranks up to half of that; beyond, the cores are the bottleneck.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from fractions import Fraction

from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.run.lab.blueprint import BITS_PER_GB
from coppice.topology.model import Topology

__all__ = ["Load", "load_of"]

_BITS_PER_S_AND_CORE = 5 * 10**9
_RANKS_AT_THAT_RATE = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What arrives at all ranks together while an optimal all-gather runs, and what the cores can carry, in bit/s."""

    bits_per_s: Fraction
    limit_bits_per_s: Fraction

    @property
    def fits(self) -> bool:
        """The links are the bottleneck."""
        return self.bits_per_s <= self.limit_bits_per_s


def load_of(topology: Topology, scale: Fraction, *, cores: int | None = None) -> Load:
    """The load of ``topology`` at ``scale``, and the limit on this many cores (default: those of this process).

    Examples:
        >>> from coppice.topology.presets import preset
        >>> load = load_of(preset("ring", gpus=8, gb_per_s=25), Fraction(1, 1000), cores=2)
        >>> float(load.bits_per_s / 10**9), float(load.limit_bits_per_s / 10**9), load.fits
        (3.2, 10.0, True)
    """
    ranks = topology.num_ranks
    usable = len(os.sched_getaffinity(0)) if cores is None else cores
    crowd = max(_RANKS_AT_THAT_RATE, ranks)
    limit = Fraction(_BITS_PER_S_AND_CORE * usable * _RANKS_AT_THAT_RATE, crowd)
    if ranks == 1:
        return Load(bits_per_s=Fraction(0), limit_bits_per_s=limit)
    optimum = bound(Problem(topology=topology, collective=Collective.ALL_GATHER)).algbw_gb_per_s
    return Load(bits_per_s=(ranks - 1) * optimum * scale * BITS_PER_GB, limit_bits_per_s=limit)
