"""Positions of the nodes of a topology in its drawing: boxes side by side, and the network.

Boxes stand side by side, the network above them; where they are too wide for that, in two rows with the network between
them. In a box there is a row for each kind of node, from the network inwards: NICs, CPUs, PCIe switches, GPUs,
NVSwitches. Lines run from row to row, upright where they pass one, so that they come near no label; links within a row
are arcs beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from coppice.report.svg import text_width
from coppice.report.topology.block import LARGE, PORTS, BoxRows, RowKey, block_of
from coppice.report.topology.folding import CAPTIONS, DrawnGraph, Layer
from coppice.report.topology.geometry import NodeBox
from coppice.report.topology.lines import routes
from coppice.report.topology.network import arranged_network, place_network
from coppice.report.topology.sheet import HEIGHT, WIDE, DrawingLayout, Frame, NodeLabel, Sheet
from coppice.topology.model import Topology

WIDTH = 1100.0
"""Width that a drawing may take."""

PAD = 12.0
CAPTION = 92.0
"""Padding of a frame; room for the names of rows."""

_LEAST_WIDTH = 320.0
_BETWEEN = 28.0
_SLANT, _MOST_SLANT = 0.1, 44.0
_HEAD = 20.0
"""Least distance of two rows; what lines add that run far across, and at most; height of a frame's name."""

_BOLD = 1.06
"""How much wider bold text is."""

_Row = list[tuple[int, BoxRows]]
"""Boxes side by side, each with the number of its group."""


def layered(topology: Topology, graph: DrawnGraph) -> DrawingLayout:
    """Lay out boxes and the network.

    Args:
        topology: What is drawn.
        graph: Its nodes, or what stands for them.

    Examples:
        >>> from coppice.report.topology.folding import fold
        >>> from coppice.report.topology.folding import structure_of
        >>> from coppice.topology.presets import preset
        >>> box = preset("dgx-a100-pcie")
        >>> layout = layered(box, fold(box, structure_of(box), [0] * box.num_nodes))
        >>> [name for name, _ in layout.captions], len(layout.place)
        (['CPUs', 'PCIe switches', 'GPUs', 'NVSwitch'], 15)
    """
    sheet = Sheet(topology, graph, fresh=len(graph.nodes))
    rows = _rows_of_boxes(sheet)
    width = max([_LEAST_WIDTH, *(_row_width(sheet, row) for row in rows)])
    if any(node.level for node in graph.nodes):
        width = max(width, _network_width(graph))
    for row in rows:
        _place_across(sheet, row, CAPTION + (width - _row_width(sheet, row)) / 2)
    upper = rows[0] if len(rows) > 1 else []
    lower = rows[-1] if rows else []
    network = arranged_network(sheet, _ports(upper), _ports(lower), CAPTION, width)
    y = _place_down(sheet, upper, PAD, flipped=True) if upper else PAD
    y = place_network(sheet, network, y, above=bool(_ports(upper)), below=bool(_ports(lower)))
    y = _place_down(sheet, lower, y, flipped=False) if lower else y
    place, labels = {}, {}
    for v, wide in sheet.size.items():
        band = sheet.band[v]
        middle = (band.top + band.bottom) / 2
        place[v] = NodeBox(sheet.x[v], middle, wide, sheet.height(v))
        labels[v] = NodeLabel.centred(*sheet.labels[v], sheet.x[v], middle)
    return DrawingLayout(
        CAPTION + width + PAD,
        y + PAD,
        place,
        labels,
        routes(sheet),
        tuple(sheet.frames),
        tuple(sheet.captions),
    )


