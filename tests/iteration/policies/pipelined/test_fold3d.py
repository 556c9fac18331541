"""Fold3D: exact times, the published share, a plain recursion for one device, and bounds on random pipelines."""

from __future__ import annotations

import random

import pytest

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.pipelined.fold3d import Fold3D, forward_share
from coppice.iteration.predicted import predict
from coppice.iteration.running import run_tasks


def pipe(gradients: float, layers: int = 32) -> LayerWorkload:
    """Four devices of forward 1 and backward 2 a micro-batch, whose gradients take so long on a device."""
    return LayerWorkload(
        forward=(4 / layers,) * layers,
        backward=(8 / layers,) * layers,
        bytes=(gradients * 4 / layers,) * layers,
        bytes_per_second=1.0,
    )


@pytest.mark.parametrize(
    ("gradients", "chunks", "plain", "split"),
    [
        (16, 4, 30.25, 30.25),
        (24, 1, 57, 57),
        (24, 4, 38.25, 32.25),
        (24, 8, 35.125, 28.125),
        (32, 4, 46.25, 40.25),
    ],
)
def test_exact_times(gradients: float, chunks: int, plain: float, split: float) -> None:
    for policy, expected in (("breadth-first", plain), ("fold3d", split)):
        found = predict(pipe(gradients), policy, {"chunks": chunks})
        assert found.iteration_seconds == pytest.approx(expected, abs=1e-8)
        assert found.lower_bound_seconds <= found.iteration_seconds + 1e-8


@pytest.mark.parametrize("gradients", [8, 16, 24, 32, 64])
def test_more_chunks_never_take_longer(gradients: float) -> None:
    times = [predict(pipe(gradients), "fold3d", {"chunks": v}).iteration_seconds for v in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)


def test_the_published_share() -> None:
    assert forward_share(0.5) == 1 / 3
    assert forward_share(0.5, recompute=True) == 0.25
    assert Fold3D.of().share(pipe(1)) == 1 / 3  # type: ignore[attr-defined]
    again = LayerWorkload(forward=(1,) * 4, backward=(3,) * 4, bytes=(1,) * 4, bytes_per_second=1.0)
    assert Fold3D.of(recompute=True).share(again) == 0.25  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="found `ratio=-1"):
        forward_share(-1.0)
    with pytest.raises(InputError, match=r"<= 1.0.*\$\.share"):
        predict(pipe(1), "fold3d", {"share": 2})


def test_nothing_left_to_the_forward_pass_waits_for_itself_alone() -> None:
    whole = predict(pipe(24), "fold3d", {"chunks": 4, "share": 0}).iteration_seconds
    split = predict(pipe(24), "fold3d", {"chunks": 4}).iteration_seconds
    assert whole == pytest.approx(38.25, abs=1e-8)
    assert split < whole


def one_device(work: LayerWorkload, micro_batches: int, share: float) -> float:
    """Iterations of one device whose layers are chunks, followed instant by instant of the network and the device."""
    layers = work.layers
    sent = [size / work.bytes_per_second for size in work.bytes]
    alpha = work.message_seconds
    now = net = 0.0
    late: dict[int, float] = {}  # seconds of the message that the forward pass starts
    whole = [0.0] * layers  # end of the message of the backward pass
    begins = []
    for _ in range(12):
        for layer in range(layers):
            end = 0.0
            if late.get(layer):
                end = late[layer]
            now = max(now, end, whole[layer])
            if not layer:
                begins.append(now)
            later = share * sent[layer + 1] if layer + 1 < layers else 0.0
            late.pop(layer, None)
            if later and len(begins) > 1:
                net = max(net, now) + alpha + later
                late[layer + 1] = net
            now += micro_batches * work.forward[layer]
        for layer in reversed(range(layers)):
            now += micro_batches * work.backward[layer]
            at_once = sent[layer] - (share * sent[layer] if layer else 0.0)
            if at_once:
                net = max(net, now) + alpha + at_once
                whole[layer] = net
            else:
                whole[layer] = now
    return begins[-1] - begins[-2]


