"""The frame of all methods: what they are asked and answer, and how it is verified and measured."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable
from fractions import Fraction

import msgspec
import pytest

import coppice
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError, UnreachableError
from coppice.planners.choice import from_catalogue
from coppice.planners.synthesis.method import (
    METHODS,
    Request,
    Status,
    Synthesis,
    SynthesisMethod,
    method_named,
)
from coppice.topology.model import Link, Node, Topology

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
        request.say("thinking")
        return by_ring(request)

    answers(talkative)
    heard: list[str] = []
    coppice.synthesize(RING, "all_gather", method="made-up", on_stage=heard.append)
    assert "thinking" in heard
    assert any("made-up" in words for words in heard)


def test_method_named() -> None:
    assert method_named("sccl").name == "sccl"
