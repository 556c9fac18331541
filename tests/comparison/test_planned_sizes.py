"""Plans for sizes: never slower than what was looked at, never faster than the least time."""

from __future__ import annotations

from fractions import Fraction
from math import inf
from typing import Any

import pytest

import coppice
from coppice import bound
from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.comparison import compare, measurement, planned, promising
from coppice.comparison.measurement import Bodies, candidates, fastest_value
from coppice.comparison.plan_sets import plan_set
from coppice.comparison.planned import _of_the_catalogue, _unlike, plan_for
from coppice.comparison.sizes.effort import Effort
from coppice.comparison.sizes.shaped import ShapedSchedules
from coppice.errors import InputError
from coppice.planners.alternatives import Alternative, alternatives
from coppice.planners.choice import PlannerOptions
from coppice.planners.ordering import plainly
from coppice.schedule.messages import Messages
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation import simulator
from coppice.simulation.known_times import KnownTimes
from coppice.simulation.least_time import LeastTimes
from coppice.simulation.models import model_of
from coppice.simulation.simulator import fastest
from coppice.simulation.timeline import Timeline
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset

CASES = [
    ("dgx-1v", {}, "all_gather"),
    ("dgx-1v", {}, "all_reduce"),
    ("star", {"gpus": 6}, "all_to_all"),
    ("mi250", {}, "broadcast"),
    ("dgx-a100", {"boxes": 2}, "gather"),
    ("torus", {"dims": (3, 3)}, "reduce_scatter"),
]


@pytest.mark.spread(2)
@pytest.mark.parametrize(("name", "more", "collective"), CASES)
def test_no_algorithm_is_faster_and_the_gap_is_that_of_the_time(
    name: str, more: dict[str, object], collective: str
) -> None:
    problem = Problem(
        preset(name, **more), collective, root=0 if collective in ("broadcast", "gather") else None
    )
    for size in (4096, 2**20):
        found = plan_for(problem, size, ring=False)
        own = fastest(found.result.plan.body, size, model=model_of(None)).time_us
        rows = compare(problem, sizes=[size], jobs=1, in_network=False, relay_gpus=False)
        best = rows.best(size)
        assert best is not None
        assert own <= best.time_us * (1 + 1e-9), best.algorithm
        assert found.preferred.time_us == {size: own}
        assert found.gap(size) == pytest.approx(own / found.least[size].time_us - 1)
        assert found.gap(size) > -1e-9
        assert found.result.report.ok


def test_efforts_only_add_what_is_looked_at() -> None:
    problem = Problem(preset("dgx-a100", boxes=2), "all_reduce")
    quick, normal = (plan_for(problem, "16K", effort=each, ring=False) for each in ("quick", "normal"))
    assert quick.preferred.taken.planner is None
    assert normal.preferred.time_us[2**14] <= quick.preferred.time_us[2**14]
    assert normal.result.plan.planner == normal.preferred.taken.planner
    with pytest.raises(InputError, match="expected an effort of quick, normal, high"):
        plan_for(problem, "16K", effort="much")


def test_switches_that_help_are_counted_among_what_is_possible() -> None:
    star = coppice.load("dgx-h100", boxes=1)
    found = plan_for(Problem(star, "all_reduce"), "1K,64M", in_network=True, ring=False)
    assert all(found.gap(size) > -1e-9 for size in found.least)


CLUSTERS = [
    ("dgx-h100", {"boxes": 1}),
    ("dgx-h100", {"boxes": 2}),
    ("dgx-a100", {"boxes": 2}),
    ("dgx-1v", {}),
    ("mi250", {}),
    ("star", {"gpus": 12}),
    ("fat-tree", {"leaves": 3, "gpus_per_leaf": 4}),
    ("ring", {"gpus": 8}),
    ("complete", {"gpus": 8}),
    ("hypercube", {"dimension": 3}),
    ("dgx-h100", {"boxes": 4}),
]
QUICK = {"all_reduce": ("ring",), "broadcast": ("ring", "hypercube")}
"""Clusters of a quick run: links alone; one box of NVSwitch is among both."""


