"""Policies of data-parallel training: exact times of small workloads, and bounds on random ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import pytest

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.catalogue import policies_of
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy, UpdateScope
from coppice.iteration.policies.data_parallel.sharded import ShardedPolicy
from coppice.iteration.policies.policy import Policy
from coppice.iteration.predicted import predict
from coppice.iteration.step.workloads import steady_iteration
from iteration.policies.workloads import SIX, THREE, alike, seconds, workload_of


@pytest.mark.parametrize(
    ("work", "policy", "settings", "expected"),
    [
        (THREE, "serial", {}, 21),
        (THREE, "wfbp", {}, 17),
        (THREE, "ddp", {"bucket_bytes": 4, "first_bytes": 4}, 17),
        *((alike(1, 2, (s,) * 10), "serial", {}, 30 + 10 * s) for s in (1, 2, 3, 4, 6)),
        *((alike(1, 2, (s,) * 10), "wfbp", {}, t) for s, t in ((1, 31), (2, 32), (3, 42), (4, 52), (6, 72))),
        (alike(1, 2, (*(0.1,) * 7, 20, 3, 1)), "wfbp", {}, 37.7),
        (SIX, "wfbp", {}, 16.5),
        (SIX, "ddp", {"bucket_bytes": 100, "first_bytes": 100}, 18.5),
        *(
            (
                alike(0.05, 0.1, (0.2,) * 200, 0.05),
                "ddp",
                {"bucket_bytes": 40 / count - 1e-6, "first_bytes": 40 / count - 1e-6},
                10 + 20 / count + 40 + count * 0.05 if count < 200 else 60.1,
            )
            for count in (1, 10, 20, 25, 200)
        ),
    ],
)
def test_exact_times(work: LayerWorkload, policy: str, settings: dict[str, Any], expected: float) -> None:
    assert seconds(work, policy, **settings) == pytest.approx(expected, abs=1e-8)


class PriorityByLayer(DataParallelPolicy):
    """Slices with the layer as priority and no barrier: what later policies do."""

    name = "priority by layer"
    about = "for the test"
    update_scope: ClassVar[UpdateScope] = UpdateScope.GROUP

    def __init__(self, most: float) -> None:
        super().__init__(None)
        self.most = most

    def parts(self, workload: LayerWorkload, size_bytes: float) -> list[float]:
        del workload
        whole = int(size_bytes // self.most)
        rest = size_bytes - whole * self.most
        return [self.most] * whole + ([rest] if rest > 1e-12 else [])

    def key(self, workload: LayerWorkload, group: Sequence[int]) -> int:
        del workload
        return group[0]


@pytest.mark.parametrize(
    ("work", "most", "expected"),
    [
        (THREE, 100, 16),
        (THREE, 1, 15),
        *((alike(1, 2, (s,) * 10), 100, t) for s, t in ((1, 31), (2, 32), (3, 35), (4, 44), (6, 64))),
        *((alike(1, 2, (s,) * 10), 0.5, t) for s, t in ((1, 31), (2, 32), (3, 33), (4, 43), (6, 63))),
        (alike(1, 2, (*(0.1,) * 7, 20, 3, 1)), 100, 37.1),
        (alike(1, 2, (*(0.1,) * 7, 20, 3, 1)), 1, 30.7),
    ],
)
def test_the_questions_suffice_for_priorities(work: LayerWorkload, most: float, expected: float) -> None:
    found = steady_iteration(partial(PriorityByLayer(most).iterations, work))
    assert found.seconds == pytest.approx(expected, abs=1e-8)
    assert found.seconds >= work.lower_bound_seconds() - 1e-8


def test_no_policy_beats_the_bound() -> None:
    draw = random.Random(5)
    for _ in range(150):
        layers = draw.randint(1, 8)
        work = workload_of(
            tuple(draw.choice([0, 1, 2, 0.3]) for _ in range(layers)),
            tuple(draw.choice([0, 1, 2, 0.7]) for _ in range(layers)),
            tuple(draw.choice([0, 0.1, 1, 5]) for _ in range(layers)),
            rate=draw.choice([0.5, 1, 3]),
            message=draw.choice([0, 0.05, 1]),
        )
        least = work.lower_bound_seconds()
        serial = seconds(work, "serial")
        for policy, settings in (("wfbp", {}), ("ddp", {"bucket_bytes": 3, "first_bytes": 1})):
            assert least - 1e-8 <= seconds(work, policy, **settings) <= serial + 1e-8
        for most in (0.5, 100):
            found = steady_iteration(partial(PriorityByLayer(most).iterations, work))
            assert found.seconds >= least - 1e-8


def test_groups_that_lose_a_layer_are_refused() -> None:
    class Lossy(DataParallelPolicy):
        name = "lossy"
        about = "for the test"

        def groups(self, workload: LayerWorkload) -> list[list[int]]:
            del workload
            return [[0], [0]]

    with pytest.raises(InputError, match="each of 3 layers once"):
        Lossy(None).iterations(THREE, 1)


def test_what_cannot_be_asked() -> None:
    with pytest.raises(InputError, match="expected a policy"):
        predict(THREE, "best")
    with pytest.raises(InputError, match="it takes bucket_bytes, first_bytes"):
        predict(THREE, "ddp", {"caps": 1})
    with pytest.raises(InputError, match="it takes none"):
        predict(THREE, "serial", {"caps": 1})
    with pytest.raises(InputError, match=r"`int`, got `str` - at `\$\.stages`"):
        predict(THREE, "1f1b", {"stages": "many"})
    with pytest.raises(InputError, match="a layer for each of 4 stages, found 3"):
        predict(THREE, "1f1b")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"bytes": (1, 2)}, "3 in `forward`, 3 in `backward`, 2 in `bytes`"),
        ({"forward": (1, -1, 1)}, r"found -1 at \$\.forward\[1\]"),
        ({"bytes_per_second": 0.0}, r"found 0.0 at \$\.bytes_per_second"),
        ({"message_seconds": float("inf")}, r"\$\.message_seconds"),
        ({"workers": 0}, r"\$\.workers"),
    ],
)
def test_workloads_that_cannot_be(given: dict[str, Any], words: str) -> None:
    fields = {
        "forward": (1, 1, 1),
        "backward": (2, 2, 2),
        "bytes": (2, 2, 8),
        "bytes_per_second": 1.0,
        **given,
    }
    with pytest.raises(InputError, match=words):
        LayerWorkload(**fields)


def test_every_policy_says_what_it_is() -> None:
    for name, policy in (policies_of(Policy) | policies_of(ShardedPolicy)).items():
        assert policy.name == name
        assert policy.about
        assert len(policy.about) < 80
