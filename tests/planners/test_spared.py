"""Plans stay below spines that the optimum does not need, and use those that it needs."""

from __future__ import annotations

from typing import Any

import pytest

from coppice import Plan, bound, load, plan
from coppice.schedule.explanation import plan_loads


def busiest(made: Plan, name: str) -> float:
    """Load of the busiest link at a switch of this name."""
    topology, loads = made.topology, plan_loads(made)
    links = [e for e in range(topology.num_links) if name in topology.link_name(e)]
    return max(float(loads.utilisation(e, loads.inv_rate)) for e in links)


@pytest.mark.parametrize("collective", ["all_gather", "all_reduce", "broadcast"])
@pytest.mark.parametrize(
    "options",
    [{"boxes": 3, "spines": 2, "oversubscription": 2}, {"boxes": 4, "spines": 4, "oversubscription": 8}],
)
def test_a_healthy_rail_plan_leaves_spines_alone(collective: str, options: dict[str, Any]) -> None:
    made = plan(load("dgx-h100", **options), collective, ring=False)
    assert made.algbw_gb_per_s == bound(load("dgx-h100", boxes=options["boxes"]), collective).algbw_gb_per_s
    assert busiest(made.plan, "spine") == 0


def test_spines_that_are_needed_are_used() -> None:
    topology = load("dgx-h100", boxes=4, spines=2, oversubscription=2, hosts_per_leaf=2)
    made = plan(topology, "all_gather", ring=False)
    assert made.inv_rate == bound(topology, "all_gather").inv_rate
    assert busiest(made.plan, "spine") > 0
