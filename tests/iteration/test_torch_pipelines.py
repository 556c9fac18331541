"""Orders of pipelines written for PyTorch: its runtime loads all of them, and trains as one process does."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from coppice.cli.options.names import TORCH_ORDERS
from coppice.errors import InputError
from coppice.iteration.pipeline.order import PipelineOrder, StagePass, Work
from coppice.iteration.pipeline.orders import ORDERS, breadth_first
from coppice.iteration.pipeline.runnable import check_runnable, placement
from coppice.iteration.pipeline.torch_csv import order_csv, read_order_csv
from support.pages import coppice
from support.rank_processes import rank_codes

PROGRAM = Path(__file__).resolve().parents[1] / "support" / "pipeline_ranks.py"
CHUNKS = {"interleaved": 2, "breadth-first": 4, "dualpipe-v": 2, "fast-forward": 2, "fold3d": 2}
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


def written(name: str, folder: Path, *, ranks: int = 4, chunks: int | None = None, batch: int = 8) -> Any:
    """What the command says of an order that it writes, of 32 layers."""
    degrees = f"pp={ranks}" + (f",vp={chunks}" if chunks else "") + (",tp=8" if ranks == 2 else ",tp=2")
    words = f"train pipeline llama3-8b --cluster dgx-h100 --boxes {ranks * (8 if ranks == 2 else 2) // 8}"
    words += f" --parallel {degrees} --global-batch {batch} --order {name} --json -o {folder / name}.csv"
    done = coppice(*words.split())
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def ranks_of(mode: str, size: int, folder: Path, ranks: range) -> list[dict[str, Any]]:
    """The outcome of each rank."""
    codes = rank_codes(
        PROGRAM,
        [(mode, rank, size, folder) for rank in ranks],
        [folder / f"errors-{rank}" for rank in ranks],
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
    assert (StagePass(0, Work.FORWARD, 2), StagePass(0, Work.BACKWARD, 1)) in order.at_once
    assert order_csv(order) == text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--parallel tp=8", "expected a pipeline, found one stage"),
        ("--parallel pp=4,tp=2 --order fold", "found 'fold'"),
        ("--parallel pp=4,tp=2 --order dualpipe-v", "expected 2 chunks of a device for order dualpipe-v"),
        ("--parallel pp=4,tp=2 --order modulo --policy 1f1b", "both decide order"),
        ("--parallel pp=4,tp=2 --policy centauri", "expected policies that simulate a step"),
    ],
)
def test_what_is_refused(words: str, told: str, tmp_path: Path) -> None:
    given = f"train pipeline llama3-8b --cluster dgx-h100 --global-batch 8 {words} -o {tmp_path}/order.csv"
    done = coppice(*given.split())
    assert done.exit_code == 2
    assert told in done.output
    assert not list(tmp_path.iterdir())


def test_the_order_goes_to_standard_output() -> None:
    words = "train pipeline llama3-8b --cluster dgx-h100 --parallel pp=4,tp=2 --global-batch 4 -o -"
    done = coppice(*words.split())
    assert read_order_csv(done.stdout) == ORDERS["1f1b"](4, 4, 1)
    assert "bubble" in done.stderr
