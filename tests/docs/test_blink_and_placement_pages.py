"""What the pages of Blink and of placements show is what the commands print."""

from __future__ import annotations

from pathlib import Path

from support.pages import coppice, examples, run_page

LASTING = ("optimum", "direct links", "switch", "phases", "split", "gap to the bound", "verified")
"""Lines about Blink that depend neither on the machine nor on the version of the solver."""


def lasting(printed: str) -> list[str]:
    title, *fields = printed.splitlines()
    return [title, *(line for line in fields if line.strip().startswith(LASTING))]


def test_output_about_blink_is_real() -> None:
    shown = examples("blink.md")
    assert len(shown) == 5
    for each in shown:
        assert lasting(coppice(*each.words).stdout) == lasting(each.shown)


def test_output_about_placements_is_real(tmp_path: Path) -> None:
    assert run_page("placement.md", tmp_path) == 4
