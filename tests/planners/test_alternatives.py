"""Plans that one request could get, and the choice among them by size."""

from __future__ import annotations

import pytest

from coppice.bounds import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.alternatives import Alternative, alternatives, preferred
from coppice.planners.choice import Choice, Made
from coppice.schedule.loads import body_loads
from coppice.schedule.plan import Plan
from coppice.schedule.verification.verify import verify
from coppice.simulation import simulate
from coppice.topology import preset, remove_nodes


def choice_of(problem: Problem, **options: object) -> Choice:
    given = {
        "algorithm": None,
        "parameters": {},
        "order": "auto",
        "relay_gpus": False,
        "trees": None,
        "tolerance": None,
        "in_network": False,
    }
    return Choice.of(problem, **{**given, **options})


def listed(problem: Problem, **options: object) -> list[Alternative]:
    return list(alternatives(problem, choice_of(problem, **options), bound(problem)))


def time_us(body: object, size_bytes: int) -> float:
    return simulate(body, size_bytes, pieces=2).time_us


@pytest.fixture(name="dead_nic", scope="module")
def fixture_dead_nic() -> Problem:
    topology = remove_nodes(preset("dgx-a100", boxes=2), ["box0/mlx5_0"])
    return Problem(topology=topology, collective=Collective.ALL_REDUCE)


@pytest.fixture(name="found", scope="module")
def fixture_found(dead_nic) -> list[Alternative]:
    return listed(dead_nic)


def test_a_dead_nic_leaves_several_plans_and_each_is_sound(dead_nic, found):
    names = [one.name for one in found]
    assert names[:2] == ["combined", "two phases"]
    assert "1 tree per root" in names
    for one in found:
        inv_rate = body_loads(one.made.body, dead_nic).inv_rate
        assert verify(Plan(problem=dead_nic, inv_rate=inv_rate, forest=one.made.body)).ok
        assert inv_rate >= bound(dead_nic).inv_rate


def test_no_plan_of_the_list_is_faster_at_the_size_asked_for(found):
    for size in (1 << 20, 1 << 26):
        chosen = preferred(found, [size], time_us)
        assert chosen.worst_loss == 0
        assert all(time_us(one.made.body, size) >= chosen.time_us[size] for one in found)
    # the plan of the best rate loses at 1 MiB, which is why there is a choice
    assert (
        preferred(found[:1], [1 << 20], time_us).time_us[1 << 20]
        > 1.1 * (preferred(found, [1 << 20], time_us).time_us[1 << 20])
    )


@pytest.mark.parametrize(("options", "name"), [({"trees": 2}, "forest"), ({"algorithm": "ring"}, "ring")])
def test_a_request_that_says_what_it_wants_gets_that(dead_nic, options, name):
    assert [one.name for one in listed(dead_nic, **options)] == [name]


def test_the_worst_loss_decides_for_several_sizes(found):
    table = {("a", 1): 1.0, ("a", 2): 30.0, ("b", 1): 1.5, ("b", 2): 20.0, ("c", 1): 9.0, ("c", 2): 19.0}
    plans = {
        name: Alternative(name=name, made=Made(body=found[0].made.body, parameters={})) for name in "abc"
    }
    order = iter([name for name in "abc" for _ in (1, 2)])
    chosen = preferred(plans.values(), [1, 2], lambda _, size: table[next(order), size])
    assert chosen.taken.name == "b"
    assert chosen.fastest == {1: ("a", 1.0), 2: ("c", 19.0)}
    assert chosen.worst_loss == 0.5


def test_of_equal_plans_the_first_is_taken(found):
    assert preferred(found, [1, 2], lambda _body, _size: 3.0).taken.name == "combined"
    with pytest.raises(InputError, match="0 sizes"):
        preferred(found, [], time_us)
    with pytest.raises(InputError, match="0 plans"):
        preferred([], [1], time_us)
