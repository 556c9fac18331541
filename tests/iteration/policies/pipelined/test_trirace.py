"""Pipelines that wait for less: TriRace, and gradients of inputs first; closed forms, and bounds on random ones."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.order import Work
from coppice.iteration.pipeline.orders import ORDERS, gpipe
from coppice.iteration.pipeline.stages import StageTimes, weights_last
from coppice.iteration.policies.pipelined.trirace import TriRace
from coppice.iteration.predicted import predict
from coppice.iteration.step.workloads import stages_graph
from coppice.iteration.tasks import run_tasks
from iteration.policies.workloads import workload_of


def even(stages: int, gradients: float, *, workers: int = 2) -> LayerWorkload:
    return workload_of((1,) * stages, (2,) * stages, (gradients,) * stages, workers=workers)


def seconds(work: LayerWorkload, **settings: Any) -> float:
    found = predict(work, "trirace", settings)
    assert found.iteration_seconds >= found.lower_bound_seconds - 1e-8
    return found.iteration_seconds


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("gradients", [0, 2, 6, 12, 40])
@pytest.mark.spread(3)
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
    (rows, *_) = policy(stages=2, micro_batches=2, touched=0.125).messages(work)
    assert (rows.priority, rows.seconds, rows.size_bytes) == (1, 4.0, 8)
    assert all(each.priority == 2 for each in policy(stages=2, micro_batches=2, touched=0.5).messages(work))
    assert all(each.priority == 2 for each in policy(stages=2, micro_batches=2).messages(work))


def test_tied_embeddings_are_summed_at_both_ends() -> None:
    work = even(3, 8)
    chosen = policy(stages=3, micro_batches=4, tied=True)
    sums = chosen.messages(work)
    assert [(each.stage, chosen.stages_of(each)) for each in sums if each.priority == 1] == [
        (0, (0, 2)),
        (2, (0, 2)),
    ]
    with pytest.raises(InputError, match=r"found `touched=0.5`: leave one of them out"):
        policy(stages=3, micro_batches=4, tied=True, touched=0.5).messages(work)


def some_pipeline(draw: random.Random) -> tuple[LayerWorkload, dict[str, Any]]:
    stages = draw.randint(1, 4)
    layers = stages + draw.randint(0, 3)
    work = workload_of(
        tuple(draw.choice([0, 0.5, 1, 2]) for _ in range(layers)),
        tuple(draw.choice([0, 1, 2, 3.5]) for _ in range(layers)),
        tuple(draw.choice([0, 1, 4, 20]) for _ in range(layers)),
        rate=draw.choice([0.5, 1, 4]),
        message=draw.choice([0, 0.25]),
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
        sent = sum(each.size_bytes for each in chosen.messages(work))
        again = work.bytes[0] if settings["tied"] and settings["stages"] > 1 else 0
        assert sent == pytest.approx(sum(work.bytes) + again)
        made = chosen.iterations(work, 4)
        times = run_tasks(made.graph)
        at = {name: task for task, name in enumerate(made.graph.names)}
        size, last = settings["micro_batches"], settings["stages"] - 1
        for group in range(4):
            for number, message in enumerate(chosen.messages(work)):
                task = at[f"gradients {number} of stage {message.stage} of group {group}"]
                for stage in chosen.stages_of(message):
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
    check_random(11, 40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_many_random_pipelines(seed: int) -> None:
    check_random(100 + seed, 1000)


def test_what_falls_behind_sets_the_pace_in_the_long_run() -> None:
    # Groups start every 45.25 s until the second NIC, which needs 48.25 s for each, is a whole group behind.
    work = workload_of((0, 2, 1, 0), (1, 2, 0, 2), (0, 20, 20, 4), rate=0.5, message=0.25)
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


def units(layers: int, chunks: int = 1) -> LayerWorkload:
    """Layers whose forward pass, gradients of inputs and gradients of weights take as long."""
    return workload_of((1 / chunks,) * layers, (2 / chunks,) * layers, (0,) * layers)


def seconds_out_of_order(work: LayerWorkload, policy: str, devices: int, micro_batches: int) -> float:
    found = predict(work, policy, {"stages": devices, "micro_batches": micro_batches})
    assert found.iteration_seconds >= found.lower_bound_seconds - 1e-8
    return found.iteration_seconds


@pytest.mark.parametrize(("devices", "micro_batches", "plain", "fast"), [(4, 4, 21, 18), (8, 8, 45, 38)])
def test_exact_times(devices: int, micro_batches: int, plain: float, fast: float) -> None:
    assert seconds_out_of_order(units(devices), "gpipe", devices, micro_batches) == pytest.approx(
        plain, abs=1e-8
    )
    assert seconds_out_of_order(units(devices), "fast-forward", devices, micro_batches) == pytest.approx(
        fast, abs=1e-8
    )


@pytest.mark.parametrize("devices", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("micro_batches", [1, 2, 4, 7, 16])
def test_the_formula(devices: int, micro_batches: int) -> None:
    found = seconds_out_of_order(units(devices), "fast-forward", devices, micro_batches)
    assert found == pytest.approx(3 * micro_batches + 2 * (devices - 1), abs=1e-8)
    found = seconds_out_of_order(units(devices), "gpipe", devices, micro_batches)
    assert found == pytest.approx(3 * (micro_batches + devices - 1), abs=1e-8)


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_the_formula_of_modulo_allocation(devices: int, rounds: int, chunks: int) -> None:
    found = seconds_out_of_order(units(devices * chunks, chunks), "modulo", devices, devices * rounds)
    assert found == pytest.approx(3 * devices * rounds + 2 * (devices - 1) / chunks, abs=1e-8)


def test_layers_that_do_not_divide() -> None:
    assert seconds_out_of_order(units(7), "modulo", 4, 4) >= 3 * 2 * 4
    assert seconds_out_of_order(units(2), "modulo", 4, 4) == seconds_out_of_order(units(2), "modulo", 2, 4)


def test_weights_fill_what_would_be_waiting() -> None:
    # The last stage takes long for gradients of inputs: the one before computes weights meanwhile.
    times = StageTimes(forward=(1, 1), backward=(2, 6), weight_share=0.5)
    order = weights_last(gpipe(2, 2), times)
    assert [str(each) for each in order.devices[0]] == ["0F0", "0F1", "0I0", "0W0", "0I1", "0W1"]
    assert [str(each) for each in order.devices[1]] == ["1F0", "1F1", "1I0", "1I1", "1W0", "1W1"]


def check_random_orders(seed: int, cases: int) -> None:
    draw = random.Random(seed)
    for _ in range(cases):
        name = draw.choice(["gpipe", "1f1b", "breadth-first"])
        devices, chunks = draw.randint(1, 4), draw.randint(1, 3) if name == "breadth-first" else 1
        micro_batches = draw.randint(1, 6)
        whole = ORDERS[name](devices, micro_batches, chunks)
        times = StageTimes(
            forward=[draw.choice([0, 0.5, 1, 2]) for _ in range(whole.stages)],
            backward=[draw.choice([0, 1, 2, 3.5]) for _ in range(whole.stages)],
            weight_share=draw.choice([0.25, 0.5]),
            transfer=draw.choice([0, 0.25]),
        )
        order = weights_last(whole, times)
        assert order == weights_last(whole, times)
        for program, plain in zip(order.devices, whole.devices, strict=True):
            chain = [each for each in program if each.work is not Work.WEIGHT]
            assert [(each.stage, each.micro_batch) for each in chain] == [
                (each.stage, each.micro_batch) for each in plain
            ]
        if times.transfer:
            continue
        made = stages_graph(order, times, 1).graph
        run = run_tasks(made)
        at = {str(each): task for task, each in enumerate(order.passes())}
        for program in order.devices:
            for number, (one, other) in enumerate(itertools.pairwise(program), start=1):
                idle_from, idle_to = run.finish[at[str(one)]], run.start[at[str(other)]]
                if idle_to <= idle_from:
                    continue
                # Who waits has computed all gradients of weights that it could.
                done = set(program[:number])
                held = [each for each in program[number:] if each.work is Work.WEIGHT]
                assert not [each for each in held if each._replace(work=Work.INPUT) in done]


def test_times_of_weights_are_those_of_layers() -> None:
    # The gradients of weights take nothing in the first stage and all of the backward pass in the second.
    work = LayerWorkload(
        forward=(1, 1), backward=(2, 2), bytes=(0, 0), bytes_per_second=1.0, weight_backward=(0, 2)
    )
    assert seconds_out_of_order(work, "fast-forward", 2, 4) == pytest.approx(5 + 8, abs=1e-8)
    assert seconds_out_of_order(work, "gpipe", 2, 4) == pytest.approx(15, abs=1e-8)


def check_workloads(seed: int, cases: int) -> None:
    draw = random.Random(seed)
    for _ in range(cases):
        devices = draw.randint(1, 4)
        layers = devices + draw.randint(0, 4)
        backward = tuple(draw.choice([0, 1, 2, 3.5]) for _ in range(layers))
        work = workload_of(
            tuple(draw.choice([0, 0.5, 1, 2]) for _ in range(layers)),
            backward,
            tuple(draw.choice([0, 1, 4, 20]) for _ in range(layers)),
            rate=draw.choice([0.5, 1, 4]),
            message=draw.choice([0, 0.25]),
            weight_backward=tuple(draw.choice([0, 0.25, 1]) * each for each in backward),
        )
        options = {
            "stages": devices,
            "micro_batches": draw.randint(1, 6),
            "transfer_seconds": draw.choice([0, 0.25]),
        }
        for policy in ("fast-forward", "modulo", "gpipe", "breadth-first"):
            chunked = {"chunks": 1} if policy == "breadth-first" else {}
            found = predict(work, policy, options | chunked)
            assert found.iteration_seconds >= found.lower_bound_seconds - 1e-8
            assert found.iteration_seconds >= found.compute_seconds - 1e-8
            assert found == predict(work, policy, options | chunked)
        if devices == 1:
            free = replace(work, bytes=(0,) * layers)
            alone = predict(free, "fast-forward", options)
            assert alone.iteration_seconds == pytest.approx(alone.compute_seconds, abs=1e-8)


def test_random_workloads() -> None:
    check_workloads(8, 25)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_many_random_workloads(seed: int) -> None:
    check_workloads(100 + seed, 300)


def test_random_pipelines_out_of_order() -> None:
    check_random_orders(6, 80)


@pytest.mark.slow
def test_many_random_pipelines_out_of_order() -> None:
    check_random_orders(7, 5000)
