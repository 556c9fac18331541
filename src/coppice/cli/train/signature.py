"""Decorator for commands with the job options of `coppice train estimate` and options of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, get_type_hints

from coppice.cli.train.estimate import estimate
from coppice.cli.train.job_options import job_from_options
from coppice.errors import InputError

if TYPE_CHECKING:
    from coppice.iteration.job.job import TrainingJob
    from coppice.iteration.layers import LayerWorkload

RUN_KEYS = ("order", "overlap", "policy", "collectives", "model")
"""Options that are keys of how a job runs."""


def with_job_options(
    command: Callable[..., None], own: Sequence[inspect.Parameter], *, without: Sequence[str] = ()
) -> None:
    """Decorator that adds the argument and options of the estimate to a command.

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
    """Training job of the estimate's options.

    Raises:
        InputError: As :func:`coppice.cli.train.job_options.job_from_options`.
    """
    run = {name: options.pop(name, None) for name in RUN_KEYS}
    return job_from_options(job, run=run, **options)


def layers_of_options(job: str, options: dict[str, Any]) -> LayerWorkload | None:
    """Workload of layers from a .json file given in place of a job; None: it is a job.

    Raises:
        InputError: If the file is no such workload, or options of jobs are given with it.
    """
    if not job.endswith(".json"):
        return None
    from coppice.iteration.layers import read_workload

    given = [name for name, value in options.items() if value not in (None, [], ())]
    if given:
        flag = given[0].replace("_", "-")
        raise InputError(
            f"expected no options of jobs with a workload of layers, found --{flag}: leave it out, or name a job."
        )
    return read_workload(job)


def own_option(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    """Declare a command's own option; ``...`` as default: it is required."""
    default = inspect.Parameter.empty if default is ... else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
