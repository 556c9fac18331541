"""Recipes: text and back, figures by formula against the graph, errors with their place, and limits."""

from __future__ import annotations

from fractions import Fraction

import networkx as nx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coppice.collectives import Collective
from coppice.design.families import FAMILIES
from coppice.design.families.de_bruijn import REWIRED
from coppice.design.graph import Graph
from coppice.design.recipes.parser import parse
from coppice.design.recipes.recipe import Recipe, base, degree, line, power, product
from coppice.design.schedules.breadth_first import loads_of, moore_steps, schedule_facts
from coppice.design.schedules.collectives import breadth_first_schedule, schedule_of
from coppice.design.schedules.expanded import expanded_deliveries
from coppice.errors import CoppiceError, InputError
from coppice.schedule.verification.transfers import verify_schedule
from support.design_samples import RECIPES


@settings(max_examples=200, deadline=None)
@given(RECIPES)
def test_text_reads_back(recipe: Recipe) -> None:
    again = parse(str(recipe))
    assert again == recipe
    assert str(again) == str(recipe)


@settings(max_examples=150, deadline=None)
@given(RECIPES)
def test_formulas_are_kept(recipe: Recipe) -> None:
    size = recipe.size
    assume(size.ranks * size.degree <= 3000)
    try:
        graph, facts = recipe.build(), recipe.facts()
    except InputError as error:
        if "self-loops" not in str(error):  # what a degree expansion cannot take
            raise
        return
    assert (graph.num_nodes, graph.degree, graph.bidirectional) == (
        facts.ranks,
        facts.degree,
        facts.bidirectional,
    )
    assert (size.ranks, size.degree) == (facts.ranks, facts.degree)
    assert graph.simple or not size.simple
    found = schedule_facts(graph)
    assert found.steps <= facts.steps
    if facts.exact:
        assert (found.steps, found.bandwidth_time) == (facts.steps, facts.bandwidth_time)
    measured = recipe.measured()
    assert (measured.steps, measured.bandwidth_time) == (found.steps, found.bandwidth_time)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="line^()*, 0123456789dgxre", max_size=30) | st.text(max_size=12))
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    try:
        parse(text)
    except CoppiceError as error:
        if "column" not in str(error):
            raise


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a family, an expansion or '\\(', found the end at column 1"),
        ("torus(4, 4", "expected '\\)', found the end at column 11"),
        ("torus(4,, 4)", "expected a number, found ',' at column 9"),
        ("torus(4) torus(3)", "expected '\\*', '\\^' or the end, found 'torus' at column 10"),
        ("biring(5) + biring(3)", "found '\\+' at column 11"),
        ("hypercub(3)", "found 'hypercub' at column 1 of the recipe: did you mean hypercube"),
        ("line(diamond, 2)", "expected '\\)', found ',' at column 13"),
        ("degree(diamond)", "expected ',', found '\\)' at column 15"),
        ("line^0(diamond)", "column 1 .* expected n between 1 and 64 in line\\^n\\(R\\), found 0"),
        ("biring(5) * hamming(2)", "column 13 .* expected hamming\\(n, q\\), found 1 arguments"),
        ("biring(2)", "column 1 .* expected m >= 3"),
        ("circulant(16, 4, 8)", "common divisor 4"),
        ("circulant(16, 9)", "rise within 1 .. 8"),
        ("uniring(9999999999999)", "a number of at most 12 digits"),
        ("(" * 100 + "diamond", "levels of nesting"),
        ("diamond " * 600, "at most 4096 characters"),
    ],
)
def test_errors_say_where(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        *("complete(999999999999)", "hypercube(32)", "line^64(bipartite(60000))"),
        *("torus(60000, 60000, 60000)", "torus(50, 50)^60", "degree(uniring(60000), 60000)", "odd(16)"),
        *("uniring(65537)", "complete(60000)"),
    ],
)
def test_what_is_too_large_is_refused_before_it_is_built(text: str) -> None:
    with pytest.raises(InputError, match=r"choose a smaller|expected at most"):
        parse(text).build()


def test_constructors_are_the_parser() -> None:
    made = line(product(power(base("diamond"), 2), base("biring", 3)), 2)
    assert made == parse("line(line(diamond^2 * biring(3)))")
    assert str(made) == "line^2(diamond^2 * biring(3))"
    assert str(parse("(biring(3) * diamond)^2^3")) == "(biring(3) * diamond)^6"
    assert parse("diamond^1") == base("diamond") == product(base("diamond")) == power(base("diamond"), 1)
    assert str(degree(base("petersen"), 2)) == "degree(petersen, 2)"
    with pytest.raises(InputError, match="expected a family of graphs, found 'none'"):
        base("none")


def as_networkx(graph: Graph) -> nx.MultiDiGraph:
    made = nx.MultiDiGraph()
    made.add_nodes_from(range(graph.num_nodes))
    made.add_edges_from(zip(*(column.tolist() for column in graph.single_links()), strict=True))
    return made


def same(graph: Graph, expected: nx.Graph) -> bool:
    return nx.is_isomorphic(nx.DiGraph(as_networkx(graph)), expected.to_directed())


