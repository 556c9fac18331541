"""Messages as data, and the graph of tasks that they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload, read_workload
from coppice.iteration.pipeline.order import Work
from coppice.iteration.policies.catalogue import policies_of, policy_named
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.step.plan import LayerPass, Message
from coppice.iteration.step.workloads import layers_graph
from coppice.iteration.tasks import run_tasks
from iteration.policies.workloads import THREE, VGG_LIKE, alike, ten, workload_of


def messages_of(name: str, work: LayerWorkload, **settings: Any) -> Sequence[Message]:
    policy = policy_named(name).of(**settings)
    assert isinstance(policy, DataParallelPolicy)
    return policy.messages(work)


def test_the_baseline_sends_layer_by_layer() -> None:
    found = messages_of("wfbp", THREE)
    assert [(each.layers, each.size_bytes, each.needed_by) for each in found] == [
        ((2,), 8, (0,)),
        ((1,), 2, (0,)),
        ((0,), 2, (0,)),
    ]


def test_buckets_wait_for_those_before_them() -> None:
    work = replace(THREE, bytes=(2, 2, 2), dtypes=("float", "half", "float"))
    found = messages_of("ddp", work, bucket_bytes=4, first_bytes=4)
    assert [each.gradients for each in found] == [(2, 0), (1,)]
    assert found[1].layers == (2, 0, 1)


def test_halves_of_an_all_reduce() -> None:
    found = messages_of("dear", THREE, threshold_bytes=4, ahead=1)
    assert [(each.collective, each.layers) for each in found] == [
        ("reduce_scatter", (2,)),
        ("reduce_scatter", (0, 1)),
        ("all_gather", (0, 1)),
        ("all_gather", (2,)),
    ]
    assert [each.after for each in found] == [(), (), (0, 1), (2, 0)]
    assert [each.after_forward for each in found] == [None, None, None, 0]
    assert [each.needed_by for each in found] == [(), (), (0, 1), (2,)]


def test_pushes_and_pulls_run_beside_each_other() -> None:
    work = alike(1, 1, (8.0, 8.0), element_bytes=1)
    made = policy_named("p3").of(slice_elements=4).iterations(work, 1)
    times = run_tasks(made.graph)
    rows = {name: k for k, name in enumerate(made.graph.names)}
    first, second = rows["pull of group 0 part 0 of 0"], rows["push of group 0 part 1 of 0"]
    assert times.start[first] == 7.0  # a push of 4 s after the first backward pass
    assert times.start[second] >= 7.0
    assert {"up 0", "down 0"} <= set(made.graph.streams)


def test_a_message_may_wait_for_the_next_forward_pass() -> None:
    passes = [LayerPass(Work.BACKWARD, layer) for layer in (2, 1, 0)]
    late = Message(name="late", seconds=1.0, size_bytes=1.0, layers=(2,), after_forward=1, needed_by=(2,))
    times = run_tasks((made := layers_graph(THREE, passes, [late], 2)).graph)
    rows = {name: k for k, name in enumerate(made.graph.names)}
    assert times.start[rows["late of 0"]] == times.start[rows["0F0 block 1 of 1"]] == 10.0
    assert times.start[rows["0F0 block 2 of 1"]] == 11.0


def test_layers_of_a_graph_run_as_they_can() -> None:
    fork = workload_of((1, 1, 1, 1), (1, 1, 1, 1), (0, 9, 0, 0), inputs=((), (0,), (0,), (1, 2)))
    passes = [LayerPass(Work.BACKWARD, layer) for layer in (3, 2, 1, 0)]
    sent = Message(name="sum", seconds=9.0, size_bytes=9.0, layers=(1,), needed_by=(1,))
    made = layers_graph(fork, passes, [sent], 2)
    times = run_tasks(made.graph)
    rows = {name: k for k, name in enumerate(made.graph.names)}
    assert [times.start[rows[f"0F0 block {layer} of 1"]] for layer in range(4)] == [8, 16, 9, 17]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"layers": (3,)}, "expected layers 0 to 2 in bad, found 3"),
        ({"needed_by": (7,)}, "expected layers 0 to 2 in bad, found 7"),
        ({"after_forward": -1}, "expected layers 0 to 2 in bad, found -1"),
        ({"after": (4,)}, "expected bad after messages 0 to 1, found 4"),
        ({"credit_bytes": 4.0}, "expected one credit for all messages on network"),
    ],
)
def test_messages_that_cannot_be(message: dict[str, Any], words: str) -> None:
    passes = [LayerPass(Work.BACKWARD, layer) for layer in (2, 1, 0)]
    good = Message(name="good", seconds=1.0, size_bytes=1.0, layers=(0,))
    bad = replace(good, name="bad", **message)
    with pytest.raises(InputError, match=words):
        layers_graph(THREE, passes, [good, bad], 1)


def test_messages_in_a_circle_and_gradients_that_are_not_made() -> None:
    passes = [LayerPass(Work.BACKWARD, layer) for layer in (2, 1, 0)]
    ring = [Message(name=f"m{k}", seconds=1.0, size_bytes=1.0, layers=(0,), after=(1 - k,)) for k in range(2)]
    with pytest.raises(InputError, match="m0 of 0 after m1 of 0 after m0 of 0"):
        run_tasks(layers_graph(THREE, passes, ring, 1).graph)
    with pytest.raises(InputError, match=r"each of 3 layers once, found \[1, 2\]"):
        layers_graph(THREE, passes[:2], [], 1)


def test_what_policies_cost() -> None:
    work = replace(ten(3), workers=4)
    costs = {name: policy_named(name).of().costs(work) for name in ("wfbp", "dear", "p3", "priority")}  # type: ignore[attr-defined]
    assert costs["wfbp"].messages == 10
    assert costs["wfbp"].bytes == pytest.approx(2 * 3 / 4 * 30)
    assert costs["dear"].bytes == pytest.approx(costs["wfbp"].bytes)
    assert costs["p3"].bytes == 30
    cut = policy_named("priority").of(partition_bytes=1).costs(work)  # type: ignore[attr-defined]
    assert cut.messages == 30
    assert cut.bytes == pytest.approx(costs["wfbp"].bytes)


def test_every_policy_of_gradients_says_what_it_needs() -> None:
    for policy in policies_of(DataParallelPolicy).values():
        assert policy.assumes
        assert "gradients" in policy.decides
        assert policy.__doc__


def test_a_policy_decides_alike_whatever_it_was_asked_before() -> None:
    policy = policy_named("pace").of(fusion="end")
    assert isinstance(policy, DataParallelPolicy)
    first = policy.messages(VGG_LIKE)
    policy.messages(ten(2))
    assert policy.messages(VGG_LIKE) == first


def test_priorities_of_slices_follow_the_layers() -> None:
    for name in ("priority", "p3", "bytescheduler", "pace"):
        found = messages_of(name, VGG_LIKE)
        rank = sorted(found, key=lambda each: each.priority)
        assert all(a.layers <= b.layers for a, b in pairwise(rank))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"inputs": ((), (0,), (2,))}, r"layers before layer 2, found 2 at \$\.inputs\[2\]"),
        ({"inputs": ((),)}, r"one for each of 3 layers, found 1 at \$\.inputs"),
        ({"weight_backward": (1, 1, 3)}, r"0 to 2 seconds.*found 3 at \$\.weight_backward\[2\]"),
        ({"matrices": (None, None, (9, 9))}, r"found 9 x 9 elements at \$\.matrices\[2\]"),
        ({"samples": 0}, r"found 0 at \$\.samples"),
        ({"element_bytes": 0}, r"found 0 at \$\.element_bytes"),
        ({"round_trip_seconds": -1}, r"found -1 at \$\.round_trip_seconds"),
        ({"separable": (True, False)}, r"found 2 at \$\.separable"),
        ({"dtypes": ("half",)}, r"found 1 at \$\.dtypes"),
    ],
)
def test_keys_that_cannot_be(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(THREE, **given)


def test_a_file_may_have_every_key(tmp_path: Any) -> None:
    path = tmp_path / "work.json"
    path.write_text(
        '{"forward": [1, 1], "backward": [2, 2], "bytes": [4, 96], "bytes_per_second": 1, "workers": 4, '
        '"inputs": [[], [0]], "weight_backward": [1, 0.5], "separable": [true, false], '
        '"matrices": [null, [4, 6]], "samples": 2, '
        '"element_bytes": 4, "dtypes": ["half", "half"], "round_trip_seconds": 0.5}'
    )
    work = read_workload(path)
    assert work.matrices == (None, (4, 6))
    assert work.inputs == ((), (0,))
    assert work.weight_seconds(1) == 0.5
    assert [work.is_separable(layer) for layer in (0, 1)] == [True, False]
    path.write_text('{"forward": [1], "backward": [1], "bytes": [1], "bytes_per_second": 1, "speed": 4}')
    with pytest.raises(InputError, match=r"unknown field `speed`"):
        read_workload(path)


class Reversed(DataParallelPolicy):
    """A policy of a user's own, which gives messages itself."""

    name = "reversed"
    about = "for the test"
    stock: ClassVar[str | None] = None

    def messages(self, workload: LayerWorkload) -> list[Message]:
        return [
            Message(name=f"layer {layer}", seconds=1.0, size_bytes=1.0, layers=(layer,), needed_by=(layer,))
            for layer in range(workload.layers)
        ]


def test_a_policy_of_ones_own_may_give_messages() -> None:
    made = Reversed(None).iterations(THREE, 2)
    assert run_tasks(made.graph).seconds == 9 + 1 + 9 + 1
