"""Sizes, pieces and plans at the edge of what makes sense, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coppice.bounds import Problem
from coppice.bounds.optimum import bound_of
from coppice.collectives import Collective
from coppice.comparison.measurement import AlgorithmVariant, Bodies
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.catalogue import find, make
from coppice.planners.forest.planner import plan_forest
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.messages import _distinct_rows, messages_of
from coppice.schedule.schedule import Op, Schedule, in_pieces
from coppice.simulation import ALPHA_BETA, Model, Sharing, Timeline, fastest, simulator
from coppice.simulation.engine import run
from coppice.simulation.models import model_of
from coppice.simulation.timeline import Reason
from coppice.topology.presets import preset
from planners.template_cases import plan_templates
from reference.simulation import simulated
from schedule.builders import make_forest, reversed_tree, star_topology
from simulation.bodies import line, network, rows
from simulation.strategies import models, schedules
from support.alpha_beta import simulate
from support.interrupts import LOST, CtrlC, pressed

COPY = Op.COPY
BOTH = [Model(sharing=sharing) for sharing in Sharing]
PAIR = line([4], [0.5])
ONE = rows(PAIR, [(0, 1, 0, COPY, (), -1)])


@pytest.mark.parametrize("model", BOTH, ids=lambda model: model.sharing)
class TestSizes:
    def test_no_bytes_still_cost_latency(self, model: Model) -> None:
        found = simulate(ONE, 0, model=model)
        assert found.time_us == 1.5
        assert found.algbw_gb_per_s == 0
        assert found.busiest_link == -1
        assert found.utilisation(0) == 0

    def test_huge(self, model: Model) -> None:
        found = simulate(ONE, 2**50, model=model)
        assert found.time_us == 1.5 + 2**50 / 4000
        assert found.algbw_gb_per_s == pytest.approx(4)

    def test_more_pieces_than_bytes(self, model: Model) -> None:
        found = simulate(ONE, 3, model=model, pieces=8)
        assert sorted(found.num_bytes.tolist()) == [0] * 5 + [1] * 3
        assert found.time_us == pytest.approx(1.5 + 3 / 4000)

    def test_nothing_to_do(self, model: Model) -> None:
        for schedule in (
            rows(PAIR, []),
            replace(ONE, chunk_slot=ONE.chunk_slot[:0], chunk_share=ONE.chunk_share[:0]),
        ):
            empty = rows(PAIR, [], shares=()) if schedule.num_transfers else schedule
            found = simulate(empty, 1000, model=model, pieces=4)
            assert found.time_us == 0
            assert found.algbw_gb_per_s == 0
            assert found.critical_path() == []
            assert found.summary()["busiest_link"] is None

    def test_one_rank(self, model: Model) -> None:
        case = AlgorithmCase(topology=preset("star", gpus=1), collective=Collective.ALL_REDUCE)
        found = simulate(make(find("ring", Collective.ALL_REDUCE), case), 1000, model=model)
        assert (found.time_us, found.messages.count) == (0, 0)


class TestRefusals:
    def test_negative_size(self) -> None:
        with pytest.raises(InputError, match="a size of 0 to 9,223,372,036,854,775,807 bytes, found -1"):
            simulate(ONE, -1)

    def test_too_large(self) -> None:
        with pytest.raises(InputError, match="a size of 0 to 9,223,372,036,854,775,807 bytes"):
            simulate(ONE, 2**63)

    def test_pieces(self) -> None:
        with pytest.raises(InputError, match="1 or more pieces"):
            simulate(ONE, 10, pieces=0)
        with pytest.raises(InputError, match="at least 1 piece"):
            fastest(ONE, 10, model=ALPHA_BETA, most=0)

    def test_steps(self) -> None:
        table = [(0, 1, 0, COPY, (), 1), (0, 1, 0, COPY, (), 0)]
        with pytest.raises(InputError, match="step 0 at transfer 1"):
            simulate(rows(PAIR, table), 10)
        table = [(0, 1, 0, COPY, (), -1), (0, 1, 0, COPY, (), 0)]
        with pytest.raises(InputError, match="some without"):
            simulate(rows(PAIR, table), 10)

    def test_path_without_a_link(self) -> None:
        topology = network(3, 0, [(0, 1, 1, 0), (1, 2, 1, 0)])
        with pytest.raises(InputError, match="from gpu0 to gpu2"):
            simulate(rows(topology, [(0, 2, 0, COPY, (0, 2), -1)]), 10)

    def test_malformed_columns(self) -> None:
        with pytest.raises(InputError, match="src"):
            simulate(replace(ONE, src=np.array([7], dtype=np.int32)), 10)

    def test_a_circle_of_waiting(self) -> None:
        # Rows of one step wait for each other through `after`: the second message for the first, and the reverse.
        topology = network(3, 0, [(0, 1, 1, 0), (0, 2, 1, 0)])
        table = [(0, 1, 0, COPY, (), 0), (0, 2, 1, COPY, (), 0), (0, 1, 1, COPY, (), 0)]
        schedule = rows(topology, table, shares=[1, 1], after=[(1, 0), (2, 1)])
        with pytest.raises(InputError, match="transfer 0 waits for itself"):
            simulate(schedule, 10)

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("overhead_us", -1.0),
            ("overhead_us", float("nan")),
            ("send_engines", -1),
            ("receive_engines", 2**31),
            ("reduce_gb_per_s", 0.0),
            ("sharing", "nobody"),
        ],
    )
    def test_models(self, option: str, value: object) -> None:
        with pytest.raises(InputError):
            Model(**{option: value})  # type: ignore[arg-type]

    def test_names_of_sharing_are_taken(self) -> None:
        assert Model(sharing="fair").sharing is Sharing.FAIR  # type: ignore[arg-type]

    def test_critical_path_needs_hops(self) -> None:
        found = run(
            messages_of(ONE, 10), model=Model(), collective=ONE.collective, size_bytes=10, keep_hops=False
        )
        with pytest.raises(InputError, match="keep_hops"):
            found.critical_path()
        assert found.time_us == pytest.approx(1.5, abs=0.01)


class TestForests:
    def test_templates_are_written_out(self) -> None:
        forest = plan_templates(
            Problem(topology=preset("torus", dims=(4, 4)), collective=Collective.ALL_GATHER)
        )
        assert forest.num_images > 1, "this preset has a symmetry"
        assert simulate(forest, 2**20).messages.count == forest.num_edges * forest.num_images

    def test_switches_copy_and_add_without_overhead_and_engines(self) -> None:
        topology = star_topology(4, 2, in_network=True)
        model = Model(overhead_us=7.0, send_engines=1, receive_engines=1, reduce_gb_per_s=1.0)
        down = (0, 1, Phase.BROADCAST, [(0, 4), (4, 1), (4, 2), (4, 3)])
        found = simulate(make_forest(topology, Collective.BROADCAST, [down]), 4000, model=model)
        assert found.start_us.tolist() == [0, 7.5, 7.5, 7.5]
        assert found.time_us == 7 + 0.5 + 2 + 0.5
        found = simulate(make_forest(topology, Collective.REDUCE, [reversed_tree(down)]), 4000, model=model)
        assert found.start_us.tolist() == [0, 0, 0, 7.5]
        assert found.time_us == 7 + 0.5 + 2 + 0.5 + 4
        whole = replace(model, store_and_forward=True)
        found = simulate(make_forest(topology, Collective.BROADCAST, [down]), 4000, model=whole)
        assert found.time_us == 7 + 2 * (0.5 + 2)

    def test_all_reduce_broadcasts_what_has_been_reduced(self) -> None:
        problem = Problem(topology=preset("star", gpus=4, gb_per_s=4), collective=Collective.ALL_REDUCE)
        found = simulate(plan_forest(problem), 2**20, model=Model(reduce_gb_per_s=1.0))
        adds = found.messages.added_bytes > 0
        assert adds.sum() == (~adds).sum()
        # Every share is reduced at its root before it leaves again.
        for root in found.topology.rank_nodes[:4]:
            reduced = found.finish_us[adds & (found.dst == root)].max()
            assert found.start_us[~adds & (found.src == root)].max() == reduced
        adding = (found.finish_us - found.arrived_us) * 1000
        assert adding.tolist() == pytest.approx(np.where(adds, found.num_bytes, 0).tolist())


class TestBestPieces:
    def test_of_a_pipelined_chain(self) -> None:
        # (P - 2 + m)(alpha + B / m) is least near m = sqrt((P - 2) B / alpha) = sqrt(14 * 128 / 2) = 30.
        case = AlgorithmCase(
            topology=preset("star", gpus=16, gb_per_s=8), collective=Collective.BROADCAST, root=0
        )
        table = [(i, i + 1, 0, COPY, (), -1) for i in range(15)]
        model = Model(overhead_us=2.0, send_engines=1, receive_engines=1)
        found = fastest(rows(case.topology, table), 1_024_000, model=model)
        assert found.pieces == 32
        assert found.time_us == min((14 + m) * (2 + 128 / m) for m in (16, 32, 64))

    def test_pieces_have_a_least_size(self) -> None:
        table = [(i, i + 1, 0, COPY, (), -1) for i in range(15)]
        body = rows(preset("star", gpus=16, gb_per_s=8), table)
        free = Model(overhead_us=0.0, least_piece_bytes=2**14)
        assert fastest(body, 2**20, model=free).pieces == 2**6
        assert fastest(body, 2**14, model=free).pieces == 1

    def test_steps_are_not_cut(self) -> None:
        table = [(i, i + 1, 0, COPY, (), i) for i in range(15)]
        assert fastest(rows(preset("star", gpus=16), table), 2**30, model=ALPHA_BETA).pieces == 1

    def test_one_hop_needs_no_pieces(self) -> None:
        found = fastest(ONE, 1000, model=Model(send_engines=1))
        assert (found.pieces, found.time_us) == (1, 1.75)

    def test_most(self) -> None:
        body = rows(line([1, 1], [0, 0]), [(0, 1, 0, COPY, (), -1)])
        assert fastest(body, 2**20, model=ALPHA_BETA, most=1).pieces == 1


@pytest.mark.filterwarnings(LOST)
def test_the_simulator_can_be_interrupted() -> None:
    topology = preset("star", gpus=64)
    case = AlgorithmCase(topology=topology, collective=Collective.ALL_REDUCE)
    messages = messages_of(make(find("ring", Collective.ALL_REDUCE), case), 2**20, pieces=40)

    def forever(key: CtrlC) -> None:
        key.start()
        while True:
            run(messages, model=Model(), collective=Collective.ALL_REDUCE, size_bytes=2**20, keep_hops=False)

    with pressed(0.06) as key, pytest.raises(KeyboardInterrupt):
        forever(key)


@pytest.mark.parametrize("below", [2, 7, 5_000, 2**20, 2**31 - 1])
@pytest.mark.parametrize("width", [1, 3, 6])
def test_as_numpy_along_an_axis(below: int, width: int) -> None:
    rng = np.random.default_rng(width)
    table = rng.integers(0, below, (200, width)).astype(np.int32)[rng.integers(0, 200, 500)]
    distinct, which = _distinct_rows(table, below)
    expected, inverse = np.unique(table, axis=0, return_inverse=True)
    assert np.array_equal(distinct, expected)
    assert np.array_equal(which, inverse.reshape(-1))


SIZES = st.sampled_from((0, 1, 999, 4000, 100_001))
NS = 1000.0


WITHOUT_BYTES = rows(
    preset("star", gpus=2, gb_per_s=1),
    [
        (src, 1 - src, chunk, COPY, (src, 2, 1 - src), int(place == 9))
        for place, (src, chunk) in enumerate(
            zip((0, 1, 1, 0, 0, 0, 1, 1, 1, 0), (0, 2, 2, 0, 0, 0, 0, 2, 0, 0), strict=True)
        )
    ],
    shares=(1, 1, 1),
)
"""A link that one byte has left is free for a message without bytes, which lets two more start at that instant."""


@settings(max_examples=150, deadline=None)
@example(WITHOUT_BYTES, 1, Model(overhead_us=0, steps_bind=False, receive_engines=2), 1)
@given(schedules(), SIZES, models(sharing=Sharing.FIFO), st.integers(1, 4))
def test_turns_equal_the_reference_to_the_last_bit(
    schedule: Schedule, size: int, model: Model, pieces: int
) -> None:
    found = simulate(schedule, size, model=model, pieces=pieces)
    stepped = schedule.step.max(initial=-1) >= 0
    cut = in_pieces(schedule, pieces)
    expected = simulated(cut, size, model, pieces=1 if stepped and model.steps_bind else pieces)
    assert [message.bytes for message in expected] == found.num_bytes.tolist()
    assert [message.rows[0] for message in expected] == found.messages.first_row.tolist()
    assert [message.start / NS for message in expected] == found.start_us.tolist()
    assert [message.arrived / NS for message in expected] == found.arrived_us.tolist()
    assert [message.done / NS for message in expected] == found.finish_us.tolist()
    assert found.hops is not None
    assert [begin / NS for message in expected for begin in message.hops] == found.hops.begin_us.tolist()


@settings(max_examples=150, deadline=None)
@given(schedules(), SIZES, models(sharing=Sharing.FAIR))
def test_fair_shares_equal_the_reference(schedule: Schedule, size: int, model: Model) -> None:
    found, expected = simulate(schedule, size, model=model), simulated(schedule, size, model)
    assert found.start_us.tolist() == pytest.approx([message.start / NS for message in expected], abs=1e-6)
    assert found.finish_us.tolist() == pytest.approx([message.done / NS for message in expected], abs=1e-6)
    assert found.hops is not None
    assert found.hops.begin_us.tolist() == pytest.approx([m.hops[0] / NS for m in expected], abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(schedules(), SIZES, models(sharing=Sharing.FIFO))
def test_a_link_serves_one_message_at_a_time(schedule: Schedule, size: int, model: Model) -> None:
    """So it carries no more than its rate allows in any interval, and a burst on top of it."""
    found = simulate(schedule, size, model=model)
    carried = np.zeros(found.topology.num_links)
    for link in range(found.topology.num_links):
        message, begin, end = found.passages(link)
        assert (begin[1:] >= end[:-1] - 1e-8).all()
        carried[link] = found.num_bytes[message].sum()
        rate = float(found.topology.gb_per_s(link))
        alone = found.num_bytes[message] / rate / NS
        if model.burst_bytes:
            assert (end - begin <= alone + 1e-8).all()
            sums = np.concatenate([[0], np.cumsum(found.num_bytes[message])])
            through = sums[1:][None, :] - sums[:-1][:, None]  # [first, last]
            allowed = model.burst_bytes + rate * NS * (end[None, :] - begin[:, None])
            assert (np.triu(through - allowed) <= 1e-3).all()
        else:
            assert end - begin == pytest.approx(alone, abs=1e-8)
        assert (end <= found.arrived_us[message] - found.topology.latency_us[link] + 1e-8).all()
        assert (begin >= found.start_us[message]).all()
    assert carried.tolist() == found.link_bytes.tolist()


@settings(max_examples=200, deadline=None)
@given(schedules(), SIZES, models(sharing=Sharing.FAIR))
def test_fair_rates_keep_to_every_link_and_carry_every_byte(
    schedule: Schedule, size: int, model: Model
) -> None:
    messages = messages_of(schedule, size)
    found = run(messages, model=model, collective=schedule.collective, size_bytes=size, keep_rates=True)
    topology, rates = found.topology, found.rates
    assert rates is not None
    uses = np.zeros((messages.count, topology.num_links), dtype=bool)
    latency = np.zeros(messages.count)
    for message, route in enumerate(messages.route.tolist()):
        links = messages.routes.links[
            messages.routes.link_start[route] : messages.routes.link_start[route + 1]
        ]
        uses[message, links] = True
        latency[message] = topology.latency_us[links].sum()
    # Buffered, the overhead (with what any number of workers take) comes behind the links.
    handled = 0.0 if model.workers else model.send_us + model.receive_us
    end = found.arrived_us - latency - (model.overhead_us + handled if model.buffered else 0.0)
    moments = np.unique(np.concatenate([rates.since_us, end]))
    moved = np.zeros(messages.count)
    for begin, stop in pairwise(moments.tolist()):
        rate = np.zeros(messages.count)
        for message, since, value in zip(rates.message, rates.since_us, rates.gb_per_s, strict=True):
            if since <= begin and end[message] > begin + 1e-8:
                rate[message] = value
        assert (rate @ uses <= topology.capacity / topology.denominator * (1 + 1e-9)).all()
        moved += rate * (stop - begin) * NS
    assert moved == pytest.approx(messages.num_bytes, abs=1e-3)


@settings(max_examples=200, deadline=None)
@given(schedules(), SIZES, models())
def test_the_critical_path_is_the_whole_time(schedule: Schedule, size: int, model: Model) -> None:
    found = simulate(schedule, size, model=model)
    path = found.critical_path()
    assert bool(path) == bool(found.messages.count)
    if not path:
        return
    assert path[0].begin_us == 0
    assert path[0].reason is Reason.NONE
    assert path[-1].end_us == found.time_us
    for stage, following in pairwise(path):
        assert stage.end_us == following.begin_us
        assert stage.begin_us <= stage.end_us
        assert following.reason is not Reason.NONE
        assert (following.link >= 0) == (following.reason is Reason.LINK)
    # A dependency ends when the message before arrives or is done; an engine is freed just then as well.
    for stage, following in pairwise(path):
        if following.reason in (Reason.DEPENDENCY, Reason.ENGINE):
            ends = (found.arrived_us[stage.message], found.finish_us[stage.message])
            # Workers are free, and buffering senders go on, before a message has arrived.
            early = model.buffered or bool(model.workers)
            assert following.begin_us in ends or (early and following.begin_us <= max(ends))


@settings(max_examples=50, deadline=None)
@given(schedules(), SIZES, models())
def test_the_same_input_gives_the_same_columns(schedule: Schedule, size: int, model: Model) -> None:
    first, second = simulate(schedule, size, model=model), simulate(schedule, size, model=model)
    for name in ("start_us", "arrived_us", "finish_us", "cause", "reason", "link_busy_us", "link_bytes"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()
    assert columns_of(first) == columns_of(second)


def columns_of(timeline: Timeline) -> list[bytes]:
    assert timeline.hops is not None
    return [timeline.hops.begin_us.tobytes(), timeline.hops.behind.tobytes()]


def _from_catalogue(boxes: int, name: str, **parameters: str) -> Schedule | Forest:
    """An all-reduce on DGX H100."""
    problem = Problem(preset("dgx-h100", boxes=boxes), "all_reduce")
    variant = AlgorithmVariant(algorithm=name, parameters=parameters)
    return Bodies(problem, variant, bound_of(problem)).body(1)


def test_what_cannot_undercut_a_time_is_not_simulated_to_the_end() -> None:
    body = _from_catalogue(2, "rabenseifner")
    model = model_of("nccl-2.30")
    whole = fastest(body, 2**20, model=model, keep_hops=False)
    assert (
        fastest(body, 2**20, model=model, keep_hops=False, give_up_us=whole.time_us / 2).time_us == math.inf
    )
    above = fastest(body, 2**20, model=model, keep_hops=False, give_up_us=whole.time_us * 2)
    assert above.time_us == whole.time_us


def test_rows_of_a_step_travel_together_where_there_are_many_and_that_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = _from_catalogue(8, "two-level", inside="at-once", between="at-once")
    model = model_of("nccl-2.30")
    sizes = (1024, 2**20)
    ways = {}
    for bind in (False, True):
        bound = replace(model, steps_bind=bind)
        ways[bind] = [fastest(body, size, model=bound, keep_hops=False).time_us for size in sizes]
    assert isinstance(body, Schedule)
    monkeypatch.setattr(simulator, "_FEW_ROWS", body.num_transfers - 1)
    found = [fastest(body, size, model=model, keep_hops=False) for size in sizes]
    assert [each.time_us for each in found] == [min(pair) for pair in zip(*ways.values(), strict=True)]
    assert found[0].messages.count < body.num_transfers  # 1,024 bytes in fewer messages
    again = fastest(body, 1024, model=model)
    assert again.time_us == found[0].time_us
    assert again.hops is not None
