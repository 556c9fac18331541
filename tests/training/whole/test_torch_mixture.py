"""Experts over ranks: the weights of one process, exchanges first and in pieces, packed and replicated experts."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.rank_processes import rank_codes

torch = pytest.importorskip("torch", reason="torch is not installed")

from coppice.bounds.all_to_all.concurrent_flow import concurrent_flow  # noqa: E402
from coppice.bounds.problem import Problem  # noqa: E402
from coppice.collectives import Collective  # noqa: E402
from coppice.errors import InputError  # noqa: E402
from coppice.iteration.policies.whole.lina_inference import place_experts  # noqa: E402
from coppice.topology.presets import preset  # noqa: E402
from coppice.training.torch import MixtureOfExperts  # noqa: E402
from coppice.training.torch.whole.lina_inference import PlacedExperts  # noqa: E402
from coppice.training.torch.whole.mixture.layer import ExpertLayout  # noqa: E402
from coppice.training.torch.whole.mixture.network_queue import EXCHANGE, NetworkQueue  # noqa: E402
from coppice.training.torch.whole.mixture.skewed import _rounds, planned_routes, quantised  # noqa: E402

PROGRAM = Path(__file__).resolve().parents[2] / "support" / "mixture_ranks.py"
LIKE = 2e-6
"""Sums of the same numbers in another order, and 20 steps with momentum on them."""


def run(
    mode: str, size: int, folder: Path, *, backend: str = "gloo", dies: int | None = None
) -> list[dict[str, Any]]:
    """The outcome of each rank that was not killed."""
    log = folder / "errors"
    assert rank_codes(PROGRAM, [(mode, size, folder, backend)], [log]) == [0], log.read_text()
    living = [rank for rank in range(size) if rank != dies]
    return [json.loads((folder / f"outcome-{rank}.json").read_text()) for rank in living]


def check_order(found: dict[str, Any], name: str) -> None:
    """Started as planned; pieces asked for in the order in which experts and exchanges go side by side."""
    assert found["started"] == found["planned"], name
    pieces, told = found["pieces"], found["told"]
    if f"asked for {name} combine gradient 0" not in told:
        return  # no exchange
    places = {what: place for place, what in enumerate(told)}
    asked = [places[f"asked for {name} combine gradient {piece}"] for piece in range(pieces)]
    runs = [places[f"{name} experts gradient {piece}"] for piece in range(pieces)]
    back = [places[f"asked for {name} dispatch gradient {piece}"] for piece in range(pieces)]
    assert max(asked) < runs[0]  # all pieces are on their way before the experts run on the first
    assert all(run < sent for run, sent in zip(runs, back, strict=True))
    assert all(
        sent < run for sent, run in zip(back, runs[1:], strict=False)
    )  # sent off before the next is run


@pytest.mark.parametrize(
    ("size", "backend"),
    [
        (2, "gloo"),
        pytest.param(4, "gloo", marks=pytest.mark.slow),
        pytest.param(4, "coppice", marks=pytest.mark.slow),
    ],
)
def test_experts_over_ranks_train_as_one_process_would(size: int, backend: str, tmp_path: Path) -> None:
    outcomes = run("train", size, tmp_path, backend=backend)
    for outcome in outcomes:
        assert outcome.pop("stock") < LIKE
        for name, found in outcome.items():
            assert found["distance"] < LIKE, name
            assert found["keys"], name
            assert found["started"] == outcomes[0][name]["started"], name
            assert found["predicted"] > 0, name
            assert found["closed"] in ("SGD", "AdamW"), name
            for layer in ("blocks.0.mixture", "blocks.1.mixture"):
                check_order(found, layer)
    assert outcomes[0]["top 2, pieces"]["pieces"] == 3
    assert outcomes[0]["top 2, pieces"]["sums"] > outcomes[0]["top 1"]["sums"]
    # With fewer experts than ranks their replicas sum the gradients of experts.
    assert any(each.startswith("sum") for each in outcomes[0]["few"]["started"])


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_accumulation_checkpoints_packing_and_inference(size: int, tmp_path: Path) -> None:
    for outcome in run("features", size, tmp_path):
        found = outcome["accumulated"]
        assert found["distance"] < LIKE
        assert found["worst"] < LIKE
        assert found["resumed"] == 0.0 if size == 2 else found["resumed"] < LIKE
        free, bounded = outcome["packed"]["None"], outcome["packed"]["9216"]
        assert free["counts"][0] == 4 // size
        assert free["counts"][-1] == 4
        assert sorted(set(free["counts"])) == [each for each in (1, 2, 4) if each >= 4 // size]
        assert set(bounded["counts"]) == {4 // size, 2}
        for each in (free, bounded):
            assert each["distance"] < LIKE
            assert each["replicas"] == 0.0
            assert each["ordered"]
            assert each["experts"] == each["counts"][-1]
            assert each["states"] == 1  # the optimizer knows as much of all
        for top, found in outcome["inference"].items():
            assert found["distance"] < LIKE, top
            assert max(found["loads"]) < 1.3, top
            as_estimated, odd = found["replanned"]
            assert not as_estimated, top
            assert odd[0] == "layers.1", top
        said = outcome["refused"]
        assert f"expected a model with layers of experts (MixtureOfExperts) on {size} ranks" in said[0]
        assert "found `pack_every=0`" in said[1]
        assert "found `topology` and `pack_every`: leave one out" in said[2]
        assert f"found 3 experts on {size} ranks" in said[3]
        assert "found `pieces=1`, `capacity_factor=None` and 1 experts for `top=2`" in said[4]
        assert "expected recorded paths and an expert or more to compare" in said[5]
        found = outcome["exchanges"]
        assert found["alike"]
        assert found["planned"] == [
            1,
            2,
            3,
            3,
            3,
        ]  # nothing is planned for nothing, and the second plan is known
        assert found["relayed"] == ([2] * 5 if size == 2 else [3] * 5)
        assert found["trained"] == 0.0
        assert found["plans"] > 0


def test_a_killed_rank_ends_the_others_with_an_error(tmp_path: Path) -> None:
    for outcome in run("killed", 4, tmp_path, dies=1):
        assert "expected all ranks to exchange tokens and sum gradients, found one that" in outcome["said"]
        assert outcome["step"] == 8


@pytest.mark.slow
def test_inference_on_as_many_ranks_as_experts(tmp_path: Path) -> None:
    for outcome in run("many", 16, tmp_path):
        assert outcome["1"]["distance"] < LIKE
        assert outcome["2"]["distance"] < LIKE
        assert max(outcome["1"]["loads"]) < 1.3
        assert max(outcome["1"]["replicas"]) > 4


def test_replicas_share_the_tokens_of_a_popular_expert() -> None:
    """Zipf's law with exponent 1.2, 16 experts on 16 ranks: loads as tokens are assigned, rank by rank."""
    generator = torch.Generator().manual_seed(0)
    chance = 1 / torch.arange(1, 17) ** 1.2
    chosen = [torch.multinomial(chance, 256, replacement=True, generator=generator) for _ in range(16)]
    counts = torch.stack([torch.bincount(each, minlength=16) for each in chosen])
    totals = counts.sum(dim=0)
    alone = float(totals.max() * 16 / totals.sum())
    placed = PlacedExperts(place_experts(totals.tolist(), 16))
    loads, seen = torch.zeros(16), torch.zeros(16, 16)
    for rank, own in enumerate(chosen):
        devices, places = placed.assigned(own, counts[:rank].sum(dim=0), totals)
        assert [
            placed.experts[d][p] for d, p in zip(devices.tolist(), places.tolist(), strict=True)
        ] == own.tolist()
        loads += torch.bincount(devices, minlength=16)
        seen.index_put_((own, devices), torch.ones(256), accumulate=True)
    assert alone > 5
    assert float(loads.max() / loads.mean()) < 1.3
    for expert, replicas in enumerate(placed.placement.replicas):
        shares = seen[expert][seen[expert] > 0]
        assert float(shares.sum()) == totals[expert]
        if len(shares) == replicas:  # each on a device of its own
            assert float(shares.max() - shares.min()) <= 1


