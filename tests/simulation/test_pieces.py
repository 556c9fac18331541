"""Numbers of pieces: what is known of the least time spares simulations, and changes nothing that is found."""

from __future__ import annotations

import pytest

from coppice.planners.planning import plan
from coppice.simulation.least_time import LeastTimes
from coppice.simulation.models import model_of
from coppice.simulation.simulator import fastest
from reference.strategies import CONNECTED_FAMILIES, seeded_problem


@pytest.mark.parametrize("seed", [178, 234, 264, 384, *range(20)])
def test_the_least_time_changes_no_number_of_pieces(seed: int) -> None:
    """Near the least time fewer pieces may do as well as those that were guessed first."""
    problem, model = seeded_problem(seed, CONNECTED_FAMILIES, 12), model_of(None)
    body = plan(problem, ring=False).plan.body
    times = LeastTimes(problem, model)
    for size in (2**18, 2**22, 2**26):
        alone = fastest(body, size, model=model, keep_hops=False)
        known = fastest(body, size, model=model, keep_hops=False, least_us=times.at(size).by_protocol)
        assert (known.pieces, known.protocol) == (alone.pieces, alone.protocol)
        assert known.time_us == alone.time_us
