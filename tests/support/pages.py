"""One runner for the pages of docs: commands and programs that stand on a page are run, and print what it shows."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from coppice.cli import app
from support.paths import ROOT

PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
"""Every page that people read before the measurements."""

_STEP = re.compile(r"(?:`([\w.-]+)`:\n\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    kind: str
    text: str


@dataclass(frozen=True)
class Example:
    """A command of the program, and what the page shows that it prints."""

    command: str
    shown: str

    @property
    def words(self) -> list[str]:
        """The words behind `coppice`."""
        return shlex.split(self.command)[1:]


def page_name(path: Path) -> str:
    """The name by which `page_text` finds a page: below docs, or in the root of the repository."""
    return path.relative_to(ROOT).as_posix().removeprefix("docs/")


FOLLOWED = [
    name
    for name in map(page_name, PAGES)
    if name.startswith(("tutorials/", "questions/"))
    or name in ("install.md", "tasks.md", "troubleshooting.md")
]
"""Pages that a test follows as a reader does, from the first line to the last."""


def page_text(name: str) -> str:
    """The text of a page of docs, or of one in the root of the repository."""
    path = ROOT / "docs" / name
    return (path if path.is_file() else ROOT / name).read_text()


def blocks(name: str, *kinds: str) -> list[Block]:
    """The fenced blocks of a page, in order; of some kinds only if these are named."""
    found = [Block(kind, text) for kind, text in _FENCE.findall(page_text(name))]
    return [block for block in found if not kinds or block.kind in kinds]


def examples(name: str) -> list[Example]:
    """Commands with their output: ``sh`` and the ``text`` behind it, or ``console`` with both."""
    found = []
    before: Block | None = None
    for block in blocks(name):
        if block.kind == "console":
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                found.append(Example(command, shown))
        elif block.kind == "text" and before is not None and before.kind == "sh":
            *_, last = before.text.splitlines()
            found.append(Example(last, block.text))
        before = block
    return found


def coppice(*words: str) -> Result:
    """What the command line does with some words, in this process."""
    return CliRunner().invoke(app, list(words))


def run_page(name: str, folder: Path, variables: Mapping[str, Any] | None = None) -> int:
    """Run all blocks of a page in order, in a folder; a ``text`` block is what was printed last.

    ``json`` blocks become the file ``jobs.json``. Returns how many outputs were compared.
    """
    printed, compared = "", 0
    names = dict(variables or {})
    with working_in(folder):
        for block in blocks(name):
            if block.kind == "json":
                (folder / "jobs.json").write_text(block.text)
            elif block.kind == "sh":
                for line in block.text.splitlines():
                    assert line.startswith("coppice "), line
                    done = coppice(*shlex.split(line)[1:])
                    assert done.exit_code == 0, done.output
                    printed = done.stdout
            elif block.kind == "python":
                written = io.StringIO()
                with contextlib.redirect_stdout(written):
                    exec(compile(block.text, name, "exec"), names)
                printed = written.getvalue()
            else:
                assert block.kind == "text", block.kind
                assert printed == block.text
                compared += 1
    return compared


def follow(name: str, folder: Path) -> int:
    """Do what a page asks, in order and in a folder: save its files, type its commands, run its Python.

    A file is a block below a line with its name, "`ring.py`:". Commands (``console``) and Python (``pycon``) must print
    what the page shows, but for the time and memory of a run; a command may only fail where the page shows an error.
    Returns how many outputs were compared.
    """
    compared = 0
    names: dict[str, Any] = {}
    with working_in(folder):
        for file, kind, text in _STEP.findall(page_text(name)):
            if file:
                Path(file).write_text(text)
            elif kind == "console":
                for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                    command, _, shown = part.partition("\n")
                    printed, failed = typed(command)
                    assert without_times(printed) == without_times(shown), command
                    assert not failed or "error" in shown, command
                    compared += 1
            elif kind == "pycon":
                test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
                said: list[str] = []
                doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(
                    test, out=said.append, clear_globs=False
                )
                assert not said, "".join(said)
                names.update(test.globs)
                compared += len(test.examples)
    return compared


def typed(command: str) -> tuple[str, bool]:
    """What a command prints, and whether it fails; only those of the program itself run in this process."""
    if re.match(r"coppice [^|>]*$", command):
        done = coppice(*shlex.split(command)[1:])
        return done.output, done.exit_code != 0
    script = command.replace("coppice ", f"{shlex.quote(sys.executable)} -m coppice ")
    shell = subprocess.run(script, shell=True, capture_output=True, text=True)
    return shell.stdout + shell.stderr, shell.returncode != 0


def without_times(text: str) -> str:
    """What a command prints, but for the time and memory of the run."""
    return re.sub(r"  took .*|(?<= after )[\d.]+ m?s$", "", text, flags=re.MULTILINE)


def run_session(name: str) -> int:
    """Run the interactive examples of a page (``>>>``) as one session; returns how many there are."""
    failed, tried = doctest.testfile(str(ROOT / "docs" / name), module_relative=False)
    assert not failed
    return tried


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Make a folder the current one for a while."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
