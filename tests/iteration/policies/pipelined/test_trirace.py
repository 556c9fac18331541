"""TriRace: its closed forms on a grid, who waits for whom, what is sent, and bounds on random pipelines."""

from __future__ import annotations

import random
from typing import Any

import pytest

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.pipelined.trirace import TriRace
from coppice.iteration.predicted import predict
from coppice.iteration.running import run_tasks


def even(stages: int, gradients: float, *, workers: int = 2) -> LayerWorkload:
    return LayerWorkload(
        forward=(1,) * stages,
        backward=(2,) * stages,
        bytes=(gradients,) * stages,
        bytes_per_second=1.0,
        workers=workers,
    )


def seconds(work: LayerWorkload, **settings: Any) -> float:
    found = predict(work, "trirace", settings)
    assert found.iteration_seconds >= found.lower_bound_seconds - 1e-8
    return found.iteration_seconds


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("gradients", [0, 2, 6, 12, 40])
def test_the_formulas(stages: int, gradients: float) -> None:
    for micro_batches in (stages, stages + 1, 2 * stages, 4 * stages):
        given: dict[str, Any] = {"stages": stages, "micro_batches": micro_batches, "chunk_bytes": 2}
        computes = 3 * micro_batches
        late = gradients + 3 * (stages - 1) if gradients else 0
        assert seconds(even(stages, gradients), **given) == pytest.approx(max(computes, late), abs=1e-8)
        waits = seconds(even(stages, gradients), **given, delayed=False)
        assert waits == pytest.approx(computes + gradients, abs=1e-8)


def test_activations_wait_for_a_piece_at_most() -> None:
    given = {"stages": 4, "micro_batches": 8, "transfer_seconds": 0.25}
    alone = seconds(even(4, 0), **given)
    times = [seconds(even(4, 12), **given, chunk_bytes=size) for size in (0.125, 1, 99)]
    assert times == pytest.approx([alone, alone + 2.5, alone + 11], abs=1e-8)
    assert seconds(even(4, 12), **given, chunk_bytes=0.125, classes=False) == pytest.approx(
        times[-1], abs=1e-8
    )


def test_gradients_are_said_to_be_late() -> None:
    assert predict(even(2, 1), "trirace", {"stages": 2}).record()["staleness"] == 1
    assert predict(even(2, 1), "1f1b", {"stages": 2}).record()["staleness"] == 0


def test_fewer_micro_batches_than_stages_are_refused() -> None:
    with pytest.raises(InputError, match="as many micro-batches in a group as there are stages, 4, or more"):
        seconds(even(4, 1), stages=4, micro_batches=3)


def policy(**settings: Any) -> TriRace:
    made = TriRace.of(**settings)
    assert isinstance(made, TriRace)
    return made


def test_rows_are_exchanged_where_that_is_less() -> None:
    work = even(2, 8, workers=8)
    # An eighth of the rows of 8 replicas: as an all-gather half of what the sum of all rows takes.
    (rows, *_) = policy(stages=2, micro_batches=2, touched=0.125).sums(work)
    assert (rows.urgency, rows.seconds, rows.size_bytes) == (1, 4.0, 8)
    assert all(each.urgency == 2 for each in policy(stages=2, micro_batches=2, touched=0.5).sums(work))
    assert all(each.urgency == 2 for each in policy(stages=2, micro_batches=2).sums(work))


def test_tied_embeddings_are_summed_at_both_ends() -> None:
    work = even(3, 8)
    sums = policy(stages=3, micro_batches=4, tied=True).sums(work)
    assert [(each.stage, each.of_stages) for each in sums if each.urgency == 1] == [(0, (0, 2)), (2, (0, 2))]
    with pytest.raises(InputError, match=r"found `touched=0.5`: leave one of them out"):
        policy(stages=3, micro_batches=4, tied=True, touched=0.5).sums(work)


