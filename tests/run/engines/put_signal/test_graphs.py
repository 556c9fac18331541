"""Recorded calls on the emulated device: replays like those of CUDA graphs, with nothing that a host counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.dialects.put_signal.lower import lower_put_signal
from coppice.program.dialects.put_signal.order import is_graph_safe
from coppice.run.communicator.communicator import Communicator
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.put_signal.device import Awaited, Put
from coppice.run.engines.put_signal.emulated import EmulatedDevice, EmulatedGraph
from coppice.run.engines.put_signal.engine import PutSignalEngine
from coppice.run.errors import PeerLost, TimedOut
from coppice.topology.presets import preset
from support.emulated_groups import on_emulated_device
from support.put_signal_cases import forest

REPLAYS = 40


def forbidden(*_: object, **__: object) -> Any:
    raise AssertionError("a replay must not come here")


@pytest.mark.parametrize("seed", [-1, 0, 1, 2])
@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.ALL_TO_ALL])
@pytest.mark.spread(3)
def test_replays_are_right_and_leave_the_host_as_it_was(
    tmp_path: Path, seed: int, collective: Collective
) -> None:
    """Inputs change from replay to replay, in their places; eager calls before and after go on counting."""

    def work(engine: PutSignalEngine) -> list[int]:
        device = engine.device
        assert isinstance(device, EmulatedDevice)
        group = Communicator(engine, preset("ring", gpus=3), algorithm="forest", cache_dir=tmp_path)
        program = group.prepare(collective, 12, dtype="int64", in_place=False)
        given, found = np.zeros(12, dtype=np.int64), np.zeros(12, dtype=np.int64)

        def run() -> None:
            group.carry_out(program, given, found, dtype=DataType.INT64, op=ReduceOp.SUM)

        def wrong(turn: int) -> int:
            inputs = [np.arange(12) * (rank + 1) + turn for rank in range(3)]
            if collective is Collective.ALL_REDUCE:
                wanted = np.sum(inputs, axis=0)
            else:
                own = engine.rank
                wanted = np.concatenate([each[4 * own : 4 * own + 4] for each in inputs])
            return int((found != wanted).sum())

        def fill(turn: int) -> None:
            given[:] = np.arange(12) * (engine.rank + 1) + turn

        fill(0)
        run()
        outcome = [wrong(0)]
        with EmulatedGraph(device) as graph:
            run()
        assert graph.calls > 3
        before = dict(device._expected)
        engine._run = device.prepare = forbidden  # type: ignore[method-assign]
        for turn in range(1, REPLAYS):
            fill(turn)
            graph.replay(timeout_s=60)
            outcome.append(wrong(turn))
        assert device._expected == before
        del engine._run, device.prepare  # type: ignore[attr-defined]
        fill(-5)
        run()
        return [*outcome, wrong(-5)]

    assert on_emulated_device(work, seed=seed) == [[0] * (REPLAYS + 1)] * 3


def both_put_twice(engine: PutSignalEngine, *, captured: bool) -> Any:
    """Two ranks that put twice to each other before they wait: a flag holds one signal."""
    device = engine.device
    assert isinstance(device, EmulatedDevice)
    device.prepare(4096, communicators=1, streams=1)
    peer = 1 - engine.rank

    def calls() -> None:
        for _ in range(2):
            device.transfer(0, 0, [Put(peer, 0, 64, 8, 0, 0)])
        for _ in range(2):
            device.wait(0, 0, [Awaited(peer, 1, 0, 0)])

    try:
        if captured:
            with EmulatedGraph(device) as graph:
                calls()
            graph.replay(timeout_s=0.5)
        else:
            calls()
            device.finish("a test", 60)
    except (TimedOut, PeerLost) as error:
        return str(error)  # the one whose time begins later may learn that the other has given up
    engine.exchange(b"")
    return "done"


def test_a_flag_holds_one_signal_where_a_counter_holds_many() -> None:
    assert on_emulated_device(lambda engine: both_put_twice(engine, captured=False), ranks=2) == ["done"] * 2
    stuck = on_emulated_device(lambda engine: both_put_twice(engine, captured=True), ranks=2)
    words = [
        f"rank {rank} waited 0.5 s in a replay for rank {1 - rank}: see what that rank does, or allow more time."
        for rank in range(2)
    ]
    others = [rank for rank in range(2) if stuck[rank] != words[rank]]
    assert len(others) <= 1
    assert all(f"while rank {rank} waited for it" in stuck[rank] for rank in others)


def test_what_no_graph_can_hold_is_refused_before_anything_is_recorded() -> None:
    body = forest("ring", Collective.ALL_REDUCE, (("gpus", 4),))
    unsafe = lower_put_signal(body, pieces=4, graphs=False)
    safe = lower_put_signal(body, pieces=4, graphs=True)
    assert is_graph_safe(safe)
    assert not is_graph_safe(unsafe)

    def work(engine: PutSignalEngine) -> list[str]:
        words = []
        device = engine.device
        assert isinstance(device, EmulatedDevice)
        given = np.zeros(1 << 12)

        def run(program: Any) -> None:
            engine.run_program(
                program, given, given.copy(), count=len(given), dtype=DataType.FLOAT64, timeout_s=60
            )

        for program in (unsafe, safe):
            with pytest.raises(InputError) as found, EmulatedGraph(device):
                run(program)
            words.append(str(found.value))
        engine._warm_up(safe.num_communicators, 60)
        with (
            pytest.raises(InputError, match=r"expected a window of .* before calls are recorded"),
            EmulatedGraph(device),
        ):
            run(safe)
        run(safe)
        with EmulatedGraph(device) as graph:
            run(safe)
        device.captures = False
        with (
            pytest.raises(InputError, match="expected a library whose calls can be recorded"),
            EmulatedGraph(device),
        ):
            run(safe)
        graph.replay(timeout_s=60)
        return words

    wanted = [
        "expected a program that may be captured, found one whose counters hold more than one signal: ",
        "expected a call that has run before it is recorded, found a new one: make the same call once before.",
    ]
    for words in on_emulated_device(work, ranks=4):
        assert [each.startswith(start) for each, start in zip(words, wanted, strict=True)] == [True, True], (
            words
        )


def test_a_rank_that_does_not_replay_is_lost_to_the_others() -> None:
    program = lower_put_signal(forest("ring", Collective.ALL_REDUCE, (("gpus", 3),)), pieces=1, graphs=True)

    def work(engine: PutSignalEngine) -> str:
        device = engine.device
        assert isinstance(device, EmulatedDevice)
        given = np.zeros(program.num_chunks)

        def run() -> None:
            engine.run_program(
                program, given, given.copy(), count=len(given), dtype=DataType.FLOAT64, timeout_s=60
            )

        run()
        with EmulatedGraph(device) as graph:
            run()
        if engine.rank == 1:
            return "left"
        with pytest.raises(PeerLost) as found:
            graph.replay(timeout_s=60)
        return str(found.value)

    found = on_emulated_device(work, seed=1)
    assert found[1] == "left"
    assert any("rank 1 has closed its engine while rank" in str(each) for each in found), found


def test_a_larger_call_leaves_a_recorded_one_right(tmp_path: Path) -> None:
    """The window grows between a graph's recording and its replay."""

    def work(engine: PutSignalEngine) -> list[list[int]]:
        device = engine.device
        assert isinstance(device, EmulatedDevice)
        group = Communicator(engine, preset("ring", gpus=3), algorithm="forest", cache_dir=tmp_path)
        small = group.prepare(Collective.ALL_REDUCE, 12, dtype="int64", in_place=False)
        given, found = np.zeros(12, dtype=np.int64), np.zeros(12, dtype=np.int64)
        group.carry_out(small, given, found, dtype=DataType.INT64, op=ReduceOp.SUM)
        with EmulatedGraph(device) as graph:
            group.carry_out(small, given, found, dtype=DataType.INT64, op=ReduceOp.SUM)
        large = group.prepare(Collective.ALL_REDUCE, 300_000, dtype="int64", in_place=True)
        many = np.full(300_000, engine.rank + 1, dtype=np.int64)
        group.carry_out(large, None, many, dtype=DataType.INT64, op=ReduceOp.SUM)
        given[:] = engine.rank + 5
        graph.replay(timeout_s=120)
        return [np.unique(many).tolist(), np.unique(found).tolist()]

    assert on_emulated_device(work) == [[[6], [18]]] * 3
