"""Comparisons: right times, the same outcome wherever the work is done, refusals with their reasons."""

from __future__ import annotations

import csv
import importlib.machinery
import io
import json
import multiprocessing
import os
import sys
import time
import types
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comparison.cases import star
from coppice import Collective, InputError, MissingExtraError, Problem, bound
from coppice.bounds.attainable import in_network_bound
from coppice.comparison import Comparison, compare
from coppice.comparison.library import LibraryWay
from coppice.comparison.measurement import (
    AlgorithmVariant,
    Bodies,
    MeasurementJob,
    candidates,
    measure,
    packed,
)
from coppice.comparison.pool import local_processes, run
from coppice.comparison.ranges import LibraryPick, pick_lines
from coppice.comparison.table import csv_text, refusal_lines, synthesis_lines
from coppice.iteration.costs.chosen import nccl_pick
from coppice.selection import select
from coppice.selection.nccl.machines import machines_of
from coppice.simulation import ALPHA_BETA, DEFAULT_MODEL, Model, Sharing, fastest
from coppice.simulation.models import named_models
from coppice.simulation.simulator import most_pieces
from coppice.topology.model import Topology
from coppice.topology.presets import preset
from support.random_clusters import clusters

SIZES = (2**10, 2**20)
FEW = ("forest", "ring", "double-binary-tree")


class Backwards(Executor):
    """Does everything at once when the last job has come, the last one first."""

    def __init__(self, jobs: int) -> None:
        self.jobs, self.waiting = jobs, []

    def submit(self, fn: Any, /, *args: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, fn, args))
        if len(self.waiting) == self.jobs:
            for each, work, given in reversed(self.waiting):
                each.set_result(work(*given))
        return future


def as_text(found: Comparison) -> str:
    return json.dumps(found.record(), sort_keys=True)


def test_ring_on_a_star_takes_what_the_formula_says() -> None:
    """2 (P - 1) (alpha + M / P beta); below, a small message goes whole to all in one step, links share a large one."""
    found = compare(star(), sizes=[2**20, 2**10], algorithms=["ring"], model=Model(overhead_us=2.0), jobs=1)
    assert found.sizes == SIZES
    for size in SIZES:
        row = found.best(size)
        assert row is not None
        assert (row.algorithm, row.chain) == ("ring", 6)
        assert row.time_us == pytest.approx(6 * (2 + size / 4 / 10e3))
        assert row.sent_bytes == 6 * size // 4
        assert row.link_us == pytest.approx(6 * size / 4 / 10e3)
    assert found.latency.time_us == 2.0
    assert found.limit_us(2**10) == pytest.approx(3 * 2**10 / 10e3 + 2)
    assert found.limit_us(2**20) == pytest.approx(2 * 3 / 4 * 2**20 / 10e3 + 2)
    assert found.share_of_limit(found.times["ring"][2**20]) == pytest.approx(159.2864 / 169.2864)
    assert found.busbw_gb_per_s(found.times["ring"][2**20]) == pytest.approx(
        1.5 * 2**20 / found.times["ring"][2**20].time_us / 1e3
    )


def test_no_algorithm_beats_the_limit() -> None:
    problem = Problem(topology=preset("dgx-a100", boxes=2), collective=Collective.ALL_REDUCE)
    found = compare(problem, sizes=SIZES, relay_gpus=True, jobs=1)
    assert len(found.times) > 4
    for by_size in found.times.values():
        for row in by_size.values():
            assert 0 < found.share_of_limit(row) <= 1 + 1e-6, row
    assert found.optimal_name == "forest"
    assert found.share_of_limit(found.times["forest"][2**20]) > 0.25


def test_outcome_does_not_depend_on_where_the_work_is_done() -> None:
    problem = star(5)
    alone = compare(problem, sizes=SIZES, algorithms=FEW, jobs=1)
    work = len(candidates(problem, FEW))
    assert work >= 3
    with ThreadPoolExecutor(3) as threads:
        assert as_text(compare(problem, sizes=SIZES, algorithms=FEW, executor=threads)) == as_text(alone)
    assert as_text(compare(problem, sizes=SIZES, algorithms=FEW, executor=Backwards(work))) == as_text(alone)
    assert as_text(compare(problem, sizes=SIZES, algorithms=reversed(FEW), jobs=2)) == as_text(alone)


