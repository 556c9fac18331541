"""docs/in-network.md shows what models print, and has a row for every system."""

from __future__ import annotations

import pytest

from coppice.innetwork.systems.registry import MODELLED
from support.pages import Example, coppice, examples, page_text, run_session

MODELS = [
    each
    for each in examples("in-network.md")
    if each.command.startswith(("coppice switch model", "coppice compare"))
]


@pytest.mark.parametrize("example", MODELS, ids=lambda example: example.command[8:48])
def test_models_print_what_the_page_shows(example: Example) -> None:
    done = coppice(*example.words)
    assert done.exit_code == 0, done.output
    assert done.stdout == example.shown


def test_sessions_print_what_the_page_shows() -> None:
    assert run_session("in-network.md") >= 7


def test_every_system_has_a_row() -> None:
    assert len(MODELS) >= 6
    text = page_text("in-network.md")
    assert [name for name in MODELLED if f"`{name}`" not in text] == []
