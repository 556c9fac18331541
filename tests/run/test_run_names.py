"""Names of ``coppice.run``: each is there, and loads no more than it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import coppice.run


@pytest.mark.parametrize("name", coppice.run.__all__)
def test_every_name_is_there(name: str) -> None:
    assert callable(getattr(coppice.run, name))


def test_unknown_names_are_refused() -> None:
    for room in (coppice.run, coppice.run.bench):
        with pytest.raises(AttributeError, match="has no attribute 'quickest'"):
            _ = room.quickest


def test_one_engine_does_not_load_the_others() -> None:
    code = "import sys, coppice.run; coppice.run.NumpyEngine; print('torch' in sys.modules, 'mpi4py' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]
