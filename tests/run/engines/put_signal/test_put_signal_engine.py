"""The put/signal engine on the emulated device: results of every collective, fallbacks, and lost ranks."""

from __future__ import annotations

import json
import logging
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coppice.collectives import Collective
from coppice.errors import CoppiceError, InputError
from coppice.program.dialects.put_signal.lower import lower_put_signal
from coppice.program.dialects.put_signal.order import is_graph_safe
from coppice.run.bench.measuring import contribution, expected
from coppice.run.communicator.communicator import Communicator
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.numpy import numpy_engines
from coppice.run.engines.put_signal.device import Awaited, Put
from coppice.run.engines.put_signal.engine import PutSignalEngine
from coppice.run.engines.put_signal.opening import DEVICE_VARIABLE, open_device, put_signal_engine
from coppice.run.errors import PeerLost, RunError, TimedOut
from coppice.topology.presets import preset
from support.emulated_groups import on_emulated_device
from support.put_signal_cases import COLLECTIVES, forest, wrong_program
from support.rank_processes import rank_codes

RANKS = 3
BENCH = "bench all_gather --engine put-signal -b 4K -e 4K -n 1 -w 0 -a forest,ring,native --json"
WORKER = Path(__file__).parents[3] / "support" / "emulated_ranks.py"


@pytest.mark.parametrize("seed", [-1, 0, 1, 2, 3])
def test_every_collective_is_right_whatever_the_delays(tmp_path: Path, seed: int) -> None:
    """17 elements of a block need padding in chunks; reduced in place, moved apart."""

    def work(engine: PutSignalEngine) -> int:
        group = Communicator(
            engine, preset("ring", gpus=RANKS), algorithm="forest", pieces=2, cache_dir=tmp_path
        )
        ran = 0
        for number, collective in enumerate(COLLECTIVES):
            in_place = collective in (Collective.BROADCAST, Collective.REDUCE) or (number + seed) % 2 == 0
            program = group.prepare(
                collective,
                17 * RANKS,
                dtype="int64",
                root=1 if collective.rooted else None,
                in_place=in_place,
            )
            for _ in range(2 if number == 2 else 1):
                ran += run_and_compare(group, program)
        return ran

    assert on_emulated_device(work, seed=seed) == [7] * RANKS


def run_and_compare(group: Communicator, program: Any) -> int:
    mine = contribution(program, program.rank, DataType.INT64)
    output = np.full(program.output_elements, -7)
    given = None
    if program.in_place:
        gathers = program.collective is Collective.ALL_GATHER
        first = program.count * program.rank // program.ranks if gathers else 0
        if program.collective is not Collective.BROADCAST or program.rank == program.root:
            output[first : first + len(mine)] = mine
    else:
        given = np.zeros(program.input_elements, dtype=np.int64)
        given[:] = mine[: len(given)]
    group.carry_out(program, given, output, dtype=DataType.INT64, op=ReduceOp.SUM)
    found = output[program.result_offset :][: program.result_elements]
    assert (found == expected(program, DataType.INT64, ReduceOp.SUM)).all(), program.collective
    assert program in group.engine._programs
    assert is_graph_safe(group.engine._programs[program])
    return 1


def test_types_and_operations(tmp_path: Path) -> None:
    def work(engine: PutSignalEngine) -> list[Any]:
        group = Communicator(engine, preset("ring", gpus=RANKS), algorithm="ring", cache_dir=tmp_path)
        values = np.arange(5, dtype=np.float32) + engine.rank
        average = group.all_reduce(values.copy(), op="avg").tolist()
        most = group.all_reduce(values.astype(np.int16), op="max").tolist()
        bits = np.full(3, 0x3F80, dtype=np.uint16)  # 1 in bfloat16
        return [average, most, group.all_reduce(bits, dtype="bfloat16").tolist()]

    wanted = [[1.0, 2.0, 3.0, 4.0, 5.0], [2, 3, 4, 5, 6], [0x4040] * 3]
    assert on_emulated_device(work, seed=1) == [wanted] * RANKS