@pytest.mark.parametrize(("experts", "ranks"), [(4, 4), (8, 4), (2, 8), (1, 3), (6, 6), (16, 16), (5, 1)])
def test_every_token_group_has_every_expert_once(experts: int, ranks: int) -> None:
    layout: ExpertLayout | None = ExpertLayout(experts, ranks)
    before = None
    while layout is not None:
        for rank in range(ranks):
            members = layout.token_group(rank)
            assert rank in members
            assert [e for member in members for e in layout.own(member)] == list(range(experts))
            assert all(layout.token_group(member) == members for member in members)
            assert all(expert in layout.own(layout.home(expert, rank)) for expert in range(experts))
            assert all(layout.own(other) == layout.own(rank) for other in layout.replicas(rank))
            assert len(layout.replicas(rank)) * len(members) == ranks
            if before is not None:
                partner = before.partner(rank)
                assert before.partner(partner) == rank
                assert sorted([*before.own(rank), *before.own(partner)]) == list(layout.own(rank))
        before, layout = layout, layout.doubled()
    with pytest.raises(InputError, match="expected 2 experts on a rank"):
        ExpertLayout(8, 4, 3)


def test_capacity_drops_second_choices_first() -> None:
    torch.manual_seed(0)
    layer = MixtureOfExperts(4, lambda: torch.nn.Linear(4, 4), experts=2, top=2, capacity_factor=0.5)
    tokens = torch.randn(8, 4)
    assert layer.capacity(8) == 4
    out = layer(tokens)
    logits = layer.gate(tokens)
    chance = torch.softmax(logits, dim=1)
    order = chance.argsort(dim=1, descending=True)
    room, wanted = [4, 4], torch.zeros(8, 4)
    for choice in range(2):
        for token in range(8):
            expert = int(order[token, choice])
            if room[expert]:
                room[expert] -= 1
                wanted[token] += chance[token, expert] * layer.experts[str(expert)](tokens[token])
    assert torch.allclose(out, wanted, atol=1e-6)
    with pytest.raises(InputError, match="expected experts that keep the shape of their rows"):
        MixtureOfExperts(4, lambda: torch.nn.Linear(4, 1), experts=2)(tokens)


