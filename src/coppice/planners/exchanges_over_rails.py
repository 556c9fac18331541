"""All-to-alls between boxes on rails, in which blocks that go the same way can travel as one message.

A rail joins members of equal number in all boxes, so what is for a member of another number is passed on within a box.
Each rank sends to every other box once and to every other member of its own box once, however many ranks there are:

* *rail first*: across to the box of the receiver, on the rail of the sender, and on from there. Blocks of all boxes for
  one member of a box are one message within it, and nothing waits for a box before it crosses;
* *both ways*: every other block changes its rail before it crosses, so that links of boxes and rails are busy at both
  ends of the time;
* *straight*: one member of each box crosses to a given other box for all members, with three messages in a row. That
  takes few messages where boxes are many.

The first two send each block as rarely as possible.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.over_boxes import rails
from coppice.schedule.schedule import Op, Schedule

Way = Literal["rail first", "both ways", "straight"]
WAYS: tuple[Way, ...] = ("rail first", "both ways", "straight")

Rails = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]


def exchanged_on_rails(problem: Problem, way: Way, *, joined: Rails | None = None) -> Schedule | None:
    """An all-to-all in steps over rails; None where not every member of the boxes has one, or for demands.

    Args:
        joined: What :func:`rails` finds, if that is known.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = exchanged_on_rails(Problem(preset("dgx-h100", boxes=2), "all_to_all"), "rail first")
        >>> found.num_transfers, len(set(zip(found.step.tolist(), found.src.tolist(), found.dst.tolist())))
        (352, 128)
    """
    if problem.collective is not Collective.ALL_TO_ALL or problem.demands is not None:
        return None
    joined = joined or rails(problem.topology)
    if joined is None or len(joined[0][0]) != len(joined[1]):
        return None
    boxes = np.array(joined[0], dtype=np.int64)
    count, size = boxes.shape
    if count < 2 or size < 2 or (way == "straight" and count < 3):
        return None
    ranks = count * size
    box, member = np.empty(ranks, dtype=np.int64), np.empty(ranks, dtype=np.int64)
    box[boxes], member[boxes] = np.arange(count)[:, None], np.arange(size)[None, :]
    sender, receiver = np.divmod(np.arange(ranks * ranks), ranks)
    apart = sender != receiver
    sender, receiver = sender[apart], receiver[apart]
    stops = [sender, *_relays(way, boxes, box, member, sender, receiver), receiver]
    return _in_steps(problem, sender, receiver, np.stack(stops, axis=1), within=box[sender] == box[receiver])


def _relays(
    way: Way,
    boxes: NDArray[np.int64],
    box: NDArray[np.int64],
    member: NDArray[np.int64],
    sender: NDArray[np.int64],
    receiver: NDArray[np.int64],
) -> list[NDArray[np.int64]]:
    """Ranks that blocks pass, in order; one that is sender or receiver passes nothing on."""
    count, size = boxes.shape
    here, there = box[sender], box[receiver]
    crossing = here != there
    if way == "straight":
        carrier = ((there - here) % count - 1) * size // (count - 1)
        own, other = boxes[here, carrier], boxes[there, carrier]
        return [np.where(crossing, own, receiver), np.where(crossing, other, receiver)]
    across = boxes[there, member[sender]]
    if way == "both ways":
        across = np.where((sender + receiver) % 2 == 1, boxes[here, member[receiver]], across)
    return [np.where(crossing, across, receiver)]


def _in_steps(
    problem: Problem,
    sender: NDArray[np.int64],
    receiver: NDArray[np.int64],
    stops: NDArray[np.int64],
    *,
    within: NDArray[np.bool_],
) -> Schedule:
    """Rows of blocks from stop to stop: by step, of what goes on first, and to the rank after each first."""
    topology = problem.topology
    ranks, legs = topology.num_ranks, stops.shape[1] - 1
    src, dst = stops[:, :-1].ravel(), stops[:, 1:].ravel()
    chunk = np.repeat(np.arange(len(sender)), legs)
    step = np.tile(np.arange(legs), len(sender))
    if legs == 2:  # what stays in a box goes with what has come to it
        step[np.repeat(within, legs)] = 1
    moved = src != dst
    left = np.bincount(chunk[moved], minlength=len(sender))[chunk] - step
    turn = (receiver - sender)[chunk] % ranks
    order = np.lexsort((turn, -left, step))
    order = order[moved[order]]
    rows = len(order)
    return Schedule(
        topology=topology,
        collective=Collective.ALL_TO_ALL,
        root=-1,
        slot_weight=np.ones(ranks * ranks, dtype=np.int64),
        chunk_slot=(sender * ranks + receiver).astype(np.int32),
        chunk_share=np.ones(len(sender), dtype=np.int64),
        src=src[order].astype(np.int32),
        dst=dst[order].astype(np.int32),
        chunk=chunk[order].astype(np.int32),
        op=np.full(rows, Op.COPY, dtype=np.int8),
        path=np.full(rows, -1, dtype=np.int32),
        step=step[order].astype(np.int32),
        after_start=np.zeros(rows + 1, dtype=np.int64),
        after=np.zeros(0, dtype=np.int32),
        path_start=np.zeros(1, dtype=np.int64),
        path_nodes=np.zeros(0, dtype=np.int32),
    )
