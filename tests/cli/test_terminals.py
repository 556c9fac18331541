"""Terminals whose encoding has no bars and no branches: every command works there, and files are whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def printed(*words: str | Path, encoding: str = "ascii", cwd: Path | None = None) -> bytes:
    """What the program prints on such a terminal."""
    command = [sys.executable, "-m", "coppice", *map(str, words)]
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "100"}
    done = subprocess.run(command, capture_output=True, env=environment, cwd=cwd)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topology and a plan with names beyond ASCII, in a folder with such a name."""
    folder = tmp_path_factory.mktemp("größe")
    document = {
        "format": "coppice-topology",
        "version": 1,
        "name": "grün",
        "nodes": [{"id": f"gpü{i}"} for i in range(3)] + [{"id": "schälter", "kind": "switch"}],
        "links": [{"from": f"gpü{i}", "to": "schälter", "gb_per_s": 1} for i in range(3)],
    }
    (folder / "grün.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    printed("plan", folder / "grün.json", "-c", "all_gather", "-o", folder / "plan.json")
    return folder


def test_explain_draws_in_ascii(named: Path) -> None:
    text = printed("explain", "plan.json", cwd=named).decode("ascii")
    assert "  ########################     100%" in text
    assert "  |- gp?1" in text
    assert "  `- gp?2" in text
    assert "└─" in printed("explain", "plan.json", encoding="utf-8", cwd=named).decode()


@pytest.mark.parametrize(
    "command",
    [
        "topology show grün.json",
        "simulate plan.json --size 1M",
        "compare grün.json -c all_gather --sizes 1M --algorithms forest",
        "algorithms",
        "report plan.json -o größe.html",
    ],
)
def test_commands_print(command: str, named: Path) -> None:
    printed(*command.split(), cwd=named).decode("ascii")


def test_errors_are_sentences() -> None:
    command = [sys.executable, "-m", "coppice", "bound", "fehlt-für.json"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=environment)
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: there is no file fehlt-f")
    assert done.stderr.count(b"\n") == 1


def test_data_is_the_same_on_every_terminal(named: Path) -> None:
    """JSON means the same, and files that go to standard output are those that `-o` writes."""
    for words in (("topology", "show", "grün.json"), ("bound", "grün.json", "-c", "all_gather")):
        plain, rich = (printed(*words, "--json", encoding=each, cwd=named) for each in ("ascii", "utf-8"))
        assert json.loads(plain.decode("ascii")) == json.loads(rich)
    assert printed("topology", "import", "grün.json", cwd=named) == printed(
        "topology", "import", "grün.json", encoding="utf-8", cwd=named
    )
