"""A check of one published case: commands, and a judge of what the last of them answered."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from support.commands import Answer, run


class Check(NamedTuple):
    """Something that a case's input must be answered with."""

    case: str  # the case's folder
    wants: str  # the right answer, in a few words
    commands: (
        str | tuple[str, ...]
    )  # as typed in the folder: "coppice logs FILE --json"; the last one is judged
    judge: Callable[[Answer], object]  # raises AssertionError, or returns False, where the answer is wrong

    def run(self, directory: Path) -> str:
        """The fault found, or nothing where the answer is right."""
        answer = Answer(0, "", "")
        with _copy_of(directory / self.case):
            for command in (self.commands,) if isinstance(self.commands, str) else self.commands:
                answer = answered(command)
        try:
            wrong = self.judge(answer) is False
        except (AssertionError, LookupError, ValueError) as error:
            wrong, why = True, f"{type(error).__name__}: {error}"
        else:
            why = ""
        return f"{why} status {answer.status}: {answer.text[:600]}".strip() if wrong else ""


def answered(command: str) -> Answer:
    """Run a `coppice` command in this process; `< FILE` gives it standard input."""
    words = shlex.split(command)
    stdin = b""
    if "<" in words:
        stdin = Path(words[words.index("<") + 1]).read_bytes()
        del words[words.index("<") :]
    assert words[0] == "coppice", command
    return run(*words[1:], stdin=stdin)


@contextmanager
def _copy_of(folder: Path) -> Iterator[None]:
    """Work in a copy of a folder, where commands may write."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / folder.name
        shutil.copytree(folder, copy, copy_function=shutil.copyfile)
        copy.chmod(0o755)
        os.chdir(copy)
        try:
            yield
        finally:
            os.chdir(before)