def test_jobs_are_small() -> None:
    """A job carries the topology's columns and nothing that was derived from them."""
    problem = Problem(topology=preset("dgx-h100", boxes=8), collective=Collective.ALL_GATHER)
    before = len(packed(problem))
    compare(problem, sizes=[1024], algorithms=["ring"], order="topology", jobs=1)
    assert len(packed(problem)) == before < 30_000


def test_progress_counts_jobs() -> None:
    calls: list[tuple[int, int, str]] = []
    compare(
        star(),
        sizes=SIZES,
        algorithms=["forest", "ring"],
        jobs=1,
        on_progress=lambda *call: calls.append(call),
    )
    assert calls == [(1, 2, "forest"), (2, 2, "ring")]


def test_refusals_keep_their_reason() -> None:
    weighted = star(3, Collective.ALL_GATHER, weights=(1, 2, 3))
    found = compare(weighted, sizes=SIZES, algorithms=["forest", "ring"], jobs=1)
    assert set(found.times) == {"forest"}
    (row,) = found.refused
    assert row.algorithm == "ring"
    assert "equal blocks" in str(row.refusal)
    assert not row.unreachable
    assert [each["refusal"] for each in found.rows() if each["algorithm"] == "ring"] == [row.refusal] * 2


def test_table_has_a_row_for_every_algorithm_and_size() -> None:
    weighted = star(3, Collective.ALL_GATHER, weights=(1, 2, 3))
    found = compare(weighted, sizes=SIZES, algorithms=["forest", "ring"], jobs=1)
    table = found.to_table()
    statuses = [(row["algorithm"], row["size_bytes"], row["status"]) for row in table]
    assert statuses == [
        (name, size, status)
        for size in SIZES
        for name, status in (("forest", "simulated"), ("ring", "refused"))
    ]
    assert len({tuple(row) for row in table}) == 1
    assert {"parameters", "time_us", "algbw_gb_per_s", "busbw_gb_per_s", "refusal"} < set(table[0])
    simulated, refused = table[:2]
    assert simulated["time_us"] == found.times["forest"][SIZES[0]].time_us
    assert simulated["refusal"] is None
    assert refused["time_us"] is None
    assert "equal blocks" in refused["refusal"]


def test_representation_is_short() -> None:
    found = compare(star(), sizes=[2**k for k in range(0, 24, 3)], jobs=1)
    assert repr(found).startswith("Comparison(all_reduce among 4 ranks of star of 4, 1 .. 2,097,152 bytes: ")
    assert len(repr(found)) < 400
    topology = replace(star().topology, name="x" * 500)
    assert len(repr(replace(found, problem=replace(star(), topology=topology)))) < 400
    assert "1,024 bytes: 1 of 1 algorithms apply; fastest: ring" in repr(
        compare(star(), sizes=[1024], algorithms=["ring"], jobs=1)
    )


def test_data_frame_has_the_rows_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compare(star(), sizes=[1024], algorithms=["ring"], jobs=1)
    monkeypatch.setattr("coppice.comparison.outcome.PANDAS", "no_such_package")
    with pytest.raises(MissingExtraError, match=r"coppice\[pandas\]"):
        found.to_pandas()
    monkeypatch.setattr("coppice.comparison.outcome.PANDAS", "data_frames")
    frames = types.ModuleType("data_frames")
    frames.__spec__ = importlib.machinery.ModuleSpec("data_frames", None)
    frames.DataFrame = list  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "data_frames", frames)
    assert found.to_pandas() == found.to_table()


def test_missing_routes_are_refused_unless_gpus_relay() -> None:
    rails = Problem(topology=preset("dgx-h100", boxes=2), collective=Collective.ALL_GATHER)
    refused = compare(rails, sizes=[1024], algorithms=["ring"], order="rank", relay_gpus=False, jobs=1)
    (row,) = refused.refused
    assert row.unreachable
    relayed = compare(rails, sizes=[1024], algorithms=["ring"], order="rank", relay_gpus=True, jobs=1)
    assert relayed.times["ring"][1024].relays
    suited = compare(rails, sizes=[1024], algorithms=["ring"], jobs=1).times["ring"][1024]
    assert suited.order == "topology"
    assert not suited.relays


