"""Commands that take the options of `coppice train estimate` about a job, and some of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, get_type_hints

from coppice.cli.train.asked import asked_job
from coppice.cli.train.estimate import estimate

if TYPE_CHECKING:
    from coppice.iteration.job.job import TrainingJob

__all__ = ["RUN_KEYS", "job_of_options", "with_job_options"]

RUN_KEYS = ("order", "overlap", "collectives")
"""Options that are keys of how a job runs."""


def with_job_options(
    command: Callable[..., None], own: Sequence[inspect.Parameter], *, without: Sequence[str] = ()
) -> None:
    """Give a command the argument and the options of the estimate, and its own behind the argument.

    Args:
        command: Takes the job, and options by name.
        own: Its own options, annotated for typer.
        without: Options of the estimate that it does not take.
    """
    hints = get_type_hints(estimate, include_extras=True)
    given = [
        each.replace(annotation=hints[name])
        for name, each in inspect.signature(estimate).parameters.items()
        if name not in without
    ]
    every = [given[0], *own, *given[1:]]
    command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in every} | {"return": None}


def job_of_options(job: str, options: dict[str, Any]) -> TrainingJob:
    """The job that options of the estimate ask for.

    Raises:
        InputError: As :func:`coppice.cli.train.asked.asked_job`.
    """
    run = {name: options.pop(name, None) for name in RUN_KEYS}
    return asked_job(job, run=run, **options)
