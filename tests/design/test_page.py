"""What docs/design.md shows is what the commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from coppice.cli import Commands
from coppice.cli.design import app as design
from coppice.design.families import FAMILIES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "design.md"


def test_output_on_the_page_is_real() -> None:
    app = typer.Typer(cls=Commands)
    app.callback()(lambda: None)
    app.add_typer(design, name="design")
    shown = re.findall(
        r"```sh\ncoppice (design (?!compare).*?)\n```\n\n```text\n(.*?)```",
        PAGE.read_text(),
        re.DOTALL,
    )
    assert len(shown) >= 5
    for command, text in shown:
        assert CliRunner().invoke(app, shlex.split(command)).stdout == text


@pytest.mark.slow
def test_the_market_on_the_page_is_real(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer(cls=Commands)
    app.callback()(lambda: None)
    app.add_typer(design, name="design")
    monkeypatch.chdir(PAGE.parents[1])
    pattern = r"```sh\ncoppice (design compare .*?)\n```\n\n```text\n(.*?)```"
    shown = re.search(pattern, PAGE.read_text(), re.DOTALL)
    assert shown is not None
    assert CliRunner().invoke(app, shlex.split(shown[1])).stdout == shown[2]


def test_every_family_is_on_the_page() -> None:
    for family in FAMILIES.values():
        assert f"`{family.signature}`" in PAGE.read_text()
