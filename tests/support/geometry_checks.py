"""What a drawing of a topology must be like: nothing written lies over anything else, no line comes near it."""

from __future__ import annotations

from itertools import combinations, pairwise

from coppice.report.topology.cut import CutLine, names_on
from coppice.report.topology.geometry import NodeBox, meets
from coppice.report.topology.sheet import DrawingLayout


def check_layout(layout: DrawingLayout, cut: CutLine | None = None) -> None:
    """Everything is on the drawing, apart, and nothing that is written is struck through."""
    written = {f"label {v}": label.at for v, label in layout.labels.items()}
    written |= {f"name {at}": box for at, box in enumerate(names_on(layout))}
    if cut is not None:
        assert cut.name_at is not None
        written["cut"] = cut.name_at
    for box in (*layout.place.values(), *written.values()):
        assert box.left >= 0
        assert box.top >= 0
        assert box.right <= layout.width + 0.01
        assert box.bottom <= layout.height + 0.01
    assert layout.labels.keys() == layout.place.keys()
    for (p, at), (q, to) in combinations(layout.place.items(), 2):
        assert not at.overlaps(to, 2.0), (p, q)
    for (name, box), (other, second) in combinations(written.items(), 2):
        assert not box.overlaps(second), (name, other)
    for name, box in written.items():
        own = name.removeprefix("label ")
        for v, at in layout.place.items():
            if str(v) != own:
                assert not box.overlaps(at), (name, v)
        for pair, way in layout.routes.items():
            assert not way.crosses(box, 1.0), (name, pair)
    for pair, way in layout.routes.items():
        for v, at in layout.place.items():
            if v not in pair:
                assert not way.crosses(at, 1.0) or at.width < 12, (pair, v)
    check_frames(layout)
    if cut is not None:
        check_cut(layout, cut, list(written.values()))


def check_frames(layout: DrawingLayout) -> None:
    """Boxes are apart, and every node is in one or outside all of them."""
    for f, g in combinations(layout.frames, 2):
        assert not f.box.overlaps(g.box)
    for at in layout.place.values():
        for frame in layout.frames:
            inside = [frame.x < x < frame.x + frame.width for x in (at.left, at.right)]
            inside += [frame.y < y < frame.y + frame.height for y in (at.top, at.bottom)]
            assert all(inside) or not frame.box.overlaps(at)


def check_cut(layout: DrawingLayout, cut: CutLine, written: list[NodeBox]) -> None:
    """The line of the cut strikes no label, and its name is not inside it."""
    assert cut.name_at is not None
    assert not cut.inside((cut.name_at.x, cut.name_at.y))
    for loop in cut.loops:
        for p, q in pairwise([*loop, loop[0]]):
            for box in written:
                assert not meets(p, q, box)
    if cut.leader is not None:
        for box in [label.at for label in layout.labels.values()]:
            assert not meets(*cut.leader, box)
