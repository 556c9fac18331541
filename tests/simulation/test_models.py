"""Models of time: names, files, and what their figures cost, by hand and against NCCL's own predictions."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.bounds import bound
from coppice.bounds.attainable import in_network_bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.catalogue import case_of, find, make
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.planners.choice import from_catalogue
from coppice.planners.planning import plan
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule, in_pieces
from coppice.selection.nccl.selecting import select_by_cost
from coppice.selection.selection import SelectionRequest
from coppice.simulation import ALPHA_BETA, DEFAULT_MODEL, Model, fastest, model_of, named_models, simulate
from coppice.simulation.latency import least_latency
from coppice.simulation.models import model_bytes
from coppice.simulation.simulated import simulate_sizes, sizes_reaching
from coppice.topology import preset, star
from simulation.cases import ring_on, shift_on
from simulation.strategies import models
from support.random_clusters import clusters

ALL_REDUCE, ALL_GATHER = Collective.ALL_REDUCE, Collective.ALL_GATHER


def chunks_of(body: object, pieces: int) -> list[int]:
    """Chunk of each row, once it is cut."""
    assert isinstance(body, Schedule)
    return in_pieces(body, pieces).chunk.tolist()


class TestNames:
    def test_every_named_model_says_where_its_figures_come_from(self) -> None:
        for name, found in named_models().items():
            assert found.model.name == name
            assert found.about
            assert found.sources
            assert model_of(name) == found.model

    def test_the_default_is_that_of_a_gpu_library(self) -> None:
        assert model_of() == DEFAULT_MODEL == model_of("nccl-2.30")
        assert simulate(shift_on(preset("dgx-h100"), 1), "1M").model == DEFAULT_MODEL

    def test_a_file_holds_all_of_a_model(self, tmp_path: Path) -> None:
        for found in named_models().values():
            path = tmp_path / f"{found.model.name}.json"
            path.write_bytes(model_bytes(found.model, about=found.about, sources=found.sources))
            assert model_of(path) == model_of(str(path)) == found.model

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"format": "coppice-plan"}, "format 'coppice-model'"),
            ({"send": 1}, "found 'send'"),
            ({"send_us": "1"}, "send_us"),
            ({"send_us": -1.0}, "occupancy of senders of 0 or more"),
            ({"efficiency": 0.0}, "efficiency above 0"),
            ({"copy_gb_per_s": 2.0}, "give `workers`"),
            ({"burst_bytes": -1}, "a burst of 0 or more bytes"),
            ({"burst_bytes": 10, "sharing": "fair"}, "choose sharing `fifo`"),
            ({"workers": 1, "copy_gb_per_s": 2.0, "cache_bytes": 10}, "give all three"),
            ({"workers": 1, "copy_gb_per_s": 2.0, "memory_gb_per_s": 1.0}, "give all three"),
            ({"workers": 1, "cache_bytes": 10, "memory_gb_per_s": 1.0}, "give all three"),
            (
                {"workers": 1, "copy_gb_per_s": 2.0, "cache_bytes": 10, "memory_gb_per_s": 0.0},
                "copying above 0",
            ),
        ],
    )
    def test_bad_files_are_refused(self, tmp_path: Path, change: dict[str, object], words: str) -> None:
        path = tmp_path / "mine.json"
        path.write_text(json.dumps({"format": "coppice-model", "version": 1, "name": "mine", **change}))
        with pytest.raises(InputError, match=words):
            model_of(path)

    def test_unknown_names_are_refused(self) -> None:
        with pytest.raises(
            InputError, match=r"expected a model of nccl-2\.30, msccl, mpi-tcp, shm, alpha-beta, ideal"
        ):
            model_of("nccl-3")


class TestWorkers:
    """Two GPUs send one message each to a third over links of their own: 1 us a link at 1 GB/s."""

    def times(self, **figures: float | bool | None) -> list[float]:
        body = shift_on(star(3, gb_per_s=1), 1)
        model = Model(overhead_us=0, **figures)  # type: ignore[arg-type]
        return sorted(simulate(body, 3000, model=model, pieces=1).finish_us.tolist())

    def test_an_occupancy_of_any_number_of_workers_is_a_latency(self) -> None:
        assert self.times(send_us=0.5, receive_us=0.25) == [1.75, 1.75, 1.75]

    def test_a_worker_handles_one_message_at_a_time(self) -> None:
        # All share one worker: three sends of 0.5 us, then each message once it has come.
        found = self.times(send_us=0.5, receive_us=0.25, workers=1, shared_workers=True)
        assert found == [1.75, 2.25, 2.75]

    def test_copying_takes_the_worker_as_long_as_the_bytes_do(self) -> None:
        # 1,000 bytes at 0.5 GB/s take 2 us at either end, and leave the sender as they are copied.
        assert self.times(workers=1, copy_gb_per_s=0.5) == [4.0, 4.0, 4.0]
        shared = self.times(workers=1, copy_gb_per_s=0.5, shared_workers=True)
        assert shared == [8.0, 10.0, 12.0]

    def test_buffered_senders_go_on_at_once(self) -> None:
        body = ring_on(star(4, gb_per_s=1))
        slow = Model(overhead_us=10)
        bound = simulate(body, 4000, model=slow, pieces=1).time_us
        free = simulate(body, 4000, model=replace(slow, buffered=True), pieces=1).time_us
        assert bound == free == pytest.approx(66)
        # A rank that sends twice in a row does not wait for the first message to arrive.
        twice = shift_on(star(2, gb_per_s=1), 1)
        assert simulate(twice, 2000, model=replace(slow, buffered=True), pieces=1).time_us == 11

    def test_launch_and_efficiency(self) -> None:
        assert self.times(launch_us=5.0, efficiency=0.5) == [7.0, 7.0, 7.0]

    @pytest.mark.parametrize(
        ("size_bytes", "copied_us"), [(2000, 1.0), (3000, 1.5), (4500, 3.375), (6000, 6.0)]
    )
    def test_buffers_beyond_the_cache_are_copied_from_memory(self, size_bytes: int, copied_us: float) -> None:
        """A third of a buffer for each rank at 1 GB/s in cache, up to 3,000 bytes; half of 4,500 at 0.5 GB/s."""
        model = Model(overhead_us=0, workers=1, copy_gb_per_s=2, cache_bytes=3000, memory_gb_per_s=1)
        both = replace(model, memory_gb_per_s=None, cache_bytes=0)
        body = shift_on(star(3, gb_per_s=10**6), 1)
        found = simulate(body, size_bytes, model=model, pieces=1).time_us
        assert found == pytest.approx(copied_us * 2 / 3, rel=1e-3)
        assert (found > simulate(body, size_bytes, model=both, pieces=1).time_us * 1.01) is (
            size_bytes > 3000
        )


class TestBursts:
    """A ring of three on a switch: 3,000 bytes at 1 GB/s are a message of 1 us from each to the next."""

    @pytest.mark.parametrize(("burst", "expected"), [(0, 1.0), (400, 0.6), (1000, 0.0), (10**6, 0.0)])
    def test_what_a_bucket_holds_passes_two_links_at_once(self, burst: int, expected: float) -> None:
        model = Model(overhead_us=0, burst_bytes=burst)
        found = simulate(shift_on(star(3, gb_per_s=1), 1), 3000, model=model, pieces=1)
        assert found.time_us == pytest.approx(expected)
        assert found.summary()["time_us"] == found.critical_path()[-1].end_us

    def test_buckets_fill_at_the_rate_of_the_link(self) -> None:
        """Four steps of a ring, 1,000 bytes in each: the bucket of 2,500 is empty after two and a half."""
        model = Model(overhead_us=0, burst_bytes=2500)
        found = simulate(ring_on(star(3, gb_per_s=1)), 3000, model=model, pieces=1)
        assert found.time_us == pytest.approx(1.5)
        resting = replace(model, overhead_us=1.0)  # of which it fills again
        assert simulate(ring_on(star(3, gb_per_s=1)), 3000, model=resting, pieces=1).time_us == 4.0

    def test_a_rate_is_reached_all_the_same(self) -> None:
        plain, burst = Model(), Model(burst_bytes=80_000)
        body = ring_on(star(4, gb_per_s=1))
        slow, quick = (simulate(body, 10**9, model=model, pieces=1).time_us for model in (plain, burst))
        assert slow * 0.999 < quick < slow - 70
        assert simulate(body, 1000, model=burst).time_us == pytest.approx(6.0)

    def test_protocols_are_not_left_out_for_bytes_that_a_burst_lets_through(self) -> None:
        body = ring_on(preset("dgx-a100"))
        model = replace(DEFAULT_MODEL, burst_bytes=10**9)
        alone = {
            name: simulate(body, 2**24, model=replace(model, protocols=(name,))).time_us
            for name in model.protocols
        }
        assert simulate(body, 2**24, model=model).time_us == min(alone.values())


class TestSteps:
    def test_the_earliest_piece_goes_first_where_only_data_bind_steps(self) -> None:
        """Pieces of recursive doubling overtake each other otherwise, and links wait for the earlier ones."""
        problem = Problem(topology=preset("dgx-a100", boxes=2), collective=ALL_REDUCE)
        entry = find("recursive-doubling", ALL_REDUCE)
        body = make(entry, case_of(entry, problem))
        free = Model(steps_bind=False)
        cut = simulate(body, 2**24, model=free, pieces=16)
        assert cut.messages.wave.tolist() == [int(row) % 16 for row in chunks_of(body, 16)]
        assert cut.time_us < 0.85 * simulate(body, 2**24, model=free, pieces=1).time_us

    def test_rings_that_share_ranks_do_not_wait_for_each_other(self) -> None:
        """Each of eight rings crosses between boxes elsewhere; only data bind, so a chunk pays for its own hops."""
        problem = Problem(topology=preset("dgx-h100", boxes=4), collective=ALL_REDUCE)
        entry = find("nccl-ring", ALL_REDUCE)
        body = make(entry, case_of(entry, problem))
        free = replace(DEFAULT_MODEL, protocols=("ll",))
        bound = replace(free, steps_bind=True)
        assert fastest(body, 2**10, model=free).time_us < 0.5 * fastest(body, 2**10, model=bound).time_us


@pytest.mark.parametrize(
    ("name", "boxes"), [("dgx-a100", 1), ("dgx-h100", 1), ("dgx-a100", 2), ("dgx-h100", 4)]
)
@pytest.mark.parametrize("size_bytes", [2**10, 2**16, 2**20])
def test_rings_take_as_long_as_nccl_predicts(name: str, boxes: int, size_bytes: int) -> None:
    """In one box exactly what NCCL's own model says of LL, LL128 and Simple, where latency counts; across boxes NCCL
    adds overheads of its network plug-in and a plateau, so the order of magnitude."""
    topology = preset(name, boxes=boxes)
    entry = find("nccl-ring", ALL_REDUCE)
    body = make(entry, case_of(entry, Problem(topology=topology, collective=ALL_REDUCE)))
    ranks = topology.num_ranks
    request = SelectionRequest(
        collective=ALL_REDUCE, ranks=ranks, size_bytes=size_bytes, ranks_per_box=ranks // boxes, boxes=boxes
    )
    predicted = {
        cell.protocol.lower(): cell.time_us
        for cell in select_by_cost(request, topology=topology).cells
        if cell.algorithm == "Ring"
    }
    for protocol, expected in predicted.items():
        found = fastest(body, size_bytes, model=replace(DEFAULT_MODEL, protocols=(protocol,))).time_us
        assert expected is not None
        if boxes == 1:
            assert found == pytest.approx(expected, rel=0.06), protocol
        else:
            assert 0.35 < found / expected < 1.1, protocol


class TestOneTruth:
    def test_the_fastest_protocol_is_taken_at_each_size(self) -> None:
        made = plan(preset("dgx-a100", boxes=2), "all_gather", ring=False).plan
        for size in (2**10, 2**20, 2**28):
            found = simulate(made, size)
            alone = {
                name: simulate(made, size, model=replace(DEFAULT_MODEL, protocols=(name,))).time_us
                for name in DEFAULT_MODEL.protocols
            }
            assert found.protocol is not None
            assert found.time_us == alone[found.protocol]
            assert found.time_us <= min(alone.values()) * 1.01

    def test_sizes_reaching_a_share_are_those_of_the_simulation(self) -> None:
        made = plan(preset("dgx-a100"), "all_gather", ring=False).plan
        reached = sizes_reaching(made, (0.5, 0.9))
        assert reached is not None
        for share, size in reached.items():
            assert size is not None
            rate = 1 / float(made.inv_rate / made.problem.shards)
            assert simulate(made, size).algbw_gb_per_s >= share * rate
            assert simulate(made, size // 2).algbw_gb_per_s < share * rate

    @pytest.mark.parametrize("name", ["nccl-2.30", "msccl", "mpi-tcp", "shm", "alpha-beta", "ideal"])
    @pytest.mark.parametrize(
        "algorithm", ["nccl-ring", "double-binary-tree", "recursive-doubling", "rabenseifner"]
    )
    def test_nothing_is_faster_than_the_latency_bound(self, name: str, algorithm: str) -> None:
        problem = Problem(topology=preset("dgx-a100", boxes=2), collective=ALL_REDUCE)
        model = model_of(name)
        least = least_latency(problem, model).time_us
        entry = find(algorithm, ALL_REDUCE)
        body = make(entry, case_of(entry, problem))
        assert fastest(body, 64, model=model).time_us >= least
        assert (least == 0) is (name == "ideal"), "links of presets have no latencies of their own"

    def test_models_that_say_nothing_about_the_gpus_have_no_limits(self) -> None:
        body = shift_on(star(4), 1)
        assert isinstance(body, Schedule)
        assert simulate(body, "1K").protocol == "ll"
        assert ALPHA_BETA.protocols == ()


@pytest.mark.parametrize("name", ["nccl-2.30", "msccl", "mpi-tcp", "shm", "alpha-beta", "ideal"])
@pytest.mark.parametrize("algorithm", ["nccl-ring", "double-binary-tree", "rabenseifner"])
@pytest.mark.parametrize("size_bytes", [2**12, 2**24])
def test_critical_paths_have_no_gaps(name: str, algorithm: str, size_bytes: int) -> None:
    problem = Problem(topology=preset("dgx-a100", boxes=2), collective=ALL_REDUCE)
    entry = find(algorithm, ALL_REDUCE)
    timeline = fastest(make(entry, case_of(entry, problem)), size_bytes, model=model_of(name))
    path = timeline.critical_path()
    assert path[-1].end_us == timeline.time_us
    assert all(stage.begin_us <= stage.end_us for stage in path)
    assert all(before.end_us == after.begin_us for before, after in pairwise(path))


ROUNDING = 1 + Fraction(1, 10**9)
"""Simulated times are sums of thousands of floating-point numbers."""
PLANS: tuple[tuple[Collective, str | None, bool], ...] = (
    (Collective.ALL_REDUCE, None, False),
    (Collective.ALL_REDUCE, None, True),
    (Collective.ALL_REDUCE, "ring", False),
    (Collective.ALL_REDUCE, "recursive-doubling", False),
    (Collective.ALL_REDUCE, "hierarchical", False),
    (Collective.ALL_REDUCE, "nccl-tree", False),
    (Collective.ALL_GATHER, None, False),
    (Collective.ALL_GATHER, None, True),
    (Collective.ALL_GATHER, "pat", False),
    (Collective.REDUCE_SCATTER, "direct", False),
    (Collective.BROADCAST, None, False),
    (Collective.BROADCAST, "binomial", False),
    (Collective.REDUCE, "nccl-ring", False),
    (Collective.GATHER, None, False),
    (Collective.SCATTER, None, False),
    (Collective.ALL_TO_ALL, None, False),
    (Collective.ALL_TO_ALL, "direct", False),
)


def least_us(problem: Problem, size: int, model: Model, *, in_network: bool) -> Fraction:
    """The time of the bytes alone where whole blocks are dealt as evenly as whole bytes allow."""
    inv_rate = in_network_bound(problem).inv_rate if in_network else bound(problem).inv_rate
    slowest = Fraction(int(problem.topology.capacity.min()), problem.topology.denominator)
    return inv_rate / problem.shards * size / 1000 - Fraction(model.burst_bytes) / slowest / 1000


def check(made: Plan, problem: Problem, size: int, model: Model, *, in_network: bool, **options: Any) -> None:
    least = least_us(problem, size, model, in_network=in_network)
    (row,) = simulate_sizes(made, [size], model=model, **options)
    times = [row.timeline.time_us]
    if row.hashed is not None:
        times += [*row.hashed.times_us.tolist(), row.hashed.multipath_us]
    for time_us in times:
        assert Fraction(time_us) * ROUNDING >= least, (model, time_us, float(least))
    record = row.record(3)
    assert record["share_of_optimum"] <= 1 + 1e-9
    for link in record["links"]:
        assert link["utilisation"] <= 1 + 1e-9


@st.composite
def problems(draw: st.DrawFn) -> tuple[Problem, str | None, bool]:
    topology = draw(clusters())
    collective, algorithm, helped = draw(st.sampled_from(PLANS))
    ranks, demands = topology.num_ranks, None
    if collective is Collective.ALL_TO_ALL and draw(st.booleans()):
        few = st.integers(0, 3)
        demands = [[draw(few) if src != dst else 0 for dst in range(ranks)] for src in range(ranks)]
        demands[0][1] = 1
    root = draw(st.integers(0, ranks - 1)) if collective.rooted else None
    return Problem(topology, collective, root=root, demands=demands), algorithm, helped


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_random_clusters(data: st.DataObject) -> None:
    problem, algorithm, in_network = data.draw(problems())
    relay = algorithm is not None
    try:
        made = plan(problem, algorithm=algorithm, in_network=in_network, relay_gpus=relay, ring=False).plan
    except (InputError, UnreachableError):
        return  # an algorithm that does not serve these ranks
    model = data.draw(st.one_of(st.sampled_from([each.model for each in named_models().values()]), models()))
    channels = data.draw(st.sampled_from((None, 1, 4)))
    if channels is not None and model.protocols and not model.copy_gb_per_s and not model.store_and_forward:
        model = replace(model, channels=channels, channel_gb_per_s=20.0)
    pieces = data.draw(st.sampled_from((None, 1, 3)))
    # Blocks end at whole bytes: a size that all of them divide tells that from too fast.
    size = data.draw(st.integers(1, 2**10)) * 2**20
    options: dict[str, Any] = {}
    how = data.draw(st.sampled_from(("plain", "seeds", "multipath")))
    if how == "multipath":
        options = {"multipath": True}
    elif how == "seeds":
        options = {"seeds": 3}
    with suppress(InputError):  # models and routes that do not go together
        check(made, problem, size, model, in_network=in_network, pieces=pieces, **options)


def test_blocks_for_one_rank_travel_as_one_message_on_many_ranks() -> None:
    """Of a step that sends dozens of blocks to each of a few others; trees of two parts a step stay as they are."""
    problem = Problem(preset("gb200-nvl72"), "all_gather")
    blocks = from_catalogue(problem, "bruck", {"radix": 16}).body
    assert isinstance(blocks, Schedule)
    found = fastest(blocks, 1024, model=model_of(None))
    assert found.time_us == pytest.approx(7.8, rel=1e-3)  # two messages in a row
    assert found.messages.count <= blocks.num_transfers / 3
    pair = Problem(preset("dgx-a100", boxes=2), "all_reduce")
    trees = from_catalogue(pair, "nccl-tree", {"segments": 64}).body
    assert isinstance(trees, Schedule)
    assert trees.num_transfers > 2**11
    assert fastest(trees, 2**30, model=model_of(None), pieces=1).messages.count == trees.num_transfers


def test_chunks_that_lie_apart_are_messages_of_their_own_where_nothing_is_packed() -> None:
    """What engines send: blocks 0 and 1 from rank 0 to 1 are one message, 0 and 2 are two."""
    moves = {}
    for chunks in ((0, 1), (0, 2)):
        case = AlgorithmCase(topology=preset("star", gpus=4), collective=Collective.BROADCAST, root=0)
        made = Moves(case, whole(case, 4))
        made.add(0, 0, 1, list(chunks))
        moves[chunks] = made.schedule()
    counts = {
        (chunks, packed): simulate(body, 4096, model=Model(packed=packed), pieces=1).messages.count
        for chunks, body in moves.items()
        for packed in (True, False)
    }
    assert counts == {((0, 1), True): 1, ((0, 1), False): 1, ((0, 2), True): 1, ((0, 2), False): 2}
