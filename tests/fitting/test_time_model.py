"""Fits of the model of time: what made the times is found again, from few simulations, and odd times do not bend it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from coppice.collectives import Collective
from coppice.fitting.time_model import Bodies, FittedModel, MeasuredTime, bodies_of, fit, predicted_us
from coppice.simulation import Model
from coppice.simulation.simulator import fastest
from coppice.topology import preset

NAMES = ("ring", "recursive-doubling")
SIZES = tuple(2**k for k in (10, 14, 16, 17, 18, 20, 22, 26))


@pytest.fixture(scope="module")
def bodies() -> Bodies:
    return bodies_of(preset("star", gpus=4, gb_per_s=Fraction(1, 100)), Collective.ALL_REDUCE, NAMES)


def times_of(
    bodies: Bodies,
    model: Model,
    *,
    names: Sequence[str] = NAMES,
    pieces: int | None = None,
    factor: float = 1.0,
) -> list[MeasuredTime]:
    """What a machine would measure that is as the model says; the first algorithm's last size is odd."""
    found = [
        MeasuredTime(
            algorithm=name,
            size_bytes=size,
            time_us=predicted_us(bodies, name, size, model, pieces),
            pieces=pieces,
        )
        for name in names
        for size in SIZES
    ]
    odd = len(SIZES) - 1
    found[odd] = replace(found[odd], time_us=found[odd].time_us * factor)
    return found


SLOW = Model(
    overhead_us=150.0,
    launch_us=1700.0,
    buffered=True,
    workers=2,
    shared_workers=True,
    send_us=20.0,
    receive_us=20.0,
    efficiency=0.97,
    burst_bytes=80_000,
)


def near(found: FittedModel, true: Model, *names: str) -> None:
    """Figures that the times tell are found."""
    for name in names:
        assert getattr(found.model, name) == pytest.approx(getattr(true, name), rel=0.1), name


def test_bursts_are_found_again(bodies: Bodies) -> None:
    start = replace(
        SLOW, overhead_us=50.0, launch_us=500.0, send_us=10.0, receive_us=10.0, burst_bytes=40_000
    )
    found = fit(times_of(bodies, SLOW), bodies, start)
    assert found.mean_error < 0.01
    near(found, SLOW, "burst_bytes", "efficiency", "launch_us")
    assert isinstance(found.model.burst_bytes, int)
    assert found.tried < 100


def test_a_model_without_bursts_stays_so(bodies: Bodies) -> None:
    true = replace(SLOW, burst_bytes=0)
    found = fit(times_of(bodies, true), bodies, replace(true, launch_us=500.0, efficiency=0.9))
    assert found.model.burst_bytes == 0
    assert found.mean_error < 0.01


def test_caches_are_found_again() -> None:
    bodies = bodies_of(preset("star", gpus=2, gb_per_s=1000), Collective.ALL_REDUCE, ["ring"])
    true = Model(
        overhead_us=0.5,
        launch_us=10.0,
        buffered=True,
        workers=1,
        copy_gb_per_s=36.0,
        cache_bytes=850_000,
        memory_gb_per_s=14.0,
        send_us=0.2,
        receive_us=0.2,
    )
    start = replace(true, launch_us=5.0, copy_gb_per_s=20.0, cache_bytes=2**20, memory_gb_per_s=10.0)
    found = fit(times_of(bodies, true, names=["ring"]), bodies, start)
    assert found.mean_error < 0.02
    near(found, true, "copy_gb_per_s", "cache_bytes", "memory_gb_per_s")


def test_an_odd_time_does_not_bend_the_rest(bodies: Bodies) -> None:
    found = fit(times_of(bodies, SLOW, factor=8.0), bodies, replace(SLOW, launch_us=1000.0, efficiency=0.9))
    near(found, SLOW, "efficiency", "launch_us")
    assert sorted(map(abs, found.errors))[-2] < 0.05


def test_what_ran_in_pieces_is_simulated_so(bodies: Bodies) -> None:
    """In pieces only data bind steps, and every piece is a message; the library's own way is the best one."""
    (body,) = bodies["recursive-doubling"]
    free = replace(SLOW, steps_bind=False)
    for pieces in (2, 8):
        expected = fastest(body, 2**20, model=free, pieces=pieces, keep_hops=False).time_us
        assert predicted_us(bodies, "recursive-doubling", 2**20, SLOW, pieces) == expected
    assert (
        predicted_us(bodies, "recursive-doubling", 2**20, SLOW, 1) == fastest(body, 2**20, model=SLOW).time_us
    )
    names = ["recursive-doubling"]
    times = [row for count in (1, 8) for row in times_of(bodies, SLOW, names=names, pieces=count)]
    found = fit(times, bodies, replace(SLOW, send_us=10.0, receive_us=10.0))
    assert found.mean_error < 0.01


def test_processes_reach_each_other_through_other_ranks() -> None:
    """As `coppice run` plans them: on a ring of GPUs recursive doubling needs relays."""
    assert bodies_of(preset("ring", gpus=8), Collective.ALL_REDUCE, ["recursive-doubling"])