def test_best_variant_of_each_size_is_kept_and_named() -> None:
    """More segments pay for long messages only; the plain variant is the best of equals."""
    found = compare(star(8), sizes=[2**10, 2**24], algorithms=["double-binary-tree"], jobs=1)
    small, large = (found.times["double-binary-tree"][size] for size in found.sizes)
    assert small.parameters["segments"] == 1
    assert int(large.parameters["segments"]) > 4
    plain = measure(
        MeasurementJob(
            problem=packed(star(8)),
            candidate=AlgorithmVariant(algorithm="double-binary-tree"),
            keys={2**24: "key"},
            model=Model(),
        )
    )[0]
    assert plain.key == "key"
    assert large.time_us < 0.9 * plain.time_us


def test_forest_is_cut_into_pieces_that_suit_the_size() -> None:
    problem = Problem(
        topology=preset("ring", gpus=6, gb_per_s=(10,)), collective=Collective.BROADCAST, root=0
    )
    found = compare(problem, sizes=[2**10, 2**26], algorithms=["forest"], jobs=1)
    small, large = (found.times["forest"][size] for size in found.sizes)
    assert small.pieces == 1
    assert large.pieces > 8
    assert found.share_of_limit(large) > 0.95


def test_model_changes_the_times() -> None:
    fair = compare(
        star(), sizes=[2**20], algorithms=["ring"], model=replace(ALPHA_BETA, sharing=Sharing.FAIR), jobs=1
    )
    slow = compare(star(), sizes=[2**20], algorithms=["ring"], model=Model(reduce_gb_per_s=1.0), jobs=1)
    plain = compare(star(), sizes=[2**20], algorithms=["ring"], model="alpha-beta", jobs=1)
    assert fair.times["ring"][2**20].time_us == pytest.approx(plain.times["ring"][2**20].time_us)
    assert slow.times["ring"][2**20].time_us > 1.5 * plain.times["ring"][2**20].time_us


def test_barrier_has_one_size() -> None:
    found = compare(star(5, Collective.BARRIER), sizes=[1024], jobs=1)
    assert found.sizes == (0,)
    assert found.optimal_name is None
    best = found.best(0)
    assert best is not None
    assert best.time_us >= found.latency.time_us > 0


@pytest.mark.parametrize("collective", list(Collective))
def test_every_collective_can_be_compared(collective: Collective) -> None:
    problem = star(4, collective, root=1 if collective.rooted else None)
    found = compare(problem, sizes=[4096], jobs=1)
    assert found.times
    assert found.ranges[0].text
    for row in found.fastest_first(found.sizes[0]):
        assert found.share_of_limit(row) <= 1 + 1e-6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sizes": []}, "expected sizes of 1 byte or more, found none"),
        ({"sizes": [0]}, "found 0"),
        ({"algorithms": ["rnig"]}, "did you mean ring"),
        ({"order": "random"}, "expected an order"),
        ({"jobs": 0}, "1 or more processes"),
    ],
)
def test_bad_input_is_refused(options: dict[str, Any], words: str) -> None:
    given = {"sizes": [1024], **options}
    with pytest.raises(InputError, match=words):
        compare(star(), **given)


@pytest.mark.timeout(120)
def test_processes_are_gone_after_a_failure(tmp_path: Path) -> None:
    started = tmp_path / "started"
    work = f"import pathlib, time; pathlib.Path({str(started)!r}).touch(); time.sleep(3600)"

    def use_and_fail() -> None:
        with local_processes(1) as pool:
            pool.submit(exec, work)
            while not started.exists():
                time.sleep(0.01)
            assert multiprocessing.active_children()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        use_and_fail()
    assert not multiprocessing.active_children()


def test_switches_help_only_where_they_may() -> None:
    problem = Problem(topology=preset("dgx-h100", boxes=2), collective=Collective.ALL_REDUCE)
    names = ["forest", "nvls-tree"]
    plain = compare(problem, sizes=[2**26], algorithms=names, jobs=1)
    assert [(row.algorithm, "`in_network`" in str(row.refusal)) for row in plain.refused] == [
        ("nvls-tree", True)
    ]
    helped = compare(problem, sizes=[2**26], algorithms=names, in_network=True, jobs=1)
    assert not helped.refused
    assert helped.limit_us(2**26) < 0.8 * plain.limit_us(2**26)
    for name in names:
        row = helped.times[name][2**26]
        assert row.in_network
        assert row.time_us < plain.times["forest"][2**26].time_us
        assert helped.share_of_limit(row) <= 1
    with pytest.raises(InputError):
        compare(star(4, Collective.ALL_TO_ALL), sizes=[1024], in_network=True, jobs=1)


