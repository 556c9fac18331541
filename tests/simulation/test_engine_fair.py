"""Max-min fair sharing: worked examples, connections, and rates that never exceed a link."""

from __future__ import annotations

import pytest

from coppice.errors import InputError
from coppice.schedule.schedule import Op
from coppice.simulation import Model, Sharing
from coppice.simulation.timeline import Reason
from simulation.bodies import line, network, rows
from support.ideal import simulate

COPY = Op.COPY
FAIR = Model(sharing=Sharing.FAIR, overhead_us=0.0)


def test_two_flows_share_a_link() -> None:
    topology = network(3, 1, [(0, 3, 4, 0.25), (1, 3, 4, 0.25), (3, 2, 4, 0.25)])
    table = [(0, 2, 0, COPY, (), -1), (1, 2, 1, COPY, (), -1)]
    found = simulate(rows(topology, table, shares=[1, 3]), 32_000, model=Model(sharing=Sharing.FAIR))
    # Both at 2 GB/s for 4 us, then the second alone at 4 GB/s for 4 us.
    assert found.finish_us.tolist() == [1 + 4 + 0.5, 1 + 8 + 0.5]
    assert found.link_busy_us.max() == 8


def test_a_flow_that_is_limited_elsewhere_leaves_the_rest_to_others() -> None:
    # Links of 10 and 4 in a row; a takes the first, b both, c the second: rates 8, 2 and 2.
    topology = network(
        6, 2, [(0, 6, 99, 0), (1, 6, 99, 0), (6, 7, 10, 0), (7, 2, 99, 0), (7, 3, 4, 0), (4, 7, 99, 0)]
    )
    table = [
        (0, 2, 0, COPY, (0, 6, 7, 2), -1),
        (1, 3, 1, COPY, (1, 6, 7, 3), -1),
        (4, 3, 2, COPY, (4, 7, 3), -1),
    ]
    found = simulate(rows(topology, table, shares=[8, 2, 2]), 12_000, model=FAIR)
    assert found.finish_us.tolist() == [1, 1, 1]
    assert found.limit is not None
    limits = [(int(found.topology.src[e]), int(found.topology.dst[e])) for e in found.limit]
    assert limits == [(6, 7), (7, 3), (7, 3)]


def test_parking_lot() -> None:
    # A long flow over three links of 2 and a short one on each: all have rate 1 until the short ones end.
    links = [(0, 1, 2, 0), (1, 2, 2, 0), (2, 3, 2, 0)]
    table = [(0, 3, 0, COPY, (0, 1, 2, 3), -1)]
    table += [(i, i + 1, i + 1, COPY, (i, i + 1), -1) for i in range(3)]
    found = simulate(rows(network(4, 0, links), table, shares=[4, 1, 1, 2]), 8000, model=FAIR)
    # At 1 us two short flows end; the third still halves the last link until 2 us; then 2 kB are left at rate 2.
    assert found.finish_us.tolist() == [3, 1, 1, 2]


def test_a_flow_that_comes_later_takes_its_share() -> None:
    topology = network(4, 1, [(0, 4, 8, 0), (1, 4, 8, 0), (3, 1, 1, 0), (4, 2, 2, 0)])
    table = [(0, 2, 0, COPY, (), -1), (3, 1, 1, COPY, (), -1), (1, 2, 1, COPY, (), -1)]
    found = simulate(rows(topology, table, shares=[6, 1]), 7000, model=FAIR)
    # Alone at rate 2 until 1 us; then both at 1 until the second has its 1 kB, and 3 kB are left at rate 2.
    assert found.finish_us.tolist() == [3.5, 1, 2]


def test_messages_of_a_route_follow_each_other() -> None:
    table = [(0, 1, chunk, COPY, (), -1) for chunk in range(3)]
    found = simulate(rows(line([1, 8], [0.5, 0.25]), table, shares=[6, 1, 1]), 8000, model=FAIR)
    assert found.finish_us.tolist() == [6.75, 7.75, 8.75]
    assert found.hops is not None
    assert found.hops.begin_us.tolist() == [0, 6, 7]
    path = found.critical_path()
    assert [stage.reason for stage in path] == [Reason.NONE, Reason.ROUTE, Reason.ROUTE]
    assert [stage.end_us for stage in path] == [6, 7, 8.75]


def test_engines_and_steps_hold_as_with_turns() -> None:
    topology = network(4, 1, [(0, 4, 8, 0)] + [(4, i, 1, 0) for i in (1, 2, 3)])
    table = [(0, i, i - 1, COPY, (), 0) for i in (1, 2, 3)] + [(0, 1, 1, COPY, (), 1)]
    model = Model(sharing=Sharing.FAIR, send_engines=1)
    found = simulate(rows(topology, table, shares=[1, 1, 1]), 24_000, model=model)
    assert found.finish_us.tolist() == [9, 18, 27, 36]


def test_store_and_forward_has_no_meaning() -> None:
    with pytest.raises(InputError, match="store-and-forward"):
        Model(sharing=Sharing.FAIR, store_and_forward=True)


def test_passages_are_for_links_that_serve_in_turn() -> None:
    found = simulate(rows(line([1], [0]), [(0, 1, 0, COPY, (), -1)]), 10, model=FAIR)
    with pytest.raises(InputError, match="fair sharing"):
        found.passages(0)