def _rows_of_boxes(sheet: Sheet) -> list[_Row]:
    """Boxes in one row if they fit, otherwise in two."""
    groups: dict[int, list[int]] = defaultdict(list)
    for v, node in enumerate(sheet.graph.nodes):
        if not node.level:
            groups[node.group].append(v)
    room = WIDTH - CAPTION - PAD
    order = sorted(groups, key=lambda group: (group < 0, group))
    natural = [
        _frame_width(sheet, group, block_of(sheet.graph, groups[group], room - 2 * PAD, sheet.fresh)) + PAD
        for group in order
    ]
    columns = len(order) if sum(natural) <= room or len(order) < 2 else -(-len(order) // 2)
    starts = range(0, len(order), max(columns, 1))
    # Boxes that are too wide give way in proportion to what they need, in both rows alike.
    most = max([sum(natural[start : start + columns]) for start in starts], default=0.0)
    scale = min(room / most, 1.0) if most else 1.0
    found: list[_Row] = []
    for start in starts:
        row = []
        for group, each in zip(order[start : start + columns], natural[start:], strict=False):
            block = block_of(
                sheet.graph, groups[group], max(each * scale - 3 * PAD, 20.0) + 0.01, sheet.fresh
            )
            sheet.fresh = max([sheet.fresh - 1, *block.x]) + 1
            sheet.size |= block.size
            sheet.labels |= block.labels
            sheet.port |= block.ports
            sheet.chains |= block.chains
            row.append((group, block))
        found.append(row)
    return found


def _ports(row: _Row) -> list[int]:
    """Ports of a row of boxes from left to right."""
    return [port for _, block in row for port in block.rows.get(PORTS, ())]


def _frame_width(sheet: Sheet, group: int, block: BoxRows) -> float:
    """Width of a box, for its name as well."""
    name = sheet.graph.frames.get(group, "")
    return max(block.width + 2 * PAD, text_width(name, LARGE) * _BOLD + 20 if name else 0.0)


def _row_width(sheet: Sheet, row: _Row) -> float:
    return sum(_frame_width(sheet, group, block) + PAD for group, block in row)


def _network_width(graph: DrawnGraph) -> float:
    """Width that switches of the network would like."""
    levels: dict[int, float] = defaultdict(float)
    for node in graph.nodes:
        if node.level:
            levels[node.level] += text_width(node.label, LARGE) + 2 * PAD
    return min(max(levels.values()), WIDTH - CAPTION - PAD)


def _place_across(sheet: Sheet, row: _Row, start: float) -> None:
    """Places across of all that is in a row of boxes."""
    x = start + PAD / 2
    for group, block in row:
        wide = _frame_width(sheet, group, block)
        shift = x + (wide - block.width) / 2
        sheet.x |= {v: shift + at for v, at in block.x.items()}
        x += wide + PAD


def _place_down(sheet: Sheet, row: _Row, y: float, *, flipped: bool) -> float:
    """Places down, and frames; the edge towards the network is the lower one if flipped.

    Returns:
        Where the row ends.
    """
    linked = bool(_ports(row))
    named = any(group in sheet.graph.frames for group, _ in row)
    keys = sorted({key for _, block in row for key in block.rows if key != PORTS})
    # Depths from the edge towards the network; a name is written where no lines leave.
    depth = _HEAD if named and not linked else 0.0
    bands: dict[RowKey, tuple[float, float]] = {}
    for before, key in pairwise([PORTS, *keys]):
        nodes = _nodes(sheet, row, key)
        arcs = max((sheet.arc_room(_nodes(sheet, [each], key)) for each in row), default=0.0)
        across = max(_across(sheet, block, before, key) for _, block in row)
        depth += PAD if before == PORTS else _BETWEEN + min(across * _SLANT, _MOST_SLANT)
        depth += arcs if key[0] < Layer.GPU else 0.0
        height = max((sheet.height(v) for v in nodes), default=HEIGHT)
        bands[key] = (depth, depth + height)
        depth += height + (arcs if key[0] >= Layer.GPU else 0.0)
    depth += PAD + (_HEAD if named and linked else 0.0)
    start, way = (y + depth, -1) if flipped else (y, 1)
    for _, block in row:
        for key, (near, far) in bands.items():
            top, bottom = sorted((start + way * near, start + way * far))
            sheet.add_band(block.rows.get(key, ()), top, bottom, arcs_up=(key[0] < Layer.GPU) != flipped)
    name_y = y + 15 if flipped or not linked else y + depth - 8
    for group, block in row:
        if group in sheet.graph.frames:
            wide = _frame_width(sheet, group, block)
            v = next(iter(block.x))
            x = sheet.x[v] - block.x[v] + (block.width - wide) / 2
            stacked = group in sheet.graph.stacked
            sheet.frames.append(Frame(x, y, wide, depth, sheet.graph.frames[group], (x + 9, name_y), stacked))
    middles = {key: start + way * (near + far) / 2 for key, (near, far) in bands.items()}
    _caption_rows(sheet, row, middles)
    return y + depth


def _nodes(sheet: Sheet, row: _Row, key: RowKey) -> list[int]:
    return [v for _, block in row for v in block.rows.get(key, ()) if v in sheet.size]


def _across(sheet: Sheet, block: BoxRows, before: RowKey, key: RowKey) -> float:
    """How far lines between two rows of a box run across."""
    upper, lower = set(block.rows.get(before, ())), set(block.rows.get(key, ()))
    wide = 0.0
    for chain in block.chains.values():
        for v, w in pairwise(chain):
            if (v in upper and w in lower) or (w in upper and v in lower):
                slack = max((sheet.size[u] / 2 for u in (v, w) if sheet.size.get(u, 0.0) > WIDE), default=0)
                wide = max(wide, abs(block.x[v] - block.x[w]) - slack)
    return wide


def _caption_rows(sheet: Sheet, row: _Row, middles: Mapping[RowKey, float]) -> None:
    """Names of the rows of boxes, one for all levels and parts of a layer."""
    layers: dict[Layer, list[RowKey]] = defaultdict(list)
    for key in middles:
        layers[Layer(key[0])].append(key)
    for layer, keys in layers.items():
        nodes = [v for key in keys for v in _nodes(sheet, row, key)]
        y = (middles[keys[0]] + middles[keys[-1]]) / 2
        sheet.captions.append((_caption(sheet, layer, nodes), (6.0, y + 3.5)))


def _caption(sheet: Sheet, layer: Layer, nodes: Sequence[int]) -> str:
    """The name of a layer: as many as there are, and not what its nodes are not called."""
    names = [sheet.topology.node_ids[sheet.graph.nodes[v].members[0]].rpartition("/")[2] for v in nodes]
    words = CAPTIONS[layer]
    if layer is Layer.NVSWITCH and not all("nv" in name.lower() for name in names):
        words = "switches"
    if layer in (Layer.PCIE, Layer.NIC_PCIE) and not all("p" in name.lower() for name in names):
        words = "switches"
    single = len(nodes) == 1 and len(sheet.graph.nodes[nodes[0]].members) == 1
    return words.removesuffix("es" if words.endswith("ches") else "s") if single else words
