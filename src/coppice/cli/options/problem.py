"""Options of a problem: collective, root, weights."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING

from coppice.cli.options.inputs import TopologyOptions
from coppice.collectives import Collective
from coppice.errors import InputError
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


def parse_trees(text: str | None) -> tuple[int | None, Fraction | None]:
    """Parse ``--trees``: a number of trees, or ``auto:`` with a tolerance in percent.

    >>> parse_trees("4"), parse_trees("auto:1%"), parse_trees(None)
    ((4, None), (None, Fraction(1, 100)), (None, None))

    Raises:
        InputError: If it is neither.
    """
    if text is None:
        return None, None
    automatic = re.fullmatch(r"auto:([0-9]{1,3}(\.[0-9]{1,9})?)%", text)
    if automatic:
        return None, Fraction(automatic[1]) / 100
    if re.fullmatch(r"[0-9]{1,9}", text) and int(text) > 0:
        return int(text), None
    raise InputError(
        f"expected --trees to be a number of 1 or more or a tolerance such as auto:1%, found {text!r}."
    )
