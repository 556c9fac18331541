"""Tutorials and pages that answer a question work at the first try of a reader who has nothing but the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.pages import FOLLOWED, follow, page_text

NEEDED = {"networkx": "import networkx", "torch": "import torch"}
"""Packages, and what stands on a page that needs them."""


LONG = (
    "tutorials/network-designer.md",
    "questions/every-size.md",
    "questions/compare-algorithms.md",
    "questions/small-messages.md",
    "questions/same-bits.md",
    "questions/overlap.md",
)
"""Pages that take longest; others compare and plan for sizes, too."""


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow) if page in LONG else page for page in FOLLOWED]
)
def test_a_reader_sees_what_the_page_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPPICE_CACHE", str(tmp_path / "cache"))
    for package, line in NEEDED.items():
        if line in page_text(page):
            pytest.importorskip(package, reason=f"{package} is not installed")
    assert follow(page, tmp_path) >= 1


def test_pages_do_not_lean_on_the_repository() -> None:
    for page in FOLLOWED:
        shown = re.findall(r"^```console\n(.*?)^```", page_text(page), re.DOTALL | re.MULTILINE)
        assert not any("examples/" in block for block in shown), page
