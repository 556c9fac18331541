"""The pages of messages: none is left out, each has a page, and what troubleshooting quotes is said."""

from __future__ import annotations

import ast
import re
from types import ModuleType

import pytest

from coppice.run import errors as run_errors
from support.benchmark_scripts import load_benchmark
from support.pages import page_text
from support.paths import ROOT


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_benchmark("messages", folder="docs")


def test_every_message_has_a_page_that_is_there(script: ModuleType) -> None:
    found = script.all_messages()
    assert sum(map(len, found.values())) > 1500
    for page in found:
        assert (ROOT / "docs" / f"{page}.md").is_file(), page
    for folder in script.PAGES:
        assert (script.SOURCE / folder).exists() or (script.SOURCE / f"{folder}.py").is_file(), folder


def test_errors_and_warnings_of_a_file_are_found(script: ModuleType) -> None:
    errors = set(script.messages(script.SOURCE / "schedule" / "files" / "plan_file.py"))
    assert "… was edited or damaged: its sha256 does not match its content; write the plan again." in errors
    warnings = set(script.messages(script.SOURCE / "export" / "mscclpp" / "reader.py"))
    assert "a switch channel has buff, which the current loader wants as buffer_type." in warnings
    assert len(script.doctor_rules()) > 190


def test_most_raised_errors_are_listed(script: ModuleType) -> None:
    """All but those whose sentence another function makes."""
    texts = (path.read_text() for path in script.SOURCE.rglob("*.py"))
    raised = sum(len(re.findall(r"\braise [\w.]*InputError\w*\(", text)) for text in texts)
    assert raised > 1000
    listed = sum(map(len, script.all_messages().values()))
    assert listed > 0.9 * raised


def test_messages_keep_their_words_as_markdown(script: ModuleType) -> None:
    page = script.filled(page_text("messages.md"))
    assert "<!-- messages -->" not in page
    assert "| `U09` | note |" in page
    assert "\\<gpu\\>" in page


def test_troubleshooting_quotes_what_the_program_says(script: ModuleType) -> None:
    listed = "\n".join(text for texts in script.all_messages().values() for text in texts)
    rows = re.findall(r"^\| `([^`]+)` \| \D", page_text("troubleshooting.md"), re.MULTILINE)
    assert len(rows) >= 8
    others = {row for row in rows if row not in listed and not hasattr(run_errors, row)}
    for path in script.SOURCE.rglob("*.py"):  # what is said in other words than those of an error
        longest = [max(re.split(r"…|\n", row), key=len) for row in others]
        text = path.read_text()
        if any(part[:20] in text for part in longest):
            said = "\n".join(
                script._template(node)
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Constant | ast.JoinedStr)
            )
            others = {row for row in others if row not in said}
    assert not others
