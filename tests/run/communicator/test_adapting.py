"""Groups go on with another network without a restart: results are equal, and noise alone changes nothing."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coppice
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.diagnosis.simulated import measure
from coppice.errors import InputError
from coppice.run.adapting import adapting, watching
from coppice.run.adapting.adapting import slowed
from coppice.run.adapting.watching import FIRST, NEWEST, WARM, CallTimes
from coppice.run.communicator.communicator import Communicator
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.numpy import run_ranks
from coppice.run.errors import Mismatch
from coppice.run.planned import _LEAST_US, CallRequest, PlanCache, RankPrograms
from coppice.schedule.plan import Plan
from coppice.simulation.models import Model
from coppice.simulation.simulator import simulate
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

    def times(self: CallTimes, program: Any, seconds: float, simulated_s: float) -> None:  # noqa: ARG001
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


def test_a_network_that_is_slow_from_the_start_is_planned_for(
    box: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every call takes twice the time that its plan takes in the simulation, where no other call is known."""
    elements = 1 << 17
    simulated: list[float] = []

    def times(self: CallTimes, program: Any, seconds: float, simulated_s: float) -> None:  # noqa: ARG001
        simulated.append(simulated_s)
        add(self, program, 2.0 * simulated_s, simulated_s)

    add = CallTimes.add
    monkeypatch.setattr(CallTimes, "add", times)
    monkeypatch.setattr(watching, "LONG_S", 1e-7)

    def rates(engine: Any, design: Any, **_: object) -> list[Any]:
        engine.exchange(b"")
        return [] if design is None else [each[:, None] for each in measure(design, {SLOW: 0.5}, spread=0.01)]

    monkeypatch.setattr(adapting, "measure_design", rates)

    def work(engine: Any) -> str:
        with Communicator(engine, box, cache_dir=tmp_path, adapt=True, algorithm="forest", pieces=1) as group:
            for _ in range(WARM + FIRST + 2 * adapting.EVERY):
                group.all_reduce(np.ones(elements, dtype=np.float32))
            return group.topology.sha256

    (digest,) = set(on_sockets(RANKS, work))
    assert digest != box.sha256
    lines = [words for words in capfd.readouterr().err.splitlines() if words.startswith("coppice:")]
    assert len(lines) == 1
    assert "calls take 2 times as long as simulated" in lines[0]
    assert f"slow: link {SLOW} at" in lines[0]
    made = coppice.plan(box, "all_reduce", ring=False).plan
    expected = simulate(made, 4 * elements, model=Model(overhead_us=_LEAST_US), pieces=1).time_us
    assert simulated[0] == pytest.approx(expected / 1e6)
    assert max(simulated) > 1.2 * simulated[0]  # later ones are of what is left


def test_plans_of_the_first_network_are_mended(box: Topology, tmp_path: Path) -> None:
    """The new network's programs are those of the repaired plan; where no trees are, or names differ, it is planned."""
    left = slowed(box, {SLOW: 0.5})
    planned: list[tuple[str, bool]] = []

    class Cache(PlanCache):
        def plan(self, problem: Problem, algorithm: str, make: Callable[[], Plan]) -> Plan:
            found = super().plan(problem, algorithm, make)
            planned.append((problem.collective.value, bool(found.parameters.get("repaired"))))
            return found

    def work(engine: Any) -> None:
        options: dict[str, Any] = {"pieces": 1, "cache_dir": tmp_path, "timeout_s": 30}
        whole = RankPrograms(engine, box, algorithm="forest", **options)
        now = RankPrograms(engine, left, algorithm="forest", whole=whole, **options)
        now._cache = Cache(tmp_path)
        for collective in (Collective.ALL_GATHER, Collective.ALL_REDUCE, Collective.ALL_TO_ALL):
            request = CallRequest(
                collective=collective,
                count=64,
                dtype=DataType.FLOAT32,
                op=ReduceOp.SUM,
                root=None,
                in_place=False,
            )
            now.make(request)

    run_ranks(RANKS, work)
    assert planned == [("all_gather", True), ("all_reduce", True), ("all_to_all", False)]


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

    def test_times_are_compared_with_the_simulation_once(self) -> None:
        """A program that fits the simulation shows that the network is not slow; short calls say nothing."""

        def found(*ratios: float, simulated_s: float = 0.01) -> list[float]:
            times = CallTimes()
            for number in range(2 * len(ratios) * (WARM + FIRST)):
                place = number % len(ratios)
                times.add(place, ratios[place] * simulated_s, simulated_s)
            return [times.slower(), times.slower()]

        assert found(2.0, 3.0) == [pytest.approx(2.0), 1.0]
        assert found(1.1, 3.0) == found(1.4) == found(5.0, simulated_s=1e-5) == [1.0, 1.0]

    def test_programs_have_times_of_their_own(self) -> None:
        times = CallTimes()
        for _ in range(WARM + FIRST + NEWEST):
            times.add("short", 1.0)
        for _ in range(WARM + FIRST + NEWEST):
            times.add("long", 50.0)
            assert times.slower() == 1.0