def test_one_device_follows_the_recursion() -> None:
    draw = random.Random(10)
    for _ in range(200):
        layers, micro_batches = draw.randint(1, 6), draw.randint(1, 4)
        work = LayerWorkload(
            forward=tuple(draw.choice([0.25, 1, 2]) for _ in range(layers)),
            backward=tuple(draw.choice([0.5, 1, 3]) for _ in range(layers)),
            bytes=tuple(draw.choice([0, 1, 4, 12]) for _ in range(layers)),
            bytes_per_second=1.0,
            message_seconds=draw.choice([0, 0.125]),
        )
        share = draw.choice([0, 0.25, 0.5, 1])
        options = {"stages": 1, "micro_batches": micro_batches, "chunks": layers, "share": share}
        found = predict(work, "fold3d", options)
        assert found.iteration_seconds == pytest.approx(one_device(work, micro_batches, share), abs=1e-8)


def some_pipeline(draw: random.Random) -> tuple[LayerWorkload, dict[str, float]]:
    devices, chunks = draw.randint(1, 4), draw.randint(1, 3)
    layers = devices * chunks + draw.randint(0, 3)
    work = LayerWorkload(
        forward=tuple(draw.choice([0, 0.5, 1, 2]) for _ in range(layers)),
        backward=tuple(draw.choice([0, 1, 2, 3.5]) for _ in range(layers)),
        bytes=tuple(draw.choice([0, 1, 4, 20]) for _ in range(layers)),
        bytes_per_second=draw.choice([0.5, 1, 4]),
        message_seconds=draw.choice([0, 0.25]),
    )
    options = {
        "stages": devices,
        "chunks": chunks,
        "micro_batches": draw.randint(1, 6),
        "transfer_seconds": draw.choice([0, 0.25]),
    }
    return work, options


def check_random(seed: int, cases: int) -> None:
    draw = random.Random(seed)
    for _ in range(cases):
        work, options = some_pipeline(draw)
        share = draw.choice([0, 1 / 3, 1])
        found = predict(work, "fold3d", options | {"share": share})
        assert found.iteration_seconds >= found.lower_bound_seconds - 1e-8
        assert found.iteration_seconds >= found.compute_seconds - 1e-8
        assert found == predict(work, "fold3d", options | {"share": share})
        policy = Fold3D.of(**options, share=share)
        assert isinstance(policy, Fold3D)
        of_stage = dict.fromkeys(range(options["stages"] * options["chunks"]), 0.0)  # type: ignore[arg-type]
        for message in policy.sums(work):
            of_stage[message.stage] += (message.seconds - work.message_seconds) * work.bytes_per_second
        assert sum(of_stage.values()) == pytest.approx(sum(work.bytes))
        free = LayerWorkload(
            forward=work.forward, backward=work.backward, bytes=(0,) * work.layers, bytes_per_second=1.0
        )
        # Without gradients the next iteration starts as soon as the device has ended the last one.
        quick = predict(free, "fold3d", options).iteration_seconds
        assert quick <= predict(free, "breadth-first", options).iteration_seconds + 1e-8
        assert quick <= found.iteration_seconds + 1e-8


def test_random_pipelines() -> None:
    check_random(3, 200)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_many_random_pipelines(seed: int) -> None:
    check_random(100 + seed, 1000)


def test_every_stage_waits_for_its_own_gradients() -> None:
    policy = Fold3D.of(chunks=4)
    made = policy.iterations(pipe(32), 4)
    times = run_tasks(made.graph)
    names = {name: task for task, name in enumerate(made.graph.names)}
    sums = [task for task, name in enumerate(made.graph.names) if name.startswith("gradients")]
    for task in sums:
        _, _, _, stage, _, iteration = made.graph.names[task].split()
        first = names[f"{stage}B7 of {iteration}"]
        assert times.start[task] >= times.finish[first] - 1e-9
        after = names.get(f"{stage}F0 of {int(iteration) + 1}")
        if after is not None:
            assert times.start[after] >= times.finish[task] - 1e-9
    # A chunk but the first has two messages, of which the next iteration starts one.
    assert len(sums) == 4 * (4 + 2 * 12)
