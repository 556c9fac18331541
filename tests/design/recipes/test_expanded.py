"""Schedules that follow from the base graph's do what the formulas say, and what a verifier accepts."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings

from coppice.collectives import Collective
from coppice.design.recipes.parser import parse
from coppice.design.recipes.recipe import Recipe
from coppice.design.schedules.breadth_first import moore_steps, schedule_facts
from coppice.design.schedules.collectives import breadth_first_schedule, schedule_of
from coppice.design.schedules.deliveries import loads_of
from coppice.design.schedules.expanded import expanded_deliveries
from coppice.errors import InputError
from coppice.schedule.verification.transfers import verify_schedule
from support.design_samples import RECIPES


def check(recipe: Recipe, *, sharp: bool) -> None:
    facts, made = recipe.facts(), expanded_deliveries(recipe)
    graph = made.graph
    loads = loads_of(made)
    assert len(loads) == made.steps <= facts.steps
    time = sum(loads, Fraction(0)) * graph.degree / graph.num_nodes
    assert time <= facts.bandwidth_time
    if sharp:
        assert (made.steps, time) == (facts.steps, facts.bandwidth_time)
    assert made.steps >= moore_steps(graph.num_nodes, graph.degree)
    assert time >= Fraction(graph.num_nodes - 1, graph.num_nodes)
    report = verify_schedule(
        schedule_of(graph.to_topology(), Collective.ALL_GATHER, [made]), claimed=sum(loads, Fraction(0))
    )
    assert report.ok, report.failures


@pytest.mark.parametrize(
    "text",
    [
        "line(complete(3))",
        "line^2(diamond)",
        "line(bipartite(3))",
        "line(line(biring(5))^2)",
        "degree(diamond, 2)",
        "degree(petersen, 3)",
        "degree(line(complete(3)), 2)",
        "gkautz(2, 7)^2",
        "kautz(2, 2)^2",
        "debruijn(2, 2)^2",
        "line(debruijn(2, 3))",
        "line(bidirectional(uniring(2)))",
        "line(bidirectional(kautz(2, 2)))",
        "degree(gkautz(2, 6)^2, 2)",
    ],
)
def test_schedules_keep_the_promise(text: str) -> None:
    # Parallel links, and line graphs of one-way rings, leave the promise an upper bound.
    check(parse(text), sharp="bidirectional" not in text)


@settings(max_examples=60, deadline=None)
@given(RECIPES)
def test_any_recipe_keeps_its_promise(recipe: Recipe) -> None:
    assume(recipe.size.ranks <= 150 and recipe.size.ranks * recipe.size.degree <= 800)
    try:
        recipe.build()
    except InputError as error:
        if "self-loops" not in str(error):  # what a degree expansion cannot take
            raise
        return
    check(recipe, sharp=False)


def test_eager_is_not_always_best() -> None:
    """Why expanded schedules exist: on this power they beat breadth-first broadcast."""
    recipe = parse("gkautz(2, 7)^2")
    assert recipe.facts().bandwidth_time < schedule_facts(recipe.build()).bandwidth_time


def test_too_many_transfers_are_refused() -> None:
    with pytest.raises(InputError, match="transfers"):
        expanded_deliveries(parse("line^3(circulant(16, 3, 4))"), max_runs=10_000)
    with pytest.raises(InputError, match="transfers"):
        expanded_deliveries(parse("kautz(2, 3)^2"), max_runs=21_000)


@pytest.mark.parametrize(
    "collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE]
)
def test_the_faster_of_two_schedules_is_taken(collective: Collective) -> None:
    recipe = parse("gkautz(2, 7)^2")
    graph = recipe.build()
    topology = graph.to_topology()
    plain = breadth_first_schedule(graph, topology, collective)
    made = breadth_first_schedule(graph, topology, collective, recipe=recipe)
    report = verify_schedule(made.schedule, claimed=made.inv_rate(Fraction(1)))
    assert report.ok, report.failures
    assert made.expanded == (collective is not Collective.REDUCE_SCATTER)
    gain = 2 - Fraction(96, 49) if made.expanded else 0
    assert plain.bandwidth_time - made.bandwidth_time == gain


def test_the_schedule_of_a_cable_serves_both_ways() -> None:
    recipe = parse("bidirectional(gkautz(2, 7))^2")
    graph = recipe.build()
    for collective in (Collective.REDUCE_SCATTER, Collective.ALL_REDUCE):
        made = breadth_first_schedule(graph, graph.to_topology(), collective, recipe=recipe)
        plain = breadth_first_schedule(graph, graph.to_topology(), collective)
        assert verify_schedule(made.schedule, claimed=made.inv_rate(Fraction(1))).ok
        assert made.bandwidth_time <= plain.bandwidth_time
        assert made.expanded == (made.bandwidth_time < plain.bandwidth_time)
