"""The frame of all methods: what they are asked and answer, and how it is verified and measured."""

from __future__ import annotations

import dataclasses
import itertools
import random
import sys
import types
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coppice
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError, UnreachableError
from coppice.planners.choice import from_catalogue
from coppice.planners.synthesis.groups import read_groups, synthesize_groups
from coppice.planners.synthesis.mip import program as module
from coppice.planners.synthesis.mip.program import MixedProgram, SearchLimits
from coppice.planners.synthesis.synthesizing import (
    METHODS,
    Request,
    Status,
    Synthesis,
    SynthesisMethod,
    method_named,
)
from coppice.schedule.verification.verify import verify
from coppice.simulation.jobs import Job, simulate_together
from coppice.simulation.models import Model
from coppice.topology.model import Link, Node, Topology
from coppice.topology.presets import preset
from reference.strategies import FAMILIES, seeded_problem

RING = "ring"
Run = Callable[[Request], Synthesis]


class MadeUpOptions(msgspec.Struct, frozen=True, kw_only=True):
    size: int = 1
    fast: bool = False


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], list[Request]]:
    """A method `made-up` that answers as it is told, and remembers what it was asked."""

    def install(run: Run) -> list[Request]:
        asked: list[Request] = []

        def remembered(request: Request) -> Synthesis:
            asked.append(request)
            return run(request)

        module = types.ModuleType("made_up_method")
        module.METHOD = SynthesisMethod(  # type: ignore[attr-defined]
            name="made-up",
            about="answers as told",
            collectives=(Collective.ALL_GATHER,),
            options=MadeUpOptions,
            run=remembered,
        )
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(METHODS, "made-up", module.__name__)
        return asked

    return install


def by_ring(request: Request) -> Synthesis:
    made = from_catalogue(request.problem, "ring")
    return Synthesis(
        status=Status.SAT,
        body=made.body,
        parameters={"size": request.options.size},
        details={"rings": 1},
        words=(("rings", "1"),),
    )


def test_a_schedule_is_verified_and_measured(answers) -> None:
    asked = answers(by_ring)
    result = coppice.synthesize(RING, "all_gather", method="made-up", options={"size": "3"}, seed=5)
    assert asked[0].options == MadeUpOptions(size=3)
    assert asked[0].seed == 5
    assert asked[0].seconds_left is None
    assert result.status is Status.SAT
    assert result.plan.parameters == {"size": 3}
    record = result.record()
    assert record["status"] == "sat"
    assert record["verified"] is True
    assert record["method"] == record["planner"] == "made-up"
    assert record["rings"] == 1
    # One ring in one direction has half of what both directions have.
    assert result.gap == 0.5
    assert Fraction(str(record["loss"])) == Fraction(1, 2)
    coppice.verify(result.plan)
    assert "made-up" in repr(result)


@pytest.mark.parametrize("status", [Status.UNSAT, Status.UNKNOWN])
def test_nothing_found_is_said_and_has_no_plan(answers, status: Status) -> None:
    answers(lambda _: Synthesis(status=status, details={"why": "because"}))
    result = coppice.synthesize(RING, "all_gather", method="made-up")
    record = result.record()
    assert record["status"] == status.value
    assert record["gap"] is None
    assert record["why"] == "because"
    assert record["collective"] == "all_gather"
    assert status.value in repr(result)
    with pytest.raises(InputError, match=f"found no schedule \\({status.value}\\)"):
        result.plan  # noqa: B018


def test_a_wrong_schedule_is_not_let_through(answers) -> None:
    def wrong(request: Request) -> Synthesis:
        made = by_ring(request)
        rows = made.body.num_transfers - 1
        columns = {
            name: getattr(made.body, name)[:rows] for name in ("src", "dst", "chunk", "op", "path", "step")
        }
        body = dataclasses.replace(made.body, **columns, after_start=made.body.after_start[: rows + 1])
        return Synthesis(status=Status.SAT, body=body)

    answers(wrong)
    with pytest.raises(CheckError):
        coppice.synthesize(RING, "all_gather", method="made-up")


def test_the_time_limit_is_a_deadline(answers) -> None:
    asked = answers(by_ring)
    coppice.synthesize(RING, "all_gather", method="made-up", time_limit_s=1000.0)
    left = asked[0].seconds_left
    assert left is not None
    assert 0 < left <= 1000
    with pytest.raises(InputError, match="above 0 seconds"):
        coppice.synthesize(RING, "all_gather", method="made-up", time_limit_s=0.0)