def test_families_are_the_graphs_of_their_names() -> None:
    assert same(parse("petersen").build(), nx.petersen_graph())
    assert same(parse("petersen_edges").build(), nx.line_graph(nx.petersen_graph()))
    assert same(parse("projective(2)").build(), nx.heawood_graph())
    assert same(parse("quadrangle(2)").build(), nx.LCF_graph(30, [-13, -9, 7, -7, 9, 13], 5))
    assert same(parse("octahedron").build(), nx.octahedral_graph())
    assert same(parse("hypercube(4)").build(), nx.hypercube_graph(4))
    assert same(parse("torus(3, 5)").build(), nx.grid_2d_graph(3, 5, periodic=True))
    assert same(parse("bipartite(4)").build(), nx.complete_bipartite_graph(4, 4))
    assert same(parse("doubled_odd(3)").build(), nx.desargues_graph())
    assert same(parse("circulant(13, 1, 5)").build(), nx.circulant_graph(13, [1, 5]))


def test_rewired_graphs_keep_most_links_and_the_symmetry_of_letters() -> None:
    for d, n in REWIRED:
        plain, rewired = (
            set(as_networkx(parse(f"{family}({d}, {n})").build()).edges())
            for family in ("debruijn", "debruijn_mod")
        )
        assert len(rewired) == d ** (n + 1)
        assert 2 * len(rewired & plain) > len(rewired)
        one_more = [sum((word // d**place + 1) % d * d**place for place in range(n)) for word in range(d**n)]
        assert {(one_more[src], one_more[dst]) for src, dst in rewired} == rewired
    published = parse("line(debruijn_mod(2, 4)^2)").facts()
    assert (published.ranks, published.degree, published.steps, published.bandwidth_time) == (1024, 4, 11, 1)


def test_expansions_are_those_of_networkx() -> None:
    diamond = parse("diamond").build()
    plain = nx.DiGraph(as_networkx(diamond))
    assert nx.is_isomorphic(as_networkx(parse("line(diamond)").build()), nx.line_graph(plain))
    kautz = nx.line_graph(nx.line_graph(nx.complete_graph(4, nx.DiGraph)))
    assert nx.is_isomorphic(as_networkx(parse("kautz(3, 3)").build()), kautz)
    squared = nx.cartesian_product(plain, plain)
    assert nx.is_isomorphic(nx.DiGraph(as_networkx(parse("diamond^2").build())), squared)


def test_every_family_has_a_signature_that_reads_back() -> None:
    for family in FAMILIES.values():
        assert family.name in family.signature
        assert family.description


@pytest.mark.parametrize(
    "text",
    [
        *(f"projective({q})" for q in (2, 3, 5)),
        *(f"affine({q})" for q in (2, 3, 5)),
        *(f"quadrangle({q})" for q in (2, 3, 4)),
        *(f"{family}({q})" for family in ("projective", "affine") for q in (4, 8, 9)),
        *(f"projective_flags({q})" for q in (2, 3)),
        "quadrangle_flags(2)",
        *(f"odd({k})" for k in (2, 3, 4, 5)),
        *(f"doubled_odd({k})" for k in (2, 3, 4)),
        *(f"crown({n})" for n in (3, 4, 5, 6)),
        *(f"bipartite({d})" for d in (2, 3, 9)),
        *(f"hamming({n}, {q})" for n, q in ((1, 5), (2, 3), (3, 4), (2, 70))),
        *(f"torus({sizes})" for sizes in ("2", "2, 2", "3, 4, 5", "2, 7, 3", "17")),
        *(f"kautz({d}, {n})" for d, n in ((2, 1), (2, 4), (3, 3), (5, 2))),
        *(f"debruijn_mod({d}, {n})" for d, n in REWIRED),
        "octahedron",
        "petersen_edges",
    ],
)
def test_formulas_of_families_are_what_is_measured(text: str) -> None:
    recipe = parse(text)
    assert recipe.facts() == recipe.measured()
    assert recipe.build().simple == recipe.size.simple
    if not text.startswith("kautz"):
        assert recipe.facts().bandwidth_optimal


@pytest.mark.parametrize(
    "text",
    [
        *("projective(6)", "affine(10)", "projective(64)", "quadrangle(1)", "odd(17)", "two_jump(4)"),
        *("crown(2)", "debruijn_mod(5, 2)"),
    ],
)
def test_members_without_meaning_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"column 1 .* expected"):
        parse(text)


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
        *("line(complete(3))", "line^2(diamond)", "line(bipartite(3))", "line(line(biring(5))^2)"),
        *("degree(diamond, 2)", "degree(petersen, 3)", "degree(line(complete(3)), 2)", "gkautz(2, 7)^2"),
        *("kautz(2, 2)^2", "debruijn(2, 2)^2", "line(debruijn(2, 3))", "line(bidirectional(uniring(2)))"),
        *("line(bidirectional(kautz(2, 2)))", "degree(gkautz(2, 6)^2, 2)"),
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