def some_pipeline(draw: random.Random) -> tuple[LayerWorkload, dict[str, Any]]:
    stages = draw.randint(1, 4)
    layers = stages + draw.randint(0, 3)
    work = LayerWorkload(
        forward=tuple(draw.choice([0, 0.5, 1, 2]) for _ in range(layers)),
        backward=tuple(draw.choice([0, 1, 2, 3.5]) for _ in range(layers)),
        bytes=tuple(draw.choice([0, 1, 4, 20]) for _ in range(layers)),
        bytes_per_second=draw.choice([0.5, 1, 4]),
        message_seconds=draw.choice([0, 0.25]),
        workers=draw.choice([2, 8]),
    )
    tied = draw.random() < 0.3
    settings = {
        "stages": stages,
        "micro_batches": stages + draw.randint(0, 4),
        "transfer_seconds": draw.choice([0, 0.25]),
        "chunk_bytes": draw.choice([0.5, 3, 100]),
        "devices_of_node": draw.choice([1, 2]),
        "touched": 1.0 if tied else draw.choice([0.1, 1.0]),
        "tied": tied,
        "delayed": draw.random() < 0.8,
        "classes": draw.random() < 0.8,
    }
    return work, settings


def check_random(seed: int, cases: int) -> None:
    draw = random.Random(seed)
    for _ in range(cases):
        work, settings = some_pipeline(draw)
        found = predict(work, "trirace", settings)
        assert found == predict(work, "trirace", settings)
        assert found.iteration_seconds >= found.lower_bound_seconds - 1e-8
        chosen = policy(**settings)
        sent = sum(each.size_bytes for each in chosen.sums(work))
        again = work.bytes[0] if settings["tied"] and settings["stages"] > 1 else 0
        assert sent == pytest.approx(sum(work.bytes) + again)
        made = chosen.iterations(work, 4)
        times = run_tasks(made.graph)
        at = {name: task for task, name in enumerate(made.graph.names)}
        size, last = settings["micro_batches"], settings["stages"] - 1
        for group in range(4):
            for number, message in enumerate(chosen.sums(work)):
                task = at[f"gradients {number} of stage {message.stage} of group {group}"]
                for stage in message.of_stages:
                    ready = at[f"{stage}B{(group + 1) * size - 1}"]
                    assert times.start[task] >= times.finish[ready] - 1e-9
                    if group < 2:
                        due = at[f"{stage}F{(group + 2) * size}"]
                        assert times.start[due] >= times.finish[task] - 1e-9
        for micro_batch in range(4 * size):
            for stage in range(last):
                assert (
                    times.start[at[f"{stage + 1}F{micro_batch}"]]
                    >= times.finish[at[f"{stage}F{micro_batch}"]]
                )
                assert (
                    times.start[at[f"{stage}B{micro_batch}"]]
                    >= times.finish[at[f"{stage + 1}B{micro_batch}"]]
                )


def test_random_pipelines() -> None:
    check_random(11, 100)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_many_random_pipelines(seed: int) -> None:
    check_random(100 + seed, 1000)


def test_what_falls_behind_sets_the_pace_in_the_long_run() -> None:
    # Groups start every 45.25 s until the second NIC, which needs 48.25 s for each, is a whole group behind.
    work = LayerWorkload(
        forward=(0, 2, 1, 0),
        backward=(1, 2, 0, 2),
        bytes=(0, 20, 20, 4),
        bytes_per_second=0.5,
        message_seconds=0.25,
    )
    found = predict(work, "trirace", {"stages": 2, "micro_batches": 4, "tied": True, "classes": False})
    assert found.iteration_seconds == pytest.approx(48.25, abs=1e-8)


def test_free_traffic_leaves_what_devices_compute() -> None:
    draw = random.Random(13)
    for _ in range(50):
        work, settings = some_pipeline(draw)
        free = LayerWorkload(
            forward=work.forward, backward=work.backward, bytes=(0,) * work.layers, bytes_per_second=1.0
        )
        found = predict(free, "trirace", settings | {"transfer_seconds": 0, "stages": 1, "tied": False})
        assert found.iteration_seconds == pytest.approx(found.compute_seconds, abs=1e-8)
