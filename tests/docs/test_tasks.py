"""Tasks in Python: each has a block that `test_tutorials.py` runs, and every command its names in Python."""

from __future__ import annotations

import re
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from cli.test_manners import commands
from support.pages import FOLLOWED, page_text

LEAST_TASKS = 38
"""Tasks that people who have only the pages were given: nobody removes one."""

PAGE = page_text("tasks.md")
NAMES = dict(re.findall(r"^\| `([\w -]+)` \| (`coppice.*`) \|$", PAGE, re.MULTILINE))


def test_there_are_enough_tasks_and_all_are_run() -> None:
    tasks = re.split(r"^### ", PAGE.partition("\n## Commands")[0], flags=re.MULTILINE)[1:]
    assert len(tasks) >= LEAST_TASKS
    assert len({each.partition("\n")[0] for each in tasks}) == len(tasks)
    for each in tasks:
        assert re.search(r"^```pycon\n>>> ", each, re.MULTILINE), each.partition("\n")[0]
    assert "tasks.md" in FOLLOWED


def test_every_command_has_a_name_in_python() -> None:
    assert set(NAMES) - {"design"} == {words for words, _ in commands()} - {"design"}


@pytest.mark.parametrize(
    "name", sorted({each for row in NAMES.values() for each in re.findall(r"`([^`]+)`", row)})
)
def test_the_name_exists(name: str) -> None:
    first, *rest = name.split(".")
    found: Any = import_module(first)
    for at, part in enumerate(rest):
        # Rooms are modules; what they export comes before a file of that name.
        if isinstance(found, ModuleType) and not hasattr(found, part):
            found = import_module(".".join([first, *rest[: at + 1]]))
        else:
            found = getattr(found, part)
    assert callable(found) or name == "coppice.topology.PRESETS"
