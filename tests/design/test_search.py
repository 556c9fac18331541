"""The finder: nothing published is better, nothing promised is missed, and interruptions cost nothing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from coppice.collectives import Collective
from coppice.design.families.family import optimum
from coppice.design.graph import Graph
from coppice.design.recipes.parser import parse
from coppice.design.recipes.recipe import Degree, LineGraph, Power, Product, Recipe
from coppice.design.schedules.breadth_first import loads_of, moore_steps, schedule_facts
from coppice.design.schedules.expanded import expanded_deliveries
from coppice.design.search.bases import circulant_facts, circulant_steps, known_bases
from coppice.design.search.finder import find, measured
from coppice.design.search.table import GraphEntry, GraphTable, cells_below, front_of
from coppice.design.search.workload import CollectiveWorkload, baselines, options
from coppice.errors import InputError
from support.design_samples import random_graphs

# Steps and bandwidth time of the published front of 1,024 nodes of degree 4.
PUBLISHED = (
    (5, Fraction(341, 256)),
    (6, Fraction(261, 256)),
    (8, Fraction(257, 256)),
    (11, Fraction(1)),
    (20, Fraction(1023, 1024)),
)


def test_the_published_front_is_reached_and_bettered() -> None:
    front = find([(1024, 4)], jobs=1)[1024, 4]
    for steps, time in PUBLISHED:
        assert any(entry.steps <= steps and entry.time <= time for entry in front)
    assert front[0].steps == moore_steps(1024, 4)
    assert front[-1].time == optimum(1024)
    assert (front[1].steps, front[1].time) <= (6, PUBLISHED[2][1])
    assert front[-1].steps < 11
    assert front == sorted(front, key=lambda entry: entry.steps)


@pytest.mark.parametrize("both_ways", [False, True])
def test_every_figure_is_that_of_a_schedule(both_ways: bool) -> None:
    goals = [(n, d) for n in range(2, 29) for d in range(1, 5)]
    fronts = find(goals, both_ways=both_ways, tries=20, measure=False, jobs=1)
    for (ranks, degree), front in fronts.items():
        assert front == front_of(front)
        assert both_ways or front or degree >= ranks
        for entry in front:
            graph = entry.recipe.build()
            assert (graph.num_nodes, graph.degree) == (ranks, degree)
            assert graph.bidirectional == entry.facts.bidirectional
            assert graph.bidirectional or not both_ways
            assert entry.steps >= moore_steps(ranks, degree)
            assert entry.time >= optimum(ranks)
            found = schedule_facts(graph)
            if entry.facts.exact:
                assert (found.steps, found.bandwidth_time) == (entry.steps, entry.time)
                continue
            loads = loads_of(expanded_deliveries(entry.recipe))
            assert len(loads) <= entry.steps
            assert sum(loads) * degree / ranks <= entry.time


def _expansions(recipe: Recipe) -> Iterator[Recipe]:
    yield recipe
    yield from (LineGraph(recipe), Degree(recipe, 2), Degree(recipe, 3), Power(recipe, 2), Power(recipe, 3))


def test_nothing_that_follows_from_the_bases_is_better() -> None:
    bases = known_bases(cells_below([(n, d) for n in range(2, 65) for d in range(1, 5)]))
    table = GraphTable(bases)
    simple = [
        entry.recipe for (ranks, _), found in bases.items() if ranks <= 12 for entry in found if entry.simple
    ]
    once = [made for recipe in simple for made in _expansions(recipe)]
    tried = [made for recipe in once if recipe.size.ranks <= 32 for made in _expansions(recipe)]
    optimal = [recipe for recipe in simple if recipe.facts().bandwidth_optimal]
    tried += [Product(pair) for pair in combinations(optimal, 2)]
    compared = 0
    for recipe in tried:
        size = recipe.size
        if size.ranks <= 64 and size.degree <= 4:
            facts = recipe.facts()
            front = table.front(size.ranks, size.degree)
            assert any(e.steps <= facts.steps and e.time <= facts.bandwidth_time for e in front), str(recipe)
            compared += 1
    assert compared > 100


def test_bases_of_families_are_where_they_belong() -> None:
    cells = cells_below([(n, d) for n in range(2, 200) for d in range(1, 8)])
    for (ranks, degree), found in known_bases(cells).items():
        for entry in found:
            assert (entry.recipe.size.ranks, entry.recipe.size.degree) == (ranks, degree)
            assert (entry.facts.ranks, entry.facts.degree) == (ranks, degree)
    assert [str(e.recipe) for e in known_bases([(35, 4)])[35, 4]] == ["odd(4)"]
    assert {str(e.recipe) for e in known_bases([(16, 4)])[16, 4]} == {"hypercube(4)"}


@pytest.mark.parametrize(
    ("ranks", "degree", "both_ways"), [(17, 2, False), (20, 3, False), (18, 5, True), (24, 4, True)]
)
def test_few_circulants_are_searched_through(ranks: int, degree: int, both_ways: bool) -> None:
    found = circulant_facts(ranks, degree, both_ways=both_ways, tries=10_000)
    last = ranks // 2 if both_ways else ranks - 1
    fewest = ranks
    for jumps in combinations(range(1, last + 1), degree // 2 + degree % 2 if both_ways else degree):
        directed = {sign * jump % ranks for jump in jumps for sign in ((1, -1) if both_ways else (1,))}
        if 1 in jumps and len(directed) == degree:
            fewest = min(fewest, circulant_steps(ranks, tuple(directed), ranks))
    assert found[0][1].steps == fewest or (str(found[0][0]) == "circulant(24, 3, 4)" and fewest == 4)
    for recipe, facts in found:
        assert recipe.build().bidirectional or not both_ways
        assert facts == recipe.measured()
    assert found[-1][1].bandwidth_optimal


def test_as_many_jumps_in_a_row_as_ports_are_optimal() -> None:
    for ranks in range(3, 30):
        for degree in range(1, ranks):
            recipe = parse(f"dicirculant({ranks}, {', '.join(map(str, range(1, degree + 1)))})")
            assert recipe.facts().steps == -(-(ranks - 1) // degree)
            assert recipe.facts().bandwidth_optimal


@settings(max_examples=100, deadline=None)
@given(random_graphs(14))
def test_sets_and_flows_agree(graph: Graph) -> None:
    """All nodes at once take one way through the core, a node alone the other."""
    everyone = schedule_facts(graph)
    alone = [schedule_facts(graph, np.array([v], dtype=np.int32)).step_loads for v in range(graph.num_nodes)]
    worst = [max(loads[step] for loads in alone if step < len(loads)) for step in range(everyone.steps)]
    assert list(everyone.step_loads) == worst


@pytest.mark.parametrize(("ports", "ranks"), [(2, 9), (3, 20), (4, 33), (5, 30)])
def test_half_of_a_generalized_kautz_graph_decides(ports: int, ranks: int) -> None:
    graph = parse(f"gkautz({ports}, {ranks})").build()
    assert schedule_facts(graph, np.arange((ranks + 1) // 2, dtype=np.int32)) == schedule_facts(graph)


def test_any_executor_and_any_interruption_give_the_same(tmp_path: Path) -> None:
    goals = [(n, 3) for n in range(8, 13)]
    plain = find(goals, tries=10, jobs=1)
    with ThreadPoolExecutor(3) as pool:
        assert find(goals, tries=10, executor=pool) == plain
    file = tmp_path / "bases.jsonl"

    class StopError(Exception):
        pass

    def stop(done: int, total: int, name: str) -> None:
        assert name
        if 3 <= done < total:
            raise StopError

    with pytest.raises(StopError):
        find(goals, tries=10, jobs=1, results=file, on_progress=stop)
    lines = file.read_bytes().splitlines(keepends=True)
    assert len(lines) >= 4
    file.write_bytes(b"".join(lines) + b'{"key":"kau')
    calls: list[int] = []
    again = find(goals, tries=10, jobs=1, results=file, on_progress=lambda _, total, __: calls.append(total))
    assert again == plain
    whole = file.read_bytes()
    assert whole.startswith(b"".join(lines))
    find(goals, tries=10, jobs=1, results=file)
    assert file.read_bytes() == whole


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "first line does not say so"),
        (
            '{"format":"coppice-comparison","version":1,"coppice":"0"}\n',
            "holds 'coppice-comparison' version 1",
        ),
        ("no whole line", "no line that says"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bases.jsonl"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        find([(8, 2)], jobs=1, results=file)
    assert file.read_text() == text


def test_lines_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "bases.jsonl"
    find([(8, 2)], jobs=1, results=file)
    whole = file.read_text()
    file.write_text(whole.replace("gkautz(2, 8)", "gkautz(2, 9)"))
    with pytest.raises(InputError, match=r"8 ranks and degree 2, found gkautz\(2, 9\)"):
        find([(8, 2)], jobs=1, results=file)
    file.write_text(whole + "{}\n")
    with pytest.raises(InputError, match="expected base graphs, found something else"):
        find([(8, 2)], jobs=1, results=file)
    with pytest.raises(InputError, match="choose another place"):
        find([(8, 2)], jobs=1, results=tmp_path)


@pytest.mark.parametrize(
    ("goals", "message"),
    [
        ([], "found none"),
        ([(1, 2)], "2 .. 65,536 ranks"),
        ([(8, 0)], "of degree 0"),
        ([(65536, 65)], "at most"),
    ],
)
def test_goals_out_of_range_are_refused(goals: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        find(goals)


def test_more_ports_than_other_ranks_have_no_graph() -> None:
    assert find([(4, 5), (5, 5)], jobs=1) == {(4, 5): [], (5, 5): []}


def test_scheduling_a_graph_improves_the_formula() -> None:
    recipe = parse("line^3(dicirculant(16, 1, 2, 3, 6))")
    formula, exact = measured(GraphEntry(recipe, recipe.facts()))
    assert (formula.time, exact.time) == (Fraction(261, 256), Fraction(257, 256))
    assert front_of([formula, exact]) == [exact]


def test_the_choice_follows_the_size() -> None:
    front = find([(64, 4)], jobs=1)[64, 4]
    names = []
    for size in (2**10, 2**30):
        workload = CollectiveWorkload(size_bytes=size, alpha_us=10, node_gb_per_s=Fraction(25, 2))
        found = options(front, workload)
        names.append(found[0].name)
        assert [option.time_us for option in found] == sorted(option.time_us for option in found)
        others = baselines(64, 4, workload)
        assert min(option.time_us for option in others) >= found[0].time_us
        for option in [*found, *others]:
            assert option.time >= 2 * optimum(64)
            assert option.time_us == pytest.approx(10 * option.steps + float(option.time) * size / 12.5e3)
    assert names[0] == "gkautz(4, 64)"
    assert names[1] != names[0]


def test_a_reduce_scatter_runs_on_the_transposed_graph() -> None:
    entry = GraphEntry(parse("gkautz(3, 11)"), parse("gkautz(3, 11)").facts())
    graph = entry.recipe.build()
    forward, backward = schedule_facts(graph), schedule_facts(graph.transposed())
    times = {}
    for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE):
        workload = CollectiveWorkload(
            collective=collective, size_bytes=1, alpha_us=1, node_gb_per_s=Fraction(1)
        )
        times[collective] = options([entry], workload)[0].time
    assert list(times.values()) == [
        forward.bandwidth_time,
        backward.bandwidth_time,
        forward.bandwidth_time + backward.bandwidth_time,
    ]


@pytest.mark.parametrize(
    "text",
    ["uniring(5)", "dicirculant(9, 1, 3)", "kautz(2, 2)", "debruijn(2, 3)", "line(diamond)", "degree(diamond, 2)",
     "diamond * uniring(3)", "diamond^2", "bidirectional(gkautz(2, 7))", "torus(3, 4)"],
)  # fmt: skip
def test_graphs_that_are_their_transposes(text: str) -> None:
    import networkx as nx

    recipe = parse(text)
    assert recipe.is_transpose
    graph = recipe.build()
    made = nx.MultiDiGraph(list(zip(*(ends.tolist() for ends in graph.single_links()), strict=True)))
    assert nx.is_isomorphic(made, made.reverse())


def test_trees_are_pipelined_in_the_best_number_of_segments() -> None:
    for size in (2**10, 2**20, 2**28):
        workload = CollectiveWorkload(size_bytes=size, alpha_us=5, node_gb_per_s=Fraction(10))
        tree = baselines(48, 4, workload)[-1]
        unit = size / 10e3
        by_hand = min((9 + k) * (5 + 2 * unit / k) for k in range(1, 4000))
        assert tree.name == "double binary tree"
        assert tree.time_us == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"collective": Collective.BROADCAST}, "all_reduce"),
        ({"size_bytes": -1}, "found -1"),
        ({"alpha_us": -1.0}, "and 12"),
    ],
)
def test_workloads_without_meaning_are_refused(fields: dict[str, object], message: str) -> None:
    given = {"size_bytes": 1, "alpha_us": 1.0, "node_gb_per_s": Fraction(12), **fields}
    with pytest.raises(InputError, match=message):
        CollectiveWorkload(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("ranks", "degree", "steps"), [(8, 2, 4), (16, 2, 5), (9, 3, 3), (16, 4, 3)])
def test_rewired_de_bruijn_graphs_are_not_missed(ranks: int, degree: int, steps: int) -> None:
    """Sizes and steps for which bandwidth-optimal rewired de Bruijn graphs are published."""
    front = find([(ranks, degree)], jobs=1)[ranks, degree]
    assert any(entry.steps <= steps and entry.facts.bandwidth_optimal for entry in front)