def test_work_on_many_ranks_is_cut_smaller() -> None:
    calls: list[tuple[int, int, str]] = []
    many = star(300, Collective.BROADCAST, root=0)
    compare(
        many,
        sizes=[2**k for k in range(10, 20)],
        algorithms=["binomial"],
        order="rank",
        jobs=1,
        on_progress=lambda *call: calls.append(call),
    )
    variants = len(candidates(many, ["binomial"], order="rank"))
    assert len(calls) == calls[-1][1] == 3 * variants


@pytest.mark.parametrize("name", ["dgx-a100", pytest.param("mi250", marks=pytest.mark.slow)])
def test_search_for_pieces_finds_the_best_power_of_two(name: str) -> None:
    problem = Problem(topology=preset(name, boxes=2), collective=Collective.REDUCE_SCATTER)
    sizes = [2**k for k in range(16, 29, 4)]
    found = compare(problem, sizes=sizes, algorithms=["forest"], jobs=1)
    body = Bodies(problem, AlgorithmVariant(algorithm="forest"), bound(problem)).body(1)
    for size in sizes:
        most = most_pieces(body, size, model=DEFAULT_MODEL)
        times = {
            2**k: fastest(body, size, model=DEFAULT_MODEL, pieces=2**k, keep_hops=False).time_us
            for k in range(most.bit_length())
        }
        assert found.times["forest"][size].time_us <= 1.01 * min(times.values()), times


def test_gpus_relay_by_default_where_an_algorithm_would_not_apply_otherwise() -> None:
    rails = Problem(topology=preset("dgx-h100", boxes=2), collective=Collective.ALL_GATHER)
    names = ["forest", "ring", "direct"]
    found = compare(rails, sizes=[1024], algorithms=names, jobs=1)
    assert found.refused == ()
    assert {name: found.times[name][1024].relays for name in names} == {
        "forest": False,
        "ring": False,
        "direct": True,
    }
    without = compare(rails, sizes=[1024], algorithms=names, relay_gpus=False, jobs=1)
    assert [row.algorithm for row in without.left_out] == ["direct"]
    assert without.times["ring"] == found.times["ring"]
    everywhere = compare(rails, sizes=[1024], algorithms=names, relay_gpus=True, jobs=1)
    assert everywhere.times["direct"] == found.times["direct"]
    assert found.latency.time_us == everywhere.latency.time_us <= without.latency.time_us


def test_the_help_of_switches_is_compared_by_itself() -> None:
    """Both optima, and no algorithm's times on the wrong side."""
    problem = Problem(topology=preset("dgx-h100", boxes=2), collective=Collective.ALL_REDUCE)
    names = ["forest", "nvls-tree", "collnet-chain"]
    found = compare(problem, sizes=[2**20, 2**26], algorithms=names, jobs=1)
    helped = found.helped
    assert helped is not None
    assert not any(row.in_network for by_size in found.times.values() for row in by_size.values())
    assert set(helped.times) == {"forest", "nvls-tree"}
    assert all(row.in_network for by_size in helped.times.values() for row in by_size.values())
    assert helped.optimum.algbw_gb_per_s > found.optimum.algbw_gb_per_s
    for by_size in helped.times.values():
        assert all(0 < helped.share_of_limit(row) <= 1 for row in by_size.values())
    assert [row.algorithm for row in found.left_out] == ["collnet-chain"]
    asked = compare(problem, sizes=[2**26], algorithms=["nvls-tree"], in_network=True, jobs=1)
    assert asked.times["nvls-tree"][2**26].time_us == helped.times["nvls-tree"][2**26].time_us
    assert asked.helped is None
    assert compare(problem, sizes=[2**26], algorithms=names, in_network=False, jobs=1).helped is None
    record = found.record()
    assert record["in_network"]["optimum"]["algbw_gb_per_s"] > record["optimum"]["algbw_gb_per_s"]


def test_switches_that_cannot_help_are_not_tried() -> None:
    problem = Problem(topology=preset("dgx-a100", boxes=2), collective=Collective.ALL_REDUCE)
    assert compare(problem, sizes=[2**20], algorithms=["forest", "nvls-tree"], jobs=1).helped is None


