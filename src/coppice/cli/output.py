"""Print aligned fields and tables, rates, sizes, bars, and progress on terminals."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from textwrap import wrap
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, Self, TextIO

from coppice.cli.terminal import LEAST_WIDTH, broken, may_be_terminal, terminal_width
from coppice.errors import InputError
from coppice.files import write_atomically
from coppice.outputs.formats import document

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text


LEAST_SECONDS = 2
"""Stages that take longer tell how long."""


def print_json(output: str, value: Mapping[str, Any]) -> None:
    """Print ``value`` as JSON on standard output, its format first, escaping what the encoding lacks.

    Args:
        output: Name of the output, in :data:`coppice.outputs.formats.OUTPUTS`.
        value: What its shape declares; what is not known is None.
    """
    found = document(output, value)
    text = _encoded(found)
    try:
        text.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        text = _encoded(found, ensure_ascii=True)
    sys.stdout.write(f"{text}\n")


def without_key(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A record without a key that a document has for itself.

    >>> without_key({"library": "nccl", "version": "2.30"}, "version")
    {'library': 'nccl'}
    """
    return {name: each for name, each in value.items() if name != key}


def json_line(output: str, value: Mapping[str, Any]) -> str:
    """A document on one line, for outputs that grow while a command runs."""
    return _encoded(document(output, value), indent=None, ensure_ascii=True)


def _encoded(found: Any, *, indent: int | None = 2, ensure_ascii: bool = False) -> str:
    """JSON as all readers take it: it has no infinite numbers, which become null."""
    try:
        return json.dumps(found, indent=indent, ensure_ascii=ensure_ascii, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(found), indent=indent, ensure_ascii=ensure_ascii, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def print_lines(lines: Sequence[str]) -> None:
    """Print lines, wrapped on a terminal only."""
    max_width = terminal_width()
    sys.stdout.write("".join(f"{each}\n" for line in lines for each in broken(line, max_width)))


def print_note(words: str) -> None:
    """Print a note for the user on standard error."""
    sys.stderr.write("".join(f"{line}\n" for line in broken(words, terminal_width(sys.stderr))))


def write_text(text: str, output: Path | None) -> None:
    """Write UTF-8 text to a file, or to standard output for ``-`` or none."""
    if output is None or str(output) == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
    else:
        write_atomically(output, text.encode())


def print_fields(title: str, fields: Sequence[tuple[str, str]], *, file: TextIO | None = None) -> None:
    """Print a title and named values in two columns.

    On a terminal names are dimmed, and long values go on below their beginning; in a pipe or a file a line is a field.
    """
    width = max((len(name) for name, _ in fields), default=0)
    stream = file or sys.stdout
    if not may_be_terminal(stream):
        rows = [title, *(f"  {name:<{width}}  {value}" for name, value in fields)]
        stream.write("".join(f"{row}\n" for row in rows))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True, file=file)
    max_width = console.width - width - 4 if console.is_terminal else 0
    console.print(
        Text("\n".join(broken(title, console.width if console.is_terminal else None)), style="bold")
    )
    for name, value in fields:
        lines = [value]
        if max_width >= LEAST_WIDTH:
            lines = wrap(value, max_width, break_long_words=False, break_on_hyphens=False) or [""]
        console.print(Text.assemble((f"  {name:<{width}}  ", "dim"), f"\n{'':<{width + 4}}".join(lines)))


def to_stdout(
    *outputs: Path | None, as_json: bool, holds: str = "the plan", instead: str = "plan.json"
) -> bool:
    """Whether a file argument means standard output.

    Args:
        outputs: The files that it is asked to write.
        as_json: Whether its figures go to standard output as JSON.
        holds: What the files hold, for the message.
        instead: An example of a name, for the message.

    Raises:
        InputError: If both would go there.
    """
    found = any(output is not None and str(output) == "-" for output in outputs)
    if found and as_json:
        raise InputError(
            f"standard output can hold {holds} or the figures, not both: give a file (`-o {instead}`)."
        )
    return found


class Progressing(Protocol):
    """Progress callback."""

    def __call__(self, done: int, total: int, name: str = ..., /) -> None:
        """Units done, units in all, and what was just done."""


@contextmanager
def progress_bar(words: str = "starting") -> Iterator[Progressing | None]:
    """Progress callback that draws a bar on standard error; None where that is no terminal."""
    if not may_be_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    shown = (
        SpinnerColumn(),
        TextColumn("{task.description:24}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*shown, console=console, transient=True) as progress:
        task = progress.add_task(words)

        def on_progress(done: int, total: int, name: str = words, /) -> None:
            progress.update(task, completed=done, total=total, description=name)

        yield on_progress


class Stages:
    """Spinner on standard error with stage and elapsed time, on terminals only."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._words = "starting"
        self._since = monotonic()

    def __enter__(self) -> Self:
        if may_be_terminal(sys.stderr):
            from rich.console import Console
            from rich.live import Live
            from rich.spinner import Spinner

            console = Console(stderr=True)
            if console.is_terminal:
                spinner = Spinner("dots", text=self, style="status.spinner")
                self._live = Live(spinner, console=console, refresh_per_second=12.5, transient=True)
                self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, words: str) -> None:
        """Start a stage, and show it even where it is over before the spinner turns again."""
        self._words, self._since = words, monotonic()
        if self._live is not None:
            self._live.refresh()

    def __rich__(self) -> Text:
        """The stage, and from some seconds on how long it has taken."""
        from rich.text import Text

        seconds = int(monotonic() - self._since)
        return Text(f"{self._words}, {seconds} s" if seconds >= LEAST_SECONDS else self._words)
