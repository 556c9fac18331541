"""Figures that the prose of README, tutorials and pages by question states are among what their commands print."""

from __future__ import annotations

import re

import pytest

from support.pages import FOLLOWED, page_text

FIGURE = re.compile(r"(?<![\w.,/-])(\d[\d,]*(?:\.\d+)?)(?=\s?(?:%|x\b|times\b|GB/s|GB\b|us\b|ms\b|s\b))")
DERIVED = {
    ("tutorials/network-designer.md", "31"): "100 * (5115 / 3904 - 1)",
    ("tutorials/network-designer.md", "45"): "100 * (1 - 28800 / 52000)",
    ("tutorials/new-algorithm.md", "5"): "100 * (33.40 / 31.88 - 1)",
    ("questions/measured-run.md", "387"): "67108864 / 173.333 / 1000",
    ("questions/measured-run.md", "6"): "100 * (912.4 / 864.4 - 1)",
}
"""Figures that follow from what is printed on their page, and how."""

CONSTANT = {
    ("questions/nccl-picks.md", "30"): "stands for any share",
    ("questions/slow-host.md", "85"): "the share below which `coppice probe` names a link, as its help says",
}
"""Figures that no command prints, and where they are from."""


def stated(page: str) -> list[str]:
    """The figures of a page's prose, without code."""
    prose = re.sub(
        r"^```.*?^```$|^    .*$|`[^`]*`|^\|.*$", "", page_text(page), flags=re.DOTALL | re.MULTILINE
    )
    return FIGURE.findall(prose)


def printed(page: str) -> set[str]:
    """The figures in the blocks of a page."""
    blocks = re.findall(r"^```.*?^```$", page_text(page), flags=re.DOTALL | re.MULTILINE)
    return {
        each.replace(",", "").rstrip(".") for each in re.findall(r"\d[\d,]*(?:\.\d+)?", "\n".join(blocks))
    }


@pytest.mark.parametrize("page", ["README.md", *FOLLOWED])
def test_figures_of_prose_are_printed(page: str) -> None:
    exact = printed(page)
    rounded = {f"{float(each):.0f}" for each in exact if "." in each}
    for figure in stated(page):
        known = (page, figure) in DERIVED or (page, figure) in CONSTANT
        assert known or figure.replace(",", "") in exact | rounded, f"{page}: {figure}"


@pytest.mark.parametrize(("page", "figure"), DERIVED)
def test_derived_figures_follow_from_what_is_printed(page: str, figure: str) -> None:
    formula = DERIVED[page, figure]
    assert figure in stated(page)
    assert f"{eval(formula):.0f}" == figure
    for number in re.findall(r"\d[\d.]*", formula):
        assert number in printed(page) or number in ("1", "100", "1000"), number


def test_constant_figures_are_stated() -> None:
    for page, figure in CONSTANT:
        assert figure in stated(page), f"{page} does not state {figure}"


def test_there_are_figures() -> None:
    assert sum(len(stated(page)) for page in ["README.md", *FOLLOWED]) >= 15
