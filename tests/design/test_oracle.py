"""Every entry of the oracle for direct-connect graphs: steps, step loads and bandwidth time, exactly."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from coppice.design.recipes.parser import parse
from coppice.design.schedules.breadth_first import moore_steps, schedule_facts
from support.shared_data import SHARED, needs_shared

# The oracle's names as recipes.
RECIPES = {
    "K_4,4": "bipartite(4)",
    "K_8,8": "bipartite(8)",
    "C(13,{2, 3})": "circulant(13, 2, 3)",
    "C(16,{2, 3})": "circulant(16, 2, 3)",
    "C(16,{3, 4})": "circulant(16, 3, 4)",
    "C(25,{3, 4})": "circulant(25, 3, 4)",
    "C(256,{11, 12})": "circulant(256, 11, 12)",
    "C(32,{4, 5})": "circulant(32, 4, 5)",
    "K_8": "complete(8)",
    "deBruijn(2,3)": "debruijn(2, 3)",
    "C(16,{3,4}) * 3": "degree(circulant(16, 3, 4), 3)",
    "DiC8{1,3}": "diamond",
    "DiCirculant(6,1..4)": "dicirculant(6, 1, 2, 3, 4)",
    "odd graph O4": "odd(4)",
    "petersen": "petersen",
    "L(BiRing8)": "line(biring(8))",
    "L(K_4,4)": "line(bipartite(4))",
    "L^2((DiC8{1,3})^[]2)": "line^2(diamond^2)",
    "L^3(C(16,{3,4}))": "line^3(circulant(16, 3, 4))",
    "(UniRing4 [] UniRing8)^[]2": "(uniring(4) * uniring(8))^2",
    "BiRing4 [] BiRing6": "biring(4) * biring(6)",
    "K_3 [] BiRing5": "complete(3) * biring(5)",
    "UniRing4 [] UniRing8": "uniring(4) * uniring(8)",
    "BiRing(2,5)": "biring(5)",
    "BiRing(2,9)": "biring(9)",
}


def entries() -> list[dict[str, Any]]:
    path = SHARED / "oracles" / "direct_connect_oracle.json"
    return json.loads(path.read_text())["entries"] if path.is_file() else []


def recipe_text(name: str) -> str:
    if name in RECIPES:
        return RECIPES[name]
    if name.startswith("Pi("):
        return "gkautz" + name.removeprefix("Pi")
    if name.startswith("torus"):
        return f"torus({name.removeprefix('torus').replace('x', ', ')})"
    return name  # hypercube(3)


@needs_shared
def test_there_are_fifty() -> None:
    assert len(entries()) == 50


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry["name"])
def test_entry(entry: dict[str, Any]) -> None:
    recipe = parse(recipe_text(entry["name"]))
    graph = recipe.build()
    assert (graph.num_nodes, graph.degree) == (entry["N"], entry["d"])
    assert (recipe.size.ranks, recipe.size.degree) == (entry["N"], entry["d"])
    found = schedule_facts(graph)
    assert found.steps == entry["T_L"]
    assert list(found.step_loads) == [Fraction(load) for load in entry["U"]]
    assert found.bandwidth_time == Fraction(entry["T_B"])
    assert moore_steps(entry["N"], entry["d"]) == entry["T_L_moore"]
    facts = recipe.facts()
    assert facts.steps >= found.steps
    assert facts.bandwidth_time >= found.bandwidth_time
    if facts.exact:
        assert (facts.steps, facts.bandwidth_time) == (found.steps, found.bandwidth_time)
    assert facts.bidirectional == graph.bidirectional