def test_what_puts_cannot_do_is_left_to_the_engine_below_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def work(engine: PutSignalEngine) -> list[Any]:
        group = Communicator(engine, preset("ring", gpus=RANKS), algorithm="forest", cache_dir=tmp_path)
        group.barrier()
        found = []
        for count in (4, 7):  # blocks of 1, 1, 2 and of 2, 2, 3 elements
            program = group.prepare(Collective.REDUCE_SCATTER, count, in_place=True)
            output = np.full(count, engine.rank + 1, dtype=np.float32)
            group.carry_out(program, None, output, dtype=DataType.FLOAT32, op=ReduceOp.SUM)
            found.append(output[program.result_offset :][: program.result_elements].tolist())
        return found

    with caplog.at_level(logging.WARNING, logger="coppice"):
        found = on_emulated_device(work)
    assert [[len(each) for each in ranks] for ranks in found] == [[1, 2], [1, 2], [2, 3]]
    assert {each for ranks in found for row in ranks for each in row} == {6.0}
    told = [record.getMessage() for record in caplog.records if "differ in length" in record.getMessage()]
    assert told == ["numpy carries out what puts cannot: blocks of reduce_scatter that differ in length"]


def test_the_emulated_device_catches_a_receive_buffer_that_is_used_too_early() -> None:
    """Its delays are adversarial: what the verifier refuses comes out wrong for some seed."""
    program = wrong_program()

    def work(engine: PutSignalEngine) -> bool:
        wrong = False
        for turn in range(8):
            given = np.arange(program.num_chunks) * (engine.rank + 1 + turn)
            wanted = np.arange(program.num_chunks) * (10 + 4 * turn)
            found = np.zeros_like(given)
            engine.run_program(program, given, found, count=len(given), dtype=DataType.INT64, timeout_s=300)
            wrong |= engine.rank == program.root and not (found == wanted).all()
        return wrong

    assert any(any(on_emulated_device(work, seed=seed, ranks=4)) for seed in range(40))


def test_ranks_as_processes_of_which_one_is_killed(tmp_path: Path) -> None:
    """It is killed before its third run, maybe with data under way; the others see it, however long they might wait."""
    logs = [tmp_path / f"log{rank}" for rank in range(3)]
    codes = rank_codes(
        WORKER, [(rank, 3, tmp_path / "meet", "kill") for rank in range(3)], logs, timeout_s=120
    )
    words = [log.read_text() for log in logs]
    assert codes == [0, -signal.SIGKILL, 0], words
    for rank in (0, 2):
        assert words[rank].startswith(("1 right, PeerLost rank ", "2 right, PeerLost rank ")), words[rank]
    assert any("PeerLost rank 1 has ended while rank" in each for each in words), words


