"""docs/language.md: its programs are compiled, and its commands print what it shows, mistakes as well."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from support.language_examples import NAMES
from support.pages import blocks, coppice, page_text, working_in
from support.paths import ROOT

PAGE = "language.md"


def test_the_page_shows_what_is_printed(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    printed, compared = "", 0
    with working_in(tmp_path):
        for block in blocks(PAGE):
            if block.kind == "python":
                first, _, text = block.text.partition("\n")
                if first.startswith("# "):
                    Path(first[2:]).write_text(text)
                    continue
                written = io.StringIO()
                with contextlib.redirect_stdout(written):
                    exec(compile(block.text, PAGE, "exec"), {})
                printed = written.getvalue()
            elif block.kind == "text":
                assert block.text == printed
                compared += 1
            else:
                assert block.kind == "console"
                for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                    command, _, shown = part.partition("\n")
                    assert shown == coppice(*command.split()[1:]).output, command
                    compared += 1
    assert compared == 10


def test_all_examples_are_listed() -> None:
    listed = page_text(PAGE).partition("## Examples")[2]
    assert set(re.findall(r"`(all_\w+)`", listed)) == set(NAMES)
