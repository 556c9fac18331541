"""A set of plans as the algorithm of a communicator: each size by its plan, with right results on either side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.dialects.rank.lower import lower_rank
from coppice.program.dialects.rank.program import RankProgram
from coppice.run.communicator.communicator import Communicator
from coppice.run.engines.engine import Engine
from coppice.run.engines.numpy import run_ranks
from coppice.topology.presets import preset
from support.plan_sets import made_set

ELEMENTS = (1, 100, 255, 256, 257, 511, 512, 5000)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
def test_each_size_runs_by_its_plan(collective: str, tmp_path: Path) -> None:
    plans = made_set("ring", "recursive-doubling", "ring", collective=collective)
    plans.save(tmp_path / "plans")

    def work(engine: Engine) -> list[tuple[bool, bool]]:
        topology = preset("star", gpus=4)
        found = []
        with Communicator(
            engine, topology, algorithm=str(tmp_path / "plans"), pieces=1, cache_dir=tmp_path / "cache"
        ) as group:
            for elements in ELEMENTS:
                count = 4 * -(-elements // 4)
                own = np.arange(count, dtype=np.int32) + 1000 * engine.rank
                if collective == "all_reduce":
                    right = np.array_equal(group.all_reduce(own.copy()), 4 * np.arange(count) + 6000)
                    program = group.prepare(Collective.ALL_REDUCE, count, dtype="int32", in_place=True)
                else:
                    block = own[: count // 4]
                    whole = np.concatenate([np.arange(count // 4) + 1000 * rank for rank in range(4)])
                    right = np.array_equal(group.all_gather(block), whole)
                    program = group.prepare(Collective.ALL_GATHER, count, dtype="int32")
                body = plans.at(4 * count).body
                in_place = collective == "all_reduce"
                expected = lower_rank(body, engine.rank, count, in_place=in_place, piece_elements=None)
                found.append((right, _same(program, expected)))
        return found

    for outcome in run_ranks(4, work):
        assert outcome == [(True, True)] * len(ELEMENTS)
    assert not (tmp_path / "cache").exists()  # nothing was planned


def _same(one: RankProgram, other: RankProgram) -> bool:
    """Whether two programs have the same messages."""
    return all(np.array_equal(getattr(one, key), getattr(other, key)) for key in ("kind", "peer", "length"))


def test_a_set_of_another_problem_is_refused_on_every_rank(tmp_path: Path) -> None:
    made_set("ring").save(tmp_path / "plans")

    def work(engine: Engine) -> str:
        with Communicator(
            engine, preset("ring", gpus=4), algorithm=str(tmp_path / "plans"), cache_dir=tmp_path / "cache"
        ) as group:
            try:
                group.all_reduce(np.zeros(4, dtype=np.float32))
            except InputError as error:
                return str(error)
        return ""

    for said in run_ranks(4, work):
        assert said.startswith("expected a plan of all_reduce on ring of 4, found another one in ")
