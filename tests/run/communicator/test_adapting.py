"""Groups go on with another network without a restart: results are equal, and noise alone changes nothing."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coppice.diagnosis.simulated import measure
from coppice.errors import InputError
from coppice.run.adapting import adapting
from coppice.run.adapting.adapting import slowed
from coppice.run.adapting.watching import FIRST, NEWEST, WARM, CallTimes
from coppice.run.communicator.communicator import Communicator
from coppice.run.engines.numpy import run_ranks
from coppice.run.errors import Mismatch
from coppice.topology.model import Topology
from coppice.topology.operations import subset
from coppice.topology.presets import preset

RANKS = 4
SLOW = "gpu1 -> nvswitch"


@pytest.fixture(scope="module")
def box() -> Topology:
    return subset(preset("dgx-a100"), range(RANKS))


def on_sockets(ranks: int, work: Callable[[Any], Any]) -> list[Any]:
    """Run on real sockets: each rank a thread with its own connections of gloo."""
    distributed = pytest.importorskip("torch.distributed")
    from coppice.run.engines.torch.engine import TorchEngine

    store, found, errors = distributed.HashStore(), [None] * ranks, list[Exception]()

    def one(rank: int) -> None:
        try:
            engine = TorchEngine(store, rank, ranks, exchange_timeout_s=30)
            try:
                found[rank] = work(engine)
            finally:
                engine.close()
        except Exception as error:  # noqa: BLE001 (of any kind, for the test to see)
            errors.append(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if errors:
        raise errors[0]
    return found


def sums(group: Communicator, number: int) -> list[float]:
    data = np.arange(64, dtype=np.float64) + group.rank + number
    return group.all_reduce(data).tolist()


EXPECTED = [(np.arange(64) * RANKS + sum(range(RANKS)) + RANKS * number).tolist() for number in range(60)]


def test_a_new_network_in_the_middle_gives_equal_results(box: Topology, tmp_path: Path) -> None:
    left = slowed(box, {SLOW: 0.3})

    def work(engine: Any) -> tuple[list[list[float]], str]:
        with Communicator(engine, box, cache_dir=tmp_path, adapt=False, algorithm="forest") as group:
            found = [sums(group, number) for number in range(3)]
            group.replan(left if engine.rank == 0 else None)  # rank 0 proposes
            found += [sums(group, number) for number in range(3, 6)]
            group.replan(box)
            found += [sums(group, number) for number in range(6, 8)]
            return found, group.topology.sha256

    for run in (on_sockets, run_ranks):
        results = run(RANKS, work)
        assert all(found == EXPECTED[:8] and digest == box.sha256 for found, digest in results)


def test_ranks_that_expect_other_networks_are_all_told(box: Topology, tmp_path: Path) -> None:
    left = slowed(box, {SLOW: 0.3})

    def work(engine: Any) -> str:
        with Communicator(engine, box, cache_dir=tmp_path) as group:
            with pytest.raises(Mismatch, match="a new network differs between ranks"):
                group.replan(left if engine.rank == 2 else box)
            with pytest.raises(Mismatch, match="expected a network of 4 ranks, found 8"):
                group.replan(preset("dgx-a100"))
            with pytest.raises(Mismatch, match="rank 0 proposes no network"):
                group.replan()
            return str(sums(group, 1) == EXPECTED[1])

    assert run_ranks(RANKS, work) == ["True"] * RANKS


def test_plan_files_stay(box: Topology, tmp_path: Path) -> None:
    import coppice

    coppice.write_plan(coppice.plan(box, "all_reduce"), tmp_path / "plan.json")

    def work(engine: Any) -> None:
        with (
            Communicator(engine, box, algorithm=str(tmp_path / "plan.json"), cache_dir=tmp_path) as group,
            pytest.raises(InputError, match="expected an algorithm that plans"),
        ):
            group.replan(box)

    run_ranks(RANKS, work)


def test_a_lasting_change_is_planned_for(
    box: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Times of calls and rates of probes are those of a network with a slow link; all else is real."""
    slow_from = 30

    def times(self: CallTimes, program: Any, seconds: float) -> None:  # noqa: ARG001 (of the method)
        self.count = getattr(self, "count", 0) + 1  # type: ignore[attr-defined]
        add(self, program, 3.0 if slow_from < self.count <= slow_from + 30 else 1.0)  # type: ignore[attr-defined]

    add = CallTimes.add
    monkeypatch.setattr(CallTimes, "add", times)

    def rates(engine: Any, design: Any, **_: object) -> list[Any]:
        engine.exchange(b"")
        return [] if design is None else [each[:, None] for each in measure(design, {SLOW: 0.3}, spread=0.01)]

    monkeypatch.setattr(adapting, "measure_design", rates)
    digests: list[list[str]] = [[] for _ in range(RANKS)]

    def work(engine: Any) -> list[list[float]]:
        with Communicator(engine, box, cache_dir=tmp_path, adapt=True, algorithm="forest") as group:
            found = []
            for number in range(60):
                found.append(sums(group, number))
                digests[engine.rank].append(group.topology.sha256)
            return found

    assert on_sockets(RANKS, work) == [EXPECTED] * RANKS
    assert all(each == digests[0] for each in digests)
    changes = [place for place in range(1, 60) if digests[0][place] != digests[0][place - 1]]
    assert len(changes) == 1
    assert slow_from < changes[0] <= slow_from + NEWEST + adapting.EVERY
    assert digests[0][-1] == slowed(box, {SLOW: 0.3}).sha256
    (line,) = [words for words in capfd.readouterr().err.splitlines() if words.startswith("coppice:")]
    assert f"slow: link {SLOW} at 30% of its rate" in line
    assert "planned anew" in line