def test_what_cannot_be_asked(answers) -> None:
    answers(by_ring)
    with pytest.raises(InputError, match=r"a method of synthesis \(sccl, .*made-up\), found 'nonsense'"):
        coppice.synthesize(RING, "all_gather", method="nonsense")
    with pytest.raises(InputError, match="made-up synthesises all_gather, found broadcast"):
        coppice.synthesize(RING, "broadcast", method="made-up")
    with pytest.raises(InputError, match="found `steps`: it takes `size`, `fast`"):
        coppice.synthesize(RING, "all_gather", method="made-up", options={"steps": 3})
    with pytest.raises(InputError, match="options that method made-up can use"):
        coppice.synthesize(RING, "all_gather", method="made-up", options={"size": "many"})


def test_ranks_that_cannot_be_reached(answers) -> None:
    asked = answers(by_ring)
    apart = Topology.of(
        "apart",
        [Node(id=name) for name in "abcd"],
        [Link(src=a, dst=b, gb_per_s=Fraction(1)) for a, b in ("ab", "cd")],
    )
    with pytest.raises(UnreachableError):
        coppice.synthesize(apart, "all_gather", method="made-up")
    assert not asked


def test_progress_is_told(answers) -> None:
    def talkative(request: Request) -> Synthesis:
        request.report("thinking")
        return by_ring(request)

    answers(talkative)
    heard: list[str] = []
    coppice.synthesize(RING, "all_gather", method="made-up", on_stage=heard.append)
    assert "thinking" in heard
    assert any("made-up" in words for words in heard)


def test_method_named() -> None:
    assert method_named("sccl").name == "sccl"


def knapsack(seed: int) -> tuple[MixedProgram, list[int], list[list[int]], list[int]]:
    """Random values, weights in three sacks, and their room."""
    rng = random.Random(seed)
    values = [rng.randint(1, 20) for _ in range(8)]
    weights = [[rng.randint(0, 9) for _ in values] for _ in range(3)]
    rooms = [rng.randint(5, 30) for _ in weights]
    program = MixedProgram()
    columns = [program.column(cost=-float(value), upper=1.0, whole=True) for value in values]
    for row, room in zip(weights, rooms, strict=True):
        program.row({c: float(w) for c, w in zip(columns, row, strict=True) if w}, most=float(room))
    return program, values, weights, rooms


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_finds_what_trying_everything_finds(seed: int) -> None:
    program, values, weights, rooms = knapsack(seed)
    best = max(
        sum(v for v, x in zip(values, chosen, strict=True) if x)
        for chosen in itertools.product((0, 1), repeat=len(values))
        if all(
            sum(w for w, x in zip(row, chosen, strict=True) if x) <= room
            for row, room in zip(weights, rooms, strict=True)
        )
    )
    found = program.solve(SearchLimits())
    assert found.optimal
    assert not found.infeasible
    assert round(-found.objective) == best
    assert found.gap == pytest.approx(0, abs=1e-3)


def test_says_that_there_is_no_solution() -> None:
    program = MixedProgram()
    x = program.column(upper=1.0, whole=True)
    y = program.column(upper=1.0, whole=True)
    program.row({x: 2.0, y: 2.0}, least=1.0, most=1.0)
    found = program.solve(SearchLimits())
    assert found.infeasible
    assert found.values is None
    assert found.gap is None


def test_a_row_is_there_once() -> None:
    program = MixedProgram()
    x, y = program.column(), program.column()
    for terms in ({x: 1.0, y: 2.0}, {y: 2.0, x: 1.0}, {}):
        program.row(terms, most=3.0)
    assert program.num_rows == 1


def test_keeps_a_start_when_there_is_no_time() -> None:
    program, values, *_ = knapsack(1)
    found = program.solve(SearchLimits(seconds=0.0), start=dict.fromkeys(range(len(values)), 0.0))
    assert not found.optimal
    assert not found.interrupted