def left_out_cases() -> list[Any]:
    found = []
    for collective, names in QUICK.items():
        for name, more in CLUSTERS:
            quick = name in names or more == {"boxes": 1}
            marks = () if quick else pytest.mark.slow
            case = f"{collective}-{name}-{more}"
            found.append(pytest.param(name, more, collective, not quick, marks=marks, id=case))
    return found


def search_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans for sizes try every candidate to the end."""
    full = measurement.fastest_value

    def unhurried(*given: Any, below_us: float, most_rows: float, times: Any) -> Any:
        assert below_us > 0
        assert times is not None
        assert most_rows == inf
        return full(*given)

    monkeypatch.setattr(planned, "_alike", lambda bodies: bodies)
    monkeypatch.setattr(planned, "fastest_value", unhurried)


@pytest.mark.parametrize(("name", "more", "collective", "sized"), left_out_cases())
def test_what_is_left_out_is_not_faster(
    name: str, more: dict[str, object], collective: str, sized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Candidates that cannot get below the best so far are given up early: the plan is the one of a full search.

    What is made for the size alone, which takes most of the time and is the same in both, is made if it is `sized`.
    """
    if not sized:
        monkeypatch.setattr(planned.SizeSearch, "at", lambda *_: [])
    problem = Problem(preset(name, **more), collective, root=0 if collective == "broadcast" else None)
    sizes = (2**14, 2**25)
    found = [plan_for(problem, size, ring=False).preferred for size in sizes]
    search_in_full(monkeypatch)
    for size, short in zip(sizes, found, strict=True):
        whole = plan_for(problem, size, ring=False).preferred
        assert short.time_us[size] <= whole.time_us[size] * (1 + 1e-9)
        assert short.taken.name == whole.taken.name


