"""Boxes of equal numbers of ranks, and the rails that join them.

Rails join members of equal number in all boxes. Not every member need have one: a GPU whose NIC is gone takes part
through the others of its box.
"""

from __future__ import annotations

from functools import lru_cache

from coppice.errors import UnreachableError
from coppice.planners.algorithms.parts.boxes import equal_boxes
from coppice.schedule.schedule import Schedule, routed
from coppice.topology.model import Topology
from coppice.topology.routing import Router


@lru_cache(maxsize=8)
def rails(topology: Topology) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]] | None:
    """Boxes of equal numbers of ranks, and the numbers of members that reach those of equal number in all other boxes.

    None where there are no such boxes, or no rails.

    Examples:
        >>> from coppice.topology.operations import remove_nodes
        >>> from coppice.topology.presets import preset
        >>> rails(remove_nodes(preset("dgx-a100", boxes=2), ["box0/nic0"]))[1]
        (1, 2, 3, 4, 5, 6, 7)
    """
    boxes = equal_boxes(topology)
    if boxes is None:
        return None
    router = Router(topology)

    def joins(member: int) -> bool:
        ends = [box[member] for box in boxes]
        try:
            for one in ends:
                for other in ends:
                    if one != other:
                        router.path(one, other)
        except UnreachableError:
            return False
        return True

    found = tuple(member for member in range(len(boxes[0])) if joins(member))
    return (boxes, found) if found else None


def routed_or_none(schedule: Schedule) -> Schedule | None:
    """The schedule with its routes; None where members of a box do not reach each other."""
    try:
        return routed(schedule)
    except UnreachableError:
        return None
