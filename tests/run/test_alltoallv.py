"""All-to-alls of unequal blocks on every engine against NumPy, faults, and the native plan against a slow one."""

from __future__ import annotations

import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coppice.bounds.all_to_all.rates import one_box, rates_of
from coppice.errors import InputError
from coppice.run.alltoallv.exchange import BlockExchange, program_of
from coppice.run.engines.datatype import DataType
from coppice.run.engines.interpreter import interpret
from coppice.run.engines.numpy import numpy_engines
from coppice.run.engines.shared_memory import shm_engines
from coppice.run.errors import Mismatch, PeerLost, TimedOut
from coppice.topology.presets import preset
from coppice.topology.readers.document import write_topology
from reference.alltoallv import slow_parts
from run.engines.mpi.launching import reason_to_skip, run_mpi
from support.emulated_groups import on_emulated_device
from support.paths import TESTS
from support.rank_groups import GENERATED_WORKER, by_engines, calls_in_processes, in_threads
from support.unequal_calls import UnequalCall, two_boxes, unequal_calls
from support.unequal_groups import WORKER, can_count, raised_by_others, right_calls
from support.unequal_ranks import ENGINES


def faults_of(engine: Any, calls: list[UnequalCall]) -> list[str]:
    return [fault for call in calls if (fault := call.run(engine))]


@pytest.mark.parametrize("ranks", [2, 5, 8])
@pytest.mark.parametrize("make", [numpy_engines, shm_engines])
def test_blocks_arrive_over_threads(make: Any, ranks: int) -> None:
    found = by_engines(make(ranks), lambda engine: faults_of(engine, unequal_calls(ranks, 18)))
    assert found == [[]] * ranks


@pytest.mark.parametrize("ranks", [2, 4, 6])
def test_blocks_arrive_by_puts(ranks: int) -> None:
    calls = unequal_calls(ranks, 18)
    assert (
        on_emulated_device(lambda engine: faults_of(engine, calls), seed=ranks, ranks=ranks) == [[]] * ranks
    )


def test_blocks_arrive_by_messages_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (TORCH=0)")
    from coppice.run.engines.torch.engine import TorchEngine

    store = torch.distributed.HashStore()

    def work(rank: int) -> list[str]:
        engine = TorchEngine(store, rank, 4, exchange_timeout_s=60)
        try:
            return faults_of(engine, unequal_calls(4, 18))
        finally:
            engine.close()

    assert in_threads(4, work) == [[]] * 4


@pytest.mark.parametrize("engine", ["torch", "shm", "put-signal"])
def test_torch_plans_unequal_splits(engine: str, tmp_path: Path) -> None:
    """Rows of several elements, tensors with gaps, int64, complex numbers, empty ranks; over two boxes."""
    torch = pytest.importorskip("torch", reason="torch is not installed (TORCH=0)")
    from coppice.run.torch.backend import CoppiceProcessGroup
    from coppice.run.torch.backend_path import Options, options_from

    file = tmp_path / "boxes.json"
    write_topology(two_boxes(), file)
    store, ran = torch.distributed.HashStore(), []

    def work(rank: int) -> list[str]:
        options = options_from(Options(engine=engine, topology=str(file), threshold_bytes=1 << 40))
        group = CoppiceProcessGroup(store, rank, 4, timedelta(seconds=60), range(4), options)
        found = []
        try:
            for seed in range(12):
                counts = UnequalCall(seed, 4).counts()
                dtype = (torch.int64, torch.float32, torch.complex64, torch.bfloat16)[seed % 4]
                sent, received = counts[rank].tolist(), counts[:, rank].tolist()
                starts = (np.cumsum(counts, axis=1) - counts)[:, rank].tolist()
                given = (torch.arange(sum(sent)) % 100 + rank).to(dtype)
                table = torch.stack([given, 1 - given], dim=1)
                wanted = torch.cat(
                    [
                        torch.arange(a, a + n) % 100 + p
                        for p, (a, n) in enumerate(zip(starts, received, strict=True))
                    ]
                ).to(dtype)
                gaps = torch.zeros(sum(received), 4, dtype=dtype)[:, ::2]
                group.all_to_all_single(
                    gaps, table if seed % 2 else table.t().contiguous().t(), received, sent
                ).wait()
                if not torch.equal(gaps, torch.stack([wanted, 1 - wanted], dim=1)):
                    found.append(f"{seed} is wrong")
            path = group._paths["cpu"]
            ran.append(path is not None and path.exchanges_blocks and bool(path._blocks._programs))
        finally:
            group.shutdown()
        return found

    assert in_threads(4, work) == [[]] * 4
    assert ran == [True] * 4


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "shm"])
def test_blocks_arrive_between_processes(engine: str, tmp_path: Path) -> None:
    if engine == "torch":
        pytest.importorskip("torch", reason="torch is not installed (TORCH=0)")
    calls: Any = unequal_calls(4, 36)
    for text in calls_in_processes(engine, calls, 4, tmp_path):
        assert text.splitlines()[-1] == "36 calls right", text


