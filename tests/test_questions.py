"""The page of questions: every command on it runs, in its order, and answers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coppice.cli import COMMANDS, app
from support.pages import examples
from support.paths import ROOT

RUN_BY_ANOTHER_PAGE = {"design compare ": "design.md"}
"""How commands begin that take most of a minute, and the page whose test runs them, with their output."""

LONG = (
    "plan dgx-a100 --boxes 2 -c all_gather --size 1K:1G:32",
    "plan dgx-a100 --boxes 2 -c all_reduce --sizes 64K",
    "train estimate examples/iteration/gpt-175b.toml --what-if",
    "train search examples/iteration/gpt-175b.toml",
)
"""How commands begin that take a second or more: other tests of the quick run search for smaller inputs."""

COMMANDS_OF_THE_PAGE = re.findall(r"\| `coppice ([^`]+)` \|", (ROOT / "docs" / "questions.md").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("questions")
    (made / "examples").symlink_to(ROOT / "examples")
    return made


@pytest.mark.parametrize("left_out", [LONG, pytest.param((), marks=pytest.mark.slow)], ids=["quick", "all"])
def test_commands_answer(left_out: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert len(COMMANDS_OF_THE_PAGE) >= 20
    assert all(any(command.startswith(words) for command in COMMANDS_OF_THE_PAGE) for words in LONG)
    for command in COMMANDS_OF_THE_PAGE:
        if command.startswith(left_out):
            continue
        page = next((page for words, page in RUN_BY_ANOTHER_PAGE.items() if command.startswith(words)), None)
        if page is not None:
            assert f"coppice {command}" in [each.command for each in examples(page)], command
            continue
        found = CliRunner().invoke(app, shlex.split(command))
        assert found.exit_code == 0, (command, found.stderr)
        assert found.stdout or " -o " in command, command


def test_most_commands_are_named_on_some_page() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md") if page.name != "cli.md")
    assert not [name for name in COMMANDS if f"coppice {name}" not in pages]
