"""What the benchmark says is right, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.run.bench.measuring import (
    NATIVE,
    BenchRow,
    bench,
    busy_share,
    contribution,
    core_times,
    expected,
    wrong_elements,
)
from coppice.run.communicator.communicator import Communicator
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.launched import engine_name
from coppice.run.engines.numpy import NumpyEngine, run_ranks
from coppice.topology.presets import preset

KINDS = [
    (DataType.FLOAT32, ReduceOp.SUM),
    (DataType.BFLOAT16, ReduceOp.AVG),
    (DataType.INT16, ReduceOp.MAX),
    (DataType.BOOL, ReduceOp.MIN),
]


def rows_of(ranks: int, collective: Collective, tmp_path: object, **options: object) -> list[BenchRow]:
    algorithms = options.pop("algorithms", ["forest", "linear"])
    sizes = options.pop("sizes", [0, 96, 1000])

    def work(engine: NumpyEngine) -> list[BenchRow]:
        return list(
            bench(
                engine,
                preset("star", gpus=ranks),
                collective,
                algorithms=algorithms,  # type: ignore[arg-type]
                sizes=sizes,  # type: ignore[arg-type]
                rounds=2,
                warmup=1,
                timeout_s=300,
                cache_dir=str(tmp_path),
                **options,  # type: ignore[arg-type]
            )
        )

    results = run_ranks(ranks, work)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    assert all([row.wrong for row in result] == [row.wrong for row in results[0]] for result in results)
    return results[0]  # type: ignore[return-value]


MOVING = [each for each in Collective if each is not Collective.BARRIER]


@pytest.mark.parametrize(
    ("in_place", "dtype", "op", "collective"),
    [
        pytest.param(in_place, *kind, collective, marks=pytest.mark.slow if (a + b + in_place) % 2 else ())
        for in_place in (False, True)
        for a, kind in enumerate(KINDS)
        for b, collective in enumerate(MOVING)
    ],
)
@pytest.mark.spread(3)
def test_right_results_count_as_right(
    collective: Collective, dtype: DataType, op: ReduceOp, in_place: bool, tmp_path: object
) -> None:
    rows = rows_of(
        3, collective, tmp_path, dtype=dtype, op=op, in_place=in_place, root=1, algorithms=["forest"]
    )
    assert [row.refusal for row in rows] == [""] * 3
    assert [row.wrong for row in rows] == [0, 0, 0]
    assert [row.count > 0 for row in rows] == [False, True, True]
    assert all(row.fastest_us <= row.time_us <= row.slowest_us for row in rows)


def test_rows_say_in_how_many_pieces_they_ran(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coppice.run.planned.choose_pieces", lambda *_: 4)
    rows = rows_of(2, Collective.ALL_REDUCE, tmp_path, algorithms=["forest", "ring"])
    assert {(row.size_bytes > 64, row.pieces) for row in rows if row.size_bytes} == {(True, 4)}
    assert rows[0].fields()["pieces"] == rows[0].pieces


def test_wrong_results_are_counted(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = NumpyEngine.run

    def spoiling(
        self: NumpyEngine, program: object, given: object, output: np.ndarray, **options: object
    ) -> None:
        honest(self, program, given, output, **options)  # type: ignore[arg-type]
        if program.rank == 1 and program.collective is Collective.ALL_REDUCE:  # type: ignore[attr-defined]
            output[:5] += 1

    monkeypatch.setattr(NumpyEngine, "run", spoiling)
    rows = rows_of(2, Collective.ALL_REDUCE, tmp_path, algorithms=["forest"])
    assert [row.wrong for row in rows] == [0, 10, 10]  # five elements, in the first and in the last round


def test_expected_results_are_those_of_numpy() -> None:
    def work(engine: NumpyEngine) -> tuple[list[float], list[float], list[float]]:
        group = Communicator(engine, preset("ring", gpus=3), pieces=1)
        kind, op = DataType.FLOAT64, ReduceOp.SUM
        gathered = group.prepare(Collective.ALL_GATHER, 6, dtype=kind)
        reduced = group.prepare(Collective.ALL_REDUCE, 4, dtype=kind)
        exchanged = group.prepare(Collective.ALL_TO_ALL, 6, dtype=kind)
        return tuple(expected(each, kind, op).tolist() for each in (gathered, reduced, exchanged))  # type: ignore[return-value]

    def value(rank: int, place: int) -> float:
        return 1.0 + (place + 17 * rank) % 61 % 3

    for rank, result in enumerate(run_ranks(3, work)):
        assert not isinstance(result, BaseException)
        gathered, reduced, exchanged = result
        assert gathered == [value(r, i) for r in range(3) for i in range(2)]
        assert reduced == [sum(value(r, i) for r in range(3)) for i in range(4)]
        assert exchanged == [value(r, 2 * rank + i) for r in range(3) for i in range(2)]


def test_tolerance_is_of_the_type() -> None:
    wanted = np.array([3.0, 5.0], dtype=np.float32)
    assert wrong_elements(wanted * np.float32(1 + 1e-7), wanted, DataType.FLOAT32) == 0
    assert wrong_elements(wanted * np.float32(1.001), wanted, DataType.FLOAT32) == 2
    assert wrong_elements(np.array([np.nan, 5.0]), np.array([3.0, 5.0]), DataType.FLOAT64) == 1
    assert wrong_elements(np.array([3, 4]), np.array([3, 5]), DataType.INT64) == 1


def test_sizes_that_are_equal_in_whole_elements_are_measured_once(tmp_path: object) -> None:
    for collective, sizes in ((Collective.ALL_GATHER, [0, 96, 996]), (Collective.BARRIER, [0])):
        rows = rows_of(
            3, collective, tmp_path, algorithms=["dissemination", "forest"], sizes=[0, 1, 96, 97, 998]
        )
        assert [row.size_bytes for row in rows] == [size for size in sizes for _ in range(2)]


def test_algorithms_that_do_not_fit_are_rows_with_the_reason(tmp_path: object) -> None:
    rows = rows_of(3, Collective.ALL_REDUCE, tmp_path, algorithms=["two-proc", "forest", NATIVE])
    by_name = {row.algorithm: row for row in rows}
    assert by_name["forest"].time_us > 0
    assert "numpy has no collectives of its own" in by_name[NATIVE].refusal
    assert by_name["two-proc"].refusal


def test_refusals(tmp_path: object) -> None:
    with pytest.raises(InputError, match="name each once"):
        rows_of(2, Collective.ALL_REDUCE, tmp_path, algorithms=["forest", "forest"])
    with pytest.raises(InputError, match="for bxor"):
        rows_of(2, Collective.ALL_REDUCE, tmp_path, op=ReduceOp.BXOR)


def test_the_engine_is_that_of_the_launcher() -> None:
    torchrun = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    assert engine_name(environment=torchrun) == "torch"
    assert engine_name("shm", torchrun) == "shm"
    assert engine_name("put-signal", torchrun) == engine_name("put-signal", {"PMI_SIZE": "2"}) == "put-signal"
    assert engine_name(environment={"PMI_SIZE": "2"}) == "mpi"
    with pytest.raises(InputError, match="found none"):
        engine_name(environment={})
    with pytest.raises(InputError, match="found no MASTER_ADDR"):
        engine_name("torch", {"RANK": "0", "WORLD_SIZE": "1"})
    with pytest.raises(InputError, match="choose one of them"):
        engine_name("ucx", torchrun)


def test_contributions_differ_between_ranks() -> None:
    def work(engine: NumpyEngine) -> list[int]:
        group = Communicator(engine, preset("ring", gpus=2), pieces=1)
        program = group.prepare(Collective.ALL_REDUCE, 40, dtype=DataType.INT8)
        return contribution(program, engine.rank, DataType.INT8).tolist()

    first, second = run_ranks(2, work)
    assert first != second


STAT = "cpu  40 1 9 800 100 20 5 25 30 7\ncpu0 40 1 9 800 100 20 5 25 30 7\nintr 12345\n"


def test_all_cores_together_guests_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: STAT)
    assert core_times() == (900, 1000)


@pytest.mark.parametrize("text", ["", "cpu", "cpu  1 2 3", "cpu  a b c d e f g h"])
def test_what_cannot_be_read_is_not_known(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: text)
    assert core_times() is None


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert core_times() is None
    assert busy_share((0.0, 1.0), core_times()) == -1


def test_no_time_has_passed() -> None:
    assert busy_share((900.0, 1000.0), (900.0, 1000.0)) == -1


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells")
def test_here() -> None:
    found = core_times()
    assert found is not None
    assert 0 < found[0] <= found[1]