def test_adapting_is_off_unless_asked_for(
    box: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watched(engine: Any) -> bool:
        with Communicator(engine, box, cache_dir=tmp_path) as group:
            return group._watch is not None

    assert on_sockets(RANKS, watched) == [False] * RANKS
    monkeypatch.setenv("COPPICE_ADAPT", "1")
    assert on_sockets(RANKS, watched) == [True] * RANKS
    assert run_ranks(RANKS, watched) == [False] * RANKS  # it times no flows


class TestCallTimes:
    def test_noise_is_no_change(self) -> None:
        """Times with a spread of a fifth, and one call in ten that takes ten times as long."""
        draw = random.Random(4)
        for _ in range(4):
            times = CallTimes()
            for number in range(300):
                times.add(number % 3, draw.lognormvariate(0, 0.2) * (10 if draw.random() < 0.1 else 1))
                assert times.slower() == 1.0

    @pytest.mark.parametrize("ratio", [1.5, 3.0])
    def test_a_lasting_change_is_seen_within_few_calls(self, ratio: float) -> None:
        draw = random.Random(5)
        for _ in range(20):
            times = CallTimes()
            for _ in range(WARM + FIRST + 40):
                times.add("a", draw.lognormvariate(0, 0.05))
            for _ in range(NEWEST):
                assert times.slower() in (1.0, pytest.approx(ratio, rel=0.1))
                times.add("a", ratio * draw.lognormvariate(0, 0.05))
            assert times.slower() == pytest.approx(ratio, rel=0.1)

    def test_a_short_disturbance_is_none(self) -> None:
        times = CallTimes()
        for number in range(100):
            times.add("a", (5.0 if 40 <= number < 40 + NEWEST // 2 else 1.0) * (1 + 0.01 * (number % 5)))
            assert times.slower() == 1.0

    def test_programs_have_times_of_their_own(self) -> None:
        times = CallTimes()
        for _ in range(WARM + FIRST + NEWEST):
            times.add("short", 1.0)
        for _ in range(WARM + FIRST + NEWEST):
            times.add("long", 50.0)
            assert times.slower() == 1.0
