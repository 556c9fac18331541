"""docs/in-network.md: the sums of switches and the placements that it shows are what is printed."""

from __future__ import annotations

import contextlib
import io
from itertools import pairwise

from support.pages import blocks, coppice, examples


def test_the_sums_on_the_page() -> None:
    shown = [
        (program.text, text.text)
        for program, text in pairwise(blocks("in-network.md"))
        if program.kind == "python" and "import numerics" in program.text
    ]
    assert shown
    for program, text in shown:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(program, {})
        assert printed.getvalue() == text


def test_the_placements_on_the_page() -> None:
    found = [each for each in examples("in-network.md") if each.command.startswith("coppice switch place")]
    assert len(found) >= 2
    for each in found:
        assert coppice(*each.words).stdout == each.shown


def test_the_published_scale_wraps_and_ours_does_not() -> None:
    """The figures in the text: a thousand workers at the end of the range of a block."""
    most = 2**31 - 1
    value = 1 - 2.0**-24  # of 2^e
    assert round(value * most / 1000, 2) == 2147483.52
    assert round(value * most / 1000) == 2147484
    assert 1000 * 2147484 == 2147484000 > most
    assert 1000 * round(value * (most // 1000)) <= most
