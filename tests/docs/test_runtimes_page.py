"""docs/runtimes.md: the commands do what the page says, and print what it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from support.pages import coppice, page_text

PAGE = page_text("runtimes.md")


@pytest.mark.slow
def test_the_page_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = re.search(r"```sh\n(coppice plan mi250.*?)```", PAGE, re.DOTALL)
    shown = re.search(r"```text\n(note: for RCCL.*?)```", PAGE, re.DOTALL)
    assert commands is not None
    assert shown is not None
    for line in commands[1].splitlines():
        done = coppice(*shlex.split(line)[1:])
        assert done.exit_code == 0, done.stderr
        if " export " in line:
            assert done.stderr == shown[1]


def test_the_instances_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = re.search(r"printed: `(2 instances:.*?)`", PAGE, re.DOTALL)
    assert words is not None
    coppice(*shlex.split("plan dgx-a100 --collective all_gather --trees 1 -o plan.json"))
    arguments = "export plan.json --to msccl-xml --target msccl --instances 2 --size all -o algo.xml"
    done = coppice(*shlex.split(arguments))
    assert f"note: {' '.join(words[1].split())}\n" in done.stderr
