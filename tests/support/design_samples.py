"""Random strongly connected graphs, and recipes, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from coppice.design.graph import Graph
from coppice.design.recipes.recipe import Base, Bidirectional, Degree, LineGraph, Power, Product, Recipe
from reference.breadth_first import Links


@st.composite
def random_graphs(draw: st.DrawFn, most: int = 9) -> Graph:
    """A cycle through all nodes, so that it is strongly connected, and further links, some parallel, some loops."""
    nodes = draw(st.integers(2, most))
    ends = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1))
    more = draw(st.lists(ends, max_size=2 * nodes))
    links = [(v, (v + 1) % nodes) for v in range(nodes)] + more
    return Graph.of("random", nodes, [a for a, _ in links], [b for _, b in links])


def links_of(graph: Graph) -> Links:
    """Capacity by ends, self-loops left out."""
    columns = (graph.src.tolist(), graph.dst.tolist(), graph.count.tolist())
    return {(a, b): count for a, b, count in zip(*columns, strict=True) if a != b}


BASES = st.one_of(
    st.builds(lambda m: Base("uniring", (m,)), st.integers(2, 6)),
    st.builds(lambda m: Base("biring", (m,)), st.integers(3, 6)),
    st.builds(lambda m: Base("complete", (m,)), st.integers(2, 4)),
    st.builds(lambda d: Base("bipartite", (d,)), st.integers(2, 3)),
    st.builds(lambda m: Base("gkautz", (2, m)), st.integers(3, 9)),
    st.builds(lambda m: Base("two_jump", (m,)), st.integers(5, 12)),
    st.just(Base("diamond")),
    st.just(Base("dicirculant", (6, 1, 2, 3, 4))),
    st.just(Base("petersen")),
    st.just(Base("kautz", (2, 2))),
    st.just(Base("debruijn", (2, 2))),
)


def _expanded(inner: st.SearchStrategy[Recipe]) -> st.SearchStrategy[Recipe]:
    return st.one_of(
        st.builds(LineGraph, inner, st.integers(1, 2)),
        st.builds(Degree, inner, st.integers(2, 3)),
        st.builds(Power, inner, st.integers(2, 3)),
        st.builds(lambda parts: Product(tuple(parts)), st.lists(inner, min_size=2, max_size=3)),
        st.builds(Bidirectional, inner),
    )


RECIPES: st.SearchStrategy[Recipe] = st.recursive(BASES, _expanded, max_leaves=3)
