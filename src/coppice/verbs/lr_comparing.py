"""Verb of `coppice train lr-compare`: learning-rate schedules compared by small trainings."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct

from coppice.errors import InputError, MissingExtraError
from coppice.options import ANYTHING, Names, argument, option
from coppice.options.calls import verb
from coppice.options.names import LR_METHODS, LR_TASKS
from coppice.text import suggestion

if TYPE_CHECKING:
    from coppice.training.learning_rates.comparison import ComparedTask

    AnyPath = str | os.PathLike[str]
else:
    AnyPath = Any


class TrainingLength(Struct, frozen=True, kw_only=True):
    """How long trainings are, and how many of them there are."""

    steps: Annotated[int, option("kept by each training", ge=50)] = 2000
    seeds: Annotated[int, option("trainings of each method", ge=1)] = 5


class LrComparisonCall(Struct, frozen=True, kw_only=True):
    """Small trainings by several methods."""

    tasks: Annotated[
        Names, argument(f"Trainings, with commas between them: {', '.join(LR_TASKS)}.", metavar="TASKS")
    ] = LR_TASKS
    methods: Annotated[
        Names,
        option(f"Methods, with commas between them: {', '.join(LR_METHODS)}.", "--method", metavar="LIST"),
    ] = LR_METHODS
    results: Annotated[
        AnyPath | None,
        ANYTHING,
        option("Append measurements to this file (JSON lines), and resume from it.", metavar="FILE"),
    ] = None
    length: Annotated[TrainingLength, option("Parameter of the trainings", "--set")] = TrainingLength()


@verb(LrComparisonCall)
def lr_compare(asked: LrComparisonCall) -> list[ComparedTask]:
    """Compare learning-rate schedules, optimizers that need none and AutoLRS by small trainings.

    Every method trains from the same seeds; what counts is steps until the validation loss that the published schedule
    of each task ends with. Needs the extra `autolrs`; methods whose packages are missing are left out, and named.

    Raises:
        InputError: If there is no such task or method, or the file is none of runs.
        MissingExtraError: If torch is not installed.
    """
    return compared_tasks(asked)


def compared_tasks(
    asked: LrComparisonCall, begin: Callable[[str], None] = lambda _: None
) -> list[ComparedTask]:
    """Compare methods; ``begin`` gets what is trained next."""
    for kind, names, known in (("tasks", asked.tasks, LR_TASKS), ("methods", asked.methods, LR_METHODS)):
        for name in names:
            if name not in known:
                raise InputError(f"there is no {name!r} among the {kind}: {suggestion(name, known)}")
    try:
        from coppice.training.learning_rates.comparison import compare_methods
    except ModuleNotFoundError as error:
        raise MissingExtraError.of(error.name or "torch", extra="autolrs") from None
    return [
        compare_methods(
            task,
            asked.methods,
            steps=asked.length.steps,
            seeds=asked.length.seeds,
            results=asked.results,
            begin=begin,
        )
        for task in asked.tasks
    ]
