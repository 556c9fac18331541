"""A bar for long work: on standard error, and only on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["Progressing", "progress_bar"]

Progressing = Callable[[int, int, str], None]
"""Called with units done, units in all, and what was just done."""


@contextmanager
def progress_bar() -> Iterator[Progressing | None]:
    """What to call with progress; None where nobody would see it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description:28}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting")

        def on_progress(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=name)

        yield on_progress
