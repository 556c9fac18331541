"""Cabling lists: every link once, every port at most once, panels as asked, limits with their inequality."""

from __future__ import annotations

import csv
import io
from collections import Counter

import pytest
from hypothesis import assume, given, settings

from coppice.design.cabling import Cabling, CablingLimits, cabling_of, check_limits
from coppice.design.graph import Graph
from coppice.design.recipes.parser import parse
from coppice.design.recipes.recipe import Recipe
from coppice.errors import InputError
from support.design_samples import RECIPES, random_graphs


def check(made: Cabling) -> None:
    graph = made.graph
    src, dst = graph.single_links()
    wanted = Counter((int(u), int(v)) for u, v in zip(src, dst, strict=True) if u != v)
    found: Counter[tuple[int, int]] = Counter()
    sent: set[tuple[int, int]] = set()
    received: set[tuple[int, int]] = set()
    rows = list(csv.DictReader(io.StringIO(made.csv_text())))
    assert [row[made.kind] for row in rows] == [str(number) for number in range(1, len(rows) + 1)]
    for row in rows:
        u, v = (int(row[end].removeprefix("gpu")) for end in ("from_node", "to_node"))
        p, q = int(row["from_port"]), int(row["to_port"])
        assert 0 <= p < graph.degree
        assert 0 <= q < graph.degree
        assert (u, p) not in sent
        assert (v, q) not in received
        sent.add((u, p))
        received.add((v, q))
        found[u, v] += 1
        if made.kind == "cable":
            assert (u, p) not in received
            assert (v, q) not in sent
            found[v, u] += 1
        if made.limits.panel_ports:
            for node, port, end in ((u, p, "from"), (v, q, "to")):
                place = (
                    (int(row[f"{end}_panel"]) - 1) * made.limits.panel_ports + int(row[f"{end}_position"]) - 1
                )
                assert place == node * graph.degree + port
                assert 1 <= int(row[f"{end}_position"]) <= made.limits.panel_ports
                assert 1 <= int(row[f"{end}_panel"]) <= made.panels
    assert found == wanted
    across = sum(row["from_panel"] != row["to_panel"] for row in rows) if made.limits.panel_ports else 0
    assert across == made.across_panels


@settings(max_examples=100, deadline=None)
@given(RECIPES)
def test_every_link_has_its_cable(recipe: Recipe) -> None:
    assume(recipe.size.ranks * recipe.size.degree <= 1000)
    try:
        graph = recipe.build()
    except InputError:
        assume(False)
    check(cabling_of(graph, CablingLimits(panel_ports=24)))


@settings(max_examples=100, deadline=None)
@given(random_graphs())
def test_odd_graphs_as_well(graph: Graph) -> None:
    check(cabling_of(graph))


def test_parallel_links_come_back_over_their_own_cables() -> None:
    made = cabling_of(parse("bidirectional(uniring(2))").build())
    assert made.ends.tolist() == [[0, 0, 1, 0], [0, 1, 1, 1]]


def test_limits_that_hold() -> None:
    limits = CablingLimits(ports_per_node=4, panel_ports=512, max_panels=8)
    made = cabling_of(parse("gkautz(4, 1024)").build(), limits)
    assert (made.panels, made.kind) == (8, "fibre")


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (CablingLimits(ports_per_node=3), r"degree <= ports per node, found 4 > 3"),
        (CablingLimits(panel_ports=512, max_panels=7), r"ceil\(1024 x 4 / 512\) = 8 > 7"),
        (CablingLimits(panel_ports=4095, max_panels=1), r"= 2 > 1"),
    ],
)
def test_limits_that_do_not(limits: CablingLimits, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_limits(1024, 4, limits)


@pytest.mark.parametrize("fields", [{"panel_ports": 0}, {"max_panels": 3}, {"ports_per_node": -1}])
def test_limits_without_meaning(fields: dict[str, int]) -> None:
    with pytest.raises(InputError, match="expected"):
        CablingLimits(**fields)