def least_load(size: int, demands: list[list[int]]) -> float:
    """Time of an all-to-all on a ring whose links carry a unit a second, by its bound."""
    problem = Problem(preset("ring", gpus=size, gb_per_s=1), Collective.ALL_TO_ALL, demands=demands)
    return float(concurrent_flow(problem).inv_rate)


def square(size: int) -> st.SearchStrategy[list[list[int]]]:
    row = st.lists(st.integers(0, 90), min_size=size, max_size=size)
    return st.lists(row, min_size=size, max_size=size)


@settings(max_examples=25, deadline=None)
@given(st.integers(3, 5).flatmap(square))
def test_exchanges_go_by_routes_that_no_schedule_beats(matrix: list[list[int]]) -> None:
    size = len(matrix)
    pairs = [(i, j) for i in range(size) for j in range(size) if i != j]
    demands = quantised(matrix)
    assert all((demands[i][j] > 0) == (matrix[i][j] > 0) for i, j in pairs)
    if not any(map(any, demands)):
        return
    parts = planned_routes(preset("ring", gpus=size, gb_per_s=1), demands)
    loads: dict[tuple[int, int], float] = {}
    for part in parts:
        share = demands[part.ranks[0]][part.ranks[-1]] * (part.end - part.begin) / part.whole
        for link in itertools.pairwise(part.ranks):
            loads[link] = loads.get(link, 0) + share
    assert all((a - b) % size in (1, size - 1) for a, b in loads)
    assert max(loads.values()) == pytest.approx(least_load(size, [list(row) for row in demands]), rel=1e-5)
    # Every row of every block arrives once, and is passed on two rounds after it came or later.
    for pieces in (1, 3):
        at: dict[tuple[tuple[int, int], int, int], int] = {}
        for number, hops in enumerate(_rounds(parts, matrix, pieces)):
            for hop in hops:
                for row in range(hop.begin, hop.end):
                    came = at.get((hop.block, row, hop.source), -2 if hop.source == hop.block[0] else number)
                    assert came <= number - 2
                    assert (hop.block, row, hop.target) not in at
                    at[hop.block, row, hop.target] = number
        arrived = {(block, row) for block, row, rank in at if rank == block[1]}
        assert arrived == {((i, j), row) for i, j in pairs for row in range(matrix[i][j])}


class Alone:
    """What stands for a process group where nothing is sent."""


def test_an_exchange_passes_sums_whose_gradients_come_later() -> None:
    """Orders that the program does not follow: what is started depends on the program alone, and nothing hangs."""
    queue = NetworkQueue(torch.device("cpu"), 20.0, lambda *_: NoWork())
    try:
        rows = torch.zeros(2, 1)
        # Sum 0 is there and goes first; sum 1 is foreseen before the first exchange, and comes after the second one.
        queue.begin((0, 1, EXCHANGE, 2, EXCHANGE, 3))
        queue.ready(0, "sum 0", list)
        first = queue.post("first", rows, [1, 1], [1, 1], Alone())
        first.wait()
        queue.ready(2, "sum 2", list)
        second = queue.post("second", rows, [1, 1], [1, 1], Alone())
        second.wait()
        queue.post("third", rows, [1, 1], [1, 1], Alone()).wait()  # nobody foresaw it
        queue.ready(1, "sum 1", list)
        queue.ready(3, "sum 3", list)
        queue.drain()
        assert queue.started[:2] == ["sum 0", "first"]
        assert queue.started.index("sum 2") < queue.started.index("second") < queue.started.index("third")
        assert queue.started[-2:] == ["sum 1", "sum 3"]
        queue.begin((EXCHANGE, 0))
        queue.ready(0, "alone", list)
        queue.drain()  # an exchange that was foreseen does not come
        assert queue.started == ["alone"]
    finally:
        queue.close()


class NoWork:
    """Something that is over."""

    def wait(self) -> None:
        pass
