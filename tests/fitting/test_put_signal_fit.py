"""Lanes, groups and pieces of put/signal programs that suit a size: never worse than the default, and within limits."""

from __future__ import annotations

from fractions import Fraction

import pytest

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.fitting.put_signal import fit_put_signal
from coppice.program.put_signal.lower import lower_put_signal
from coppice.program.put_signal.verify import verify_put_signal
from coppice.simulation.put_signal import simulate_put_signal
from support.put_signal_cases import COLLECTIVES, forest

SIZE = 256 << 20


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_is_found_verifies_and_is_not_slower_than_the_default(collective: Collective) -> None:
    body = forest("star", collective, (("gpus", 4), ("gb_per_s", 100)))
    found = fit_put_signal(body, SIZE, effort=20_000)
    report = verify_put_signal(found.program)
    assert report.ok
    assert report.graph_safe
    assert found.time_us == simulate_put_signal(found.program, body, SIZE).time_us
    assert found.time_us <= simulate_put_signal(lower_put_signal(body), body, SIZE).time_us
    assert Fraction(int(found.program.staging.max()), found.program.num_chunks) <= Fraction(1, 4)
    assert found.program.num_communicators == found.way.lanes


def test_a_box_scatters_sums_at_nearly_the_rate_of_the_plan() -> None:
    """One lane reaches half of it."""
    body = forest("dgx-a100", Collective.REDUCE_SCATTER)
    best_us = SIZE / 342.857 / 1e3
    found = fit_put_signal(body, SIZE, effort=60_000)
    assert found.time_us < best_us / 0.9
    assert simulate_put_signal(lower_put_signal(body), body, SIZE).time_us > best_us / 0.8


def test_what_is_given_stays() -> None:
    body = forest("star", Collective.ALL_REDUCE, (("gpus", 4), ("gb_per_s", 100)))
    found = fit_put_signal(body, SIZE, lanes=6, pieces=5, effort=20_000)
    assert (found.way.lanes, found.way.pieces, found.program.num_communicators) == (6, 5, 6)
    assert fit_put_signal(body, SIZE, groups=2, effort=20_000).way.groups == 2


def test_lanes_that_no_groups_divide_are_refused() -> None:
    body = forest("star", Collective.ALL_GATHER, (("gpus", 3), ("gb_per_s", 100)))
    with pytest.raises(InputError, match=r"expected `groups` to divide the 4 lanes, found 3\."):
        fit_put_signal(body, SIZE, lanes=4, groups=3)


def test_a_small_message_takes_no_pieces() -> None:
    """Staging memory that is little anyway is no reason to wait."""
    body = forest("star", Collective.ALL_REDUCE, (("gpus", 3), ("gb_per_s", 100)))
    found = fit_put_signal(body, 1024)
    assert (found.way.lanes, found.way.pieces) == (1, 1)
    assert found.time_us == simulate_put_signal(lower_put_signal(body, pieces=1), body, 1024).time_us
