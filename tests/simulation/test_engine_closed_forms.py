"""Timelines that can be written down: chains, trees, rings, cut-through, engines, reductions."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from coppice.bounds import Problem, bound
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.catalogue import find, make
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.planners.forest.planner import plan_forest
from coppice.schedule.schedule import Op
from coppice.schedule.shape import shape
from coppice.simulation import Model, Sharing
from coppice.simulation.timeline import Reason
from coppice.topology.presets import preset
from reference.oracle import SAMPLED_NAMES, oracle_topology
from simulation.bodies import line, network, rows
from support.alpha_beta import simulate
from support.shared_data import needs_shared

COPY, REDUCE = Op.COPY, Op.REDUCE
CROSSBAR = Model(overhead_us=2.0, send_engines=1, receive_engines=1)
FREE = Model(overhead_us=0.0)


def crossbar(gpus: int, gb_per_s: int = 8) -> AlgorithmCase:
    return AlgorithmCase(
        topology=preset("star", gpus=gpus, gb_per_s=gb_per_s), collective=Collective.BROADCAST, root=0
    )


class TestPatterns:
    @pytest.mark.parametrize("pieces", [1, 2, 8, 64])
    @pytest.mark.parametrize("gpus", [2, 3, 5, 9, 17])
    def test_pipelined_chain(self, gpus: int, pieces: int) -> None:
        case = crossbar(gpus)
        moves = Moves(case, whole(case))
        moves.add(np.arange(gpus - 1), np.arange(gpus - 1), np.arange(1, gpus), 0)
        found = simulate(moves.schedule(), 512_000, model=CROSSBAR, pieces=pieces)
        assert found.time_us == (gpus - 2 + pieces) * (2 + 64 / pieces)

    @pytest.mark.parametrize("power", range(7))
    def test_binomial_tree(self, power: int) -> None:
        case = crossbar(2**power)
        moves = Moves(case, whole(case))
        for step in range(power):
            senders = np.arange(2**step)
            moves.add(step, senders, senders + 2**step, 0)
        found = simulate(moves.schedule(), 512_000, model=CROSSBAR)
        assert found.time_us == power * (2 + 64)
        assert found.messages.count == 2**power - 1

    @pytest.mark.parametrize("gpus", [1, 2, 3, 7, 16])
    @pytest.mark.parametrize(
        "collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE]
    )
    def test_ring_costs_what_the_catalogue_says(self, collective: Collective, gpus: int) -> None:
        case = AlgorithmCase(topology=preset("star", gpus=gpus, gb_per_s=8), collective=collective)
        ring = find("ring", collective)
        size = 64_000 * gpus
        model = Model(overhead_us=2.0, send_engines=1, receive_engines=1, reduce_gb_per_s=16.0)
        assert ring.cost is not None
        exact = ring.cost(case).time_us(
            size, alpha_us=Fraction(2), gb_per_s=Fraction(8), reduce_gb_per_s=Fraction(16)
        )
        assert Fraction(simulate(make(ring, case), size, model=model).time_us) == exact

    def test_rows_of_a_step_between_the_same_two_are_one_message(self) -> None:
        topology = network(2, 0, [(0, 1, 1, 0.5)])
        table = [(0, 1, chunk, COPY, (), 0) for chunk in range(4)]
        found = simulate(rows(topology, table, shares=[1, 2, 3, 4]), 10_000)
        assert found.messages.count == 1
        assert found.messages.num_rows.tolist() == [4]
        assert found.num_bytes.tolist() == [10_000]
        assert found.time_us == 1 + 0.5 + 10

    def test_a_rank_goes_on_when_all_it_sends_and_receives_in_a_step_is_there(self) -> None:
        # Step 0: 0 -> 1 (4 us) and 2 -> 0 (1 us). Step 1: 0 -> 2 waits for the former, though 2 has long been free.
        topology = network(3, 0, [(0, 1, 1, 0), (2, 0, 4, 0), (0, 2, 4, 0), (1, 2, 4, 0)])
        table = [(0, 1, 0, COPY, (), 0), (2, 0, 1, COPY, (), 0), (0, 2, 0, COPY, (), 1)]
        found = simulate(rows(topology, table, shares=[1, 1]), 8000, model=FREE)
        assert found.start_us.tolist() == [0, 0, 4]
        assert (found.cause[2], found.reason[2]) == (0, Reason.DEPENDENCY)

    def test_rows_without_steps_wait_for_their_data_alone(self) -> None:
        topology = network(3, 0, [(0, 1, 1, 0), (2, 0, 4, 0), (0, 2, 4, 0), (1, 2, 4, 0)])
        table = [
            (0, 1, 0, COPY, (), -1),
            (2, 0, 1, COPY, (), -1),
            (0, 2, 1, COPY, (), -1),
            (1, 2, 0, COPY, (), -1),
        ]
        found = simulate(rows(topology, table, shares=[1, 1]), 8000, model=FREE)
        assert found.start_us.tolist() == [0, 0, 1, 4]

    def test_a_value_is_not_overwritten_before_it_has_been_sent(self) -> None:
        topology = network(3, 0, [(0, 1, 1, 0), (2, 0, 4, 0)])
        table = [(0, 1, 0, COPY, (), -1), (2, 0, 0, COPY, (), -1), (2, 0, 0, REDUCE, (), -1)]
        found = simulate(rows(topology, table), 4000, model=FREE)
        assert found.start_us.tolist() == [0, 4, 5]

    def test_further_dependencies(self) -> None:
        topology = network(3, 0, [(0, 1, 1, 0), (2, 0, 4, 0)])
        table = [(0, 1, 0, COPY, (), -1), (2, 0, 1, COPY, (), -1)]
        schedule = rows(topology, table, shares=[1, 1], after=[(1, 0)])
        assert simulate(schedule, 8000, model=FREE).start_us.tolist() == [0, 4]


class TestLinks:
    def test_two_flows_share_a_link(self) -> None:
        topology = network(3, 1, [(0, 3, 4, 0.25), (1, 3, 4, 0.25), (3, 2, 4, 0.25)])
        table = [(0, 2, 0, COPY, (), -1), (1, 2, 1, COPY, (), -1)]
        found = simulate(rows(topology, table, shares=[1, 1]), 32_000)
        assert found.finish_us.tolist() == [1 + 4 + 0.5, 1 + 4 + 4 + 0.5]
        assert found.utilisation(int(found.busiest_link)) == pytest.approx(8 / 9.5)
        path = found.critical_path()
        assert [(stage.message, stage.reason) for stage in path] == [(0, Reason.NONE), (1, Reason.LINK)]
        assert found.topology.dst[path[1].link] == 2

    @pytest.mark.parametrize("rates", [(4, 4, 4), (1, 4, 2), (4, 2, 1), (2, 1, 4), (8, 1, 8)])
    def test_cut_through(self, rates: tuple[int, ...]) -> None:
        found = simulate(rows(line(rates, [0.5, 1, 2]), [(0, 1, 0, COPY, (), -1)]), 64_000)
        assert found.time_us == 1 + 3.5 + 64 / min(rates)

    @pytest.mark.parametrize("rates", [(4, 4, 4), (1, 4, 2), (4, 2, 1), (2, 1, 4), (8, 1, 8)])
    def test_store_and_forward(self, rates: tuple[int, ...]) -> None:
        model = Model(store_and_forward=True)
        found = simulate(rows(line(rates, [0.5, 1, 2]), [(0, 1, 0, COPY, (), -1)]), 64_000, model=model)
        assert found.time_us == 1 + 3.5 + sum(64 / rate for rate in rates)

    def test_pieces_pipeline_through_store_and_forward(self) -> None:
        model = Model(store_and_forward=True)
        found = simulate(
            rows(line([4, 4, 4], [0, 0, 0]), [(0, 1, 0, COPY, (), -1)]), 64_000, model=model, pieces=8
        )
        assert found.time_us == 1 + (8 + 2) * 2

    def test_a_fast_link_behind_a_slow_one_is_held_for_its_own_share_only(self) -> None:
        # Four senders at 1 GB/s together fill a link of 4 GB/s.
        topology = network(5, 1, [(i, 5, 1, 0) for i in range(4)] + [(5, 4, 4, 0)])
        table = [(i, 4, i, COPY, (), -1) for i in range(4)]
        found = simulate(rows(topology, table, shares=[1] * 4), 64_000, model=FREE)
        assert found.finish_us.tolist() == [16, 16, 16, 16]
        assert found.utilisation(found.topology.link_index[5, 4]) == 1

    def test_messages_of_a_pair_stay_in_order(self) -> None:
        table = [(0, 1, chunk, COPY, (), -1) for chunk in range(3)]
        found = simulate(rows(line([1, 8], [0, 0]), table, shares=[6, 1, 1]), 8000, model=FREE)
        assert found.finish_us.tolist() == [6, 7, 8]


class TestEngines:
    def test_one_send_engine_serves_in_row_order(self) -> None:
        topology = network(4, 1, [(0, 4, 8, 0)] + [(4, i, 1, 0) for i in (1, 2, 3)])
        table = [(0, i, i - 1, COPY, (), 0) for i in (1, 2, 3)]
        schedule = rows(topology, table, shares=[1, 1, 1])
        freely = simulate(schedule, 24_000)
        assert freely.finish_us.tolist() == [9, 9 + 1, 9 + 2]
        assert freely.time_us == 11
        engine = simulate(schedule, 24_000, model=Model(send_engines=1))
        assert engine.finish_us.tolist() == [9, 18, 27]
        assert engine.reason.tolist() == [Reason.NONE, Reason.ENGINE, Reason.ENGINE]
        assert engine.cause.tolist() == [-1, 0, 1]
        two = simulate(schedule, 24_000, model=Model(send_engines=2))
        assert two.finish_us.tolist() == [9, 10, 18]

    def test_a_message_whose_other_engine_is_busy_does_not_block_later_ones(self) -> None:
        # 0 -> 2 and 1 -> 2 meet at 2; 1 -> 3 overtakes 1 -> 2.
        case = crossbar(4)
        table = [(0, 2, 0, COPY, (), 0), (1, 2, 1, COPY, (), 0), (1, 3, 1, COPY, (), 0)]
        schedule = rows(case.topology, table, shares=[1, 1])
        found = simulate(schedule, 32_000, model=CROSSBAR)
        assert found.start_us.tolist() == [0, 4, 0]
        # With the third row first, 1 -> 3 has the engine of 1 from the start as well: row order decides nothing here.
        swapped = rows(case.topology, [table[2], table[0], table[1]], shares=[1, 1])
        assert simulate(swapped, 32_000, model=CROSSBAR).start_us.tolist() == [0, 0, 4]

    def test_both_engines_at_once(self) -> None:
        # 0 -> 1, 1 -> 2, 2 -> 0 in one step: sending and receiving engines are not the same.
        table = [(0, 1, 0, COPY, (), 0), (1, 2, 1, COPY, (), 0), (2, 0, 2, COPY, (), 0)]
        schedule = rows(crossbar(3).topology, table, shares=[1, 1, 1])
        assert simulate(schedule, 48_000, model=CROSSBAR).finish_us.tolist() == [4, 4, 4]

    def test_reduction_keeps_the_receiver_and_not_the_sender(self) -> None:
        table = [(0, 2, 0, REDUCE, (), 0), (1, 2, 0, REDUCE, (), 0), (0, 1, 1, COPY, (), 1)]
        schedule = rows(crossbar(3).topology, table, shares=[1, 1])
        model = Model(overhead_us=2.0, send_engines=1, receive_engines=1, reduce_gb_per_s=4.0)
        found = simulate(schedule, 64_000, model=model)
        assert found.arrived_us.tolist() == [6, 20, 26]
        assert found.finish_us.tolist() == [14, 28, 26]
        assert found.start_us.tolist() == [0, 14, 20]

    def test_without_engines_additions_overlap(self) -> None:
        table = [(0, 2, 0, REDUCE, (), 0), (1, 2, 0, REDUCE, (), 0)]
        schedule = rows(crossbar(3).topology, table)
        found = simulate(schedule, 32_000, model=Model(overhead_us=2.0, reduce_gb_per_s=4.0))
        assert found.finish_us.tolist() == [2 + 4 + 8, 2 + 4 + 4 + 8]


COLLECTIVES = [Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE, Collective.BROADCAST]
SIZES = (2**20, 2**36)


@needs_shared
@pytest.mark.spread(5)
@pytest.mark.parametrize("collective", COLLECTIVES, ids=str)
@pytest.mark.parametrize("name", SAMPLED_NAMES)
def test_converges_to_the_optimum(name: str, collective: Collective) -> None:
    root = 0 if collective is Collective.BROADCAST else None
    problem = Problem(topology=oracle_topology(name), collective=collective, root=root)
    forest, ranks = plan_forest(problem), problem.topology.num_ranks
    optimum = float(collective.shards(ranks) / bound(problem).inv_rate)
    # The first piece must pass the deepest tree before the pipeline is full.
    edges = forest.num_edges * forest.num_images
    pieces = min(96 * shape(forest).max_height, max(32, 400_000 // edges))
    found = [simulate(forest, size, pieces=pieces) for size in SIZES]
    reached = [timeline.algbw_gb_per_s / optimum for timeline in found]
    assert all(large >= 0.999 * small for small, large in pairwise(reached))
    assert max(reached) <= 1
    assert reached[-1] >= 0.97
    # What no schedule can beat: a link is never in use for longer than the whole time.
    assert found[-1].link_busy_us.max() <= found[-1].time_us


@needs_shared
@pytest.mark.parametrize("name", ["a100x2", "mi250x1", "pcie_box4"])
def test_never_beats_the_optimum_with_fair_shares(name: str) -> None:
    problem = Problem(topology=oracle_topology(name), collective=Collective.ALL_GATHER)
    optimum = float(problem.topology.num_ranks / bound(problem).inv_rate)
    model = Model(sharing=Sharing.FAIR)
    found = simulate(plan_forest(problem), 2**32, model=model, pieces=64)
    assert 0.5 <= found.algbw_gb_per_s / optimum <= 1


COPYING = Op.COPY
FAIR = Model(sharing=Sharing.FAIR, overhead_us=0.0)


def test_two_flows_share_a_link() -> None:
    topology = network(3, 1, [(0, 3, 4, 0.25), (1, 3, 4, 0.25), (3, 2, 4, 0.25)])
    table = [(0, 2, 0, COPYING, (), -1), (1, 2, 1, COPYING, (), -1)]
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
        (0, 2, 0, COPYING, (0, 6, 7, 2), -1),
        (1, 3, 1, COPYING, (1, 6, 7, 3), -1),
        (4, 3, 2, COPYING, (4, 7, 3), -1),
    ]
    found = simulate(rows(topology, table, shares=[8, 2, 2]), 12_000, model=FAIR)
    assert found.finish_us.tolist() == [1, 1, 1]
    assert found.limit is not None
    limits = [(int(found.topology.src[e]), int(found.topology.dst[e])) for e in found.limit]
    assert limits == [(6, 7), (7, 3), (7, 3)]


def test_parking_lot() -> None:
    # A long flow over three links of 2 and a short one on each: all have rate 1 until the short ones end.
    links = [(0, 1, 2, 0), (1, 2, 2, 0), (2, 3, 2, 0)]
    table = [(0, 3, 0, COPYING, (0, 1, 2, 3), -1)]
    table += [(i, i + 1, i + 1, COPYING, (i, i + 1), -1) for i in range(3)]
    found = simulate(rows(network(4, 0, links), table, shares=[4, 1, 1, 2]), 8000, model=FAIR)
    # At 1 us two short flows end; the third still halves the last link until 2 us; then 2 kB are left at rate 2.
    assert found.finish_us.tolist() == [3, 1, 1, 2]


def test_a_flow_that_comes_later_takes_its_share() -> None:
    topology = network(4, 1, [(0, 4, 8, 0), (1, 4, 8, 0), (3, 1, 1, 0), (4, 2, 2, 0)])
    table = [(0, 2, 0, COPYING, (), -1), (3, 1, 1, COPYING, (), -1), (1, 2, 1, COPYING, (), -1)]
    found = simulate(rows(topology, table, shares=[6, 1]), 7000, model=FAIR)
    # Alone at rate 2 until 1 us; then both at 1 until the second has its 1 kB, and 3 kB are left at rate 2.
    assert found.finish_us.tolist() == [3.5, 1, 2]


def test_messages_of_a_route_follow_each_other() -> None:
    table = [(0, 1, chunk, COPYING, (), -1) for chunk in range(3)]
    found = simulate(rows(line([1, 8], [0.5, 0.25]), table, shares=[6, 1, 1]), 8000, model=FAIR)
    assert found.finish_us.tolist() == [6.75, 7.75, 8.75]
    assert found.hops is not None
    assert found.hops.begin_us.tolist() == [0, 6, 7]
    path = found.critical_path()
    assert [stage.reason for stage in path] == [Reason.NONE, Reason.ROUTE, Reason.ROUTE]
    assert [stage.end_us for stage in path] == [6, 7, 8.75]


def test_engines_and_steps_hold_as_with_turns() -> None:
    topology = network(4, 1, [(0, 4, 8, 0)] + [(4, i, 1, 0) for i in (1, 2, 3)])
    table = [(0, i, i - 1, COPYING, (), 0) for i in (1, 2, 3)] + [(0, 1, 1, COPYING, (), 1)]
    model = Model(sharing=Sharing.FAIR, send_engines=1)
    found = simulate(rows(topology, table, shares=[1, 1, 1]), 24_000, model=model)
    assert found.finish_us.tolist() == [9, 18, 27, 36]


def test_store_and_forward_has_no_meaning() -> None:
    with pytest.raises(InputError, match="store-and-forward"):
        Model(sharing=Sharing.FAIR, store_and_forward=True)


def test_passages_are_for_links_that_serve_in_turn() -> None:
    found = simulate(rows(line([1], [0]), [(0, 1, 0, COPYING, (), -1)]), 10, model=FAIR)
    with pytest.raises(InputError, match="fair sharing"):
        found.passages(0)
