"""Options of a problem: collective, root, weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coppice.cli.options.inputs import TopologyOptions
from coppice.collectives import Collective
from coppice.options.shared import CollectiveOption, RootOption, WeightsOption

if TYPE_CHECKING:
    from coppice.bounds.problem import Problem


class ProblemOptions(TopologyOptions, frozen=True, kw_only=True):
    """Options of a collective on a topology."""

    collective: CollectiveOption = Collective.ALL_REDUCE
    root: RootOption = None
    weights: WeightsOption = None

    def load_problem(self) -> Problem:
        """Problem of the options; a rooted collective without ``--root`` has root 0."""
        from coppice.bounds.problem import Problem
        from coppice.bounds.weights import read_demands, read_weights

        topology, collective, weights = self.load(), self.collective, self.weights
        everywhere = collective is Collective.ALL_TO_ALL
        return Problem(
            topology=topology,
            collective=collective,
            root=0 if collective.rooted and self.root is None else self.root,
            demands=None if weights is None or not everywhere else read_demands(weights),
            weights=None if weights is None or everywhere else read_weights(weights),
        )
