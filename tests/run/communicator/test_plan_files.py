"""A plan of one's own is run as it is: of its collective, on its topology, verified before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coppice.errors import CheckError, InputError
from coppice.planners.planning import plan
from coppice.run.communicator.communicator import Communicator
from coppice.run.engines.numpy import run_ranks
from coppice.schedule.files.plan_file import write_plan
from coppice.topology.presets import preset

RING = preset("ring", gpus=4)


def gathered(file: Path, directory: Path, collective: str = "all_gather") -> list[Any]:
    def work(engine: Any) -> Any:
        with Communicator(engine, RING, algorithm=str(file), cache_dir=directory) as group:
            found = getattr(group, collective)(np.full(4, engine.rank))
            return found.tolist()

    found = run_ranks(4, work)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found


def test_ones_own_plan_is_run_and_none_is_made(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    write_plan(plan(RING, "all_gather", algorithm="ring"), file)
    assert gathered(file, tmp_path / "cache")[0] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert not (tmp_path / "cache").exists()


def test_it_is_for_its_own_collective(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    write_plan(plan(RING, "all_gather", algorithm="ring"), file)
    with pytest.raises(InputError, match="expected a plan of all_reduce on ring"):
        gathered(file, tmp_path / "cache", "all_reduce")


def test_it_is_verified_before(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    write_plan(plan(RING, "all_gather", algorithm="ring"), file)
    document = json.loads(file.read_text())
    document["inv_rate"] = "1/1000"
    file.write_text(json.dumps(document))
    with pytest.raises((InputError, CheckError)):
        gathered(file, tmp_path / "cache")
