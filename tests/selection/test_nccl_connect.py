"""Rings and trees over boxes: every rank once, parents and children agree, and both trees share the work."""

from __future__ import annotations

import pytest

from coppice.selection.nccl.communicator import found_by
from coppice.selection.nccl.connect import double_tree
from coppice.selection.nccl.machines import machines_of
from coppice.topology.presets import preset


@pytest.mark.parametrize("boxes", [2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 64])
def test_double_trees(boxes: int) -> None:
    for tree in range(2):
        places = [double_tree(boxes, box)[tree] for box in range(boxes)]
        roots = [box for box, place in enumerate(places) if place.up == -1]
        assert len(roots) == 1
        for box, place in enumerate(places):
            for child in (place.left, place.right):
                if child != -1:
                    assert places[child].up == box
            if place.up != -1:
                assert box == (places[place.up].left if place.first_child else places[place.up].right)
        # Every box leads to the root.
        for box in range(boxes):
            steps = 0
            while places[box].up != -1:
                box, steps = places[box].up, steps + 1
            assert steps <= boxes.bit_length()
    if boxes % 2 == 0:  # who has children in one tree is a leaf of the other
        inner = [
            [(place.left, place.right) != (-1, -1) for place in double_tree(boxes, box)]
            for box in range(boxes)
        ]
        assert all(sum(both) <= 1 or box in (0, boxes - 1) for box, both in enumerate(inner))


@pytest.mark.parametrize(("name", "boxes"), [("dgx-1v", 1), ("dgx-a100", 3), ("dgx-h100", 4), ("ndv2", 2)])
def test_rings_and_trees_have_every_rank(name: str, boxes: int) -> None:
    topology = preset(name, boxes=boxes)
    found = found_by(machines_of(topology).boxes)
    connections = found.connections
    assert connections.count == found.communicator.channels
    for ring in connections.rings:
        assert sorted(ring) == list(range(topology.num_ranks))
        # A ring comes to each box once.
        changes = sum(a // 8 != b // 8 for a, b in zip(ring, ring[1:] + ring[:1], strict=True))
        assert changes == (boxes if boxes > 1 else 0)
    for tree in connections.trees:
        assert sum(node.up == -1 for node in tree) == 1
        for rank, node in enumerate(tree):
            assert len(node.down) <= 3
            assert all(tree[child].up == rank for child in node.down)
        assert sum(len(node.down) for node in tree) == topology.num_ranks - 1


def test_the_second_child_hangs_on_the_second_gpu() -> None:
    """Four DGX A100 with balanced trees: one child of a box is on the chain's second GPU."""
    found = found_by(machines_of(preset("dgx-a100", boxes=4)).boxes)
    tree = found.connections.trees[0]
    most = max(
        len([child for child in node.down if child // 8 != rank // 8]) for rank, node in enumerate(tree)
    )
    assert most == 1
