"""What both machine models share knows neither of them, and neither knows the other."""

from __future__ import annotations

from pathlib import Path

import pytest

import coppice.program

ROOM = Path(coppice.program.__file__).parent


@pytest.mark.parametrize(
    ("files", "strangers"),
    [
        ("*.py", ("dialects",)),
        ("dialects/puts/*.py", ("dialects.thread_blocks",)),
        ("dialects/thread_blocks/*.py", ("dialects.puts",)),
    ],
)
def test_machine_models_stay_apart(files: str, strangers: tuple[str, ...]) -> None:
    paths = sorted(ROOM.glob(files))
    assert paths
    for path in paths:
        for line in path.read_text().splitlines():
            assert not line.startswith(tuple(f"from coppice.program.{name}" for name in strangers)), path