def test_a_process_that_ends_on_its_own_is_an_input_error() -> None:
    with local_processes(1) as pool, pytest.raises(InputError, match="ended on its own"):
        list(run(os._exit, [3], pool))


BOXES = preset("dgx-a100", boxes=2)


def compared(collective: str = "all_gather", **more: object) -> Comparison:
    options = {
        "sizes": [2**16, 2**26],
        "algorithms": ["ring"],
        "synthesize": ["tacos", "syccl"],
        "jobs": 1,
    } | more
    return compare(BOXES, collective, **options)


def test_methods_are_rows_with_rate_gap_and_seconds() -> None:
    found = compared()
    assert set(found.times) == {"ring", "tacos", "syccl"}
    by_name = {row.algorithm: row for row in found.synthesized}
    assert set(by_name) == {"tacos", "syccl"}
    assert by_name["syccl"].gap == 0
    for row in found.to_table():
        assert row["time_us"] >= row["limit_us"] * (1 - 1e-9)
        assert (row["synthesis_seconds"] is None) == (row["algorithm"] == "ring")
    assert [line.split()[0] for line in synthesis_lines(found)] == ["tacos", "syccl"]
    assert "the optimum" in synthesis_lines(found)[1]
    rows = list(csv.DictReader(io.StringIO(csv_text([found]))))
    assert {row["algorithm"] for row in rows if row["synthesis_seconds"]} == {"tacos", "syccl"}
    assert {row["algorithm"] for row in found.record()["rows"]} == {"ring", "tacos", "syccl"}


def test_what_a_method_does_not_serve_is_named_with_its_reason() -> None:
    found = compared("broadcast", algorithms=["binomial"])
    assert "tacos" in found.times
    (line,) = refusal_lines(found)
    assert line.startswith("syccl: method syccl synthesises all_gather")
    assert found.record()["refusals"]["syccl"]


def test_a_method_that_lacks_routes_is_not_tried_again_with_relays() -> None:
    found = compare(
        preset("ring", gpus=5), "all_to_all", sizes=[2**16], algorithms=["flow"], synthesize=["tacos"], jobs=1
    )
    (line,) = refusal_lines(found)
    assert line.startswith("tacos: tacos brings chunks only to ranks that want them")


def test_unknown_methods_and_no_time_are_refused() -> None:
    with pytest.raises(InputError, match="methods of synthesis"):
        compared(synthesize=["magic"])
    with pytest.raises(InputError, match="above 0 seconds"):
        compared(synthesis_time_limit_s=0.0)


def test_measurements_are_kept_with_their_seconds(tmp_path: object) -> None:
    file = f"{tmp_path}/kept.jsonl"
    first, second = (compared(results=file, sizes=[2**16]) for _ in range(2))
    assert first.synthesized == second.synthesized
    other = compared(results=file, sizes=[2**16], seed=1)
    assert {row.key for row in other.synthesized}.isdisjoint(row.key for row in first.synthesized)


ROUNDING = 1 + Fraction(1, 10**9)
"""Simulated times are sums of thousands of floating-point numbers."""
ALGORITHMS = {
    Collective.ALL_REDUCE: [
        "forest",
        "ring",
        "recursive-doubling",
        "hierarchical",
        "nccl-ring",
        "nccl-tree",
        "nvls",
    ],
    Collective.ALL_GATHER: ["forest", "ring", "direct", "nccl-ring", "pat"],
    Collective.BROADCAST: ["forest", "binomial", "nccl-ring"],
}


@given(
    clusters(),
    st.sampled_from(list(ALGORITHMS)),
    st.integers(1, 2**30),
    st.sampled_from(sorted(named_models())),
)
@settings(max_examples=15, deadline=None)
def test_random_clusters(topology: Topology, collective: Collective, size: int, model: str) -> None:
    problem = Problem(topology, collective, root=0 if collective.rooted else None)
    systems = ("nvls", "sharp", "switchml") if collective is Collective.ALL_REDUCE else ()
    found = compare(
        problem,
        sizes=[size],
        algorithms=ALGORITHMS[collective],
        model=model,
        relay_gpus=True,
        systems=systems,
        jobs=1,
    )
    rates = [(found, bound(problem).inv_rate)]
    if found.helped is not None:
        rates.append((found.helped, in_network_bound(problem).inv_rate))
    for rows, inv_rate in rates:
        least = inv_rate / problem.shards * size / 1000
        assert any(row.refusal is None for row in rows.measurements)
        for row in rows.measurements:
            assert row.refusal is not None or Fraction(row.time_us) * ROUNDING >= least, row.algorithm
    for row in () if found.modelled is None else found.modelled.times:
        assert found.modelled is not None
        assert Fraction(row.time_us) * ROUNDING >= found.modelled.bounds[row.system] * size / 1000, row.system


