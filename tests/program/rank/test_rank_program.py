"""Programs of ranks: what they promise, and a checker that finds every injury."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.planners.planning import plan
from coppice.program.dialects.rank.lower import lower_for_run
from coppice.program.dialects.rank.program import RankBuffer, RankProgram, RowKind
from coppice.program.dialects.rank.verify import check_programs
from coppice.run.engines.datatype import DataType, ReduceOp, check_reduction
from coppice.run.errors import Mismatch, PeerLost, RunError, TimedOut
from coppice.run.planned import PlanCache, cache_directory
from coppice.schedule.plan import Plan
from support.run_cases import catalogue_bodies, star


@pytest.mark.parametrize("ranks", [2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_every_algorithm_checks(ranks: int) -> None:
    for name, collective, body in catalogue_bodies(ranks):
        for count, in_place, piece in (
            (5 * ranks + 3, False, None),
            (5 * ranks + 3, True, 2),
            (1, False, None),
        ):
            programs = lower_for_run(body, count, in_place=in_place, piece_elements=piece)
            try:
                check_programs(programs)
            except CheckError as error:
                pytest.fail(f"{name} {collective} {count} {in_place} {piece}: {error}")


def without(program: RankProgram, row: int) -> RankProgram:
    """The program without a row, its needs renumbered."""
    keep = np.arange(program.num_rows) != row
    needs = [
        [need - (need > row) for need in program.predecessors[a:b].tolist() if need != row]
        for index, (a, b) in enumerate(
            zip(program.predecessors_start[:-1], program.predecessors_start[1:], strict=True)
        )
        if index != row
    ]
    columns = ("step", "kind", "peer", "tag", "buffer", "offset", "length", "source", "source_offset")
    return replace(
        program,
        **{name: getattr(program, name)[keep] for name in columns},
        predecessors_start=np.cumsum([0, *map(len, needs)]).astype(np.int64),
        predecessors=np.array([need for each in needs for need in each], dtype=np.int32),
    )


def changed(program: RankProgram, column: str, row: int, value: int) -> RankProgram:
    values = getattr(program, column).copy()
    values[row] = value
    return replace(program, **{column: values})


INJURED = [
    (Collective.ALL_GATHER, False, None),
    (Collective.REDUCE_SCATTER, False, 3),
    (Collective.REDUCE_SCATTER, True, None),
    (Collective.ALL_REDUCE, True, 3),
    (Collective.ALL_TO_ALL, True, None),
    (Collective.REDUCE, False, None),
    (Collective.SCATTER, False, None),
    (Collective.BARRIER, False, None),
]


def programs_of(collective: Collective, *, in_place: bool, piece: int | None) -> list[RankProgram]:
    problem = Problem(topology=star(5), collective=collective, root=2 if collective.rooted else None)
    body = plan(problem, ring=False).plan.body
    return lower_for_run(
        body, 33 * (collective is not Collective.BARRIER), in_place=in_place, piece_elements=piece
    )


@pytest.mark.parametrize(("collective", "in_place", "piece"), INJURED)
def test_every_dropped_row_is_found(collective: Collective, *, in_place: bool, piece: int | None) -> None:
    programs = programs_of(collective, in_place=in_place, piece=piece)
    check_programs(programs)
    for rank, program in enumerate(programs):
        for row in range(program.num_rows):
            broken = [*programs[:rank], without(program, row), *programs[rank + 1 :]]
            with pytest.raises(CheckError):
                check_programs(broken)


@pytest.mark.parametrize(("collective", "in_place", "piece"), INJURED[:-1])
def test_every_shift_is_found(collective: Collective, *, in_place: bool, piece: int | None) -> None:
    programs = programs_of(collective, in_place=in_place, piece=piece)
    for rank, program in enumerate(programs):
        for row in range(program.num_rows):
            for column in ("offset", "source_offset", "length", "step", "tag"):
                kind = int(program.kind[row])
                if column == "source_offset" and kind not in (RowKind.RECV_REDUCE, RowKind.COPY):
                    continue
                if kind == RowKind.COPY and (column in ("step", "tag") or in_place):
                    continue  # what is copied away in place includes what stays
                for by in (-1, 1):
                    value = int(getattr(program, column)[row]) + by
                    broken = [*programs[:rank], changed(program, column, row, value), *programs[rank + 1 :]]
                    with pytest.raises(CheckError):
                        check_programs(broken)


def test_swapped_messages_are_found() -> None:
    """Two messages of one sender that change places at the sender only."""
    programs = programs_of(Collective.ALL_REDUCE, in_place=True, piece=3)
    found = 0
    for rank, program in enumerate(programs):
        sends = np.flatnonzero(program.kind == RowKind.SEND)
        for first, second in pairwise(sends):
            offsets = program.offset.copy()
            offsets[[first, second]] = offsets[[second, first]]
            lengths = program.length[[first, second]]
            if offsets[first] == offsets[second] or lengths[0] != lengths[1]:
                continue
            found += 1
            with pytest.raises(CheckError):
                check_programs([*programs[:rank], replace(program, offset=offsets), *programs[rank + 1 :]])
    assert found > 20


@pytest.mark.parametrize(("collective", "in_place", "piece"), INJURED)
def test_every_missing_need_is_found(collective: Collective, *, in_place: bool, piece: int | None) -> None:
    """Needs are not decoration: without any one of them rows may race."""
    programs = programs_of(collective, in_place=in_place, piece=piece)
    for rank, program in enumerate(programs):
        for place in range(len(program.predecessors)):
            start = program.predecessors_start.copy()
            start[start > place] -= 1
            broken = replace(
                program, predecessors_start=start, predecessors=np.delete(program.predecessors, place)
            )
            with pytest.raises(CheckError):
                check_programs([*programs[:rank], broken, *programs[rank + 1 :]])


def test_wrong_places_and_strangers_are_found() -> None:
    programs = programs_of(Collective.ALL_REDUCE, in_place=False, piece=None)
    first = programs[0]
    receives = int(np.flatnonzero(first.kind == RowKind.RECV_REDUCE)[0])
    for broken, words in (
        (changed(first, "buffer", receives, RankBuffer.INPUT), "writes the input"),
        (changed(first, "buffer", receives, 7), "not there"),
        (changed(first, "kind", receives, 9), "does not exist|later step or kind"),
        (changed(first, "peer", receives, 0), "at its other end"),
        (changed(first, "length", receives, 0), "touches 0 elements"),
        (replace(first, result_elements=1000), "inside its output"),
        (replace(first, predecessors_start=first.predecessors_start[:-1]), "columns of"),
        (replace(first, rank=1), "program of rank 0 of 5"),
        (replace(first, count=34), "differs from that of rank 0"),
    ):
        with pytest.raises(CheckError, match=words):
            check_programs([broken, *programs[1:]])


def test_unequal_blocks_are_checked_with_their_sizes() -> None:
    problem = Problem(topology=star(3), collective=Collective.ALL_GATHER, weights=(1, 0, 2))
    programs = lower_for_run(plan(problem, ring=False).plan.body, 30, in_place=False)
    assert [program.input_elements for program in programs] == [10, 0, 20]
    check_programs(programs, blocks=[10, 0, 20])
    with pytest.raises(CheckError):
        check_programs(programs)


def test_reductions_and_types() -> None:
    assert [dtype.itemsize for dtype in DataType] == [2, 2, 4, 8, 1, 1, 2, 2, 4, 4, 8, 8, 1]
    assert ReduceOp.AVG.serves(DataType.INT8)
    for op, dtype in ((ReduceOp.AVG, DataType.BOOL), (ReduceOp.BAND, DataType.BFLOAT16)):
        with pytest.raises(Exception, match="choose another operation"):
            check_reduction(op, dtype)
    assert issubclass(Mismatch, RunError)
    assert issubclass(PeerLost, RunError)
    assert issubclass(TimedOut, RunError)


def test_steps_and_staging() -> None:
    program = programs_of(Collective.ALL_REDUCE, in_place=True, piece=None)[0]
    starts = program.step_start
    assert int(starts[0]) == 0
    assert int(starts[-1]) == program.num_rows
    for begin, end in pairwise(starts):
        assert len(set(program.step[begin:end].tolist())) == 1
    by_hand = max(
        int(program.length[(program.step == step) & (program.kind == RowKind.RECV_REDUCE)].sum())
        for step in program.step
    )
    assert program.staging_elements == by_hand > 0


PROBLEM = Problem(topology=star(3), collective=Collective.ALL_GATHER)


class Planner:
    """Counts how often it is asked."""

    def __init__(self, problem: Problem = PROBLEM) -> None:
        self.problem, self.calls = problem, 0

    def __call__(self) -> Plan:
        self.calls += 1
        return plan(self.problem, ring=False).plan


def test_a_plan_is_made_once(tmp_path: Path) -> None:
    make = Planner()
    first = PlanCache(tmp_path).plan(PROBLEM, "forest", make)
    again = PlanCache(tmp_path).plan(PROBLEM, "forest", make)
    assert make.calls == 1
    assert again.inv_rate == first.inv_rate
    assert [path.name for path in (tmp_path / "plans").iterdir()] == [
        PlanCache(tmp_path).path(PROBLEM, "forest").name
    ]


def test_everything_that_matters_is_part_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PlanCache(tmp_path)
    names = {
        cache.path(PROBLEM, "forest"),
        cache.path(PROBLEM, "ring"),
        cache.path(Problem(topology=star(4), collective=Collective.ALL_GATHER), "forest"),
        cache.path(Problem(topology=star(3), collective=Collective.ALL_REDUCE), "forest"),
        cache.path(Problem(topology=star(3), collective=Collective.BROADCAST, root=0), "forest"),
        cache.path(Problem(topology=star(3), collective=Collective.BROADCAST, root=1), "forest"),
        cache.path(Problem(topology=star(3), collective=Collective.ALL_GATHER, weights=(1, 2, 3)), "forest"),
    }
    monkeypatch.setattr("coppice.version.__version__", "9.9")
    names.add(cache.path(PROBLEM, "forest"))
    assert len(names) == 8


@pytest.mark.parametrize("injury", ["cut", "flip", "empty", "other", "directory"])
def test_damaged_files_are_made_again(tmp_path: Path, injury: str) -> None:
    make = Planner()
    cache = PlanCache(tmp_path)
    cache.plan(PROBLEM, "forest", make)
    path = cache.path(PROBLEM, "forest")
    data = path.read_bytes()
    if injury == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif injury == "flip":
        path.write_bytes(data.replace(b'"all_gather"', b'"all_reduce"', 1))
    elif injury == "empty":
        path.write_bytes(b"")
    elif injury == "other":
        other = Problem(topology=star(3), collective=Collective.REDUCE_SCATTER)
        cache.plan(other, "forest", Planner(other))
        path.write_bytes(cache.path(other, "forest").read_bytes())
    else:
        path.unlink()
        path.mkdir()
    assert cache.plan(PROBLEM, "forest", make).problem.collective is Collective.ALL_GATHER
    assert make.calls == 2
    if injury != "directory":
        assert path.read_bytes() == data
    assert not list((tmp_path / "plans").glob("*.tmp"))


def test_a_place_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    make = Planner()
    cache = PlanCache(tmp_path / "file")
    for _ in range(2):
        assert cache.plan(PROBLEM, "forest", make).problem is PROBLEM
    assert make.calls == 2


def test_where_plans_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COPPICE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_directory() == Path("/home/someone/.cache/coppice")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_directory() == Path("/caches/coppice")
    monkeypatch.setenv("COPPICE_CACHE", "/plans")
    assert cache_directory() == Path("/plans")
    assert cache_directory("/given") == Path("/given")
