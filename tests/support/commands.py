"""Commands run in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

from coppice.cli import app


class Answer(NamedTuple):
    """What a command answered."""

    status: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Both streams, blank space as one space each, for searches that do not depend on line ends."""
        return " ".join((self.out + " " + self.err).split())

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run(*words: str | Path, stdin: bytes | None = None) -> Answer:
    """Run `coppice` with arguments; what is no error of the command is raised."""
    result = CliRunner().invoke(app, [str(word) for word in words], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)