@pytest.mark.parametrize("known", [True, False])
def test_ctrl_c_gives_the_best_found(monkeypatch: pytest.MonkeyPatch, *, known: bool) -> None:
    program, values, *_ = knapsack(2)
    solve = module.run_interruptibly

    def interrupted(solver: Any) -> None:
        if known:
            solve(solver)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run_interruptibly", interrupted)
    found = program.solve(SearchLimits())
    assert found.interrupted
    assert not found.optimal
    if known:
        assert found.values is not None
        assert -found.objective == pytest.approx(float(np.array(values) @ found.values.round()))
    else:
        assert found.values is None


COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(
    ("name", "parameters", "groups"),
    [
        ("star", {"gpus": 6}, "3"),
        ("star", {"gpus": 6}, "2:3"),
        ("dgx-a100", {"boxes": 2}, "8"),
        ("dgx-h100", {"boxes": 2}, "2:8"),
        ("torus", {"dims": (4, 4)}, "4"),
        ("dgx-1v", {}, "0-3/4-7"),
        ("ring", {"gpus": 3}, "3"),
        ("star", {"gpus": 2}, "1"),
    ],
)
def test_every_group_has_a_plan_and_none_beats_the_bound(
    collective: str, name: str, parameters: dict[str, int], groups: str
) -> None:
    topology = preset(name, **parameters)
    members = read_groups(groups, topology.num_ranks)
    found = synthesize_groups(topology, collective, members, seeds=3)
    assert [plan.topology.num_ranks for plan in found.plans] == [len(group) for group in members]
    assert all(verify(plan).ok for plan in found.plans)
    assert found.ns_per_byte >= found.least_ns_per_byte
    again = synthesize_groups(topology, collective, members, seeds=3)
    assert [plan.schedule.chunk.tolist() for plan in again.plans] == [
        plan.schedule.chunk.tolist() for plan in found.plans
    ]


def test_groups_that_do_not_share_attain_the_bound() -> None:
    found = synthesize_groups(preset("star", gpus=4), "all_gather", [[0, 1], [2, 3]])
    assert found.gap == 0
    across = synthesize_groups(preset("dgx-h100", boxes=4), "all_reduce", read_groups("4:8", 32))
    assert across.gap < 0.06


def test_groups_run_together_in_the_simulator() -> None:
    topology = preset("dgx-a100", boxes=2)
    found = synthesize_groups(topology, "all_gather", read_groups("2:8", 16), seeds=3)
    jobs = [Job(name=str(k), body=plan.body, size_bytes=1 << 26) for k, plan in enumerate(found.plans)]
    together = simulate_together(jobs, model=Model(), topology=topology)
    least = float(found.least_ns_per_byte) * (1 << 26) / 1e3
    assert together.time_us >= least


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("3", "divides 8 ranks, found 3 x 1"),
        ("4:4", "found 4 x 4"),
        ("0-3/4-6", "found 7 ranks in 2 groups"),
        ("0-3/3-7", "each of 8 ranks once"),
        ("a/b", "found 'a'"),
        ("0", "found 0 x 1"),
    ],
)
def test_groups_that_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_groups(text, 8)


def test_groups_that_cannot_be_served() -> None:
    ring = preset("ring", gpus=4)
    with pytest.raises(UnreachableError, match="without other ranks"):
        synthesize_groups(ring, "all_gather", [[0, 2], [1, 3]])
    with pytest.raises(InputError, match="of one size"):
        synthesize_groups(ring, "all_gather", [[0], [1, 2, 3]])
    with pytest.raises(InputError, match="each of 4 ranks once"):
        synthesize_groups(ring, "all_gather", [[0, 1]])
    with pytest.raises(InputError, match="found broadcast"):
        synthesize_groups(ring, "broadcast", [[0, 1], [2, 3]])


@pytest.mark.parametrize("block", range(4))
@pytest.mark.parametrize(("method", "options"), [("syccl", {}), ("tacos", {"seeds": 3})])
def test_random_networks(method: str, options: dict[str, int], block: int) -> None:
    served = 0
    for seed in range(15 * block, 15 * block + 15):
        problem = seeded_problem(seed, FAMILIES, 8)
        if problem.collective not in method_named(method).collectives:
            continue
        try:
            found = coppice.synthesize(problem, method=method, options=options)
        except InputError:  # not connected without other GPUs, or of different weights
            continue
        assert found.planned is not None
        assert found.planned.report.ok
        assert found.gap is not None
        assert found.gap >= 0
        served += 1
    assert served
