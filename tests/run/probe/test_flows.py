"""Flows of probes are timed one by one, over real sockets and over a network of known rates."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coppice.diagnosis.design import ProbeDesign, design_probes
from coppice.diagnosis.inference import infer
from coppice.errors import InputError
from coppice.run.engines.engine import Engine
from coppice.run.engines.numpy import run_ranks
from coppice.run.probe.flows import measure_design
from coppice.topology.presets import preset


def on_threads(ranks: int, work: Callable[[int], Any]) -> list[Any]:
    found: list[Any] = [None] * ranks
    errors: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            found[rank] = work(rank)
        except Exception as error:  # noqa: BLE001 (of any kind, for the test to see)
            errors.append(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return found


class PacedEngine:
    """A rank whose flows take the time of known rates; ranks meet in an exchange."""

    name = "paced"

    def __init__(self, rank: int, ranks: int, shared: dict[str, Any], slow: tuple[int, int]) -> None:
        self.rank, self.ranks, self.shared, self.slow = rank, ranks, shared, slow

    def run(self, *_: object, **__: object) -> None:
        raise AssertionError("streams only")

    def close(self) -> None:
        pass

    def exchange(self, data: bytes) -> list[bytes]:
        self.shared["data"][self.rank] = data
        self.shared["barrier"].wait()
        found = list(self.shared["data"])
        self.shared["barrier"].wait()
        return found

    def stream(
        self,
        *,
        into: NDArray[np.uint8] | None,
        src: int,
        **_: object,
    ) -> NDArray[np.float64]:
        assert into is not None
        draw = self.shared["draw"][self.rank]
        rate = 50e9 * (0.5 if (src, self.rank) == self.slow else 1.0) * np.exp(draw.normal(0, 0.01))
        return np.arange(1, len(into) + 1) * into.shape[1] / rate + 1e-6


@pytest.fixture(scope="module")
def design() -> ProbeDesign:
    return design_probes(preset("dgx-a100", boxes=1))


def test_each_flow_has_its_own_rate(design: ProbeDesign) -> None:
    ranks = design.topology.num_ranks
    slow = (int(design.rounds[0].src[2]), int(design.rounds[0].dst[2]))
    shared = {
        "data": [b""] * ranks,
        "barrier": threading.Barrier(ranks),
        "draw": [np.random.default_rng(rank) for rank in range(ranks)],
    }

    def work(rank: int) -> list[NDArray[np.float64]]:
        engine: Any = PacedEngine(rank, ranks, shared, slow)
        return measure_design(engine, design if rank == 0 else None, rounds=2, seconds=1e-4)

    found = on_threads(ranks, work)
    assert [each.shape for each in found[0]] == [(len(each.src), 2) for each in design.rounds]
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other, strict=True))
    rates = np.median(found[0][0], axis=1)
    assert np.flatnonzero(rates < 0.7 * np.median(rates)).tolist() == [2]


def test_real_sockets(design: ProbeDesign) -> None:
    torch = pytest.importorskip("torch.distributed")
    from coppice.run.engines.torch.engine import TorchEngine

    ranks, store = design.topology.num_ranks, torch.HashStore()

    def work(rank: int) -> Any:
        engine = TorchEngine(store, rank, ranks, exchange_timeout_s=30)
        try:
            return measure_design(engine, design if rank == 0 else None, rounds=1, seconds=0.005)
        finally:
            engine.close()

    found = on_threads(ranks, work)
    assert all((each > 0).all() and np.isfinite(each).all() for each in found[0])
    assert infer(design, [np.median(each, axis=1) for each in found[0]]).confidence > 0


def test_engines_that_time_no_flows_are_refused(design: ProbeDesign) -> None:
    def refused(engine: Engine) -> str:
        with pytest.raises(InputError, match="expected the engine torch or mpi, found numpy"):
            measure_design(engine, design)
        return "refused"

    assert run_ranks(2, refused) == ["refused", "refused"]
