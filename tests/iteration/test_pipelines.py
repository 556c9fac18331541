"""Orders of pipelines: their formulas on a grid, what they hold, PyTorch's files, and bounds."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.order import PipelineOrder, StagePass, Work
from coppice.iteration.pipeline.orders import (
    ORDERS,
    breadth_first,
    dual_pipe_v,
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble,
)
from coppice.iteration.pipeline.stages import StageTimes
from coppice.iteration.pipeline.torch_csv import check_runnable, order_csv, placement, read_order_csv
from coppice.iteration.predicted import predict
from coppice.iteration.step.workloads import stages_graph
from coppice.iteration.tasks import run_tasks
from coppice.options.names import TORCH_ORDERS
from support.pages import coppice
from support.rank_processes import rank_codes


def makespan(order: PipelineOrder, chunks: int = 1, forward: float = 1.0, backward: float = 2.0) -> float:
    times = StageTimes(
        forward=[forward / chunks] * order.stages,
        backward=[backward / chunks] * order.stages,
        weight_share=0.5,
    )
    return run_tasks(stages_graph(order, times, 1).graph).seconds


GRID = [(p, m) for p in (1, 2, 3, 4, 8) for m in (p, 2 * p, 4 * p)]


@pytest.mark.parametrize(("devices", "micro_batches"), GRID)
def test_bubbles_follow_the_formula(devices: int, micro_batches: int) -> None:
    ideal = 3.0 * micro_batches
    for order in (gpipe, one_f_one_b):
        assert makespan(order(devices, micro_batches)) == pytest.approx(ideal + 3 * (devices - 1), abs=1e-8)
    for chunks in (1, 2, 4):
        for looped in (interleaved, breadth_first):
            found = makespan(looped(devices, micro_batches, chunks), chunks)
            assert found == pytest.approx(ideal + 3 * (devices - 1) / chunks, abs=1e-8)
    if micro_batches >= 2 * devices:
        assert makespan(zero_bubble(devices, micro_batches)) == pytest.approx(ideal + devices - 1, abs=1e-8)


@pytest.mark.parametrize(("devices", "micro_batches"), GRID)
def test_what_devices_hold(devices: int, micro_batches: int) -> None:
    assert gpipe(devices, micro_batches).peak_micro_batches() == [micro_batches] * devices
    held = one_f_one_b(devices, micro_batches).peak_micro_batches()
    assert held == [min(devices - device, micro_batches) for device in range(devices)]
    assert max(zero_bubble(devices, micro_batches).peak_micro_batches()) <= devices


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 5, 7])
def test_orders_of_any_number_of_micro_batches(micro_batches: int) -> None:
    for name in ("gpipe", "1f1b", "breadth-first", "zero-bubble"):
        assert makespan(ORDERS[name](3, micro_batches, 1)) >= 3 * micro_batches


def test_interleaving_wants_a_multiple() -> None:
    with pytest.raises(InputError, match="a multiple of 4 devices for interleaved chunks, found 6: take 8"):
        interleaved(4, 6, 2)
    with pytest.raises(InputError, match="1 or more devices"):
        gpipe(0, 1)


PIPE = {
    gradients: LayerWorkload(
        forward=(0.25,) * 16, backward=(0.5,) * 16, bytes=(gradients / 4,) * 16, bytes_per_second=1.0
    )
    for gradients in (0, 16)
}


@pytest.mark.parametrize(
    ("gradients", "policy", "settings", "expected"),
    [
        (0, "gpipe", {}, 33),
        (0, "1f1b", {}, 33),
        (0, "interleaved", {"chunks": 2}, 28.5),
        (0, "breadth-first", {"chunks": 2}, 28.5),
        (0, "interleaved", {"chunks": 4}, 26.25),
        (0, "breadth-first", {"chunks": 4}, 26.25),
        (0, "zero-bubble", {}, 27),
        (16, "gpipe", {}, 49),
        (16, "1f1b", {}, 49),
        (16, "interleaved", {"chunks": 4}, 36.25),
        (16, "breadth-first", {"chunks": 4}, 30.25),
    ],
)
def test_exact_times(gradients: int, policy: str, settings: dict[str, int], expected: float) -> None:
    found = predict(PIPE[gradients], policy, settings)
    assert found.iteration_seconds == pytest.approx(expected, abs=1e-8)
    assert found.lower_bound_seconds <= found.iteration_seconds + 1e-8
    assert found.compute_seconds == pytest.approx(24)


def test_the_best_orders_attain_the_bound() -> None:
    for policy, chunks in (("1f1b", None), ("breadth-first", 4)):
        found = predict(PIPE[16], policy, {} if chunks is None else {"chunks": chunks})
        assert found.iteration_seconds == pytest.approx(found.lower_bound_seconds, abs=1e-8)


def test_transfers_delay_a_pipeline() -> None:
    order = one_f_one_b(4, 1)
    times = StageTimes(forward=[1] * 4, backward=[2] * 4, transfer=0.5)
    assert run_tasks(stages_graph(order, times, 1).graph).seconds == pytest.approx(12 + 6 * 0.5, abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "micro_batches"), [(1, 2), (2, 4), (3, 8), (4, 13), (8, 16)])
def test_both_directions_are_pytorchs(devices: int, micro_batches: int) -> None:
    shown = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
    theirs = shown.get_schedule_ops("DualPipeV", devices, micro_batches, num_stages_per_rank=2)
    order = dual_pipe_v(devices, micro_batches)
    assert max(order.peak_micro_batches()) <= 2 * devices + 1
    ours = order_csv(order).splitlines()
    assert ours == [",".join(str(each) for each in row if each is not None) for row in theirs]


def test_passes_that_run_at_once_follow_each_other() -> None:
    order = dual_pipe_v(2, 4)
    programs = (order.devices[0], order.devices[1])
    wrong = frozenset({(order.devices[0][0], order.devices[0][2])})
    with pytest.raises(
        InputError, match="0F0 and 0F2 that run at once one behind the other, found them apart"
    ):
        PipelineOrder(devices=programs, stages=4, micro_batches=4, co_scheduled=wrong)
    with pytest.raises(InputError, match="found 3: take 4"):
        dual_pipe_v(2, 3)


def test_orders_survive_pytorchs_file() -> None:
    for order in (interleaved(4, 8, 2), zero_bubble(4, 8), breadth_first(2, 3, 2), dual_pipe_v(3, 7)):
        assert read_order_csv(order_csv(order)) == order


def test_files_are_read_as_pytorch_writes_them() -> None:
    order = read_order_csv("0F0,,0F1,0I0,(0W0;0B1)OVERLAP_F_B\n")
    assert [str(each) for each in order.devices[0]] == ["0F0", "0F1", "0I0", "0W0", "0B1"]
    assert [tuple(map(str, pair)) for pair in order.co_scheduled] == [("0W0", "0B1")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0F0,0X0", r"found '0X0' at o\.csv:1, cell 2"),
        ("0F0junk", r"found '0F0junk' at o\.csv:1, cell 1"),
        ("", "found none"),
        ("0B0,0F0", r"o\.csv: expected 0F0 before 0B0 on device 0"),
        ("0F0,0F0,0B0", "0F0 once on device 0"),
        ("0F0", "one backward pass of stage 0 over micro-batch 0"),
        ("0F0,0I0", "found 1 of 2 parts"),
        ("0F0,0B0\n0F1,0B1", "stage 0 on one device, found it on 0 and 1"),
    ],
)
def test_files_that_are_no_order(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_order_csv(text, file="o.csv")


def test_an_order_in_which_devices_wait_for_each_other_is_named() -> None:
    forward, backward = Work.FORWARD, Work.BACKWARD
    first = [
        StagePass(0, forward, 0),
        StagePass(0, backward, 0),
        StagePass(0, forward, 1),
        StagePass(0, backward, 1),
    ]
    second = [
        StagePass(1, forward, 1),
        StagePass(1, backward, 1),
        StagePass(1, forward, 0),
        StagePass(1, backward, 0),
    ]
    order = PipelineOrder(devices=(tuple(first), tuple(second)), stages=2, micro_batches=2)
    with pytest.raises(InputError, match=r"do not wait for themselves, found .* after "):
        makespan(order)


PROGRAM = Path(__file__).resolve().parents[1] / "support" / "pipeline_ranks.py"
CHUNKS = {"interleaved": 2, "breadth-first": 4, "dualpipe-v": 2, "fast-forward": 2, "fold3d": 2}
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


def written(name: str, folder: Path, *, ranks: int = 4, chunks: int | None = None, batch: int = 8) -> Any:
    """What the command says of an order that it writes, of 32 layers."""
    degrees = f"pp={ranks}" + (f",vp={chunks}" if chunks else "") + (",tp=8" if ranks == 2 else ",tp=2")
    words = f"train pipeline llama3-8b --topology dgx-h100 --boxes {ranks * (8 if ranks == 2 else 2) // 8}"
    words += f" --parallel {degrees} --global-batch {batch} --order {name} --json -o {folder / name}.csv"
    done = coppice(*words.split())
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def ranks_of(mode: str, size: int, folder: Path, ranks: range) -> list[dict[str, Any]]:
    """The outcome of each rank."""
    codes = rank_codes(
        PROGRAM, [(mode, rank, size, folder) for rank in ranks], [folder / f"errors-{rank}" for rank in ranks]
    )
    assert codes == [0] * len(ranks), [(folder / f"errors-{rank}").read_text()[-3000:] for rank in ranks]
    return [json.loads((folder / f"outcome-{rank}.json").read_text()) for rank in ranks]


@needs_torch
def test_torch_loads_every_order(tmp_path: Path) -> None:
    for name in TORCH_ORDERS:
        found = written(name, tmp_path, chunks=CHUNKS.get(name))
        order = read_order_csv((tmp_path / f"{name}.csv").read_text())
        assert (found["ranks"], found["micro_batches"]) == (4, 8)
        assert found["stages"] == order.stages == (32 if name == "modulo" else 4 * CHUNKS.get(name, 1))
        assert found["placement"] == ("v" if name == "dualpipe-v" else "loop")
        assert 0 < found["bubble_seconds"] < found["iteration_seconds"]
        assert found["model"] == "calibrated"
    (outcome,) = ranks_of("load", 4, tmp_path, range(1))
    assert outcome.keys() == set(TORCH_ORDERS)
    assert all(steps >= 16 for steps in outcome.values())


@needs_torch
def test_gradients_are_those_of_one_process(tmp_path: Path) -> None:
    """Two ranks of two chunks: chunks in a row, backward passes in parts, and a V with passes at once."""
    names = ("breadth-first", "fast-forward", "dualpipe-v")
    for name in names:
        written(name, tmp_path, ranks=2, chunks=2, batch=4)
    for outcome in ranks_of("train", 2, tmp_path, range(2)):
        assert outcome.keys() == set(names)
        for distance, least in outcome.values():
            assert distance < 1e-6
            assert least > 1e-4


def changed(order: PipelineOrder, device: int, first: str, second: str) -> PipelineOrder:
    """An order with two passes of a device exchanged."""
    program = list(order.devices[device])
    names = [str(each) for each in program]
    one, other = names.index(first), names.index(second)
    program[one], program[other] = program[other], program[one]
    devices = [*order.devices[:device], tuple(program), *order.devices[device + 1 :]]
    return PipelineOrder(devices=tuple(devices), stages=order.stages, micro_batches=order.micro_batches)


def test_losses_stored_as_they_come_are_those_of_their_micro_batch() -> None:
    wrong = changed(breadth_first(2, 2, 2), 1, "3F0", "3F1")
    with pytest.raises(InputError, match=r"expected forward passes of the last stage in order .* found 3F1"):
        order_csv(wrong)
    order_csv(changed(breadth_first(2, 2, 2), 1, "1F0", "1F1"))


def test_ranks_that_wait_for_each_other_are_refused() -> None:
    with pytest.raises(InputError, match=r"never all wait, found device 0 at 0B0 and device 1 at 3F0"):
        order_csv(read_order_csv("0F0,0B0,2F0,2B0\n1F0,3F0,3B0,1B0"))


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_all_orders_run_and_are_read_again(name: str, ranks: int) -> None:
    chunks = CHUNKS.get(name, 1)
    for turns in (2, 4):
        order = ORDERS[name](ranks, turns * ranks, chunks)
        check_runnable(order)
        assert placement(order) is not None
        assert read_order_csv(order_csv(order)) == order


def test_three_passes_at_once_share_a_cell() -> None:
    text = "0F0,0F1,(0B0;0F2;0B1)OVERLAP_F_B,0B2\n"
    order = read_order_csv(text)
    assert (StagePass(0, Work.FORWARD, 2), StagePass(0, Work.BACKWARD, 1)) in order.co_scheduled
    assert order_csv(order) == text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--parallel tp=8", "expected a pipeline, found one stage"),
        ("--parallel pp=4,tp=2 --order fold", "found 'fold'"),
        ("--parallel pp=4,tp=2 --order modulo --policy 1f1b", "both decide order"),
        ("--parallel pp=4,tp=2 --policy centauri", "expected policies that simulate a step"),
    ],
)
def test_what_is_refused(words: str, told: str, tmp_path: Path) -> None:
    given = f"train pipeline llama3-8b --topology dgx-h100 --global-batch 8 {words} -o {tmp_path}/order.csv"
    done = coppice(*given.split())
    assert done.exit_code == 2
    assert told in done.output
    assert not list(tmp_path.iterdir())


def test_the_order_goes_to_standard_output() -> None:
    words = "train pipeline llama3-8b --topology dgx-h100 --parallel pp=4,tp=2 --global-batch 4 -o -"
    done = coppice(*words.split())
    assert read_order_csv(done.stdout) == ORDERS["1f1b"](4, 4, 1)
    assert "bubble" in done.stderr
