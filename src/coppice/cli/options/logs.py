"""Shared options of commands that read logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from coppice.cli.output.render import print_note
from coppice.errors import InputError
from coppice.options import option

if TYPE_CHECKING:
    from coppice.collectives import Collective
    from coppice.logs.records import Log

RunOption = Annotated[
    str | None,
    option("What nccl-tests ran, for versions that do not print it.", "--collective", metavar="NAME"),
]


def collective_run(name: str | None) -> Collective | None:
    """Collective of ``--collective``.

    Raises:
        InputError: If there is none of that name.
    """
    from coppice.logs.records import collective_named

    found = None if name is None else collective_named(name)
    if name is not None and found is None:
        raise InputError(f"expected --collective with a name such as all_reduce, found {name!r}.")
    return found


def print_warnings(logs: Sequence[Log]) -> None:
    """Print warnings of log readers on standard error."""
    for log in logs:
        for warning in log.warnings:
            print_note(f"warning: {warning.rstrip('.')}.")
