"""Several process groups matched at once: verified plans, times beside bounds, and what is refused."""

from __future__ import annotations

import pytest

from coppice.errors import InputError, UnreachableError
from coppice.planners.synthesis.groups import read_groups, synthesize_groups
from coppice.schedule.verification.verify import verify
from coppice.simulation.jobs import Job, simulate_together
from coppice.simulation.model import Model
from coppice.topology.presets import preset

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    ("name", "parameters", "groups"),
    [
        ("star", {"gpus": 6}, "3"),
        ("star", {"gpus": 6}, "2:3"),
        ("dgx-a100", {"boxes": 2}, "8"),
        ("dgx-h100", {"boxes": 2}, "2:8"),
        ("torus", {"dims": (4, 4)}, "4"),
        ("dgx-1v", {}, "0-3/4-7"),
        ("ring", {"gpus": 3}, "3"),
        ("star", {"gpus": 2}, "1"),
    ],
)
def test_every_group_has_a_plan_and_none_beats_the_bound(
    collective: str, name: str, parameters: dict[str, int], groups: str
) -> None:
    topology = preset(name, **parameters)
    members = read_groups(groups, topology.num_ranks)
    found = synthesize_groups(topology, collective, members, seeds=3)
    assert [plan.topology.num_ranks for plan in found.plans] == [len(group) for group in members]
    assert all(verify(plan).ok for plan in found.plans)
    assert found.ns_per_byte >= found.least_ns_per_byte
    again = synthesize_groups(topology, collective, members, seeds=3)
    assert [plan.schedule.chunk.tolist() for plan in again.plans] == [
        plan.schedule.chunk.tolist() for plan in found.plans
    ]


def test_groups_that_do_not_share_attain_the_bound() -> None:
    found = synthesize_groups(preset("star", gpus=4), "all_gather", [[0, 1], [2, 3]])
    assert found.gap == 0
    across = synthesize_groups(preset("dgx-h100", boxes=4), "all_reduce", read_groups("4:8", 32))
    assert across.gap < 0.06


def test_groups_run_together_in_the_simulator() -> None:
    topology = preset("dgx-a100", boxes=2)
    found = synthesize_groups(topology, "all_gather", read_groups("2:8", 16), seeds=3)
    jobs = [Job(name=str(k), body=plan.body, size_bytes=1 << 26) for k, plan in enumerate(found.plans)]
    together = simulate_together(jobs, model=Model(), topology=topology)
    least = float(found.least_ns_per_byte) * (1 << 26) / 1e3
    assert together.time_us >= least


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("3", "divides 8 ranks, found 3 x 1"),
        ("4:4", "found 4 x 4"),
        ("0-3/4-6", "found 7 ranks in 2 groups"),
        ("0-3/3-7", "each of 8 ranks once"),
        ("a/b", "found 'a'"),
        ("0", "found 0 x 1"),
    ],
)
def test_groups_that_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_groups(text, 8)


def test_groups_that_cannot_be_served() -> None:
    ring = preset("ring", gpus=4)
    with pytest.raises(UnreachableError, match="without other ranks"):
        synthesize_groups(ring, "all_gather", [[0, 2], [1, 3]])
    with pytest.raises(InputError, match="of one size"):
        synthesize_groups(ring, "all_gather", [[0], [1, 2, 3]])
    with pytest.raises(InputError, match="each of 4 ranks once"):
        synthesize_groups(ring, "all_gather", [[0, 1]])
    with pytest.raises(InputError, match="found broadcast"):
        synthesize_groups(ring, "broadcast", [[0, 1], [2, 3]])