def test_the_search_simulates_a_fifth_of_the_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees in many segments and rings in many pieces are what a full search spends its time on."""
    problem = Problem(preset("dgx-h100", boxes=2), "all_reduce")
    counted: list[int] = []
    run = simulator.run

    def counting(messages: Messages, **given: Any) -> Timeline:
        counted.append(len(messages.src))
        return run(messages, **given)

    monkeypatch.setattr(simulator, "run", counting)
    monkeypatch.setattr(
        planned.SizeSearch, "at", lambda *_: []
    )  # what is made for the size alone is not meant
    short = plan_for(problem, "16M", ring=False).preferred
    few = sum(counted)
    counted.clear()
    search_in_full(monkeypatch)
    whole = plan_for(problem, "16M", ring=False).preferred
    assert short.time_us == whole.time_us
    assert few < sum(counted) / 5


def test_a_time_to_undercut() -> None:
    """What cannot be reached is given up with a longer time; what can is found as without."""
    problem = Problem(preset("dgx-h100", boxes=2), "all_reduce")
    model, size = model_of(None), 2**24
    for algorithm in ("double-binary-tree", "best-ring", "plink"):
        (variant, *_) = candidates(problem, [algorithm], order="rank")
        bodies = Bodies(problem, variant, bound(problem))
        parameters, time_us = fastest_value(bodies, size, model)
        assert fastest_value(bodies, size, model, below_us=time_us * 1.001) == (parameters, time_us)
        for share in (0.99, 0.5, 0.1):
            _, given_up = fastest_value(bodies, size, model, below_us=time_us * share)
            assert given_up >= time_us * share
            body = bodies.body(1)
            assert fastest(body, size, model=model, below_us=time_us * share).time_us >= time_us * share


def test_orders_and_layouts_that_come_to_the_same() -> None:
    """Trees of boxes are those of the layout that is taken by itself; other radices and algorithms are not alike."""
    problem = Problem(preset("dgx-h100", boxes=4), "all_reduce")

    def alike(algorithm: str, **parameters: str | int) -> object:
        variants = candidates(problem, [algorithm], order="rank")
        (variant,) = (each for each in variants if each.parameters == parameters)
        return planned._alike(Bodies(problem, variant, bound(problem)))

    assert alike("double-binary-tree") == alike("double-binary-tree", layout="boxes")
    assert alike("double-binary-tree") != alike("double-binary-tree", layout="flat")
    assert alike("2d-torus") == alike("two-level", inside="ring")
    assert alike("2d-torus") != alike("two-level")
    assert alike("recursive-multiplying", radix=2) != alike("recursive-multiplying", radix=8)


def test_links_carry_less_in_more_segments() -> None:
    """The root of a circulant broadcast sends (S - 1 + ceil(lg P))/S M: what one segment takes rules nothing out."""
    links = [
        Link(src=f"gpu{rank}", dst="nvs", gb_per_s=Fraction(rate)) for rank, rate in enumerate((24, 48, 48))
    ]
    gpus = [Node(id=f"gpu{rank}") for rank in range(3)]
    box = Topology.of("box", [*gpus, Node(id="nvs", kind=NodeKind.SWITCH)], links)
    problem = Problem(box, "broadcast", root=0)
    (variant,) = candidates(problem, ["circulant"], order="rank")
    bodies, size, model = Bodies(problem, variant, bound(problem)), 2**22, model_of("alpha-beta")
    least = planned._least_busy_us(bodies, size, model)
    for segments in (1, 2, 16, 256):
        assert planned._busy_us(bodies.body(segments), size, model) >= least * (1 - 1e-9)
    assert least == pytest.approx(size / 24e3)
    _, time_us = fastest_value(bodies, size, model_of(None))
    assert plan_for(problem, size, ring=False).preferred.time_us[size] <= time_us


@pytest.mark.parametrize("size", [2**10, pytest.param(2**18, marks=pytest.mark.slow)])
def test_gpus_may_relay_for_the_catalogue(size: int) -> None:
    """On a torus most algorithms send between GPUs without a cable: with `relay_gpus` those are tried, too."""
    problem = Problem(preset("torus", dims=(3, 3)), "all_reduce")
    alone, relayed = (plan_for(problem, size, relay_gpus=each, ring=False) for each in (False, True))
    assert alone.preferred.time_us[size] >= relayed.preferred.time_us[size]
    assert relayed.result.report.ok
    assert relayed.gap(size) > -1e-9
    rows = compare(problem, sizes=[size], jobs=1, in_network=False, relay_gpus=True)
    best = rows.best(size)
    assert best is not None
    assert relayed.preferred.time_us[size] <= best.time_us * (1 + 1e-9)
    assert (relayed.result.plan.planner != "forest") or size > 2**10
    if relayed.preferred.taken.planner:
        assert relayed.result.plan.parameters["relay_gpus"] in (True, False)


def test_gpus_that_may_relay_do_not_where_nothing_needs_it() -> None:
    star = plan_for(Problem(preset("star", gpus=6), "all_reduce"), "1K", relay_gpus=True, ring=False)
    assert star.result.plan.parameters.get("relay_gpus") is not True
    with pytest.raises(InputError, match="forest decides by itself"):
        plan_for(star.result.problem, "1K", algorithm="forest", relay_gpus=True)


def test_sets_of_plans_with_gpus_that_relay() -> None:
    problem = Problem(preset("torus", dims=(3, 3)), "all_reduce")
    plans = plan_set(problem, "1K:16M:128", relay_gpus=True, ring=False).plans
    assert all(row.simulated_seconds <= 1.03 * row.fastest_seconds for row in plans.sizes)
    assert any(each.plan.planner != "forest" for each in plans.ranges)


@pytest.mark.parametrize(("name", "more"), [("dgx-a100", {"boxes": 2}), ("mi250", {}), ("star", {"gpus": 5})])
def test_variants_that_are_left_out_take_as_long_as_one_that_stays(
    name: str, more: dict[str, object]
) -> None:
    problem = Problem(preset(name, **more), "all_reduce")
    choice = PlannerOptions.of(problem)
    made = list(alternatives(problem, choice, bound_of(problem)))
    kept = _unlike(iter(made))
    assert kept[0] is made[0]

    def times(one: Alternative) -> list[float]:
        assumed = model_of(None)
        return [fastest(one.made.body, size, model=assumed).time_us for size in (1024, 2**20)]

    stays = [times(each) for each in kept]
    assert all(times(each) in stays for each in made)


def test_on_many_ranks_algorithms_that_were_not_tried_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(preset("dgx-h100", boxes=17), "broadcast", root=3)
    effort = Effort(catalogue=1200, ordering=0, growing=0, matching=0, reworking=0)
    found: dict[str, dict[str, None]] = {"some": {}, "all": {}}
    least = {size: LeastTimes(problem, model_of(None)).at(size).time_us for size in (4096,)}
    times = {}
    for name, budget, far in (("some", effort.catalogue, promising._FAR), ("all", 2**20, inf)):
        monkeypatch.setattr(promising, "_FAR", far)
        (taken,) = _of_the_catalogue(
            problem, KnownTimes(model_of(None)), {4096: inf}, least, budget, found[name], relaying=False
        )
        times[name] = fastest(taken.made.body, 4096, model=model_of(None)).time_us
    assert "pipeline" in found["some"]
    assert not found["all"]
    assert times["all"] == pytest.approx(times["some"])  # what was tried first is the fastest


def test_reductions_over_boxes_are_told_apart_backwards() -> None:
    """A reduction is cut into chunks as its mirror, the broadcast, is, whatever it takes out of order."""
    topology, model, size = preset("dgx-a100", boxes=4), model_of(None), 2**20
    turns = {}
    for collective in ("broadcast", "reduce"):
        problem = Problem(topology, collective, root=0)
        shaped = ShapedSchedules(problem, model, lambda *_: inf)
        (found,) = shaped.over_boxes(size, inf)
        turns[collective] = found.one.made.parameters["turns"]
        assert found.hoped_us <= found.time_us
    assert turns["reduce"] == turns["broadcast"]
    assert found.hoped_us < 0.97 * found.time_us


def test_a_long_reduction_over_boxes_is_carried_out_as_its_mirror() -> None:
    """Without being held back it would take a twentieth longer than the broadcast."""
    problem, model, size = Problem(preset("dgx-a100", boxes=4), "reduce", root=0), model_of(None), 2**26
    (found,) = ShapedSchedules(problem, model, lambda *_: inf).over_boxes(size, inf)
    body = found.one.made.body
    assert isinstance(body, Schedule)
    assert body.num_transfers > 2**15
    assert verify_schedule(body).ok
    freely_us = fastest(plainly(body), size, model=model, pieces=1, keep_hops=False).time_us
    assert found.time_us < 0.98 * freely_us
    assert found.time_us < 1.04 * LeastTimes(problem, model).at(size).time_us


@pytest.mark.parametrize(
    ("name", "more", "size", "made"),
    [
        ("dgx-h100", {"boxes": 2}, 2**16, "rail"),
        ("torus", {"dims": (4, 4)}, 2**18, "all ranks alike"),
        ("dragonfly", {"groups": 3, "routers_per_group": 2, "gpus_per_router": 1}, 2**16, "block"),
    ],
)
def test_all_to_alls_are_made_for_their_size(name: str, more: dict[str, Any], size: int, made: str) -> None:
    found = plan_for(preset(name, **more), size, collective="all_to_all")
    assert made in found.preferred.taken.name
    assert found.result.report.ok
    assert found.gap(size) < 0.05


@pytest.mark.parametrize("boxes", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_a_plan_of_one_size_is_hardly_slower_than_that_of_several(boxes: int) -> None:
    """What is next to the fastest is timed in full, and what suits smaller messages, cut in pieces, is looked at."""
    problem = Problem(preset("dgx-h100", boxes=boxes), "all_reduce")
    alone, several = (
        plan_for(problem, sizes, relay_gpus=None).preferred.fastest[2**16][1]
        for sizes in ([2**16], [2**14, 2**16])
    )
    assert alone <= several * 1.02


def test_orders_of_the_same_blocks_do_not_keep_others_from_being_searched() -> None:
    """Blocks are in an order for each protocol; the flow, ordered, reaches the least time here."""
    found = plan_for(preset("dgx-1v"), 2**20, collective="all_to_all")
    assert found.gap(2**20) < 0.005
