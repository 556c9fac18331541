"""Misuse of the command line, in the words of all other errors: what was expected, what was found, the next step."""

from __future__ import annotations

import re
from typing import Any

from coppice.text import nearest

_EXTRA = re.compile(r"^Got unexpected extra arguments?(?:\(s\))? \((.*)\)$")
_COMMAND = re.compile(r"^No such command '(.*?)'\.")
_VALUE = re.compile(r"^Input should be (.*?)(?:, unable to .*)?\.?$")
_NO_VALUE = re.compile(r"^Option '(.*)' requires an argument\.?$")
_NEXT = "give one or leave the option out."


def usage_words(error: Any) -> str:
    """The sentence about an option or argument that a command does not take.

    Args:
        error: A usage error of the parser of the command line.

    Examples:
        >>> from types import SimpleNamespace as Error
        >>> usage_words(Error(ctx=None, message="Option '--size' requires an argument.", option_name=None, param=None))
        'expected a value for --size, found none: give one or leave the option out.'
    """
    context = error.ctx
    path = "coppice" if context is None else context.command_path
    there = f"`{path} --help` lists what there is."
    message = str(error.message)
    parameter = getattr(error, "param", None)
    hint = (
        "" if parameter is None else str(parameter.get_error_hint()).replace("'", "").replace(" / ", " or ")
    )
    if type(error).__name__ == "MissingParameter":
        return f"expected {hint}, found none; {there}"
    name = getattr(error, "option_name", None)
    if type(error).__name__ == "NoSuchOption" and context is not None:
        options = [each for one in context.command.params for each in one.opts if each.startswith("--")]
        return f"expected an option of `{path}`, found {name}: {_nearest(str(name), options) or there}"
    found = _COMMAND.match(message)
    if found and context is not None:
        near = _nearest(found[1], list(context.command.list_commands(context)))
        return f"expected a command of `{path}`, found {found[1][:40]!r}: {near or there}"
    found = _EXTRA.match(message)
    if found:
        return f"expected no more arguments, found {found[1][:80]}; {there}"
    found = _NO_VALUE.match(message)
    if found:
        return f"expected a value for {found[1]}, found none: {_NEXT}"
    found = _VALUE.match(message)
    if found and hint:
        inner = error.__cause__ or error.__context__
        value = inner.errors()[0].get("input") if hasattr(inner, "errors") else "another value"
        return f"expected {hint} to be {found[1]}, found {str(value)[:40]}; {there}"
    if message == "Missing command.":
        return f"expected a command of `{path}`, found none; {there}"
    return f"{hint}: {message.rstrip('.')}; {there}" if hint else f"{message.rstrip('.')}; {there}"


def _nearest(word: str, known: list[str]) -> str:
    near = nearest(word.lstrip("-"), [each.lstrip("-") for each in known])
    return "" if near is None else f"did you mean {'--' * word.startswith('--')}{near}?"
