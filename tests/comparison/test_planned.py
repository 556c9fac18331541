"""Plans for sizes: nothing that the same command could have made is faster there."""

from __future__ import annotations

import pytest

from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison.planned import plan_for
from coppice.errors import InputError
from coppice.planners.alternatives import alternatives
from coppice.planners.choice import Choice
from coppice.simulation import DEFAULT_MODEL, IDEAL, fastest
from coppice.topology import preset
from coppice.topology.operations import remove_nodes


def dead_nic() -> Problem:
    """Two DGX A100 of which one has lost a NIC."""
    topology = remove_nodes(preset("dgx-a100", boxes=2), ["box1/nic0"])
    return Problem(topology=topology, collective=Collective.ALL_REDUCE)


@pytest.mark.parametrize("model", [DEFAULT_MODEL, IDEAL], ids=lambda model: model.name)
@pytest.mark.parametrize("size", [2**10, 2**20, pytest.param(2**28, marks=pytest.mark.slow)])
def test_no_alternative_is_faster_at_the_size_that_was_asked_for(model, size) -> None:
    problem = dead_nic()
    result, chosen = plan_for(problem, size, model=model, ring=False)
    assert result.report.ok
    own = fastest(result.plan.body, size, model=model).time_us
    assert chosen.time_us == {size: own}
    plain = Choice.of(
        problem,
        algorithm=None,
        parameters={},
        order="auto",
        relay_gpus=False,
        trees=None,
        tolerance=None,
        in_network=False,
    )
    for other in alternatives(problem, plain, bound(problem)):
        assert own <= fastest(other.made.body, size, model=model).time_us, other.name


@pytest.mark.slow
def test_several_sizes_share_the_loss() -> None:
    _, chosen = plan_for(dead_nic(), "1K:1G:1024", ring=False)
    assert list(chosen.time_us) == [2**10, 2**20, 2**30]
    assert 0 <= chosen.worst_loss < 0.5


def test_a_size_is_needed() -> None:
    with pytest.raises(InputError, match="sizes to plan for"):
        plan_for(dead_nic(), [])
