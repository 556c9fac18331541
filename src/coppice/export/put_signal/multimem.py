"""An all-reduce whose trees are stars at a switch that adds and copies, as operations on memory that stands for all.

A star of sums, all ranks to a switch and their sum to the root, is one load by the root that the switch adds up; a star
of copies is one store that the switch copies (multimem of PTX, NVLS). The load takes the root's own part by way of the
switch too, so that all ranks are root of an equal part, whatever the plan's roots are: (1 + 1/n) M of each link, the
least. Nobody may load before all have begun, and nobody may end before all have loaded and stored: a signal of each to
each, before and after.
"""

from __future__ import annotations

from collections.abc import Iterator

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.schedule.forest import Forest, Phase, expanded


def multimem_rows(ranks: int, rank: int) -> Iterator[str]:
    """The operations of a rank, as calls of the kernel's own: as many chunks as ranks.

    Examples:
        >>> list(multimem_rows(2, 1))
        ['signal(0)', 'wait(0, 1)', 'sum_to_all(1)', 'signal(0)', 'wait(0, 1)']
    """
    peers = [peer for peer in range(ranks) if peer != rank]
    meet = [*(f"signal({peer})" for peer in peers), *(f"wait({peer}, 1)" for peer in peers)]
    yield from (*meet, f"sum_to_all({rank})", *meet)


def check_stars(forest: Forest) -> None:
    """Refuse forests that such a kernel cannot carry out.

    Args:
        forest: A verified forest that branches at switches.
    """
    if forest.collective is not Collective.ALL_REDUCE:
        raise InputError(
            f"expected an all_reduce where switches add, found {forest.collective}: plan without `in_network`."
        )
    whole = expanded(forest)
    topology = whole.topology
    nodes = set(topology.rank_nodes.tolist())
    for tree in range(whole.num_trees):
        root, edges = (
            int(whole.tree_root[tree]),
            [(source, target) for source, target, _ in whole.edges(tree)],
        )
        switches = {end for edge in edges for end in edge if topology.rank[end] < 0}
        if whole.tree_phase[tree] == Phase.REDUCE:
            edges = [(target, source) for source, target in edges]
        centre = switches.pop() if len(switches) == 1 else -1
        if sorted(edges) != sorted([(root, centre), *((centre, node) for node in nodes - {root})]):
            raise InputError(
                "expected trees in which all ranks meet at one switch, found another: a kernel has no way to add or "
                "copy in several switches or between boxes; plan one box, or without `in_network`."
            )
