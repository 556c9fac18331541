"""How many chunks to cut a block into, where none is given: as many as reach the best rate with whole chunks on links.

A schedule of c chunks for each block is a packing of c trees for each, and links carry whole chunks. The least time
with so many trees is known exactly (ForestColl's fixed k), so the number is the least that comes within 2% of the best
of up to eight: on a DGX-1 one chunk is 41.7% below the optimum, six reach it. Programs grow with the chunks, so there
are fewer on many ranks.
"""

from __future__ import annotations

from fractions import Fraction

from coppice.bounds.network import Network
from coppice.bounds.problem import Problem
from coppice.bounds.tree_units import fixed_trees
from coppice.collectives import Collective

_MOST_CHUNKS = 8

_LOSS = Fraction(2, 100)
"""Of the rate, for fewer chunks."""

_MOST_BLOCKS = 128
"""Chunks of all ranks together for which the programs end in good time."""


def best_chunks(problem: Problem) -> int:
    """Chunks of each block for a problem without a number of its own.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> [best_chunks(Problem(preset(name), Collective.ALL_GATHER)) for name in ("dgx-1v", "dgx-a100")]
        [6, 1]
    """
    if problem.topology.num_ranks == 1 or problem.collective is Collective.ALL_TO_ALL:
        return 1
    network = Network.of(problem)
    most = max(1, min(_MOST_CHUNKS, _MOST_BLOCKS // problem.topology.num_ranks))
    times = [fixed_trees(network, chunks).inv_rate for chunks in range(1, most + 1)]
    return next(chunks for chunks, time in enumerate(times, 1) if time <= min(times) * (1 + _LOSS))