def test_bench_on_processes_of_the_emulated_device(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    logs = [tmp_path / f"log{rank}" for rank in range(2)]
    variables = {DEVICE_VARIABLE: "emulated", "COPPICE_CACHE": str(tmp_path / "plans")}
    codes = rank_codes(
        WORKER,
        [(rank, 2, port, "cli", *BENCH.split()) for rank in range(2)],
        logs,
        variables=variables,
        timeout_s=120,
    )
    words = [log.read_text() for log in logs]
    assert codes == [0, 0], words
    rows = [json.loads(line) for line in words[0].splitlines() if line.startswith("{")]
    assert [(row["algorithm"], row["wrong"], row["refusal"]) for row in rows] == [
        ("forest", 0, ""),
        ("ring", 0, ""),
        ("native", 0, ""),
    ]


def test_a_rank_that_does_not_come_is_named_in_time() -> None:
    program = lower_put_signal(forest("ring", Collective.ALL_REDUCE, (("gpus", 3),)))
    done = threading.Barrier(3)

    def work(engine: PutSignalEngine) -> Any:
        error: Exception | None = None
        engine.device.prepare(1 << 16, communicators=1, streams=1)
        engine._warm_up(1, 60)
        if engine.rank:
            given = np.zeros(program.num_chunks)
            try:
                engine.run_program(
                    program, given, given.copy(), count=len(given), dtype=DataType.FLOAT64, timeout_s=0.5
                )
            except Exception as found:  # noqa: BLE001  (it is the result)
                error = found
        done.wait(60)
        return error

    found = on_emulated_device(work, ranks=3)
    assert found[0] is None
    assert all(isinstance(each, TimedOut | PeerLost) for each in found[1:]), found
    assert any(
        isinstance(each, TimedOut) and "waited 0.5 s in all_reduce for rank" in str(each) for each in found
    )


def test_a_rank_that_closes_its_engine_is_lost_to_the_others() -> None:
    program = lower_put_signal(forest("ring", Collective.BROADCAST, (("gpus", 3),)))

    def work(engine: PutSignalEngine) -> Any:
        engine.device.prepare(1 << 16, communicators=1, streams=1)
        if engine.rank == program.root:
            return None
        given = np.zeros(program.num_chunks)
        with pytest.raises(PeerLost) as found:
            engine.run_program(program, None, given, count=len(given), dtype=DataType.FLOAT64, timeout_s=60)
        with pytest.raises(PeerLost):
            engine.run_program(program, None, given, count=len(given), dtype=DataType.FLOAT64, timeout_s=60)
        return str(found.value)

    found = on_emulated_device(work, ranks=3)
    assert any("rank 0 has closed its engine while rank" in str(each) for each in found), found


def test_an_error_of_the_library_ends_the_run_on_all_ranks() -> None:
    program = lower_put_signal(forest("ring", Collective.ALL_REDUCE, (("gpus", 3),)), pieces=1)

    def work(engine: PutSignalEngine) -> Any:
        engine.device.prepare(1 << 16, communicators=1, streams=1)
        if engine.rank == 1:
            engine.device.copy = engine.device.wait = broken  # type: ignore[method-assign,assignment]
            engine._warm = 1
        given = np.zeros(program.num_chunks)
        with pytest.raises(RunError) as found:
            engine.run_program(
                program, given, given.copy(), count=len(given), dtype=DataType.FLOAT64, timeout_s=60
            )
        return str(found.value)

    found = on_emulated_device(work, ranks=3)
    assert found[1] == "all_reduce failed on the emulated device with OSError: unhandled system error."
    assert any("rank 1 has given up while rank" in str(found[rank]) for rank in (0, 2)), found


def broken(*_: object) -> None:
    raise OSError("unhandled system error")


def test_signals_reach_a_peer_in_their_order_each_after_its_data() -> None:
    """Two puts to one peer: who has the second signal has the data of both, whichever landed first."""

    def work(engine: PutSignalEngine) -> list[int]:
        device, found = engine.device, []
        device.prepare(4096, communicators=1, streams=1)
        peer = 1 - engine.rank
        for turn in range(20):
            device.write(0, np.full(16, turn, dtype=np.int64))
            device.transfer(0, 0, [Put(peer, 0, 256, 64, 0, 0), Put(peer, 64, 320, 64, 1, 0)])
            device.wait(0, 0, [Awaited(peer, 1, 1, 0)])
            device.copy(0, 256, 512, 128)
            device.wait(0, 0, [Awaited(peer, 1, 0, 0)])
            device.finish("a test", 30)
            values = np.zeros(16, dtype=np.int64)
            device.read(512, values)
            found.append(int((values != turn).sum()))
            engine.exchange(b"")
        return found

    assert on_emulated_device(work, seed=0, ranks=2) == [[0] * 20] * 2


def test_devices_that_are_not_there_say_so_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("a GPU is there")
    [below] = numpy_engines(1)
    for name in ("symmetric", "nccl"):
        with pytest.raises(
            CoppiceError, match=r"^expected a GPU for .*: use `emulated`, or run where there is one\.$"
        ):
            open_device(name, below)
    monkeypatch.setenv(DEVICE_VARIABLE, "nccl")
    with pytest.raises(InputError, match="expected a GPU for NCCL"):
        put_signal_engine(below)
    monkeypatch.setenv(DEVICE_VARIABLE, "carrier pigeon")
    with pytest.raises(
        InputError, match="expected COPPICE_PUT_SIGNAL to name one of nccl, symmetric, emulated"
    ):
        put_signal_engine(below)
    monkeypatch.delenv(DEVICE_VARIABLE)
    engine = put_signal_engine(below)
    assert engine.device.name == "the emulated device"
    engine.close()