def test_blocks_arrive_over_mpi(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    if (reason := reason_to_skip("open-mpi")) is not None:
        pytest.skip(reason)
    file = tmp_path / "calls"
    file.write_bytes(pickle.dumps(unequal_calls(4, 36)))
    command = [str(GENERATED_WORKER), "mpi", str(file)]
    done = run_mpi("open-mpi", 4, command, variables={"PYTHONPATH": str(TESTS)})
    assert done.stdout.splitlines() == ["36 calls right"] * 4, done.stdout + done.stderr


@pytest.mark.slow
def test_many_matrices_on_every_engine(tmp_path: Path) -> None:
    """What benchmarks/split_matrices.py counts, 24 instead of 288 of each."""
    if not can_count():
        pytest.skip("torch or Open MPI is not installed")
    found = right_calls(24, tmp_path)
    assert found == {name: dict.fromkeys(range(2, 9), 24) for name in (*ENGINES, "mpi")}


@pytest.mark.parametrize("name", ENGINES)
def test_a_killed_rank_is_an_error_on_the_others(name: str, tmp_path: Path) -> None:
    if name in ("torch", "coppice"):
        pytest.importorskip("torch", reason="torch is not installed (TORCH=0)")
    others = raised_by_others(name, tmp_path)
    assert all(each.startswith(("PeerLost", "TimedOut")) for each in others), others
    assert any("rank 1" in each for each in others), others


def test_a_killed_rank_of_mpi_ends_the_job(tmp_path: Path) -> None:
    """The launcher ends the others: no rank is left that waits."""
    pytest.importorskip("mpi4py")
    if (reason := reason_to_skip("open-mpi")) is not None:
        pytest.skip(reason)
    done = run_mpi(
        "open-mpi", 3, [str(WORKER), "mpi", str(tmp_path), "0"], variables={"PYTHONPATH": str(TESTS)}
    )
    assert done.returncode
    assert "signal 9" in done.stdout + done.stderr


@pytest.mark.parametrize("seed", range(60))
def test_programs_do_not_depend_on_chance(seed: int) -> None:
    """Any order that keeps to the predecessors gives the same; parts are those of the slow plan."""
    ranks = 2 + seed % 7
    call = UnequalCall(seed, ranks, most=40)
    counts, rates = call.counts(), call.rates()
    exchange = BlockExchange(numpy_engines(ranks)[0], rates)
    planned = exchange._planned(counts, 1)
    programs = [program_of(planned, rank, counts, 1 + seed % 50) for rank in range(ranks)]
    given = [np.arange(int(row.sum())) % 251 + rank for rank, row in enumerate(counts)]
    wanted = [np.full(int(column.sum()), -1) for column in counts.T]
    interpret(programs, given, wanted, dtype=DataType.INT64, seed=seed)
    first = np.cumsum(counts, axis=1) - counts
    for rank in range(ranks):
        parts = [given[p][first[p, rank] : first[p, rank] + counts[p, rank]] for p in range(ranks)]
        assert (wanted[rank] == np.concatenate(parts)).all()
    slow = slow_parts(rates, counts, relays=planned.relays(), limit=planned.busiest())
    for rank in range(ranks):
        found = {tuple(row) for row in zip(*(column.tolist() for column in planned.parts(rank)), strict=True)}
        assert found == {part for part in slow if rank in part[:4]}


def test_counts_that_differ_are_an_error_on_all_ranks() -> None:
    def work(engine: Any) -> None:
        exchange = BlockExchange(engine, one_box(3))
        got = [1, 1, 2] if engine.rank == 1 else [1, 1, 1]
        exchange.run(np.zeros(3), np.zeros(sum(got)), [1, 1, 1], got, dtype=DataType.FLOAT64, timeout_s=5)

    found = by_engines(numpy_engines(3), work)
    assert all(isinstance(each, Mismatch) for each in found)
    assert str(found[0]).startswith("expected 2 elements from rank 2 on rank 1, found that rank 2 sends 1")


def test_types_and_lengths_that_differ_are_an_error_on_all_ranks() -> None:
    def types(engine: Any) -> None:
        dtype = DataType.INT64 if engine.rank else DataType.FLOAT64
        BlockExchange(engine, one_box(2)).counts([1, 1], [1, 1], dtype)

    def lengths(engine: Any) -> None:
        BlockExchange(engine, one_box(2)).counts([1] * (2 + engine.rank), None, DataType.INT64)

    for work, words in ((types, "elements of float64 as on rank 0"), (lengths, "rank 1 has no counts")):
        found = by_engines(numpy_engines(2), work)
        assert all(isinstance(each, Mismatch) and words in str(each) for each in found)


def test_a_rank_that_ends_is_an_error_on_the_others() -> None:
    def work(engine: Any) -> None:
        exchange = BlockExchange(engine, one_box(3))
        counts = exchange.counts([5, 5, 5], None, DataType.INT64)
        if engine.rank == 1:
            raise KeyboardInterrupt
        exchange.carry_out(
            counts,
            np.zeros(15, dtype=np.int64),
            np.zeros(15, dtype=np.int64),
            dtype=DataType.INT64,
            timeout_s=5,
        )

    for make in (numpy_engines, shm_engines):
        found = by_engines(make(3), work)
        assert isinstance(found[0], (PeerLost, TimedOut))
        assert isinstance(found[2], (PeerLost, TimedOut))


def test_what_is_beyond_the_capacity_is_refused_alike() -> None:
    def work(engine: Any) -> str:
        engine._capacity_bytes = 2000
        exchange = BlockExchange(engine, one_box(2))
        small = np.zeros(20, dtype=np.int64)
        exchange.run(small, small.copy(), [10, 10], None, dtype=DataType.INT64, timeout_s=5)
        large = np.zeros(200, dtype=np.int64)
        with pytest.raises(
            InputError, match="within the capacity of 2000 bytes, found one for which windows"
        ):
            exchange.run(large, large.copy(), [100, 100], None, dtype=DataType.INT64, timeout_s=5)
        exchange.run(small, small.copy(), [10, 10], None, dtype=DataType.INT64, timeout_s=5)
        return "goes on"

    assert on_emulated_device(work, ranks=2) == ["goes on"] * 2


def test_rates_are_those_of_links() -> None:
    pair = rates_of(preset("dgx-a100", boxes=2))
    assert (pair.boxes, pair.width, pair.crossing) == (2, 8, False)
    assert {*pair.near.tolist()} == {300 * pair.denominator}
    assert {*pair.far.tolist()} == {25 * pair.denominator}
    with pytest.raises(InputError, match="expected rates of 2 ranks, found 4"):
        BlockExchange(numpy_engines(2)[0], one_box(4))


def test_an_estimate_counts_the_busiest_nic() -> None:
    engine = numpy_engines(16)[0]
    rates = rates_of(preset("dgx-h100", boxes=2))
    counts = np.zeros((16, 16), dtype=np.int64)
    counts[0, 8] = 8 * 10**8
    found = BlockExchange(engine, rates).estimate(counts, DataType.UINT8)
    assert (found.relays, found.seconds, found.seconds_directly) == (True, 0.002, 0.016)
    assert not BlockExchange(engine, rates, relays=False).estimate(counts, DataType.UINT8).relays


def test_blocks_are_cut_by_the_time_that_nics_take() -> None:
    """Even blocks of 64 KiB travel between boxes in pieces of 16 KiB; inside them whole, half way through."""
    rates = rates_of(two_boxes(4))
    counts = np.full((8, 8), (64 << 10) // 4, dtype=np.int64)
    program = BlockExchange(numpy_engines(8)[3], rates).program(counts, DataType.FLOAT32)
    away, inside = program.peer >= 4, (program.peer >= 0) & (program.peer < 4)
    # NICs of a megabyte a second carry less than a piece in 200 us, links inside boxes all there is
    assert (program.pieces, np.count_nonzero(away), np.count_nonzero(inside)) == (4, 2 * 4 * 4, 2 * 3)
    assert program.step[away].tolist() == np.repeat(range(4), 2 * 4).tolist()
    assert set(program.step[inside].tolist()) == {2}
