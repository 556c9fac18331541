"""Skewed routing: loads against plain loops, placements against all placements, and steps of real mixtures."""

from __future__ import annotations

import itertools
import json
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coppice
from coppice.errors import InputError
from coppice.iteration.job_options import JobOptions
from coppice.iteration.layout import Layout
from coppice.iteration.models import model_named
from coppice.iteration.routing import popular_placement, routed_load, routing_samples
from support.shared_data import SHARED

LAYOUT = Layout(data=16, expert=16, global_batch=16)
WORDS: dict[str, Any] = {
    "topology": "dgx-h100",
    "boxes": 2,
    "parallel": "dp=16,ep=16",
    "global_batch": 16,
    "recompute": "full",
}


def cluster() -> Any:
    return JobOptions(job="qwen3-30b-a3b", **WORDS).load().cluster


@pytest.mark.parametrize("seed", range(30))
def test_popular_experts_are_packed_nearly_as_well_as_possible(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shares = rng.random(6) ** 3
    shares /= shares.sum()
    load = np.zeros(3)
    for expert, rank, share in popular_placement(shares, 3):
        load[rank] += shares[expert] * share
    best = min(
        max(np.bincount(placed, weights=shares, minlength=3))
        for placed in itertools.product(range(3), repeat=6)
        if np.bincount(placed, minlength=3).tolist() == [2, 2, 2]
    )
    assert load.max() <= best * 4 / 3 + 1e-12
    assert load.max() <= np.add.reduceat(shares, [0, 2, 4]).max() * 4 / 3


@pytest.mark.parametrize("copies", [0, 1, 2])
def test_all_tokens_have_a_place_and_ranks_as_many_slots(copies: int) -> None:
    shares = np.random.default_rng(copies).dirichlet(np.full(32, 0.3))
    placed = popular_placement(shares, 8, copies=copies, width=4)
    assert np.bincount([rank for _, rank, _ in placed]).tolist() == [4 + copies] * 8
    for expert in range(32):
        own = [(rank, share) for each, rank, share in placed if each == expert]
        assert sum(share for _, share in own) == pytest.approx(1)
        assert len({rank for rank, _ in own}) == len(own)


@pytest.mark.parametrize("capacity", [0.0, 1.0, 1.5])
def test_loads_are_those_of_a_plain_loop(capacity: float) -> None:
    model = model_named("qwen3-30b-a3b")
    samples = routing_samples("zipf:0.7", model, LAYOUT)
    found = routed_load(samples, model, LAYOUT, cluster(), capacity=capacity)
    busiest, dropped = [], []
    for sample in samples:
        load, lost = [0.0] * 16, 0.0
        for expert, share in enumerate(sample.shares.tolist()):
            kept = min(share, capacity / 128) if capacity else share
            load[expert // 8] += 16 * kept
            lost += share - kept
        busiest.append(max(load))
        dropped.append(lost)
    assert found.busiest == pytest.approx(np.mean(busiest))
    assert found.dropped == pytest.approx(np.mean(dropped), abs=1e-12)


def test_planned_exchanges_are_between_even_and_direct_ones() -> None:
    model = model_named("qwen3-30b-a3b")
    for skew in ("zipf:0.3", "zipf:1", "hot:20"):
        samples = routing_samples(skew, model, LAYOUT)
        planned, direct = (
            routed_load(samples, model, LAYOUT, cluster(), planned=each) for each in (True, False)
        )
        assert 1 <= planned.exchange < direct.exchange
        assert direct.exchange <= direct.busiest + 1e-3
    even = routed_load(routing_samples("zipf:0", model, LAYOUT), model, LAYOUT, cluster())
    assert (even.busiest, even.exchange) == (pytest.approx(1), pytest.approx(1, abs=1e-4))


def test_recordings_have_their_own_shares_and_placement(tmp_path: Path) -> None:
    model, file = model_named("qwen3-30b-a3b"), tmp_path / "r.jsonl"
    counts = [1] * 128
    counts[5] = 128 * 15 - 127
    swapped = list(reversed([each // 8 for each in range(128)]))
    lines: list[dict[str, Any]] = [{"counts": counts}, {"layer": 1, "counts": counts, "placement": swapped}]
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    samples = routing_samples(str(file), model, LAYOUT)
    assert [int(each.placement[5]) for each in samples] == [0, 15]
    found = routed_load(samples, model, LAYOUT, cluster())
    assert found.busiest == pytest.approx(16 * (sum(counts[:8])) / sum(counts))
    copied = routed_load(samples, model, LAYOUT, cluster(), placement="popular", copies=1)
    assert copied.busiest < 1.2
    # Ranks that are told apart: only rank 3 sends, all to expert 0.
    rows = [[0] * 128 for _ in range(16)]
    rows[3][0] = 10
    file.write_text(json.dumps({"counts": rows}) + "\n")
    alone = routed_load(routing_samples(str(file), model, LAYOUT), model, LAYOUT, cluster())
    assert alone.busiest == pytest.approx(16)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"counts": [1, 2]}', "expected counts of 128 experts at r.jsonl:1, found 2"),
        (json.dumps({"counts": [0] * 128}), "expected tokens at r.jsonl:1, found none"),
        (json.dumps({"counts": [1] * 128, "placement": [16] * 128}), "expected a rank below 16"),
        (json.dumps({"counts": [[1] * 128, [1]]}), "as many experts for each rank, found other numbers"),
    ],
)
def test_recordings_that_do_not_fit_are_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        routing_samples(str(file), model_named("qwen3-30b-a3b"), LAYOUT)


def test_dense_models_and_placements_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="expected a mixture whose experts are on several ranks"):
        routing_samples("zipf:1", model_named("gpt-7.5b"), Layout(data=2, global_batch=2))
    with pytest.raises(InputError, match="expected `placement` given or popular, found 'frob'"):
        coppice.train.estimate("qwen3-30b-a3b", **WORDS, routing="zipf:1", placement="frob")
    with pytest.raises(InputError, match="expected `routing` with `placement` popular"):
        coppice.train.estimate("qwen3-30b-a3b", **WORDS, placement="popular")


def test_ranks_that_do_not_fill_their_boxes_have_loads() -> None:
    """Twenty ranks in boxes of eight: planned as boxes of five."""
    words = {**WORDS, "boxes": 5, "parallel": "dp=40,ep=20", "global_batch": 40}
    found = coppice.train.estimate("deepseek-v2", **words, routing="zipf:1")
    planned, direct = found.routed[0].load, found.routed[1].load
    assert 1 < planned.exchange < direct.exchange < 20


def test_a_step_is_slower_by_skew_and_faster_by_copies() -> None:
    even = coppice.train.estimate("qwen3-30b-a3b", **WORDS)
    found = coppice.train.estimate("qwen3-30b-a3b", **WORDS, routing="zipf:0.8")
    seconds = {each.load.name: each.seconds for each in found.routed}
    assert found.routed[0].seconds == found.simulated_seconds
    assert even.simulated_seconds < seconds["popular"] < seconds["given"] < seconds["given, direct exchange"]
    assert seconds["popular, 1 more on each rank"] < 1.05 * even.simulated_seconds


def test_padded_slots_cost_what_they_cost_and_drop_the_rest() -> None:
    job = JobOptions(job="qwen3-30b-a3b", **WORDS).load()
    model = replace(job.model, capacity_factor=1.25)  # type: ignore[type-var]
    samples = routing_samples("zipf:1", model, LAYOUT)  # type: ignore[arg-type]
    found = routed_load(samples, model, LAYOUT, job.cluster)  # type: ignore[arg-type]
    assert (found.busiest, found.exchange) == (1, 1)
    assert found.dropped > 0.3
    assert found.model(model) == model  # type: ignore[arg-type]


def test_two_thousand_gpus_in_two_seconds() -> None:
    begun = time.process_time()
    found = coppice.train.estimate(
        "deepseek-v3",
        topology="dgx-h100",
        boxes=256,
        parallel="pp=16,dp=128,ep=64",
        global_batch=15360,
        routing="zipf:0.5",
        placement="popular",
    )
    assert time.process_time() - begun < 2
    assert found.routed[0].load.busiest > 2


def exam_mixtures() -> list[Any]:
    file = SHARED / "exam" / "public_open.jsonl"
    if not file.exists():
        return [pytest.param("", marks=pytest.mark.skip(reason=f"{file} is not there"))]
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    jobs = [(row["id"], row["job"]) for row in rows if "experts = " in row.get("job", "")]
    return [pytest.param(job, id=name) for name, job in jobs if tomllib.loads(job)["layout"].get("ep", 1) > 1]


@pytest.mark.parametrize("job", exam_mixtures())
@pytest.mark.spread(3)
def test_published_mixtures_under_skew(job: str, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(job)
    found = coppice.train.estimate(str(file), routing="zipf:1.1")
    even = coppice.train.estimate(str(file))
    assert found.routed[0].seconds >= even.simulated_seconds * (1 - 1e-9)
    padded = "capacity_factor" in job
    assert (found.routed[0].load.dropped > 0) == padded
    if padded:  # slots are as many whoever is popular
        assert found.routed[0].seconds == pytest.approx(even.simulated_seconds)
    else:
        copied = next(each for each in found.routed if each.load.copies)
        assert copied.seconds < found.routed[0].seconds
