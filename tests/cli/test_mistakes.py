"""Commands that cannot be: each answers with one sentence that says what was found and the next step."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from cli.conftest import Run
from coppice.cli import app

MISTAKES = tomllib.loads((Path(__file__).parents[1] / "mistakes.toml").read_text())["mistake"]
TOPOLOGY = '{"format": "coppice-topology", "version": %d, "nodes": [], "links": []}'
TEXTS = {
    "README.md": "# Title\n",
    "empty.json": "",
    "list.json": "[1, 2]",
    "nodes.json": TOPOLOGY % 1,
    "newer.json": TOPOLOGY % 9,
    "log.txt": "host:1:1 [0] NCCL INFO NCCL version 2.30.7\n",
    "bytes.bin": "\0\1\2" * 50,
    "script.py": "import os\n",
    "job.toml": 'model.name = "gpt-7.5b"\ncluster = {topology = "dgx-a100", boxes = 4}\n'
    "layout = {tp = 4, global_batch = 64}\n",
    "wrong.toml": 'model.name = "gpt-7b"\ncluster = {topology = "dgx-a100", boxes = 4}\n',
}
MAKING = (
    "plan dgx-a100 -c all_gather -o plan.json",
    "export plan.json --to msccl-xml --target msccl -o algo.xml",
    "topology import dgx-a100 --set nics=node -o box.json",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mistakes")
    for name, text in TEXTS.items():
        (made / name).write_text(text)
    (made / "folder").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        for command in MAKING:
            assert CliRunner().invoke(app, command.split()).exit_code == 0
    edited = (made / "plan.json").read_text().replace('"weight":[1', '"weight":[2', 1)
    (made / "edited.json").write_text(edited)
    return made


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each["command"])
def test_mistakes_are_answered(
    mistake: dict[str, str], folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    words = shlex.split(mistake["command"])[1:]
    found = run(*words)
    assert " ".join(found.err.split()) == f"error: {mistake['answer']}"
    assert found.code == mistake.get("status", 2)
    assert not found.out


def options_of(words: list[str]) -> set[str]:
    """Options of the command that the words begin with, and of the groups above it."""
    command, options = get_command(app), {"--help"}
    for word in words:
        options |= {each for one in command.params for each in one.opts}
        inner = getattr(command, "commands", {}).get(word)
        if inner is None:
            break
        command = inner
    return options | {each for one in command.params for each in one.opts}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each["command"])
def test_options_that_answers_name_exist(mistake: dict[str, str]) -> None:
    words = shlex.split(mistake["command"])[1:]
    own = re.sub(
        r"found \S+|which [^:;]* takes?|`(?:coppice|torchrun) [^`]*`|rocm-smi --\w+", "", mistake["answer"]
    )  # of this command
    named = set(re.findall(r"--[a-z][a-z-]*", own))
    assert named <= options_of(words)


def test_there_are_120_and_every_command_has_one() -> None:
    commands = {shlex.split(each["command"])[1] for each in MISTAKES}
    assert len({each["command"] for each in MISTAKES}) == len(MISTAKES) >= 120
    assert not set(get_command(app).commands) - commands
