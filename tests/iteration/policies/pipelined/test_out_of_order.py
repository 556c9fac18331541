"""Gradients of inputs first: the formulas on a grid, what is kept, and bounds on random pipelines."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.graph import StageTimes, pipeline_graph
from coppice.iteration.pipeline.order import Work
from coppice.iteration.pipeline.orders import ORDERS, gpipe
from coppice.iteration.pipeline.split import weights_last
from coppice.iteration.predicted import predict
from coppice.iteration.running import run_tasks


def units(layers: int, chunks: int = 1) -> LayerWorkload:
    """Layers whose forward pass, gradients of inputs and gradients of weights take as long."""
    return LayerWorkload(
        forward=(1 / chunks,) * layers,
        backward=(2 / chunks,) * layers,
        bytes=(0,) * layers,
        bytes_per_second=1.0,
    )


def seconds(work: LayerWorkload, policy: str, devices: int, micro_batches: int) -> float:
    found = predict(work, policy, {"stages": devices, "micro_batches": micro_batches})
    assert found.iteration_seconds >= found.lower_bound_seconds - 1e-8
    return found.iteration_seconds


@pytest.mark.parametrize(("devices", "micro_batches", "plain", "fast"), [(4, 4, 21, 18), (8, 8, 45, 38)])
def test_exact_times(devices: int, micro_batches: int, plain: float, fast: float) -> None:
    assert seconds(units(devices), "gpipe", devices, micro_batches) == pytest.approx(plain, abs=1e-8)
    assert seconds(units(devices), "fast-forward", devices, micro_batches) == pytest.approx(fast, abs=1e-8)


@pytest.mark.parametrize("devices", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("micro_batches", [1, 2, 4, 7, 16])
def test_the_formula(devices: int, micro_batches: int) -> None:
    found = seconds(units(devices), "fast-forward", devices, micro_batches)
    assert found == pytest.approx(3 * micro_batches + 2 * (devices - 1), abs=1e-8)
    found = seconds(units(devices), "gpipe", devices, micro_batches)
    assert found == pytest.approx(3 * (micro_batches + devices - 1), abs=1e-8)


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_the_formula_of_modulo_allocation(devices: int, rounds: int, chunks: int) -> None:
    found = seconds(units(devices * chunks, chunks), "modulo", devices, devices * rounds)
    assert found == pytest.approx(3 * devices * rounds + 2 * (devices - 1) / chunks, abs=1e-8)


def test_layers_that_do_not_divide() -> None:
    assert seconds(units(7), "modulo", 4, 4) >= 3 * 2 * 4
    assert seconds(units(2), "modulo", 4, 4) == seconds(units(2), "modulo", 2, 4)


def test_weights_fill_what_would_be_waiting() -> None:
    # The last stage takes long for gradients of inputs: the one before computes weights meanwhile.
    times = StageTimes(forward=(1, 1), backward=(2, 6), weight_share=0.5)
    order = weights_last(gpipe(2, 2), times)
    assert [str(each) for each in order.devices[0]] == ["0F0", "0F1", "0I0", "0W0", "0I1", "0W1"]
    assert [str(each) for each in order.devices[1]] == ["1F0", "1F1", "1I0", "1I1", "1W0", "1W1"]


def check_random(seed: int, cases: int) -> None:
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
        made = pipeline_graph(order, times, 1).graph
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
    assert seconds(work, "fast-forward", 2, 4) == pytest.approx(5 + 8, abs=1e-8)
    assert seconds(work, "gpipe", 2, 4) == pytest.approx(15, abs=1e-8)


def check_workloads(seed: int, cases: int) -> None:
    draw = random.Random(seed)
    for _ in range(cases):
        devices = draw.randint(1, 4)
        layers = devices + draw.randint(0, 4)
        backward = tuple(draw.choice([0, 1, 2, 3.5]) for _ in range(layers))
        work = LayerWorkload(
            forward=tuple(draw.choice([0, 0.5, 1, 2]) for _ in range(layers)),
            backward=backward,
            bytes=tuple(draw.choice([0, 1, 4, 20]) for _ in range(layers)),
            bytes_per_second=draw.choice([0.5, 1, 4]),
            message_seconds=draw.choice([0, 0.25]),
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
    check_workloads(8, 60)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_many_random_workloads(seed: int) -> None:
    check_workloads(100 + seed, 300)


def test_random_pipelines() -> None:
    check_random(6, 200)


@pytest.mark.slow
def test_many_random_pipelines() -> None:
    check_random(7, 5000)
