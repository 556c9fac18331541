"""Channels and numbers of thread blocks: within what loaders take, and the same program all the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.planners.planning import plan
from coppice.program.dialects.thread_blocks.assignment import _dealt, waited_first
from coppice.program.dialects.thread_blocks.channels import path_numbers, within_peers
from coppice.program.dialects.thread_blocks.lower import lower_to_program, prepare
from coppice.program.dialects.thread_blocks.program import Program
from coppice.program.dialects.thread_blocks.verify import verify_program
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.topology.presets import preset


def body_of(name: str, collective: Collective = Collective.ALL_GATHER, **options: int) -> Forest:
    made = plan(Problem(topology=preset(name, **options), collective=collective), trees=1, ring=False).plan
    assert made.forest is not None
    return made.forest


def most_peers(program: Program) -> int:
    """Most thread blocks of a rank that send, or receive, on one channel."""
    most = 0
    for peer in (program.block_send, program.block_recv):
        used = peer >= 0
        key = program.block_rank[used] * np.int64(1000) + program.block_channel[used]
        most = max(most, int(np.unique(key, return_counts=True)[1].max()))
    return most


@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.ALL_REDUCE])
def test_peers_are_dealt_out_over_channels(collective: Collective) -> None:
    body = body_of("star", collective, gpus=12)
    free = lower_to_program(body, channels=1)
    assert most_peers(free) == 11
    for most, channels in ((11, 1), (6, 2), (4, 3), (3, 4), (2, 6)):
        program = lower_to_program(body, channels=channels, max_peers=most)
        assert most_peers(program) <= most
        assert program.num_channels == channels  # as few as there can be
        assert verify_program(program).ok
        with pytest.raises(CheckError, match=rf"peers for {channels} channels, {most - 1} of a rank on each"):
            lower_to_program(body, channels=channels, max_peers=most - 1)
    with pytest.raises(CheckError, match="allow more channels"):
        lower_to_program(body, channels=4, instances=2, max_peers=4)
    both = lower_to_program(body, channels=6, instances=2, max_peers=4)
    assert most_peers(both) <= 4
    assert verify_program(both).ok


def test_peers_of_irregular_traffic() -> None:
    """Ranks with different peers: first come, first served still keeps to the limit."""
    rng = np.random.default_rng(1)
    prepared = prepare(body_of("star", gpus=16), in_place=True)
    keep = rng.random(len(prepared.rows.src)) < 0.5
    rows = replace(
        prepared.rows,
        **{name: getattr(prepared.rows, name)[keep] for name in ("src", "dst", "run", "op", "path", "round")},
    )
    color = np.zeros(len(rows.src), dtype=np.int64)
    for most in (1, 2, 3, 5):
        found = within_peers(rows, color, most, max_channels=32)
        assert found is not None
        for ends in (rows.src, rows.dst):
            other = rows.dst if ends is rows.src else rows.src
            pairs = np.unique(np.stack([ends, found, other]), axis=1)
            assert np.unique(pairs[:2], axis=1, return_counts=True)[1].max() <= most
    assert within_peers(rows, color, 1, max_channels=4) is None


def test_boxes_take_turns_on_channels() -> None:
    """What a box passes on begins at ranks 8 apart: it is spread over 8 channels, not heaped on one."""
    program = lower_to_program(body_of("dgx-h100", boxes=16), channels=8)
    sends = np.zeros(program.num_blocks, dtype=np.int64)
    np.add.at(sends, program.step_block, 1)
    inside = (program.block_send >= 0) & (program.block_rank // 8 == program.block_send // 8)
    assert sends[inside].max() <= 4 * np.median(sends[inside])
    assert verify_program(program).ok


@pytest.mark.parametrize("colors", [2, 3, 4, 8])
def test_numbers_at_any_distance_take_turns(colors: int) -> None:
    dealt = _dealt(1024, colors)
    for distance in (1, 2, 3, 4, 8, 16, 64):
        counts = np.bincount(dealt[::distance], minlength=colors)
        assert counts.max() <= 2 * counts.mean(), distance
        assert counts.min() > 0


def test_paths_of_equal_nodes_are_one() -> None:
    schedule = lower(body_of("dgx-a100", boxes=2))
    numbers = path_numbers(schedule)
    sequences = [
        tuple(schedule.path_nodes[start:end].tolist())
        for start, end in zip(schedule.path_start[:-1], schedule.path_start[1:], strict=True)
    ]
    seen: dict[tuple[int, ...], int] = {}
    for number, nodes in zip(numbers.tolist(), sequences, strict=True):
        assert seen.setdefault(nodes, number) == number
    assert len(set(seen.values())) == len(seen)


def test_awaited_thread_blocks_come_first() -> None:
    program = lower_to_program(body_of("mi250", Collective.ALL_REDUCE, boxes=2), fused=False)
    assert verify_program(program).ok
    again = waited_first(program)
    assert verify_program(again).ok
    for rank in range(program.num_ranks):
        first, last = int(again.rank_start[rank]), int(again.rank_start[rank + 1])
        steps = slice(int(again.step_start[first]), int(again.step_start[last]))
        deps = slice(int(again.dep_start[steps.start]), int(again.dep_start[steps.stop]))
        awaited = np.unique(again.dep_block[deps])
        assert awaited.tolist() == list(range(len(awaited)))
    assert int(again.dep_block.max()) < int(program.dep_block.max())
    assert sorted(again.count.tolist()) == sorted(program.count.tolist())
    same = waited_first(again)
    assert np.array_equal(same.dep_block, again.dep_block)
