"""All-reduces of ranks by a switch: by communicators, by the benchmark, by the torch backend."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.innetwork.serving import SwitchServer
from coppice.run.bench.measuring import bench
from coppice.run.communicator.communicator import Communicator
from coppice.run.engines.datatype import DataType, from_bfloat16, to_bfloat16
from coppice.run.engines.numpy import run_ranks
from coppice.run.errors import Mismatch
from coppice.topology.presets import preset

RANKS = 3


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Iterator[SwitchServer]:
    with SwitchServer("switchml,atp", workers=RANKS, slots=256) as running:
        monkeypatch.setenv("COPPICE_SWITCH", running.address)
        monkeypatch.setenv("COPPICE_SWITCH_SETTINGS", "values=62,slots=32,timeout_ms=5")
        yield running


def by_switch(work: Callable[[Communicator], Any], tmp_path: Path, **options: Any) -> list[Any]:
    def run(engine: Any) -> Any:
        topology = preset("star", gpus=RANKS)
        with Communicator(
            engine, topology, algorithm="switchml", cache_dir=tmp_path, timeout_s=60, **options
        ) as group:
            return work(group)

    return run_ranks(RANKS, run)


@pytest.mark.parametrize("fall_back", [True, False])
@pytest.mark.parametrize("kind", ["float32", "int32", "float16", "bfloat16"])
@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.spread(3)
def test_types_and_places(switch: SwitchServer, tmp_path: Path, kind: str, op: str, fall_back: bool) -> None:
    def work(group: Communicator) -> tuple[Any, Any, Any]:
        numbers = np.arange(1000) % 7 * 3 + 3 * group.rank - 9
        given = to_bfloat16(numbers.astype(np.float32)) if kind == "bfloat16" else numbers.astype(kind)
        before = given.copy()
        output = np.empty_like(given)
        group.all_reduce(given, output, op=op, dtype=kind)
        np.testing.assert_array_equal(given, before)
        group.all_reduce(given, op=op, dtype=kind)
        return output, given, group.in_network and group.in_network.failure

    total = RANKS * (np.arange(1000) % 7 * 3 - 9) + 9
    wanted = total / RANKS if op == "avg" else total
    for output, in_place, failure in by_switch(work, tmp_path, fall_back=fall_back):
        assert failure == ""
        np.testing.assert_array_equal(output, in_place)
        found = from_bfloat16(output) if kind == "bfloat16" else output
        np.testing.assert_allclose(found.astype(float), wanted, atol=1e-5)
    assert any("begins with 3 workers" in line for line in switch.events())


@pytest.mark.usefixtures("switch")
def test_what_switches_do_not_add_up_is_refused_and_other_collectives_run(tmp_path: Path) -> None:
    def work(group: Communicator) -> Any:
        for kind in ("float64", "int64", "uint8"):
            with pytest.raises(InputError, match=f"for the algorithm switchml, found {kind}"):
                group.all_reduce(np.zeros(4, dtype=kind))
        with pytest.raises(InputError, match="expected sum or avg for the algorithm switchml, found max"):
            group.all_reduce(np.zeros(4, dtype=np.float32), op="max")
        group.barrier()
        empty = group.all_reduce(np.zeros(0, dtype=np.float32))
        return empty.size, group.all_gather(np.full(2, group.rank, dtype=np.int64)).tolist()

    assert by_switch(work, tmp_path) == [(0, [0, 0, 1, 1, 2, 2])] * RANKS


def test_rows_of_the_benchmark(switch: SwitchServer, tmp_path: Path) -> None:
    def work(engine: Any) -> Any:
        rows = bench(
            engine,
            preset("star", gpus=RANKS),
            Collective.ALL_REDUCE,
            algorithms=["switchml", "atp", "ring"],
            sizes=[4, 70_000],
            rounds=2,
            warmup=1,
            timeout_s=60,
            cache_dir=str(tmp_path),
        )
        return [(row.algorithm, row.wrong, row.refusal, row.pieces > 0) for row in rows]

    wanted = [("switchml", 0, "", False), ("atp", 0, "", False), ("ring", 0, "", True)] * 2
    assert run_ranks(RANKS, work) == [wanted] * RANKS
    # The jobs are left when the benchmark ends.
    lines = switch.events()
    assert sum("begins" in line for line in lines) == sum("all workers left" in line for line in lines) == 2


@pytest.mark.usefixtures("switch")
def test_a_type_that_is_refused_is_a_row(tmp_path: Path) -> None:
    def work(engine: Any) -> Any:
        rows = bench(
            engine,
            preset("star", gpus=RANKS),
            Collective.ALL_REDUCE,
            algorithms=["switchml", "ring"],
            sizes=[64],
            dtype=DataType.FLOAT64,
            rounds=1,
            warmup=0,
            timeout_s=60,
            cache_dir=str(tmp_path),
        )
        return [row.refusal[:20] for row in rows]

    assert run_ranks(RANKS, work) == [["expected float32, fl", ""]] * RANKS


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "expected COPPICE_SWITCH=HOST:PORT of a running switch for the algorithm switchml, found none"),
        ({"COPPICE_SWITCH": "here"}, "expected HOST:PORT for COPPICE_SWITCH"),
        ({"COPPICE_SWITCH": "h:1", "COPPICE_SWITCH_SETTINGS": "slots"}, "expected NAME=NUMBER"),
        ({"COPPICE_SWITCH": "h:1", "COPPICE_SWITCH_SECRET": "/nowhere/x"}, "expected a file with a secret"),
    ],
)
def test_without_a_switch_there_is_one_sentence(
    variables: dict[str, str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COPPICE_SWITCH", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for found in by_switch(lambda group: group.rank, tmp_path):
        assert isinstance(found, Mismatch)
        assert words in str(found)


WORKER = """
import os, torch
import torch.distributed as dist
import coppice.torch
rank = int(os.environ["RANK"])
# Two switches below one: each pair of ranks has its own.
leaves = os.environ["LEAVES"].split(",")
os.environ["COPPICE_SWITCH"] = leaves[rank * len(leaves) // 4]
dist.init_process_group("coppice")
data = torch.arange(300, dtype=torch.float32) + rank
dist.all_reduce(data)
assert torch.equal(data, 4 * torch.arange(300, dtype=torch.float32) + 6), data[:4]
half = torch.full((5,), rank, dtype=torch.bfloat16)
dist.all_reduce(half, op=dist.ReduceOp.AVG)
assert half.tolist() == [1.5] * 5
wide = torch.full((5,), rank, dtype=torch.int64)  # not by the switch
dist.all_reduce(wide)
assert wide.tolist() == [6] * 5
dist.destroy_process_group()
"""


def launched(ranks: int, arguments: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)


@pytest.mark.slow
def test_the_torch_backend_over_a_hierarchy_of_switches(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    with (
        SwitchServer() as root,
        SwitchServer(parent=root.address, index=0, siblings=2) as left,
        SwitchServer(parent=root.address, index=1, siblings=2) as right,
    ):
        variables = {"LEAVES": f"{left.address},{right.address}", "COPPICE_ALGORITHM": "switchml"}
        done = launched(4, [str(script)], {**variables, "COPPICE_CACHE": str(tmp_path)})
        assert done.returncode == 0, done.stderr[-2000:]
        for each in (left, right, root):
            assert any("begins with 2 workers" in line for line in each.events())


@pytest.mark.slow
def test_the_command_prints_its_table(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with SwitchServer(workers=2) as switch:
        arguments = ["-m", "coppice", "bench", "all_reduce", "--algorithm", "switchml,forest,native"]
        variables = {"COPPICE_SWITCH": switch.address, "COPPICE_CACHE": str(tmp_path)}
        done = launched(2, [*arguments, "-b", "4K", "-e", "4K", "-n", "2", "-w", "1"], variables)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split() for line in done.stdout.splitlines() if line and not line.startswith("#")]
    assert [(row[5], row[-1]) for row in rows] == [("switchml", "0"), ("forest", "0"), ("native", "0")]
    wrong, mean, _ = done.stdout.splitlines()[-3:]
    assert wrong == "# Out of bounds values : 0 OK"
    rates = [float(row[-2]) for row in rows]
    assert float(mean.removeprefix("# Avg bus bandwidth    : ")) == pytest.approx(sum(rates) / 3, abs=1e-3)