def test_nvls_is_measured_by_others_of_its_class() -> None:
    found = compare(
        preset("dgx-h100"), Collective.ALL_REDUCE, sizes=[2**30], algorithms=["forest", "nvls"], jobs=1
    )
    (pick,) = found.picks
    assert (pick.name, pick.algorithm, pick.in_network) == ("NVLS/Simple", "nvls", True)
    assert found.helped is not None
    best = found.helped.best(2**30)
    assert best is not None
    assert pick.ratio == found.helped.times["nvls"][2**30].time_us / best.time_us
    assert pick.record()["in_network"] is True


def test_classes_are_told_apart_in_words() -> None:
    rows = (
        LibraryPick(size_bytes=2**10, name="Tree/LL", algorithm="nccl-tree", time_us=1.0, ratio=1.5),
        LibraryPick(
            size_bytes=2**20, name="NVLS/Simple", algorithm="nvls", time_us=1.0, ratio=1.0, in_network=True
        ),
        LibraryPick(
            size_bytes=2**30, name="NVLS/Simple", algorithm="nvls", time_us=1.0, ratio=2.0, in_network=True
        ),
    )
    assert pick_lines(rows) == [
        "1K Tree/LL: 1.5 times the best time; 1 us",
        "1M..1G NVLS/Simple: 1 to 2 times the best time of those whose switches copy and add; at 1G 1 us",
    ]


@pytest.mark.parametrize(
    "cluster",
    [
        preset("dgx-1v"),
        preset("dgx-a100", boxes=2),
        preset("dgx-h100", boxes=2),
        preset("dgx-b200"),
        preset("fat-tree", leaves=2, gpus_per_leaf=2),
    ],
    ids=lambda cluster: cluster.name,
)
@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.BROADCAST])
def test_one_model_says_what_nccl_would_pick(cluster: Topology, collective: Collective) -> None:
    """Algorithm, protocol, channels and estimate: as `select` has them, and as training costs take them."""
    sizes = (2**14, 2**21, 2**28)
    problem = Problem(topology=cluster, collective=collective, root=0 if collective.rooted else None)
    outcome = compare(problem, sizes=sizes, algorithms=["ring" if problem.root is None else "linear"], jobs=1)
    chosen = [select("nccl", collective, size, topology=cluster) for size in sizes]
    if machines_of(cluster).generation is None:
        assert outcome.picks == ()
        return
    assert [(pick.name, pick.channels, pick.predicted_us, pick.algorithm) for pick in outcome.picks] == [
        (each.algorithm, each.channels, each.cell and each.cell.time_us, each.ours) for each in chosen
    ]
    for size, each in zip(sizes, chosen, strict=True):
        taken = nccl_pick(cluster, collective, size)
        assert taken.way is not None
        if taken.name == each.ours:
            assert taken.way == LibraryWay.of(each)
        else:  # in the network, where it cannot be had
            assert (each.ours or "nvls").startswith(("nvls", "collnet"))
            assert taken.name == "nccl-ring"


def test_picks_need_a_generation() -> None:
    found = compare(preset("star", gpus=4), Collective.ALL_GATHER, sizes=[1024], algorithms=["ring"], jobs=1)
    assert found.picks == ()


def test_more_segments_may_need_routes_that_one_does_not() -> None:
    """Segments of a circulant broadcast go between further ranks, some of them on no common rail: fewer count."""
    problem = Problem(topology=preset("dgx-h100", boxes=2), collective=Collective.BROADCAST, root=0)
    (variant,) = (each for each in candidates(problem, ["circulant"], order="rank"))
    job = MeasurementJob(
        problem=packed(problem), candidate=variant, keys={2**26: "large"}, model=DEFAULT_MODEL
    )
    (row,) = measure(job)
    assert row.refusal is None
    assert int(row.parameters["segments"]) < 8
    bodies = Bodies(problem, variant, bound(problem))
    with pytest.raises(InputError, match="through other GPUs only"):
        bodies.body(8)
