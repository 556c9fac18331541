"""Probes tell parts apart as they claim, as code finds that does not know them; faults are named right."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import coppice
from coppice import InputError
from coppice.diagnosis.design import ProbeDesign, design_probes
from coppice.diagnosis.inference import infer
from coppice.diagnosis.probes import candidates
from coppice.diagnosis.results import read_results, with_rates
from coppice.diagnosis.simulated import measure

NETWORKS = {
    "box": ("dgx-a100", {}),
    "boxes": ("dgx-a100", {"boxes": 2}),
    "rails": ("dgx-h100", {"boxes": 4}),
    "mi250": ("mi250", {}),
    "torus": ("torus", {"dims": "3x3"}),
    "ring": ("ring", {"gpus": 5}),
    "fat-tree": ("fat-tree", {}),
}


@pytest.fixture(scope="module", params=NETWORKS)
def design(request: pytest.FixtureRequest) -> ProbeDesign:
    name, options = NETWORKS[request.param]
    return design_probes(coppice.load(name, **options))


def slowed(design: ProbeDesign, name: str) -> frozenset[tuple[int, int]]:
    """Flows that are slower by more than nothing when a part loses a tenth, from rates computed anew."""
    rates = measure(design, {name: 0.9}, spread=0.0)
    found = {
        (number, int(flow))
        for number, (now, before) in enumerate(zip(rates, design.healthy, strict=True))
        for flow in np.flatnonzero(now < before * (1 - 1e-9))
    }
    # What slows all flows over links of one rate is what software makes of such links
    widths: dict[int, set[tuple[int, int]]] = {}
    for number, each in enumerate(design.rounds):
        for flow, links in enumerate(np.split(each.links, each.first[1:-1])):
            narrow = int(design.topology.capacity[links].min())
            widths.setdefault(narrow, set()).add((number, flow))
    return frozenset(found - {flow for all_ in widths.values() if all_ <= found for flow in all_})


def test_what_is_told_apart_slows_other_flows(design: ProbeDesign) -> None:
    names = design.parts.names
    by_flows: dict[frozenset[tuple[int, int]], set[int]] = {}
    for part, name in enumerate(names):
        by_flows.setdefault(slowed(design, name), set()).add(part)
    alike = {frozenset(each) for each in design.undistinguished}
    unseen = set(design.unseen)
    found = {frozenset(each - unseen) for each in by_flows.values() if len(each - unseen) > 1}
    assert found == alike


def test_the_number_of_rounds_is_proved_where_it_says_so(design: ProbeDesign) -> None:
    assert design.fewest <= len(design.rounds)
    if design.fewest < len(design.rounds) or len(design.rounds) == 1:
        return
    offered = list(candidates(design.topology))
    every = _alike(design, [(each.src, each.dst) for each in offered])
    for some in combinations(offered, len(design.rounds) - 1):
        assert _alike(design, [(each.src, each.dst) for each in some]) > every
        break  # the first is enough to see a proof of the wrong thing; all are tried by the design


def _alike(design: ProbeDesign, flows: list[tuple[np.ndarray, np.ndarray]]) -> int:
    """NetworkParts that are alike, or not seen, in rounds of given flows."""
    from coppice.diagnosis.design import design_of

    named = [
        (str(place), list(zip(src.tolist(), dst.tolist(), strict=True)))
        for place, (src, dst) in enumerate(flows)
    ]
    made = design_of(design.topology, named)
    return sum(len(each) - 1 for each in made.undistinguished) + len(made.unseen)


@pytest.mark.parametrize("faults", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_single_faults_are_named_and_health_gives_no_alarm(design: ProbeDesign, faults: int) -> None:
    draw = np.random.default_rng(7)
    alike = {part: set(each) for each in design.undistinguished for part in each}
    seen = [part for part in range(len(design.parts)) if part not in design.unseen]
    right = 0
    for number in range(faults):
        part = seen[int(draw.integers(len(seen)))]
        share = float(draw.uniform(0.3, 0.7))
        found = infer(design, measure(design, {design.parts.names[part]: share}, spread=0.02, seed=number))
        names = {design.parts.names[each] for each in alike.get(part, {part})}
        right += len(found.culprits) == 1 and found.culprits[0].name in names
        assert found.confidence < 0.99 or not found.culprits or right
    assert right >= faults - 1
    for number in range(faults // 2):
        assert not infer(design, measure(design, {}, spread=0.02, seed=number)).culprits


def test_two_faults_are_named() -> None:
    design = design_probes(coppice.load("dgx-h100", boxes=4))
    slow = {"box1/gpu3 -> rail3": 0.5, "box2/gpu6": 0.6}
    found = infer(design, measure(design, slow, spread=0.02))
    assert {each.name for each in found.culprits} == slow.keys()
    assert all(abs(each.share - slow[each.name]) < 0.06 for each in found.culprits)


def test_a_lost_link_carries_nothing() -> None:
    whole = coppice.load("torus", dims="3x3")
    design = design_probes(whole)
    now = coppice.degrade(whole, remove=[("gpu0", "gpu1")], one_way=True)
    assert infer(design, measure(design, now=now)).culprits[0].name == "gpu0 -> gpu1"


def test_software_that_reaches_less_of_every_rate_is_no_fault() -> None:
    design = design_probes(coppice.load("dgx-h100", boxes=4))
    rates = [each * np.where(each > 100, 0.8, 0.93) for each in measure(design, spread=0.01)]
    assert not infer(design, rates).culprits


@pytest.mark.parametrize(("inside", "outside"), [(0.65, 0.78), (0.75, 0.91), (0.5, 0.95)])
def test_a_slow_process_may_slow_slow_flows_less(inside: float, outside: float) -> None:
    """Buffers hide from them that it stands still; in this measure of eight ranks a pair of parts looked likelier."""
    design = design_probes(coppice.load("dgx-a100", boxes=2))
    name = "box1/gpu2"
    rank = design.topology.rank[design.topology.node_index[name]]
    for seed in range(4):
        rates = measure(design, {}, spread=0.005, seed=seed)
        for each, healthy, rate in zip(design.rounds, design.healthy, rates, strict=True):
            passes = (each.src == rank) | (each.dst == rank)
            rate *= np.where(passes, np.where(healthy > 100, inside, outside), 1.0)
        found = infer(design, rates)
        assert [culprit.name for culprit in found.culprits] == [name]
        assert found.confidence > 0.9
        assert abs(found.culprits[0].share - inside) < 0.05


def test_files_keep_the_answer_and_take_medians(tmp_path: Path) -> None:
    design = design_probes(coppice.load("dgx-a100", boxes=2))
    rates = measure(design, {"box1/nic2": 0.6})
    record = with_rates(design.record(), rates)
    for probe in record["probes"]:
        probe["measured_gb_per_s"] = [probe["measured_gb_per_s"]] * 2 + [1e-3]
    record["probes"][5]["measured_gb_per_s"] = None
    path = tmp_path / "results.json"
    path.write_text(json.dumps(record))
    again, measured = read_results(path)
    assert np.isnan(measured[0][5])
    assert again.undistinguished == design.undistinguished
    assert infer(again, measured).culprits[0].name == "box1/nic2"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank_pair": [0, 99]}, "ranks 0 .. 3, found round 0 and ranks 0, 99"),
        ({"rank_pair": [1, 1]}, "expected two ranks"),
        ({"round_number": 7}, "in a round of 2"),
        ({"measured_gb_per_s": "fast"}, "expected probes with rates"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    record = design_probes(coppice.load("star", gpus=4)).record()
    record["probes"][0].update(change)  # type: ignore[typeddict-item]
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match=message):
        read_results(path)


def test_no_rates_are_refused() -> None:
    design = design_probes(coppice.load("star", gpus=4))
    with pytest.raises(InputError, match="expected measured rates above 0"):
        infer(design, [np.full(len(each.src), np.nan) for each in design.rounds])
    with pytest.raises(InputError, match="expected a rate for every flow"):
        infer(design, [])
