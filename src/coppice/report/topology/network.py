"""Lay out the network between boxes: its switches in levels, over the ports of the boxes below and above."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from coppice.report.topology.block import fit_row
from coppice.report.topology.folding import NETWORK
from coppice.report.topology.layers import GAP, arrange, widened
from coppice.report.topology.sheet import Sheet, arc_depth

_BETWEEN = 34.0
_SLANT, _MOST_SLANT = 0.11, 60.0
"""Least distance of two rows; what lines add that run far across, and at most."""

_BAR_ROOM = 14.0
_MOST_BAR = 130.0
"""Width of a switch for each of its lines, and of one that is not alone, at most."""


@dataclass(frozen=True, slots=True)
class NetworkRows:
    """The network without its place down: rows from top to bottom, the edges of boxes among them."""

    rows: list[
        list[int]
    ]  # Vertices of each row; the first and the last are the edges if there are boxes there
    captions: list[str]  # Name of each row, empty for edges
    across: list[float]  # How far lines run across below each row


def arranged_network(
    sheet: Sheet, upper: Sequence[int], lower: Sequence[int], left: float, room: float
) -> NetworkRows | None:
    """Give switches of the network their places across.

    Args:
        upper: Ports of the boxes above, which have their places, if there are any.
        lower: Ports of the boxes below.
        left: Where the drawing begins.
        room: Its width.

    Returns:
        None where nothing is outside boxes, and nothing leads from box to box.
    """
    if not upper and not lower and not any(node.group == NETWORK for node in sheet.graph.nodes):
        return None
    links = _outer_links(sheet)
    layers, captions = _levels(sheet, upper, lower, links, room)
    owner = {port: v for v, port in sheet.port.items()}
    keyed = {v: at for at, layer in enumerate(layers) for v in layer}
    between = [(a, b) for a, b in links if keyed[a] != keyed[b]]
    known = [v for layer in layers for v in layer]
    number = {v: at for at, v in enumerate(known)}
    pinned = {number[v]: sheet.x[v] - left for v in (*upper, *lower)}
    width = {number[v]: sheet.size.get(v, 0.0) for v in known}
    done = arrange(
        [[number[v] for v in layer] for layer in layers],
        [(number[a], number[b]) for a, b in between],
        width,
        room,
        pinned,
    )
    base = sheet.fresh

    def back(at: int) -> int:
        return known[at] if at < len(known) else base + at - len(known)

    for at, x in done.x.items():
        sheet.x[back(at)] = left + x
        sheet.fresh = max(sheet.fresh, back(at) + 1)
    for (a, b), chain in zip(between, done.chains, strict=True):
        sheet.chains[owner.get(a, a), owner.get(b, b)] = [back(at) for at in chain]
    rows = [[back(at) for at in row] for row in done.rows]
    bars = {v for row in rows for v in row if v in sheet.size and v not in owner}
    chains = list(sheet.chains.values())
    wide = widened(rows, chains, sheet.x, sheet.size, bars, (left, left + room))
    for v, (middle, across) in wide.items():
        sheet.x[v], sheet.size[v] = middle, across
    return NetworkRows(rows, captions, _runs(sheet, rows))


def place_network(sheet: Sheet, network: NetworkRows | None, y: float, *, above: bool, below: bool) -> float:
    """Places down.

    Args:
        y: Where the network begins: the edge of the boxes above if there are any.
        above: There are boxes above.
        below: There are boxes below.

    Returns:
        Where it ends: the edge of the boxes below.
    """
    if network is None:
        return y + (GAP if above and below else 0.0)
    last = len(network.rows) - 1
    for at, row in enumerate(network.rows):
        nodes = [v for v in row if v in sheet.size]
        if at == 0 and above:
            sheet.add_band(row, y, y, arcs_up=False)
            y += _port_arcs(sheet, row)
        elif at == last and below:
            y += _port_arcs(sheet, row)
            sheet.add_band(row, y, y, arcs_up=True)
        else:
            arcs = sheet.arc_room(nodes)
            y += arcs
            height = max((sheet.height(v) for v in nodes), default=0.0)
            sheet.add_band(row, y, y + height, arcs_up=True)
            if network.captions[at]:
                sheet.captions.append((network.captions[at], (6.0, y + height / 2 + 3.5)))
            y += height
        if at < last:
            y += _BETWEEN + min(network.across[at] * _SLANT, _MOST_SLANT)
    return y


def _outer_links(sheet: Sheet) -> list[tuple[int, int]]:
    """Links outside boxes, with the ports of nodes in boxes."""
    found = []
    for a, b in sheet.graph.links:
        if sheet.graph.nodes[a].group != sheet.graph.nodes[b].group or sheet.graph.nodes[a].group == NETWORK:
            found.append((sheet.port.get(a, a), sheet.port.get(b, b)))
    return found


def _levels(
    sheet: Sheet, upper: Sequence[int], lower: Sequence[int], links: Sequence[tuple[int, int]], room: float
) -> tuple[list[list[int]], list[str]]:
    """Rows from top to bottom, and their names: the highest level in the middle if boxes are above and below."""
    levels: dict[int, list[int]] = defaultdict(list)
    for v, node in enumerate(sheet.graph.nodes):
        if node.group == NETWORK:
            levels[node.level].append(v)
    top = max(levels, default=0)
    over: dict[int, list[int]] = defaultdict(list)
    under: dict[int, list[int]] = defaultdict(list)
    weight: dict[int, int] = dict.fromkeys(upper, 1) | dict.fromkeys(lower, -1)
    for level in sorted(levels):
        for v in levels[level]:
            ends = [b if a == v else a for a, b in links if v in (a, b)]
            side = sum(weight.get(w, 0) for w in ends)
            weight[v] = (side > 0) - (side < 0)
            above = level < top and bool(upper) and (side > 0 or not lower)
            (over if above else under)[level].append(v)
    rows: list[list[int]] = [list(upper)] if upper else []
    captions = [""] if upper else []
    down = [(level, over[level]) for level in sorted(over)]
    for level, nodes in (*down, *((level, under[level]) for level in sorted(under, reverse=True))):
        parts = _written(sheet, nodes, links, room)
        rows += parts
        words = "network" if top == 1 else f"network {level}"
        captions += [words, *("" for _ in parts[1:])]
    if lower:
        rows.append(list(lower))
        captions.append("")
    return rows, captions


def _written(
    sheet: Sheet, nodes: Sequence[int], links: Sequence[tuple[int, int]], room: float
) -> list[list[int]]:
    """Switches of a level in as many rows as they need, with their labels and widths."""
    fit = fit_row([sheet.graph.nodes[v].label for v in nodes], room)
    each = -(-len(nodes) // fit.parts)
    degree = max(sum(v in pair for pair in links) for v in nodes)
    wide = min(degree * _BAR_ROOM, _MOST_BAR, room / each - 2 * GAP)
    for v, label in zip(nodes, fit.labels, strict=True):
        sheet.size[v] = max(fit.width, wide)
        sheet.labels[v] = (label, fit.size)
    return [list(nodes[part : part + each]) for part in range(0, len(nodes), each)]


def _runs(sheet: Sheet, rows: Sequence[Sequence[int]]) -> list[float]:
    """How far lines run across below each row."""
    row_of = {v: at for at, row in enumerate(rows) for v in row}
    found = [0.0] * len(rows)
    for chain in sheet.chains.values():
        for v, w in pairwise(chain):
            if v in row_of and w in row_of:
                slack = max(sheet.size.get(u, 0.0) / 2 for u in (v, w))
                at = min(row_of[v], row_of[w])
                found[at] = max(found[at], abs(sheet.x[v] - sheet.x[w]) - slack)
    return found


def _port_arcs(sheet: Sheet, row: Sequence[int]) -> float:
    """Room for arcs from box to box beside their edge."""
    ports = set(row)
    depths = [arc_depth(sheet.x[a], sheet.x[b]) for a, b in _outer_links(sheet) if a in ports and b in ports]
    return max(depths) + 4 if depths else 0.0
