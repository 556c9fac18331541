"""The order and places of layers: few crossings, enough room, lines upright where they pass a layer, no chance."""

from __future__ import annotations

from itertools import pairwise, permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.report.topology.layers import BEND, GAP, Arrangement, arrange, isotonic, widened


@st.composite
def layered(draw: st.DrawFn) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """Layers of some nodes, and links between different ones."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=2, max_size=4))
    layers, start = [], 0
    for size in sizes:
        layers.append(list(range(start, start + size)))
        start += size
    of = {v: at for at, layer in enumerate(layers) for v in layer}
    pairs = [(a, b) for a in range(start) for b in range(a + 1, start) if of[a] != of[b]]
    return layers, draw(st.lists(st.sampled_from(pairs), unique=True, max_size=14))


def crossings(rows: list[list[int]], chains: list[list[int]]) -> int:
    """Pairs of pieces of lines that cross, counted one by one."""
    place = {v: i for row in rows for i, v in enumerate(row)}
    row_of = {v: at for at, row in enumerate(rows) for v in row}
    pieces = [tuple(sorted(pair, key=row_of.__getitem__)) for chain in chains for pair in pairwise(chain)]
    return sum(
        row_of[a] == row_of[c] and (place[a] - place[c]) * (place[b] - place[d]) < 0
        for at, (a, b) in enumerate(pieces)
        for c, d in pieces[:at]
    )


def arranged(layers: list[list[int]], links: list[tuple[int, int]]) -> Arrangement:
    count = sum(map(len, layers))
    return arrange(layers, links, dict.fromkeys(range(count), 20.0), 400.0)


@given(layered())
@settings(max_examples=150, deadline=None)
def test_layers_hold_their_nodes_in_order_and_apart(
    drawn: tuple[list[list[int]], list[tuple[int, int]]],
) -> None:
    layers, links = drawn
    done = arranged(layers, links)
    nodes = {v for layer in layers for v in layer}
    assert [sorted(v for v in row if v in nodes) for row in done.rows] == layers
    row_of = {v: at for at, row in enumerate(done.rows) for v in row}
    for (a, b), chain in zip(links, done.chains, strict=True):
        assert (chain[0], chain[-1]) == (a, b)
        assert all(abs(row_of[v] - row_of[w]) == 1 for v, w in pairwise(chain))
        assert len(chain) == abs(row_of[a] - row_of[b]) + 1
    for row in done.rows:
        for v, w in pairwise(row):
            both = v in nodes and w in nodes
            least = 10.0 * ((v in nodes) + (w in nodes)) + (GAP if both else BEND)
            assert done.x[w] - done.x[v] >= least - 1e-6
    assert done == arranged(layers, links)


@given(layered())
@settings(max_examples=100, deadline=None)
def test_no_more_crossings_than_as_given(drawn: tuple[list[list[int]], list[tuple[int, int]]]) -> None:
    layers, links = drawn
    of = {v: at for at, layer in enumerate(layers) for v in layer}
    near = [(a, b) for a, b in links if abs(of[a] - of[b]) == 1]
    done = arranged(layers, near)
    assert crossings(done.rows, done.chains) <= crossings(layers, [list(pair) for pair in near])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(5, 9)), unique=True, max_size=9))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_two_layers_come_near_the_least_crossings(links: list[tuple[int, int]]) -> None:
    """All orders of both layers tried: never more than three times the least crossings and three."""
    done = arranged([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]], links)
    chains = [list(pair) for pair in links]
    upper = [list(each) for each in permutations(range(5)) if each[0] < each[-1]]
    lower = [list(each) for each in permutations(range(5, 10))]
    found = crossings(done.rows, chains)
    if found:
        assert found <= 3 * min(crossings([up, low], chains) for up in upper[::3] for low in lower[::2]) + 3


def test_lines_pass_upright_and_a_bar_pulls_nobody_to_its_middle() -> None:
    """Eight GPUs under a switch over all of them, one of which has a line to the third layer past the second."""
    layers = [[0], list(range(1, 9)), [9, 10]]
    links = [(0, v) for v in range(1, 9)] + [(1, 9), (8, 10), (0, 9)]
    done = arrange(layers, links, dict.fromkeys(range(11), 30.0), 600.0)
    assert abs(done.x[1] - done.x[9]) < 12
    assert abs(done.x[8] - done.x[10]) < 12
    wide = widened(done.rows, done.chains, done.x, dict.fromkeys(range(11), 30.0), {0}, (0.0, 600.0))
    middle, width = wide[0]
    assert middle - width / 2 < done.x[1] < done.x[8] < middle + width / 2


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 9)), min_size=1, max_size=30))
def test_the_nearest_ascending_numbers(pairs: list[tuple[int, int]]) -> None:
    values, weights = [v for v, _ in pairs], [w for _, w in pairs]
    found = isotonic(values, weights)
    assert all(a <= b + 1e-9 for a, b in pairwise(found))
    # Optimal: in every pool the weighted sum of deviations vanishes, and no prefix of it lies below.
    at = 0
    while at < len(found):
        end = at
        while end < len(found) and abs(found[end] - found[at]) < 1e-9:
            end += 1
        total = 0.0
        for i in range(at, end):
            total += weights[i] * (values[i] - found[i])
            assert total > -1e-6
        assert abs(total) < 1e-6
        at = end
