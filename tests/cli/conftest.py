"""Small topology files, and a way to run the command in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from coppice.cli import app

Run = Callable[..., "Outcome"]
Call = Callable[..., Result]


class Outcome:
    """What a command printed and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> dict[str, object]:
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


@pytest.fixture
def run() -> Run:
    def call(*arguments: str | Path, stdin: bytes | None = None) -> Outcome:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return call


@pytest.fixture
def call() -> Call:
    """Runs `coppice design`."""
    return lambda *arguments: CliRunner().invoke(app, ["design", *map(str, arguments)])


@pytest.fixture
def star(tmp_path: Path) -> Path:
    """Four GPUs on a switch; GPU d has half the rate."""
    return write(
        tmp_path / "star.json",
        [*({"id": name, "kind": "gpu"} for name in "abcd"), {"id": "hub", "kind": "switch"}],
        [{"from": name, "to": "hub", "gb_per_s": 25 if name == "d" else 50} for name in "abcd"],
    )


@pytest.fixture
def one_way(tmp_path: Path) -> Path:
    """Three GPUs in a chain of one-way links: no GPU hears from the last one."""
    links = [{"from": a, "to": b, "gb_per_s": 1, "duplex": False} for a, b in ("ab", "bc")]
    return write(tmp_path / "chain.json", [{"id": name, "kind": "gpu"} for name in "abc"], links)


def write(path: Path, nodes: list[dict[str, object]], links: list[dict[str, object]]) -> Path:
    document = {"format": "coppice-topology", "version": 1, "name": path.stem, "nodes": nodes, "links": links}
    path.write_text(json.dumps(document))
    return path
