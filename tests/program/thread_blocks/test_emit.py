"""The emitter against a slow one that keeps, for every value, who wrote it last and who has read it since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import coppice.program.dialects.thread_blocks.lower
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.planning import plan
from coppice.program.dialects.thread_blocks.emit import Emitter
from coppice.program.dialects.thread_blocks.lower import lower_to_program
from coppice.program.dialects.thread_blocks.program import Program
from coppice.rows import sorted_rows
from coppice.topology.presets import preset
from reference.catalogue import made_on_a_star, moving
from reference.programs_emit import Emitter as SlowEmitter


class Both:
    """Writes with both and compares every column."""

    written = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.fast, self.slow = Emitter(*arguments, **options), SlowEmitter(*arguments, **options)

    @property
    def joins(self) -> bool:
        assert self.fast.joins == self.slow.joins
        return self.fast.joins

    def joined_at(self, steps: Sequence[int]) -> np.ndarray:
        return self.fast.joined_at(steps)

    def program(self, **attributes: Any) -> Program:
        one, other = self.fast.program(**attributes), self.slow.program(**attributes)
        for field in fields(one):
            a, b = getattr(one, field.name), getattr(other, field.name)
            if isinstance(a, np.ndarray):
                assert a.dtype == b.dtype, field.name
                assert np.array_equal(a, b), field.name
            else:
                assert a == b, field.name
        Both.written += 1
        return one


@pytest.fixture(autouse=True)
def both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coppice.program.dialects.thread_blocks.lower, "Emitter", Both)


def lower_in_all_forms(body: Any, collective: Collective) -> None:
    before = Both.written
    for in_place in (False,) if collective is Collective.ALL_TO_ALL else (True, False):
        for fused in (True, False):
            for channels, most in ((1, None), (3, 4)):
                lower_to_program(body, in_place=in_place, fused=fused, channels=channels, max_count=most)
    assert Both.written > before


@pytest.mark.parametrize("collective", [each for each in Collective if each.made_of_trees])
@pytest.mark.parametrize(
    ("name", "options"),
    [pytest.param("mi250", {"boxes": 2}, marks=pytest.mark.slow), ("mi250", {}), ("ring", {"gpus": 5})],
)
def test_forests(name: str, options: dict[str, int], collective: Collective) -> None:
    root = 1 if collective.rooted else None
    problem = Problem(topology=preset(name, **options), collective=collective, root=root)
    for trees in (1, None):
        lower_in_all_forms(plan(problem, trees=trees, ring=False).plan.body, collective)


@pytest.mark.parametrize("entry", moving(slow=True))
def test_catalogue(entry: Algorithm) -> None:
    for ranks in (1, 3, 4, 6):
        body = made_on_a_star(entry, ranks, ranks // 3)
        if body is None:
            continue
        lower_in_all_forms(body, entry.collective)


def test_rows_are_sorted_alike_whether_or_not_the_keys_fit_into_one_number() -> None:
    random = np.random.default_rng(3)
    keys = [random.integers(-3, 4, 500) for _ in range(3)]
    wanted = sorted(range(500), key=lambda row: tuple(int(key[row]) for key in keys))
    assert sorted_rows(*keys).tolist() == wanted
    assert sorted_rows(*(key * 2**40 for key in keys)).tolist() == wanted
    assert sorted_rows(keys[0][:0]).tolist() == []
