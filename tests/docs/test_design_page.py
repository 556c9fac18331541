"""What docs/design.md shows is what the commands print."""

from __future__ import annotations

import pytest

from coppice.design.families import FAMILIES
from support.pages import coppice, examples, page_text
from support.paths import ROOT

MARKET = "coppice design compare "


def test_output_on_the_page_is_real() -> None:
    shown = [each for each in examples("design.md") if not each.command.startswith(MARKET)]
    assert len(shown) >= 5
    for each in shown:
        assert coppice(*each.words).stdout == each.shown


@pytest.mark.slow
def test_the_market_on_the_page_is_real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    [shown] = [each for each in examples("design.md") if each.command.startswith(MARKET)]
    assert coppice(*shown.words).stdout == shown.shown


def test_every_family_is_on_the_page() -> None:
    page = page_text("design.md")
    for family in FAMILIES.values():
        assert f"`{family.signature}`" in page
