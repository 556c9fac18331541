"""docs/in-network.md: the program on streaming, SHARP and Camdoop prints what is shown."""

from __future__ import annotations

import contextlib
import io
from itertools import pairwise

from support.pages import blocks


def test_the_program_on_the_page() -> None:
    shown = [
        (program.text, text.text)
        for program, text in pairwise(blocks("in-network.md"))
        if program.kind == "python" and "simulate_all_reduce" in program.text and text.kind == "text"
    ]
    assert shown
    for program, text in shown:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(program, {})
        assert printed.getvalue() == text
