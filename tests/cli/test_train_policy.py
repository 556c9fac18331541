"""`coppice train policy`: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Run

GOOD: dict[str, Any] = {
    "forward": [1, 1, 1],
    "backward": [2, 2, 2],
    "bytes": [2, 2, 8],
    "bytes_per_second": 1,
}


def written(path: Path, **changes: Any) -> str:
    path.write_text(json.dumps({**GOOD, **changes}))
    return str(path)


def test_an_iteration_and_its_bound(run: Run, tmp_path: Path) -> None:
    file = written(tmp_path / "w.json", message_seconds=0, workers=4)
    found = run("train", "policy", file, "--policy", "wfbp", "--json").json
    assert found["iteration_seconds"] == 17
    assert found["lower_bound_seconds"] == 15
    shown = run(
        "train", "policy", file, "--policy", "ddp", "--set", "bucket_bytes=4", "--set", "first_bytes=4"
    ).out
    assert "17 s" in shown
    assert "15 s: the iteration takes 13.333% more" in shown


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"forward": [1]}, "1 in `forward`, 3 in `backward`"),
        ({"bytes": [1, 2, -3]}, "found -3.0 at $.bytes[2]"),
        ({"bytes": "all"}, "$.bytes"),
        ({"speed": 3}, "speed"),
    ],
)
def test_workloads_that_cannot_be(run: Run, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    found = run("train", "policy", written(tmp_path / "w.json", **changes))
    assert found.code == 2
    assert words in found.err


def test_what_cannot_be_asked(run: Run, tmp_path: Path) -> None:
    file = written(tmp_path / "w.json")
    assert "expected a policy" in run("train", "policy", file, "--policy", "best").err
    assert "found 'caps'" in run("train", "policy", file, "--policy", "ddp", "--set", "caps=1").err
    assert run("train", "policy", str(tmp_path / "none.json")).code == 2
