"""Groups of commands with one that is meant where none is named."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

_HELP = ("--help", "-h")


def defaulting_to(name: str) -> type[TyperGroup]:
    """A group in which files alone are for one command: `coppice logs FILE` is `coppice logs read FILE`.

    Args:
        name: The command.
    """

    class Defaulting(TyperGroup):
        """A group of commands; where the first word names none of them, the default takes all."""

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            """Put the command before its arguments."""
            if args and args[0] not in self.commands and args[0] not in _HELP:
                args = [name, *args]
            found: list[str] = super().parse_args(ctx, args)
            return found

    return Defaulting
