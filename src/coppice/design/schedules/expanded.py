"""Expand the schedule of a base graph along its recipe.

Breadth-first broadcast is eager, and on powers of graphs without symmetry that can cost more than taking one dimension
after the other; on line graphs it is sometimes better. So a recipe has two schedules, and the faster one is worth
having.

Source: Efficient Direct-Connect Topologies (arXiv 2202.03356), for the constructions named in
:mod:`coppice.design.recipes.expansions`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coppice.design.graph import Graph, translated
from coppice.design.recipes.expansions import out_links
from coppice.design.recipes.recipe import Degree, LineGraph, Power, Recipe
from coppice.design.schedules.breadth_first import MAX_RUNS, Deliveries, breadth_first_deliveries
from coppice.errors import InputError
from coppice.rows import positions


def expanded_deliveries(recipe: Recipe, *, max_runs: int = MAX_RUNS) -> Deliveries:
    """Deliveries that reach the steps and bandwidth time of ``recipe.facts()``.

    Args:
        recipe: What to build. Families, products and graphs with their transposes get breadth-first broadcast.
        max_runs: Most runs of pieces, which stops expansions that would not fit into memory.

    Examples:
        >>> from coppice.design.schedules.breadth_first import loads_of
        >>> from coppice.design.recipes.parser import parse
        >>> [str(load) for load in loads_of(expanded_deliveries(parse("line(complete(3))")))]
        ['1', '2']
    """
    graph = recipe.build()
    shards = graph.num_nodes * (graph.num_nodes - 1)
    if shards > max_runs:
        raise InputError(
            f"expected at most {max_runs:,} transfers, found {shards:,} or more in {recipe}: choose a smaller graph."
        )
    if recipe.facts().exact:
        return breadth_first_deliveries(graph, max_runs=max_runs)[0]
    if isinstance(recipe, LineGraph):
        inner = LineGraph(recipe.inner, recipe.times - 1) if recipe.times > 1 else recipe.inner
        return _line(graph, out_links(inner.build()), expanded_deliveries(inner, max_runs=max_runs), max_runs)
    if isinstance(recipe, Degree):
        return _degree(graph, expanded_deliveries(recipe.inner, max_runs=max_runs), recipe.copies, max_runs)
    if isinstance(recipe, Power):
        return _power(graph, expanded_deliveries(recipe.inner, max_runs=max_runs), recipe.exponent, max_runs)
    return breadth_first_deliveries(graph, max_runs=max_runs)[0]


def _line(graph: Graph, heads: NDArray[np.int32], inner: Deliveries, max_runs: int) -> Deliveries:
    """First every node sends its own shard to all successors; then what v sent to w over (u, w) in the base graph goes.

    Row ``((v, C), (u, w), t)`` becomes ``((v'v, C), (uw, ww'), t + 1)`` for all v' and w', unless v'v is ww'.
    """
    nodes, degree = heads.shape
    links = nodes * degree
    inner, link = _dealt_out(_listed(inner), heads)
    into = np.argsort(heads.ravel(), kind="stable").reshape(nodes, degree)  # the links into v are row v
    _refuse_too_many(len(inner.step) * degree * degree + links * degree, max_runs, graph)
    roots = into[inner.root][:, :, None]  # v'v
    ends = (inner.dst[:, None].astype(np.int64) * degree + np.arange(degree))[:, None, :]  # ww'
    shape = (len(inner.step), degree, degree)
    first = np.repeat(np.arange(links), degree)
    first_dst = (heads.ravel()[:, None].astype(np.int64) * degree + np.arange(degree)).ravel()
    columns = [
        np.concatenate([np.zeros(len(first), np.int64), _spread(inner.step[:, None, None] + 1, shape)]),
        np.concatenate([first, _spread(roots, shape)]),
        np.concatenate([first, _spread(link[:, None, None], shape)]),
        np.concatenate([first_dst, _spread(ends, shape)]),
        np.concatenate([np.zeros(len(first), np.int64), _spread(inner.first[:, None, None], shape)]),
        np.concatenate([np.full(len(first), inner.pieces), _spread(inner.count[:, None, None], shape)]),
    ]
    keep = columns[1] != columns[3]
    return _deliveries(graph, inner.pieces, [column[keep] for column in columns])


def _dealt_out(inner: Deliveries, heads: NDArray[np.int32]) -> tuple[Deliveries, NDArray[np.int64]]:
    """A link for each run; what goes over parallel links is cut so that each of them takes an equal part."""
    nodes, degree = heads.shape
    ends = np.repeat(np.arange(nodes), degree) * nodes + heads.ravel()
    order = np.argsort(ends, kind="stable")
    key = inner.src.astype(np.int64) * nodes + inner.dst
    low = np.searchsorted(ends[order], key)
    parallel = np.searchsorted(ends[order], key, side="right") - low
    scale = int(np.lcm.reduce(inner.graph.count))
    run = np.repeat(np.arange(len(key)), parallel)
    turn = positions(parallel)
    count = inner.count[run].astype(np.int64) * scale // parallel[run]
    columns = [
        inner.step[run],
        inner.root[run],
        inner.src[run],
        inner.dst[run],
        inner.first[run].astype(np.int64) * scale + turn * count,
        count,
    ]
    return _columns(inner.graph, inner.pieces * scale, columns), order[low[run] + turn]


def _degree(graph: Graph, inner: Deliveries, copies: int, max_runs: int) -> Deliveries:
    """What copy i owns is forwarded by copies i to all copies; a last step brings each node its siblings' shards.

    In that step every in-neighbour of a node brings an equal part of each sibling's shard.
    """
    inner = _listed(inner)
    base, ports = inner.graph, graph.degree
    nodes = base.num_nodes
    pieces = int(np.lcm(inner.pieces, ports))
    scale, part = pieces // inner.pieces, pieces // ports
    _refuse_too_many(len(inner.step) * copies**2 + nodes * copies * copies * ports, max_runs, graph)
    copy = np.arange(copies)
    shape = (len(inner.step), copies, copies)
    own, other = copy[None, :, None], copy[None, None, :]
    # The in-neighbours of a node, parallel links repeated, and the part that each of them brings.
    src, dst = base.single_links()
    by_dst = src[np.argsort(dst, kind="stable")].reshape(nodes, base.degree)
    last = (nodes, copies, copies, base.degree, copies)  # node, root copy, receiving copy, in-link, its copy
    node, root, receiver, place, sender = np.meshgrid(*(np.arange(size) for size in last), indexing="ij")
    apart = (root != receiver).ravel()
    ends = [
        np.full(node.size, inner.steps),
        (node * copies + root).ravel(),
        (by_dst[node, place].astype(np.int64) * copies + sender).ravel(),
        (node * copies + receiver).ravel(),
        ((place * copies + sender) * part).ravel(),
        np.full(node.size, part),
    ]
    columns = [
        _spread(inner.step[:, None, None], shape),
        _spread(inner.root[:, None, None].astype(np.int64) * copies + own, shape),
        _spread(inner.src[:, None, None].astype(np.int64) * copies + own, shape),
        _spread(inner.dst[:, None, None].astype(np.int64) * copies + other, shape),
        _spread(inner.first[:, None, None].astype(np.int64) * scale, shape),
        _spread(inner.count[:, None, None].astype(np.int64) * scale, shape),
    ]
    both = [np.concatenate([column, end[apart]]) for column, end in zip(columns, ends, strict=True)]
    return _deliveries(graph, pieces, both)


def _power(graph: Graph, inner: Deliveries, exponent: int, max_runs: int) -> Deliveries:
    """Part j of every shard spreads along dimension j, then j + 1, and so on round; all parts at the same time."""
    inner = _listed(inner)
    nodes, pieces = inner.graph.num_nodes, inner.pieces * exponent
    runs = len(inner.step)
    _refuse_too_many(
        runs * exponent * nodes ** (exponent - 1) * sum(nodes**i for i in range(exponent)), max_runs, graph
    )
    parts: list[list[NDArray[np.int64]]] = []
    for part in range(exponent):
        for phase in range(exponent):
            # Roots and senders agree but in the dimensions that the part has been through, and in the present one.
            along = (part + phase) % exponent
            done = [(part + i) % exponent for i in range(phase)]
            same = [axis for axis in range(exponent) if axis != along and axis not in done]
            unit = [nodes ** (exponent - 1 - axis) for axis in range(exponent)]
            equal, root_free, here_free = (
                _combinations(nodes, [unit[axis] for axis in axes]) for axes in (same, done, done)
            )
            shape = (runs, len(equal), len(root_free), len(here_free))
            root = equal[:, None, None] + root_free[:, None]
            here = equal[:, None, None] + here_free
            row = (slice(None), None, None, None)
            parts.append(
                [
                    _spread(inner.step[row] + phase * inner.steps, shape),
                    _spread(inner.root[row].astype(np.int64) * unit[along] + root, shape),
                    _spread(inner.src[row].astype(np.int64) * unit[along] + here, shape),
                    _spread(inner.dst[row].astype(np.int64) * unit[along] + here, shape),
                    _spread(inner.first[row] + part * inner.pieces, shape),
                    _spread(inner.count[row], shape),
                ]
            )
    return _deliveries(graph, pieces, [np.concatenate([part[i] for part in parts]) for i in range(6)])


def _combinations(nodes: int, units: list[int]) -> NDArray[np.int64]:
    """All sums of a multiple below ``nodes`` of each unit."""
    sums = np.zeros(1, dtype=np.int64)
    for unit in units:
        sums = (sums[:, None] + np.arange(nodes) * unit).ravel()
    return sums


def _listed(deliveries: Deliveries) -> Deliveries:
    """The same runs with all their images."""
    graph = deliveries.graph
    if not deliveries.symmetric or not graph.orders:
        return deliveries
    images = translated(graph).T
    times = images.shape[1]
    columns = [
        np.repeat(deliveries.step, times),
        images[deliveries.root].ravel(),
        images[deliveries.src].ravel(),
        images[deliveries.dst].ravel(),
        np.repeat(deliveries.first, times),
        np.repeat(deliveries.count, times),
    ]
    return _deliveries(graph, deliveries.pieces, columns)


def _spread(column: NDArray[np.integer], shape: tuple[int, ...]) -> NDArray[np.int64]:
    return np.broadcast_to(column, shape).ravel().astype(np.int64)


def _deliveries(graph: Graph, pieces: int, columns: Sequence[NDArray[np.integer]]) -> Deliveries:
    """Runs by step."""
    order = np.argsort(columns[0], kind="stable")
    return _columns(graph, pieces, [column[order] for column in columns])


def _columns(graph: Graph, pieces: int, columns: Sequence[NDArray[np.integer]]) -> Deliveries:
    """Runs in the order that they come in."""
    step, root, src, dst, first, count = (column.astype(np.int32) for column in columns)
    return Deliveries(
        graph=graph, pieces=pieces, step=step, root=root, src=src, dst=dst, first=first, count=count
    )


def _refuse_too_many(runs: int, max_runs: int, graph: Graph) -> None:
    if runs > max_runs:
        raise InputError(
            f"expected at most {max_runs:,} transfers, found {runs:,} for {graph.name}: choose a smaller graph."
        )
